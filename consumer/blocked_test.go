package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// What a poll reads to find blocked rows that are due does not grow with those that are not, nor much
// with those that are, although its plan was made while no row was blocked.
func TestPollReadsFewBlockedRows(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t) // see BlocksRead
	w := newWorker(db, consumer.Each(effect))
	db.exec("ALTER TABLE pgleases.consumer_blocked SET (autovacuum_enabled = false)") // it would have the plan made anew
	tx := testkit.Must(db.Begin(t.Context()))(t)
	const due = "EXECUTE due ('orders', '{0,1,2,3,4,5,6,7}')"
	for _, statement := range []string{w.OursSQL(), "PREPARE due (text, int[]) AS " + w.DueSQL(), due} {
		testkit.Must(tx.Exec(t.Context(), statement))(t)
	}
	expectFew := func(what string, most int) {
		t.Helper()
		n := testkit.BlocksRead(t, tx, due)
		t.Logf("%s: %d blocks", what, n)
		if n > most {
			t.Errorf("%s: %d blocks are read, want at most %d", what, n, most)
		}
	}
	db.insert(20_000, 20_000)
	db.exec(`INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
		SELECT 'orders', partition, id, customer, xmin::text, 1, 'infinity' FROM public.outbox`)
	expectFew("none is due", 20)
	db.exec("UPDATE pgleases.consumer_blocked SET next_at = '2020-01-01', asked = id = 70 WHERE id <= 80")
	expectFew("80 are due", 1500)
	db.exec("UPDATE pgleases.consumer_blocked SET next_at = '2020-01-01' WHERE id > 80")
	expectFew("all are due", 2000)
	db.exec("ANALYZE pgleases.consumer_blocked")
	expectFew("all are due, by a plan for them", 2000)
	testkit.OK(t, tx.Rollback(t.Context()))
}

// A key that is too long for an index is blocked as any other, and its next row waits.
func TestLongKeyIsBlocked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	long := one[string](db, "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) AS i") // 6,400 bytes
	db.put(long, "other", long)
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Key == long {
			return errors.New("it fails")
		}
		return effect(ctx, tx, row)
	}), attempts(1))
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	contains(t, w.RunUntilEmpty(ctx), "only rows of blocked keys are left")
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.consumer_blocked WHERE id = 1 AND attempts = 1"), 1, "rows that block it")
	expect(t, one[int64](db, "SELECT count(*) FROM public.effects"), 1, "rows of the other key handled")
}
