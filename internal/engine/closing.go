package engine

import "time"

// closing is the state of the client's end: by Close, by a newer process with its ID, or by an
// operator.
type closing struct {
	reason       error     // nil: the client does not end
	patient      bool      // a call of Close has a deadline, so it says how long to wait for a server that answers late
	lookUp       bool      // read which process superseded it, for the reason's text
	hurried      error     // why Close no longer waits for work; nil: it waits
	giveUpAt     time.Time // when to leave behind what is not released by then
	planUntil    time.Time // until when to plan what others' guarded transactions keep; zero: no move was left over yet
	sessionEnded bool      // the database has ended the session
}

// ends reports whether the client ends.
func (c *closing) ends() bool { return c.reason != nil }

// hurry ends the wait for work.
func (c *closing) hurry(cause error, now time.Time) {
	if c.hurried == nil {
		c.hurried, c.giveUpAt = cause, now.Add(closeGrace)
	}
}

// leavesToOthers reports whether a client that ends, and is no longer a member of a lease, leaves
// it to the others to give the partitions that a guarded transaction keeps. The transaction is not
// its own. Most such transactions end very soon.
func (c *closing) leavesToOthers(now time.Time) bool {
	if c.planUntil.IsZero() {
		c.planUntil = now.Add(closeGrace)
	}
	return !now.Before(c.planUntil)
}
