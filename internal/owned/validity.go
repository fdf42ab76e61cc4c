package owned

import (
	"sync/atomic"
	"time"
)

// A Validity is a period through which a client was trusted without a break. Once it is over it
// stays over: a reader that was stopped between loading an old snapshot and reading the clock finds
// the end of the old validity, not that of the next one.
type Validity struct {
	opened   time.Time
	deadline atomic.Int64 // nanoseconds after opened until which readers may read; 0: it is over
	trust    atomic.Int64 // the trust deadline, if readers may read only for a while, see Allow; else 0
}

// Valid returns a validity that begins at that moment, and ends after so long.
func Valid(opened time.Time, lasts time.Duration) *Validity {
	v := &Validity{opened: opened}
	v.deadline.Store(int64(lasts))
	return v
}

// ValidWhileAllowed returns a validity within which readers read for as long as Allow lets them.
func ValidWhileAllowed(opened time.Time, lasts time.Duration) *Validity {
	v := Valid(opened, 1) // 0 would be over; nobody reads before Allow
	v.trust.Store(int64(lasts))
	return v
}

// Invalid returns a validity that never begins.
func Invalid(opened time.Time) *Validity { return &Validity{opened: opened} }

// Holds reports whether readers may read now.
func (v *Validity) Holds() bool {
	return time.Duration(v.deadline.Load()) > time.Since(v.opened) || v.Remaining() > 0
}

// Remaining returns the trust that is left; 0 or less if there is none. The first look at it after
// its end ends it for all: a heartbeat that was answered just then does not bring it back.
func (v *Validity) Remaining() time.Duration {
	for {
		deadline := v.deadline.Load()
		passed := time.Since(v.opened)
		left := time.Duration(deadline) - passed
		if trust := time.Duration(v.trust.Load()); trust > passed && deadline != 0 {
			if left > 0 {
				return trust - passed
			}
			return left // readers wait for the server
		}
		if left > 0 || deadline == 0 || v.deadline.CompareAndSwap(deadline, 0) {
			return left
		}
	}
}

// Over reports whether it has ended for good. If readers only have to wait for Allow it has not.
func (v *Validity) Over() bool { return !v.Holds() && v.deadline.Load() == 0 }

// Deadline returns the trust deadline; the zero time if it is over.
func (v *Validity) Deadline() time.Time {
	deadline := v.deadline.Load()
	if deadline == 0 {
		return time.Time{}
	}
	return v.opened.Add(time.Duration(max(deadline, v.trust.Load())))
}

// Prolong moves the trust deadline, and reports whether it did: a validity that is over stays so.
func (v *Validity) Prolong(deadline time.Time) bool {
	old := v.deadline.Load()
	if v.trust.Load() != 0 {
		v.trust.Store(int64(deadline.Sub(v.opened)))
		return old != 0
	}
	return old != 0 && v.deadline.CompareAndSwap(old, int64(deadline.Sub(v.opened)))
}

// Allow lets readers read until then, but no longer than the trust deadline.
func (v *Validity) Allow(until time.Time) {
	for {
		old, next := v.deadline.Load(), min(int64(until.Sub(v.opened)), v.trust.Load())
		if old == 0 || next <= old || v.deadline.CompareAndSwap(old, next) {
			return
		}
	}
}

// End ends it.
func (v *Validity) End() { v.deadline.Store(0) }
