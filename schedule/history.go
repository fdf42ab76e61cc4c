package schedule

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
)

// An Outcome is the result of a tick, of several passed ticks, or of a job.
type Outcome string

// The outcomes. Each tick of a schedule has exactly one.
const (
	OutcomeSucceeded Outcome = "succeeded"
	OutcomeFailed    Outcome = "failed" // the run failed
	// A call of AtMostOnce crashed, was cut off, or failed after its context had ended
	OutcomeUnknown Outcome = "unknown"
	OutcomeMissed  Outcome = "missed"  // too late, by WithMissed and WithGrace
	OutcomeSkipped Outcome = "skipped" // the previous run was still under way, see OverlapSkip
	// By an edit of the rule, Resume with ResumeFromNow, Delete or Cancel
	OutcomeCanceled Outcome = "canceled"
)

// A HistoryEntry is a row of a schedule's history: one run, or several ticks that passed without a
// run and have one outcome.
type HistoryEntry struct {
	ID    int64     `json:"id"`    // rises with time
	Name  string    `json:"name"`  // of the schedule or job
	Kind  string    `json:"kind"`  // of the run
	Since time.Time `json:"since"` // the entry covers the ticks after Since, up to Until
	Until time.Time `json:"until"` // the tick, or the last of the ticks
	Ticks int64     `json:"ticks"` // number of ticks
	// Of an extra run (Trigger, Backfill, RetryTick): its job; 0: ticks of the rule
	Job      int64   `json:"job,omitzero"`
	Outcome  Outcome `json:"outcome"`
	Attempts int     `json:"attempts"` // of a run
	// Of a failure: the first 64 KiB, with U+FFFD for each NUL. Of a job, or of ticks, that an
	// operator canceled: the actor and the reason
	Error     string    `json:"error"`
	Epoch     int64     `json:"epoch"`               // the epoch of the run; 0: no run
	StartedAt time.Time `json:"started_at,omitzero"` // zero: no run
	EndedAt   time.Time `json:"ended_at"`            // when the entry was written
	Retried   int64     `json:"retried,omitzero"`    // the job that runs it again; 0: not retried
	// Of a job that did not succeed, what it was called with
	Args json.RawMessage `json:"args,omitempty"`
}

// History returns the outcomes of a schedule's ticks and of its extra runs, newest first. It
// includes entries of deleted schedules of the same name. It returns entries with IDs below before;
// 0 means all. An error ends the iteration.
func (s *Scheduler) History(ctx context.Context, name string, before int64) iter.Seq2[HistoryEntry, error] {
	return s.history(ctx, fmt.Sprintf("history of schedule %q of group %q", name, s.db.group), &name, before)
}

// FailedJobs returns the failed and unknown outcomes of jobs of the group, newest first, with IDs
// below before; 0 means all. It searches the latest 1,000 such outcomes of all groups. An error
// ends the iteration.
func (s *Scheduler) FailedJobs(ctx context.Context, before int64) iter.Seq2[HistoryEntry, error] {
	return s.history(ctx, fmt.Sprintf("failed jobs of group %q", s.db.group), nil, before)
}

func (s *Scheduler) history(
	ctx context.Context, doing string, name *string, before int64,
) iter.Seq2[HistoryEntry, error] {
	return pages(doing, cmp.Or(before, math.MaxInt64), func(before int64) ([]HistoryEntry, error) {
		return asked(ctx, s.db, func(ctx context.Context, q querier) ([]HistoryEntry, error) {
			return s.db.sendHistory(ctx, q, name, before, page)
		})
	}, func(e HistoryEntry) int64 { return e.ID })
}

const trimPage = 1000 // entries that one statement reads

// trim deletes the group's old entries until ctx ends, page by page. It also moves schedules and
// jobs out of partitions that do not exist. The owner of partition 0 does it for the group. Each
// pass continues after the last entry of the pass before, because deleted entries stay in the index
// for a while and must not be read again.
func (s *Scheduler) trim(ctx context.Context, clock *serverClock) {
	var others, failures int64
	var fails logqueue.Condition
	for ctx.Err() == nil {
		next := s.times.Trim
		// so a clock that is wrong for a moment deletes no entries
		if now, known := clock.at(time.Now()); known {
			err := s.trimTo(ctx, false, now, s.options.retention, &others)
			if err == nil {
				err = s.trimTo(ctx, true, now, s.options.retentionFailed, &failures)
			}
			if err == nil {
				err = s.db.within(ctx, func(ctx context.Context) error {
					return s.db.asking(ctx, func(ctx context.Context, q querier) error {
						return s.db.sendPlace(ctx, q, nil)
					})
				})
			}
			if ctx.Err() == nil {
				fails.Tried(err, func() {
					s.log.Warn("schedule: history not trimmed, retried each minute", slog.Any("error", err))
				}, func(lasted time.Duration) {
					s.log.Info("schedule: history trimmed again", slog.Duration("for", lasted))
				})
			}
		} else {
			next = min(next, s.times.Poll) // until the first poll returns the time
		}
		store.Pause(ctx, next)
	}
}

// trimTo deletes the entries with IDs after *after that were written before now-keep, and raises
// *after.
func (s *Scheduler) trimTo(ctx context.Context, failed bool, now time.Time, keep time.Duration, after *int64) error {
	for more := keep > 0; more; {
		upTo := *after
		err := s.db.briefly(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			upTo, more, err = s.db.sendTrim(ctx, tx, failed, now.Add(-keep), *after)
			return err
		})
		if err != nil {
			return err
		}
		*after = upTo
	}
	return nil
}
