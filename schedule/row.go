package schedule

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// This file has the rows of schedules and jobs as the database stores them, and what the end of a
// run writes.

// A runnable is a schedule or a job as an attempt has read it: a *scheduleRow or a *jobRow.
type runnable interface {
	common() *row
	// decide decides what to do, see decision.
	decide(k *kind, declared bool, epoch int64, unreadable error) decision
	// dueAt returns when a run of it was due.
	dueAt(run *Tick) time.Time
	// describe sets the fields of a Run that only a schedule or only a job has.
	describe(run *Run[json.RawMessage])
	// idempotencyKey identifies a tick or a job, and its retries.
	idempotencyKey(group string, at time.Time) string
	// countFailure records in a decision that the tick or the job has failed.
	countFailure(d *decision, now time.Time)
}

// A row has the columns that schedules and jobs have in common.
type row struct {
	ID            int64           `json:"id"`
	Name          string          `json:"name"`
	Key           string          `json:"key"`
	Partition     int             `json:"partition"`
	Kind          string          `json:"kind"`
	Args          json.RawMessage `json:"args"`
	Rule          string          `json:"rule"` // of a job: set only for an extra run of a schedule
	Due           *time.Time      `json:"due"`
	Trying        *trial          `json:"trying"` // nil: no attempt has begun
	Revision      int64           `json:"revision"`
	BlockedReason *string         `json:"blocked_reason"`
	BlockedSince  *time.Time      `json:"blocked_since"`
	Nonce         string          `json:"nonce"` // identifies it outside of this database
	Clock         time.Time       `json:"clock"` // when the row was read
	// The following fields are those of schedule_open.
	Transaction string    `json:"transaction"`
	Server      time.Time `json:"server"` // when the server started

	ill error // why the row cannot be read; then only what identifies it is set
}

func (r *row) common() *row { return r }

// attempts returns how many attempts at the current tick or job have failed.
func (r *row) attempts() int { return value(r.Trying).Attempts }

// A scheduleRow is a schedule as the database stores it.
type scheduleRow struct {
	row
	Anchor      time.Time  `json:"anchor"`
	Policy      policy     `json:"-"`
	Declared    bool       `json:"declared"`
	Cursor      time.Time  `json:"cursor"`
	CursorLocal *time.Time `json:"cursor_local"`
	Succeeded   *time.Time `json:"succeeded"`
	RanFrom     *time.Time `json:"ran_from"`
	RanUntil    *time.Time `json:"ran_until"`
	Failures    int        `json:"failures"`
	PausedAt    *time.Time `json:"paused_at"`
	Registered  time.Time  `json:"registered"`
	// The arguments equal those of the question
	SameArgs bool `json:"same_args"`
}

// A jobRow is a job as the database stores it.
type jobRow struct {
	row
	Trigger Trigger    `json:"trigger"`
	Begins  *time.Time `json:"begins"`
	At      time.Time  `json:"at"` // see Job.At
}

// decodeSchedule returns a schedule; nil for NULL.
func decodeSchedule(text *string) (*scheduleRow, error) {
	if text == nil {
		return nil, nil
	}
	v := struct {
		*scheduleRow
		trial
		policyColumns
	}{scheduleRow: new(scheduleRow)}
	if err := json.Unmarshal([]byte(*text), &v); err != nil {
		return nil, err
	}
	var err error
	if v.Trying == nil { // it is not of schedule_open
		v.Trying = &v.trial
	}
	v.Trying = v.Trying.begunTrial()
	v.Policy, err = v.policy()
	return v.scheduleRow, err
}

// decodeJob returns a job; nil for NULL.
func decodeJob(text *string) (*jobRow, error) {
	if text == nil {
		return nil, nil
	}
	r := new(jobRow)
	if err := json.Unmarshal([]byte(*text), r); err != nil {
		return nil, err
	}
	r.Trying = r.Trying.begunTrial()
	return r, nil
}

// policyColumns are the columns of a policy.
type policyColumns struct {
	Missed      string `json:"missed"`
	Overlap     string `json:"overlap"`
	GraceMicro  int64  `json:"grace"`
	JitterMicro int64  `json:"jitter"`
	PauseAfter  int    `json:"pause_after"`
}

var (
	missedNames  = []string{MissedLatest: "latest", MissedNone: "none", MissedAll: "all"}
	overlapNames = []string{OverlapSkip: "skip", OverlapBuffer: "buffer"}
)

// longestDuration is the longest time.Duration in microseconds.
const longestDuration = int64((1<<63 - 1) / time.Microsecond)

func (c policyColumns) policy() (policy, error) {
	missed, overlap := slices.Index(missedNames, c.Missed), slices.Index(overlapNames, c.Overlap)
	switch {
	case missed < 0:
		return policy{}, fmt.Errorf("its column missed is %q", c.Missed)
	case overlap < 0:
		return policy{}, fmt.Errorf("its column overlap is %q", c.Overlap)
	case min(c.GraceMicro, c.JitterMicro) < 0, max(c.GraceMicro, c.JitterMicro) > longestDuration:
		return policy{}, errors.New("its grace or jitter is negative, or longer than 292 years")
	}
	return policy{
		Missed: Missed(missed), Overlap: Overlap(overlap), PauseAfter: c.PauseAfter,
		Grace: time.Duration(c.GraceMicro) * time.Microsecond, Jitter: time.Duration(c.JitterMicro) * time.Microsecond,
	}, nil
}

// A step is what the end of a run writes. Of a job it has no cursor.
type step struct {
	Before        time.Time // the cursor until then
	Cursor        time.Time
	CursorLocal   *time.Time // nil: the cursor is not a tick
	Due           *time.Time // nil: never
	Succeeded     *time.Time // the tick that succeeded; nil: none
	RanFrom       *time.Time // when the handler was first called for the tick; nil: it was not called
	RanUntil      *time.Time // when it returned
	Trying        *trial     // nil: no attempt has begun at a tick or job without an outcome
	Failures      *int       // nil: unchanged
	PausedAt      *time.Time // nil: unchanged
	BlockedReason *string    // nil: it is not blocked
	Outcomes      []newEntry
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

// passed returns the outcomes of ticks without a run, and the outcome of the run; nil if there is
// none. A run that fills in its outcome later is the last of the outcomes.
func (st *step) passed() (without []newEntry, ran *newEntry) {
	n := len(st.Outcomes) - 1
	if n >= 0 && st.Outcomes[n].Epoch != nil {
		return st.Outcomes[:n], &st.Outcomes[n]
	}
	return st.Outcomes, nil
}

// endsTick reports whether a step is all that schedule_end_tick does: the first attempt at the tick
// after the cursor has succeeded.
func (r *scheduleRow) endsTick(st *step) bool {
	return r.Trying == nil && len(st.Outcomes) == 1 && st.Outcomes[0].Outcome == OutcomeSucceeded
}

// A trial is a tick or job that has begun and has no outcome yet. Its tags name the columns.
type trial struct {
	At       time.Time `json:"tick"`        // of a tick, as are Local and Missed
	Local    time.Time `json:"tick_local"`  // as it is shown, in any zone
	Missed   int64     `json:"tick_missed"` // ticks that it stands for
	Began    time.Time `json:"began"`       // the first attempt
	Attempts int       `json:"attempts"`    // failed ones
	Away     int       `json:"outages"`     // how often in a row something was away since
	Error    *string   `json:"error"`       // of the last failed attempt
	Again    time.Time `json:"retry_at"`    // the next attempt begins no earlier
	// Processes that crashed while it ran; includes the one that runs it now, under Epoch
	Crashes int   `json:"crashes"`
	Epoch   int64 `json:"crash_epoch"`
	// The run that calls the handler outside of a transaction; empty: no run does
	Run     string    `json:"call"`
	Called  int64     `json:"call_epoch"` // the epoch of Run
	Once    bool      `json:"call_once"`  // Run is of AtMostOnce, whatever the kind is now
	Started time.Time `json:"call_began"` // when Run began
	Ends    time.Time `json:"call_ends"`  // when its timeout ends
}

// begunTrial returns the trial of a row; nil if no attempt has begun.
func (t *trial) begunTrial() *trial {
	if t == nil || t.Began.IsZero() {
		return nil
	}
	return t
}

func (t *trial) begun() string { return value(t).Run }

// calledOnce reports whether a call of AtMostOnce has begun, which must not be repeated.
func (t *trial) calledOnce() bool { return t != nil && t.Run != "" && t.Once }

func (t *trial) crashes() int { return value(t).Crashes }

// countedBy reports whether the last crash was counted under this epoch.
func (t *trial) countedBy(epoch int64) bool { return t != nil && t.Epoch == epoch }

// A newEntry is a row of the history to write.
type newEntry struct {
	Since     time.Time
	Until     time.Time
	Ticks     int64
	Outcome   Outcome
	Error     *string
	Attempts  int
	Epoch     *int64 // nil: no run
	StartedAt *time.Time

	// What ran, because it may have been edited or replaced since: of a job, and of a schedule.
	Key    string
	Args   json.RawMessage
	Nonce  string
	Rule   string
	Begins *time.Time
}

// A subject is a schedule, or a job.
type subject struct {
	ID  int64
	Job bool
}

// cursor returns the cursor as a Tick.
func (r *scheduleRow) cursor() Tick { return tickAt(r.Cursor, r.CursorLocal) }

// tickAt returns a cursor as a Tick. local is nil if the cursor is not a tick.
func tickAt(cursor time.Time, local *time.Time) Tick { return Tick{At: cursor, Local: value(local)} }

// next returns when the schedule's owner must run or check it next; nil: never.
func (r *scheduleRow) next(rule Rule) *time.Time {
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
func (r *scheduleRow) dueAfter(rule Rule, last Tick) *time.Time {
	tick, ok := rule.Next(r.Anchor, last)
	if !ok {
		return nil
	}
	due := jitter(r.Name, tick.At, r.Policy.Jitter)
	return &due
}
