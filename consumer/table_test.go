package consumer_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
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
	good := "id bigint GENERATED ALWAYS AS IDENTITY, customer text NOT NULL, partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 8)) STORED, payload jsonb"
	index := "; CREATE UNIQUE INDEX ON q.q (partition, id)"
	plain := strings.Replace(good, "NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 8)) STORED", "NOT NULL", 1)
	q := consumer.Queue{Table: "q.q", Key: "customer"}
	with := func(change func(*consumer.Queue)) consumer.Queue { q := q; change(&q); return q }
	for name, test := range map[string]struct {
		ddl   string
		queue consumer.Queue
		says  []string
	}{
		"good":               {"CREATE TABLE q.q (" + good + ")" + index, q, nil},
		"no table":           {"", with(func(q *consumer.Queue) { q.Table = "public.nowhere" }), []string{"table public.nowhere does not exist", "TableSQL"}},
		"no name":            {"", consumer.Queue{}, []string{"the queue has no Table"}},
		"no column":          {"CREATE TABLE q.q (" + good + ")" + index, with(func(q *consumer.Queue) { q.ID = "number" }), []string{`ID: it has no column "number"; name another one, or create it as TableSQL does`}},
		"no key column":      {"CREATE TABLE q.q (" + good + ")" + index, with(func(q *consumer.Queue) { q.Key = "k" }), []string{`Key: it has no column "k"; name another one, or create it as TableSQL does`}},
		"no time column":     {"CREATE TABLE q.q (" + good + ")" + index, with(func(q *consumer.Queue) { q.Time = "at" }), []string{`Time: it has no column "at"; name another one, or create it as TableSQL does`}},
		"type of time":       {"CREATE TABLE q.q (" + good + ")" + index, with(func(q *consumer.Queue) { q.Time = "payload" }), []string{`Time: column "payload" is of type jsonb: give a column of type timestamptz, or leave Time out`}},
		"time without zone":  {"CREATE TABLE q.q (" + good + ", at timestamp)" + index, with(func(q *consumer.Queue) { q.Time = "at" }), []string{`Time: column "at" is of type timestamp without time zone: give a column of type timestamptz`}},
		"name of table":      {"", with(func(q *consumer.Queue) { q.Table = "q.q; x" }), []string{"table q.q; x does not exist", "or its name is not written as in SQL"}},
		"dots in table":      {"", with(func(q *consumer.Queue) { q.Table = "q.q.q.q" }), []string{"table q.q.q.q does not exist"}},
		"another database":   {"", with(func(q *consumer.Queue) { q.Table = "app.q.q" }), []string{"table app.q.q does not exist in this database"}},
		"one column twice":   {"CREATE TABLE q.q (" + good + ")" + index, with(func(q *consumer.Queue) { q.ID = "partition" }), []string{`ID and Partition are both column "partition": give two columns`}},
		"another column":     {"CREATE TABLE q.q (" + strings.Replace(good, "partition_for(customer", "partition_for(region", 1) + ", region text NOT NULL)" + index, q, []string{`column "partition" is generated from column "region", so rows of one value of Key "customer" may be in several partitions, out of order: `, "generate it as partition_for(customer, N), or give another Key"}},
		"a second column":    {"CREATE TABLE q.q (" + strings.Replace(good, "partition_for(customer", "partition_for(customer || region", 1) + ", region text NOT NULL)" + index, q, []string{`is generated from column "region"`}},
		"nullable key":       {"CREATE TABLE q.q (" + strings.Replace(good, "customer text NOT NULL", "customer text", 1) + ")" + index, q, []string{`column "customer" may be NULL`, `ALTER COLUMN "customer" SET NOT NULL`}},
		"type of key":        {"CREATE TABLE q.q (" + strings.Replace(plain, "customer text", "customer numeric", 1) + ")" + index, q, []string{`column "customer" is of type numeric`, "text, or character varying"}},
		"bytes as key":       {"CREATE TABLE q.q (" + strings.Replace(plain, "customer text", "customer bytea", 1) + ")" + index, q, []string{`column "customer" is of type bytea`, "text, or character varying"}},
		"type of ID":         {"CREATE TABLE q.q (" + strings.Replace(good, "id bigint GENERATED ALWAYS AS IDENTITY", "id uuid NOT NULL", 1) + ")" + index, q, []string{`column "id" is of type uuid`}},
		"no index":           {"CREATE TABLE q.q (" + good + ")", q, []string{`no valid, complete btree index on ("partition", "id")`, `CREATE INDEX CONCURRENTLY ON q.q ("partition", "id")`}},
		"partial index":      {"CREATE TABLE q.q (" + good + "); CREATE INDEX ON q.q (partition, id) WHERE partition > 1", q, []string{"no valid, complete btree index"}},
		"descending index":   {"CREATE TABLE q.q (" + good + "); CREATE INDEX ON q.q (partition, id DESC)", q, []string{"no valid, complete btree index"}},
		"BRIN index":         {"CREATE TABLE q.q (" + good + "); CREATE INDEX ON q.q USING brin (partition, id)", q, []string{"no valid, complete btree index"}},
		"cache":              {"CREATE TABLE q.q (" + strings.Replace(good, "IDENTITY", "IDENTITY (CACHE 10)", 1) + ")" + index, q, []string{"CACHE 10", "CACHE 1"}},
		"cycle":              {"CREATE TABLE q.q (" + strings.Replace(good, "IDENTITY", "IDENTITY (CYCLE)", 1) + ")" + index, q, []string{"CYCLE", "NO CYCLE"}},
		"increment":          {"CREATE TABLE q.q (" + strings.Replace(good, "IDENTITY", "IDENTITY (INCREMENT 50)", 1) + ")" + index, q, []string{"INCREMENT BY 50", "ALTER SEQUENCE q.q_id_seq INCREMENT BY 1", "WithAscendingIDs"}},
		"falling IDs":        {"CREATE TABLE q.q (" + strings.Replace(good, "IDENTITY", "IDENTITY (INCREMENT -1)", 1) + ")" + index, q, []string{"INCREMENT BY -1"}},
		"cache elsewhere":    {"CREATE SEQUENCE q.s CACHE 20; CREATE TABLE q.q (" + strings.Replace(good, "GENERATED ALWAYS AS IDENTITY", "NOT NULL DEFAULT nextval('q.s')", 1) + ")" + index, q, []string{"CACHE 20", "ALTER SEQUENCE q.s CACHE 1"}},
		"no default":         {"CREATE TABLE q.q (" + strings.Replace(good, "GENERATED ALWAYS AS IDENTITY", "NOT NULL", 1) + ")" + index, q, []string{`column "id" has no default`, `ALTER TABLE q.q ALTER COLUMN "id" ADD GENERATED ALWAYS AS IDENTITY`}},
		"random IDs":         {"CREATE TABLE q.q (" + strings.Replace(good, "GENERATED ALWAYS AS IDENTITY", "NOT NULL DEFAULT (random() * 1e15)::bigint", 1) + ")" + index, q, []string{`column "id" has the default`, "random"}},
		"computed IDs":       {"CREATE SEQUENCE q.s; CREATE TABLE q.q (" + strings.Replace(good, "GENERATED ALWAYS AS IDENTITY", "NOT NULL DEFAULT nextval('q.s') % 7", 1) + ")" + index, q, []string{`column "id" has the default`, "% "}},
		"late sequence":      {"CREATE SEQUENCE q.s; CREATE TABLE q.q (" + strings.Replace(good, "GENERATED ALWAYS AS IDENTITY", "NOT NULL DEFAULT nextval('q.s'::text)", 1) + ")" + index, q, []string{`column "id" has the default`}},
		"IDs twice":          {"CREATE TABLE q.q (" + good + "); CREATE INDEX ON q.q (partition, id)", q, []string{`column "id" may have one ID twice`, `CREATE UNIQUE INDEX CONCURRENTLY ON q.q ("partition", "id")`}},
		"IDs once a day":     {"CREATE TABLE q.q (" + good + ", at date NOT NULL DEFAULT now(), PRIMARY KEY (id, at)) PARTITION BY RANGE (at); CREATE INDEX ON q.q (partition, id)", q, []string{`column "id" may have one ID twice`}},
		"IDs once in some":   {"CREATE TABLE q.q (" + good + "); CREATE INDEX ON q.q (partition, id); CREATE UNIQUE INDEX ON q.q (id) WHERE partition > 1", q, []string{`column "id" may have one ID twice`}},
		"child":              {"CREATE TABLE q.q (" + good + ")" + index + "; CREATE TABLE q.child () INHERITS (q.q)", q, []string{`column "id" may have one ID twice`}},
		"rule":               {"CREATE TABLE q.q (" + good + ")" + index + "; CREATE RULE keep AS ON DELETE TO q.q DO INSTEAD NOTHING", q, []string{`a rule ON DELETE may keep rows that were handled: drop rule "keep"`}},
		"trigger of a child": {"CREATE TABLE q.q (" + good + ")" + index + "; CREATE TABLE q.child () INHERITS (q.q); CREATE FUNCTION q.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER keep BEFORE DELETE ON q.child FOR EACH ROW EXECUTE FUNCTION q.keep()", q, []string{"a trigger BEFORE DELETE", "drop keep on q.child"}},
		"view":               {"CREATE VIEW q.q AS SELECT 1::bigint AS id, 'c' AS customer, 0 AS partition", q, []string{"it is a view"}},
		"trigger":            {"CREATE TABLE q.q (" + good + ")" + index + "; CREATE FUNCTION q.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER keep BEFORE DELETE ON q.q FOR EACH ROW EXECUTE FUNCTION q.keep()", q, []string{"a trigger BEFORE DELETE"}},
		"N unknown":          {"CREATE TABLE q.q (" + plain + ")" + index, q, []string{"N is not known: give Partitions"}},
		"another N":          {"CREATE TABLE q.q (" + good + ")" + index, with(func(q *consumer.Queue) { q.Partitions = 9 }), []string{"Partitions: 9", "generated for 8"}},
		"too many":           {"CREATE TABLE q.q (" + plain + ")" + index, with(func(q *consumer.Queue) { q.Partitions = 65537 }), []string{"65537 partitions is out of range"}},
		"misplaced":          {"CREATE TABLE q.q (" + plain + ")" + index + "; INSERT INTO q.q (customer, partition) VALUES ('a', 77)", with(func(q *consumer.Queue) { q.Partitions = 8 }), []string{`row 1 with key "a" is in partition 77, but partition_for(key, 8) is`}},
		"another consumer's": {"", consumer.Queue{Table: "q.taken", Key: "customer"}, []string{`table q.taken already has the consumer "first"`}},
	} {
		t.Run(name, func(t *testing.T) {
			db := &database{t: t, url: db.url, Pool: db.Pool}
			db.exec("DROP SCHEMA IF EXISTS q CASCADE; CREATE SCHEMA q; DELETE FROM pgleases.consumers; " +
				"CREATE TABLE q.taken (" + good + "); CREATE UNIQUE INDEX ON q.taken (partition, id); INSERT INTO pgleases.consumers (name, queue, id_column, partition_column, partitions) VALUES ('first', 'q.taken', 'id', 'partition', 8);" + test.ddl)
			_, err := consumer.New(t.Context(), client, db.Pool, "orders", test.queue, consumer.Each(effect), consumer.WithoutMigration())
			if len(test.says) == 0 {
				testkit.OK(t, err)
				db.exec("DELETE FROM pgleases.consumers WHERE name = 'first'")
				_, err = consumer.New(t.Context(), client, db.Pool, "orders", consumer.Queue{Table: "q.taken", Key: "customer"}, consumer.Each(effect), consumer.WithoutMigration())
				contains(t, err, `new consumer "orders"`, "the consumer has the table q.q", "pgleases consumers delete orders --reason")
				_, err = consumer.New(t.Context(), client, db.Pool, "orders", consumer.Queue{Table: "q.q", Partitions: 8}, consumer.Each(effect), consumer.WithoutMigration())
				contains(t, err, `Key "customer"`, "pgleases consumers delete orders --reason")
				return
			}
			contains(t, err, append(test.says, `new consumer "orders"`)...)
		})
	}
}

// New accepts each way to draw IDs from a sequence, and any IDs if the application gives them.
func TestNewAcceptsIDs(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, failing())
	const columns = " customer text NOT NULL, payload jsonb, partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 8)) STORED)"
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
		db.exec("DROP TABLE IF EXISTS public.q; DELETE FROM pgleases.consumers; CREATE TABLE public.q (id " + id + "," + columns)
		unique := " UNIQUE"
		if opts != nil {
			unique = ""
		}
		db.exec("CREATE" + unique + " INDEX ON public.q (partition, id); GRANT ALL ON public.q TO PUBLIC")
		_, err := consumer.New(t.Context(), w.client, w.pool, "orders", consumer.Queue{Table: "public.q", Key: "customer"}, consumer.Each(effect),
			append(opts, consumer.WithoutMigration())...)
		if err != nil {
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
	_, err := consumer.New(t.Context(), w.client, pool, "orders", consumer.Queue{Table: "q", Partitions: 8}, consumer.Each(effect), consumer.WithoutMigration())
	contains(t, err, "it is a temporary table")
}

// New accepts a partition that is generated from the key alone, however that is written, and
// without rows or with them.
func TestNewAcceptsPartitionsOfTheKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, failing())
	db.exec("CREATE TABLE public.q (id bigint GENERATED ALWAYS AS IDENTITY, t text NOT NULL, l text NOT NULL, v varchar(20) NOT NULL, i int NOT NULL, u uuid NOT NULL); GRANT ALL ON public.q TO PUBLIC")
	for key, of := range map[string]string{"t": `t COLLATE "C"`, "l": "lower(l)", "v": "coalesce(v, '')", "i": "i::bigint::text", "u": "u::text"} {
		db.exec(fmt.Sprintf("DELETE FROM public.q; ALTER TABLE public.q ADD p_%[1]s int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(%[2]s, 8)) STORED; CREATE UNIQUE INDEX ON public.q (p_%[1]s, id)", key, of))
		for _, rows := range []string{"", "INSERT INTO public.q (t, l, v, i, u) SELECT 'T' || n, 'L' || n, 'V' || n, n, gen_random_uuid() FROM generate_series(1, 10) AS n"} {
			db.exec("DELETE FROM pgleases.consumers; " + rows)
			_, err := consumer.New(t.Context(), w.client, w.pool, "orders", consumer.Queue{Table: "public.q", Key: key, Partition: "p_" + key},
				consumer.Each(func(context.Context, pgx.Tx, consumer.Row[map[string]any]) error { return nil }), consumer.WithoutMigration())
			testkit.OK(t, err)
		}
	}
}

// From PostgreSQL 16 on, a partition of the table may generate the column by another expression.
func TestNewRefusesPartitionsThatDiffer(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	if one[int](db, "SELECT current_setting('server_version_num')::int") < 160000 {
		t.Skip("before PostgreSQL 16 all have the expression of the table")
	}
	w := newWorker(db, failing())
	const columns = "(id bigint NOT NULL DEFAULT nextval('public.ids'), customer text NOT NULL, region text, partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(%s)) STORED)"
	db.exec("CREATE SEQUENCE public.ids; CREATE TABLE public.q " + fmt.Sprintf(columns, "customer, 8") + " PARTITION BY RANGE (id); CREATE UNIQUE INDEX ON public.q (partition, id); CREATE TABLE public.middle PARTITION OF public.q DEFAULT PARTITION BY RANGE (id); GRANT ALL ON public.q TO PUBLIC")
	for _, of := range []string{"customer, 8", "region, 8", "customer, 16"} {
		db.exec("DELETE FROM pgleases.consumers; CREATE TABLE public.part " + fmt.Sprintf(columns, of) + "; ALTER TABLE public.middle ATTACH PARTITION public.part DEFAULT")
		_, err := consumer.New(t.Context(), w.client, w.pool, "orders", consumer.Queue{Table: "public.q", Key: "customer"},
			consumer.Each(func(context.Context, pgx.Tx, consumer.Row[map[string]any]) error { return nil }), consumer.WithoutMigration())
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
	url, _ := pgtest.DirectURL(pgtest.OwnerURL(pgtest.FreshDatabase(t, ddl(t)...))) // behind a pooler the role would last for others
	db := databaseAt(t, url)
	client := testkit.Must(pgleases.NewClient(t.Context(), db.Pool, pgleases.WithoutMigration()))(t)
	t.Cleanup(func() { _ = client.Close(t.Context()) })
	role := "consumer_" + strings.ToLower(rand.Text())
	db.exec("CREATE ROLE " + role + " IN ROLE pg_read_all_data; GRANT ALL ON ALL TABLES IN SCHEMA pgleases TO " + role + "; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases TO " + role + "; GRANT USAGE ON SCHEMA pgleases TO " + role + "; REVOKE ALL ON public.outbox FROM PUBLIC")
	t.Cleanup(func() { db.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	pool := testkit.Pool(t, db.url, func(config *pgxpool.Config) {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET ROLE "+role)
			return err
		}
	})
	open := func() error {
		return second(consumer.New(t.Context(), client, pool, "orders", outbox, consumer.Each(effect), consumer.WithoutMigration()))
	}
	contains(t, open(), "GRANT SELECT, UPDATE, DELETE ON public.outbox")
	db.exec("GRANT SELECT, UPDATE (payload), DELETE ON public.outbox TO " + role)
	testkit.OK(t, open())
	db.exec("ALTER TABLE public.outbox ENABLE ROW LEVEL SECURITY")
	contains(t, open(), "row-level security hides rows", "BYPASSRLS")
	db.exec("REVOKE pg_read_all_data FROM " + role + "; REVOKE SELECT ON pgleases.consumer_version FROM " + role)
	contains(t, open(), `new consumer: the role lacks rights: `, `; give it what pgleases grants ROLE --for=consumers prints for schema "pgleases"`)
	_, err := consumer.New(t.Context(), client, pool, "orders", outbox, consumer.Each(effect))
	contains(t, err, `migrate: the role lacks rights: `, `; give it what pgleases grants ROLE --for=consumers prints for schema "pgleases"; to create or change`)
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
	const line = `msg="consumer: trigger announces another consumer, rows wait for the poll" consumer=orders announces=order`
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
	for _, err := range []struct {
		err  error
		says string
	}{
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.InTx[typo](nil))), "handler is nil"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.AtLeastOnce[Order](nil))), "handler is nil"},
		{second(consumer.New(t.Context(), nil, w.pool, "orders", outbox, consumer.Each(effect))), "client or pool is nil"},
		{second(consumer.New(t.Context(), w.client, w.pool, "", outbox, consumer.Each(effect))), `name ""`},
		{second(consumer.New(t.Context(), w.client, w.pool, strings.Repeat("x", 247), outbox, consumer.Each(effect))), "1 to 246 bytes"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), nil)), "option is nil"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), consumer.WithBatch(0, 1))), "a batch of 0 rows"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), consumer.WithMaxRunning(6))), "6 batches at once need a pool of more than 6 connections"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), attempts(0))), "0 attempts"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), consumer.WithIdleTimeout(30*24*time.Hour))), "an idle timeout of 720h0m0s is out of range"}, // PostgreSQL takes 24 days
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), backoff(2, 1))), "backoff from 2ns to 1ns"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), consumer.WithMaxAttempts(2, consumer.BackoffPolicy{}))), "backoff from 0s to 0s"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), consumer.WithMaxRunning(0))), "at most 0 batches at once"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), consumer.WithMaxCrashes(0))), "WithMaxCrashes: 0 crashes is out of range: 1 to 100"},
		{second(consumer.New(t.Context(), nil, w.pool, "", outbox, consumer.Each(effect), consumer.WithPoll(0), consumer.WithTimeout(0))),
			"WithPoll: a poll each 0s is out of range: 10ms or more\nconsumer: WithTimeout: a timeout of 0s is out of range: 10ms or more\n" +
				"consumer: client or pool is nil\nconsumer: name \"\": 1 to 246 bytes"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), consumer.WithDrainTimeout(0))), "a drain timeout of 0s"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.InTx(func(_ context.Context, _ pgx.Tx, _ []consumer.Row[typo]) error { return nil }))), "Costumer"},
		{second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.InTx(func(_ context.Context, _ pgx.Tx, _ []consumer.Row[int]) error { return nil }))), "it must be a struct"},
	} {
		contains(t, err.err, err.says)
	}
	testkit.OK(t, second(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.InTx(func(_ context.Context, _ pgx.Tx, _ []consumer.Row[map[string]any]) error { return nil }), consumer.WithoutMigration())))
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
		{Table: "public.one"}, {Table: "public.two"}, {Table: "app.one"}, {Table: `public."odd "" $$ . é"`}, {Table: `public."` + long + `a"`}, {Table: `public."` + long + `b"`},
		{Table: "public.dollars", ID: "i$$d", Key: "k$$", Partition: "p$$"}, {Table: "public.variables", ID: "v_low", Key: "v_high", Partition: "backfill"}, {Table: "public.records", ID: "new", Key: "old", Partition: "b"},
	} {
		id, key, partition := cmp.Or(q.ID, "id"), cmp.Or(q.Key, "k"), cmp.Or(q.Partition, "partition")
		q.Key, q.Partitions = key, 8
		steps := stepsOf(q)
		trigger, _, _ := strings.Cut(steps, "CREATE TRIGGER consumer_inserted")
		_, trigger, _ = strings.Cut(trigger, ";")
		db.exec(fmt.Sprintf(`CREATE TABLE %[1]s (%[2]q bigint GENERATED ALWAYS AS IDENTITY, %[3]q text); INSERT INTO %[1]s (%[3]q) SELECT md5(n::text) FROM generate_series(1, 100) AS n`, q.Table, id, key))
		db.exec("SET search_path = nowhere; " + trigger + "; RESET search_path") // a function without a schema would go to the first of the search_path
		db.exec(backfillOf(steps))
		db.exec("GRANT USAGE ON SCHEMA app TO " + role + "; GRANT INSERT ON " + q.Table + " TO " + role)
		db.exec(fmt.Sprintf("BEGIN; SET LOCAL ROLE %s; SET LOCAL search_path = nowhere; INSERT INTO %s (%q) SELECT md5(n::text) FROM generate_series(1, 100) AS n; COMMIT", role, q.Table, key))
		expect(t, one[bool](db, fmt.Sprintf("SELECT count(*) = 200 AND bool_and(%q = pgleases.partition_for(%q, 8)) FROM %s", partition, key, q.Table)), true, q.Table)
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
	steps, _, _ := strings.Cut(stepsOf(consumer.Queue{Table: "public.events", Key: "k", Partitions: 1024}), "CREATE TRIGGER consumer_inserted")
	_, steps, _ = strings.Cut(steps, ";")
	db.exec(steps)
	for _, statement := range []string{"INSERT INTO public.events (name) VALUES ('Ada'), ('ada')", "UPDATE public.events SET name = 'Bob'"} {
		db.exec(statement)
		expect(t, one[bool](db, "SELECT bool_and(partition IS NOT DISTINCT FROM pgleases.partition_for(k, 1024)) FROM public.events"), true, statement)
	}
}

// The backfill reaches every ID that a sequence may have drawn.
func TestTableSQLBackfillsAllIDs(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("CREATE TABLE public.events (id bigint PRIMARY KEY, k text, partition int); INSERT INTO public.events SELECT id, id FROM unnest('{-9223372036854775807,-1,0,1,9223372036854775807}'::bigint[]) AS id")
	db.exec(backfillOf(stepsOf(consumer.Queue{Table: "public.events", Key: "k", Partitions: 8})))
	expect(t, one[int](db, "SELECT count(*)::int FROM public.events WHERE partition IS NULL"), 0, "rows left out")
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
	if text := consumer.TableSQL("orders", "", consumer.Queue{Key: "k"}); !strings.Contains(text, "CREATE TABLE <Queue.Table> (") {
		t.Errorf("a queue without a Table has\n%s", text)
	}
}
