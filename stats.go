package pgleases

import "time"

// Stats tells how a client is doing, for metrics and health checks: reading it delays no handoff. Its counts may be a moment behind what Values shows.
type Stats struct {
	Trust        time.Duration // how long what it owns can be trusted without another heartbeat; 0: it cannot
	HeartbeatAge time.Duration // since the last successful heartbeat was sent
	RoundTrip    time.Duration // of the last successful heartbeat
	Leases       int           // joined
	Owned        int           // partitions in Values of all leases
	// partitions that were withdrawn and wait for their work to end, or for their release; lost ones too, while work on them goes on
	Draining      int
	DrainingSince time.Time // since when the oldest of these; zero: none
	Gains         int64     // ownerships that began
	Losses        Losses    // ownerships that ended, by cause
	Reconnects    int64     // connections after the first
	Listening     bool      // notifications arrive; else changes are polled at the heartbeat
}

// Losses counts ownerships that ended, by cause.
type Losses struct {
	Handoff      int64 // handed over, or given back
	TrustLost    int64 // no heartbeat succeeded in time, the session was evicted, or a failover lost the ownership
	DrainTimeout int64 // work did not end in time
	Closed       int64 // the client or the lease was closed, left or superseded
}

// Stats returns the client's numbers now: one atomic load, and the clock.
func (c *Client) Stats() Stats {
	e := c.engine.Stats()
	s := Stats{
		Trust: max(0, e.Validity.Remaining()), HeartbeatAge: time.Since(e.Sent), RoundTrip: e.RoundTrip, Leases: e.Leases, Owned: e.Owned,
		Draining: e.Draining, DrainingSince: e.DrainingSince, Gains: e.Gains, Losses: Losses(e.Losses),
		Reconnects: e.Reconnects, Listening: e.Listening,
	}
	if s.Trust == 0 {
		s.Owned = 0
	}
	return s
}
