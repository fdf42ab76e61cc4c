package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/ranges"
)

// poll is how often a worker that has nothing to do looks for new jobs, and how long it pauses
// after an error.
const poll = time.Second

// A Job is a row of the table.
type Job struct {
	ID        int64
	Customer  string
	Partition int
}

// A Worker does the pending jobs of the partitions that its client owns.
type Worker struct {
	Pool   *pgxpool.Pool
	Client *pgleases.Client
	Lease  *pgleases.Lease

	// Do is the work of a job. What it writes through tx is committed together with the mark that the
	// job is done.
	Do func(ctx context.Context, tx pgx.Tx, job Job) error
	// Refused, where not nil, is told when Guard refused a job.
	Refused func(pgleases.Partition)

	owned    string // what was last logged
	inMemory table  // where there is no Pool
}

// A table is what the loop needs of the table of jobs. A Worker with a Pool is one itself; tests of
// the loop have another.
type table interface {
	// pending returns pending jobs of partitions, in their order.
	pending(ctx context.Context, partitions []int) ([]Job, error)
	// do does a job, unless the partition has another owner: that is pgleases.ErrNotOwner.
	do(ctx context.Context, partition pgleases.Partition, job Job) error
}

// Run works until ctx ends, and returns nil then. A job in hand is finished first. It returns an
// error only if the lease came to an end.
func (w *Worker) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.Lease.Err(); err != nil {
			return err
		}
		// Taken before batch takes its hold: a change after this line closes the channel, so none is
		// missed.
		changed := w.Lease.Changed()
		done, err := w.batch(ctx, changed)
		if err != nil {
			// The database may be restarting, a job may have failed. What was not committed is still
			// pending.
			slog.Error("jobs: will try again", "error", err)
		} else if done > 0 {
			continue
		}
		select {
		case <-changed:
		case <-time.After(poll):
		case <-ctx.Done():
		}
	}
	return nil
}

// batch does some pending jobs, and returns how many, and the first error.
func (w *Worker) batch(ctx context.Context, changed <-chan struct{}) (done int, err error) {
	// No partition in the hold goes to another worker before the hold is released. The job in hand is
	// to be finished when ctx ends; so the hold's context shall not end with ctx, only with the
	// ownership.
	hold := w.Lease.Hold(context.WithoutCancel(ctx))
	defer hold.Release()
	w.logOwned(hold.Values())
	if len(hold.Values()) == 0 {
		return 0, nil
	}
	var from table = w
	if w.inMemory != nil {
		from = w.inMemory
	}
	jobs, err := from.pending(hold.Context(), hold.Values())
	if err != nil {
		return 0, fmt.Errorf("find pending jobs: %w", err)
	}
	skip := make(map[int]bool) // partitions
	for _, job := range jobs {
		select {
		case <-ctx.Done():
			return done, err
		case <-changed: // perhaps a partition is wanted elsewhere: do not keep it for the rest of the batch
			return done, err
		case <-hold.Context().Done():
			return done, context.Cause(hold.Context())
		default:
		}
		partition, held := hold.Partition(job.Partition)
		if !held || skip[job.Partition] {
			continue
		}
		switch failed := from.do(hold.Context(), partition, job); {
		case failed == nil:
			done++
		case errors.Is(failed, pgleases.ErrNotOwner):
			// Another worker has the partition, or will: this job and the next ones in it are left to that
			// one.
			skip[job.Partition] = true
			slog.Warn("jobs: refused by Guard", "job", job.ID, "partition", partition, "error", failed)
			if w.Refused != nil {
				w.Refused(partition)
			}
		default:
			// The jobs behind it wait, to keep their order; those of other partitions do not. What fails for
			// ever is tried for ever here: an application would count attempts, and give up.
			skip[job.Partition] = true
			if err == nil {
				err = fmt.Errorf("job %d: %w", job.ID, failed)
			}
		}
	}
	return done, err
}

const pending = `
SELECT id, customer, partition FROM pgleases_example.jobs
WHERE partition = ANY($1) AND done_at IS NULL
ORDER BY id LIMIT 100`

func (w *Worker) pending(ctx context.Context, partitions []int) ([]Job, error) {
	rows, err := w.Pool.Query(ctx, pending, partitions)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Job])
}

const finish = `
WITH run AS (INSERT INTO pgleases_example.job_runs (job, worker, epoch) VALUES ($1, $2, $3))
UPDATE pgleases_example.jobs SET done_at = clock_timestamp(), done_by = $2, epoch = $3 WHERE id = $1`

// do does a job in a transaction that only the partition's owner can commit.
func (w *Worker) do(ctx context.Context, partition pgleases.Partition, job Job) error {
	return pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		// First of all: once Guard has passed, nobody else becomes the owner before this transaction
		// ends, and had somebody done so since the hold was taken, while this process was frozen for
		// instance, Guard would not pass.
		if err := w.Lease.Guard(ctx, tx, partition); err != nil {
			return err
		}
		if err := w.Do(ctx, tx, job); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, finish, job.ID, w.Client.ID(), partition.Epoch)
		return err
	})
}

// logOwned takes what a hold pins. To call Lease.Values for a log line would be a mistake: whoever
// reads that may be working on it, so the next owner would have to wait for the hand-off delay.
func (w *Worker) logOwned(values []int) {
	if owned := ranges.Format(values); owned != w.owned {
		w.owned = owned
		slog.Info("jobs: owns", "worker", w.Client.ID(), "partitions", owned, "count", len(values), "of", w.Lease.NumPartitions())
	}
}
