// Package jobs is what the workers of the example fleet do: jobs in a table, each job once, on any
// number of processes.
package jobs

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	Lease      = "jobs" // its name
	Partitions = 128    // of the lease, and in the generated column below
)

// A job belongs to a customer, and a customer to a partition: one process at a time does the jobs of
// a customer, in their order. The database computes the partition as Lease.PartitionFor does. With
// the index, pending jobs are found quickly however many jobs are done.
//
// job_runs has no unique key: a job that is done twice must be seen, not prevented.
const ddl = `
CREATE SCHEMA pgleases_example;
CREATE TABLE pgleases_example.jobs (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  text NOT NULL,
    partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 128)) STORED,
    done_at   timestamptz,
    done_by   text,
    epoch     bigint
);
CREATE INDEX jobs_pending ON pgleases_example.jobs (partition, id) WHERE done_at IS NULL;
CREATE TABLE pgleases_example.job_runs (
    job    bigint NOT NULL,
    worker text NOT NULL,
    epoch  bigint NOT NULL,
    ran_at timestamptz NOT NULL DEFAULT clock_timestamp()
);`

const sampleJobs = `
INSERT INTO pgleases_example.jobs (customer)
SELECT 'customer-' || 1 + n % $2 FROM generate_series(0, $1 - 1) AS n`

// Create creates the tables, with so many jobs of so many customers. It needs the schema pgleases,
// which pgleases.NewClient and pgleases.Migrate create.
func Create(ctx context.Context, pool *pgxpool.Pool, count, customers int) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, ddl); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sampleJobs, count, customers)
		return err
	})
	if err != nil {
		return fmt.Errorf("create the table of jobs: %w", err)
	}
	return nil
}
