package engine

import (
	"iter"
	"maps"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
)

// Stats are a client's numbers as of its last turn.
type Stats struct {
	Validity   *owned.Validity // that snapshots show
	Sent       time.Time       // the last successful heartbeat
	RoundTrip  time.Duration   // of that
	Leases     int             // of which the session is a member
	Reconnects int64           // connections after the first
	Listening  bool            // notifications arrive
	LeaseStats                 // of all leases, also of those that have ended
}

// LeaseStats are those of one lease.
type LeaseStats struct {
	Owned         int       // partitions that the snapshot shows
	Draining      int       // partitions that are withdrawn, and still in work or not released
	DrainingSince time.Time // since when the oldest of these; zero: none
	Gains         int64     // ownerships that began
	Losses        Losses    // ownerships that ended
}

// Losses counts ownerships that ended, by cause.
type Losses struct{ Handoff, TrustLost, DrainTimeout, Closed int64 }

func (s *LeaseStats) add(of LeaseStats) {
	s.Owned += of.Owned
	s.Draining += of.Draining
	if s.DrainingSince.IsZero() || !of.DrainingSince.IsZero() && of.DrainingSince.Before(s.DrainingSince) {
		s.DrainingSince = of.DrainingSince
	}
	s.Gains += of.Gains
	s.Losses.Handoff += of.Losses.Handoff
	s.Losses.TrustLost += of.Losses.TrustLost
	s.Losses.DrainTimeout += of.Losses.DrainTimeout
	s.Losses.Closed += of.Losses.Closed
}

// withEnded returns all memberships, and those that have ended with work that goes on.
func (ms *members) withEnded() iter.Seq[*membership] {
	return func(yield func(*membership) bool) {
		for _, all := range []iter.Seq[*membership]{ms.all(), maps.Keys(ms.outlived)} {
			for m := range all {
				if !yield(m) {
					return
				}
			}
		}
	}
}

// stats publishes the numbers of each lease, and returns their sum.
func (ms *members) stats() LeaseStats {
	for m := range ms.withEnded() {
		m.numbers = LeaseStats{Owned: len(m.lease.Board.Look().Values), Gains: m.gains, Losses: m.losses}
	}
	for a := range ms.draining {
		a.membership.numbers.add(LeaseStats{Draining: 1, DrainingSince: a.since})
	}
	sum := ms.past
	for m := range ms.withEnded() {
		if now := m.numbers; now != *m.lease.stats.Load() {
			m.lease.stats.Store(&now)
		}
		sum.add(m.numbers)
	}
	for m := range ms.outlived {
		if m.numbers.Draining == 0 {
			ms.past.add(m.numbers)
			delete(ms.outlived, m)
		}
	}
	return sum
}

// statsOf returns the client's numbers.
func statsOf(e *engine) *Stats {
	s := &Stats{Validity: e.members.shown(), Sent: e.session.sent, RoundTrip: e.session.roundTrip, Reconnects: e.reconnects,
		Listening: e.connection.listening, LeaseStats: e.members.stats()}
	for m := range e.members.all() {
		if m.inDatabase() {
			s.Leases++
		}
	}
	return s
}
