package engine

import (
	"math/rand/v2"
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// expiry is what this client does next about expired sessions, and what is known for that.
type expiry struct {
	step     expiryStep
	at       time.Time // when to take the step
	left     bool      // this client left a due check to the others, which it does only once
	sessions int64     // of all clients, approximately
	toTidy   bool      // a check was made, and the work that can wait is left
}

// An expiryStep is the next step of a check for expired sessions.
type expiryStep int

const (
	// stepHear waits for the next regular heartbeat, whose answer says when a check is due.
	stepHear expiryStep = iota
	// stepLook makes a heartbeat early, because a check is due by then. Its answer says whether another
	// client has made the check.
	stepLook
	// stepEvict makes the check.
	stepEvict
)

// then sets the next step.
func (x *expiry) then(step expiryStep, at time.Time) { x.step, x.at = step, at }

// due returns when a step is due, if that is the next one.
func (x *expiry) due(step expiryStep) time.Time {
	if x.step != step {
		return when.Never
	}
	return x.at
}

// heard handles what a heartbeat says about the next check. The check is due later, or it is due
// now; then this client evicts if it has watched the database's clock for the shortest TTL that a
// session may have. The statement evicts those whose own TTL is not longer than the watch. Spread
// is how far the clock may be ahead of the cutoff.
func (x *expiry) heard(beat store.Beat, watched, spread, heartbeat time.Duration, now time.Time) {
	x.sessions = beat.Sessions
	watchLacks := MinTTL - watched
	switch {
	case beat.CheckDueIn > 0:
		x.left = false
		x.lookAfter(beat.CheckDueIn+spread, now)
	case x.step == stepHear && !x.left && x.leaves(spread, heartbeat):
		x.left = true
	case watchLacks > 0:
		x.then(stepLook, now.Add(watchLacks+spread))
	default:
		// After the spread the cutoff has passed the due time too. A look has waited for that already,
		// so that other looks follow the check, and find it made. Heartbeats may be closer together than
		// the spread: the first one decides.
		x.then(stepEvict, when.Earlier(x.at, now.Add(spread)))
	}
}

// unheard notes that a heartbeat failed. A check that is due waits for a heartbeat that succeeds.
func (x *expiry) unheard() {
	if x.step == stepLook {
		x.then(stepHear, when.Never)
	}
}

const (
	// lookers is how many clients, out of all, check for a due check earlier than their next heartbeat.
	// The probability that all of them have crashed or are late is practically 0.
	lookers = 25
	// crowd is the number of clients above which none of them looks early, because one of them sends
	// a heartbeat soon anyway.
	crowd = 100
	// soon is how long after a check is due one of a crowd finds that, and makes it, on average. It is
	// longer if the spread is.
	soon = 30 * time.Millisecond
)

// lookAfter looks for a check that is due after that time. Clients look at different times, and of
// many clients only some look before their next heartbeat. The first time, a client that does not
// look leaves a due check to the others.
func (x *expiry) lookAfter(due time.Duration, now time.Time) {
	if x.sessions > crowd || x.sessions > lookers && rand.Int64N(x.sessions) >= lookers {
		x.then(stepHear, when.Never)
		return
	}
	x.then(stepLook, now.Add(due+time.Millisecond+rand.N(80*time.Millisecond)))
}

// leaves decides whether a client that does not look leaves a due check to the others. Of a crowd,
// heartbeats find it due all the time, until the first that does not leave it has waited for the
// spread. So few others choose to make it meanwhile.
func (x *expiry) leaves(spread, heartbeat time.Duration) bool {
	if x.sessions > crowd {
		sessions := time.Duration(min(x.sessions, 1_000_000)) // others may write any number
		return rand.N(sessions*max(soon, spread)) >= heartbeat
	}
	return x.sessions > lookers
}

// evicted handles the answer to an eviction. If another client makes the check, or may make it, this
// client looks again.
func (x *expiry) evicted(evicted store.Evicted, err error, spread, heartbeat time.Duration, now time.Time) {
	switch {
	case err == nil && evicted.Made:
	case x.sessions > crowd:
		x.left = true // if it is still due at the next heartbeat, this client tries again
		x.then(stepHear, when.Never)
		return
	default:
		x.then(stepLook, now.Add(max(spread, 100*time.Millisecond)+rand.N(min(heartbeat, MinTTL))))
		return
	}
	x.toTidy = true
	x.lookAfter(evicted.CheckDueIn+spread, now)
}
