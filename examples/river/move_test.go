package main

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/schedule"
)

// moveInvoices moves up to 1,000 jobs that wait in River's table, and returns how many. A job that
// River works on stays there.
func moveInvoices(ctx context.Context, pool *pgxpool.Pool, invoices *schedule.Jobs[Invoice]) (moved int, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `WITH gone AS (
				DELETE FROM river_job WHERE id IN (
					SELECT id FROM river_job WHERE kind = $1 AND state IN ('available', 'retryable', 'scheduled')
					ORDER BY scheduled_at, id LIMIT 1000 FOR UPDATE SKIP LOCKED)
				RETURNING *)
			SELECT args, scheduled_at FROM gone ORDER BY scheduled_at, id`, Invoice{}.Kind())
		type waiting struct {
			Invoice Invoice
			At      time.Time
		}
		jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[waiting])
		if err != nil {
			return err
		}
		for _, job := range jobs {
			_, err = invoices.EnqueueTx(ctx, tx, job.Invoice, schedule.WithTime(job.At))
			if err != nil {
				return err
			}
		}
		moved = len(jobs)
		return nil
	})
	return moved, err
}

func TestWaitingJobsOfRiverAreMoved(t *testing.T) {
	ctx := t.Context()
	pool, err := pgtest.NewPool(ctx, pgtest.Database(t))
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	defer pool.Close()
	check(schedule.Migrate(ctx, pool))
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
	queue, err := river.NewClient(driver, &river.Config{})
	check(err)
	later := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	for customer, opts := range map[string]*river.InsertOpts{"Ada": nil, "Grace": {ScheduledAt: later}, "Linus": nil} {
		_, err = queue.Insert(ctx, Invoice{Customer: customer}, opts)
		check(err)
	}
	_, err = pool.Exec(ctx, "UPDATE river_job SET state = 'running' WHERE args ->> 'customer' = 'Linus'")
	check(err)

	enqueuer, err := schedule.NewEnqueuer(pool, "billing")
	check(err)
	moved, err := moveInvoices(ctx, pool, schedule.JobsOf[Invoice](enqueuer, "invoice"))
	if err != nil || moved != 2 {
		t.Errorf("moved %d jobs, %v", moved, err)
	}
	var jobs, left string
	check(pool.QueryRow(ctx, `
		SELECT string_agg(concat(args ->> 'customer', ' ', date_part('year', at) = 2100), ', ' ORDER BY at)
		FROM pgleases.jobs`).Scan(&jobs))
	check(pool.QueryRow(ctx, `
		SELECT string_agg(args ->> 'customer', ' ') FROM river_job WHERE finalized_at IS NULL`).Scan(&left))
	if jobs != "Ada f, Grace t" || left != "Linus" {
		t.Errorf("it moved %s, and left %s", jobs, left)
	}
}
