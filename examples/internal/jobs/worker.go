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
)

// poll is how often an idle worker polls for jobs, and how long a worker pauses after an error.
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

	// Do is the work of a job. What it writes through tx is committed together with the job's end.
	Do func(ctx context.Context, tx pgx.Tx, job Job) error
	// Refused, if not nil, is called when Guard refuses a job.
	Refused func(pgleases.Partition)
}

// Run works until ctx ends, and returns nil then. It finishes its job first. It returns an error
// only if the lease has ended.
func (w *Worker) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.Lease.Err(); err != nil {
			return err
		}
		// Changed comes before Hold: a change after this line closes the channel, so none is missed.
		changed := w.Lease.Changed()
		done, err := w.batch(ctx, changed)
		if err != nil {
			// The database may be restarting, or a job may have failed. What was not committed is still
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
	// No partition in the hold goes to another worker before the hold is released. A job is finished
	// even if ctx ends, so the hold's context ends with the ownership only.
	hold := w.Lease.Hold(context.WithoutCancel(ctx))
	defer hold.Release()
	if len(hold.Values()) == 0 {
		return 0, nil
	}
	jobs, err := w.pending(hold.Context(), hold.Values())
	if err != nil {
		return 0, fmt.Errorf("find pending jobs: %w", err)
	}
	skip := make(map[int]bool) // partitions
	for _, job := range jobs {
		select {
		case <-ctx.Done():
			return done, err
		case <-changed: // another worker may wait for a partition: do not keep it for the rest of the batch
			return done, err
		case <-hold.Context().Done():
			return done, context.Cause(hold.Context())
		default:
		}
		partition, held := hold.Partition(job.Partition)
		if !held || skip[job.Partition] {
			continue
		}
		switch failed := w.do(hold.Context(), partition, job); {
		case failed == nil:
			done++
		case errors.Is(failed, pgleases.ErrNotOwner):
			// Another worker has the partition, or will: it does this job and the next ones in it.
			skip[job.Partition] = true
			slog.Warn("jobs: refused by Guard", "job", job.ID, "partition", partition, "error", failed)
			if w.Refused != nil {
				w.Refused(partition)
			}
		default:
			// The jobs of the partition after this one wait, to keep their order. An application would count
			// attempts, and give up.
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
		// Guard comes first. After it, no other worker becomes the owner until the transaction ends. It
		// returns ErrNotOwner if another worker is the owner already, for example because this process
		// was frozen.
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
