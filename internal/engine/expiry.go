package engine

import (
	"math/rand/v2"
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// expiry is when to check for expired sessions, and what is known for that.
type expiry struct {
	lookAt       time.Time // when to check by an early heartbeat, or never
	evictAt      time.Time // when to evict, because a session may have expired, or never
	leftToOthers bool      // this client left a due check to them, and does so only once
	sessions     int64     // of all clients, approximately
	toTidy       bool      // a check was made, and the work that can wait is left
}

// heard handles what a heartbeat says about the next check. The check is due later, or it is due
// now; then this client evicts if it has watched the database's clock for long enough. Spread is
// how far the clock may be ahead of the cutoff.
func (x *expiry) heard(beat store.Beat, watched, spread time.Duration, now time.Time) {
	x.sessions = beat.Sessions
	if beat.CheckDueIn > 0 {
		x.lookAt, x.evictAt, x.leftToOthers = x.lookAfter(beat.CheckDueIn, now), when.Never, false
		return
	}
	if x.sessions > lookers && x.lookAt == when.Never && x.evictAt == when.Never && !x.leftToOthers {
		x.leftToOthers = true
		return
	}
	if wait := MinTTL - watched; wait > 0 {
		x.lookAt, x.evictAt = now.Add(wait), when.Never
		return
	}
	// After the spread the cutoff has passed the due time too. Heartbeats may be closer together
	// than the spread: the first one decides.
	x.lookAt, x.evictAt = when.Never, when.Earlier(x.evictAt, now.Add(spread))
}

// lookers is how many clients, out of all, check for a due check earlier than their next heartbeat.
// The probability that all of them have crashed or are late is practically 0.
const lookers = 25

// lookAfter returns when to look for a check that is due after that time: clients look at different
// times, and of many clients only some look; never: not before the next heartbeat. A client that
// does not look leaves a due check to the others, the first time.
func (x *expiry) lookAfter(due time.Duration, now time.Time) time.Time {
	if x.sessions > lookers && rand.Int64N(x.sessions) >= lookers {
		return when.Never
	}
	return now.Add(due + time.Millisecond + rand.N(80*time.Millisecond))
}

// evicted handles the answer to an eviction.
func (x *expiry) evicted(evicted store.Evicted, err error, heartbeat time.Duration, now time.Time) {
	x.evictAt = when.Never
	x.lookAt = now.Add(100*time.Millisecond + rand.N(min(heartbeat, MinTTL))) // another client makes the check
	if err == nil && evicted.CheckDueIn >= 0 {
		x.lookAt, x.toTidy = x.lookAfter(evicted.CheckDueIn, now), true
	}
}
