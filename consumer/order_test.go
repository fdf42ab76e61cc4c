package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// alike returns n customers whose rows are in partition 3.
func (db *database) alike(n int) []string { return db.customers(3, n) }

// customers returns n customers of a partition.
func (db *database) customers(partition, n int) []string {
	db.t.Helper()
	return one[[]string](db, `
		SELECT array_agg(c) FROM (
			SELECT 'a' || i AS c FROM generate_series(1, 10000) AS i
			WHERE pgleases.partition_for('a' || i, 8) = $1 LIMIT $2
		) AS c`, partition, n)
}

func (db *database) put(customers ...string) {
	db.t.Helper()
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT c, '1' FROM unnest($1::text[]) AS c", customers)
}

// gate is effect, except that it waits at the rows of a customer.
func gate(customer string) (h consumer.Handler[Order], in, out chan struct{}) {
	in, out = make(chan struct{}), make(chan struct{})
	return consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Key == customer {
			in <- struct{}{}
			<-out
		}
		return effect(ctx, tx, row)
	}), in, out
}

// A row whose transaction commits after higher IDs were handled is not overtaken by the next row of
// its key, whose writer waited for that commit.
func TestLateCommitIsNotOvertaken(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	of := db.alike(3)
	late := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(late.Exec(t.Context(), "INSERT INTO public.outbox (customer, payload) VALUES ($1, '1')", of[0]))(t)
	h, in, out := gate(of[2])
	w := newWorker(db, h, consumer.WithBatch(1, 1), consumer.WithMaxRunning(1)).run()
	db.put(of[1], of[1], of[1])
	db.empty("the others are handled")
	db.put(of[2])
	testkit.Receive(t, "a row is in hand", in)
	testkit.OK(t, late.Commit(t.Context()))
	db.put(of[0])
	close(out)
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(6)
}

// When a process that seemed to have crashed takes that back, the rows that were suspect are
// handled before those behind them, which the next owner has passed already.
func TestSuspicionTakenBackKeepsTheOrder(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	of := db.alike(3)
	db.put(of[0], of[1], of[2], of[0])
	db.exec("INSERT INTO pgleases.consumer_owners (consumer, partition, begun, crashed) VALUES ('orders', 3, 0, 0)")
	db.exec(`
		INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at, crashed)
		SELECT 'orders', 3, id, customer, xmin, 0, now() + interval '2 seconds', 0 FROM public.outbox WHERE id = 1`)
	h, in, out := gate(of[2])
	w := newWorker(db, h, consumer.WithBatch(1, 1), consumer.WithMaxRunning(1)).run()
	testkit.Receive(t, "a row is in hand", in)
	db.exec("SELECT pgleases.consumer_end('orders', '{3}', '{0}')")
	close(out)
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(4)
}

// If the answer to the commit of a retried row is lost, the rows of its key that waited are not
// overtaken. The same holds for a row that moves to the dead letters.
func TestLostCommitOfARetryKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"retry":       `DELETE FROM "pgleases".consumer_blocked`,
		"dead letter": `INSERT INTO "pgleases".consumer_dead_letters`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			of := db.alike(2)
			db.put(of[0], of[0], of[1])
			opts := []consumer.Option{
				consumer.WithBatch(1, 1), consumer.WithMaxRunning(1), backoff(time.Hour, time.Hour),
			}
			if name == "dead letter" {
				opts = append(opts, attempts(2), consumer.WithOnFailure(consumer.OnFailureDeadLetter))
			}
			w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				switch {
				case row.ID == 1 && row.Attempt == 1:
					return errors.New("not yet")
				case row.ID == 1 && name == "dead letter":
					return errors.New("never")
				}
				return effect(ctx, tx, row)
			}), opts...)
			w.SweepEvery(time.Hour) // what is behind is found without a sweep
			w.run()
			db.becomes("others have passed", 2, "public.outbox")
			db.put(of[0])
			if name == "retry" {
				w.wire.Lose(1, text, true)
			} else {
				w.wire.LoseAfter(text, "commit")
			}
			db.exec("UPDATE pgleases.consumer_blocked SET next_at = now()")
			db.empty("all is handled")
			testkit.OK(t, w.end())
			expect(t, w.wire.Left(), 0, "answers to be lost")
			want := int64(4)
			if name == "dead letter" {
				want = 3
			}
			db.exact(want)
		})
	}
}

// A blocked row that the application deletes frees its key without a row that overtakes another,
// although the owner has passed them.
func TestDeletedRowKeepsTheOrder(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	of := db.alike(3)
	db.put(of[0], of[0], of[1], of[2], of[0])
	w := newWorker(db, failing(1), attempts(1), consumer.WithBatch(1, 1), consumer.WithMaxRunning(1))
	w.SweepEvery(20 * time.Millisecond)
	w.run()
	db.becomes("others have passed", 3, "public.outbox")
	db.exec("DELETE FROM public.outbox WHERE id = 1")
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(4)
}

// IDs may be negative or 0.
func TestLowIDs(t *testing.T) {
	t.Parallel()
	for _, watched := range []bool{false, true} {
		t.Run(fmt.Sprint("watched ", watched), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.exec(`
				INSERT INTO public.outbox (id, customer, payload) OVERRIDING SYSTEM VALUE SELECT i, 'c' || i % 3, '1'
				FROM unnest('{-9223372036854775807,-2,-1,0,1,9223372036854775807}'::bigint[]) AS i`)
			if watched {
				db.exec(`
					INSERT INTO pgleases.consumer_owners (consumer, partition, begun)
					SELECT 'orders', p, 0 FROM generate_series(0, 7) AS p`)
			}
			w := newWorker(db, consumer.Each(effect), consumer.WithMaxRunning(1))
			testkit.OK(t, w.RunUntilEmpty(t.Context()))
			db.exact(6)
		})
	}
}

// Rows that were read and not handled, because one before them failed, do not wait for rows of
// later partitions.
func TestRowsBehindAFailedOneComeNext(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	of := func(partition int) string { return db.customers(partition, 1)[0] }
	db.exec("INSERT INTO public.outbox (customer, payload) VALUES ($1, '1'), ($2, '2'), ($3, '3')", of(0), of(1), of(2))
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT $1, '4' FROM generate_series(1, 100)", of(3))
	w := db.held(consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
		if i := slices.IndexFunc(rows, func(r consumer.Row[Order]) bool { return r.ID == 2 }); i >= 0 {
			return errors.Join(db.published(ctx, rows[:i]), consumer.RowError(i, errors.New("no such order")))
		}
		return db.published(ctx, rows)
	}), consumer.WithMaxRunning(1), consumer.WithBatch(10, 1<<20), attempts(1))
	db.becomes("one row is left", 1, "public.outbox")
	testkit.OK(t, w.end())
	// the batch that waited for all partitions may be of the last, and its turn may come before
	// theirs
	n := db.count("public.effects WHERE id > 3 AND n < (SELECT n FROM public.effects WHERE id = 3)")
	if n > 20 {
		t.Errorf("%d rows of the last partition were handled before it", n)
	}
}

// A blocked row that gets another key is handled in the order of that.
func TestBlockedRowThatGetsAnotherKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	of := db.alike(2)
	db.put(of[0], of[1], of[0])
	db.block("id = 3")
	db.exec("UPDATE public.outbox SET customer = $1 WHERE id = 3", of[1]) // behind row 2
	w := newWorker(db, consumer.Each(effect), consumer.WithBatch(1, 1), consumer.WithMaxRunning(1)).run()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(3)
}

// Rows before one that is locked for long do not wait for it: each broken off batch is repeated
// with half as many rows.
func TestRowsBeforeALockedOne(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put(db.alike(4)...)
	lock := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(lock.Exec(t.Context(), "SELECT FROM public.outbox WHERE id = 2 FOR UPDATE"))(t)
	w := newWorker(db, consumer.Each(effect), consumer.WithBatch(4, 1<<20)).run()
	db.becomes("the row before is handled", 3, "public.outbox")
	testkit.OK(t, lock.Commit(t.Context()))
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(4)
}
