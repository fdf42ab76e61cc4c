package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
)

// A Schedule is what is known of a schedule.
type Schedule struct {
	ID       int64 // of this schedule, and of no later one of its name
	Name     string
	Key      string
	Kind     string
	Args     json.RawMessage
	Rule     string // as Parse reads it
	Declared bool   // in the code, with Add
	// DeclaredAt is when it was last noted that a process declares it: when one starts, and once a day; zero: no code declares it.
	DeclaredAt time.Time
	Cursor     time.Time // every tick up to this has its fate; where it lies ahead, the database's clock was set back
	Due        time.Time // when its owner looks at it next; zero: never
	Done       time.Time // the last tick that was done; zero: none was
	PausedAt   time.Time // zero: it is not paused
	Failures   int       // how many ticks in a row are dead since the last that was done, or since Resume
	Attempts   int       // of the tick that is tried again at Due, how many have failed
	Error      string    // of the last of them
	Waits      string    // why the process that owns it cannot run it; empty: nothing is known against it
}

func (r *record) schedule() Schedule {
	s := Schedule{ID: r.ID, Name: r.Name, Key: r.Key, Kind: r.Kind, Args: r.Args, Rule: r.Rule, Declared: r.Declared, Cursor: r.Cursor}
	for _, t := range []struct {
		to   *time.Time
		from *time.Time
	}{{&s.Due, r.Due}, {&s.Done, r.Done}, {&s.PausedAt, r.PausedAt}} {
		if t.from != nil {
			*t.to = *t.from
		}
	}
	if r.Declared {
		s.DeclaredAt = r.Registered
	}
	s.Failures = r.Failures
	if r.Trying != nil {
		s.Attempts = r.Trying.Attempts
		if r.Trying.Error != nil {
			s.Error = *r.Trying.Error
		}
	}
	if r.Waits != nil {
		s.Waits = *r.Waits
	}
	return s
}

// A Fate is what became of ticks.
type Fate string

// The fates. Each tick of a schedule has exactly one.
const (
	FateDone      Fate = "done"
	FateDead      Fate = "dead"      // the run failed
	FateLost      Fate = "lost"      // of a handler that is called at most once: nobody knows what came of it, see AtMostOnce
	FateMissed    Fate = "missed"    // too late, by the schedule's Missed and Grace
	FateSkipped   Fate = "skipped"   // the run before was still under way, see OverlapSkip
	FateCancelled Fate = "cancelled" // an edit of the rule, Resume from now, or Delete came first
)

// An Entry is a row of a schedule's history: of one run, or of ticks that were passed over at once.
type Entry struct {
	Since     time.Time `json:"since"`        // it tells of the ticks after Since, up to Until
	Until     time.Time `json:"until"`        // of a run, the tick
	Ticks     int64     `json:"ticks"`        // how many
	Job       int64     `json:"job,omitzero"` // what ran besides, see Trigger, Backfill and Retry; 0: ticks of the rule
	Fate      Fate      `json:"fate"`
	Attempts  int       `json:"attempts"`            // of a run, how many there were; see Retry
	Error     string    `json:"error"`               // of a dead one; its first 64 KiB, with U+FFFD for each NUL
	Epoch     int64     `json:"epoch"`               // under which it ran; 0: nothing ran
	StartedAt time.Time `json:"started_at,omitzero"` // zero: nothing ran
	EndedAt   time.Time `json:"ended_at"`            // when it was written
}

// An entryRow is an Entry as the database has it.
type entryRow struct {
	ID int64 `json:"id"`
	Entry
}

// put makes or edits a schedule, in a transaction.
func (s *Scheduler) put(ctx context.Context, tx pgx.Tx, want *record, rule Rule) error {
	for {
		now, have, sameArgs, err := s.sendGet(ctx, tx, want.Name, true, want.Args)
		if err != nil {
			return err
		}
		r, fates := *want, []fate(nil)
		switch {
		case have == nil:
			r.Cursor, r.Anchor = now, now
		case have.Rule == r.Rule:
			r.keep(have)
		default:
			r.keep(have)
			if fates, err = r.supersede(have, now); err != nil {
				return err
			}
			r.Anchor, r.CursorLocal, r.WaitsSince = now, nil, nil // the cursor may lie ahead, where the clock was set back
		}
		r.Registered = now
		r.Due = r.next(rule)
		if have != nil && sameArgs && same(&r, have) {
			if !r.Declared {
				return nil
			}
		} else {
			r.Revision++
			r.Waits = nil // but for what it has waited it is not late
		}
		written, err := s.sendPut(ctx, tx, &r, fates)
		if err != nil || written {
			return err
		}
	}
}

// keep keeps what is not the caller's to choose.
func (r *record) keep(have *record) {
	r.ID, r.Anchor, r.Cursor, r.CursorLocal, r.Revision, r.PausedAt = have.ID, have.Anchor, have.Cursor, have.CursorLocal, have.Revision, have.PausedAt
	r.Waits, r.WaitsSince, r.Trying, r.Failures = have.Waits, have.WaitsSince, have.Trying, have.Failures
}

// same reports whether a schedule is what the caller wants already, apart from its arguments.
func same(r, have *record) bool {
	return r.Key == have.Key && r.Kind == have.Kind && r.Rule == have.Rule && r.Policy == have.Policy && r.Declared == have.Declared
}

var errUntold = errors.New("its ticks until now cannot be told here")

// supersede has the schedule begin anew now. The ticks of its rule until then that have no fate are cancelled.
func (r *record) supersede(have *record, now time.Time) ([]fate, error) {
	r.Trying = nil
	if !now.After(have.Cursor) {
		return nil, nil // the clock was set back
	}
	rule, err := Parse(have.Rule)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUntold, err)
	}
	since, n := have.Cursor, rule.Passed(have.Anchor, have.cursor(), now).Count
	r.Cursor, r.CursorLocal = now, nil
	if n == 0 {
		return nil, nil
	}
	return []fate{{Since: since, Until: now, Ticks: n, Fate: FateCancelled}}, nil
}

// cursor is the cursor as the rule takes it.
func (r *record) cursor() Tick { return tickAt(r.Cursor, r.CursorLocal) }

// tickAt is a cursor as a rule takes it: the local time is nil where the cursor is no tick.
func tickAt(cursor time.Time, local *time.Time) Tick {
	t := Tick{At: cursor}
	if local != nil {
		t.Local = *local
	}
	return t
}

// next returns when the schedule's owner is to look at it next; nil: never.
func (r *record) next(rule Rule) *time.Time {
	if r.PausedAt != nil {
		return nil
	}
	switch t := r.Trying; {
	case t != nil && t.Again.IsZero(): // it runs just now
		return &t.At
	case t != nil:
		return &t.Again
	}
	return r.dueAfter(rule, r.cursor())
}

// dueAfter returns when the first tick after another is due; nil: there is none.
func (r *record) dueAfter(rule Rule, last Tick) *time.Time {
	tick, ok := rule.Next(r.Anchor, last)
	if !ok {
		return nil
	}
	due := jitter(r.Name, tick.At, r.Policy.Jitter)
	return &due
}

// Get returns a schedule of the group. ErrNotFound where there is none of the name.
func (s *Scheduler) Get(ctx context.Context, name string) (Schedule, error) {
	_, r, _, err := s.sendGet(ctx, s.pool, name, false, json.RawMessage("null"))
	if err == nil && r == nil {
		err = ErrNotFound
	}
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule: get schedule %q of group %q: %w", name, s.group, store.Advised(err))
	}
	return r.schedule(), nil
}

// page is how many rows are read at once.
const page = 500

// pages yields the values of rows that are read page by page, each from behind the last row of the one before.
func pages[K, R, V any](doing string, first K, read func(after K) ([]R, error), value func(R) (V, K)) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		for after, more := first, true; more; {
			rows, err := read(after)
			if err != nil {
				yield(*new(V), fmt.Errorf("schedule: %s: %w", doing, store.Advised(err)))
				return
			}
			for _, r := range rows {
				var v V
				if v, after = value(r); !yield(v, nil) {
					return
				}
			}
			more = len(rows) == page
		}
	}
}

// List returns the schedules of the group whose names have a prefix, by name, page by page: not all of one moment. An error ends it.
func (s *Scheduler) List(ctx context.Context, prefix string) iter.Seq2[Schedule, error] {
	return pages(fmt.Sprintf("list schedules of group %q", s.group), "", func(after string) ([]*record, error) {
		return s.sendList(ctx, s.pool, prefix, after, page)
	}, func(r *record) (Schedule, string) { return r.schedule(), r.Name })
}

// History returns what became of the ticks of a schedule, and of its runs besides, the newest first, also of earlier schedules of
// its name. An error ends it.
func (s *Scheduler) History(ctx context.Context, name string) iter.Seq2[Entry, error] {
	return pages(fmt.Sprintf("history of schedule %q of group %q", name, s.group), int64(math.MaxInt64), func(before int64) ([]*entryRow, error) {
		return s.sendHistory(ctx, s.pool, name, before, page)
	}, func(e *entryRow) (Entry, int64) { return e.Entry, e.ID })
}
