package engine

import (
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// server is what the client knows about the server that its connection leads to. A promoted server
// gives no partition before it is accepted. Acceptance begins a generation: epochs of the earlier
// generation end.
type server struct {
	confirmed  store.Incarnation // the server that confirmed everything that is shown, without the boot marker
	accepted   bool
	acceptAt   time.Time // not accepted before
	generation int64     // the highest that was read, on any server
	behind     bool      // this server's generation is lower
	marked     bool      // the server incarnation got its boot marker after the last successful heartbeat
}

// heard handles what a heartbeat says about the server. It reports whether everything has to be
// read again: if another generation has begun, owners have to renew their ownerships. The server
// may be not accepted and accepted again between two heartbeats, and that changes no lease.
func (s *server) heard(beat store.Beat) (readAll bool) {
	accepted := beat.Server.Timeline == beat.AcceptedTimeline && !s.behind
	if accepted == s.accepted && beat.ServerGeneration <= s.generation {
		return false
	}
	s.accepted = accepted
	return true
}

// confirms reports whether that server incarnation has confirmed everything that is shown.
func (s *server) confirms(run store.Incarnation) bool { return s.confirmed == run.Unmarked() }

// confirm notes that the server incarnation has confirmed everything.
func (s *server) confirm(run store.Incarnation) { s.confirmed = run.Unmarked() }

// agrees reports whether a read is of the server of the last heartbeat, with that incarnation.
func (s *server) agrees(read store.LeaseRead, run store.Incarnation) bool {
	return read.Server == run.Unmarked() && (run.Timeline == read.AcceptedTimeline) == s.accepted
}

// reached notes the generation that a read returned, and reports whether the server is behind one
// that the client has seen.
func (s *server) reached(generation int64) (behind bool) {
	if s.accepted && generation < s.generation {
		s.behind, s.accepted = true, false
		return true
	}
	s.generation = max(s.generation, generation)
	return false
}

// acceptDue returns when the clock of a promoted server was watched for long enough.
func (s *server) acceptDue(watched time.Time) time.Time {
	if s.accepted {
		return never
	}
	return later(s.acceptAt, watched)
}

// acceptTried notes an attempt to accept the server.
func (s *server) acceptTried(heartbeat time.Duration, now time.Time) {
	s.acceptAt = now.Add(max(busyRetry, heartbeat/4))
}
