package schedule

import (
	"fmt"
	"time"

	"github.com/pgleases/pgleases/internal/worker"
)

// A decision is what to do with a schedule or job now: the run, if there is one, and the step to
// write.
type decision struct {
	step
	run    *Tick // nil: no run
	missed int64 // ticks that the run stands for
	zone   *time.Location
	before Tick // the cursor before the run, which it keeps until the run has its outcome
	// a failed call may have had its effect, and must not be repeated
	doubtful bool
}

// A blocked schedule or job is checked again after as long as it has been blocked: at least
// blockedLeast, at most blockedMost. Waiting longer is sensible, because a process learns no new
// kinds. A new owner checks at once.
const (
	blockedLeast = time.Minute
	blockedMost  = time.Hour
)

// decide decides by the database's clock, at the time when the schedule was read. It uses no
// database. unreadable is the error of parsing the arguments. For a crash suspect, the crash is
// counted before the arguments are parsed, because parsing may be what crashes the process; then
// decide is called again.
func (r *scheduleRow) decide(k *kind, declared bool, epoch int64, unreadable error) decision {
	d := decision{step: step{Before: r.Cursor, Cursor: r.Cursor, CursorLocal: r.CursorLocal, Trying: r.Trying}}
	if r.PausedAt != nil {
		return d
	}
	rule, err := Rule{}, unreadable
	switch {
	case k == nil:
		err = errUnregistered(r.Kind)
	case r.Declared && !declared:
		last := r.Registered.UTC().Format(time.DateTime)
		err = fmt.Errorf("only another version of the code declares it, last noted at %s UTC", last)
	}
	if err == nil {
		rule, err = Parse(r.Rule)
	}
	if d.begins(&r.row, rule, err, epoch) {
		r.decideTicks(&d, rule, r.Clock, epoch)
	}
	return d
}

// decide decides for a job, which has no ticks: it runs, waits or is blocked.
func (r *jobRow) decide(k *kind, _ bool, epoch int64, unreadable error) decision {
	d := decision{step: step{Trying: r.Trying}}
	rule, err := Rule{}, unreadable
	if k == nil {
		err = errUnregistered(r.Kind)
	}
	if err == nil && r.Rule != "" { // it is an extra run of a schedule
		rule, err = Parse(r.Rule)
	}
	if d.begins(&r.row, rule, err, epoch) {
		r.decideRun(&d, r.Clock, epoch)
	}
	return d
}

// begins reports whether this process can run it, and an attempt may begin now. err says why not.
func (d *decision) begins(r *row, rule Rule, err error, epoch int64) bool {
	if err != nil {
		d.wait(err, r.BlockedSince, r.Clock, epoch)
		return false
	}
	d.zone = rule.zone()
	if r.Trying != nil && r.Trying.Again.After(r.Clock) {
		d.Due = &r.Trying.Again
		return false
	}
	return true
}

// decideTicks decides which ticks of a schedule are missed or skipped, and which one runs.
func (r *scheduleRow) decideTicks(d *decision, rule Rule, now time.Time, epoch int64) {
	begin := func(tick Tick, missed int64, began time.Time) {
		d.run, d.missed = &tick, missed
		d.before, d.RanFrom = d.cursor(), &began
		d.Outcomes = append(d.Outcomes, newEntry{
			Since: d.Cursor, Until: tick.At, Ticks: 1, Attempts: r.attempts() + 1, Epoch: &epoch, StartedAt: &now,
			Rule: r.Rule, Begins: r.Succeeded,
		})
		d.moveTo(tick)
	}
	// it runs until it has its outcome, however late; until then it counts as under way
	if t := r.Trying; t != nil {
		begin(Tick{At: t.At, Local: t.Local}, t.Missed, t.Began)
		d.Due = r.dueAfter(rule, d.cursor())
		return
	}
	pass := func(p tickCount, f Outcome) {
		if p.Count > 0 {
			d.Outcomes = append(d.Outcomes, newEntry{Since: d.Cursor, Until: p.Last.At, Ticks: p.Count, Outcome: f})
			d.moveTo(p.Last)
		}
	}
	// The last run was not one of several to catch up with, so ticks that passed during it are
	// skipped.
	if r.Policy.Overlap == OverlapSkip && r.RanUntil != nil &&
		rule.ticksPassed(r.Anchor, r.cursor(), *r.RanFrom).Count == 0 {
		// later ticks may have been delayed by jitter until the run ended
		until := r.RanUntil.Add(-r.Policy.Jitter)
		pass(rule.ticksPassed(r.Anchor, r.cursor(), until), OutcomeSkipped)
	}
	due := r.due(rule, d.cursor(), now)
	pass(due.Missed, OutcomeMissed)
	if len(due.Run) > 0 {
		begin(due.Run[0], due.Missed.Count, now)
	}
	d.Due = r.dueAfter(rule, d.cursor())
}

// wait leaves it to a process that can run it. If a crash was counted for parsing the arguments,
// wait takes that back, because this process did not crash.
func (d *decision) wait(err error, since *time.Time, now time.Time, epoch int64) {
	again := now.Add(blockedLeast)
	if since != nil {
		again = now.Add(min(max(blockedLeast, now.Sub(*since)), blockedMost))
	}
	d.BlockedReason, d.Due = storableText(err), &again
	if d.Trying.countedBy(epoch) {
		t := *d.Trying
		t.Crashes, t.Epoch = t.Crashes-1, 0
		d.Trying = &t
		// The record was only for the crash: no run is under way for which other ticks would be
		// skipped.
		if t.Crashes == 0 && t.Called == 0 && t.Again.IsZero() {
			d.Trying = nil
		}
	}
}

// done sets the outcome succeeded.
func (d *decision) done() {
	d.Outcomes[len(d.Outcomes)-1].Outcome = OutcomeSucceeded
	d.Succeeded, d.Failures = &d.run.At, new(int)
	d.Trying = nil
}

// failed sets the result of a failed run: another attempt, or the outcome failed.
func (d *decision) failed(of runnable, l limits, err error, now time.Time) {
	tried := value(of.common().Trying)
	t := trial{
		At: d.run.At, Local: d.run.Local, Missed: d.missed,
		Began: *d.RanFrom, Attempts: tried.Attempts, Error: tried.Error,
	}
	now = now.Truncate(time.Microsecond) // the precision of the database
	verdict, later := worker.Verdict(err)
	d.Succeeded, d.Failures = nil, nil // done may have set them
	switch {
	case verdict == worker.Snoozed:
		t.Again = now.Add(later.Truncate(time.Microsecond))
	case verdict == worker.Away:
		t.Away = tried.Away + 1
		t.Error, t.Again = storableText(err), now.Add(worker.OutagePause(t.Away, l.exact))
	case t.Attempts+1 < l.attempts && !final(err):
		t.Attempts++
		t.Error, t.Again = storableText(err), now.Add(worker.PauseAfter(t.Attempts, l.backoff))
	default:
		last := &d.Outcomes[len(d.Outcomes)-1]
		last.Outcome, last.Error = OutcomeFailed, storableText(err)
		if d.doubtful {
			last.Outcome = OutcomeUnknown
		}
		d.Trying = nil
		of.countFailure(d, now)
		return
	}
	d.unstep(t)
}

// countFailure counts a failed tick, and pauses the schedule after as many as WithPauseAfter says.
func (r *scheduleRow) countFailure(d *decision, now time.Time) {
	failures := r.Failures + 1
	d.Failures = &failures
	if r.Policy.PauseAfter > 0 && failures >= r.Policy.PauseAfter {
		d.PausedAt, d.Due = &now, nil
	}
}

func (r *jobRow) countFailure(*decision, time.Time) {}

// note records that the process is about to call the handler. For a crash suspect it counts a
// crash, which the end of the run takes back.
func (d *decision) note(r *row, epoch int64, suspected bool) {
	t := trial{At: d.run.At, Local: d.run.Local, Missed: d.missed, Began: *d.RanFrom}
	if r.Trying != nil {
		t = *r.Trying
	}
	if suspected {
		t.Crashes++
		t.Epoch = epoch
	}
	d.unstep(t)
	d.Due = r.Due
}

// lost sets the outcome unknown.
func (d *decision) lost(r *row) {
	last := &d.Outcomes[len(d.Outcomes)-1]
	last.Outcome = OutcomeUnknown
	last.Epoch, last.StartedAt = &r.Trying.Called, &r.Trying.Began
	last.Error = storableText(errCutOff)
	d.Trying = nil
}

// unstep leaves the cursor before the run, because its tick has no outcome yet.
func (d *decision) unstep(t trial) {
	d.Outcomes = d.Outcomes[:len(d.Outcomes)-1]
	d.Cursor, d.CursorLocal = d.before.At, nil
	if !d.before.Local.IsZero() {
		d.CursorLocal = &d.before.Local
	}
	d.Trying, d.Due = &t, &t.Again
}

// decideRun decides whether a job runs now.
func (r *jobRow) decideRun(d *decision, now time.Time, epoch int64) {
	if r.Trying == nil && r.At.After(now) { // it was replaced after the poll, or the time of this host is ahead
		d.Due = &r.At
		return
	}
	began := now
	if r.Trying != nil {
		began = r.Trying.Began
	}
	d.run, d.RanFrom = &Tick{At: r.At, Local: r.At}, &began
	d.Outcomes = []newEntry{{
		Since: r.At, Until: r.At, Ticks: 1, Attempts: r.attempts() + 1, Epoch: &epoch, StartedAt: &now,
		Key: r.Key, Args: r.Args, Nonce: r.Nonce,
	}}
}

// due returns what to do with the ticks after last. A tick that is delayed by jitter has not
// passed.
func (r *scheduleRow) due(rule Rule, last Tick, now time.Time) dueTicks {
	p := r.Policy
	grace := p.Grace
	if p.Missed == MissedNone && grace == 0 {
		grace = onTime
	}
	if grace > 0 {
		grace += p.Jitter
		if r.BlockedSince != nil {
			grace += max(0, now.Sub(*r.BlockedSince))
		}
	}
	for until := now; ; {
		left := grace
		if grace > 0 {
			left = max(1, grace-now.Sub(until)) // 0 would be no limit
		}
		due := rule.ticksDue(r.Anchor, last, until, p.Missed, left)
		n := len(due.Run)
		if n == 0 || !jitter(r.Name, due.Run[n-1].At, p.Jitter).After(now) {
			return due
		}
		until = due.Run[n-1].At.Add(-time.Microsecond)
	}
}

// unchanged reports whether the step would change no column.
func (d *decision) unchanged(r *row) bool {
	return len(d.Outcomes) == 0 && value(d.BlockedReason) == value(r.BlockedReason) && value(d.Due).Equal(value(r.Due))
}

// moveTo moves the cursor to a tick.
func (s *step) moveTo(t Tick) { s.Cursor, s.CursorLocal = t.At, &t.Local }

func (s *step) cursor() Tick { return tickAt(s.Cursor, s.CursorLocal) }
