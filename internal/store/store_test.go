package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/pgtest"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A fixture is a fresh database with the schema in it, on a server or in memory.
type fixture struct {
	testing.TB
	ctx    context.Context
	double *fakestore.Database // nil: it is on a server, and uses the fields below
	url    string
	schema string
	sql    *pgx.Conn // of the superuser, in which the schema is found without its name
	runAs  string    // role of the clients; empty: the user of url
	byHand bool      // see byHand: the server's clock stands still
}

// database returns a fresh one with the tables, past a pooler: these tests look at the very
// backends that the statements run on.
func database(t testing.TB) string {
	direct, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t))
	return direct
}

// emptyDatabase is database for tests that make the schema in some way of their own.
func emptyDatabase(t testing.TB) string {
	direct, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	return direct
}

// emptyFixture is a database without the schema.
func emptyFixture(t testing.TB, schema string) *fixture {
	t.Helper()
	f := &fixture{TB: t, ctx: t.Context(), url: emptyDatabase(t), schema: schema}
	f.sql = f.raw()
	return f
}

func newFixture(t testing.TB) *fixture { return fixtureIn(t, database(t), "pgleases") }

// freshFixture is newFixture for a test of how sessions end.
func freshFixture(t testing.TB) *fixture {
	direct, _ := pgtest.DirectURL(pgtest.FreshDatabase(t))
	return fixtureIn(t, direct, "pgleases")
}

func fixtureIn(t testing.TB, url, schema string) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	f := &fixture{TB: t, ctx: ctx, url: url, schema: schema}
	f.sql = f.raw()
	f.ok(Engine.Migrate(ctx, f.sql, schema))
	f.exec("SET search_path = " + pgx.Identifier{schema}.Sanitize() + ", public")
	return f
}

func (f *fixture) ok(err error) {
	f.Helper()
	testkit.OK(f, err)
}

// raw is a plain connection of the superuser's.
func (f *fixture) raw() *pgx.Conn {
	f.Helper()
	return f.dial(pgtest.OwnerURL(f.url))
}

func (f *fixture) dial(url string) *pgx.Conn {
	f.Helper()
	conn := testkit.Must(pgx.Connect(f.ctx, url))(f)
	f.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// session is a plain connection of the clients' user's, in which the schema is found without its
// name.
func (f *fixture) session() *pgx.Conn {
	f.Helper()
	conn := f.dial(f.url)
	testkit.Must(conn.Exec(f.ctx, "SET search_path = "+pgx.Identifier{f.schema}.Sanitize()+", public"))(f)
	return conn
}

func (f *fixture) config() *pgx.ConnConfig {
	f.Helper()
	return testkit.Must(pgx.ParseConfig(f.url))(f)
}

func (f *fixture) connector(heartbeat time.Duration) *Connector {
	f.Helper()
	connector := NewConnector(f.config(), nil, f.schema, heartbeat)
	if f.byHand {
		connector.Rewrite(byHand.Replace)
	}
	return connector
}

func (f *fixture) conn() *Conn {
	f.Helper()
	return f.connect(f.connector(20 * time.Second))
}

// any is a connection for the statements.
func (f *fixture) any() engine.Conn {
	f.Helper()
	if f.double == nil {
		return f.conn()
	}
	return testkit.Must(f.double.Connect())(f)
}

// pg is the client's connection to a server.
func (c *client) pg() *Conn { return c.Conn.(*Conn) }

func (f *fixture) connect(cr *Connector) *Conn {
	f.Helper()
	conn := testkit.Must(cr.Connect(f.ctx, time.Minute))(f)
	f.Cleanup(conn.Close)
	if f.runAs != "" {
		f.ok(conn.Exec(f.ctx, "SET ROLE "+f.runAs))
	}
	return conn
}

func (f *fixture) exec(statement string, args ...any) int64 {
	f.Helper()
	tag := testkit.Must(f.sql.Exec(f.ctx, statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...))(f)
	return tag.RowsAffected()
}

// value is the single value of a query.
func value[T any](f *fixture, statement string, args ...any) T {
	f.Helper()
	return valueOn[T](f, f.sql, statement, args...)
}

func valueOn[T any](f *fixture, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, statement string, args ...any) (v T) {
	f.Helper()
	f.ok(q.QueryRow(f.ctx, statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...).Scan(&v))
	return v
}

// text is a query's rows, a line each, the columns between bars.
func (f *fixture) text(statement string, args ...any) string {
	f.Helper()
	rows := testkit.Must(f.sql.Query(f.ctx, statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...))(f)
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		words := make([]string, len(values))
		for i, v := range values {
			words[i] = fmt.Sprint(v)
		}
		return strings.Join(words, "|"), err
	})
	f.ok(err)
	return strings.Join(lines, "\n")
}

func random() int64 { return rand.Int64N(1<<62) + 1 }

// A client is a registered session with its connection.
type client struct {
	engine.Conn
	f       *fixture
	id      string
	session int64
	joins   int64 // how many were sent
}

func (f *fixture) client(id string) *client {
	f.Helper()
	return f.clientTTL(id, usualTTL)
}

// pair returns the clients a and b, which have joined the lease l.
func (f *fixture) pair(partitions int) (a, b *client) {
	f.Helper()
	a, b = f.client("a"), f.client("b")
	a.join("l", partitions)
	b.join("l", partitions)
	return a, b
}

func (f *fixture) trio(partitions int) (a, b, c *client) {
	f.Helper()
	a, b = f.pair(partitions)
	c = f.client("c")
	c.join("l", partitions)
	return a, b, c
}

// usualTTL is the TTL of clients in cases that do not depend on it.
const usualTTL = 6 * time.Second

func (f *fixture) clientTTL(id string, ttl time.Duration) *client {
	f.Helper()
	c := &client{f.any(), f, id, random(), 0}
	incarnation, _, err := c.Register(f.ctx, registration(c.session, id, 0, random(), ttl))
	f.ok(err)
	if incarnation == 0 {
		f.Fatalf("client %q was not registered", id)
	}
	return c
}

func registration(session int64, id string, incarnation, process int64, ttl time.Duration) Registration {
	return Registration{
		session, id, incarnation, process, ttl, "host", 4711, time.Unix(1700000000, 0), `{"id": "` + id + `"}`,
	}
}

// end ends the session, or finds that it is gone or continues.
func (c *client) end(gone bool) {
	c.f.Helper()
	got := testkit.Must(c.End(c.f.ctx, c.session))(c.f)
	expect(c.f.TB, got, gone, "it is gone")
}

func (c *client) beat() Beat {
	c.f.Helper()
	return testkit.Must(c.Heartbeat(c.f.ctx, c.session, 0, Renewal{}))(c.f)
}

// run is the server incarnation, marked.
func (c *client) run() Incarnation {
	c.f.Helper()
	c.f.ok(c.SetMarker(c.f.ctx, random()))
	run := c.beat().Server
	if run.Marker == 0 || run.Started == 0 || run.Timeline == 0 {
		c.f.Fatalf("run is %+v", run)
	}
	return run
}

func (c *client) join(lease string, partitions int) Join {
	c.f.Helper()
	return c.joinWeight(lease, partitions, 1)
}

func (c *client) joinWeight(lease string, partitions, weight int) Join {
	c.f.Helper()
	c.joins++
	return testkit.Must(c.Join(c.f.ctx, c.session, lease, partitions, Terms{Weight: weight}, c.joins))(c.f)
}

func (c *client) snapshot(leases ...string) []LeaseSnapshot {
	c.f.Helper()
	return testkit.Must(c.Snapshot(c.f.ctx, leases, false))(c.f)
}

// onlyLeftOver says that no other plan is due, except for moves that are left over.
var onlyLeftOver = NextPlan{After: 50 * time.Millisecond, OnlyLeftOver: true}

func (c *client) apply(read []LeaseSnapshot, moves ...Move) Applied {
	c.f.Helper()
	return testkit.Must(c.Apply(c.f.ctx, read, moves, onlyLeftOver))(c.f)
}

// give sends partitions to sessions by a fresh plan of the lease; it must be applied.
func (c *client) give(lease string, targets ...int64) Applied {
	c.f.Helper()
	moves := make([]Move, len(targets))
	for i, target := range targets {
		moves[i] = Move{lease, i, target}
	}
	applied := c.apply(c.snapshot(lease), moves...)
	if !applied.Applied {
		c.f.Fatal("plan was not applied")
	}
	return applied
}

// owned returns what the session owns of a lease: partition, epoch, and > if it has another target.
func (c *client) owned(lease string) string {
	c.f.Helper()
	reads := testkit.Must(c.Read(c.f.ctx, c.session, []string{lease}))(c.f)
	var words []string
	for _, read := range reads {
		for _, o := range read.Owned {
			word := fmt.Sprintf("%d:%d", o.Partition, o.Epoch)
			if o.Moving {
				word += ">"
			}
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

func (c *client) release(releases []Release, leaving ...string) Released {
	c.f.Helper()
	leaves := make([]Leave, len(leaving))
	for i, lease := range leaving {
		leaves[i] = Leave{Lease: lease, Now: true}
	}
	return testkit.Must(c.Release(c.f.ctx, c.session, releases, leaves, c.joins))(c.f)
}

// leave leaves a lease, with a release.
func (c *client) leave(l Leave, releases ...Release) Released {
	c.f.Helper()
	return testkit.Must(c.Release(c.f.ctx, c.session, releases, []Leave{l}, c.joins))(c.f)
}

// expire makes sessions look as if they had stopped renewing long ago.
func (f *fixture) expire(clients ...*client) {
	f.Helper()
	f.edit(func(t *fakestore.Tables, clock int64) {
		for _, c := range clients {
			row, known := t.Clients[c.session]
			if !known {
				f.Fatalf("no session of %q", c.id)
			}
			row.ExpiresAt = clock - time.Hour.Microseconds()
			t.Clients[c.session] = row
		}
		t.Server.NextCheckAt = clock
	})
}

func (f *fixture) checkNow() {
	f.Helper()
	f.edit(func(t *fakestore.Tables, clock int64) { t.Server.NextCheckAt = clock })
}

// evict evicts what has expired by the database's clock, like a client that has watched it for ten
// minutes.
func (c *client) evict() Evicted {
	c.f.Helper()
	return c.evictAs(c.run(), 10*time.Minute)
}

func (c *client) evictAs(run Incarnation, watched time.Duration) Evicted {
	c.f.Helper()
	evicted := testkit.Must(c.Evict(c.f.ctx, c.beat().Clock, watched, usualTTL, run))(c.f)
	if evicted.Made {
		toPlan := testkit.Must(c.Tidy(c.f.ctx))(c.f)
		evicted.ToPlan = slices.Compact(slices.Sorted(slices.Values(append(evicted.ToPlan, toPlan...))))
	}
	return evicted
}

// lock holds rows, in a transaction on a connection of its own, until the returned function is
// called.
func (f *fixture) lock(statement string, args ...any) (release func()) {
	f.Helper()
	conn := f.session()
	tx := testkit.Must(conn.Begin(f.ctx))(f)
	testkit.Must(tx.Exec(f.ctx, statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...))(f)
	return func() { f.ok(tx.Commit(f.ctx)) }
}

// halt makes every such statement wait after it has its snapshot and before it has changed a row,
// until the returned function is called.
func (f *fixture) halt(what string) (release func()) {
	f.Helper()
	f.exec(`
		CREATE FUNCTION public.halt() RETURNS trigger LANGUAGE plpgsql
			AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END';
		CREATE TRIGGER halt BEFORE ` + what + ` FOR EACH STATEMENT EXECUTE FUNCTION public.halt()`)
	return f.lock("SELECT pg_advisory_xact_lock(1)")
}

// blocked returns once the connection waits for a lock.
func (f *fixture) blocked(conn *pgx.Conn) {
	f.Helper()
	f.until("the connection waits for a lock", func() bool {
		return value[bool](f, "SELECT cardinality(pg_blocking_pids($1::int)) > 0", int64(conn.PgConn().PID()))
	})
}

// until polls until a condition is true.
func (f *fixture) until(what string, is func() bool) {
	f.Helper()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for ; !is(); <-look.C {
		if f.ctx.Err() != nil {
			f.Fatal("never came: " + what)
		}
	}
}

// within fails the test unless a call takes at most that long in one of five tries, because the
// machine may be slow in the others.
func within(f *fixture, limit time.Duration, try func() (took time.Duration)) {
	f.Helper()
	var all []time.Duration
	for range 5 {
		took := try()
		if took <= limit {
			return
		}
		all = append(all, took)
	}
	f.Errorf("it took %v, not %v at most", all, limit)
}

// later runs a function on its own goroutine; the returned one waits for it.
func later[T any](do func() T) func() T {
	done := make(chan T, 1)
	go func() { done <- do() }()
	return func() T { return <-done }
}

func expect[T comparable](t testing.TB, got, want T, what string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}
