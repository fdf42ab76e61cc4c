package engine

import (
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// server is what the client knows about the server that its connection leads to. A promoted server
// gives no partition before it is accepted. Acceptance begins a generation: epochs of the earlier
// generation end.
type server struct {
	// The server that confirmed everything that is shown. The boot marker is left out.
	confirmed  store.Incarnation
	accepted   bool
	acceptAt   time.Time // not accepted before
	generation int64     // the highest that was read on any server, or that the next one must exceed

	reachedAny bool  // a heartbeat has reached tables
	tables     int64 // the number of the tables that the last heartbeat reached
	heardAt    int64 // the database's clock at that heartbeat

	toReject bool // it was accepted, and its generation is lower than the highest seen

	marked bool // the server incarnation got its boot marker after the last successful heartbeat
}

// heard handles what a heartbeat says about the server. It reports whether everything has to be
// read again: if another generation has begun, owners have to renew their ownerships. The server
// may be not accepted and accepted again between two heartbeats, and that changes no lease.
func (s *server) heard(beat store.Beat) (readAll bool) {
	accepted := beat.Server.Timeline == beat.AcceptedTimeline
	s.toReject = accepted && beat.ServerGeneration < s.generation
	if s.toReject {
		s.accepted = false
		return false
	}
	if accepted == s.accepted && beat.ServerGeneration <= s.generation {
		return false
	}
	s.accepted = accepted
	return true
}

// meetsOthers notes which tables a heartbeat has reached. It reports whether they are other tables than
// those of the heartbeat before: restored, copied, created again or emptied. If these tables were
// accepted before this client last heard from the others, nobody has waited until the trust ended
// that was earned there. A generation begins with the time of its acceptance. So the client counts
// as one that has seen the generation of that time: a lower one is rejected, and the next one is
// above it, whatever the clock of these tables shows.
func (s *server) meetsOthers(beat store.Beat) (others bool) {
	others = s.reachedAny && s.tables != beat.Tables
	if others {
		s.accepted = false
		s.generation = max(s.generation, store.GenerationAt(s.heardAt)+1)
	}
	s.reachedAny = true
	s.tables, s.heardAt = beat.Tables, beat.Clock
	return others
}

// confirms reports whether that server incarnation has confirmed everything that is shown.
func (s *server) confirms(run store.Incarnation) bool { return s.confirmed == run.Unmarked() }

// confirm notes that the server incarnation has confirmed everything.
func (s *server) confirm(run store.Incarnation) { s.confirmed = run.Unmarked() }

// agrees reports whether a read is of the server of the last heartbeat, with that incarnation.
func (s *server) agrees(read store.LeaseRead, run store.Incarnation) bool {
	return read.Server == run.Unmarked() && (run.Timeline == read.AcceptedTimeline) == s.accepted
}

// isBehind notes the generation that a read returned, and reports whether the server is behind one
// that the client has seen.
func (s *server) isBehind(generation int64) (behind bool) {
	if s.accepted && generation < s.generation {
		s.toReject, s.accepted = true, false
		return true
	}
	s.generation = max(s.generation, generation)
	return false
}

// acceptDue returns when the clock of a promoted server was watched for long enough.
func (s *server) acceptDue(watched time.Time) time.Time {
	if s.accepted {
		return when.Never
	}
	return when.Later(s.acceptAt, watched)
}

// acceptTried notes an attempt to accept the server.
func (s *server) acceptTried(heartbeat time.Duration, now time.Time) {
	s.acceptAt = now.Add(max(busyRetry, heartbeat/4))
}
