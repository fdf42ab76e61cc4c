package schedule_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/schedule"
)

// advised are the settings of a pool that docs/database-failover.md advises.
func advised(config *pgxpool.Config) {
	config.PingTimeout = time.Second
	config.BeforeClose = func(conn *pgx.Conn) {
		if conn.IsClosed() {
			_ = conn.PgConn().Conn().Close()
		}
	}
}

// All connections of the pool fall silent while they are idle. When the client has noticed that,
// calls begin anew on other connections, also calls without a client, and more calls than the pool
// has places.
func TestCallsOutliveASilentPool(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	timeguard.Run(t, callsOutliveASilentPool)
}

func callsOutliveASilentPool(t *timeguard.Try) {
	db, wire := newDatabase(t), new(testkit.Wire)
	pool := testkit.Pool(t, db.url, wire.Carry, advised, func(c *pgxpool.Config) { c.MaxConns = 6 })
	client := testkit.Must(pgleases.NewClient(t.Context(), pool, pgleases.WithoutMigration()))(t)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	w := testkit.Must(schedule.New(t.Context(), client, pool, group, schedule.WithMaxRunning(3)))(t)
	kind := schedule.InTx(w, "books", effect)
	testkit.OK(t, kind.Put(t.Context(), "close", args{}, hourly))
	id := testkit.Must(kind.Enqueue(t.Context(), args{}, schedule.WithTime(midnight.AddDate(1, 0, 0))))(t)
	manager := testkit.Must(schedule.Manage(t.Context(), pool, group))(t)
	apart := schedule.JobsOf[args](testkit.Must(schedule.NewEnqueuer(pool, group))(t), "books")
	calls := map[string]func(context.Context) error{
		"Put":          func(ctx context.Context) error { return kind.Put(ctx, "open", args{}, hourly) },
		"Enqueue":      func(ctx context.Context) error { _, err := kind.Enqueue(ctx, args{}); return err },
		"Enqueuer":     func(ctx context.Context) error { _, err := apart.Enqueue(ctx, args{}); return err },
		"Pause":        func(ctx context.Context) error { return w.Pause(ctx, "close") },
		"Manage.Pause": func(ctx context.Context) error { return manager.Pause(ctx, "close") },
		"Get":          func(ctx context.Context) error { _, err := w.Get(ctx, "close"); return err },
		"Job":          func(ctx context.Context) error { _, err := manager.Job(ctx, id); return err },
		"List": func(ctx context.Context) (err error) {
			for _, failed := range w.List(ctx, schedule.ScheduleFilter{}) {
				err = errors.Join(err, failed)
			}
			return err
		},
		"History": func(ctx context.Context) (err error) {
			for _, failed := range manager.History(ctx, "close", 0) {
				err = errors.Join(err, failed)
			}
			return err
		},
	}
	var conns []*pgxpool.Conn
	for range pool.Config().MaxConns {
		conns = append(conns, testkit.Must(pool.Acquire(t.Context()))(t))
	}
	for _, conn := range conns {
		conn.Release()
	}
	wire.Silence()
	since := time.Now()
	answers := make(map[string]chan error)
	for name, call := range calls {
		answer := make(chan error, 1)
		answers[name] = answer
		go func() { answer <- call(t.Context()) }()
	}
	for name, answer := range answers {
		if err := testkit.Receive(t, name+" returns", answer); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if took := time.Since(since); took > 10*time.Second {
		t.Missed(since, 10*time.Second, "it took %v", took)
	}
}

// If the server falls silent before the answer to a commit, the run waits until the client has
// connected again, and not for its timeout.
func TestSilentCommitEndsWhenTheClientIsBack(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorkerFor(db, 10*time.Second)
	var calls atomic.Int64
	k := schedule.InTx(w.Scheduler, "k", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		err := effect(ctx, tx, r)
		if calls.Add(1) == 1 {
			w.wire.Silence()
		}
		return err
	}, schedule.WithTimeout(time.Hour), schedule.WithIdleTimeout(time.Second))
	w.run()
	j := w.outcome(testkit.Must(k.Enqueue(t.Context(), args{}))(t))
	expect(t, j.Outcome, schedule.OutcomeSucceeded, "outcome")
	expect(t, j.Attempts, 1, "attempts")
	w.end()
	w.wire.Cut() // otherwise the pool's end waits 15 s for the silent ones
	expect(t, len(db.effects()), 1, "effects")
}

// If a connection falls silent before a call of AtMostOnce, the run goes on over another one.
func TestSilentConnectionBeforeACall(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	w.Times().Answer = time.Second
	k := schedule.AtMostOnce(w.Scheduler, "k", noCall[args])
	w.wire.Mute("synchronous_commit")
	w.run()
	j := w.outcome(testkit.Must(k.Enqueue(t.Context(), args{}))(t))
	expect(t, w.wire.Left(), 0, "statements that fall silent")
	expect(t, j.Outcome, schedule.OutcomeSucceeded, "outcome")
}
