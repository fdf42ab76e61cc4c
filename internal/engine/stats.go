package engine

import (
	"time"

	"github.com/pgleases/pgleases/internal/owned"
)

// Stats are a client's numbers as of its last turn.
type Stats struct {
	Validity      *owned.Validity // that snapshots show
	Sent          time.Time       // the last successful heartbeat
	RoundTrip     time.Duration   // of that
	Leases        int             // of which the session is a member
	Owned         int             // partitions that snapshots show
	Draining      int             // partitions that are withdrawn, and still in work or not released
	DrainingSince time.Time       // since when the oldest of these; zero: none
	Gains         int64           // ownerships that began
	Losses        Losses          // ownerships that ended
	Reconnects    int64           // connections after the first
	Listening     bool            // notifications arrive
}

// Losses counts ownerships that ended, by cause.
type Losses struct{ Handoff, TrustLost, DrainTimeout, Closed int64 }

// statsOf returns them.
func statsOf(e *engine) *Stats {
	s := &Stats{
		Validity: e.members.shown(), Sent: e.session.sent, RoundTrip: e.session.roundTrip, Draining: len(e.members.draining),
		Gains: e.members.gains, Losses: e.members.losses, Reconnects: e.reconnects, Listening: e.connection.listening,
	}
	for a := range e.members.draining {
		if s.DrainingSince.IsZero() || a.since.Before(s.DrainingSince) {
			s.DrainingSince = a.since
		}
	}
	for m := range e.members.all() {
		if m.inDatabase() {
			s.Leases++
		}
		s.Owned += len(m.lease.Board.Look().Values)
	}
	return s
}
