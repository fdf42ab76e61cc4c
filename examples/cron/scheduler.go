package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/examples/internal/tables"
	"github.com/pgleases/pgleases/schedule"
)

// grace is how long after its instant a tick is still run. Longer than a take-over lasts, or each would lose ticks.
const grace = time.Minute

// Intervals are counted from the year 1, so that all processes have the same ticks, at whole minutes of UTC where they divide one.
var anchor time.Time

// retry is how long a job that failed waits before it is tried again, as long as its tick is within the grace.
const retry = time.Second

// A Job is run at the ticks of its schedule.
type Job struct {
	Name     string
	Schedule schedule.Rule
	// All has every tick run that was missed within the grace, in order; else only the latest of them is.
	All bool
	// Do is the work of one tick. What it writes through tx is done exactly once: it is committed together with the record
	// that the tick was run. A job in hand is finished before its partition moves.
	Do func(ctx context.Context, tx pgx.Tx, tick time.Time) error
}

// A scheduler runs the jobs of the partitions that its lease owns.
type scheduler struct {
	pool  *pgxpool.Pool
	lease *pgleases.Lease
	jobs  []Job
}

// own runs the jobs of a partition, each in a goroutine of its own, so that none waits for another. It is the callback of
// Lease.Run: ctx ends when the partition is wanted elsewhere, or the process shall stop.
func (s *scheduler) own(ctx context.Context, p pgleases.Partition) error {
	var jobs sync.WaitGroup
	for _, job := range s.jobs {
		if s.lease.PartitionFor(job.Name) == p.Number {
			jobs.Go(func() { s.keep(ctx, p, job) })
		}
	}
	jobs.Wait()
	return nil
}

// keep runs a job until ctx ends, also after it failed.
func (s *scheduler) keep(ctx context.Context, p pgleases.Partition, job Job) {
	begin := time.Now()
	for ctx.Err() == nil {
		err := s.follow(ctx, p, job, begin)
		if err == nil || p.Context().Err() != nil || errors.Is(err, pgleases.ErrNotOwner) {
			return // another process has the job, or will
		}
		slog.Error("cron: will try again", "job", job.Name, "error", err)
		wait(ctx, retry)
	}
}

// follow runs the ticks of a job, one after the other, until ctx ends or one fails.
func (s *scheduler) follow(ctx context.Context, p pgleases.Partition, job Job, begin time.Time) error {
	// Earlier owners commit nothing any more: this ownership began after the last transaction that passed their Guard had
	// ended. So it is known what they have run, be it up to this second.
	last, err := s.lastRun(p.Context(), job)
	if err != nil {
		return err
	}
	if last.IsZero() {
		last = begin // a new job has missed nothing
	}
	policy := schedule.MissedLatest
	if job.All {
		policy = schedule.MissedAll
	}
	for ctx.Err() == nil {
		due := job.Schedule.Due(anchor, schedule.Tick{At: last}, time.Now(), policy, grace)
		if missed := due.Missed; missed.Count > 0 {
			slog.Warn("cron: ticks were missed and will not be run", "job", job.Name,
				"count", missed.Count, "first", missed.First.At, "last", missed.Last.At)
			last = missed.Last.At
		}
		for _, tick := range due.Run {
			if ctx.Err() != nil {
				return nil
			}
			if err := s.run(p.Context(), p, job, tick.At); err != nil {
				return err
			}
			last = tick.At
		}
		next, ok := job.Schedule.Next(anchor, schedule.Tick{At: last})
		if !ok {
			<-ctx.Done() // it has no tick any more
			return nil
		}
		// Not longer than a minute: the clock may be set meanwhile.
		wait(ctx, min(time.Until(next.At), time.Minute))
	}
	return nil
}

// wait waits, at most until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

const lastRun = `SELECT max(tick) FROM pgleases_cron.cron_runs WHERE job = $1`

// lastRun returns the latest tick of a job that was run; the zero time where none was.
func (s *scheduler) lastRun(ctx context.Context, job Job) (time.Time, error) {
	var tick *time.Time
	if err := s.pool.QueryRow(ctx, lastRun, job.Name).Scan(&tick); err != nil {
		return time.Time{}, fmt.Errorf("read the last run: %w", err)
	}
	if tick == nil {
		return time.Time{}, nil
	}
	return *tick, nil
}

const record = `INSERT INTO pgleases_cron.cron_runs (job, tick, epoch) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`

// run runs a job's tick, in a transaction that only the partition's owner can commit.
func (s *scheduler) run(ctx context.Context, p pgleases.Partition, job Job, tick time.Time) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		// First of all. From here on no other process becomes the owner before this transaction ends: if this one is
		// frozen in it, the database ends it when the trust is over, and nothing of it has happened.
		if err := s.lease.Guard(ctx, tx, p); err != nil {
			return err
		}
		recorded, err := tx.Exec(ctx, record, job.Name, tick, p.Epoch)
		if err != nil || recorded.RowsAffected() == 0 {
			return err // it was run before: the answer to that commit was lost
		}
		return job.Do(ctx, tx, tick)
	})
	if err != nil {
		return fmt.Errorf("tick %s: %w", tick.Format(time.RFC3339), err)
	}
	return nil
}

const table = `
CREATE SCHEMA pgleases_cron;
CREATE TABLE pgleases_cron.cron_runs (
    job   text NOT NULL,
    tick  timestamptz NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (job, tick)
)`

// createTable makes the table unless it exists.
func createTable(ctx context.Context, pool *pgxpool.Pool) error {
	err := tables.Create(ctx, pool, "pgleases_cron", "cron_runs", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, table)
		return err
	})
	if err != nil {
		return fmt.Errorf("create the table of runs: %w", err)
	}
	return nil
}
