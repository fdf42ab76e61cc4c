package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/examples/internal/jobs"
	"github.com/pgleases/pgleases/examples/internal/show"
)

const (
	// The fleet starts itself once more as a worker, with the worker's ID and the database in the environment.
	envWorker = "PGLEASES_FLEET_WORKER"
	envURL    = "PGLEASES_FLEET_URL"

	// pace is how long a worker takes for a job, at least leastWork of it within the transaction. It makes 20,000 jobs
	// last through all events, however fast the machine.
	pace      = 6 * time.Millisecond
	leastWork = 2 * time.Millisecond
)

// refusalsTable keeps what Guard refused, so that it can be counted after its worker was killed.
const refusalsTable = `
CREATE TABLE pgleases_example.refusals (
    worker     text NOT NULL,
    partition  int NOT NULL,
    epoch      bigint NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`

// work is a worker process: examples/worker, with work that takes a set time.
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
	return worker.Run(ctx)
}
