package worker

import (
	"maps"
	"time"
)

// OutagePauses are the pauses while something is away that handlers need.
var OutagePauses = Backoff(100*time.Millisecond, time.Minute)

// OutagePause returns how long to wait after work has found so many times in a row that something is
// away.
func OutagePause(times int, exact bool) time.Duration {
	p := OutagePauses
	p.exact = exact
	return PauseAfter(times, p)
}

// outageRemembered is longer than a pause, after which work that waits elsewhere comes back.
const outageRemembered = 2 * time.Minute

// Outages are groups of work, such as the kinds of jobs, for which something is away. The work of a
// group needs the same things, so while they are away, one piece of it tries at a time, after a pause
// that grows. The caller has the clock and the lock.
type Outages struct{ of map[string]outage }

type outage struct {
	times int
	since time.Time
	until time.Time
}

// Found notes that something is away, and reports whether this is news.
func (o *Outages) Found(group string, now time.Time) (news bool) {
	if o.of == nil {
		o.of = make(map[string]outage)
	}
	last, known := o.of[group]
	if !known {
		last.since = now
	}
	o.of[group] = outage{last.times + 1, last.since, now.Add(OutagePause(last.times+1, false))}
	return !known
}

// Any reports whether something is away for any group.
func (o *Outages) Any() bool { return len(o.of) > 0 }

// Forget forgets the groups of which no work waits, or has come for a while: it has been
// canceled, or is elsewhere.
func (o *Outages) Forget(waits func(group string) bool, now time.Time) {
	maps.DeleteFunc(o.of, func(group string, last outage) bool {
		return !waits(group) && now.Sub(last.until) > outageRemembered
	})
}

// Over notes that nothing is away.
func (o *Outages) Over(group string) { delete(o.of, group) }

// Under reports whether something is away, and if so, when a piece of work may try.
func (o *Outages) Under(group string) (next time.Time, away bool) {
	last, away := o.of[group]
	return last.until, away
}

// Since reports whether something is away, and if so, since when.
func (o *Outages) Since(group string) (since time.Time, away bool) {
	last, away := o.of[group]
	return last.since, away
}
