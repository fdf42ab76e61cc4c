package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// many is a queue with more partitions than outbox has.
var many = consumer.Queue{Table: "public.many", Key: "customer", Partitions: 256}

// createMany makes the queue many.
func (db *database) createMany() {
	db.t.Helper()
	db.exec(consumer.TableSQL("orders", "", many) + "GRANT SELECT, INSERT, UPDATE, DELETE ON public.many TO PUBLIC")
}

// insertMany makes the queue many, with a row of each of so many customers.
func (db *database) insertMany(customers int) {
	db.t.Helper()
	db.createMany()
	db.exec(`
		INSERT INTO public.many (customer, payload)
		SELECT 'c' || i, '1' FROM generate_series(1, $1::int) AS i`, customers)
}

// Rows that the application keeps locked in a hundred partitions delay those, and no others.
func TestLockedRowsDelayTheirPartitionsOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insertMany(150)
	locked := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(locked.Exec(t.Context(), "SELECT FROM public.many FOR UPDATE"))(t)
	w := newWorkerOf(db, many, consumer.Each(effect), consumer.WithMaxRunning(2)).run()
	slow := one[int64](db, "SELECT count(DISTINCT partition) FROM public.many")
	testkit.Until(t, "all partitions with locked rows are known", func() bool { return w.Stats().SlowByLock == slow })
	// of partitions without a locked row
	db.exec(`
		INSERT INTO public.many (customer, payload)
		SELECT c, '2' FROM (SELECT 'd' || i AS c FROM generate_series(1, 1000) AS i) AS d
		WHERE pgleases.partition_for(c, 256) NOT IN (SELECT partition FROM public.many)`)
	db.becomes("the free rows are handled", 0, "public.many WHERE payload = '2'")
	expect(t, w.Stats().SlowByLock, slow, "partitions that wait for a lock")
	testkit.OK(t, locked.Rollback(t.Context()))
	db.becomes("all is handled", 0, "public.many")
	testkit.Until(t, "no partition is slow", func() bool { return w.Stats().SlowByLock == 0 })
	testkit.OK(t, w.end())
	db.ordered()
}

// A handler that does not get a lock of its own delays its partition only. No attempt is counted.
func TestLockOfAHandlerDelaysItsPartitionOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.exec(`
		CREATE TABLE public.accounts (customer text PRIMARY KEY);
		GRANT SELECT, UPDATE ON public.accounts TO PUBLIC;
		INSERT INTO public.accounts SELECT 'c' || i FROM generate_series(0, 39) AS i`)
	locked := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(locked.Exec(t.Context(), "SELECT FROM public.accounts WHERE customer = 'c0' FOR UPDATE"))(t)
	db.insert(40, 40)
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		const lock = "SELECT FROM public.accounts WHERE customer = $1 FOR UPDATE NOWAIT"
		if _, err := tx.Exec(ctx, lock, row.Key); err != nil {
			return err
		}
		return effect(ctx, tx, row)
	}), consumer.WithMaxRunning(1)).run()
	const others = "public.outbox WHERE partition <> pgleases.partition_for('c0', 8)"
	db.becomes("the other partitions are empty", 0, others)
	testkit.Until(t, "its partition waits for a lock", func() bool { return w.Stats().SlowByLock == 1 })
	expect(t, db.count("pgleases.consumer_blocked"), 0, "rows that were charged")
	testkit.OK(t, locked.Rollback(t.Context()))
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(40)
}

// Receivers that hang hold half of the workers at most, once each has taken too long.
func TestHungReceiversLeaveWorkers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for name, batch := range map[string]int{"single rows": 1, "batches": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			var hanging []string
			for partition := range 3 {
				hanging = append(hanging, db.customers(partition, 1)...)
			}
			db.put(slices.Repeat(hanging, 3)...)
			var mu sync.Mutex
			timedOut, now, most := make(map[string]bool), 0, 0
			hangs := func(ctx context.Context, key string) error {
				mu.Lock()
				if now++; len(timedOut) == len(hanging) {
					most = max(most, now)
				}
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				now--
				timedOut[key] = true
				return context.Cause(ctx)
			}
			w := newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
				for _, row := range rows {
					if slices.Contains(hanging, row.Key) {
						return hangs(ctx, row.Key)
					}
				}
				return db.published(ctx, rows)
			}), consumer.WithMaxRunning(2), consumer.WithTimeout(time.Second), consumer.WithBatch(batch, 1<<20),
				backoff(time.Millisecond, 10*time.Millisecond)).run()
			testkit.Until(t, "each has taken too long", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(timedOut) == len(hanging)
			})
			for range 5 {
				db.put(db.customers(7, 1)...)
				db.becomes("a healthy row is handled", 0, "public.outbox WHERE partition = 7")
			}
			testkit.Until(t, "a key is charged", func() bool { return w.Stats().Failures > 0 })
			testkit.OK(t, w.end())
			if most > 1 {
				t.Errorf("%d of 2 workers hung", most)
			}
			db.ordered()
		})
	}
}

// The row that Failed names under a timeout is charged at once, and handled once more only when
// it is due.
func TestFailedUnderATimeoutIsChargedAtOnce(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.put(db.customers(0, 4)...)
	var hung atomic.Int64
	w := newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
		untimed := context.WithoutCancel(ctx) // a busy machine may need longer than the timeout
		for i, row := range rows {
			if row.ID == 3 {
				hung.Add(1)
				<-ctx.Done()
				return consumer.RowError(i, errors.Join(ctx.Err(), db.published(untimed, rows[:i])))
			}
		}
		return db.published(untimed, rows)
	}), consumer.WithTimeout(200*time.Millisecond), attempts(1))
	contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left", "longer than its timeout")
	expect(t, hung.Load(), 1, "calls that hung")
	expect(t, one[int64](db, "SELECT count(DISTINCT id) FROM public.effects"), 3, "rows with effects")
}

// If the server has vanished during a statement of the handler, and the connection does not say so,
// that is found out long before the timeout, and is no attempt.
func TestVanishedServerIsNoAttempt(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	db.insert(20, 10)
	var calls atomic.Int64
	var w *worker
	w = newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.ID == 5 && calls.Add(1) == 1 {
			pid := tx.Conn().PgConn().PID()
			w.wire.Mute("the statement that hangs")
			go func() {
				_, _ = db.Exec(context.WithoutCancel(ctx), "SELECT pg_terminate_backend($1)", int(pid))
			}()
			if _, err := tx.Exec(ctx, "SELECT /* the statement that hangs */"); err != nil {
				return fmt.Errorf("row 5: %w", err)
			}
			return errors.New("it was answered")
		}
		return effect(ctx, tx, row)
	}), attempts(1), consumer.WithTimeout(time.Hour))
	w.LookEvery(time.Second) // a look has as long, also on a busy machine
	w.run()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(20)
	expect(t, w.Stats().Failures, 0, "failures")
	expect(t, w.Stats().SlowByConnection, 0, "partitions that are slow in the end")
	expect(t, one[int](db, "SELECT max(attempt) FROM public.effects"), 1, "attempts")
}

// If the server falls silent before the answer to a commit, the batch waits until the client has
// connected again, and not for its timeout.
func TestSilentCommitEndsWhenTheClientIsBack(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	db.insert(1, 1)
	var calls atomic.Int64
	var w *worker
	w = newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		err := effect(ctx, tx, row)
		if calls.Add(1) == 1 {
			w.wire.Silence()
		}
		return err
	}), attempts(1), consumer.WithTimeout(time.Hour), consumer.WithIdleTimeout(time.Second))
	w.run()
	db.empty("the row is handled")
	testkit.OK(t, w.end())
	w.wire.Cut() // otherwise the pool's end waits 15 s for the silent ones
	db.exact(1)
	expect(t, w.Stats().Failures, 0, "failures")
}
