package logqueue

import "time"

// A Condition is a state that one line of a log begins and another one ends, for example that polls
// fail. It decides when these lines are written, so that no beginning is without an end, and no end
// without a beginning. The zero Condition does not hold. It is not safe for concurrent use.
type Condition struct {
	holds, logged bool
	since         time.Time // when it began to hold
	last          time.Time // when it was last logged that it holds, also before it was last over
}

// Begin notes that the condition holds, at least since then. It reports whether to log that, which
// is once until the condition is over.
func (c *Condition) Begin(since time.Time) (log bool) {
	c.hold(since)
	log = !c.logged
	c.logged = true
	return log
}

// Last notes that the condition holds. It reports whether to log that, which is if the line before
// is so long ago, even if the condition was over meanwhile. So one that comes and goes is not logged
// more often.
func (c *Condition) Last(every time.Duration, now time.Time) (log bool) {
	c.hold(now)
	if now.Before(c.last.Add(every)) {
		return false
	}
	c.logged, c.last = true, now
	return true
}

func (c *Condition) hold(since time.Time) {
	if !c.holds {
		c.holds, c.since = true, since
	}
}

// End notes that the condition is over. It reports whether to log that, which is if it was logged
// that the condition held, and for how long it did.
func (c *Condition) End(now time.Time) (lasted time.Duration, log bool) {
	lasted, log = Lasted(c.since, now), c.logged
	c.holds, c.logged = false, false
	return lasted, log
}

// Tried notes whether something that is tried again and again has failed. It calls failed if it
// begins to fail, and succeeded with how long it has failed, for the lines that say so.
func (c *Condition) Tried(err error, failed func(), succeeded func(lasted time.Duration)) {
	c.Set(err != nil, time.Now(), failed, succeeded)
}

// Set notes whether the condition holds. It calls begun if it begins to hold, and ended with how long
// it has held, for the lines that say so.
func (c *Condition) Set(holds bool, now time.Time, begun func(), ended func(lasted time.Duration)) {
	if holds {
		if c.Begin(now) {
			begun()
		}
		return
	}
	lasted, log := c.End(now)
	if log {
		ended(lasted)
	}
}

// Lasted returns how long ago something began, as lines of the log show it.
func Lasted(began, now time.Time) time.Duration { return now.Sub(began).Round(10 * time.Millisecond) }
