package pgleases_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestOwnConnectionUsesThePoolsConfig(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	pool := testkit.Pool(t, direct(t), func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, config *pgx.ConnConfig) error { // as for a token
			calls.Add(1)
			config.RuntimeParams["application_name"] = "by token"
			return nil
		}
	})
	config := pool.Config()
	used := pool.Stat().AcquireCount()
	c := newClient(t, pool)
	l := joined(t, c, "work", 4)
	untilOwns(t, l, 4)
	if n := pool.Stat().AcquireCount() - used; n != 0 {
		t.Errorf("the pool was used %d times, not 0", n)
	}
	if calls.Load() != 1 {
		t.Errorf("BeforeConnect was called %d times for the client, not once", calls.Load())
	}
	named := func(name string) int {
		t.Helper()
		return testkit.Value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = $1`, name)
	}
	if n := named("by token"); n != 1 {
		t.Errorf("the client has %d connections, not 1", n)
	}
	own := config.ConnConfig.Copy()
	own.RuntimeParams["application_name"] = "mine"
	direct := newClient(t, testkit.Pool(t, config.ConnString()), pgleases.WithConnConfig(own))
	own.RuntimeParams["application_name"] = "too late" // it was copied
	untilOwns(t, joined(t, direct, "other", 4), 4)
	if n := named("mine"); n != 1 {
		t.Errorf("%d connections are from WithConnConfig, not 1", n)
	}
	testkit.Execute(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN ('mine', 'by token')
		AND datname = current_database() AND pid <> pg_backend_pid()`)
	until(t, "they connected again", func() bool {
		return direct.Stats().Reconnects == 1 && c.Stats().Reconnects == 1 && named("mine") == 1 && named("by token") >= 1
	})
}

func TestOpenNeedsNoPool(t *testing.T) {
	t.Parallel()
	url := direct(t)
	team := newCrew(t)
	var c *pgleases.Client
	team.do(func() {
		var err error
		if c, err = pgleases.Open(t.Context(), url+"&pool_max_conns=3", pgleases.WithClientID("a")); err != nil {
			t.Fatal(err)
		}
	})
	defer shut(t, c)
	l := joined(t, c, "work", 4)
	untilOwns(t, l, 4)
	pool := testkit.Pool(t, url)
	guarded(t, pool, l, ownership(t, l, 0))
	if n := connections(t, pool); n != 1 {
		t.Errorf("the client has %d connections, not 1", n)
	}
	shut(t, c)
	team.gone()
	until(t, "the connection is gone", func() bool { return connections(t, pool) == 0 })
}

func TestALostConnectionCostsNothing(t *testing.T) {
	t.Parallel()
	pool, ca, cb, a := twoClientsOn(t, direct(t), 8, pgleases.WithHandoffDelay(0))
	b := joined(t, cb, "work", 8, pgleases.WithHandoffDelay(0))
	until(t, "each owns half", func() bool { return len(a.Values()) == 4 && len(b.Values()) == 4 }, a, b)
	var before []pgleases.Partition
	for _, n := range a.Values() {
		before = append(before, ownership(t, a, n))
	}
	changed := a.Changed()
	for round := range int64(4) {
		testkit.Execute(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'pgleases'`)
		until(t, "both are back", func() bool {
			return ca.Stats().Reconnects == round+1 && cb.Stats().Reconnects == round+1 &&
				ca.Stats().Listening && cb.Stats().Listening
		})
		beats(t, ca, 1)
	}
	select {
	case <-changed:
		t.Error("Changed was closed: something changed")
	default:
	}
	for _, p := range before {
		if now, ok := a.Partition(p.Number); !ok || now != p || p.Context().Err() != nil {
			t.Errorf("without its connection, %v became %v, owned %v, %v", p, now, ok, context.Cause(p.Context()))
		}
		guarded(t, pool, a, p)
	}
	if n := connections(t, pool); n != 2 {
		t.Errorf("two clients have %d connections, not 2", n)
	}
	shut(t, cb) // notifications arrive again
	untilOwns(t, a, 8)
}

func TestHungPoolFunctionDelaysNeitherOpenNorClose(t *testing.T) {
	t.Parallel()
	url := direct(t)
	db := testkit.Pool(t, url)
	ended := make(chan struct{})
	defer close(ended)
	var hangs atomic.Bool
	entered := make(chan struct{}, 1000)
	pool := testkit.Pool(t, url, func(c *pgxpool.Config) {
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if hangs.Load() {
				entered <- struct{}{}
				<-ended // whatever becomes of its context
			}
			return nil
		}
	})
	c := newClient(t, pool)
	hangs.Store(true)
	testkit.Execute(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'pgleases'`)
	testkit.Receive(t, "it connects anew", entered)
	over, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("over"))
	closed := make(chan error, 1)
	go func() { closed <- c.Close(over) }()
	testkit.Receive(t, "Close returns", closed)

	soon, cancelSoon := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() {
		_, err := pgleases.NewClient(soon, pool)
		opened <- err
	}()
	testkit.Receive(t, "a second one connects", entered)
	cancelSoon()
	if err := testkit.Receive(t, "NewClient returns", opened); !errors.Is(err, context.Canceled) {
		t.Errorf("NewClient: %v, want the end of its context", err)
	}
	if n := len(entered); n > 0 {
		t.Errorf("%d more attempts began while one went on", n)
	}
}

// noDeadlines is a connection as of an SSH tunnel.
type noDeadlines struct{ net.Conn }

func (noDeadlines) SetDeadline(time.Time) error { return errors.New("deadline not supported") }

// A deadline ends a wait.
func TestConnectionWithoutDeadlinesIsRefused(t *testing.T) {
	t.Parallel()
	own := testkit.Must(pgx.ParseConfig(direct(t)))(t)
	dial := own.DialFunc
	own.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return noDeadlines{conn}, err
	}
	_, err := pgleases.NewClient(t.Context(), testkit.Pool(t, own.ConnString()), pgleases.WithConnConfig(own))
	if err == nil || !strings.Contains(err.Error(), "DialFunc") {
		t.Fatalf("NewClient: %v", err)
	}
}
