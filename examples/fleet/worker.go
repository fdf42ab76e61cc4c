package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/examples/internal/show"
	"github.com/pgleases/pgleases/schedule"
)

const (
	// The fleet starts itself once more as a worker, with the worker's ID and the database in the
	// environment.
	envWorker = "PGLEASES_FLEET_WORKER"
	envURL    = "PGLEASES_FLEET_URL"

	ttl        = 2 * time.Second
	leaseName  = "jobs"
	partitions = 128 // also in the generated column below

	pace = 14 * time.Millisecond // of a job: 6,000 of them last through all events
	poll = time.Second           // of a partition without jobs

	schedules  = 40 // of each second, over all workers
	maxRunning = 2  // of their ticks at once in one worker
)

// A job belongs to a customer, and a customer to a partition. job_runs and ticks have what was done.
// They have no unique key, because a job or tick that runs twice must be seen, not prevented.
const tables = `
CREATE SCHEMA pgleases_example;
CREATE TABLE pgleases_example.jobs (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  text NOT NULL,
    partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 128)) STORED,
    done_at   timestamptz
);
CREATE INDEX jobs_pending ON pgleases_example.jobs (partition, id) WHERE done_at IS NULL;
CREATE TABLE pgleases_example.job_runs (
    job bigint NOT NULL, worker text NOT NULL, epoch bigint NOT NULL, ran_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE pgleases_example.ticks (
    name text NOT NULL, at timestamptz NOT NULL, worker text NOT NULL, ran_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`

// prepare creates the tables, with a number of jobs of a number of customers.
func prepare(ctx context.Context, pool *pgxpool.Pool, jobs, customers int) error {
	if err := schedule.Migrate(ctx, pool); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, tables, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `INSERT INTO pgleases_example.jobs (customer)
		SELECT 'customer-' || 1 + n % $2 FROM generate_series(0, $1 - 1) AS n`, jobs, customers)
	return err
}

// work is a worker process, which does jobs and runs schedules.
func work(id string) error {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	ctx, stop := show.Told()
	defer stop()

	pool, err := connect(ctx, os.Getenv(envURL))
	if err != nil {
		return err
	}
	defer pool.Close()
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return workAs(ctx, client, pool, id)
	}, pgleases.WithClientID(id), pgleases.WithTTL(ttl))
}

// workAs does jobs and runs schedules until ctx ends.
func workAs(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, id string) error {
	lease, err := client.Lease(ctx, leaseName, partitions)
	if err != nil {
		return err
	}
	s, err := scheduler(ctx, client, pool, id)
	if err != nil {
		return err
	}
	turn := make(chan struct{}, 1) // a worker does one job at a time
	jobs := func(ctx context.Context) error {
		return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
			for { // until the worker ends, or the partition must move
				select {
				case turn <- struct{}{}:
				case <-ctx.Done():
					return nil
				}
				did, err := doNext(p.Context(), pool, lease, p, id) // p.Context() ends only if the partition is lost
				<-turn
				if err != nil {
					return err // logged; Run calls again after a pause
				}
				if !did {
					_ = show.Pause(ctx, poll)
				}
			}
		})
	}
	ended := make(chan error, 2)
	ctx, end := context.WithCancel(ctx) // if one of the two fails, the other ends too
	defer end()
	for _, run := range []func(context.Context) error{jobs, s.Run} {
		go func() {
			err := run(ctx)
			if ctx.Err() != nil {
				err = nil // a signal has ended it, or Run reports why the client has ended
			}
			end()
			ended <- err
		}()
	}
	return errors.Join(<-ended, <-ended)
}

// doNext does the next job of a partition, and reports whether there was one.
func doNext(
	ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition, id string,
) (did bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := lease.Guard(ctx, tx, p); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `WITH job AS (
				UPDATE pgleases_example.jobs SET done_at = clock_timestamp()
				WHERE id = (SELECT id FROM pgleases_example.jobs WHERE partition = $1 AND done_at IS NULL ORDER BY id LIMIT 1) RETURNING id
			)
			INSERT INTO pgleases_example.job_runs (job, worker, epoch) SELECT id, $2, $3 FROM job`, p.Number, id, p.Epoch)
		did = tag.RowsAffected() > 0
		if did {
			time.Sleep(pace)
		}
		return err
	})
	return did, err
}

// scheduler writes a row for each tick of each second, in the transaction that also writes the
// tick's outcome.
func scheduler(
	ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, id string,
) (*schedule.Scheduler, error) {
	s, err := schedule.New(ctx, client, pool, "fleet", schedule.WithMaxRunning(maxRunning))
	if err != nil {
		return nil, err
	}
	tick := schedule.InTx(s, "tick", func(ctx context.Context, tx pgx.Tx, r schedule.Run[struct{}]) error {
		const insert = "INSERT INTO pgleases_example.ticks (name, at, worker) VALUES ($1, $2, $3)"
		_, err := tx.Exec(ctx, insert, r.Name, r.At, id)
		return err
	}, schedule.WithIdleTimeout(time.Second)) // a worker that is frozen in a tick delays the next owner by no more
	for n := range schedules {
		err := tick.Add(fmt.Sprintf("second/%d", n), struct{}{}, schedule.Every(time.Second),
			schedule.WithMissed(schedule.MissedAll), schedule.WithOverlap(schedule.OverlapBuffer))
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}
