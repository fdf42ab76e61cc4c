package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// This file changes schedules and jobs, for programs and operators: one method, one transaction and
// one SQL function for each verb.

// Manage returns a Scheduler without a client, for operators and tools. It reads and changes the
// schedules and jobs of a group; its Run returns an error. The options are WithSchema and
// WithReason. Any other is an error. It creates no tables: if they are missing or too old, it
// returns pgleases.ErrSchema. Its changes obey default_transaction_read_only, by which failover
// tools and operators stop writes. A Scheduler of New and an Enqueuer write in spite of it, as
// their application means them to.
func Manage(ctx context.Context, pool *pgxpool.Pool, group string, opts ...Option) (*Scheduler, error) {
	o, err := onlyOptions("Manage", opts, "WithSchema", "WithReason")
	switch {
	case err != nil:
		return nil, err
	case pool == nil:
		return nil, errors.New("schedule: manage: pool is nil")
	}
	o.noMigration = true
	s, err := newScheduler(ctx, nil, pool, group, o)
	if err != nil {
		return nil, err
	}
	s.db.inPool = worker.InOperatorsTx
	return s, nil
}

// Pause pauses a schedule until Resume. If it is paused already, Pause has no effect. A run that is
// under way continues. Ticks that pass during a pause are not missed. See Resume. Pause returns
// ErrNotFound if the group has no schedule of this name.
func (s *Scheduler) Pause(ctx context.Context, name string) error {
	return s.change(ctx, "pause "+s.named("schedule %q", name), func(ctx context.Context, tx pgx.Tx) error {
		return s.db.sendPause(ctx, tx, name)
	})
}

// A ResumeMode says with which tick a paused schedule continues.
type ResumeMode int

const (
	ResumeFromNow ResumeMode = iota // with the next tick; passed ticks are canceled
	ResumeCatchUp                   // with the passed ticks, as after an outage: see WithMissed
)

// Resume ends a pause. If the schedule is not paused, Resume has no effect. It returns ErrNotFound
// if the group has no schedule of this name.
func (s *Scheduler) Resume(ctx context.Context, name string, mode ResumeMode) error {
	verb := "resume " + s.named("schedule %q", name)
	switch mode {
	case ResumeFromNow:
		return s.change(ctx, verb, func(ctx context.Context, tx pgx.Tx) error {
			r, err := s.db.sendLock(ctx, tx, name)
			if err != nil || r.PausedAt == nil {
				return err
			}
			passed, err := r.supersede(r.Clock)
			if err != nil {
				return err
			}
			return s.db.sendResume(ctx, tx, name, passed)
		})
	case ResumeCatchUp:
		return s.change(ctx, verb, func(ctx context.Context, tx pgx.Tx) error {
			return s.db.sendCatchUp(ctx, tx, name)
		})
	}
	return fmt.Errorf("schedule: %s: ResumeMode(%d) is neither ResumeFromNow nor ResumeCatchUp", verb, mode)
}

// Delete deletes a schedule and keeps its history. A run that is under way ends as for Cancel. If
// the code declares the schedule, the next process that starts creates it again. Delete returns
// ErrNotFound if the group has no schedule of this name.
func (s *Scheduler) Delete(ctx context.Context, name string) error {
	return s.delete(ctx, name, func(*scheduleRow) error { return nil })
}

func init() {
	bridge.DeleteSchedule = func(ctx context.Context, scheduler any, name string, id int64) error {
		s := scheduler.(*Scheduler)
		return s.delete(ctx, name, func(r *scheduleRow) error {
			if r.ID != id {
				return fmt.Errorf("%w: it is not the one that was seen: it was deleted and created again", ErrNotFound)
			}
			return nil
		})
	}
}

// delete deletes a schedule, unless check returns an error for it.
func (s *Scheduler) delete(ctx context.Context, name string, check func(*scheduleRow) error) error {
	return s.change(ctx, "delete "+s.named("schedule %q", name), func(ctx context.Context, tx pgx.Tx) error {
		r, err := s.db.sendLock(ctx, tx, name)
		if err == nil {
			err = check(r)
		}
		if err != nil {
			return err
		}
		passed, err := r.supersede(r.Clock)
		if err != nil {
			return err
		}
		return s.db.sendDelete(ctx, tx, name, passed)
	})
}

// Trigger runs a schedule now, as an extra run, even if it is paused. It enqueues a job with the
// kind, the arguments and the key that the schedule has now, and returns the job's ID. The ticks of
// the schedule do not change. See Job. Trigger returns ErrNotFound if the group has no schedule of
// this name.
func (s *Scheduler) Trigger(ctx context.Context, name string) (id int64, err error) {
	verb := "trigger " + s.named("schedule %q", name)
	return inOneChange(ctx, s, verb, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		return s.db.sendTrigger(ctx, tx, name)
	})
}

// maxBackfill is how many ticks one call backfills.
const maxBackfill = 1000

// Backfill runs a schedule once more for the ticks of its rule after from, up to and including to:
// at most 1,000 ticks. to must not be after the schedule's cursor. Each tick becomes a job of the
// lowest priority, with the kind, the arguments and the key that the schedule has now. The jobs
// become due in the order of the ticks. Backfill returns their IDs in that order, except for ticks
// whose earlier backfill job has not ended. The jobs have IdempotencyKeys of their own: to repeat a
// failed tick, use RetryTick. The ticks of the schedule keep their outcomes. See Job. Backfill
// returns ErrNotFound if the group has no schedule of this name.
func (s *Scheduler) Backfill(ctx context.Context, name string, from, to time.Time) (ids []int64, err error) {
	verb := "backfill " + s.named("schedule %q", name)
	r, err := asked(ctx, s.db, func(ctx context.Context, q querier) (*scheduleRow, error) {
		return s.db.sendRead(ctx, q, name)
	})
	if err != nil {
		return nil, wrap.Errorf("schedule: %s: %w", verb, store.Advised(err))
	}
	b, err := r.backfill(from, to)
	if err != nil {
		return nil, wrap.Errorf("schedule: %s: %w", verb, err)
	}
	if len(b.ticks) == 0 {
		return nil, nil
	}
	return inOneChange(ctx, s, verb, func(ctx context.Context, tx pgx.Tx) ([]int64, error) {
		return s.db.sendBackfill(ctx, tx, name, b)
	})
}

// A backfill has the ticks of a rule in a range, in order, and where the window of each begins.
type backfill struct {
	after, until  time.Time
	begins, ticks []time.Time
}

// backfill returns the ticks of a schedule in a range.
func (r *scheduleRow) backfill(after, until time.Time) (backfill, error) {
	b := backfill{after: after, until: until}
	rule, err := Parse(r.Rule)
	switch {
	case err != nil:
		return b, err
	case until.After(r.Cursor):
		return b, fmt.Errorf("ticks up to %v are not all past: its cursor is at %v", until, r.Cursor)
	case !after.Before(until):
		return b, fmt.Errorf("the range after %v, up to %v, is empty", after, until)
	}
	last := Tick{At: after}
	for tick, ok := rule.Next(r.Anchor, last); ok && !tick.At.After(until); tick, ok = rule.Next(r.Anchor, last) {
		if len(b.ticks) == maxBackfill {
			const tooMany = "the range has more than %d ticks after %v, up to %v: backfill a shorter one"
			return b, fmt.Errorf(tooMany, maxBackfill, after, until)
		}
		b.begins = append(b.begins, last.At)
		b.ticks = append(b.ticks, tick.At)
		last = tick
	}
	return b, nil
}

// Retry runs a job once more that failed, is unknown, or was canceled. It enqueues a new job with
// the same kind, arguments, key, Run.IdempotencyKey, priority and time, and with all attempts, and
// returns its ID. The new job is due now, or at its time if that is later. A job can be retried
// once; then the new job can. Retry returns ErrNotFound if the group's history has no such job, and
// ErrExists if a live job has its unique key.
func (s *Scheduler) Retry(ctx context.Context, id int64) (retry int64, err error) {
	return inOneChange(ctx, s, "retry "+s.named("job %d", id), func(ctx context.Context, tx pgx.Tx) (int64, error) {
		return s.db.sendRetryJob(ctx, tx, id)
	})
}

// RetryTick runs a schedule once more, now, for a tick that failed or is unknown. It enqueues a job
// with the kind, the arguments and the key that the schedule has now, and returns the job's ID. The
// job's Run has the At, Local and From of the tick, and its IdempotencyKey(). The tick keeps its
// outcome. A tick can be retried once; then the job can. RetryTick returns ErrNotFound if the
// group's history has no such tick, or if its schedule was deleted.
func (s *Scheduler) RetryTick(ctx context.Context, name string, tick time.Time) (retry int64, err error) {
	verb := fmt.Sprintf("retry tick %v of %s", tick, s.named("schedule %q", name))
	return inOneChange(ctx, s, verb, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		return s.db.sendRetryTick(ctx, tx, name, tick)
	})
}

// RetryFailed retries the ticks and jobs of a kind that failed at or after since, as RetryTick and
// Retry do: the oldest 10,000 that were not retried. It returns the IDs of the new jobs. It also
// returns how many ticks and jobs it did not retry, because their outcome is unknown, their
// schedule was deleted, or a live job has their unique key.
func (s *Scheduler) RetryFailed(
	ctx context.Context, kind string, since time.Time,
) (ids []int64, refused int, err error) {
	verb := fmt.Sprintf("retry failed runs of kind %q of group %q", kind, s.db.group)
	err = checkName("kind", kind)
	if err != nil {
		return nil, 0, wrap.Errorf("schedule: %s: %w", verb, err)
	}
	ids, err = inOneChange(ctx, s, verb, func(ctx context.Context, tx pgx.Tx) (retries []int64, err error) {
		retries, refused, err = s.db.sendRetryFailed(ctx, tx, kind, since)
		return retries, err
	})
	if err != nil {
		return nil, 0, err
	}
	return ids, refused, nil
}

// Cancel cancels a job. A run that is under way cannot commit, and its context ends with
// ErrCanceled, at once after a notification, and otherwise within about 1 s. The effects of its
// handler outside of the database stay. Cancel does not wait for the handler. It returns
// ErrNotFound if the group has no live job with this ID.
func (s *Scheduler) Cancel(ctx context.Context, id int64) error {
	return s.change(ctx, "cancel "+s.named("job %d", id), func(ctx context.Context, tx pgx.Tx) error {
		return s.db.sendCancelJob(ctx, tx, id)
	})
}

// named names a schedule or a job of the group, for an error.
func (s *Scheduler) named(format string, of any) string {
	return fmt.Sprintf(format+" of group %q", of, s.db.group)
}

// change makes a change that returns only an error.
func (s *Scheduler) change(ctx context.Context, verb string, f func(context.Context, pgx.Tx) error) error {
	_, err := inOneChange(ctx, s, verb, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, f(ctx, tx)
	})
	return err
}

// inOneChange makes a change in a transaction, and returns what f does. verb says what f changes,
// and how.
func inOneChange[T any](
	ctx context.Context, s *Scheduler, verb string, f func(context.Context, pgx.Tx) (T, error),
) (result T, err error) {
	err = worker.Committed(ctx, ErrUnknown, s.ownTx(), func(ctx context.Context, tx pgx.Tx) (err error) {
		result, err = f(ctx, tx)
		return err
	})
	if err != nil {
		return *new(T), wrap.Errorf("schedule: %s: %w", verb, err)
	}
	return result, nil
}
