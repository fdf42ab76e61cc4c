package engine

import (
	"time"

	"github.com/pgleases/pgleases/internal/owned"
)

// Stats are a client's numbers as of its last loop.
type Stats struct {
	Validity   *owned.Validity // the validity that snapshots show
	Sent       time.Time       // when the last successful heartbeat was sent
	RoundTrip  time.Duration   // the round trip of that heartbeat
	Leases     int             // leases that the session is a member of
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
	Unowned       int       // partitions that no member may own, because of their ceilings
	Refused       int       // leases that cannot be joined again, because they have another number of partitions now

	GuardRefusals, CallbackFailures int64 // when it was asked
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

// replace replaces the numbers of a lease in a sum. DrainingSince is no sum, and stays.
func (s *LeaseStats) replace(before, now LeaseStats) {
	s.Owned += now.Owned - before.Owned
	s.Draining += now.Draining - before.Draining
	s.Gains += now.Gains - before.Gains
	s.Unowned += now.Unowned - before.Unowned
	s.Refused += now.Refused - before.Refused
	s.Losses.Handoff += now.Losses.Handoff - before.Losses.Handoff
	s.Losses.TrustLost += now.Losses.TrustLost - before.Losses.TrustLost
	s.Losses.DrainTimeout += now.Losses.DrainTimeout - before.Losses.DrainTimeout
	s.Losses.Closed += now.Losses.Closed - before.Losses.Closed
}

// drain counts an assignment that has drained since that time.
func (s *LeaseStats) drain(since time.Time) {
	s.Draining++
	if s.DrainingSince.IsZero() || since.Before(s.DrainingSince) {
		s.DrainingSince = since
	}
}

// stats publishes the numbers of each lease whose numbers may have changed, and returns the sum of
// all.
func (ms *members) stats() LeaseStats {
	if len(ms.agenda.toCount) == 0 {
		return ms.sum
	}
	of, all := make(map[*membership]LeaseStats), LeaseStats{}
	for a := range ms.shared.draining {
		all.drain(a.drainsSince)
		s := of[a.membership]
		s.drain(a.drainsSince)
		of[a.membership] = s
	}
	ms.sum.DrainingSince = all.DrainingSince
	for m := range ms.agenda.toCount {
		now := of[m]
		now.Owned = len(m.lease.Board.Look().Values)
		now.Unowned = m.unowned.count
		now.Gains, now.Losses = m.assignments.gains, m.assignments.losses
		if _, is := ms.refused[m.lease.Name]; is {
			now.Refused = 1
		}
		ms.sum.replace(*m.lease.stats.Swap(&now), now)
		if m.closed && now.Draining == 0 {
			ms.client.leases.CompareAndDelete(m.lease.Name, m.lease)
		}
	}
	ms.agenda.counted()
	return ms.sum
}

// statsOf returns the client's numbers.
func statsOf(e *engine) *Stats {
	s := &Stats{
		Validity: e.members.shared.shown(), Sent: e.session.sent, RoundTrip: e.session.roundTrip,
		Reconnects: e.reconnects, StatementErrors: e.statementErrors, Margins: e.margins,
		Leases: e.members.agenda.inDatabase, Listening: e.connection.listening,
		LeaseStats: e.members.stats(), Ending: e.closing.reason,
	}
	if m := e.members.agenda.joining(); m != nil {
		s.Joining = m.lease.Name
	}
	return s
}
