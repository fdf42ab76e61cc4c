package schedule_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/tests"
	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/sql"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(victimOf); url != "" {
		fmt.Fprintln(os.Stderr, victim(url))
		os.Exit(1)
	}
	tests.Main(m)
}

// patience bounds what a test waits for. It is reached only where that never comes.
const patience = time.Minute

// A database has the tables, a clock that the test sets, and a table of what handlers did.
type database struct {
	t   testing.TB
	url string
	*pgxpool.Pool
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
	return &database{t, url, newPool(t, pgtest.OwnerURL(url), nil)}
}

// ddl makes what there is in a database.
func ddl(t testing.TB) (statements []string) {
	t.Helper()
	tables, err := schedule.Schema()
	ok(t, err)
	statements = append(statements, tables)
	if os.Getenv("PGLEASES_TEST_ROLE") != "" {
		grants, err := sql.Files.ReadFile("grants/application.sql")
		ok(t, err)
		statements = append(statements, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM PUBLIC;", string(grants))
	}
	return append(statements, testTables)
}

var testTables = `CREATE TABLE public.test_clock (now timestamptz);
	INSERT INTO public.test_clock VALUES ('` + midnight.Format(time.RFC3339) + `');
	CREATE OR REPLACE FUNCTION pgleases.schedule_clock() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now FROM public.test_clock';
	CREATE TABLE public.effects (n bigint GENERATED ALWAYS AS IDENTITY, name text, at timestamptz, epoch bigint);
	GRANT ALL ON public.test_clock, public.effects TO PUBLIC`

// newEncodedDatabase has another encoding than UTF-8. It is reached as its owner, and not through a pooler.
func newEncodedDatabase(t testing.TB, encoding string) *database {
	t.Helper()
	address, err := url.Parse(pgtest.OwnerURL(pgtest.EmptyDatabase(t)))
	ok(t, err)
	maker, err := pgx.Connect(t.Context(), address.String())
	ok(t, err)
	name := strings.ToLower("encoded_" + rand.Text())
	_, err = maker.Exec(t.Context(), fmt.Sprintf("CREATE DATABASE %s ENCODING '%s' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'", name, encoding))
	ok(t, err)
	t.Cleanup(func() {
		_, err := maker.Exec(context.Background(), fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name))
		ok(t, errors.Join(err, maker.Close(context.Background())))
	})
	address.Path = "/" + name
	query := address.Query()
	query.Set("client_encoding", "UTF8")
	address.RawQuery = query.Encode()
	db := databaseAt(t, address.String())
	ok(t, schedule.Migrate(t.Context(), db.Pool))
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

// newPool returns a pool for a worker, whose connections go over the wire; nil: for the test's own queries, whatever the database's search_path.
func newPool(t testing.TB, url string, w *wire) *pgxpool.Pool {
	t.Helper()
	config, err := pgtest.ParseConfig(url)
	ok(t, err)
	if w != nil {
		config.ConnConfig.DialFunc, config.MaxConns = w.dial, 6
		config.ConnConfig.DefaultQueryExecMode = w.mode
	} else {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET search_path = public")
			return err
		}
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	ok(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// makeStrange puts other code in the way of all that workers run from now on, and fails the test where any of it is called. Not where they have a role
// of their own: that may be behind a pooler, where the test's own queries could not be kept from it.
func (db *database) makeStrange() {
	db.t.Helper()
	if db.url != pgtest.OwnerURL(db.url) {
		return
	}
	conn, err := db.Acquire(context.Background())
	ok(db.t, err)
	defer conn.Release()
	ok(db.t, pgtest.MakeStrange(context.Background(), conn.Conn(), "../sql/*.sql", "sql/*.sql", "../internal/store/connect.go", "store.go"))
	db.exec("ALTER DATABASE " + pgx.Identifier{conn.Conn().Config().Database}.Sanitize() + " SET search_path = strange, pg_catalog")
	db.t.Cleanup(func() { expect(db.t, one[bool](db, pgtest.StrangeCalled), false, "strange code was called") })
}

func (db *database) exec(statements string) {
	db.t.Helper()
	_, err := db.Exec(context.Background(), statements, pgx.QueryExecModeSimpleProtocol)
	ok(db.t, err)
}

// begin begins a transaction of the test's own, which ends with the test at the latest.
func (db *database) begin() pgx.Tx {
	db.t.Helper()
	tx, err := db.Begin(context.Background())
	ok(db.t, err)
	db.t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // an error: it has ended
	return tx
}

// setClock sets what decides about what is due.
func (db *database) setClock(now time.Time) {
	db.t.Helper()
	_, err := db.Exec(context.Background(), "UPDATE public.test_clock SET now = $1", now)
	ok(db.t, err)
}

// read returns how many rows of a table were read. It waits until all sessions have ended, as they tell it then, and until that is the least.
func (db *database) read(table string, least int64) (rows int64) {
	db.t.Helper()
	until(db.t, "the server tells what its sessions read", func() bool {
		gone := one[bool](db, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend')")
		rows = one[int64](db, "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = $1", table)
		return gone && rows >= least
	})
	return rows
}

// looked waits until a process has looked for work, and taken what it found: until it looks once more. A look that goes on may be the one of
// before: its query_start is that of each message of it.
func (db *database) looked() {
	db.t.Helper()
	for range 2 {
		now := one[time.Time](db, "SELECT clock_timestamp()")
		until(db.t, "a process looks for work", func() bool {
			return one[bool](db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
				AND query LIKE '%schedule_look%' AND query_start > $1 AND state = 'idle')`, now)
		})
	}
}

func one[T any](db *database, query string, args ...any) T {
	db.t.Helper()
	rows, _ := db.Query(context.Background(), query, args...)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	ok(db.t, err)
	return v
}

// A worker is a process with a scheduler.
type worker struct {
	*schedule.Scheduler
	t      testing.TB
	db     *database
	client *pgleases.Client
	pool   *pgxpool.Pool
	wire   *wire // of all its connections
	stop   context.CancelFunc
	ended  chan error
}

const group = "tests"

func newWorker(db *database, opts ...schedule.Option) *worker {
	db.t.Helper()
	return newWorkerFor(db, time.Second, opts...)
}

// newSteadyWorker keeps what it owns also where this machine stands still for a while: for tests of what is lost with it.
func newSteadyWorker(db *database, opts ...schedule.Option) *worker {
	db.t.Helper()
	return newWorkerFor(db, 5*time.Second, opts...)
}

func newWorkerFor(db *database, ttl time.Duration, opts ...schedule.Option) *worker {
	db.t.Helper()
	return newWorkerIn(db, pgx.QueryExecModeExec, ttl, opts...) // the wire knows a message by the statement's text
}

func newWorkerIn(db *database, mode pgx.QueryExecMode, ttl time.Duration, opts ...schedule.Option) *worker {
	t := db.t
	t.Helper()
	w := &worker{t: t, db: db, wire: newWire(), ended: make(chan error, 1)}
	w.wire.mode = mode
	w.pool = newPool(t, db.url, w.wire)
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	w.client, err = pgleases.NewClient(t.Context(), w.pool, pgleases.WithClientID("worker "+rand.Text()), pgleases.WithoutMigration(),
		pgleases.WithTTL(ttl), pgleases.WithHeartbeat(100*time.Millisecond), pgleases.WithLogger(log))
	ok(t, err)
	w.Scheduler, err = schedule.New(t.Context(), w.client, w.pool, group, append([]schedule.Option{
		schedule.WithPartitions(4), schedule.WithLogger(log), schedule.WithoutMigration()}, opts...)...)
	ok(t, err)
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
	until(w.t, "there is a schedule "+name, func() bool {
		return one[int64](w.db, "SELECT count(*) FROM pgleases.schedules WHERE name = $1", name) == 1
	})
	return w
}

// close ends Run and the client.
func (w *worker) close() {
	if w.stop != nil {
		w.stop()
		receive(w.t, "Run ends", w.ended)
		w.stop = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = w.client.Close(ctx)
}

// die has the process be gone, as far as others can see.
func (w *worker) die() { w.wire.setCut(true) }

type args struct{ N int }

// effect is a handler that leaves a row for each run.
func effect(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
	_, err := tx.Exec(ctx, "INSERT INTO public.effects (name, at, epoch) VALUES ($1, $2, $3)", r.Name, r.At, r.Epoch)
	return err
}

// released waits until a test lets a handler go on, or the run ends.
func released(ctx context.Context, end <-chan struct{}) {
	select {
	case <-end:
	case <-ctx.Done():
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect[T comparable](t testing.TB, got, want T, what string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func wraps(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: %v, not %q", what, err, want)
	}
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for late := time.After(patience); !holds(); {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("not so within %v: %s", patience, what)
		}
	}
}

func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("not so within %v: %s", patience, what)
		panic("unreachable")
	}
}

// A wire is what a process's connections go over. It can be cut, and lose single messages.
type wire struct {
	mode pgx.QueryExecMode

	mu    sync.Mutex // guards what follows
	cut   bool
	open  map[*wired]struct{}
	loses string // the next message with this text is lost, with its connection; empty: none
	after bool   // it arrives, and its answer is lost
	mutes bool   // its connection stays, and says nothing more
	text  string // that is counted in messages; empty: none is
	seen  int    // in how many it was
	trips []trip // since record
	notes bool   // trips are noted
}

// A trip is all that was sent on a connection until it was answered.
type trip struct {
	conn *wired
	sent string
}

// record begins to note trips.
func (w *wire) record() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes, w.trips = true, nil
}

// recorded are the trips since record, of the connections on which a text was sent.
func (w *wire) recorded(text string) [][]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := make(map[*wired][]string)
	for _, t := range w.trips {
		of[t.conn] = append(of[t.conn], t.sent)
	}
	return slices.DeleteFunc(slices.Collect(maps.Values(of)), func(sent []string) bool {
		return !slices.ContainsFunc(sent, func(s string) bool { return strings.Contains(s, text) })
	})
}

// note notes what is sent.
func (c *wired) note(b []byte) {
	w := c.wire
	if !w.notes {
		return
	}
	if c.asked {
		for i := len(w.trips) - 1; i >= 0; i-- {
			if w.trips[i].conn == c {
				w.trips[i].sent += string(b)
				return
			}
		}
	}
	c.asked = true
	w.trips = append(w.trips, trip{c, string(b)})
}

func newWire() *wire { return &wire{open: make(map[*wired]struct{})} }

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut {
		return nil, errors.New("the wire is cut")
	}
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := &wired{Conn: c, wire: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[conn] = struct{}{}
	return conn, nil
}

func (w *wire) setCut(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut = cut; cut {
		for c := range w.open {
			_ = c.Conn.Close()
		}
		clear(w.open)
	}
}

func (w *wire) lose(text string, after bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loses, w.after, w.mutes = text, after, false
}

func (w *wire) mute(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loses, w.after, w.mutes = text, false, true
}

// count begins to count the messages with a text.
func (w *wire) count(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text, w.seen = text, 0
}

func (w *wire) counted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// armed reports whether a message is still to be lost.
func (w *wire) armed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loses != ""
}

type wired struct {
	net.Conn
	wire  *wire
	asked bool // and not answered; wire.mu guards it

	mu   sync.Mutex // guards what follows
	deaf bool       // the next answer is lost
	mute bool       // nothing arrives
}

func (c *wired) Write(b []byte) (int, error) {
	c.wire.mu.Lock()
	hit := c.wire.loses != "" && bytes.Contains(b, []byte(c.wire.loses))
	if hit {
		c.wire.loses = ""
	}
	if c.wire.text != "" {
		c.wire.seen += bytes.Count(b, []byte(c.wire.text))
	}
	after, mutes := c.wire.after, c.wire.mutes
	c.note(b)
	c.wire.mu.Unlock()
	c.mu.Lock()
	c.mute = c.mute || hit && mutes
	mute := c.mute
	c.mu.Unlock()
	if mute {
		return len(b), nil
	}
	if hit && !after {
		_ = c.Conn.Close()
		return len(b), nil
	}
	if hit {
		c.mu.Lock()
		c.deaf = true
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

func (c *wired) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wire.mu.Lock()
	c.asked = c.asked && n == 0
	c.wire.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf { // the server has done it
		_ = c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	if c.mute && err != nil { // given up; or its user would wait for the server's goodbye
		_ = c.Conn.Close()
	}
	return n, err
}
