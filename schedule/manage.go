package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/wrap"
)

// This file changes schedules and jobs, for programs and operators. schedule_edit makes each
// change, in one transaction.

// Manage returns a Scheduler without a client, for operators and tools. It reads and changes the
// schedules and jobs of a group; its Run returns an error. The options are WithSchema and
// WithReason; any other is an error. It creates no tables: if they are missing or too old, it
// returns pgleases.ErrSchema.
func Manage(ctx context.Context, pool *pgxpool.Pool, group string, opts ...Option) (*Scheduler, error) {
	o, err := onlyOptions("Manage", opts, "WithSchema", "WithReason")
	switch {
	case err != nil:
		return nil, err
	case pool == nil:
		return nil, errors.New("schedule: manage: pool is nil")
	}
	o.noMigration = true
	return newScheduler(ctx, nil, pool, group, o)
}

// Pause pauses a schedule until Resume. If it is paused already, Pause has no effect. A run that is
// under way continues. Ticks that pass during a pause are not missed: see Resume. Pause returns
// ErrNotFound if the group has no schedule of this name.
func (s *Scheduler) Pause(ctx context.Context, name string) error {
	return s.edited(ctx, "pause", name, map[string]any{}, nil)
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
	if mode != ResumeFromNow && mode != ResumeCatchUp {
		return fmt.Errorf("schedule: resume %s: ResumeMode(%d) is neither ResumeFromNow nor ResumeCatchUp", s.named("schedule %q", name), mode)
	}
	return s.edited(ctx, "resume", name, map[string]any{"catch_up": mode == ResumeCatchUp}, passed)
}

// Delete deletes a schedule and keeps its history. A run that is under way ends as for Cancel. If
// the code declares the schedule, the next process that starts creates it again. Delete returns
// ErrNotFound if the group has no schedule of this name.
func (s *Scheduler) Delete(ctx context.Context, name string) error {
	return s.edited(ctx, "delete", name, map[string]any{}, passed)
}

func init() {
	bridge.DeleteSchedule = func(ctx context.Context, scheduler any, name string, id int64) error {
		return scheduler.(*Scheduler).edited(ctx, "delete", name, map[string]any{"id": id}, passed)
	}
}

// Trigger runs a schedule now, as an extra run, even if it is paused. It enqueues a job with the
// kind, the arguments and the key that the schedule has now, and returns the job's ID. The ticks of
// the schedule do not change; see Job. Trigger returns ErrNotFound if the group has no schedule of
// this name.
func (s *Scheduler) Trigger(ctx context.Context, name string) (id int64, err error) {
	return first(s.change(ctx, "trigger", s.named("schedule %q", name), &name, map[string]any{}, nil))
}

// maxBackfill is how many ticks one call backfills.
const maxBackfill = 1000

// Backfill runs a schedule once more for the ticks of its rule after from, up to and including to:
// at most 1,000 ticks. to must not be after the schedule's cursor. Each tick becomes a job of the
// lowest priority, with the kind, the arguments and the key that the schedule has now. The jobs
// become due in the order of the ticks. Backfill returns their IDs in that order, except for ticks
// whose earlier backfill job has not ended. The jobs have IdempotencyKeys of their own: to repeat a
// failed tick, use RetryTick. The ticks of the schedule keep their outcomes; see Job. Backfill
// returns ErrNotFound if the group has no schedule of this name.
func (s *Scheduler) Backfill(ctx context.Context, name string, from, to time.Time) (ids []int64, err error) {
	what := map[string]any{"after": from, "until": to}
	return s.change(ctx, "backfill", s.named("schedule %q", name), &name, what, func(r *scheduleRow) (any, error) {
		rule, err := Parse(r.Rule)
		switch {
		case err != nil:
			return nil, err
		case to.After(r.Cursor):
			return nil, fmt.Errorf("ticks up to %v are not all past: its cursor is at %v", to, r.Cursor)
		case !from.Before(to):
			return nil, fmt.Errorf("the range after %v, up to %v, is empty", from, to)
		}
		var windows []map[string]time.Time
		last := Tick{At: from}
		for tick, ok := rule.Next(r.Anchor, last); ok && !tick.At.After(to); tick, ok = rule.Next(r.Anchor, last) {
			if len(windows) == maxBackfill {
				return nil, fmt.Errorf("the range has more than %d ticks after %v, up to %v: backfill a shorter one", maxBackfill, from, to)
			}
			windows = append(windows, map[string]time.Time{"begins": last.At, "at": tick.At})
			last = tick
		}
		if len(windows) == 0 {
			return nil, nil
		}
		return windows, nil
	})
}

// Retry runs a job once more that failed, is unknown, or was canceled. It enqueues a new job with
// the same kind, arguments, key, Run.IdempotencyKey, priority and time, and with all attempts, and
// returns its ID. The new job is due now, or at its time if that is later. A job can be retried
// once; then the new job can. Retry returns ErrNotFound if the group's history has no such job, and
// ErrExists if a live job has its unique key.
func (s *Scheduler) Retry(ctx context.Context, id int64) (retry int64, err error) {
	return first(s.change(ctx, "retry", s.named("job %d", id), nil, map[string]any{"job": id}, nil))
}

// RetryTick runs a schedule once more, now, for a tick that failed or is unknown. It enqueues a job
// with the kind, the arguments and the key that the schedule has now, and returns the job's ID. The
// job's Run has the At, Local and From of the tick, and its IdempotencyKey(). The tick keeps its
// outcome. A tick can be retried once; then the job can. RetryTick returns ErrNotFound if the
// group's history has no such tick, or if its schedule was deleted.
func (s *Scheduler) RetryTick(ctx context.Context, name string, tick time.Time) (retry int64, err error) {
	return first(s.change(ctx, "retry", fmt.Sprintf("tick %v of %s", tick, s.named("schedule %q", name)), &name, map[string]any{"tick": tick}, nil))
}

// RetryFailed retries the ticks and jobs of a kind that failed at or after since, as RetryTick and
// Retry do: the oldest 10,000 that were not retried. It returns the IDs of the new jobs. It also
// returns how many ticks and jobs it did not retry, because their outcome is unknown, their
// schedule was deleted, or a live job has their unique key.
func (s *Scheduler) RetryFailed(ctx context.Context, kind string, since time.Time) (ids []int64, refused int, err error) {
	if err = checkName("kind", kind); err == nil {
		ids, refused, err = s.send(ctx, "retry_failed", nil, map[string]any{"kind": kind, "since": since}, nil)
	}
	if err != nil {
		return nil, 0, wrap.Errorf("schedule: retry failed runs of kind %q of group %q: %w", kind, s.db.group, err)
	}
	return ids, refused, nil
}

// Cancel cancels a job. A run that is under way cannot commit, and its context ends with
// ErrCanceled, at once after a notification, and otherwise within about 1 s. The effects of its
// handler outside of the database stay. Cancel does not wait for the handler. It returns
// ErrNotFound if the group has no live job with this ID.
func (s *Scheduler) Cancel(ctx context.Context, id int64) error {
	_, err := s.change(ctx, "cancel", s.named("job %d", id), nil, map[string]any{"job": id}, nil)
	return err
}

// named names a schedule or a job of the group, for an error.
func (s *Scheduler) named(format string, of any) string {
	return fmt.Sprintf(format+" of group %q", of, s.db.group)
}

func (s *Scheduler) edited(ctx context.Context, verb, name string, what map[string]any, see func(*scheduleRow) (any, error)) error {
	_, err := s.change(ctx, verb, s.named("schedule %q", name), &name, what, see)
	return err
}

func (s *Scheduler) change(ctx context.Context, verb, subject string, name *string, what map[string]any, see func(*scheduleRow) (any, error)) (ids []int64, err error) {
	ids, _, err = s.send(ctx, verb, name, what, see)
	if err != nil {
		return nil, wrap.Errorf("schedule: %s %s: %w", verb, subject, err)
	}
	return ids, nil
}

// send makes a change. If schedule_edit returns a schedule first, send passes it to see, and sends
// what see returns. If see returns nil, send makes no change.
func (s *Scheduler) send(ctx context.Context, verb string, name *string, what map[string]any, see func(*scheduleRow) (any, error)) (ids []int64, refused int, err error) {
	done := false
	err = s.ownTx()(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		done = false
		delete(what, "seen")
		var r *scheduleRow
		if r, ids, refused, err = s.db.sendChange(ctx, tx, verb, name, what); err == nil && r != nil {
			if what["seen"], err = see(r); err != nil || what["seen"] == nil {
				return err
			}
			_, ids, refused, err = s.db.sendChange(ctx, tx, verb, name, what)
		}
		done = err == nil
		return err
	})
	if done && err != nil && !refusedCommit(err) && !errors.Is(err, pgx.ErrTxCommitRollback) {
		err = wrap.Errorf("%w: %w", ErrUnknown, err)
	}
	return ids, refused, err
}

// passed counts the passed ticks of a schedule without an outcome.
func passed(r *scheduleRow) (any, error) {
	c, err := r.supersede(r.Clock)
	if err != nil {
		return nil, err
	}
	return map[string]any{"until": c.until, "last": c.last, "ticks": c.ticks}, nil
}
