package pgleases

import (
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
	LeaseStats                 // the sums over all leases, also over those that have ended
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
}

// Losses counts ownerships that ended, by cause.
type Losses struct {
	Handoff      int64 // handed over, or given back
	TrustLost    int64 // no heartbeat succeeded in time, the session was evicted, or a failover lost the ownership
	DrainTimeout int64 // work did not end in time
	Closed       int64 // the client or the lease was closed, left, superseded or evicted
}

// Stats returns the client's numbers now. It costs a few atomic loads, and the clock.
func (c *Client) Stats() Stats {
	e := c.engine.Stats()
	return Stats{
		Trust: max(0, e.Validity.Remaining()), HeartbeatAge: time.Since(e.Sent), RoundTrip: e.RoundTrip, Leases: e.Leases,
		Reconnects: e.Reconnects, Listening: e.Listening, LeaseStats: leaseStats(e.LeaseStats, e.Validity.Remaining() > 0),
	}
}

// Stats returns the lease's numbers now, as Client.Stats does for all leases. After the end of the
// lease its counts stay as they are.
func (l *Lease) Stats() LeaseStats {
	return leaseStats(l.engine.Stats(), l.board.Look().Validity.Remaining() > 0)
}

func leaseStats(e engine.LeaseStats, trusted bool) LeaseStats {
	s := LeaseStats{Owned: e.Owned, Draining: e.Draining, DrainingSince: e.DrainingSince, Gains: e.Gains, Losses: Losses(e.Losses)}
	if !trusted {
		s.Owned = 0
	}
	return s
}
