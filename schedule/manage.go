package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// This file changes schedules and jobs, for programs and operators alike. schedule_edit does it, in one transaction.

// Manage returns a Scheduler without a client, for operators and tools: it reads and changes the schedules and jobs of a group. Run is an
// error. The only options are WithSchema and WithReason; any other is an error. It makes no tables: pgleases.ErrSchema where they are
// missing or too old. Otherwise it is New.
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

// Pause has a schedule not run until it is resumed; nothing, where it is paused already. A run that is under way goes on. Ticks meanwhile
// are not missed: see Resume. ErrNotFound where there is none of the name.
func (s *Scheduler) Pause(ctx context.Context, name string) error {
	return s.edited(ctx, "pause", name, map[string]any{}, nil)
}

// From says where a schedule that was paused goes on.
type From int

const (
	FromNow From = iota // with the next tick; those that passed are canceled
	CatchUp             // with those that passed, as if nobody could run them until now: see Missed
)

// Resume has a schedule run again; nothing, where it is not paused. ErrNotFound where there is none of the name.
func (s *Scheduler) Resume(ctx context.Context, name string, from From) error {
	if from != FromNow && from != CatchUp {
		return fmt.Errorf("schedule: resume schedule %q of group %q: From(%d) is neither FromNow nor CatchUp", name, s.db.group, from)
	}
	return s.edited(ctx, "resume", name, map[string]any{"catch_up": from == CatchUp}, passed)
}

// Delete deletes a schedule. Its history stays. A run that is under way is refused its commit. One that the code declares comes back with the next
// process that starts. ErrNotFound where there is none of the name.
func (s *Scheduler) Delete(ctx context.Context, name string) error {
	return s.edited(ctx, "delete", name, map[string]any{}, passed)
}

// DeleteID is Delete for the schedule that has this Schedule.ID. It returns ErrNotFound if the name is another schedule's by now.
func (s *Scheduler) DeleteID(ctx context.Context, name string, id int64) error {
	return s.edited(ctx, "delete", name, map[string]any{"id": id}, passed)
}

// Trigger runs a schedule now, besides its ticks, also where it is paused: as a job, with the kind, the arguments and the key that the
// schedule has now. It returns the job's id. Its history tells nothing of that; see Job. ErrNotFound where there is no schedule of the
// name.
func (s *Scheduler) Trigger(ctx context.Context, name string) (id int64, err error) {
	return first(s.change(ctx, "trigger", s.scheduleNamed(name), &name, map[string]any{}, nil))
}

// maxBackfill is how many ticks are backfilled in one call.
const maxBackfill = 1000

// Backfill runs a schedule once more for the ticks of its rule after one instant, up to another, which is not after the schedule's cursor:
// 1,000 ticks at most. Each becomes a job, with the lowest priority, and the kind, the arguments and the key that the schedule has now;
// they begin in order. It returns the ids, in that order, without ticks of which such a job has not ended yet. To run one dead tick again,
// give an instant just before it, and the tick. The schedule's history stays as it is; see Job. ErrNotFound where there is no schedule of
// the name.
func (s *Scheduler) Backfill(ctx context.Context, name string, from, to time.Time) (ids []int64, err error) {
	what := map[string]any{"after": from, "until": to}
	return s.change(ctx, "backfill", s.scheduleNamed(name), &name, what, func(r *record) (any, error) {
		rule, err := Parse(r.Rule)
		switch {
		case err != nil:
			return nil, err
		case to.After(r.Cursor):
			return nil, fmt.Errorf("ticks up to %v are not all past: it has come as far as %v", to, r.Cursor)
		case !from.Before(to):
			return nil, fmt.Errorf("there is nothing after %v up to %v", from, to)
		}
		var windows []map[string]time.Time
		last := Tick{At: from}
		for tick, ok := rule.Next(r.Anchor, last); ok && !tick.At.After(to); tick, ok = rule.Next(r.Anchor, last) {
			if len(windows) == maxBackfill {
				return nil, fmt.Errorf("there are more than %d ticks after %v, up to %v: backfill a shorter time at once", maxBackfill, from, to)
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

// Retry runs a job that is dead, lost or canceled once more, now, or at its time where that is yet to come: as a new job with its kind,
// arguments, key, priority and time, whose id it returns, and with all attempts again. Once: the new one can be retried in its turn.
// ErrNotFound where the group's history has no such job; ErrExists where a living job has its unique key.
func (s *Scheduler) Retry(ctx context.Context, id int64) (retry int64, err error) {
	return first(s.change(ctx, "retry", s.jobNumbered(id), nil, map[string]any{"job": id}, nil))
}

// RetryTick runs a schedule once more, now, for a tick that is dead or lost: as a job with the kind, the arguments and the key that the
// schedule has now, whose id it returns. The tick keeps its outcome. Once: the job can be retried in its turn. ErrNotFound where the group's
// history has no such tick, or its schedule was deleted.
func (s *Scheduler) RetryTick(ctx context.Context, name string, tick time.Time) (retry int64, err error) {
	return first(s.change(ctx, "retry", fmt.Sprintf("tick %v of %s", tick, s.scheduleNamed(name)), &name, map[string]any{"tick": tick}, nil))
}

// RetryFailed runs the ticks and jobs of a kind that became dead or lost since an instant once more, as RetryTick and Retry do: the oldest
// 10,000 that were not retried. It returns the new jobs, and how many ticks and jobs cannot be retried, because their schedule was deleted,
// or a living job has their unique key.
func (s *Scheduler) RetryFailed(ctx context.Context, kind string, since time.Time) (ids []int64, refused int, err error) {
	if err = checkName("kind", kind); err == nil {
		ids, refused, err = s.send(ctx, "retry_failed", nil, map[string]any{"kind": kind, "since": since}, nil)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("schedule: retry what is dead of kind %q of group %q: %w", kind, s.db.group, err)
	}
	return ids, refused, nil
}

// Cancel cancels a job. A run that is under way is refused its commit. ErrNotFound where the group has no such job that has not ended.
func (s *Scheduler) Cancel(ctx context.Context, id int64) error {
	_, err := s.change(ctx, "cancel", s.jobNumbered(id), nil, map[string]any{"job": id}, nil)
	return err
}

func (s *Scheduler) scheduleNamed(name string) string {
	return fmt.Sprintf("schedule %q of group %q", name, s.db.group)
}
func (s *Scheduler) jobNumbered(id int64) string {
	return fmt.Sprintf("job %d of group %q", id, s.db.group)
}

func (s *Scheduler) edited(ctx context.Context, verb, name string, what map[string]any, see func(*record) (any, error)) error {
	_, err := s.change(ctx, verb, s.scheduleNamed(name), &name, what, see)
	return err
}

func (s *Scheduler) change(ctx context.Context, verb, subject string, name *string, what map[string]any, see func(*record) (any, error)) (ids []int64, err error) {
	ids, _, err = s.send(ctx, verb, name, what, see)
	if err != nil {
		return nil, fmt.Errorf("schedule: %s %s: %w", verb, subject, err)
	}
	return ids, nil
}

// send makes a change. What see returns about the schedule that schedule_edit asks about is sent there; nil: nothing is to be done.
func (s *Scheduler) send(ctx context.Context, verb string, name *string, what map[string]any, see func(*record) (any, error)) (ids []int64, refused int, err error) {
	done := false
	err = s.ownTx(ctx)(func(tx pgx.Tx) (err error) {
		done = false
		delete(what, "seen")
		var r *record
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
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return ids, refused, err
}

// passed counts the ticks of a schedule that have passed, and have no outcome.
func passed(r *record) (any, error) {
	now := *r
	outcomes, err := now.supersede(r, r.Clock)
	if err != nil {
		return nil, err
	}
	ticks := int64(0)
	for _, f := range outcomes {
		ticks += f.Ticks
	}
	return map[string]any{"until": now.Cursor, "ticks": ticks}, nil
}
