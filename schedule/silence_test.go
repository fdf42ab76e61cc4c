package schedule_test

import (
	"context"
	"errors"
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
