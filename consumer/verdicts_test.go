package consumer_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// deciding returns a handler of each kind that does its work, except that decide may return what
// happens to a row. It is called with the row's place in its batch, and the rows before are done.
func (db *database) deciding(decide func(place int, row consumer.Row[Order]) error) map[string]consumer.Handler[Order] {
	first := func(rows []consumer.Row[Order]) (place int, err error) {
		for i, row := range rows {
			if err := decide(i, row); err != nil {
				return i, consumer.RowError(i, err)
			}
		}
		return len(rows), nil
	}
	return map[string]consumer.Handler[Order]{
		"Each": consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
			if err := decide(0, row); err != nil {
				return err
			}
			return effect(ctx, tx, row)
		}),
		"InTx": consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
			n, err := first(rows)
			return errors.Join(effects(ctx, tx, rows[:n]), err)
		}),
		"AtLeastOnce": consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
			n, err := first(rows)
			return errors.Join(db.published(ctx, rows[:n]), err)
		}),
	}
}

// forEachKind runs a test with a handler of each kind.
func forEachKind(t *testing.T, run func(t *testing.T, kind string)) {
	t.Parallel()
	for _, kind := range []string{"Each", "InTx", "AtLeastOnce"} {
		t.Run(kind, func(t *testing.T) { t.Parallel(); run(t, kind) })
	}
}

// A row that its handler discards has the end of its last attempt at once.
func TestDiscardedRowIsNotTriedAgain(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind string) {
		for policy, table := range map[consumer.OnFailure]string{
			consumer.OnFailureBlockKey:   "consumer_blocked WHERE next_at = 'infinity'",
			consumer.OnFailureDeadLetter: "consumer_dead_letters",
		} {
			db := newDatabase(t)
			db.insert(50, 50)
			h := db.deciding(func(_ int, row consumer.Row[Order]) error {
				if row.ID == 25 {
					return consumer.Discard(errors.New("422"))
				}
				return nil
			})[kind]
			w := newWorker(db, h, consumer.WithOnFailure(policy)).run()
			testkit.Becomes(t, db.Pool, "it has ended", "25 1 422", `
				SELECT coalesce(max(id || ' ' || attempts || ' ' || error), '') FROM pgleases.`+table)
			db.becomes("the others are handled", 49, "public.effects")
			testkit.OK(t, w.end())
			db.exact(49)
			expect(t, w.Stats().Failures, 1, "failures")
		}
	})
}

// A row that its handler snoozes waits without a failed attempt, its key waits, and others go on.
func TestSnoozedRowWaits(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind string) {
		db := newDatabase(t)
		db.insert(50, 20) // 5, 25 and 45 have one key
		var let atomic.Bool
		h := db.deciding(func(_ int, row consumer.Row[Order]) error {
			switch {
			case row.ID != 25:
			case !let.Load():
				return consumer.Snooze(time.Hour)
			case row.Attempt != 1:
				t.Errorf("attempt %d", row.Attempt)
			}
			return nil
		})[kind]
		w := newWorker(db, h).run()
		db.becomes("the others are handled", 48, "public.effects")
		row := one[string](db, "SELECT id || ' ' || attempts || ' ' || error FROM pgleases.consumer_blocked")
		expect(t, row, "25 0 snoozed for 1h0m0s", "the row that waits")
		waits := one[bool](db, `
			SELECT next_at - clock_timestamp() BETWEEN '30 min' AND '1 h' FROM pgleases.consumer_blocked`)
		expect(t, waits, true, "that it waits for an hour")
		expect(t, one[int](db, "SELECT blocked_keys FROM pgleases.consumers_status"), 0, "blocked keys in the status")
		expect(t, w.Stats().Failures, 0, "failures")
		expect(t, w.Stats().Snoozed, 1, "snoozed rows in Stats")
		let.Store(true)
		db.exec("UPDATE pgleases.consumer_blocked SET next_at = clock_timestamp()")
		db.empty("the hour has passed")
		testkit.OK(t, w.end())
		db.exact(50)
	})
}

// Without a RowError, smaller batches find the row that a handler discards.
func TestDiscardedRowIsFound(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(50, 50)
	w := newWorker(db, consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
		if slices.ContainsFunc(rows, func(row consumer.Row[Order]) bool { return row.ID == 25 }) {
			return consumer.Discard(errors.New("422"))
		}
		return effects(ctx, tx, rows)
	}), consumer.WithOnFailure(consumer.OnFailureDeadLetter)).run()
	db.empty("all is handled or dead")
	testkit.OK(t, w.end())
	db.exact(49)
	letter := one[string](db, "SELECT id || ' ' || attempts FROM pgleases.consumer_dead_letters")
	expect(t, letter, "25 1", "the dead letter")
}

// If something is away for a row of a batch, no row is at fault, and the rows before it are done.
func TestUnavailableRowRepeatsNoOthers(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind string) {
		db := newDatabase(t)
		db.insert(50, 1)
		var met atomic.Bool
		h := db.deciding(func(place int, row consumer.Row[Order]) error {
			switch {
			case row.ID != 25:
			case met.CompareAndSwap(false, true):
				return consumer.Unavailable(errors.New("no broker"))
			case place != 0 || db.count("public.outbox WHERE id < 25") != 0:
				t.Errorf("the rows before were handled again, place %d", place)
			}
			return nil
		})[kind]
		w := newWorker(db, h, consumer.WithBatch(50, 1<<20)).run()
		db.empty("all is handled")
		testkit.OK(t, w.end())
		db.exact(50)
		expect(t, met.Load(), true, "that it was away")
		expect(t, w.Stats().Failures, 0, "failures")
		expect(t, w.Stats().Pauses, 1, "pauses")
	})
}

// A handler that names the row and returns the cause of its context says once that it took too long.
func TestTimeoutOfARowIsNamedOnce(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 1)
	w := newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, _ []consumer.Row[Order]) error {
		<-ctx.Done()
		return consumer.RowError(0, context.Cause(ctx))
	}), consumer.WithTimeout(50*time.Millisecond), attempts(1))
	contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left")
	got := one[string](db, "SELECT error FROM pgleases.consumer_blocked")
	expect(t, got, consumer.ErrTimeout.Error(), "the row's error")
}

// The decision of a handler counts after its timeout too, and its partition is slow.
func TestVerdictAfterTheTimeoutCounts(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put(db.customers(1, 1)[0], db.customers(2, 1)[0])
	var calls atomic.Int64
	w := newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
		switch rows[0].ID {
		case 1:
			<-ctx.Done()
			return consumer.RowError(0, consumer.Discard(context.Cause(ctx)))
		case 2:
			switch calls.Add(1) {
			case 1:
				<-ctx.Done()
				return consumer.RowError(0, consumer.Unavailable(context.Cause(ctx)))
			case 2:
				expect(t, rows[0].Attempt, 1, "the attempt after something was away")
			}
		}
		return db.published(context.WithoutCancel(ctx), rows) // a busy machine may need longer than the timeout
	}), consumer.WithTimeout(time.Second), consumer.WithBatch(1, 1),
		consumer.WithOnFailure(consumer.OnFailureDeadLetter)).run()
	db.empty("all is handled or dead")
	testkit.OK(t, w.end())
	letter := one[string](db, "SELECT id || ' ' || attempts || ' ' || error FROM pgleases.consumer_dead_letters")
	expect(t, letter, "1 1 consumer: the batch took longer than its timeout", "the dead letter")
	expect(t, one[int64](db, "SELECT count(DISTINCT id) FROM public.effects"), 1, "rows with effects")
}
