package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// kinds are the three kinds of handlers.
func kinds(db *database) map[string]consumer.Handler[Order] {
	return map[string]consumer.Handler[Order]{
		"Each":        consumer.Each(effect),
		"InTx":        consumer.InTx(effects),
		"AtLeastOnce": consumer.AtLeastOnce(db.published),
	}
}

func TestEachRowIsHandledOnceInOrder(t *testing.T) {
	t.Parallel()
	for kind := range kinds(nil) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.insert(1000, 50)
			a := newWorker(db, kinds(db)[kind])
			b := newWorker(db, kinds(db)[kind])
			a.run()
			b.run()
			db.empty("all is handled")
			db.insert(100, 50)
			db.empty("all is handled again")
			testkit.OK(t, a.end())
			testkit.OK(t, b.end())
			db.exact(1100)
			left := db.count("pgleases.consumer_owners WHERE ended IS DISTINCT FROM begun")
			expect(t, left, 0, "partitions whose last owner did not end")
		})
	}
}

func TestRunUntilEmpty(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(effect))
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.insert(300, 7)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.exact(300)
	expect(t, db.count("public.outbox"), 0, "rows that are left")
	expect(t, w.Stats().Rows, 300, "rows in Stats")
	failing := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.ID == 310 {
			return errors.New("no such order")
		}
		return effect(ctx, tx, row)
	}))
	db.insert(30, 7)
	err := failing.RunUntilEmpty(t.Context())
	contains(t, err, "only rows of blocked keys are left", "the first: ID 310", "no such order")
	if !errors.Is(err, consumer.ErrBlocked) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	db.insert(1, 1)
	away := newWorker(db, consumer.Each(func(context.Context, pgx.Tx, consumer.Row[Order]) error {
		cancel()
		return consumer.Unavailable(errors.New("no broker"))
	}))
	contains(t, away.RunUntilEmpty(ctx), "canceled: rows are left")
	db.exec("DELETE FROM public.outbox WHERE id > 330")
	db.ordered()
	const failed = "(SELECT customer FROM public.outbox WHERE id = 310)"
	expect(t, db.count("public.outbox WHERE customer <> "+failed), 0, "rows of other customers that are left")
	overtook := db.count("public.effects WHERE id > 310 AND customer = " + failed)
	expect(t, overtook, 0, "rows that overtook the one that failed")
}

// A row that fails is handled again after a while, and its key waits.
func TestFailingRowBlocksItsKeyOnly(t *testing.T) {
	t.Parallel()
	for kind := range kinds(nil) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.insert(400, 40)
			var fails atomic.Int64
			poison := func(row consumer.Row[Order]) error {
				if row.ID == 100 && fails.Add(1) <= 3 {
					return errors.New("not yet")
				}
				return nil
			}
			batch := func(rows []consumer.Row[Order], do func([]consumer.Row[Order]) error) error {
				for _, row := range rows {
					if err := poison(row); err != nil {
						return err
					}
				}
				return do(rows)
			}
			h := map[string]consumer.Handler[Order]{
				"Each": consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
					return errors.Join(poison(row), effect(ctx, tx, row))
				}),
				"InTx": consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
					return batch(rows, func(rows []consumer.Row[Order]) error { return effects(ctx, tx, rows) })
				}),
				"AtLeastOnce": consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
					return batch(rows, func(rows []consumer.Row[Order]) error { return db.published(ctx, rows) })
				}),
			}[kind]
			w := newWorker(db, h, backoff(1e6, 1e7)).run()
			db.empty("all is handled")
			testkit.OK(t, w.end())
			db.exact(400)
			expect(t, db.count("pgleases.consumer_blocked"), 0, "rows that block their keys")
		})
	}
}
