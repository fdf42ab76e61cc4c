package pgleases_test

import (
	"context"
	"slices"
	"strings"
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
		t.Errorf("the pool was used %d times, not 0", n)
	}
	if calls.Load() != 1 {
		t.Errorf("BeforeConnect was called %d times for the client, not once", calls.Load())
	}
	named := func(name string) int {
		t.Helper()
		return value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = $1`, name)
	}
	if n := named("by token"); n != 1 {
		t.Errorf("the client has %d connections, not 1", n)
	}
	own := config.ConnConfig.Copy()
	own.RuntimeParams["application_name"] = "mine"
	direct := newClient(t, newPool(t, config.ConnString()), pgleases.WithConnConfig(own))
	own.RuntimeParams["application_name"] = "too late" // it was copied
	untilOwns(t, joined(t, direct, "other", 4), 4)
	if n := named("mine"); n != 1 {
		t.Errorf("%d connections are from WithConnConfig, not 1", n)
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

func TestClientsThatPollShareAndHandOver(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	clients, leases := make([]*pgleases.Client, 2), make([]*pgleases.Lease, 2)
	for i := range clients {
		clients[i] = newClient(t, pool, pgleases.WithClientID(string(rune('a'+i))), pgleases.WithPolling(),
			pgleases.WithHeartbeat(50*time.Millisecond))
		leases[i] = joined(t, clients[i], "work", 8, pgleases.WithHandoffDelay(0))
	}
	until(t, "each owns half", func() bool { return slices.Equal(owned(leases...), []int{4, 4}) }, leases...)
	for _, c := range clients {
		beats(t, c, 3)
		if s := c.Stats(); s.Listening || s.Reconnects != 0 {
			t.Errorf("%s polls, and its stats are %+v: it should not listen, nor have reconnected", c.ID(), s)
		}
	}
	shut(t, clients[0])
	untilOwns(t, leases[1], 8)
}

func TestAnExhaustedPoolCostsNoLease(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	admin := newPool(t, url)
	pool := newPool(t, url+"&pool_max_conns=2")
	c := newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithHeartbeat(50*time.Millisecond))
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
	beats(t, c, 6)
	other := newClient(t, pool, pgleases.WithClientID("b"))
	b := joined(t, other, "other", 2)
	untilOwns(t, b, 2)
	shut(t, other)
	select {
	case <-changed:
		t.Error("Changed was closed: something changed")
	default:
	}
	if now, ok := l.Partition(0); !ok || now != p || c.Stats().Losses != (pgleases.Losses{}) {
		t.Errorf("%v became %v, owned %v, with the losses %+v", p, now, ok, c.Stats().Losses)
	}
	if n := value[int](t, admin, `SELECT count(*) FROM pgleases.status WHERE owner = 'a'`); n != 2 {
		t.Errorf("it owns %d partitions, not 2", n)
	}
}

// A tracer notes the statements that are sent.
type tracer struct {
	mu   sync.Mutex // guards sent
	sent []string
}

func (tr *tracer) note(sql string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.sent = append(tr.sent, sql)
}

func (tr *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	tr.note(data.SQL)
	return ctx
}

func (tr *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (tr *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, query := range data.Batch.QueuedQueries {
		tr.note(query.SQL)
	}
	return ctx
}

func (tr *tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (tr *tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// reads counts the reads of what is owned.
func (tr *tracer) reads() (n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, sql := range tr.sent {
		if strings.Contains(sql, "AS moving") { // as sql/read.sql alone has
			n++
		}
	}
	return n
}

func (tr *tracer) take() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	defer func() { tr.sent = nil }()
	return tr.sent
}

func TestAHeartbeatIsOneStatementWhateverTheNumberOfLeases(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
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
	kinds := func(statements []string) []string {
		slices.Sort(statements)
		return slices.Compact(statements)
	}
	until(t, "nothing is to be done but heartbeats", func() bool {
		tr.take()
		beats(t, c, 3)
		return len(kinds(tr.take())) == 1
	})
	began := time.Now()
	tr.take()
	beats(t, c, 20)
	sent := tr.take()
	took := time.Since(began)
	t.Logf("%d statements in %v", len(sent), took)
	// An interval is 45 to 50 ms; a check of who has expired, or a read, may be among them.
	if n, most := len(sent), int(took/(45*time.Millisecond))+5; n < 19 || n > most {
		t.Errorf("%d statements in %v, of which 19 to %d are heartbeats: %.2000q", n, took, most, kinds(sent))
	}
}
