package schedule

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
)

// An Outcome is what became of ticks, or of a job.
type Outcome string

// The outcomes. Each tick of a schedule has exactly one.
const (
	OutcomeSucceeded Outcome = "succeeded"
	OutcomeFailed    Outcome = "failed"   // the run failed
	OutcomeUnknown   Outcome = "unknown"  // a call that is made at most once was cut off, see AtMostOnce
	OutcomeMissed    Outcome = "missed"   // too late, by the schedule's Missed and Grace
	OutcomeSkipped   Outcome = "skipped"  // the run before was still under way, see OverlapSkip
	OutcomeCanceled  Outcome = "canceled" // an edit of the rule, Resume from now, or Delete came first
)

// An Entry is a row of a schedule's history: of one run, or of ticks that were passed over at once.
type Entry struct {
	ID        int64     `json:"id"`           // rises with time
	Name      string    `json:"name"`         // of the schedule, or job
	Kind      string    `json:"kind"`         // of the run
	Since     time.Time `json:"since"`        // the entry is of the ticks after Since, up to Until
	Until     time.Time `json:"until"`        // of a run, the tick
	Ticks     int64     `json:"ticks"`        // how many
	Job       int64     `json:"job,omitzero"` // an extra run, see Trigger, Backfill and Retry; 0: ticks of the rule
	Outcome   Outcome   `json:"outcome"`
	Attempts  int       `json:"attempts"`            // of a run, how many there were; see Retry
	Error     string    `json:"error"`               // of a failure; its first 64 KiB, with U+FFFD for each NUL
	Epoch     int64     `json:"epoch"`               // under which it ran; 0: there was no run
	StartedAt time.Time `json:"started_at,omitzero"` // zero: there was no run
	EndedAt   time.Time `json:"ended_at"`            // when it was written
	Retried   int64     `json:"retried,omitzero"`    // the job that runs it again; 0: none was asked for
}

// History returns the outcomes of a schedule's ticks, and of its extra runs, the newest first, also
// of earlier schedules of its name: the entries whose IDs are below before; 0: all. An error ends
// it.
func (s *Scheduler) History(ctx context.Context, name string, before int64) iter.Seq2[Entry, error] {
	return s.history(ctx, fmt.Sprintf("history of schedule %q of group %q", name, s.db.group), &name, before)
}

// FailedJobs returns the outcomes of jobs of the group that failed or are unknown, as History does,
// among the latest 1,000 such outcomes of all groups.
func (s *Scheduler) FailedJobs(ctx context.Context, before int64) iter.Seq2[Entry, error] {
	return s.history(ctx, fmt.Sprintf("failed jobs of group %q", s.db.group), nil, before)
}

func (s *Scheduler) history(ctx context.Context, doing string, name *string, before int64) iter.Seq2[Entry, error] {
	return pages(doing, cmp.Or(before, math.MaxInt64), func(before int64) ([]*Entry, error) {
		return s.db.sendHistory(ctx, s.db.pool, name, before, page)
	}, func(e *Entry) (Entry, int64) { return *e, e.ID })
}

const (
	trimEvery = time.Minute
	trimPage  = 1000 // entries that one statement looks at
)

// trim deletes the group's old entries until ctx ends, page by page, and moves what is in a
// partition that does not exist. The owner of partition 0 does it for all. It continues where it
// stopped: what is deleted stays in the index for a while, and must not be read again.
func (s *Scheduler) trim(ctx context.Context, clock *serverClock) {
	var others, failures int64
	failing := false
	for ctx.Err() == nil {
		next := s.times.trim
		if now, known := clock.at(time.Now()); known { // a clock that is wrong for a moment deletes nothing
			err := s.trimTo(ctx, false, now, s.options.retention, &others)
			if err == nil {
				err = s.trimTo(ctx, true, now, s.options.retentionFailed, &failures)
			}
			if err == nil {
				err = s.db.within(ctx, func(ctx context.Context) error { return s.db.sendPlace(ctx, s.db.pool, nil) })
			}
			if err != nil && !failing && ctx.Err() == nil {
				s.log.Warn("schedule: history not trimmed, retried each minute", slog.Any("error", err))
			}
			failing = err != nil
		} else {
			next = min(next, s.times.poll) // the first poll shows the time
		}
		store.Pause(ctx, next)
	}
}

// trimTo deletes entries that were written longer ago than is to be kept, after an id, which rises.
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
