package consumer_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// New refuses what cannot be consumed safely, and says what to change.
func TestNewRefuses(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := databaseAt(t, pgtest.OwnerURL(pgtest.FreshDatabase(t, ddl(t)...)))
	client := testkit.Must(pgleases.NewClient(t.Context(), db.Pool, pgleases.WithoutMigration()))(t)
	t.Cleanup(func() { _ = client.Close(t.Context()) })
	const generated = "NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 8)) STORED"
	good := "id bigint GENERATED ALWAYS AS IDENTITY, customer text NOT NULL, payload jsonb, partition int " + generated
	plain := strings.Replace(good, generated, "NOT NULL", 1)
	// create is the DDL of a table of these columns, and table that of one with the index that it needs.
	create := func(columns string) string { return "CREATE TABLE q.q (" + columns + ");" }
	table := func(columns string) string {
		return create(columns) + "CREATE UNIQUE INDEX ON q.q (partition, id);"
	}
	// but is such a table with another text in its columns, ids one with other IDs, and key one with
	// another key, whose partition is not generated.
	but := func(old, new string) string { return table(strings.Replace(good, old, new, 1)) }
	ids := func(new string) string { return but("GENERATED ALWAYS AS IDENTITY", new) }
	key := func(new string) string { return table(strings.Replace(plain, "customer text", new, 1)) }
	const plainIndex = "CREATE INDEX ON q.q (partition, id);"
	const keep = "CREATE FUNCTION q.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
	const triggers = keep + "CREATE TRIGGER keep BEFORE DELETE ON q.q FOR EACH ROW EXECUTE FUNCTION q.keep()"
	const inherits = "CREATE TABLE q.child () INHERITS (q.q);"
	q := consumer.Queue{Table: "q.q", Key: "customer"}
	with := func(change func(*consumer.Queue)) consumer.Queue { q := q; change(&q); return q }
	in := func(table string) consumer.Queue { return consumer.Queue{Table: table, Key: "customer"} }
	for name, test := range map[string]struct {
		ddl   string
		queue consumer.Queue
		says  []string
	}{
		"good":     {table(good), q, nil},
		"no table": {"", in("public.nowhere"), []string{"table public.nowhere does not exist", "TableSQL"}},
		"no name":  {"", consumer.Queue{}, []string{"the queue has no Table"}},
		"no column": {table(good), with(func(q *consumer.Queue) { q.ID = "number" }),
			[]string{`ID: it has no column "number"; name another one, or create it as TableSQL does`}},
		"no key column": {table(good), with(func(q *consumer.Queue) { q.Key = "k" }),
			[]string{`Key: it has no column "k"; name another one, or create it as TableSQL does`}},
		"no time column": {table(good), with(func(q *consumer.Queue) { q.Time = "at" }),
			[]string{`Time: it has no column "at"; name another one, or create it as TableSQL does`}},
		"type of time": {table(good), with(func(q *consumer.Queue) { q.Time = "payload" }),
			[]string{`Time: column "payload" is of type jsonb: give a column of type timestamptz, or leave Time out`}},
		"time without zone": {table(good + ", at timestamp"), with(func(q *consumer.Queue) { q.Time = "at" }),
			[]string{`Time: column "at" is of type timestamp without time zone: give a column of type timestamptz`}},
		"name of table": {"", in("q.q; x"),
			[]string{"table q.q; x does not exist", "or its name is not written as in SQL"}},
		"dots in table":    {"", in("q.q.q.q"), []string{"table q.q.q.q does not exist"}},
		"another database": {"", in("app.q.q"), []string{"table app.q.q does not exist in this database"}},
		"one column twice": {table(good), with(func(q *consumer.Queue) { q.ID = "partition" }),
			[]string{`ID and Partition are both column "partition": give two columns`}},
		"another column": {
			table(strings.Replace(good, "partition_for(customer", "partition_for(region", 1) +
				", region text NOT NULL"), q,
			[]string{`column "partition" is generated from column "region", so rows of one value of Key "customer" ` +
				"may be in several partitions, out of order: ",
				"generate it as partition_for(customer, N), or give another Key"}},
		"a second column": {
			table(strings.Replace(good, "partition_for(customer", "partition_for(customer || region", 1) +
				", region text NOT NULL"), q,
			[]string{`is generated from column "region"`}},
		"nullable key": {but("customer text NOT NULL", "customer text"), q,
			[]string{`column "customer" may be NULL`, `ALTER COLUMN "customer" SET NOT NULL`}},
		"type of key": {key("customer numeric"), q,
			[]string{`column "customer" is of type numeric`, "text, or character varying"}},
		"bytes as key": {key("customer bytea"), q,
			[]string{`column "customer" is of type bytea`, "text, or character varying"}},
		"type of ID": {but("id bigint GENERATED ALWAYS AS IDENTITY", "id uuid NOT NULL"), q,
			[]string{`column "id" is of type uuid`}},
		"no index": {create(good), q,
			[]string{`no valid, complete btree index on ("partition", "id")`,
				`CREATE INDEX CONCURRENTLY ON q.q ("partition", "id")`}},
		"partial index": {create(good) + "CREATE INDEX ON q.q (partition, id) WHERE partition > 1", q,
			[]string{"no valid, complete btree index"}},
		"descending index": {create(good) + "CREATE INDEX ON q.q (partition, id DESC)", q,
			[]string{"no valid, complete btree index"}},
		"BRIN index": {create(good) + "CREATE INDEX ON q.q USING brin (partition, id)", q,
			[]string{"no valid, complete btree index"}},
		"cache":       {but("IDENTITY", "IDENTITY (CACHE 10)"), q, []string{"CACHE 10", "CACHE 1"}},
		"cycle":       {but("IDENTITY", "IDENTITY (CYCLE)"), q, []string{"CYCLE", "NO CYCLE"}},
		"falling IDs": {but("IDENTITY", "IDENTITY (INCREMENT -1)"), q, []string{"INCREMENT BY -1"}},
		"increment": {but("IDENTITY", "IDENTITY (INCREMENT 50)"), q,
			[]string{"INCREMENT BY 50", "ALTER SEQUENCE q.q_id_seq INCREMENT BY 1", "WithAscendingIDs"}},
		"cache elsewhere": {"CREATE SEQUENCE q.s CACHE 20;" + ids("NOT NULL DEFAULT nextval('q.s')"), q,
			[]string{"CACHE 20", "ALTER SEQUENCE q.s CACHE 1"}},
		"no default": {ids("NOT NULL"), q,
			[]string{`column "id" has no default`,
				`ALTER TABLE q.q ALTER COLUMN "id" ADD GENERATED ALWAYS AS IDENTITY`}},
		"random IDs": {ids("NOT NULL DEFAULT (random() * 1e15)::bigint"), q,
			[]string{`column "id" has the default`, "random"}},
		"computed IDs": {"CREATE SEQUENCE q.s;" + ids("NOT NULL DEFAULT nextval('q.s') % 7"), q,
			[]string{`column "id" has the default`, "% "}},
		"late sequence": {"CREATE SEQUENCE q.s;" + ids("NOT NULL DEFAULT nextval('q.s'::text)"), q,
			[]string{`column "id" has the default`}},
		"IDs twice": {create(good) + plainIndex, q,
			[]string{`column "id" may have one ID twice`,
				`CREATE UNIQUE INDEX CONCURRENTLY ON q.q ("partition", "id")`}},
		"IDs once a day": {
			"CREATE TABLE q.q (" + good + `, at date NOT NULL DEFAULT now(), PRIMARY KEY (id, at))
				PARTITION BY RANGE (at);` + plainIndex, q,
			[]string{`column "id" may have one ID twice`}},
		"IDs once in some": {create(good) + plainIndex + "CREATE UNIQUE INDEX ON q.q (id) WHERE partition > 1", q,
			[]string{`column "id" may have one ID twice`}},
		"child": {table(good) + inherits, q, []string{`column "id" may have one ID twice`}},
		"rule": {table(good) + "CREATE RULE keep AS ON DELETE TO q.q DO INSTEAD NOTHING", q,
			[]string{`a rule ON DELETE may keep rows that were handled: drop rule "keep"`}},
		"trigger of a child": {
			table(good) + inherits + strings.Replace(triggers, "ON q.q", "ON q.child", 1), q,
			[]string{"a trigger BEFORE DELETE", "drop keep on q.child"}},
		"trigger": {table(good) + triggers, q, []string{"a trigger BEFORE DELETE"}},
		"view": {"CREATE VIEW q.q AS SELECT 1::bigint AS id, 'c' AS customer, 0 AS partition", q,
			[]string{"it is a view"}},
		"N unknown": {table(plain), q, []string{"N is not known: give Partitions"}},
		"another N": {table(good), with(func(q *consumer.Queue) { q.Partitions = 9 }),
			[]string{"Partitions: 9", "generated for 8"}},
		"too many": {table(plain), with(func(q *consumer.Queue) { q.Partitions = 65537 }),
			[]string{"65537 partitions is out of range"}},
		"misplaced": {table(plain) + "INSERT INTO q.q (customer, partition) VALUES ('a', 77)",
			with(func(q *consumer.Queue) { q.Partitions = 8 }),
			[]string{`row 1 with key "a" is in partition 77, but partition_for(key, 8) is`}},
		"another consumer's": {"", in("q.taken"), []string{`table q.taken already has the consumer "first"`}},
	} {
		t.Run(name, func(t *testing.T) {
			db := &database{t: t, url: db.url, Pool: db.Pool}
			db.exec(`
				DROP SCHEMA IF EXISTS q CASCADE;
				CREATE SCHEMA q;
				DELETE FROM pgleases.consumers;
				CREATE TABLE q.taken (` + good + `);
				CREATE UNIQUE INDEX ON q.taken (partition, id);
				INSERT INTO pgleases.consumers (name, queue, id_column, partition_column, partitions)
				VALUES ('first', 'q.taken', 'id', 'partition', 8);` + test.ddl)
			open := func(queue consumer.Queue) error { return opens(t, client, db.Pool, queue, consumer.Each(effect)) }
			err := open(test.queue)
			if len(test.says) == 0 {
				testkit.OK(t, err)
				db.exec("DELETE FROM pgleases.consumers WHERE name = 'first'")
				contains(t, open(in("q.taken")), `new consumer "orders"`, "the consumer has the table q.q",
					"pgleases consumers delete orders --reason")
				err = open(consumer.Queue{Table: "q.q", Partitions: 8})
				contains(t, err, `Key "customer"`, "pgleases consumers delete orders --reason")
				return
			}
			contains(t, err, append(test.says, `new consumer "orders"`)...)
		})
	}
}

// opens returns the error of New, without a migration.
func opens[T any](
	t testing.TB, client *pgleases.Client, pool *pgxpool.Pool,
	queue consumer.Queue, h consumer.Handler[T], opts ...consumer.Option,
) error {
	opts = append(opts, consumer.WithoutMigration())
	return second(consumer.New(t.Context(), client, pool, "orders", queue, h, opts...))
}

// New accepts each way to draw IDs from a sequence, and any IDs if the application gives them.
func TestNewAcceptsIDs(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, failing())
	const columns = ` customer text NOT NULL, payload jsonb,
		partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 8)) STORED)`
	q := consumer.Queue{Table: "public.q", Key: "customer"}
	db.exec("CREATE SEQUENCE public.ids AS bigint")
	for id, opts := range map[string][]consumer.Option{
		"bigserial": nil,
		"serial":    nil,
		"bigint GENERATED BY DEFAULT AS IDENTITY":       nil,
		"bigint NOT NULL DEFAULT nextval('public.ids')": nil,
		"int NOT NULL DEFAULT nextval('public.ids')":    nil,
		"bigint NOT NULL":                  {consumer.WithAscendingIDs()},
		"bigint NOT NULL DEFAULT random()": {consumer.WithAscendingIDs()},
	} {
		db.exec("DROP TABLE IF EXISTS public.q; DELETE FROM pgleases.consumers")
		db.exec("CREATE TABLE public.q (id " + id + "," + columns)
		unique := " UNIQUE"
		if opts != nil {
			unique = ""
		}
		db.exec("CREATE" + unique + " INDEX ON public.q (partition, id); GRANT ALL ON public.q TO PUBLIC")
		if err := opens(t, w.client, w.pool, q, consumer.Each(effect), opts...); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// A temporary table is there for one session only.
func TestNewRefusesTemporaryTables(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorker(db, failing())
	pool := testkit.Pool(t, db.url, func(c *pgxpool.Config) { c.MaxConns = 1 })
	testkit.Execute(t, pool, "CREATE TEMPORARY TABLE q (id bigserial PRIMARY KEY, partition int NOT NULL)")
	err := opens(t, w.client, pool, consumer.Queue{Table: "q", Partitions: 8}, consumer.Each(effect))
	contains(t, err, "it is a temporary table")
}

// New accepts a partition that is generated from the key alone, however that is written, and
// without rows or with them.
func TestNewAcceptsPartitionsOfTheKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, failing())
	db.exec(`
		CREATE TABLE public.q (id bigint GENERATED ALWAYS AS IDENTITY, t text NOT NULL, l text NOT NULL,
			v varchar(20) NOT NULL, i int NOT NULL, u uuid NOT NULL);
		GRANT ALL ON public.q TO PUBLIC`)
	const insert = `
		INSERT INTO public.q (t, l, v, i, u)
		SELECT 'T' || n, 'L' || n, 'V' || n, n, gen_random_uuid() FROM generate_series(1, 10) AS n`
	for key, of := range map[string]string{
		"t": `t COLLATE "C"`, "l": "lower(l)", "v": "coalesce(v, '')", "i": "i::bigint::text", "u": "u::text",
	} {
		db.exec(fmt.Sprintf(`
			DELETE FROM public.q;
			ALTER TABLE public.q
				ADD p_%[1]s int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(%[2]s, 8)) STORED;
			CREATE UNIQUE INDEX ON public.q (p_%[1]s, id)`, key, of))
		q := consumer.Queue{Table: "public.q", Key: key, Partition: "p_" + key}
		for _, rows := range []string{"", insert} {
			db.exec("DELETE FROM pgleases.consumers; " + rows)
			testkit.OK(t, opens(t, w.client, w.pool, q, consumer.Each(ignore)))
		}
	}
}

// ignore is a handler of any rows.
func ignore(context.Context, pgx.Tx, consumer.Row[map[string]any]) error { return nil }

// From PostgreSQL 16 on, a partition of the table may generate the column by another expression.
func TestNewRefusesPartitionsThatDiffer(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	if one[int](db, "SELECT current_setting('server_version_num')::int") < 160000 {
		t.Skip("before PostgreSQL 16 all have the expression of the table")
	}
	w := newWorker(db, failing())
	const columns = `(id bigint NOT NULL DEFAULT nextval('public.ids'), customer text NOT NULL, region text,
		partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(%s)) STORED)`
	db.exec(`
		CREATE SEQUENCE public.ids;
		CREATE TABLE public.q ` + fmt.Sprintf(columns, "customer, 8") + ` PARTITION BY RANGE (id);
		CREATE UNIQUE INDEX ON public.q (partition, id);
		CREATE TABLE public.middle PARTITION OF public.q DEFAULT PARTITION BY RANGE (id);
		GRANT ALL ON public.q TO PUBLIC`)
	q := consumer.Queue{Table: "public.q", Key: "customer"}
	for _, of := range []string{"customer, 8", "region, 8", "customer, 16"} {
		db.exec("DELETE FROM pgleases.consumers; CREATE TABLE public.part " + fmt.Sprintf(columns, of))
		db.exec("ALTER TABLE public.middle ATTACH PARTITION public.part DEFAULT")
		err := opens(t, w.client, w.pool, q, consumer.Each(ignore))
		if of == "customer, 8" {
			testkit.OK(t, err)
		} else {
			contains(t, err, `table public.q: column "partition" is generated by another expression in public.part`)
		}
		db.exec("DROP TABLE public.part")
	}
}

// New refuses what its role may not do, or does not see.
func TestNewRefusesWithoutRights(t *testing.T) {
	t.Parallel()
	// Behind a pooler the role would last for others.
	url, _ := pgtest.DirectURL(pgtest.OwnerURL(pgtest.FreshDatabase(t, ddl(t)...)))
	db := databaseAt(t, url)
	client := testkit.Must(pgleases.NewClient(t.Context(), db.Pool, pgleases.WithoutMigration()))(t)
	t.Cleanup(func() { _ = client.Close(t.Context()) })
	role := "consumer_" + strings.ToLower(rand.Text())
	db.exec(strings.ReplaceAll(`
		CREATE ROLE looker IN ROLE pg_read_all_data;
		GRANT ALL ON ALL TABLES IN SCHEMA pgleases TO looker;
		GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases TO looker;
		GRANT USAGE ON SCHEMA pgleases TO looker;
		REVOKE ALL ON public.outbox FROM PUBLIC`, "looker", role))
	t.Cleanup(func() { db.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	pool := testkit.Pool(t, db.url, func(config *pgxpool.Config) {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET ROLE "+role)
			return err
		}
	})
	open := func() error { return opens(t, client, pool, outbox, consumer.Each(effect)) }
	contains(t, open(), "GRANT SELECT, UPDATE, DELETE ON public.outbox")
	db.exec("GRANT SELECT, UPDATE (payload), DELETE ON public.outbox TO " + role)
	testkit.OK(t, open())
	db.exec("ALTER TABLE public.outbox ENABLE ROW LEVEL SECURITY")
	contains(t, open(), "row-level security hides rows", "BYPASSRLS")
	db.exec("REVOKE pg_read_all_data FROM " + role + "; REVOKE SELECT ON pgleases.consumer_version FROM " + role)
	const remedy = `; give it what pgleases grants ROLE --for=consumers prints for schema "pgleases"`
	contains(t, open(), `new consumer: the role lacks rights: `, remedy)
	_, err := consumer.New(t.Context(), client, pool, "orders", outbox, consumer.Each(effect))
	contains(t, err, `migrate: the role lacks rights: `, remedy+"; to create or change")
}

// A typing error in the trigger would show itself only in the delay of each row.
func TestNewWarnsOfATriggerForAnother(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	trigger := func(args string) {
		db.exec("CREATE OR REPLACE TRIGGER consumer_inserted AFTER INSERT ON public.outbox FOR EACH STATEMENT " +
			"EXECUTE FUNCTION pgleases.consumer_inserted(" + args + ")")
	}
	opened := func() (logged string) {
		log := make(lines, 1000)
		newWorker(db, consumer.Each(effect), consumer.WithLogger(slog.New(slog.NewTextHandler(log, nil)))).run().close()
		close(log) // the end of Run has waited for the lines
		for line := range log {
			logged += line
		}
		return logged
	}
	const line = `msg="consumer: trigger announces another consumer, rows wait for the poll" ` +
		"consumer=orders announces=order"
	trigger("'order'")
	if log := opened(); !strings.Contains(log, line) {
		t.Errorf("it is not logged: %s", log)
	}
	trigger("'orders'")
	if log := opened(); strings.Contains(log, "announces") {
		t.Errorf("it is logged though the trigger names the consumer: %s", log)
	}
	db.exec("DROP TRIGGER consumer_inserted ON public.outbox")
	if log := opened(); strings.Contains(log, "announces") {
		t.Errorf("it is logged without a trigger: %s", log)
	}
}

// New refuses a handler that the table does not fit, and wrong options.
func TestNewRefusesHandlersAndOptions(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(effect))
	type typo struct {
		ID       int64
		Costumer string
	}
	with := func(opts ...consumer.Option) error {
		return second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), opts...))
	}
	named := func(client *pgleases.Client, name string, opts ...consumer.Option) error {
		return second(consumer.New(t.Context(), client, w.pool, name, outbox, consumer.Each(effect), opts...))
	}
	typos := func(context.Context, pgx.Tx, []consumer.Row[typo]) error { return nil }
	numbers := func(context.Context, pgx.Tx, []consumer.Row[int]) error { return nil }
	for _, err := range []struct {
		err  error
		says string
	}{
		{opens(t, w.client, w.pool, outbox, consumer.InTx[typo](nil)), "handler is nil"},
		{opens(t, w.client, w.pool, outbox, consumer.AtLeastOnce[Order](nil)), "handler is nil"},
		{opens(t, w.client, w.pool, outbox, consumer.InTx(typos)), "Costumer"},
		{opens(t, w.client, w.pool, outbox, consumer.InTx(numbers)), "it must be a struct"},
		{named(nil, "orders"), "client or pool is nil"},
		{named(w.client, ""), `name ""`},
		{named(w.client, strings.Repeat("x", 247)), "1 to 246 bytes"},
		{named(nil, "", consumer.WithPoll(0), consumer.WithTimeout(0)),
			"WithPoll: a poll each 0s is out of range: 10ms to 24h\n" +
				"consumer: WithTimeout: a timeout of 0s is out of range: 10ms to 24h\n" +
				"consumer: client or pool is nil\nconsumer: name \"\": 1 to 246 bytes"},
		{with(nil), "option is nil"},
		{with(consumer.WithBatch(0, 1)), "a batch of 0 rows"},
		{with(consumer.WithMaxRunning(6)), "6 batches at once need a pool of more than 6 connections"},
		{with(attempts(0)), "0 attempts"},
		// PostgreSQL takes 24 days.
		{with(consumer.WithIdleTimeout(30 * 24 * time.Hour)), "an idle timeout of 720h0m0s is out of range"},
		// Their sums and products would overflow.
		{with(consumer.WithTimeout(math.MaxInt64)), "WithTimeout: a timeout of 2562047h47m16.8"},
		{with(consumer.WithTimeout(1 << 62)), "WithTimeout: a timeout"},
		{with(consumer.WithPoll(1 << 61)), "WithPoll: a poll each"},
		{with(backoff(2, 1)), "backoff from 2ns to 1ns"},
		{with(consumer.WithMaxAttempts(2, consumer.BackoffPolicy{})), "backoff from 0s to 0s"},
		{with(consumer.WithMaxRunning(0)), "at most 0 batches at once"},
		{with(consumer.WithMaxCrashes(0)), "WithMaxCrashes: 0 crashes is out of range: 1 to 100"},
		{with(consumer.WithDrainTimeout(0)), "a drain timeout of 0s"},
	} {
		contains(t, err.err, err.says)
	}
	all := func(context.Context, pgx.Tx, []consumer.Row[map[string]any]) error { return nil }
	testkit.OK(t, opens(t, w.client, w.pool, outbox, consumer.InTx(all)))
}

func second[T any](_ T, err error) error { return err }

// The steps for an existing table fit several tables in one schema, whatever their names are. A
// role that only may insert still can, although it has no rights on the library's schema.
func TestTableSQLFitsSeveralTables(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	role := "consumer_" + strings.ToLower(rand.Text())
	db.exec("CREATE ROLE " + role)
	t.Cleanup(func() { db.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	db.exec("CREATE SCHEMA app")
	long := strings.Repeat("x", 62)
	for _, q := range []consumer.Queue{
		{Table: "public.one"},
		{Table: "public.two"},
		{Table: "app.one"},
		{Table: `public."odd "" $$ . é"`},
		{Table: `public."` + long + `a"`},
		{Table: `public."` + long + `b"`},
		{Table: "public.dollars", ID: "i$$d", Key: "k$$", Partition: "p$$"},
		{Table: "public.variables", ID: "v_low", Key: "v_high", Partition: "backfill"},
		{Table: "public.records", ID: "new", Key: "old", Partition: "b"},
	} {
		id, key, partition := cmp.Or(q.ID, "id"), cmp.Or(q.Key, "k"), cmp.Or(q.Partition, "partition")
		q.Key, q.Partitions = key, 8
		steps := stepsOf(q)
		trigger, _, _ := strings.Cut(steps, "CREATE TRIGGER consumer_inserted")
		_, trigger, _ = strings.Cut(trigger, ";")
		db.exec(fmt.Sprintf(`
			CREATE TABLE %[1]s (%[2]q bigint GENERATED ALWAYS AS IDENTITY, %[3]q text);
			INSERT INTO %[1]s (%[3]q) SELECT md5(n::text) FROM generate_series(1, 100) AS n`, q.Table, id, key))
		// A function without a schema would go to the first of the search_path.
		db.exec("SET search_path = nowhere; " + trigger + "; RESET search_path")
		db.exec(backfillOf(steps))
		db.exec("GRANT USAGE ON SCHEMA app TO " + role + "; GRANT INSERT ON " + q.Table + " TO " + role)
		db.exec(fmt.Sprintf(`
			BEGIN;
			SET LOCAL ROLE %s;
			SET LOCAL search_path = nowhere;
			INSERT INTO %s (%q) SELECT md5(n::text) FROM generate_series(1, 100) AS n;
			COMMIT`, role, q.Table, key))
		placed := one[bool](db, fmt.Sprintf(`
			SELECT count(*) = 200 AND bool_and(%q = pgleases.partition_for(%q, 8)) FROM %s`, partition, key, q.Table))
		expect(t, placed, true, q.Table)
	}
}

// stepsOf returns the steps for an existing table.
func stepsOf(q consumer.Queue) string {
	_, steps, _ := strings.Cut(consumer.TableSQL("orders", "", q), "SET lock_timeout")
	return strings.ReplaceAll(steps, "\n--", "\n")
}

func backfillOf(steps string) string {
	return regexp.MustCompile(`(?s)DO \$.* END \$\w*\$`).FindString(steps)
}

// The trigger of the steps sees the key as other triggers left it.
func TestTableSQLAfterOtherTriggers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec(`CREATE TABLE public.events (id bigint GENERATED ALWAYS AS IDENTITY, name text, k text);
		CREATE FUNCTION public.trim() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.k := lower(NEW.name); RETURN NEW; END';
		CREATE TRIGGER trim BEFORE INSERT OR UPDATE ON public.events FOR EACH ROW EXECUTE FUNCTION public.trim()`)
	queue := consumer.Queue{Table: "public.events", Key: "k", Partitions: 1024}
	steps, _, _ := strings.Cut(stepsOf(queue), "CREATE TRIGGER consumer_inserted")
	_, steps, _ = strings.Cut(steps, ";")
	db.exec(steps)
	for _, statement := range []string{
		"INSERT INTO public.events (name) VALUES ('Ada'), ('ada')",
		"UPDATE public.events SET name = 'Bob'",
	} {
		db.exec(statement)
		placed := one[bool](db, `
			SELECT bool_and(partition IS NOT DISTINCT FROM pgleases.partition_for(k, 1024)) FROM public.events`)
		expect(t, placed, true, statement)
	}
}

// The backfill reaches every ID that a sequence may have drawn.
func TestTableSQLBackfillsAllIDs(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec(`
		CREATE TABLE public.events (id bigint PRIMARY KEY, k text, partition int);
		INSERT INTO public.events
		SELECT id, id FROM unnest('{-9223372036854775807,-1,0,1,9223372036854775807}'::bigint[]) AS id`)
	db.exec(backfillOf(stepsOf(consumer.Queue{Table: "public.events", Key: "k", Partitions: 8})))
	expect(t, db.count("public.events WHERE partition IS NULL"), 0, "rows left out")
}

// TableSQL without a Key has no steps for an existing table, because a trigger could not know the
// partition. Without a Table its text cannot run, and says what is missing.
func TestTableSQLOfQueuesThatLackSomething(t *testing.T) {
	t.Parallel()
	text := consumer.TableSQL("orders", "", consumer.Queue{Table: "public.events"})
	if strings.Contains(text, `"key"`) || strings.Contains(text, "Instead") {
		t.Errorf("a queue without a Key has\n%s", text)
	}
	newDatabase(t).exec(text)
	text = consumer.TableSQL("orders", "", consumer.Queue{Key: "k"})
	if !strings.Contains(text, "CREATE TABLE <Queue.Table> (") {
		t.Errorf("a queue without a Table has\n%s", text)
	}
}
