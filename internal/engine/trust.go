package engine

import (
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/when"
)

// trust is the time until which the client may act as the owner of what it shows.
type trust struct {
	validity *owned.Validity // nil if there is no trust
	// The trust deadline on the wall clock, which also runs while a machine sleeps. Readers check only
	// the monotonic clock.
	wallLimit time.Time
}

// held reports whether there is trust. Its deadline may have passed: see over.
func (t *trust) held() bool { return t.validity != nil }

// over reports whether the deadline of the trust has passed, or a reader has seen it pass.
func (t *trust) over(now time.Time) bool {
	return t.held() && (t.validity.Over() || !now.Round(0).Before(t.wallLimit))
}

// deadline returns the trust deadline, or when.AtOnce if a reader has seen it pass.
func (t *trust) deadline() time.Time {
	switch {
	case !t.held():
		return when.Never
	case t.validity.Over():
		return when.AtOnce
	}
	return t.validity.Deadline()
}

// setWallLimit sets the trust deadline on the wall clock after a heartbeat, counted from when it was
// sent. If that deadline has passed already, it sets nothing and returns false: the heartbeat was
// answered too late to count.
func (t *trust) setWallLimit(sent time.Time, trusts time.Duration, now time.Time) bool {
	wallLimit := sent.Round(0).Add(trusts)
	if now.Sub(sent) >= trusts || !now.Round(0).Before(wallLimit) {
		return false
	}
	t.wallLimit = wallLimit
	return true
}

// begin begins a trust that lasts for trusts, from sent. With fast failover, readers read only
// while the client allows it.
func (t *trust) begin(sent time.Time, trusts time.Duration, fastFailover bool) {
	t.validity = owned.Valid(sent, trusts)
	if fastFailover {
		t.validity = owned.ValidWhileAllowed(sent, trusts)
	}
}

// end ends the trust for all readers.
func (t *trust) end() {
	t.validity.End()
	t.validity = nil
}
