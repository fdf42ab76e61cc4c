package engine

import (
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// server is what the client knows of the server that its connection leads to. A promoted server
// gives nothing before it is accepted, which begins a generation: epochs of the generation before
// end.
type server struct {
	confirmed  store.Incarnation // of the server that confirmed all that is shown, without the mark
	accepted   bool
	acceptAt   time.Time // not before
	generation int64     // the highest that was read, on any server
	behind     bool      // the server's is lower
	marked     bool      // the server's run, since the last heartbeat that succeeded
}

// heard takes what a heartbeat says of the server. It reports whether everything is to be read
// again: if another generation has begun, owners have to renew what they have. It may be over
// between two heartbeats that the server was not accepted, and no lease changes by it.
func (s *server) heard(beat store.Beat) (readAll bool) {
	accepted := beat.Server.Timeline == beat.AcceptedTimeline && !s.behind
	if accepted == s.accepted && beat.ServerGeneration <= s.generation {
		return false
	}
	s.accepted = accepted
	return true
}

// confirms reports whether that run of the server has confirmed all that is shown.
func (s *server) confirms(run store.Incarnation) bool { return s.confirmed == run.Unmarked() }

// confirm notes that it has.
func (s *server) confirm(run store.Incarnation) { s.confirmed = run.Unmarked() }

// agrees reports whether a read is of the server that the last heartbeat found, with the run.
func (s *server) agrees(read store.LeaseRead, run store.Incarnation) bool {
	return read.Server == run.Unmarked() && (run.Timeline == read.AcceptedTimeline) == s.accepted
}

// reached takes the generation that a read found, and reports whether the server is behind one seen
// before.
func (s *server) reached(generation int64) (behind bool) {
	if s.accepted && generation < s.generation {
		s.behind, s.accepted = true, false
		return true
	}
	s.generation = max(s.generation, generation)
	return false
}

// acceptDue is when the clock of a promoted server was watched for long enough.
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
