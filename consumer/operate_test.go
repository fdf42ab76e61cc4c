package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/consumer/sql"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// manager is that of an operator.
func (db *database) manager() *consumer.Manager {
	db.t.Helper()
	return testkit.Must(consumer.Manage(db.t.Context(), db.Pool, "orders", consumer.WithReason("why", "maria")))(db.t)
}

func (db *database) skip(id int64) {
	db.t.Helper()
	testkit.OK(db.t, db.manager().Skip(db.t.Context(), id))
}
func (db *database) retry(id int64) {
	db.t.Helper()
	testkit.OK(db.t, db.manager().Retry(db.t.Context(), id))
}

// retryAll retries all blocked rows.
func (db *database) retryAll() int {
	db.t.Helper()
	return testkit.Must(db.manager().RetryAll(db.t.Context()))(db.t)
}

// failing is a handler that fails for the rows in bad.
func failing(bad ...int64) consumer.Handler[Order] {
	return consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if slices.Contains(bad, row.ID) {
			return errors.New("no such order")
		}
		return effect(ctx, tx, row)
	})
}

// Connections of the pool that lead to a standby hinder neither New nor a verb of an operator.
func TestOperatorsPassOverStrayConnections(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	newWorker(db, consumer.Each(effect))
	client := testkit.Must(pgleases.NewClient(t.Context(), db.Pool))(t)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	strays := testkit.StrayPool(t, db.url, 3)
	testkit.Must(consumer.New(t.Context(), client, strays, "orders", outbox, consumer.Each(effect)))(t)
	pool := testkit.StrayPool(t, db.url, 3)
	manager := testkit.Must(consumer.Manage(t.Context(), pool, "orders", consumer.WithReason("why", "maria")))(t)
	for range 4 {
		testkit.Must(manager.Pause(t.Context()))(t)
	}
}

// Where writes are stopped, an operator's change is refused with its cause and the remedy.
func TestManageObeysReadOnlyDefault(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	newWorker(db, consumer.Each(effect))
	direct, _ := pgtest.DirectURL(pgtest.OwnerURL(db.url))
	reads := testkit.Pool(t, direct, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	m := testkit.Must(consumer.Manage(t.Context(), reads, "orders", consumer.WithReason("why", "maria")))(t)
	_, err := m.Pause(t.Context())
	contains(t, err, "read-only transaction", "default_transaction_read_only: give the address of the primary")
}

// A row that is skipped goes to the dead letters, even if it was changed, and its key goes on.
func TestOperatorsSkipAndRetryRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(20, 4)
	// Otherwise four keys that fail, and no success, seem to be an outage.
	db.exec(`
		INSERT INTO public.outbox (customer, payload)
		SELECT 'good ' || i % 100, '0' FROM generate_series(1, 400) AS i`)
	w := newWorker(db, failing(1, 2, 3, 4), attempts(1)).run()
	db.becomes("rows block their keys", 4, "pgleases.consumer_blocked WHERE attempts = 1 AND next_at = 'infinity'")
	expect(t, db.count("public.effects WHERE customer LIKE 'c%'"), 0, "rows that overtook the one that failed")
	db.skip(1)
	const of = "public.effects WHERE customer = "
	db.becomes("the key goes on", 4, of+"'c1'")
	letter := one[string](db, `
		SELECT concat_ws(' ', id, key, attempts, content ->> 'payload', error) FROM pgleases.consumer_dead_letters`)
	const begins, ends = "1 c1 1 1 no such order; skipped by maria (", "): why"
	if !strings.HasPrefix(letter, begins) || !strings.HasSuffix(letter, ends) {
		t.Errorf("dead letter %q", letter)
	}
	expect(t, w.Stats().DeadLetters, 1, "dead letters in Stats")

	testkit.OK(t, w.end())
	db.exec("UPDATE public.outbox SET payload = '0' WHERE id = 4")
	for id := range int64(3) {
		db.skip(id + 2)
	}
	db.retry(2) // takes the skip back
	w = newWorker(db, failing(), attempts(1)).run()
	db.empty("all is handled or skipped")
	testkit.OK(t, w.end())
	db.ordered()
	letters := one[string](db, "SELECT string_agg(id::text, ' ' ORDER BY id) FROM pgleases.consumer_dead_letters")
	expect(t, letters, "1 3 4", "dead letters")
	expect(t, db.count(of+"'c2'"), 5, "rows of the key that was retried")
	expect(t, one[int](db, "SELECT attempt FROM public.effects WHERE id = 2"), 1, "attempt of the row that was retried")
	changes := one[string](db, `
		SELECT string_agg(concat_ws(' ', cause, lease, row_id, rows, reason), ', ' ORDER BY id)
		FROM pgleases.events WHERE actor = 'maria (' || session_user || ')'`)
	want := "row skipped consumer/orders 1 1 why, row skipped consumer/orders 2 1 why, " +
		"row skipped consumer/orders 3 1 why, row skipped consumer/orders 4 1 why, " +
		"row retried consumer/orders 2 1 why"
	expect(t, changes, want, "changes")
}

// A skip also waits for a row that is behind another of its key, and for the attempt under way.
func TestSkipDoesNotWaitForItsKey(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(2, 1)
	w := newWorker(db, failing(1), attempts(1)).run()
	db.becomes("a row blocks its key", 1, "pgleases.consumer_blocked")
	db.exec(`
		INSERT INTO pgleases.consumer_blocked
		SELECT consumer, partition, 2, key, version, NULL, 0, 0, NULL, now(), NULL, 'infinity', false, 1
		FROM pgleases.consumer_blocked`)
	db.skip(2)
	testkit.Becomes(t, db.Pool, "the second row is skipped", "2", `
		SELECT coalesce(string_agg(id::text, ' '), '') FROM pgleases.consumer_dead_letters`)
	testkit.OK(t, w.end())
}

func TestOperatorsPauseAndResume(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(effect)).run()
	m, ctx := db.manager(), t.Context()
	expect(t, testkit.Must(m.Pause(ctx))(t), true, "paused")
	expect(t, testkit.Must(m.Pause(ctx))(t), false, "paused twice")
	w.polled(2)
	db.insert(8, 8)
	w.polled(3)
	expect(t, db.count("public.effects"), 0, "rows that were handled in the pause")
	expect(t, one[string](db, `
		SELECT concat_ws(' ', waiting, paused_by = 'maria (' || session_user || ')', paused_reason)
		FROM pgleases.consumers_status`), "8 t why", "status")
	expect(t, testkit.Must(m.Resume(ctx))(t), true, "resumed")
	expect(t, testkit.Must(m.Resume(ctx))(t), false, "resumed twice")
	db.empty("all is handled")
	testkit.OK(t, w.end())
	expect(t, one[bool](db, `
		SELECT paused_at IS NULL AND paused_by IS NULL AND paused_reason IS NULL FROM pgleases.consumers_status`,
	), true, "resumed")
	expect(t, db.retryAll(), 0, "blocked rows to retry")
	expect(t, one[string](db, `
		SELECT string_agg(concat_ws(' ', cause, row_id, rows, reason), ', ' ORDER BY id) FROM pgleases.events
		WHERE lease = 'consumer/orders' AND actor IS NOT NULL`),
		"consumer paused why, consumer resumed why", "changes")
}

// Each verb on something that does not exist says so, and changes and records nothing.
func TestVerbsOfUnknownsAreRefused(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	newWorker(db, failing())
	ctx, m := t.Context(), db.manager()
	other := testkit.Must(consumer.Manage(ctx, db.Pool, "order", consumer.WithReason("why", "maria")))(t)
	all := func(m *consumer.Manager, id int64) map[string]error {
		errs := map[string]error{"retry": m.Retry(ctx, id), "skip": m.Skip(ctx, id), "return": m.Return(ctx, id)}
		if m == other {
			_, errs["pause"] = m.Pause(ctx)
			_, errs["resume"] = m.Resume(ctx)
			_, errs["retry all"] = m.RetryAll(ctx)
			_, errs["return all"] = m.ReturnAll(ctx)
			errs["delete"] = m.Delete(ctx)
		}
		return errs
	}
	for verb, err := range all(other, 1) {
		if contains(t, err, `there is no consumer "order"`); !errors.Is(err, consumer.ErrNotFound) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	for verb, err := range all(m, 9) {
		want := []string{`row 9 of consumer "orders"`, "blocks no key", "it waits behind a blocked row of its key"}
		if verb == "return" {
			why := "It was returned or deleted, or its ID is another."
			want = []string{`row 9 of consumer "orders"`, "is no dead letter", why}
		}
		if contains(t, err, want...); !errors.Is(err, consumer.ErrNotFound) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	_, err := consumer.Manage(ctx, db.Pool, "orders", consumer.WithReason("", "maria"))
	contains(t, err, `manage "orders": the reason is empty`)
	for reason, actor := range map[string]string{strings.Repeat("x", 4001): "", "why": strings.Repeat("x", 256)} {
		m := testkit.Must(consumer.Manage(ctx, db.Pool, "orders", consumer.WithReason(reason, actor)))(t)
		_, err := m.Pause(ctx)
		contains(t, err, fmt.Sprintf("pause: the reason has %d bytes, the actor %d", len(reason), len(actor)))
	}
	expect(t, db.count("pgleases.events WHERE actor IS NOT NULL"), 0, "changes")
}

// status returns the columns of the view that depend on the queue table, and the blocked keys.
func (db *database) status() string {
	db.t.Helper()
	return one[string](db, `
		SELECT concat_ws(' ', coalesce(waiting::text, 'null'), coalesce(date_trunc('hour', oldest)::text, 'null'),
			coalesce(unhandled::text, 'null'), blocked_keys, date_trunc('hour', blocked_for), dead_letters, owned)
		FROM pgleases.consumers_status`)
}

// A partition of a crashed process has no owner for the view, as for the command.
func TestStatusCountsLiveOwners(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, failing()).run()
	const owned = "SELECT owned FROM pgleases.consumers_status"
	testkit.Becomes(t, db.Pool, "all is owned", partitions, owned)
	w.wire.Cut()
	db.expire(w.client.ID(), "")
	testkit.Becomes(t, db.Pool, "the owner's TTL has passed", 0, owned)
	owners := one[int](db, "SELECT count(owner)::int FROM pgleases.partitions")
	expect(t, owners, partitions, "owners that nobody evicted")
	w.wire.Mend()
	_ = w.end()
}

func TestStatusShowsWhatWaits(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	queue := outbox
	queue.Time = "created_at"
	newWorkerOf(db, queue, failing())
	expect(t, db.status(), "0 null 0 0 0 0", "empty")
	db.exec(`
		INSERT INTO public.outbox (customer, payload, created_at)
		SELECT 'c' || i, '1', now() - make_interval(hours => 8 - i, mins => 30) FROM generate_series(1, 7) AS i`)
	expect(t, db.status(), "7 07:00:00 0 0 0 0", "seven rows")
	db.exec(`INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, since, next_at)
		SELECT 'orders', partition, id, customer, '0', 1, now() - interval '330 minutes', now() FROM public.outbox WHERE id <= 2`)
	expect(t, db.status(), "7 05:00:00 0 2 05:00:00 0 0", "two of them blocked")
	db.exec(`
		ALTER TABLE public.outbox ALTER partition DROP EXPRESSION, ALTER partition DROP NOT NULL;
		UPDATE public.outbox SET partition = CASE id WHEN 3 THEN NULL WHEN 4 THEN -1 ELSE 8 END WHERE id IN (3, 4, 5)`)
	expect(t, db.status(), "7 05:00:00 3 2 05:00:00 0 0", "rows without a partition")
	db.exec("ALTER TABLE public.outbox DROP CONSTRAINT outbox_pkey; CREATE INDEX ON public.outbox USING brin (id)")
	expect(t, db.status(), "7 null 3 2 05:00:00 0 0", "without an index on the ID")
	db.exec("DROP INDEX public.outbox_partition_id_idx")
	expect(t, db.status(), "7 null null 2 05:00:00 0 0", "without an index on the partition")
	db.exec("ALTER TABLE public.outbox RENAME created_at TO at")
	expect(t, db.status(), "7 null null 2 05:00:00 0 0", "without a time")
	tx := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(tx.Exec(t.Context(), "LOCK TABLE public.outbox"))(t)
	expect(t, db.status(), "null null null 2 05:00:00 0 0", "with a lock")
	testkit.OK(t, tx.Rollback(t.Context()))
	db.exec("ALTER TABLE public.outbox RENAME TO elsewhere")
	expect(t, db.status(), "null null null 2 05:00:00 0 0", "without a table")
}

func TestStatusWithoutAKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	newWorkerOf(db, consumer.Queue{Table: "public.outbox", Time: "created_at"}, failing())
	expect(t, db.status(), "0 null 0 0 0 0", "empty")
	db.exec(`
		INSERT INTO public.outbox (customer, payload, created_at)
		SELECT 'c1', '1', now() - make_interval(hours => 8 - i, mins => 30) FROM generate_series(1, 3) AS i`)
	expect(t, db.status(), "3 07:00:00 0 0 0 0", "three rows")
	db.exec(`INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, since, next_at)
		SELECT 'orders', partition, id, '', '0', 1, now(), now() FROM public.outbox WHERE id = 1`)
	expect(t, db.status(), "3 null 0 1 00:00:00 0 0", "their partition is blocked")
}

// The rows of receivers that are away may be the 1,000 first ones. Others are seen behind them, of any
// partition.
func TestStatusSeesRowsBehindABlockedKey(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t) // see BlocksRead
	queue := outbox
	queue.Time = "created_at"
	newWorkerOf(db, queue, failing())
	of, others := db.alike(2), db.customers(4, 2)
	put := func(first, last int, customer, age string) {
		t.Helper()
		db.exec(`
			INSERT INTO public.outbox (id, customer, payload, created_at) OVERRIDING SYSTEM VALUE
			SELECT i, $3, '1', now() - $4::interval FROM generate_series($1::int, $2) AS i`, first, last, customer, age)
	}
	status := func(want, what string) {
		t.Helper()
		got := one[string](db, `
			SELECT concat_ws(' ', waiting, coalesce(extract(hour FROM oldest)::text, 'null'), coalesce(first_id::text, 'null'))
			FROM pgleases.consumers_status`)
		expect(t, got, want, what)
	}
	put(1, 700, others[0], "20 hours")
	put(701, 100000, of[0], "20 hours")
	db.block("id IN (1, 701)")
	status("1000 null null", "only their rows")
	put(200001, 200002, db.customers(5, 1)[0], "3 hours")
	status("1000 3 200001", "rows of a partition without blocked keys")
	n := testkit.BlocksRead(t, db.Pool, "SELECT * FROM pgleases.consumers_status")
	if n > 10_000 { // some for each of about 2,000 rows
		t.Errorf("it has read %d blocks", n)
	}
	put(100001, 100001, others[1], "7 hours")
	status("1000 7 100001", "a row behind 700 rows of its partition")
	db.exec("DELETE FROM public.outbox WHERE id > 100000")
	put(100001, 100001, of[1], "5 hours")
	status("1000 null null", "a row behind more than 1,000 rows of its partition")
	db.exec("DROP INDEX public.outbox_partition_id_idx")
	put(200001, 200001, db.customers(5, 1)[0], "3 hours")
	status("1000 null null", "no index of the partition and the ID")
}

// The rights are those of the role that asks. Code of the table's owner does not run.
func TestStatusRunsNoCodeOfOthers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	newWorker(db, failing())
	db.insert(3, 3)
	db.exec(`
		CREATE FUNCTION public.spy() RETURNS boolean LANGUAGE plpgsql
			AS 'BEGIN INSERT INTO public.effects DEFAULT VALUES; RETURN true; END';
		CREATE VIEW public.orders AS SELECT * FROM public.outbox WHERE public.spy();
		ALTER TABLE public.outbox ENABLE ROW LEVEL SECURITY; ALTER TABLE public.outbox FORCE ROW LEVEL SECURITY;
		CREATE POLICY spy ON public.outbox USING (public.spy())`)
	status := func(as, queue string) (text string) {
		t.Helper()
		tx := testkit.Must(db.Begin(t.Context()))(t)
		defer func() { _ = tx.Rollback(context.Background()) }()
		for _, statement := range []string{
			"UPDATE pgleases.consumers SET queue = '" + queue + "'",
			`CREATE ROLE consumer_looker;
				GRANT USAGE ON SCHEMA pgleases TO consumer_looker;
				GRANT SELECT ON ALL TABLES IN SCHEMA pgleases TO consumer_looker;
				GRANT EXECUTE ON FUNCTION pgleases.consumer_backlog(pgleases.consumers) TO consumer_looker;
				CREATE SCHEMA hidden;
				CREATE TABLE hidden.outbox (LIKE public.outbox)`,
			as,
		} {
			_, err := tx.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
			testkit.OK(t, err)
		}
		const waiting = "SELECT coalesce(waiting::text, 'null') FROM pgleases.consumers_status"
		testkit.OK(t, tx.QueryRow(t.Context(), waiting).Scan(&text))
		return text
	}
	const usage, looker = "GRANT USAGE ON SCHEMA hidden TO consumer_looker; ", "SET LOCAL ROLE consumer_looker"
	const rights = usage + "GRANT SELECT ON hidden.outbox TO consumer_looker; "
	expect(t, status("SELECT", "public.orders"), "null", "a view")
	expect(t, status(looker, "public.outbox"), "null", "a table with policies")
	expect(t, status(looker, "hidden.outbox"), "null", "a table in a schema without USAGE")
	expect(t, status(usage+looker, "hidden.outbox"), "null", "a table without SELECT")
	expect(t, status(rights+looker, "hidden.outbox"), "0", "a table with SELECT")
	expect(t, status("SELECT", `public.outbox; INSERT INTO public.effects DEFAULT VALUES`), "null", "no table")
	expect(t, db.count("public.effects"), 0, "effects")
}

func TestStatusReadsFewRowsOfALargeTable(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t) // see BlocksRead
	queue := outbox
	queue.Time = "created_at"
	newWorkerOf(db, queue, failing())
	db.insert(100_000, 1000)
	status := one[string](db, `
		SELECT concat_ws(' ', waiting, oldest IS NOT NULL, unhandled) FROM pgleases.consumers_status`)
	expect(t, status, "1000 t 0", "status")
	all := one[int](db, "SELECT pg_relation_size('public.outbox')::int / 8192")
	n := 0
	defer func() { t.Logf("it has read %d blocks, and the table has %d", n, all) }()
	testkit.Until(t, "it reads less than a quarter of the table", func() bool { // and not the catalog as well
		n = testkit.BlocksRead(t, db.Pool, "SELECT * FROM pgleases.consumers_status")
		return n < all/4
	})
}

// A dead letter comes back with all its columns, unless its ID is taken.
func TestOperatorsReturnDeadLetters(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(2, 2)
	w := newWorker(db, failing(1), attempts(1), consumer.WithOnFailure(consumer.OnFailureDeadLetter))
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	m, ctx := db.manager(), t.Context()
	db.exec(`
		ALTER TABLE public.outbox ADD later int NOT NULL DEFAULT 7;
		INSERT INTO public.outbox (id, customer, payload) OVERRIDING SYSTEM VALUE VALUES (1, 'c5', '0')`)
	taken := func() {
		t.Helper()
		err := m.Return(ctx, 1)
		if contains(t, err, "has a row with ID 1", "IDs are given once"); !errors.Is(err, consumer.ErrExists) {
			t.Errorf("%v", err)
		}
	}
	taken()
	expect(t, db.count("pgleases.consumer_dead_letters"), 1, "letters that are left")
	db.block("true")
	taken()
	db.exec("DELETE FROM public.outbox; DELETE FROM pgleases.consumer_blocked")
	db.exec("UPDATE pgleases.consumer_dead_letters SET partition = 40") // when there were more
	testkit.OK(t, m.Return(ctx, 1))
	expect(t, db.count("pgleases.consumer_blocked"), 0, "records that no process finds")
	expect(t, one[string](db, `
		SELECT concat_ws(' ', q.id, q.customer, q.payload, q.later, q.partition = pgleases.partition_for(q.customer, 8),
			(SELECT count(*) FROM pgleases.consumer_dead_letters), c.cause)
		FROM public.outbox AS q, pgleases.events AS c WHERE c.actor IS NOT NULL`), "1 c1 1 7 t 0 row returned", "the row")
	contains(t, m.Return(ctx, 1), `row 1 of consumer "orders" is no dead letter`)

	db.exec(`
		INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts)
		SELECT 'orders', n, 0, 'c5', jsonb_build_object('id', n, 'customer', 'c5', 'payload', '0'), 1
		FROM generate_series(10, 12) AS n;
		INSERT INTO public.outbox (id, customer, payload) OVERRIDING SYSTEM VALUE VALUES (11, 'c5', '0')`)
	_, err := m.ReturnAll(ctx)
	contains(t, err, "has a row with ID 11")
	expect(t, db.count("pgleases.consumer_dead_letters"), 3, "letters that are left")
	db.exec("DELETE FROM public.outbox WHERE id = 11")
	expect(t, testkit.Must(m.ReturnAll(ctx))(t), 3, "rows returned")
	expect(t, testkit.Must(m.ReturnAll(ctx))(t), 0, "rows returned without a letter")
	expect(t, one[string](db, `
		SELECT string_agg(row_id::text, ' ' ORDER BY row_id) FROM pgleases.events WHERE cause = 'row returned'`,
	), "1 10 11 12", "changes")
}

// A dead letter that comes back is handled before the row of its key that has failed since.
func TestReturnedRowComesFirst(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(3, 1)
	var mended atomic.Bool
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if !mended.Load() {
			return errors.New("no such order")
		}
		return effect(ctx, tx, row)
	}), attempts(1)).run()
	db.becomes("row 1 is blocked", 1, "pgleases.consumer_blocked WHERE id = 1")
	db.skip(1)
	db.becomes("row 2 is blocked", 1, "pgleases.consumer_blocked WHERE id = 2")
	mended.Store(true) // before row 1 is tried
	testkit.OK(t, db.manager().Return(t.Context(), 1))
	db.retryAll()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(3)
}

// A dead letter that comes back is handled before rows of its key that were due already.
func TestReturnedRowComesBeforeDueRows(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	of := db.alike(2)
	db.put(of[0], of[1], of[0])
	newWorker(db, failing()) // so that the consumer exists
	db.exec(`
		INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts)
		SELECT 'orders', id, partition, customer, to_jsonb(q), 1 FROM public.outbox AS q WHERE id = 1;
		DELETE FROM public.outbox WHERE id = 1`)
	db.block("true")
	in, out := make(chan struct{}), make(chan struct{})
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.ID == 2 {
			close(in)
			<-out
		}
		return effect(ctx, tx, row)
	})).run()
	testkit.Receive(t, "the row of the other key is in hand", in)
	testkit.OK(t, db.manager().Return(t.Context(), 1))
	close(out)
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(3)
}

// A row that is skipped while it fails is skipped then.
func TestSkipDuringAnAttempt(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]consumer.Option{
		"last attempt": {attempts(2)},
		"long backoff": {backoff(time.Hour, time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.put("a")
			db.block("true")
			in, out := make(chan struct{}), make(chan struct{})
			w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				close(in)
				<-out
				return errors.New("it fails")
			}), opts...).run()
			testkit.Receive(t, "the row is in hand", in)
			db.skip(1)
			close(out)
			db.empty("it is skipped")
			testkit.OK(t, w.end())
		})
	}
}

// A skip waits for no other blocked rows: of its partition that an operator retries while something
// is away, and of other partitions that hang.
func TestSkipComesFirst(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.put(db.alike(150)...)
	for partition := range 3 {
		db.put(db.customers(partition, 1)...)
	}
	db.block("true")
	db.exec("UPDATE pgleases.consumer_blocked SET next_at = 'infinity' WHERE id > 150")
	var calls, before atomic.Int64 // all, and those that came before a skip that was asked for
	hangs, hang := make(chan int64, 10), make(chan struct{})
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		calls.Add(1)
		if row.ID <= 150 {
			var skips int64
			err := tx.QueryRow(ctx, `
				SELECT count(*) FROM pgleases.consumer_blocked WHERE skipped_by IS NOT NULL AND id = 150`).Scan(&skips)
			before.Add(skips)
			return errors.Join(err, consumer.Unavailable(errors.New("away")))
		}
		hangs <- row.ID
		<-hang
		return errors.New("it fails")
	}), consumer.WithMaxRunning(3))
	w.PauseAtMost(100 * time.Millisecond)
	w.TryWhileAway(time.Millisecond)
	w.run()
	end := closer(t, hang)
	testkit.Until(t, "it is at work", func() bool { return calls.Load() > 3 })
	db.retryAll()
	db.skip(150)
	db.becomes("a row is skipped", 1, "pgleases.consumer_dead_letters")
	if n := before.Load(); n > 20 {
		t.Errorf("%d calls until then", n)
	}
	db.skip((testkit.Receive(t, "a row hangs", hangs)-150)%3 + 151)
	db.becomes("another is skipped", 2, "pgleases.consumer_dead_letters")
	end()
	testkit.OK(t, w.end())
}

// The look for changed rows keeps an attempt that failed beside it, although the row was changed again.
func TestSweepKeepsALaterAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put("a")
	db.block("true")
	db.exec("UPDATE public.outbox SET payload = '2'")
	text := string(testkit.Must(sql.Files.ReadFile("sweep.sql"))(t))
	sweep := strings.NewReplacer("{table}", "public.outbox", "{id}", "id", "{partition}", "partition",
		"FROM seen AS s", "FROM (SELECT seen.*, pg_advisory_xact_lock(1)::text FROM seen) AS s").Replace(text)
	done := make(chan error, 1)
	testkit.OK(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		testkit.Must(tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(1)"))(t)
		go func() {
			all := []int32{0, 1, 2, 3, 4, 5, 6, 7}
			_, err := db.Exec(context.Background(), sweep, "orders", all, make([]int64, 8), 100)
			done <- err
		}()
		testkit.Becomes(t, db.Pool, "it has seen the change", true, `
			SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		db.exec("UPDATE public.outbox SET payload = '3'")
		db.exec("UPDATE pgleases.consumer_blocked SET version = (SELECT xmin::text FROM public.outbox), attempts = 5")
		return nil
	}))
	testkit.OK(t, testkit.Receive(t, "it ends", done))
	expect(t, one[int](db, "SELECT attempts FROM pgleases.consumer_blocked"), 5, "failed attempts")
}

func TestOperatorsDeleteConsumers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 1)
	w := newWorker(db, failing(1), attempts(1)).run()
	db.becomes("a row blocks its key", 1, "pgleases.consumer_blocked")
	err := db.manager().Delete(t.Context())
	if contains(t, err, `processes run the consumer "orders"`); !errors.Is(err, consumer.ErrInUse) {
		t.Errorf("%v", err)
	}
	testkit.OK(t, w.end())
	testkit.OK(t, db.manager().Delete(t.Context()))
	expect(t, one[string](db, `
		SELECT concat_ws(' ', (SELECT count(*) FROM pgleases.consumers), (SELECT count(*) FROM pgleases.consumer_blocked),
			(SELECT count(*) FROM pgleases.consumer_owners))`), "0 0 0", "what is left")
	// Of a process that was there before.
	_, err = db.Exec(t.Context(), "SELECT pgleases.consumer_begin('orders'::text, '{0}'::int[], '{9}'::bigint[])")
	contains(t, err, `the consumer "orders" was deleted`)
	db.exec("ALTER TABLE public.outbox RENAME TO renamed")
	queue := outbox
	queue.Table = "public.renamed"
	testkit.OK(t, newWorkerOf(db, queue, consumer.Each(effect)).RunUntilEmpty(t.Context()))
	db.exact(1)
}

// The second of two verbs waits for the first, which deletes the consumer, and then does not find it.
func TestOperatorsDeleteTheSameConsumer(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	testkit.OK(t, newWorker(db, consumer.Each(effect)).RunUntilEmpty(t.Context()))
	verbs := map[string]func(m *consumer.Manager) error{
		"delete": func(m *consumer.Manager) error { return m.Delete(t.Context()) },
		"pause":  func(m *consumer.Manager) error { return second(m.Pause(t.Context())) },
	}
	tx := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(tx.Exec(t.Context(), "SELECT pgleases.consumer_delete('orders', '', 'why')"))(t)
	testkit.Must(tx.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = 0"))(t) // until the others wait
	failed := make(map[string]chan error)
	for verb, call := range verbs {
		m := db.manager()
		failed[verb] = make(chan error, 1)
		go func() { failed[verb] <- call(m) }()
	}
	testkit.Becomes(t, db.Pool, "both wait", int64(len(verbs)), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%consumer\_%'`)
	testkit.OK(t, tx.Commit(t.Context()))
	for verb, done := range failed {
		if err := testkit.Receive(t, verb+" ends", done); !errors.Is(err, consumer.ErrNotFound) {
			t.Errorf("%s after the consumer was deleted: %v, not %q", verb, err, consumer.ErrNotFound)
		}
	}
	expect(t, db.count("pgleases.events WHERE cause = 'consumer deleted'"), 1, "recorded deletions")
}

// From what is noted, doctor sees that no row is handled, also without a time in the table.
func TestOldestRowIsNoted(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(3, 3)
	out := make(chan struct{})
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		<-out
		return effect(ctx, tx, row)
	}))
	w.SweepEvery(20 * time.Millisecond)
	w.run()
	release := closer(t, out)
	testkit.Becomes(t, db.Pool, "the oldest row is noted", 1, "SELECT coalesce(first_id, 0) FROM pgleases.consumers")
	noted := one[time.Time](db, "SELECT first_since FROM pgleases.consumers")
	testkit.Becomes(t, db.Pool, "a process has looked again", true, `
		SELECT looked_at > $1 FROM pgleases.consumers`, noted)
	isSame := one[bool](db, "SELECT first_id = 1 AND first_since = $1 FROM pgleases.consumers", noted)
	expect(t, isSame, true, "that it is the same row since then")
	release()
	db.empty("all is handled")
	testkit.Becomes(t, db.Pool, "there is no oldest row", true, `
		SELECT first_id IS NULL AND first_since IS NULL FROM pgleases.consumers`)
	testkit.OK(t, w.end())
}

// Polls continue while somebody keeps the row of the consumer locked, although one process notes the
// oldest row there.
func TestLockedConsumerStopsNoPolls(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(effect))
	tx := testkit.Must(db.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.Background()) }()
	testkit.Must(tx.Exec(t.Context(), "SELECT FROM pgleases.consumers FOR NO KEY UPDATE"))(t)
	w.SweepEvery(time.Millisecond)
	w.run()
	db.insert(3, 3)
	db.empty("the rows are handled")
	testkit.OK(t, w.end())
}

// A restored backup, or a schema that was installed anew, may lack the consumer. A process that runs
// stores it again.
func TestMissingConsumerIsStoredAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(effect))
	db.exec("DELETE FROM pgleases.consumers")
	db.insert(3, 3)
	w.run()
	db.empty("all is handled")
	expect(t, one[string](db, `
		SELECT concat_ws(' ', name, queue, key_column, partitions) FROM pgleases.consumers`,
	), "orders public.outbox customer 8", "the consumer")
	testkit.OK(t, w.end())
	db.exact(3)
}
