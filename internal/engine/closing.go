package engine

import "time"

// closing is the client's end: by Close, by a newer process with its ID, or by an operator.
type closing struct {
	reason       error     // nil: the client does not end
	lookUp       bool      // the process that superseded it, for the reason's text
	hurried      error     // why Close waits for work no longer; nil: it waits
	giveUpAt     time.Time // when to leave behind what could not be released since
	planUntil    time.Time // how long to plan what guarded transactions of others keep; zero: nothing was left over yet
	sessionEnded bool      // in the database
}

// ends reports whether the client ends.
func (c *closing) ends() bool { return c.reason != nil }

// hurry ends the wait for work.
func (c *closing) hurry(cause error, now time.Time) {
	if c.hurried == nil {
		c.hurried, c.giveUpAt = cause, now.Add(closeGrace)
	}
}

// leavesToOthers reports whether a client that ends, and is no member of a lease any more, leaves
// to the others what a guarded transaction keeps from being given: the transaction is none of its
// own. Most are over in no time.
func (c *closing) leavesToOthers(now time.Time) bool {
	if c.planUntil.IsZero() {
		c.planUntil = now.Add(closeGrace)
	}
	return !now.Before(c.planUntil)
}
