package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// A Schedule is what is known of a schedule.
type Schedule struct {
	ID        int64           `json:"id"` // of this schedule, and of no later one of its name
	Name      string          `json:"name"`
	Key       string          `json:"key"`
	Kind      string          `json:"kind"`
	Args      json.RawMessage `json:"args"`
	Rule      string          `json:"rule"`      // as Parse reads it
	Partition int             `json:"partition"` // of the lease schedule/GROUP, by the key
	Owner     string          `json:"owner"`     // the client ID of its owner, which runs the schedule; empty: none
	State     State           `json:"state"`
	Why       string          `json:"why"`      // why it is in this state, as far as that is known
	Declared  bool            `json:"declared"` // in the code, with Add
	// DeclaredAt is when a process last noted that its code declares it: at its start, and once a day;
	// zero: no code declares it.
	DeclaredAt  time.Time     `json:"declared_at,omitzero"`
	Cursor      time.Time     `json:"cursor"`             // every tick up to this has its outcome; if it lies ahead, the database's clock was set back
	Due         time.Time     `json:"due,omitzero"`       // when its owner runs it next; zero: never
	Late        time.Duration `json:"late_ns"`            // how long it has waited, or its tick has been due, run included; 0: nothing is due
	Succeeded   time.Time     `json:"succeeded,omitzero"` // the last tick that succeeded; zero: none did
	LastOutcome Outcome       `json:"last_outcome"`       // of the last tick that has one, while the history keeps it
	PausedAt    time.Time     `json:"paused_at,omitzero"` // zero: it is not paused
	Failures    int           `json:"failures"`           // how many consecutive ticks failed, since the last that succeeded, or since Resume
	Attempts    int           `json:"attempts"`           // how many failed, of the tick that runs again at Due
	Crashes     int           `json:"crashes"`            // how many processes crashed while they ran that tick, with the one that runs it now, if it is a crash suspect
	Error       string        `json:"error"`              // of the last attempt that failed; else, if Failures is not 0, of the last tick that failed
}

// A State is what a schedule does, or a job that has not ended.
type State string

// The states.
const (
	StatePlanned  State = "planned" // it is not due
	StateDue      State = "due"     // it is to begin now
	StateRunning  State = "running"
	StateRetrying State = "retrying" // it failed, and runs again when it is due
	StateBlocked  State = "blocked"  // the process that owns it cannot run it
	StatePaused   State = "paused"   // a schedule, until Resume
	StateOver     State = "over"     // a schedule that has no further tick
)

// A ScheduleFilter says which schedules List returns. What is empty means all.
type ScheduleFilter struct {
	Prefix string // of their names
	After  string // only names after this one
	Only   string // OnlyLate, OnlyBlocked, OnlyPaused or OnlyFailing
}

// The values of ScheduleFilter.Only.
const (
	OnlyLate    = "late"    // by more than 10 s
	OnlyBlocked = "blocked" // the processes that own them cannot run them
	OnlyPaused  = "paused"
	OnlyFailing = "failing" // their last ticks failed
)

// value is what p points to; zero for nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Get returns a schedule of the group. It returns ErrNotFound if the group has none of the name.
func (s *Scheduler) Get(ctx context.Context, name string) (Schedule, error) {
	found, err := s.db.sendList(ctx, s.db.pool, ScheduleFilter{Prefix: name}, "", 1)
	if err == nil && (len(found) == 0 || found[0].Name != name) {
		err = ErrNotFound
	}
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule: get schedule %q of group %q: %w", name, s.db.group, store.Advised(err))
	}
	return *found[0], nil
}

// page is how many rows are read at once.
const page = 100

// pages yields the values of rows that are read page by page, each from behind the last row of the
// one before.
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

// List returns the schedules of the group, by name, page by page: not all of one moment. Of those
// that are late or blocked it finds 1,000 at most. An error ends it.
func (s *Scheduler) List(ctx context.Context, filter ScheduleFilter) iter.Seq2[Schedule, error] {
	return pages(fmt.Sprintf("list schedules of group %q", s.db.group), filter.After, func(after string) ([]*Schedule, error) {
		switch filter.Only {
		case "", OnlyLate, OnlyBlocked, OnlyPaused, OnlyFailing:
			return s.db.sendList(ctx, s.db.pool, filter, after, page)
		}
		return nil, fmt.Errorf("only %q: give late, blocked, paused, failing, or nothing", filter.Only)
	}, func(one *Schedule) (Schedule, string) { return *one, one.Name })
}

// A record is a schedule as the database stores it; or a job, which has some of that, and a time of
// its own.
type record struct {
	ID            int64           `json:"id"` // 0: it is new
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
	Nonce         string          `json:"nonce,omitempty"` // names it for others than this database
	Clock         time.Time       `json:"clock"`           // when it was read
	SameArgs      bool            `json:"same_args"`       // as those that were asked about
	Job           bool            `json:"job"`
	Trigger       Trigger         `json:"trigger"`
	Since         *time.Time      `json:"begins"`
	At            time.Time       `json:"at"` // of a job: the time that it was put for

	parsed *Rule // Rule, if that was parsed before
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
	Failures      *int       `json:"failures,omitempty"`  // null: it changes nothing
	PausedAt      *time.Time `json:"paused_at,omitempty"` // null: it does not pause it
	BlockedReason *string    `json:"blocked_reason,omitempty"`
	Outcomes      []newEntry `json:"outcomes"`
}

// inASCII writes the texts of errors so that every encoding of a database can keep them.
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

// A trial is a tick that was begun, and has no outcome yet.
type trial struct {
	At       time.Time `json:"at"`
	Local    time.Time `json:"local"`
	Missed   int64     `json:"missed"`
	Began    time.Time `json:"began"`    // the first attempt
	Attempts int       `json:"attempts"` // that failed
	Error    *string   `json:"error"`    // of the last of them
	Again    time.Time `json:"again"`    // not before
	Crashes  int       `json:"crashes"`  // how many processes crashed while it ran, and the one that runs it now, under Epoch
	Epoch    int64     `json:"epoch"`
	Called   int64     `json:"called"` // the epoch of Run
	Run      string    `json:"run"`    // which calls the handler outside of a transaction; empty: none does
}

func (t *trial) begun() string { return value(t).Run }

func (t *trial) crashes() int { return value(t).Crashes }

// countedBy reports whether the last crash is that of an owner.
func (t *trial) countedBy(epoch int64) bool { return t != nil && t.Epoch == epoch }

// A newEntry is a row of the history, as it is written.
type newEntry struct {
	Since     time.Time  `json:"since"`
	Until     time.Time  `json:"until"`
	Ticks     int64      `json:"ticks"`
	Outcome   Outcome    `json:"outcome"`
	Error     *string    `json:"error,omitempty"`
	Attempts  int        `json:"attempts"`
	Epoch     *int64     `json:"epoch,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`

	// Of a job's run, what ran: it may have been replaced since.
	Key  string          `json:"key,omitempty"`
	Args json.RawMessage `json:"args,omitempty"`
}

// A subject is a schedule, or a job.
type subject struct {
	ID  int64
	Job bool
}

// cursor is the cursor as the rule takes it.
func (r *record) cursor() Tick { return tickAt(r.Cursor, r.CursorLocal) }

// tickAt is a cursor as a rule takes it: the local time is nil if the cursor is no tick.
func tickAt(cursor time.Time, local *time.Time) Tick { return Tick{At: cursor, Local: value(local)} }

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
