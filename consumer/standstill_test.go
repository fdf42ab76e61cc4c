package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// Partitions with a backlog take turns, although the partitions after them have no rows.
func TestPartitionsTakeTurns(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for partition := range 3 {
		db.put(slices.Repeat(db.customers(partition, 1), 8)...)
	}
	w := db.held(consumer.Each(effect), consumer.WithBatch(1, 1), consumer.WithWorkers(1))
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(24)
	if most := one[int](db, "SELECT max(n - r)::int FROM (SELECT n, 3 * row_number() OVER (PARTITION BY customer ORDER BY n) AS r FROM public.effects) AS e"); most > 3 {
		t.Errorf("a row came %d rows later than in turns", most)
	}
}

// A row that cannot be moved to the dead letters blocks its key, and nothing else.
func TestDeadLetterThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec(`ALTER TABLE public.outbox ADD COLUMN more json NOT NULL DEFAULT '{}'`)
	of := db.alike(2)
	db.exec(`INSERT INTO public.outbox (customer, payload, more) VALUES ($1, '1', '"\u0000"')`, of[0]) // no jsonb has it
	db.put(of[1])
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Key == of[0] {
			return errors.New("it fails")
		}
		return effect(ctx, tx, row)
	}), consumer.WithAttempts(1), consumer.WithOnFailure(consumer.DeadLetter))
	contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left", "it fails", "not moved to the dead letters")
	expect(t, one[int64](db, "SELECT count(*) FROM public.effects"), 1, "rows handled behind it")
}

// Blocked rows of many keys, all due at once, do not make the look for rows slow.
func TestManyBlockedKeysThatAreDue(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT 'a' || i, '1' FROM generate_series(1, 100000) AS i WHERE pgleases.partition_for('a' || i, 8) = 3")
	db.block("true")
	db.exec("INSERT INTO public.outbox (customer, payload) VALUES ('another', '1')")
	w := newWorker(db, consumer.Each(effect)).run()
	testkit.Becomes(t, db.Pool, "the row of another partition is handled", int64(1), "SELECT count(*) FROM public.effects WHERE customer = 'another'")
	testkit.OK(t, w.end())
	expect(t, w.Stats().ProbeErrors, 0, "looks for rows that took too long")
}

// The begin after a crash does not read the backlog.
func TestBeginAfterACrashReadsFewRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, failing())
	for partition := 3; partition <= 4; partition++ {
		db.exec("INSERT INTO public.outbox (customer, payload) SELECT $1, '1' FROM generate_series(1, 50000)", db.customers(partition, 1)[0])
	}
	db.exec("INSERT INTO pgleases.consumer_partitions (consumer, partition, begun) VALUES ('orders', 3, 1)")
	db.exec("ANALYZE public.outbox")
	sql := strings.TrimSpace(w.CrashSQL())
	if blocks := testkit.BlocksRead(t, db.Pool, sql, "orders", 3, 0, 1, 1); blocks > 100 {
		t.Errorf("it reads %d blocks", blocks)
	}
}

// A statement that fails each time, for example because a column is gone, is repeated once a second.
func TestReadThatAlwaysFails(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(8, 8)
	w := newWorker(db, consumer.Each(effect))
	db.exec("ALTER TABLE public.outbox RENAME COLUMN payload TO other")
	began := time.Now()
	w.run()
	testkit.Until(t, "it has tried for a while", func() bool { return w.Stats().Probes > 50 })
	if n, most := w.Stats().Troubles, partitions*(10+int64(time.Since(began)/time.Second)); n > most {
		t.Errorf("it tried %d times, want at most %d", n, most)
	}
	db.exec("ALTER TABLE public.outbox RENAME COLUMN other TO payload")
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(8)
}
