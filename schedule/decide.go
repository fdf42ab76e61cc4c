package schedule

import (
	"errors"
	"fmt"
	"time"
)

// A decision is what is to be done now about a schedule: the step to write, after a run where there is one.
type decision struct {
	step
	run    *Tick // null: nothing is to be run
	missed int64 // by the run
}

// unknown is how soon what waits is looked at again. A process that takes its partition over looks at once.
const unknown = time.Minute

// decide decides by the database's clock, at the moment when the schedule was read. It knows no database.
func (r *record) decide(k *kind, declared bool, epoch int64) decision {
	d := decision{step: step{Cursor: r.Cursor, CursorLocal: r.CursorLocal}}
	now := r.Clock
	if r.PausedAt != nil {
		return d
	}
	rule, err := Parse(r.Rule)
	switch {
	case err != nil:
	case k == nil:
		err = fmt.Errorf("kind %q is not registered", r.Kind)
	case r.Declared && !declared:
		err = errors.New("it is declared in the code of another version only")
	default:
		err = k.parse(r.Args)
	}
	if err != nil {
		again := now.Add(unknown)
		d.Waits, d.Due = kept(err), &again
		return d
	}

	pass := func(p Passed, f Fate) {
		if p.Count > 0 {
			d.Fates = append(d.Fates, fate{Since: d.Cursor, Until: p.Last.At, Ticks: p.Count, Fate: f})
			d.moveTo(p.Last)
		}
	}
	if r.Policy.Overlap == OverlapSkip && r.RanUntil != nil && rule.Passed(r.Anchor, r.cursor(), *r.RanFrom).Count == 0 { // else it catches up
		until := r.RanUntil.Add(-r.Policy.Jitter) // what came later may have been held back until the run had ended
		pass(rule.Passed(r.Anchor, r.cursor(), until), FateSkipped)
	}
	due := r.due(rule, d.cursor(), now)
	pass(due.Missed, FateMissed)
	if len(due.Run) > 0 {
		d.run, d.missed, d.RanFrom = &due.Run[0], due.Missed.Count, &now
		d.Fates = append(d.Fates, fate{Since: d.Cursor, Until: d.run.At, Ticks: 1, Epoch: &epoch, StartedAt: &now})
		d.moveTo(*d.run)
	}
	d.Due = r.dueAfter(rule, d.cursor())
	return d
}

// due tells what is to be done about the ticks after the last. A tick that jitter holds back has not come.
func (r *record) due(rule Rule, last Tick, now time.Time) Due {
	p := r.Policy
	grace := p.Grace
	if p.Missed == MissedNone && grace == 0 {
		grace = onTime
	}
	if grace > 0 {
		grace += p.Jitter
		if r.WaitsSince != nil {
			grace += max(0, now.Sub(*r.WaitsSince))
		}
	}
	for until := now; ; {
		left := grace
		if grace > 0 {
			left -= now.Sub(until)
			if left <= 0 {
				return Due{Missed: rule.Passed(r.Anchor, last, until)}
			}
		}
		due := rule.Due(r.Anchor, last, until, p.Missed, left)
		n := len(due.Run)
		if n == 0 || !jitter(r.Name, due.Run[n-1].At, p.Jitter).After(now) {
			return due
		}
		until = due.Run[n-1].At.Add(-time.Microsecond)
	}
}

// moveTo moves the cursor to a tick.
func (s *step) moveTo(t Tick) {
	s.Cursor, s.CursorLocal = t.At, &t.Local
}

func (s *step) cursor() Tick { return tickAt(s.Cursor, s.CursorLocal) }
