package engine

import (
	"time"

	"github.com/pgleases/pgleases/internal/owned"
)

// Stats are a client's numbers as of its last loop.
type Stats struct {
	Validity   *owned.Validity // that snapshots show
	Sent       time.Time       // when the last successful heartbeat was sent
	RoundTrip  time.Duration   // of that heartbeat
	Leases     int             // that the session is a member of
	Joining    string          // a lease that it is to become a member of; empty: there is no such lease
	Ending     error           // why the client ends; nil: it does not end
	Reconnects int64           // connections after the first
	Listening  bool            // notifications arrive
	// StatementErrors counts failed operations.
	StatementErrors int64
	Margins         Margins
	LeaseStats      // of all leases, including ended ones
}

// LeaseStats are the numbers of one lease.
type LeaseStats struct {
	Owned         int       // partitions that the snapshot shows
	Draining      int       // partitions that are withdrawn, and still in work or not released
	DrainingSince time.Time // since when the oldest of these drains; zero: no partition drains
	Gains         int64     // ownerships that began
	Losses        Losses    // ownerships that ended

	GuardRefusals, CallbackFailures int64 // as of the last loop
}

// MarginBounds are the bounds of Margins.Within.
var MarginBounds = [...]float64{0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}

// Margins counts the renewals of the trust by the share of it that was left.
type Margins struct {
	Count  int64
	Sum    float64
	Within [len(MarginBounds)]int64 // at most the bound of the same index
}

func (m *Margins) add(share float64) {
	m.Count++
	m.Sum += share
	for i, bound := range MarginBounds {
		if share <= bound {
			m.Within[i]++
		}
	}
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
	s.GuardRefusals += of.GuardRefusals
	s.CallbackFailures += of.CallbackFailures
}

// publishStats publishes the numbers of a lease, with the given numbers of its drains, and returns
// them.
func (m *membership) publishStats(draining LeaseStats) LeaseStats {
	now := draining
	now.Owned, now.Gains, now.Losses = len(m.lease.Board.Look().Values), m.gains, m.losses
	now.GuardRefusals, now.CallbackFailures = m.lease.GuardRefusals.Load(), m.lease.CallbackFailures.Load()
	if now != *m.lease.stats.Load() {
		m.lease.stats.Store(&now)
	}
	return now
}

// stats publishes the numbers of each lease, and returns their sum.
func (ms *members) stats() LeaseStats {
	draining := make(map[*membership]LeaseStats)
	for a := range ms.draining {
		of := draining[a.membership]
		of.add(LeaseStats{Draining: 1, DrainingSince: a.since})
		draining[a.membership] = of
	}
	sum := ms.past
	for m := range ms.all() {
		sum.add(m.publishStats(draining[m]))
	}
	for m := range ms.outlived {
		now := m.publishStats(draining[m])
		sum.add(now)
		if now.Draining == 0 {
			ms.past.add(now)
			delete(ms.outlived, m)
			ms.client.leases.CompareAndDelete(m.lease.Name, m.lease)
		}
	}
	return sum
}

// statsOf returns the client's numbers.
func statsOf(e *engine) *Stats {
	s := &Stats{Validity: e.members.shown(), Sent: e.session.sent, RoundTrip: e.session.roundTrip, Reconnects: e.reconnects,
		Listening: e.connection.listening, StatementErrors: e.statementErrors, Margins: e.margins, LeaseStats: e.members.stats(), Ending: e.closing.reason}
	for m := range e.members.all() {
		switch {
		case m.inDatabase():
			s.Leases++
		case m.state == joins:
			s.Joining = m.lease.Name
		}
	}
	return s
}
