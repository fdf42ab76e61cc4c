package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// session is the client's session in the database, which heartbeats keep alive.
type session struct {
	number      int64 // see store.RandomID
	registered  bool
	incarnation int64 // of the last registration
	again       bool  // it has registered before, maybe as another session
	process     int64 // see nextProcess
	startedAt   time.Time

	nextBeat   time.Time
	sent       time.Time // when the last successful heartbeat was sent
	beatFailed bool      // the last heartbeat failed
	crowded    bool      // many clients may send the next heartbeat at the same time
	roundTrip  time.Duration

	renewal   store.Renewal // the last answered renewal
	last      bool          // renewal is the latest in the database, and no statement that was given up can follow it
	lateUntil time.Time     // until then a statement that was given up may be executed

	told        string // the report that the database has, as text
	toldInDoubt bool   // it may have another one, because an answer or a write was lost
	reports     bool   // a report was sent
}

// lateAtMost is longer than a connection, a pooler or a server delays a statement after its client
// has given it up.
const lateAtMost = 10 * time.Minute

func newSession(now time.Time) session {
	return session{number: store.RandomID(), process: nextProcess(), startedAt: now, nextBeat: now, sent: now}
}

// Clients of this program count up from a random number, so that the database knows which of two
// clients is newer.
var (
	thisProgram = store.RandomID() &^ (1<<store.ProcessBits - 1)
	opened      atomic.Int64
)

// nextProcess numbers a client.
func nextProcess() int64 { return thisProgram | opened.Add(1)&(1<<store.ProcessBits-1) }

// beatNow makes the next heartbeat due. Many clients may do that at once, for the same reason.
func (s *session) beatNow() { s.nextBeat, s.crowded = when.AtOnce, true }

// mayComeLate notes that a statement that renews the session was given up, and may be executed
// late.
func (s *session) mayComeLate(now time.Time) { s.lateUntil = now.Add(lateAtMost) }

func (s *session) registration(c *Config) store.Registration {
	return store.Registration{
		Session: s.number, ID: c.ClientID, Incarnation: s.incarnation, Process: s.process,
		TTL: c.TTL, Host: c.Host, PID: os.Getpid(), StartedAt: s.startedAt, Metadata: c.Metadata,
	}
}

// nowRegistered notes the answer to a registration, and reports whether the client had registered
// before.
func (s *session) nowRegistered(incarnation int64) (again bool) {
	again = s.again
	s.registered, s.again = true, true
	s.incarnation = incarnation
	s.beatNow() // its answer has the rest
	return again
}

// errContended says that live processes have taken a client ID from each other so often that the
// newest one waits, instead of ending the others again and again.
var errContended = errors.New("other processes use this client ID too")

// contended names the process that has the ID.
func contended(id string, by *store.Process) error {
	return fmt.Errorf("register client ID %q: %w, and took it from each other within 5 min: "+
		"now host %s, pid %d, started %s; give every live process an ID of its own",
		id, errContended, by.Host, by.PID, by.StartedAt.Format(time.RFC3339Nano))
}

// takeRenewal returns the previous renewal, for the next heartbeat. Until that is answered, the
// renewal is not known to be the latest.
func (s *session) takeRenewal() store.Renewal {
	last := s.renewal
	if !s.last {
		last.Marker = 0
	}
	s.last = false
	return last
}

// beatLost notes that a heartbeat failed.
func (s *session) beatLost(last store.Renewal, heartbeat time.Duration, now time.Time) {
	s.beatFailed, s.crowded = true, true
	s.nextBeat = now.Add(max(heartbeat/10, retryMin))
	if last.Marker == 0 { // a compared renewal has no effect if it arrives after the next one
		s.mayComeLate(now)
	}
}

// beatAnswered schedules the next heartbeat a little early, by a new random time for each one, so
// that clients drift apart. After a heartbeat that many clients may have sent together, it comes at
// a random time of the second half of the interval, so that they are apart at once.
func (s *session) beatAnswered(sent, received time.Time, heartbeat time.Duration) {
	early := heartbeat / 100
	if s.crowded {
		early = heartbeat / 2
	}
	s.nextBeat = sent.Add(heartbeat - rand.N(early))
	s.beatFailed = false
	s.crowded = s.nextBeat.Before(received) // a busy server may have delayed those of others too
}

// renewed notes a renewal, and reports whether its server incarnation differs from the previous
// one. A heartbeat that was given up may be executed after this renewal. Usually it has no effect:
// it compares clocks, and finds a later renewal than the one that it names. It still renews the
// session in two cases: on another incarnation, because it compares nothing there; and after the
// clock stepped back, because this renewal then looks earlier.
func (s *session) renewed(sent, received time.Time, now store.Renewal) (otherRun bool) {
	before := s.renewal
	if before.Marker != 0 && (before.Marker != now.Marker || before.Clock >= now.Clock) {
		s.mayComeLate(received)
	}
	s.renewal, s.last = now, received.After(s.lateUntil)
	s.sent, s.roundTrip = sent, received.Sub(sent)
	otherRun = before.Marker != now.Marker
	if otherRun && s.reports { // a crash or a promotion may have lost the last one
		s.toldInDoubt = true
	}
	return otherRun
}

// began reports whether a heartbeat was ever answered in this session.
func (s *session) began() bool { return s.renewal != store.Renewal{} }

// replace replaces the session by another, which is not registered yet.
func (s *session) replace() {
	s.number, s.registered = store.RandomID(), false
	s.renewal, s.last = store.Renewal{}, false
	s.lateUntil = time.Time{}
	s.told = ""
	s.toldInDoubt, s.reports = false, false
}
