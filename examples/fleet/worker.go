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
	"github.com/pgleases/pgleases/examples/internal/jobs"
	"github.com/pgleases/pgleases/examples/internal/show"
	"github.com/pgleases/pgleases/schedule"
)

const (
	// The fleet starts itself once more as a worker, with the worker's ID and the database in the
	// environment.
	envWorker = "PGLEASES_FLEET_WORKER"
	envURL    = "PGLEASES_FLEET_URL"

	// pace is how long a worker takes for a job, at least leastWork of it within the transaction. It
	// makes the jobs last through all events, however fast the machine.
	pace      = 16 * time.Millisecond
	leastWork = 2 * time.Millisecond

	schedules  = 40 // of each second, over all workers
	maxRunning = 2  // of their ticks at once in one worker
)

// showTables have the refusals of Guard, to be counted after their worker was killed, and what the
// ticks of the schedules write. There is no unique key, because a tick that runs twice must be seen,
// not prevented.
const showTables = `
CREATE TABLE pgleases_example.refusals (
    worker     text NOT NULL,
    partition  int NOT NULL,
    epoch      bigint NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE pgleases_example.ticks (
    name text NOT NULL, at timestamptz NOT NULL,
    worker text NOT NULL, ran_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`

// work is a worker process: jobs that take a set time, and schedules as in examples/cron.
func work(id string, ttl time.Duration) (err error) {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	ctx, stop := show.Told()
	defer stop()

	pool, err := connect(ctx, os.Getenv(envURL))
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool, pgleases.WithClientID(id), pgleases.WithTTL(ttl))
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()
	lease, err := client.Lease(ctx, jobs.Lease, jobs.Partitions)
	if err != nil {
		return err
	}
	s, err := scheduler(ctx, client, pool, id)
	if err != nil {
		return err
	}
	var next time.Time
	worker := jobs.Worker{
		Pool: pool, Client: client, Lease: lease,
		Do: func(context.Context, pgx.Tx, jobs.Job) error {
			now := time.Now()
			if next = next.Add(pace); next.Before(now.Add(leastWork)) {
				next = now.Add(leastWork)
			}
			time.Sleep(next.Sub(now))
			return nil
		},
		Refused: func(p pgleases.Partition) {
			_, err := pool.Exec(context.Background(),
				"INSERT INTO pgleases_example.refusals (worker, partition, epoch) VALUES ($1, $2, $3)", id, p.Number, p.Epoch)
			if err != nil {
				slog.Error("fleet: a refusal will not be counted", "error", err)
			}
		},
	}
	ended := make(chan error, 2)
	ctx, end := context.WithCancel(ctx) // if one of the two fails, the other ends too
	defer end()
	for _, run := range []func(context.Context) error{worker.Run, s.Run} {
		go func() {
			err := run(ctx)
			if ctx.Err() != nil {
				err = nil // a signal has ended it
			}
			end()
			ended <- err
		}()
	}
	return errors.Join(<-ended, <-ended)
}

// scheduler writes a row for each tick of each second, in the transaction that also writes the
// tick's outcome.
func scheduler(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, id string) (*schedule.Scheduler, error) {
	s, err := schedule.New(ctx, client, pool, "fleet", schedule.WithMaxRunning(maxRunning))
	if err != nil {
		return nil, err
	}
	tick := schedule.InTx(s, "tick", func(ctx context.Context, tx pgx.Tx, r schedule.Run[struct{}]) error {
		_, err := tx.Exec(ctx, "INSERT INTO pgleases_example.ticks (name, at, worker) VALUES ($1, $2, $3)", r.Name, r.At, id)
		return err
	}, schedule.WithIdleTimeout(time.Second)) // a worker that is frozen in a tick delays the next owner by no more
	for n := range schedules {
		if err := tick.Add(fmt.Sprintf("second/%d", n), struct{}{}, schedule.Every(time.Second), schedule.WithMissed(schedule.MissedAll), schedule.WithOverlap(schedule.OverlapBuffer)); err != nil {
			return nil, err
		}
	}
	return s, nil
}
