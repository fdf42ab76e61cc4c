package schedule_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/sql"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(victimOf); url != "" {
		fmt.Fprintln(os.Stderr, victim(url))
		os.Exit(1)
	}
	testkit.Main(m)
}

// rarely is longer than tests wait for something.
const rarely = testkit.Patience + 30*time.Second

// A database has the tables, a clock that the test sets, and a table of what handlers did.
type database struct {
	t   testing.TB
	url string
	*pgxpool.Pool
	tracer pgx.QueryTracer // of the pools of workers; nil: none
}

// midnight is what the clock of a new database shows.
var midnight = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

func newDatabase(t testing.TB) *database {
	t.Helper()
	return databaseAt(t, pgtest.MigratedDatabase(t, ddl(t)...))
}

// newFreshDatabase is for a test that changes tables, functions, rights or settings.
func newFreshDatabase(t testing.TB) *database {
	t.Helper()
	return databaseAt(t, pgtest.FreshDatabase(t, ddl(t)...))
}

// newDirectDatabase is reached past any pooler: notifications arrive. No session outlives its client.
func newDirectDatabase(t testing.TB) *database {
	t.Helper()
	url, _ := pgtest.DirectURL(pgtest.FreshDatabase(t, ddl(t)...))
	return databaseAt(t, url)
}

func databaseAt(t testing.TB, url string) *database {
	t.Helper()
	return &database{t: t, url: url, Pool: newPool(t, pgtest.OwnerURL(url))}
}

// ddl makes what there is in a database.
func ddl(t testing.TB) (statements []string) {
	t.Helper()
	tables := testkit.Must(schedule.Schema())(t)
	statements = append(statements, tables)
	if os.Getenv("PGLEASES_TEST_ROLE") != "" {
		grants := testkit.Must(sql.Files.ReadFile("grants/application.sql"))(t)
		statements = append(statements, withdrawn, string(grants))
	}
	return append(statements, testTables)
}

// withdrawn leaves a role without the rights that each role has at first.
const withdrawn = "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM PUBLIC;"

var testTables = `CREATE TABLE public.test_clock (now timestamptz);
	INSERT INTO public.test_clock VALUES ('` + midnight.Format(time.RFC3339) + `');
	CREATE OR REPLACE FUNCTION pgleases.schedule_clock() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now FROM public.test_clock';
	CREATE TABLE public.effects (n bigint GENERATED ALWAYS AS IDENTITY, name text, at timestamptz, epoch bigint);
	GRANT ALL ON public.test_clock, public.effects TO PUBLIC`

// serializable is the default isolation level of the database from then on.
const serializable = `DO $$ BEGIN
	EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database());
END $$`

// newEncodedDatabase has another encoding than UTF-8.
func newEncodedDatabase(t testing.TB, encoding string) *database {
	t.Helper()
	db := databaseAt(t, testkit.EncodedDatabase(t, encoding))
	testkit.OK(t, schedule.Migrate(t.Context(), db.Pool))
	db.exec(testTables)
	return db
}

// openPool is for a process that a test starts.
func openPool(ctx context.Context, url string, conns int32) (*pgxpool.Pool, error) {
	config, err := pgtest.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = conns
	return pgxpool.NewWithConfig(ctx, config)
}

// newPool returns a pool for the test's own queries, whatever the database's search_path.
func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	return testkit.Pool(t, url, func(config *pgxpool.Config) {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `SET search_path = public;
				SET idle_session_timeout = 0;
				SET statement_timeout = 0`)
			return err
		}
	})
}

// makeStrange puts other code in the way of all that workers run from now on, and fails the test where any of it is called. Not where they have a role
// of their own: that may be behind a pooler, where the test's own queries could not be kept from it.
func (db *database) makeStrange() {
	db.t.Helper()
	if db.url != pgtest.OwnerURL(db.url) {
		return
	}
	conn := testkit.Must(db.Acquire(context.Background()))(db.t)
	defer conn.Release()
	files := []string{
		"../sql/schema/*.sql", "../sql/statements/*.sql", "sql/*.sql", "sql/functions/*.sql",
		"../internal/connect/connect.go", "store.go",
	}
	testkit.OK(db.t, pgtest.MakeStrange(context.Background(), conn.Conn(), files...))
	testkit.OK(db.t, pgtest.Overload(context.Background(), conn.Conn()))
	name := pgx.Identifier{conn.Conn().Config().Database}.Sanitize()
	db.exec("ALTER DATABASE " + name + " SET search_path = strange, pg_catalog")
	db.t.Cleanup(func() {
		expect(db.t, one[bool](db, pgtest.StrangeCalled), false, "strange code was called")
		expect(db.t, one[bool](db, pgtest.OverloadCalled), false, "a function of a stranger's was called")
	})
}

// set sets a setting of the sessions that begin from now on.
func (db *database) set(name, value string) {
	db.t.Helper()
	address := testkit.Must(url.Parse(db.url))(db.t)
	settings := address.Query()
	settings.Set(name, value)
	address.RawQuery = settings.Encode()
	db.url = address.String()
}

func (db *database) exec(statements string) {
	db.t.Helper()
	testkit.Execute(db.t, db.Pool, statements)
}

// begin begins a transaction of the test's own with statements. It ends with the test at the latest.
func (db *database) begin(statements ...string) pgx.Tx {
	db.t.Helper()
	tx := testkit.Must(db.Begin(context.Background()))(db.t)
	db.t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // an error: it has ended
	for _, statement := range statements {
		testkit.Must(tx.Exec(context.Background(), statement, pgx.QueryExecModeSimpleProtocol))(db.t)
	}
	return tx
}

// setClock sets what decides about what is due.
func (db *database) setClock(now time.Time) {
	db.t.Helper()
	testkit.Must(db.Exec(context.Background(), "UPDATE public.test_clock SET now = $1", now))(db.t)
}

// read returns how many rows of a table were read. It waits until all sessions have ended, because
// they report their reads then, and until at least this many were read.
func (db *database) read(table string, least int64) (rows int64) {
	db.t.Helper()
	testkit.Until(db.t, "the server has the reads of its sessions", func() bool {
		gone := db.sessions("backend_type = 'client backend'") == 0
		rows = one[int64](db, `SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
			FROM pg_stat_user_tables WHERE relname = $1`, table)
		return gone && rows >= least
	})
	return rows
}

// polled waits until a process has polled and taken the answer, that is until its next poll. A poll
// that is under way may be the poll before, because query_start is set for each message.
func (db *database) polled() {
	db.t.Helper()
	for range 2 {
		now := one[time.Time](db, "SELECT clock_timestamp()")
		testkit.Until(db.t, "a process polls", func() bool {
			return db.sessions("query LIKE '%schedule_poll%' AND query_start > $1 AND state = 'idle'", now) > 0
		})
	}
}

// becomes waits until a query has a value.
func becomes[T comparable](db *database, what string, want T, query string, args ...any) {
	db.t.Helper()
	testkit.Becomes(db.t, db.Pool, what, want, query, args...)
}

// count returns how many rows there are.
func (db *database) count(rows string, args ...any) int64 {
	db.t.Helper()
	return one[int64](db, "SELECT count(*) FROM "+rows, args...)
}

// counts waits until there are so many rows.
func counts[N int | int64](db *database, what string, want N, rows string, args ...any) {
	db.t.Helper()
	becomes(db, what, want, "SELECT count(*) FROM "+rows, args...)
}

// sessions returns how many other sessions of the database there are for which a condition is true.
func (db *database) sessions(where string, args ...any) int64 {
	db.t.Helper()
	const others = "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND "
	return db.count(others+where, args...)
}

// blocked waits until a statement with a text waits for a lock.
func (db *database) blocked(what, text string) {
	db.t.Helper()
	testkit.Until(db.t, what, func() bool {
		return db.sessions("wait_event_type = 'Lock' AND query LIKE $1", "%"+text+"%") > 0
	})
}

// keyIn returns a key of one of 4 partitions.
func (db *database) keyIn(partition int) string {
	db.t.Helper()
	return one[string](db, `SELECT min(n::text) FROM generate_series(1, 1000) AS n
		WHERE pgleases.partition_for(n::text, 4) = $1`, partition)
}

func one[T any](db *database, query string, args ...any) T {
	db.t.Helper()
	return testkit.Value[T](db.t, db.Pool, query, args...)
}

// A worker is a process with a scheduler.
type worker struct {
	*schedule.Scheduler
	t      testing.TB
	db     *database
	client *pgleases.Client
	pool   *pgxpool.Pool
	wire   *testkit.Wire // of all its connections
	stop   context.CancelFunc
	ended  chan error
}

const group = "tests"

// newWorker keeps what it owns, also if this machine stands still for a while.
func newWorker(db *database, opts ...schedule.Option) *worker {
	db.t.Helper()
	return newWorkerFor(db, clients.TTL, opts...)
}

// newBriefWorker is for tests whose worker is cut off, and loses what it owns by its own clock.
func newBriefWorker(db *database, opts ...schedule.Option) *worker {
	db.t.Helper()
	return newWorkerFor(db, 2*time.Second, opts...)
}

func newWorkerFor(db *database, ttl time.Duration, opts ...schedule.Option) *worker {
	db.t.Helper()
	return newWorkerIn(db, pgx.QueryExecModeExec, ttl, opts...) // the wire knows a message by the statement's text
}

func newWorkerIn(db *database, mode pgx.QueryExecMode, ttl time.Duration, opts ...schedule.Option) *worker {
	t := db.t
	t.Helper()
	w := &worker{t: t, db: db, wire: new(testkit.Wire), ended: make(chan error, 1)}
	w.pool = testkit.Pool(t, db.url, w.wire.Carry, func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.DefaultQueryExecMode, c.ConnConfig.Tracer = 6, mode, db.tracer
	})
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.client = testkit.Must(pgleases.NewClient(t.Context(), w.pool, pgleases.WithClientID("worker "+rand.Text()),
		pgleases.WithoutMigration(), pgleases.WithTTL(ttl), pgleases.WithHeartbeat(100*time.Millisecond),
		pgleases.WithLogger(log)))(t)
	all := []schedule.Option{schedule.WithPartitions(4), schedule.WithLogger(log), schedule.WithoutMigration()}
	w.Scheduler = testkit.Must(schedule.New(t.Context(), w.client, w.pool, group, append(all, opts...)...))(t)
	w.Hasten()
	t.Cleanup(w.close)
	return w
}

// run begins Run.
func (w *worker) run() *worker {
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	go func() { w.ended <- w.Run(ctx) }()
	return w
}

// has waits until there is a schedule.
func (w *worker) has(name string) *worker {
	w.t.Helper()
	counts(w.db, "there is a schedule "+name, 1, "pgleases.schedules WHERE name = $1", name)
	return w
}

// waits waits until a schedule waits for what its owner does not know, and says so.
func (w *worker) waits(name, says string) {
	w.t.Helper()
	testkit.Until(w.t, name+" waits", func() bool {
		s := testkit.Must(w.Get(w.t.Context(), name))(w.t)
		return s.State == schedule.StateBlocked && strings.Contains(s.Why, says)
	})
}

// end ends Run.
func (w *worker) end() {
	w.stop()
	testkit.Receive(w.t, "Run ends", w.ended)
	w.stop = nil
}

// close ends Run and the client.
func (w *worker) close() {
	if w.stop != nil {
		w.end()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = w.client.Close(ctx)
}

// crash cuts the connections of the process, as a crash does, and lets its TTL pass at once.
func (w *worker) crash() {
	w.wire.Cut()
	w.db.expire(w.client.ID())
}

// expire lets the TTL of a client pass at once.
func (db *database) expire(client string) {
	db.t.Helper()
	db.exec(fmt.Sprintf(`UPDATE pgleases.clients
		SET ttl = interval '1 second', expires_at = clock_timestamp() - interval '1 second' WHERE id = '%s';
		UPDATE pgleases.server SET next_check_at = clock_timestamp()`, client))
}

type args struct{ N int }

// Options that many tests use.
var (
	missedAll = schedule.WithMissed(schedule.MissedAll)
	buffered  = schedule.WithOverlap(schedule.OverlapBuffer)
)

// ranTwice are the ticks that have their effects twice.
const ranTwice = "(SELECT FROM public.effects GROUP BY name, at HAVING count(*) > 1) AS twice"

// rejecting gives a job a unique key, and refuses the job if there is another of the key.
func rejecting(key string) schedule.JobOption {
	return schedule.WithUnique(key, schedule.OnConflictReject)
}

// replacing gives a job a unique key, and lets the job replace another of the key.
func replacing(key string) schedule.JobOption {
	return schedule.WithUnique(key, schedule.OnConflictReplace)
}

// tries bounds the attempts of a run, with a pause between two.
func tries(n int, pause time.Duration) schedule.KindOption {
	return schedule.WithMaxAttempts(n, schedule.Backoff(pause, pause))
}

// nothing is a handler in a transaction that does nothing.
func nothing[A any](context.Context, pgx.Tx, schedule.Run[A]) error { return nil }

// noCall is a handler outside of transactions that does nothing.
func noCall[A any](context.Context, schedule.Run[A]) error { return nil }

// failing returns a handler in a transaction that fails with a text.
func failing[A any](text string) handlerOf[A] {
	return inside(func(context.Context, schedule.Run[A]) error { return errors.New(text) })
}

type (
	// handlerOf is a handler in a transaction, callOf one outside.
	handlerOf[A any] = func(context.Context, pgx.Tx, schedule.Run[A]) error
	callOf[A any]    = func(context.Context, schedule.Run[A]) error
)

// inside makes a handler in a transaction of one that does not use the transaction.
func inside[A any](call callOf[A]) handlerOf[A] {
	return func(ctx context.Context, _ pgx.Tx, r schedule.Run[A]) error { return call(ctx, r) }
}

// register registers a handler that uses no transaction, with the function of a name.
func register[A any](w *worker, with, name string, call callOf[A], opts ...schedule.KindOption) *schedule.Kind[A] {
	switch with {
	case "InTx":
		return schedule.InTx(w.Scheduler, name, inside(call), opts...)
	case "AtLeastOnce":
		return schedule.AtLeastOnce(w.Scheduler, name, call, opts...)
	case "AtMostOnce":
		return schedule.AtMostOnce(w.Scheduler, name, call, opts...)
	}
	w.t.Fatalf("there is no function %q", with)
	return nil
}

// effect is a handler that leaves a row for each run.
func effect(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
	return leave(ctx, tx, r.Name, r)
}

// leave leaves a row for a run.
func leave[A any](ctx context.Context, tx pgx.Tx, name string, r schedule.Run[A]) error {
	_, err := tx.Exec(ctx, "INSERT INTO public.effects (name, at, epoch) VALUES ($1, $2, $3)", name, r.At, r.Epoch)
	return err
}

// halting is a handler of which the runs that are meant, or all, say that they begin, and go on until end is closed.
func halting[A any](meant func(schedule.Run[A]) bool, then func(context.Context, pgx.Tx, schedule.Run[A]) error) (
	began chan schedule.Run[A], end chan struct{}, handler func(context.Context, pgx.Tx, schedule.Run[A]) error,
) {
	began, end = make(chan schedule.Run[A], 1000), make(chan struct{})
	return began, end, func(ctx context.Context, tx pgx.Tx, r schedule.Run[A]) error {
		if meant == nil || meant(r) {
			began <- r
			released(ctx, end)
		}
		return then(ctx, tx, r)
	}
}

// released waits until a test lets a handler go on, or the run ends.
func released(ctx context.Context, end <-chan struct{}) {
	select {
	case <-end:
	case <-ctx.Done():
	}
}

func expect[T comparable](t testing.TB, got, want T, what string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func contains(t testing.TB, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want one with %q", err, text)
	}
}

func wraps(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: %v, not %q", what, err, want)
	}
}
