package engine

import (
	"math/rand/v2"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// expiry is when to check whether sessions have expired, and what is known for that.
type expiry struct {
	lookAt   time.Time // when to look, by an early heartbeat; never: not before the next one
	evictAt  time.Time // when to evict, because a session may have expired; never: none may
	passed   bool      // a check was due that this client left to others
	sessions int64     // of all clients, about
	toTidy   bool      // a check was made, and what can wait is left
}

// heard takes what a heartbeat says of the next check: it is due at some time, or due now and this
// client has watched the database's clock for long enough to evict any session, or not. Spread is
// how far the clock may be ahead of the cutoff.
func (x *expiry) heard(beat store.Beat, watched, spread time.Duration, now time.Time) {
	x.sessions = beat.Sessions
	if beat.CheckDueIn > 0 {
		x.lookAt, x.evictAt, x.passed = x.lookAfter(beat.CheckDueIn, now), never, false
		return
	}
	if x.sessions > lookers && x.lookAt == never && x.evictAt == never && !x.passed {
		x.passed = true
		return
	}
	if wait := MinTTL - watched; wait > 0 {
		x.lookAt, x.evictAt = now.Add(wait), never
		return
	}
	// After the spread the cutoff is past the due time too. Heartbeats may be closer together than
	// that: the first one decides.
	x.lookAt, x.evictAt = never, earlier(x.evictAt, now.Add(spread))
}

// lookers is how many clients, of however many, look whether a check is due that no heartbeat of
// theirs would see so soon. The chance that all of so many have crashed or are late is nil.
const lookers = 25

// lookAfter is when to look for a check that is due after that time: not all clients at the same
// instant, and of many only some; never: not before the next heartbeat. A client that does not look
// leaves a check that is due to the others, the first time.
func (x *expiry) lookAfter(due time.Duration, now time.Time) time.Time {
	if x.sessions > lookers && rand.Int64N(x.sessions) >= lookers {
		return never
	}
	return now.Add(due + time.Millisecond + rand.N(80*time.Millisecond))
}

// evicted takes the answer to an eviction.
func (x *expiry) evicted(evicted store.Evicted, err error, heartbeat time.Duration, now time.Time) {
	x.evictAt = never
	x.lookAt = now.Add(100*time.Millisecond + rand.N(min(heartbeat, MinTTL))) // another client is at it
	if err == nil && evicted.CheckDueIn >= 0 {
		x.lookAt, x.toTidy = x.lookAfter(evicted.CheckDueIn, now), true
	}
}
