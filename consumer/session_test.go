package consumer_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// newWorkerWith is a worker whose pool has a setting, unlike that of its client.
func newWorkerWith(db *database, setting, value string, h consumer.Handler[Order], opts ...consumer.Option) *worker {
	db.t.Helper()
	quick := []consumer.Option{
		consumer.WithPoll(50 * time.Millisecond), backoff(time.Millisecond, time.Millisecond),
		consumer.WithBatch(10, 1<<20),
	}
	set := func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[setting] = value }
	return newWorker(db, h, opts...).over(set, h, append(quick, opts...)...)
}

// Operators, functions and types in a schema before pg_catalog are not used.
func TestStrangeSearchPath(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	conn := testkit.Must(db.Acquire(t.Context()))(t)
	err := pgtest.MakeStrange(t.Context(), conn.Conn(), "sql/*.sql", "*.go")
	conn.Release()
	testkit.OK(t, err)
	db.insert(100, 20)
	db.crashed(1, 20, 20)
	db.exec(`
		INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
		SELECT 'orders', partition, 1000, 'gone', '', 1, 'infinity' FROM public.outbox WHERE id = 1;
		INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
		SELECT 'orders', partition, id, customer, '', 1, 'infinity' FROM public.outbox WHERE id = 2`)
	run := func(h consumer.Handler[Order], opts ...consumer.Option) error {
		twice := consumer.WithMaxAttempts(2, consumer.Backoff(time.Millisecond, time.Millisecond))
		w := newWorkerWith(db, "search_path", "strange, pg_catalog", h, append(opts, twice)...)
		return w.RunUntilEmpty(t.Context())
	}
	contains(t, run(failing(50)), "only rows of blocked keys are left",
		"1 rows, the first: ID 50, key 'c10', 2 attempts: no such order")
	db.retry(50)
	testkit.OK(t, run(failing(50), consumer.WithOnFailure(consumer.OnFailureDeadLetter)))
	db.exec(`
		INSERT INTO public.outbox (customer, payload) SELECT 'c' || i, to_jsonb(i) FROM generate_series(1, 20) AS i`)
	testkit.OK(t, run(consumer.AtLeastOnce(db.published)))
	db.exact(119)
	letter := one[string](db, "SELECT format('%s %s', id, error) FROM pgleases.consumer_dead_letters")
	expect(t, letter, "50 no such order", "the dead letter")
	expect(t, one[bool](db, pgtest.StrangeCalled), false, "strange code was called")
}

// Transactions are READ WRITE, whatever the session's default is.
func TestReadOnlySession(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	db.insert(100, 20)
	db.crashed(1000, 1001, 1001)
	h := consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.ID == 50 && row.Attempt == 1 {
			return errors.New("not yet")
		}
		return effect(ctx, tx, row)
	})
	w := newWorkerWith(db, "default_transaction_read_only", "on", h)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.exact(100)
	expect(t, w.Stats().BrokenOff, 0, "batches broken off")
	expect(t, db.count("pgleases.consumer_owners WHERE ended = begun"), partitions, "ends that are recorded")
}

// What a handler sets in its transaction concerns neither the removal of its rows nor the commit.
func TestSettingsOfHandlers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	role := "consumer_" + strings.ToLower(rand.Text())
	user := testkit.Must(pgtest.ParseConfig(db.url))(t).ConnConfig.User
	db.exec("CREATE ROLE " + role + "; GRANT " + role + " TO " + user)
	t.Cleanup(func() { db.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	db.exec(`
		CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql
			AS 'BEGIN PERFORM pg_catalog.pg_sleep(0.2); RETURN NULL; END';
		CREATE TRIGGER slow AFTER DELETE ON public.outbox FOR EACH STATEMENT EXECUTE FUNCTION public.slow();
		CREATE TABLE public.parent (id int PRIMARY KEY);
		CREATE TABLE public.child (parent int REFERENCES public.parent DEFERRABLE);
		GRANT ALL ON public.parent, public.child TO PUBLIC`)
	set := ""
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		return errors.Join(effect(ctx, tx, row), second(tx.Exec(ctx, set)))
	}), attempts(1), consumer.WithPoll(10*time.Millisecond))
	for _, set = range []string{
		"SET LOCAL ROLE " + role,
		"SET LOCAL statement_timeout = '100ms'",
		"SET LOCAL lock_timeout = '1ms'",
		"SET LOCAL search_path = nowhere",
		`SET CONSTRAINTS ALL DEFERRED;
			INSERT INTO public.child VALUES (1);
			INSERT INTO public.parent VALUES (1) ON CONFLICT DO NOTHING`,
	} {
		db.insert(2, 2)
		if err := w.RunUntilEmpty(t.Context()); err != nil {
			t.Fatalf("%s: %v", set, err)
		}
		expect(t, w.Stats().Failures+w.Stats().BrokenOff, 0, set)
	}
	db.exact(10)
	db.insert(1, 1)
	set = "SET TRANSACTION READ ONLY"
	contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left", "read-only transaction")
}

// The application closes the pool too early: Run ends, so that another process gets the partitions.
func TestRunEndsWithItsPool(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(func(context.Context, pgx.Tx, consumer.Row[Order]) error { return nil }))
	w.run()
	w.pool.Close()
	db.insert(1, 1)
	err := testkit.Receive(t, "Run ends", w.ended)
	w.stop = nil
	if err == nil || !strings.Contains(err.Error(), `consumer: run "orders": the pool is closed: `) {
		t.Errorf("Run returned %v", err)
	}
	expect(t, db.count("pgleases.partitions WHERE owner IS NOT NULL"), 0, "partitions that are not free")
}
