package leader_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/leader"
	"github.com/pgleases/pgleases/pgleasestest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A candidate runs an election, and reports its callbacks.
type candidate struct {
	*leader.Elector
	client *pgleases.Client
	said   chan string
	ctx    context.Context // of the last OnStartedLeading; read it after "started"
	finish chan struct{}   // lets OnStoppedLeading return
	stop   context.CancelFunc
	ended  chan error
}

func stand(t testing.TB, c *pgleases.Client) *candidate {
	t.Helper()
	e := &candidate{
		Elector: leader.New(c, "leader"),
		client:  c,
		said:    make(chan string, 100),
		finish:  make(chan struct{}),
		ended:   make(chan error, 1),
	}
	var ctx context.Context
	ctx, e.stop = context.WithCancel(context.Background())
	t.Cleanup(e.stop)
	over := make(chan struct{}) // a try that did not count leaves no callback behind
	t.Cleanup(func() { close(over) })
	go func() {
		e.ended <- e.Run(ctx, leader.Callbacks{
			OnStartedLeading: func(ctx context.Context) {
				e.ctx = ctx
				e.said <- "started"
			},
			OnStoppedLeading: func() {
				e.said <- "stopped"
				select {
				case <-e.finish:
				case <-over:
				}
			},
			OnNewLeader: func(id string) { e.said <- "new leader " + id },
		})
	}()
	return e
}

// says waits for callbacks, in any order.
func (e *candidate) says(t testing.TB, all ...string) {
	t.Helper()
	missing := make(map[string]bool)
	for _, text := range all {
		missing[text] = true
	}
	for len(missing) > 0 {
		text := testkit.Receive(t, fmt.Sprint(e.client.ID(), " says ", missing), e.said)
		if !missing[text] {
			t.Fatalf("%s says %q, not %v", e.client.ID(), text, missing)
		}
		delete(missing, text)
	}
}

func client(t testing.TB, pool *pgxpool.Pool, id string) *pgleases.Client {
	t.Helper()
	return clients.New(t, pool, pgleases.WithClientID(id))
}

func TestNextLeaderBeginsWhenCallbacksReturned(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	a := stand(t, client(t, pool, "a"))
	a.says(t, "started", "new leader a")
	b := stand(t, client(t, pool, "b"))
	b.says(t, "new leader a")
	if !a.IsLeader() || b.IsLeader() || a.Leader() != "a" || b.Leader() != "a" {
		t.Errorf("a leads: %v, b: %v; the leader is %q and %q", a.IsLeader(), b.IsLeader(), a.Leader(), b.Leader())
	}
	none := context.Background()
	if leader.Epoch(none) != 0 || !errors.Is(context.Cause(leader.Context(none)), pgleases.ErrNotOwner) {
		t.Error("an epoch or a context without a leadership")
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	guarded := func(ctx context.Context) error {
		ctx = context.WithoutCancel(ctx)
		viaSQL := func() error {
			tx := testkit.Must(db.BeginTx(none, nil))(t)
			defer func() { _ = tx.Rollback() }()
			return leader.GuardSQL(ctx, tx)
		}
		err := pgx.BeginFunc(none, pool, func(tx pgx.Tx) error { return leader.Guard(ctx, tx) })
		if other := viaSQL(); fmt.Sprint(err) != fmt.Sprint(other) {
			t.Errorf("Guard: %v, GuardSQL: %v", err, other)
		}
		return err
	}
	testkit.OK(t, guarded(a.ctx))
	if err := guarded(none); !errors.Is(err, pgleases.ErrNotOwner) {
		t.Errorf("a guard without a leadership: %v", err)
	}
	a.stop()
	a.says(t, "stopped")
	if a.ctx.Err() == nil {
		t.Error("the context of a leader that stops has not ended")
	}
	clients.Beats(t, b.client, 3)
	if b.IsLeader() {
		t.Error("b leads before a's OnStoppedLeading has returned")
	}
	close(a.finish)
	if err := testkit.Receive(t, "Run returns", a.ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
	if a.IsLeader() {
		t.Error("a leads after Run")
	}
	b.says(t, "started", "new leader b")
	testkit.OK(t, guarded(b.ctx))
	if err := guarded(a.ctx); !errors.Is(err, pgleases.ErrClosed) {
		t.Errorf("a guard of a former leader: %v", err)
	}
	if leader.Epoch(b.ctx) <= leader.Epoch(a.ctx) {
		t.Errorf("epoch %d after %d", leader.Epoch(b.ctx), leader.Epoch(a.ctx))
	}
	close(b.finish)
	clients.Close(t, b.client)
	b.says(t, "stopped")
	if err := testkit.Receive(t, "Run returns", b.ended); !errors.Is(err, pgleases.ErrClosed) {
		t.Errorf("Run returned %v", err)
	}
}

// In a test of an application, which decides who leads.
func TestElectionOnDouble(t *testing.T) {
	t.Parallel()
	lease := pgleasestest.NewLease("leader", 1)
	defer lease.Close()
	e := stand(t, lease.Client())
	close(e.finish)
	lease.Gain(0)
	e.says(t, "started", "new leader pgleasestest")
	first := leader.Epoch(e.ctx)
	lease.Expire()
	if e.IsLeader() {
		t.Error("it leads without trust")
	}
	e.says(t, "stopped")
	if cause := context.Cause(e.ctx); !errors.Is(cause, pgleases.ErrTrustLost) {
		t.Errorf("it stopped with %v", cause)
	}
	lease.Gain(0)
	e.says(t, "started")
	if leader.Epoch(e.ctx) <= first {
		t.Errorf("epoch %d after %d", leader.Epoch(e.ctx), first)
	}
	e.stop()
	e.says(t, "stopped")
	testkit.Receive(t, "Run returns", e.ended)
}

func TestSecondRunIsRefused(t *testing.T) {
	t.Parallel()
	lease := pgleasestest.NewLease("leader", 1)
	defer lease.Close()
	e := stand(t, lease.Client())
	close(e.finish)
	lease.Gain(0)
	e.says(t, "started", "new leader pgleasestest")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	work := func(context.Context) { t.Error("a second Run leads") }
	if err := e.Run(ctx, leader.Callbacks{OnStartedLeading: work}); err == nil || ctx.Err() != nil {
		t.Errorf("a second Run of an Elector returned %v", err)
	}
	err := leader.Run(ctx, lease.Client(), "leader", leader.Callbacks{OnStartedLeading: work})
	if err == nil || ctx.Err() != nil {
		t.Errorf("a second Run on the client returned %v", err)
	}
	// Its context ends before it returns, but not therefore: the lease is not its own to leave. It may
	// also return before it has seen a leader; then it is called again.
	for seen := false; !seen; {
		err := leader.Run(ctx, lease.Client(), "leader", leader.Callbacks{
			OnStartedLeading: work, OnNewLeader: func(string) { seen = true; cancel() },
		})
		if err == nil || seen != (ctx.Err() != nil) {
			t.Fatalf("a second Run whose context ends returned %v, %v", err, ctx.Err())
		}
	}
	if !e.IsLeader() {
		t.Error("the first does not lead any longer")
	}
}
