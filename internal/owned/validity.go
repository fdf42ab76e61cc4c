package owned

import (
	"sync/atomic"
	"time"
)

// A Validity is a period of uninterrupted trust in a client. When it is over it stays over: a
// reader that was stopped between loading an old snapshot and reading the clock sees the end of the
// old validity, not of the next one.
//
// It has two modes. A plain validity (Valid) has one deadline, the trust deadline. With fast
// failover (ValidWhileAllowed) it has two: the trust deadline, and one for readers, which is never
// later and which Allow moves ahead again and again. If only the readers' deadline has passed,
// readers wait, and the validity is not over.
type Validity struct {
	opened   time.Time
	deadline atomic.Int64 // of readers: nanoseconds after opened until they may no longer read; 0: it is over
	trust    atomic.Int64 // nanoseconds after opened until the trust deadline, with fast failover; plain: 0
}

// Valid returns a validity that begins at that time, and lasts for the given time.
func Valid(opened time.Time, lasts time.Duration) *Validity {
	v := &Validity{opened: opened}
	v.deadline.Store(int64(lasts))
	return v
}

// ValidWhileAllowed returns a validity that readers may use only while Allow allows it.
func ValidWhileAllowed(opened time.Time, lasts time.Duration) *Validity {
	v := Valid(opened, 1) // 0 would mean over; readers wait for Allow
	v.trust.Store(int64(lasts))
	return v
}

// Invalid returns a validity that never begins.
func Invalid(opened time.Time) *Validity { return &Validity{opened: opened} }

// Holds reports whether readers may read now: whether the readers' deadline is ahead with fast
// failover, the trust deadline otherwise. Like Remaining, it may end the validity.
func (v *Validity) Holds() bool {
	return time.Duration(v.deadline.Load()) > time.Since(v.opened) || v.Remaining() > 0
}

// Remaining returns the trust that is left if readers may read now; otherwise 0 or less. The first
// call after the trust deadline ends the validity for all readers: a heartbeat that is answered
// just then does not bring it back. With fast failover, a call after the readers' deadline alone
// ends nothing, because Allow may move it ahead.
func (v *Validity) Remaining() time.Duration {
	for {
		deadline := v.deadline.Load()
		passed := time.Since(v.opened)
		left := time.Duration(deadline) - passed
		trust := time.Duration(v.trust.Load())
		if trust > passed && deadline != 0 {
			if left > 0 {
				return trust - passed
			}
			if v.deadline.Load() == deadline { // otherwise Allow may not notify this reader
				return left // readers wait for the server
			}
			continue
		}
		if left > 0 || deadline == 0 || v.deadline.CompareAndSwap(deadline, 0) {
			return left
		}
	}
}

// Left returns the time until the trust deadline, also while readers wait for Allow; 0 if it is
// over.
func (v *Validity) Left() time.Duration {
	if v.Over() {
		return 0
	}
	return max(0, time.Until(v.Deadline()))
}

// Over reports whether it has ended for good. If readers only wait for Allow, it has not. Like Holds,
// the first call after the trust deadline ends it.
func (v *Validity) Over() bool { return !v.Holds() && v.deadline.Load() == 0 }

// Deadline returns the trust deadline; the zero time if it is over.
func (v *Validity) Deadline() time.Time {
	deadline := v.deadline.Load()
	if deadline == 0 {
		return time.Time{}
	}
	return v.opened.Add(time.Duration(max(deadline, v.trust.Load())))
}

// Prolong moves the trust deadline, and reports whether it did: a validity that is over stays over.
func (v *Validity) Prolong(deadline time.Time) bool {
	old := v.deadline.Load()
	if v.trust.Load() != 0 {
		v.trust.Store(int64(deadline.Sub(v.opened)))
		return old != 0
	}
	return old != 0 && v.deadline.CompareAndSwap(old, int64(deadline.Sub(v.opened)))
}

// Allow allows readers to read until then, but not longer than the trust deadline. It reports
// whether readers may have been refused before, and are not any more. A reader that is refused has
// seen the old deadline after it passed, so it passed before Allow reads the clock again.
func (v *Validity) Allow(until time.Time) (again bool) {
	for {
		old, next := v.deadline.Load(), min(int64(until.Sub(v.opened)), v.trust.Load())
		if old == 0 || next <= old {
			return false
		}
		if v.deadline.CompareAndSwap(old, next) {
			return time.Since(v.opened) >= time.Duration(old) && v.Holds()
		}
	}
}

// End ends the validity.
func (v *Validity) End() { v.deadline.Store(0) }
