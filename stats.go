package pgleases

import (
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/engine"
)

// Stats are a client's numbers, for metrics and health checks. Reading them delays no handoff. They
// may be a moment behind Values.
type Stats struct {
	Trust        time.Duration // how long the client may act as owner without another heartbeat; 0: it may not
	HeartbeatAge time.Duration // since the last successful heartbeat was sent
	RoundTrip    time.Duration // of the last successful heartbeat
	Leases       int           // joined
	Reconnects   int64         // connections after the first
	Listening    bool          // notifications arrive; else the client polls at each heartbeat
	// StatementErrors counts the failed statements and connections of the client itself. It repeats them.
	StatementErrors int64
	HeartbeatMargin HeartbeatMargin
	Locks           LockStats
	LeaseStats      // the sums over all leases, also over those that have ended
}

// LeaseStats are the numbers of a client's part in a lease.
type LeaseStats struct {
	Owned int // partitions in Values
	// Draining counts partitions that left Values and wait for their work to end, or for their
	// release. It includes lost partitions while work on them continues.
	Draining      int
	DrainingSince time.Time // since when the oldest of these drains; zero: no partition drains
	Gains         int64     // ownerships that began
	Losses        Losses    // ownerships that ended, by cause
	// Unowned counts partitions that have no owner, because all members of the lease are at their
	// ceilings. Each member counts all of them.
	Unowned int
	// Refused counts leases that the client had joined and cannot join again, because they have
	// another number of partitions now; of one lease 0 or 1. It works on nothing of such a lease.
	Refused int
	// GuardRefusals counts calls of Guard and GuardSQL that returned ErrNotOwner, and
	// CallbackFailures the calls of Run's callback that returned an error that Run logs. Both may be
	// as old as the last heartbeat.
	GuardRefusals    int64
	CallbackFailures int64
}

// HeartbeatMargin is a histogram of how close the client came to its trust deadline. Each heartbeat
// that prolongs the trust counts with the share of the trust that was left just before: by default
// about 0.65 if all is well. A loss of the trust counts with 0. So no narrow escape is missed, however
// rarely the numbers are read.
type HeartbeatMargin struct {
	Count int64
	Sum   float64
	// How many were at most the bound of the same index in HeartbeatMarginBounds; an array, because
	// reading Stats allocates no memory
	Within [10]int64
}

// HeartbeatMarginBounds returns the bounds of HeartbeatMargin.Within, from 0.05 to 0.9. The caller
// owns the slice.
func HeartbeatMarginBounds() []float64 { return slices.Clone(engine.MarginBounds[:]) }

// LockStats are the numbers of a client's named locks: see package lock.
type LockStats struct {
	Held    int
	Waiting int   // calls that wait for a lock
	Lost    int64 // locks that were lost while they were held
}

// Losses counts ownerships that ended, by cause.
type Losses struct {
	Handoff      int64 // handed over, or given back
	TrustLost    int64 // no heartbeat succeeded in time, the session was evicted, or a failover lost the ownership
	DrainTimeout int64 // work did not end in time
	Closed       int64 // the client or the lease was closed, left, superseded or evicted
}

// Stats returns the client's numbers now. It costs a few atomic loads, a mutex, and the clock.
func (c *Client) Stats() Stats {
	e := c.engine.Stats()
	return Stats{
		Trust: max(0, e.Validity.Remaining()), HeartbeatAge: time.Since(e.Sent), RoundTrip: e.RoundTrip,
		Leases: e.Leases, Listening: e.Listening,
		Reconnects: e.Reconnects, StatementErrors: e.StatementErrors,
		HeartbeatMargin: HeartbeatMargin(e.Margins),
		Locks:           LockStats(c.engine.Locks.Counts()),
		LeaseStats:      leaseStats(e.LeaseStats, e.Validity.Remaining() > 0),
	}
}

// StatsByLease returns the numbers of each lease now, by name, also of the leases of schedulers. A
// lease that has ended is in it until the work on its partitions has ended. The caller owns the map.
func (c *Client) StatsByLease() map[string]LeaseStats {
	stats := make(map[string]LeaseStats)
	for l := range c.engine.Leases() {
		stats[l.Name] = statsOf(l)
	}
	return stats
}

// Stats returns the lease's numbers now, as Client.Stats does for all leases. After the end of the
// lease its counts stay as they are.
func (l *Lease) Stats() LeaseStats {
	return statsOf(l.engine)
}

func statsOf(l *engine.Lease) LeaseStats {
	return leaseStats(l.Stats(), l.Board.Look().Validity.Remaining() > 0)
}

func leaseStats(e engine.LeaseStats, trusted bool) LeaseStats {
	s := LeaseStats{
		Owned: e.Owned, Draining: e.Draining, DrainingSince: e.DrainingSince,
		Gains: e.Gains, Losses: Losses(e.Losses), Unowned: e.Unowned, Refused: e.Refused,
		GuardRefusals: e.GuardRefusals, CallbackFailures: e.CallbackFailures,
	}
	if !trusted {
		s.Owned = 0
	}
	return s
}
