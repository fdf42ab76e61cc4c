package pgleases_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

func TestTheOwnConnectionGoesWhereThePoolsGoAndIsNoneOfThem(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	pool := newPool(t, direct(t), func(c *pgxpool.Config) {
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
		t.Errorf("the pool was used %d times", n)
	}
	if calls.Load() != 1 {
		t.Errorf("BeforeConnect was called %d times for the client", calls.Load())
	}
	named := func(name string) int {
		t.Helper()
		return value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = $1`, name)
	}
	if n := named("by token"); n != 1 {
		t.Errorf("%d connections of the client", n)
	}
	own := config.ConnConfig.Copy()
	own.RuntimeParams["application_name"] = "mine"
	direct := newClient(t, newPool(t, config.ConnString()), pgleases.WithConnConfig(own))
	own.RuntimeParams["application_name"] = "too late" // it was copied
	untilOwns(t, joined(t, direct, "other", 4), 4)
	if n := named("mine"); n != 1 {
		t.Errorf("%d connections from WithConnConfig", n)
	}
	execute(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN ('mine', 'by token')
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
	pool := newPool(t, url)
	guarded(t, pool, l, ownership(t, l, 0))
	if n := connections(t, pool); n != 1 {
		t.Errorf("%d connections", n)
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
	for round := range int64(10) {
		execute(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'pgleases'`)
		until(t, "both are back", func() bool {
			return ca.Stats().Reconnects == round+1 && cb.Stats().Reconnects == round+1 &&
				ca.Stats().Listening && cb.Stats().Listening
		})
		beats(t, ca, 1)
	}
	select {
	case <-changed:
		t.Error("something changed")
	default:
	}
	for _, p := range before {
		if now, ok := a.Partition(p.Number); !ok || now != p || p.Context().Err() != nil {
			t.Errorf("%v became %v, %v", p, now, ok)
		}
		guarded(t, pool, a, p)
	}
	if n := connections(t, pool); n != 2 {
		t.Errorf("%d connections of 2 clients", n)
	}
	shut(t, cb) // notifications arrive again
	untilOwns(t, a, 8)
}

func TestAServerThatBecomesReadOnlyIsLeftAndReturnedTo(t *testing.T) {
	t.Parallel()
	server := pgtest.Private(t)
	admin := newPool(t, server.URL())
	var book logbook
	c := newClient(t, newPool(t, server.URL()), book.option(), pgleases.WithHeartbeat(50*time.Millisecond))
	l := joined(t, c, "work", 4)
	untilOwns(t, l, 4)
	p, changed := ownership(t, l, 0), l.Changed()
	execute(t, admin, `ALTER SYSTEM SET default_transaction_read_only = on`)
	execute(t, admin, `SELECT pg_reload_conf()`)
	until(t, "the connection is given up", func() bool { return connections(t, admin) == 0 })
	until(t, "it was told so", func() bool {
		return len(book.lines("connect failed", "read-only")) == 1 && c.Stats().HeartbeatAge > 300*time.Millisecond
	})
	if s := c.Stats(); s.Owned != 4 || s.Trust == 0 {
		t.Errorf("stats while there is no server to write to: %+v", s)
	}
	execute(t, admin, `ALTER SYSTEM SET default_transaction_read_only = off`)
	execute(t, admin, `SELECT pg_reload_conf()`)
	until(t, "it has returned", func() bool { return c.Stats().Reconnects == 1 })
	beats(t, c, 3)
	if now, ok := l.Partition(0); !ok || now != p {
		t.Errorf("%v became %v", p, now)
	}
	select {
	case <-changed:
		t.Error("something changed")
	default:
	}
}

func TestNotificationsThatDoNotArriveAreFoundOutAndLivedWith(t *testing.T) {
	t.Parallel()
	url := direct(t)
	bouncer, err := pgtest.PgBouncer(t.Context(), url)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := bouncer.Stop(); err != nil {
			t.Error(err)
		}
	})
	through, err := bouncer.Through(url)
	if err != nil {
		t.Fatal(err)
	}
	var book logbook
	clients := []*pgleases.Client{
		newClient(t, newPool(t, url), pgleases.WithClientID("direct")),
		newClient(t, newPool(t, through), pgleases.WithClientID("pooled"), book.option(), pgleases.WithHeartbeat(100*time.Millisecond)),
		newClient(t, newPool(t, url), pgleases.WithClientID("polling"), pgleases.WithPolling(), pgleases.WithHeartbeat(100*time.Millisecond)),
	}
	leases := make([]*pgleases.Lease, len(clients))
	for i, c := range clients {
		leases[i] = joined(t, c, "work", 9, pgleases.WithHandoffDelay(0))
	}
	for _, l := range leases {
		untilOwns(t, l, 3)
	}
	until(t, "it is known who listens", func() bool { return clients[0].Stats().Listening && len(book.lines("polling")) == 1 })
	beats(t, clients[1], 5)
	for i, want := range []bool{true, false, false} {
		if s := clients[i].Stats(); s.Listening != want || s.Reconnects != 0 {
			t.Errorf("stats of %s: %+v", clients[i].ID(), s)
		}
	}
	if lines := book.lines("notifications do not arrive"); len(lines) != 1 {
		t.Errorf("it was logged as %q", lines)
	}
	pool := newPool(t, through)
	guarded(t, pool, leases[1], ownership(t, leases[1], numbers(leases[1])[0]))
	shut(t, clients[0])
	began := time.Now()
	until(t, "the rest share it", func() bool { return len(numbers(leases[1]))+len(numbers(leases[2])) == 9 })
	t.Logf("polling, they own all after %v", time.Since(began))
	if took := time.Since(began); took > 250*time.Millisecond+slack {
		t.Errorf("they own all after %v, with a heartbeat of 100 ms", took)
	}
	shut(t, clients[2])
	untilOwns(t, leases[1], 9)
}

func TestAnExhaustedPoolCostsNoLease(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	admin := newPool(t, url)
	pool := newPool(t, url+"&pool_max_conns=2")
	c := newClient(t, pool, pgleases.WithTTL(time.Second), pgleases.WithClientID("a"))
	l := joined(t, c, "work", 2)
	untilOwns(t, l, 2)
	for range 2 {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	p, changed := ownership(t, l, 0), l.Changed()
	beats(t, c, 6) // of three in a TTL
	other := newClient(t, pool, pgleases.WithTTL(time.Second), pgleases.WithClientID("b"))
	b := joined(t, other, "other", 2)
	untilOwns(t, b, 2)
	shut(t, other)
	select {
	case <-changed:
		t.Error("something changed")
	default:
	}
	if now, ok := l.Partition(0); !ok || now != p || c.Stats().Losses != (pgleases.Losses{}) {
		t.Errorf("%v became %v", p, now)
	}
	if n := value[int](t, admin, `SELECT count(*) FROM pgleases.status WHERE owner = 'a'`); n != 2 {
		t.Errorf("it owns %d", n)
	}
}

// A tracer counts statements.
type tracer struct {
	mu   sync.Mutex // guards sent
	sent []string
}

func (tr *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.sent = append(tr.sent, data.SQL)
	return ctx
}

func (tr *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (tr *tracer) take() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	defer func() { tr.sent = nil }()
	return tr.sent
}

func TestAHeartbeatIsOneStatementWhateverTheNumberOfLeases(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	var tr tracer
	config.Tracer = &tr
	pool := newPool(t, url)
	c := newClient(t, pool, pgleases.WithConnConfig(config), pgleases.WithHeartbeat(50*time.Millisecond))
	other := newClient(t, pool)
	var leases []*pgleases.Lease
	for i := range 5 {
		leases = append(leases, joined(t, c, string(rune('a'+i)), 10), joined(t, other, string(rune('a'+i)), 10))
	}
	for _, l := range leases {
		untilOwns(t, l, 5)
	}
	until(t, "nothing is to be done", func() bool {
		tr.take()
		beats(t, c, 3)
		return len(tr.take()) <= 3
	})
	began := time.Now()
	tr.take()
	beats(t, c, 20)
	sent := tr.take()
	took := time.Since(began)
	t.Logf("%d statements in %v", len(sent), took)
	// An interval is 45 to 50 ms; a check of who has expired, or a read, may be among them.
	if n := len(sent); n < 19 || n > int(took/(45*time.Millisecond))+5 {
		slices.Sort(sent)
		t.Errorf("%d statements in %v: %.2000q", n, took, slices.Compact(sent))
	}
}
