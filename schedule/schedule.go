package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/pgleases/pgleases/internal/store"
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
		return Schedule{}, fmt.Errorf("schedule: get schedule %q of group %q: %w", name, s.db.group, store.Advised(err))
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
				yield(*new(V), fmt.Errorf("schedule: %s: %w", doing, store.Advised(err)))
				return
			}
			for _, v := range rows {
				if after = key(v); !yield(v, nil) {
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
	return pages(fmt.Sprintf("list schedules of group %q", s.db.group), filter.After, func(after string) ([]Schedule, error) {
		switch filter.Only {
		case "", OnlyLate, OnlyBlocked, OnlyPaused, OnlyFailing:
			return asked(ctx, s.db, func(ctx context.Context, q querier) ([]Schedule, error) {
				return s.db.sendList(ctx, q, filter, after, page)
			})
		}
		return nil, fmt.Errorf("the filter Only is %q: use late, blocked, paused, failing or empty", filter.Only)
	}, func(one Schedule) string { return one.Name })
}

// A record is a schedule as the database stores it. A record of a job has some of these fields, and
// At.
type record struct {
	ID            int64           `json:"id"` // 0: a new schedule
	Name          string          `json:"name"`
	Key           string          `json:"key"`
	Partition     int             `json:"partition"`
	Kind          string          `json:"kind"`
	Args          json.RawMessage `json:"args"`
	Rule          string          `json:"rule"`
	Anchor        time.Time       `json:"anchor"`
	Policy        policy          `json:"policy"`
	Declared      bool            `json:"declared"`
	Cursor        time.Time       `json:"cursor"`
	CursorLocal   *time.Time      `json:"cursor_local"`
	Due           *time.Time      `json:"due"`
	Succeeded     *time.Time      `json:"succeeded"`
	RanFrom       *time.Time      `json:"ran_from"`
	RanUntil      *time.Time      `json:"ran_until"`
	Trying        *trial          `json:"trying"`
	Failures      int             `json:"failures"`
	Revision      int64           `json:"revision"`
	PausedAt      *time.Time      `json:"paused_at"`
	BlockedReason *string         `json:"blocked_reason"`
	BlockedSince  *time.Time      `json:"blocked_since"`
	Registered    time.Time       `json:"registered"`
	Nonce         string          `json:"nonce,omitempty"` // identifies it outside of this database
	Clock         time.Time       `json:"clock"`           // when the record was read
	// The arguments equal those of the question
	SameArgs bool       `json:"same_args"`
	Job      bool       `json:"job"`
	Trigger  Trigger    `json:"trigger"`
	Since    *time.Time `json:"begins"`
	At       time.Time  `json:"at"` // of a job: see Job.At
	// The following fields are those of schedule_open.
	Transaction string    `json:"transaction,omitzero"`
	Server      time.Time `json:"server,omitzero"` // when the server started

	ill error // why the row cannot be read; then only what identifies it is set
}

// A step is what schedule_close writes.
type step struct {
	Cursor        time.Time  `json:"cursor"`
	CursorLocal   *time.Time `json:"cursor_local,omitempty"`
	Due           *time.Time `json:"due,omitempty"`
	Succeeded     *time.Time `json:"succeeded,omitempty"`
	RanFrom       *time.Time `json:"ran_from,omitempty"`
	RanUntil      *time.Time `json:"ran_until,omitempty"`
	Trying        *trial     `json:"trying,omitempty"`
	Failures      *int       `json:"failures,omitempty"`  // null: unchanged
	PausedAt      *time.Time `json:"paused_at,omitempty"` // null: unchanged
	BlockedReason *string    `json:"blocked_reason,omitempty"`
	Outcomes      []newEntry `json:"outcomes"`
}

// inASCII quotes the texts of errors, so that every encoding of a database can store them.
func (st *step) inASCII() {
	for i := range st.Outcomes {
		st.Outcomes[i].Error = inASCII(st.Outcomes[i].Error)
	}
	st.BlockedReason = inASCII(st.BlockedReason)
	if st.Trying != nil {
		t := *st.Trying
		t.Error = inASCII(t.Error)
		st.Trying = &t
	}
}

// A trial is a tick that has begun and has no outcome yet.
type trial struct {
	At       time.Time `json:"at"`
	Local    time.Time `json:"local"`
	Missed   int64     `json:"missed"`
	Began    time.Time `json:"began"`          // the first attempt
	Attempts int       `json:"attempts"`       // failed ones
	Away     int       `json:"away,omitempty"` // how often in a row something was away since
	Error    *string   `json:"error"`          // of the last failed attempt
	Again    time.Time `json:"again"`          // the next attempt begins no earlier
	// Processes that crashed while it ran; includes the one that runs it now, under Epoch
	Crashes int   `json:"crashes"`
	Epoch   int64 `json:"epoch"`
	Called  int64 `json:"called"` // the epoch of Run
	// The run that calls the handler outside of a transaction; empty: no run does
	Run     string    `json:"run"`
	Once    bool      `json:"once,omitempty"`   // Run is of AtMostOnce, whatever the kind is now
	Started time.Time `json:"started,omitzero"` // when Run began
	Ends    time.Time `json:"ends,omitzero"`    // when its timeout ends
}

func (t *trial) begun() string { return value(t).Run }

// calledOnce reports whether a call of AtMostOnce has begun, which must not be repeated.
func (t *trial) calledOnce() bool { return t != nil && t.Run != "" && t.Once }

func (t *trial) crashes() int { return value(t).Crashes }

// countedBy reports whether the last crash was counted under this epoch.
func (t *trial) countedBy(epoch int64) bool { return t != nil && t.Epoch == epoch }

// A newEntry is a row of the history to write.
type newEntry struct {
	Since     time.Time  `json:"since"`
	Until     time.Time  `json:"until"`
	Ticks     int64      `json:"ticks"`
	Outcome   Outcome    `json:"outcome"`
	Error     *string    `json:"error,omitempty"`
	Attempts  int        `json:"attempts"`
	Epoch     *int64     `json:"epoch,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`

	// What ran, because it may have been edited or replaced since: of a job, and of a schedule.
	Key    string          `json:"key,omitempty"`
	Args   json.RawMessage `json:"args,omitempty"`
	Nonce  string          `json:"nonce,omitempty"`
	Rule   string          `json:"rule,omitempty"`
	Begins *time.Time      `json:"begins,omitempty"`
}

// A subject is a schedule, or a job.
type subject struct {
	ID  int64
	Job bool
}

// cursor returns the cursor as a Tick.
func (r *record) cursor() Tick { return tickAt(r.Cursor, r.CursorLocal) }

// tickAt returns a cursor as a Tick. local is nil if the cursor is not a tick.
func tickAt(cursor time.Time, local *time.Time) Tick { return Tick{At: cursor, Local: value(local)} }

// next returns when the schedule's owner must run or check it next; nil: never.
func (r *record) next(rule Rule) *time.Time {
	if r.PausedAt != nil {
		return nil
	}
	switch t := r.Trying; {
	case t != nil && t.Again.IsZero(): // it is running
		return &t.At
	case t != nil:
		return &t.Again
	}
	return r.dueAfter(rule, r.cursor())
}

// dueAfter returns when the first tick after last is due; nil: no tick follows.
func (r *record) dueAfter(rule Rule, last Tick) *time.Time {
	tick, ok := rule.Next(r.Anchor, last)
	if !ok {
		return nil
	}
	due := jitter(r.Name, tick.At, r.Policy.Jitter)
	return &due
}
