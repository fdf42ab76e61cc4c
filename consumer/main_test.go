package consumer_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/consumer/sql"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(victimOf); url != "" {
		fmt.Fprintln(os.Stderr, victim(url))
		os.Exit(1)
	}
	testkit.Main(m)
}

const partitions = 8

var outbox = consumer.Queue{Table: "public.outbox", Key: "customer", Partitions: partitions}

// A database has a queue table, and a table of what handlers did.
type database struct {
	t   testing.TB
	url string
	*pgxpool.Pool
	tracer pgx.QueryTracer // of the pools of workers; nil: none
	ttl    time.Duration   // of the clients of workers
}

func newDatabase(t testing.TB) *database {
	t.Helper()
	return databaseAt(t, pgtest.MigratedDatabase(t, ddl(t)...))
}

// newDirectDatabase is reached past any pooler: notifications arrive.
func newDirectDatabase(t testing.TB) *database {
	t.Helper()
	url, _ := pgtest.DirectURL(pgtest.FreshDatabase(t, ddl(t)...))
	return databaseAt(t, url)
}

func databaseAt(t testing.TB, url string) *database {
	t.Helper()
	return &database{t: t, url: url, Pool: testkit.Pool(t, pgtest.OwnerURL(url)), ttl: clients.TTL}
}

// ddl makes what there is in a database.
func ddl(t testing.TB) (statements []string) {
	t.Helper()
	statements = append(statements, testkit.Must(consumer.Schema())(t))
	if os.Getenv("PGLEASES_TEST_ROLE") != "" {
		rights := string(testkit.Must(sql.Files.ReadFile("grants/application.sql"))(t))
		statements = append(statements, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM PUBLIC;", rights)
	}
	return append(statements, consumer.TableSQL("orders", "", outbox), testTables)
}

const testTables = `
	CREATE TABLE public.effects (n bigint GENERATED ALWAYS AS IDENTITY, id bigint, customer text, attempt int, epoch bigint);
	GRANT SELECT, INSERT, UPDATE, DELETE ON public.outbox, public.effects TO PUBLIC`

func (db *database) exec(statements string, args ...any) {
	db.t.Helper()
	testkit.Execute(db.t, db.Pool, statements, args...)
}

// insert inserts rows of so many customers, in turn.
func (db *database) insert(rows, customers int) {
	db.t.Helper()
	db.exec(`
		INSERT INTO public.outbox (customer, payload)
		SELECT 'c' || i % $2, to_jsonb(i) FROM generate_series(1, $1::int) AS i`, rows, customers)
}

func one[T any](db *database, query string, args ...any) T {
	db.t.Helper()
	return testkit.Value[T](db.t, db.Pool, query, args...)
}

// count returns how many rows a FROM clause has.
func (db *database) count(from string, args ...any) int64 {
	db.t.Helper()
	return one[int64](db, "SELECT count(*) FROM "+from, args...)
}

// becomes waits until a FROM clause has so many rows.
func (db *database) becomes(what string, want int64, from string, args ...any) {
	db.t.Helper()
	testkit.Becomes(db.t, db.Pool, what, want, "SELECT count(*) FROM "+from, args...)
}

// left returns the IDs of the rows in the queue.
func (db *database) left() string {
	db.t.Helper()
	return one[string](db, leftSQL)
}

const leftSQL = "SELECT coalesce(string_agg(id::text, ',' ORDER BY id), '') FROM public.outbox"

// failure returns the error of the blocked row that a condition names.
func (db *database) failure(where string) error {
	db.t.Helper()
	return errors.New(one[string](db, "SELECT error FROM pgleases.consumer_blocked WHERE "+where))
}

// exact checks that each inserted row has one effect, in order for each customer.
func (db *database) exact(rows int64) {
	db.t.Helper()
	expect(db.t, db.count("public.effects"), rows, "effects")
	expect(db.t, one[int64](db, "SELECT count(DISTINCT id) FROM public.effects"), rows, "rows with effects")
	db.ordered()
}

func (db *database) ordered() {
	db.t.Helper()
	expect(db.t, db.count(`
		(SELECT id < lag(id) OVER (PARTITION BY customer ORDER BY n) AS back FROM public.effects) AS e WHERE back`,
	), 0, "rows out of order")
}

func expect[T comparable](t testing.TB, got, want T, what string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// An Order is a row of the test's queue.
type Order struct {
	ID       int64
	Customer string
	Payload  []byte
}

// effect is a handler that writes what it handled.
func effect(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO public.effects (id, customer, attempt, epoch) VALUES ($1, $2, $3, $4)`,
		row.ID, row.Key, row.Attempt, row.Epoch)
	return err
}

func effects(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
	for _, row := range rows {
		if err := effect(ctx, tx, row); err != nil {
			return err
		}
	}
	return nil
}

// published is effects outside of the transaction of the batch.
func (db *database) published(ctx context.Context, rows []consumer.Row[Order]) error {
	return pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return effects(ctx, tx, rows) })
}

// A worker is a process with a consumer.
type worker struct {
	*consumer.Consumer
	t      testing.TB
	db     *database
	client *pgleases.Client
	pool   *pgxpool.Pool
	wire   *testkit.Wire // of all its connections
	stop   context.CancelFunc
	ended  chan error
}

func newWorker(db *database, h consumer.Handler[Order], opts ...consumer.Option) *worker {
	db.t.Helper()
	return newWorkerOf(db, outbox, h, opts...)
}

func newWorkerOf[T any](db *database, queue consumer.Queue, h consumer.Handler[T], opts ...consumer.Option) *worker {
	t := db.t
	t.Helper()
	w := &worker{t: t, db: db, wire: new(testkit.Wire), ended: make(chan error, 1)}
	w.pool = testkit.Pool(t, db.url, w.wire.Carry, func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.Tracer = 6, db.tracer
	})
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.client = testkit.Must(pgleases.NewClient(t.Context(), w.pool,
		pgleases.WithClientID("worker "+rand.Text()), pgleases.WithoutMigration(),
		pgleases.WithTTL(db.ttl), pgleases.WithHeartbeat(100*time.Millisecond), pgleases.WithLogger(log)))(t)
	opts = append([]consumer.Option{
		consumer.WithLogger(log), consumer.WithoutMigration(), consumer.WithPoll(100 * time.Millisecond),
	}, opts...)
	w.Consumer = testkit.Must(consumer.New(t.Context(), w.client, w.pool, "orders", queue, h, opts...))(t)
	w.LeaveWithin(testkit.Patience / 2) // on a busy machine too
	w.RecordWithin(testkit.Patience / 2)
	t.Cleanup(w.close)
	return w
}

// over makes the worker's consumer anew, over a pool that is configured like that, unlike that of its
// client.
func (w *worker) over(
	configure func(*pgxpool.Config), h consumer.Handler[Order], opts ...consumer.Option,
) *worker {
	w.t.Helper()
	w.pool = testkit.Pool(w.t, w.db.url, configure)
	opts = append([]consumer.Option{consumer.WithoutMigration()}, opts...)
	w.Consumer = testkit.Must(consumer.New(w.t.Context(), w.client, w.pool, "orders", outbox, h, opts...))(w.t)
	return w
}

// run begins Run.
func (w *worker) run() *worker {
	ctx, stop := context.WithCancelCause(context.Background())
	w.stop = func() { stop(errStopped) }
	go func() { w.ended <- w.Run(ctx) }()
	return w
}

// errStopped is the cause with which the test ends Run.
var errStopped = errors.New("stopped by the test")

// end ends Run, and returns its error, unless that is the cause alone.
func (w *worker) end() error {
	w.t.Helper()
	w.stop()
	w.stop = nil
	err := testkit.Receive(w.t, "Run ends", w.ended)
	if err == nil {
		w.t.Error("Run returned nil, want the cause of its context")
		return nil
	}
	if err.Error() == `consumer: run "orders": `+errStopped.Error() {
		return nil
	}
	return err
}

func (w *worker) close() {
	if w.stop != nil {
		_ = w.end()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = w.client.Close(ctx)
}

// crash cuts the connections of the process, as a crash does, and lets its TTL pass at once.
func (w *worker) crash() {
	w.LeaveWithin(0) // it cannot
	w.wire.Cut()
	w.db.expire(w.client.ID(), "")
}

// evict lets the process lose its partitions, although it lives. It gets none of them back, because
// it could be the next owner of what it still has in hand.
func (w *worker) evict() {
	w.db.t.Helper()
	w.db.exec(`INSERT INTO pgleases.overrides (verb, client, until, since, actor, reason)
		VALUES ('drain', $1, 'infinity', clock_timestamp(), 'test', 'evicted')`, w.client.ID())
	w.db.expire(w.client.ID(), ", incarnation = -1")
}

// expire lets the TTL of a client pass at once.
func (db *database) expire(client, further string) {
	db.t.Helper()
	db.exec(fmt.Sprintf(`
		UPDATE pgleases.clients
		SET ttl = interval '1 second', expires_at = clock_timestamp() - interval '1 second'%s WHERE id = '%s';
		UPDATE pgleases.server SET next_check_at = clock_timestamp()`, further, client))
}

// begun is a worker that has handled a row of each customer.
func (db *database) begun(opts ...consumer.Option) *worker {
	db.t.Helper()
	w := newWorker(db, consumer.Each(effect), opts...).run()
	db.insert(8, 8)
	db.empty("it has begun")
	return w
}

// held is a worker that handles no row before it knows which of all partitions have some.
func (db *database) held(h consumer.Handler[Order], opts ...consumer.Option) *worker {
	db.t.Helper()
	in, out := make(chan struct{}), make(chan struct{})
	inHand := sync.OnceFunc(func() { close(in) })
	around := func(ctx context.Context, _ consumer.Info, next func(context.Context) error) error {
		inHand()
		<-out
		return next(ctx)
	}
	w := newWorker(db, h, append(opts, consumer.WithAround(around))...).run()
	testkit.Receive(db.t, "a row is in hand", in)
	db.allBegun()
	w.polled(2)
	close(out)
	return w
}

// allBegun waits until the owners of all partitions have begun.
func (db *database) allBegun() {
	db.t.Helper()
	db.becomes("all partitions have begun", partitions, "pgleases.consumer_owners WHERE ended IS DISTINCT FROM begun")
}

// polled waits until so many further polls have come back.
func (w *worker) polled(n int64) {
	w.t.Helper()
	before := w.Stats().Polls
	testkit.Until(w.t, "polls have come back", func() bool { return w.Stats().Polls >= before+n })
}

// oneOfEachPartition returns a customer of each partition.
func (db *database) oneOfEachPartition() (all []string) {
	for partition := range partitions {
		all = append(all, db.customers(partition, 1)...)
	}
	return all
}

// closer returns a function that closes a channel, once, and at the end of the test at the latest.
func closer(t testing.TB, c chan struct{}) func() {
	end := sync.OnceFunc(func() { close(c) })
	t.Cleanup(end)
	return end
}

// crashed makes it seem that the owners of all partitions before crashed with these rows in hand, and
// that the rows up to another one are watched.
func (db *database) crashed(first, last, watched int) {
	db.t.Helper()
	db.exec(`
		INSERT INTO pgleases.consumer_owners (consumer, partition, begun, note_first, note_last, watched_to)
		SELECT 'orders', p, 0, $1, $2, $3 FROM generate_series(0, 7) AS p`, first, last, watched)
}

// attempts is the number of attempts, with the pauses of the default.
func attempts(n int) consumer.Option {
	return consumer.WithMaxAttempts(n, consumer.Backoff(time.Second, 10*time.Minute))
}

// backoff sets the pauses between attempts, whose number is that of the default.
func backoff(least, most time.Duration) consumer.Option {
	return consumer.WithMaxAttempts(15, consumer.Backoff(least, most))
}

func (db *database) empty(what string) {
	db.t.Helper()
	db.becomes(what, 0, "public.outbox")
}

func contains(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want one with %q", err, text)
		}
	}
}
