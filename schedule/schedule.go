package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Schedule is the state of a schedule, as Get and List return it.
type Schedule struct {
	ID        int64           `json:"id"` // a later schedule of the same name has another
	Name      string          `json:"name"`
	Key       string          `json:"key"`
	Kind      string          `json:"kind"`
	Args      json.RawMessage `json:"args"`
	Rule      string          `json:"rule"`      // a text for Parse
	Partition int             `json:"partition"` // of the lease schedule/GROUP, by the key
	// Client ID of the process that runs it; empty: its partition has no owner
	Owner    string `json:"owner"`
	State    State  `json:"state"`
	Why      string `json:"why"`      // the reason for State, if it is known
	Declared bool   `json:"declared"` // by the code, with Add
	// DeclaredAt is when a process last recorded that its code declares the schedule: at its start,
	// and once a day. Zero: no code declares it.
	DeclaredAt time.Time `json:"declared_at,omitzero"`
	// Every tick up to this instant has its outcome; in the future if the database's clock was set
	// back
	Cursor time.Time `json:"cursor"`
	// When its owner runs it next; zero: never
	Due time.Time `json:"due,omitzero"`
	// When the run under way began; zero: no run, or this role cannot see that
	StartedAt time.Time `json:"started_at,omitzero"`
	// How long it has been blocked, or its tick has been due, run included; 0: it is not due
	Late time.Duration `json:"late_ns"`
	// The last tick that succeeded; zero: no tick did
	Succeeded time.Time `json:"succeeded,omitzero"`
	// Of the last tick with an outcome, while the history keeps it
	LastOutcome Outcome   `json:"last_outcome"`
	PausedAt    time.Time `json:"paused_at,omitzero"` // zero: it is not paused
	// Consecutive failed ticks, since the last success or Resume
	Failures int `json:"failures"`
	// Failed attempts at the tick that runs again at Due
	Attempts int `json:"attempts"`
	// Processes that crashed while they ran that tick, without the first. While a process runs it as
	// a crash suspect, one more: its Run.Crashes plus 1
	Crashes int `json:"crashes"`
	// Of the last failed attempt; otherwise, if Failures is not 0, of the last failed tick
	Error string `json:"error"`
}

// A State is the state of a schedule, or of a job that has not ended.
type State string

// The states.
const (
	StatePlanned  State = "planned" // not due yet
	StateDue      State = "due"     // begins as soon as its owner has room
	StateRunning  State = "running"
	StateRetrying State = "retrying" // an attempt failed; it runs again at Due
	StateBlocked  State = "blocked"  // its owner cannot run it, see Why
	StatePaused   State = "paused"   // a schedule, until Resume
)

// A ScheduleFilter selects the schedules that List returns. An empty field selects all.
type ScheduleFilter struct {
	Prefix string // of the names
	After  string // only names after this one, in byte order
	Only   string // OnlyLate, OnlyBlocked, OnlyPaused or OnlyFailing
}

// The values of ScheduleFilter.Only.
const (
	OnlyLate    = "late"    // by more than 10 s
	OnlyBlocked = "blocked" // their owners cannot run them
	OnlyPaused  = "paused"
	OnlyFailing = "failing" // their last tick failed
)

// value returns *p, or zero if p is nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Get returns a schedule of the group. It returns ErrNotFound if the group has no schedule of this
// name.
func (s *Scheduler) Get(ctx context.Context, name string) (Schedule, error) {
	found, err := asked(ctx, s.db, func(ctx context.Context, q querier) ([]Schedule, error) {
		return s.db.sendList(ctx, q, ScheduleFilter{Prefix: name}, "", 1)
	})
	if err == nil && (len(found) == 0 || found[0].Name != name) {
		err = ErrNotFound
	}
	if err != nil {
		err = store.Advised(err)
		return Schedule{}, wrap.Errorf("schedule: get schedule %q of group %q: %w", name, s.db.group, err)
	}
	return found[0], nil
}

// page is how many rows one statement reads.
const page = 100

// pages yields rows, page by page. Each page begins after the last row of the page before.
func pages[K, V any](doing string, first K, read func(after K) ([]V, error), key func(V) K) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		for after, more := first, true; more; {
			rows, err := read(after)
			if err != nil {
				yield(*new(V), wrap.Errorf("schedule: %s: %w", doing, store.Advised(err)))
				return
			}
			for _, v := range rows {
				after = key(v)
				if !yield(v, nil) {
					return
				}
			}
			more = len(rows) == page
		}
	}
}

// List returns the schedules of the group by name. It reads page by page, so they are not of one
// moment. With OnlyLate or OnlyBlocked it returns 1,000 at most. An error ends the iteration.
func (s *Scheduler) List(ctx context.Context, filter ScheduleFilter) iter.Seq2[Schedule, error] {
	doing := fmt.Sprintf("list schedules of group %q", s.db.group)
	return pages(doing, filter.After, func(after string) ([]Schedule, error) {
		switch filter.Only {
		case "", OnlyLate, OnlyBlocked, OnlyPaused, OnlyFailing:
			return asked(ctx, s.db, func(ctx context.Context, q querier) ([]Schedule, error) {
				return s.db.sendList(ctx, q, filter, after, page)
			})
		}
		return nil, fmt.Errorf("the filter Only is %q: use late, blocked, paused, failing or empty", filter.Only)
	}, func(one Schedule) string { return one.Name })
}
