// Package jobs is what the examples worker and fleet share: a table of jobs, and the loop that does
// them, each job once, on as many processes as there are.
package jobs

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/examples/internal/tables"
)

const (
	// Lease is the name of the lease whose partitions are worked on.
	Lease = "jobs"
	// Partitions is how many it has. The generated column below knows the number too; choose it once,
	// some times larger than the number of processes will ever be.
	Partitions = 128
)

// A job belongs to a customer, and a customer to a partition: all jobs of one customer are done by
// one process at a time, in their order. The database computes the partition as Lease.PartitionFor
// does, so that nobody can forget to, and the index makes finding the pending jobs of some
// partitions cheap however many are done.
//
// job_runs has no unique key on purpose: a job that was done twice shall be seen, not prevented.
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

// Create makes the tables, with so many jobs of so many customers, unless they exist. It needs the
// schema pgleases, which pgleases.NewClient and pgleases.Migrate make.
func Create(ctx context.Context, pool *pgxpool.Pool, count, customers int) error {
	err := tables.Create(ctx, pool, "pgleases_example", "jobs", func(tx pgx.Tx) error {
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
