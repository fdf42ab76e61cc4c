//go:build unix

package faults

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/schedule"
)

// OrdersTable is the table that the application writes in the transactions that enqueue jobs. Each
// row is an order: what should run. The orders of one job are in the order in which they took the
// job. The column job is null if the unique key belonged to another job, which was left as it is.
const OrdersTable = `CREATE TABLE orders (
    n bigint GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    kind text NOT NULL,
    job bigint
)`

// The first word of an order's name says what should happen to its job.
const (
	Plain   = "plain"
	Long    = "long"    // it takes a while
	Flaky   = "flaky"   // its first attempt fails
	Wrong   = "wrong"   // it is discarded
	Snoozed = "snoozed" // it is snoozed until SnoozedFor after its time
)

// SnoozedFor is the time from the due time of a snoozed order to its run.
const SnoozedFor = 700 * time.Millisecond

// What returns what should happen to an order's job.
func What(order string) string {
	what, _, _ := strings.Cut(order, "-")
	return what
}

var errTaken = errors.New("faults: rolled back")

// An application enqueues jobs, and operates jobs and schedules as operators do.
type application struct {
	scheduler *schedule.Scheduler
	schedules []Schedule
	kinds     map[string]*schedule.Kind[string]
	pool      *pgxpool.Pool
	last      int64 // the last job that it enqueued
}

// work runs until ctx ends. An operation that returns an error was rolled back, or its answer was
// lost. The content of the database decides.
func (a *application) work(ctx context.Context) {
	for pause(ctx, 500*time.Millisecond+rand.N(2*time.Second)) {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		name := a.schedules[rand.N(len(a.schedules))].Name
		switch rand.N(12) {
		case 0:
			_, _ = a.scheduler.Trigger(limited, name)
		case 1:
			if s, err := a.scheduler.Get(limited, name); err == nil {
				_, _ = a.scheduler.Backfill(limited, name, s.Cursor.Add(-2*time.Second), s.Cursor)
			}
		case 2:
			_ = a.scheduler.Cancel(limited, a.last)
		default:
			_ = pgx.BeginFunc(limited, a.pool, func(tx pgx.Tx) error { return a.order(limited, tx) })
		}
		cancel()
	}
}

// order enqueues a job for a new order.
func (a *application) order(ctx context.Context, tx pgx.Tx) error {
	whats := []string{Plain, Long, Flaky, Wrong, Snoozed}
	kind, opts := ordered, []schedule.JobOption{schedule.WithPriority(1 + rand.N(3))}
	switch rand.N(5) {
	case 0:
		kind = mailed
	case 1:
		kind, whats = paid, []string{Plain, Long, Wrong}
	case 2, 3:
		opts = append(opts, schedule.WithUnique(fmt.Sprintf("unique-%d", rand.N(3)), schedule.OnConflict(rand.N(3))))
	}
	if rand.N(4) == 0 {
		opts = append(opts, schedule.WithDelay(rand.N(2*time.Second)))
	}
	name := whats[rand.N(len(whats))] + "-" + crand.Text()
	id, err := putOrder(ctx, tx, &a.kinds[kind].Jobs, name, kind, opts...)
	if err != nil {
		return err
	}
	a.last = id
	if rand.N(5) == 0 {
		return errTaken
	}
	return nil
}

// insertOrder has a job only if that was enqueued for this order.
const insertOrder = `
	INSERT INTO orders (name, kind, job) VALUES ($1, $2,
		(SELECT j.id FROM pgleases.jobs AS j WHERE j.id = $3 AND j.args = to_jsonb($1::text)))`

// putOrder enqueues a job, and records the order for it while the job is locked.
func putOrder(
	ctx context.Context, tx pgx.Tx, of *schedule.Jobs[string], name, kind string, opts ...schedule.JobOption,
) (int64, error) {
	id, err := of.EnqueueTx(ctx, tx, name, opts...)
	if err != nil && !errors.Is(err, schedule.ErrExists) {
		return 0, err
	}
	_, err = tx.Exec(ctx, insertOrder, name, kind, id)
	return id, err
}

// Mail enqueues n orders that run at least once, in one transaction.
func Mail(ctx context.Context, pool *pgxpool.Pool, n int) error {
	enqueuer, err := schedule.NewEnqueuer(pool, group)
	if err != nil {
		return err
	}
	jobs := schedule.JobsOf[string](enqueuer, mailed)
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for range n {
			if _, err := putOrder(ctx, tx, jobs, Plain+"-"+crand.Text(), mailed); err != nil {
				return err
			}
		}
		return nil
	})
}
