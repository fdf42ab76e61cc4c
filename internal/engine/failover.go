package engine

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
)

// Fast failover: each client's connection holds a liveness lock in the database, and two of the clients watch all these locks. The end
// of a process ends its connection, which frees the lock; they evict its session then, and need not wait for its TTL.
//
// It must never be a live client's. So a client drops its trust before it closes its connection, and as soon as the connection ends
// without a word of the server; a client that could not notice that refuses its readers. And the watching clients wait for longer than
// that takes.

const (
	// stoppedFor is for how long a client may not have looked at its connection until its readers are refused.
	stoppedFor = 250 * time.Millisecond
	// pulseEvery is how often it looks.
	pulseEvery = 50 * time.Millisecond
	// lookEvery is how often the watching clients look at the locks.
	lookEvery = 100 * time.Millisecond
	// freeFor is for how long a lock has to be free until its session is evicted: a live client has dropped its trust by then, or its
	// readers are refused.
	freeFor = stoppedFor + 50*time.Millisecond
	// evictTries is how often that is tried. What is in the way may pass: a row that is locked, a process of the server that is not gone yet.
	evictTries = 5
	// keyStep leaves 40 of 63 random bits to the distance between a client's keys: four million keep them above the lowest number.
	keyStep = 23
)

// failover is the state of fast failover. All but presence, pulse and woke is of the present connection.
type failover struct {
	on       bool
	lifeline *lifeline // nil: fast failover is off
	heldFor  int64     // the session for which the connection holds the liveness lock; 0: none
	presence int64     // the last key of such a lock, of this connection or an earlier one

	pulse time.Time // when the client last looked at its connection
	woke  time.Time // since then it waits for an answer of the server, because it was stopped before; zero: it does not

	lookAt time.Time
	warned bool // of a stranger
	digest int64
	ends   store.SessionEnds // at the last look
	held   map[int64]int     // by key, what that look saw held: the server's process
	absent map[int64]*absent // by key, what was seen held, and free since
}

// An absent session's lock is free.
type absent struct {
	store.Absence
	since store.SessionEnds // when the lock was last seen held
	dueAt time.Time         // to evict it
	tries int
}

func newFailover(on bool, now time.Time) failover {
	return failover{on: on, presence: -store.RandomID() / 2, pulse: now, held: make(map[int64]int), absent: make(map[int64]*absent)}
}

// A lifeline ends the trust of a client with the connection.
type lifeline struct {
	wakeUp func()

	// mu guards what follows.
	mu       sync.Mutex
	validity *owned.Validity
	ended    bool
}

// carries says which validity ends with the connection; nil: there is none.
func (l *lifeline) carries(v *owned.Validity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.validity = v
	if l.ended && v != nil {
		v.End()
	}
}

// end is called by whatever ends the connection, or notices its end.
func (l *lifeline) end() {
	l.mu.Lock()
	l.ended = true
	if l.validity != nil {
		l.validity.End()
	}
	l.mu.Unlock()
	l.wakeUp()
}

// connected takes a new connection. It carries the trust of before once it is to hold the lock. Until then its end says nothing to others.
func (f *failover) connected(c Conn, wakeUp func()) {
	if !f.on {
		return
	}
	f.heldFor, f.lookAt, f.warned = 0, atOnce, false
	f.forget()
	f.lifeline = &lifeline{wakeUp: wakeUp}
	c.(FailoverConn).OnEnd(f.lifeline.end)
}

// forget forgets all looks.
func (f *failover) forget() {
	f.digest = 0
	clear(f.held)
	clear(f.absent)
}

// carries says which validity ends with the connection.
func (f *failover) carries(v *owned.Validity) {
	if f.on {
		f.lifeline.carries(v)
	}
}

// ended reports whether the connection has ended without a word of the server.
func (f *failover) ended() bool {
	if f.lifeline == nil {
		return false
	}
	f.lifeline.mu.Lock()
	defer f.lifeline.mu.Unlock()
	return f.lifeline.ended
}

// beat notes a look at the connection, and returns for how long the client was stopped before; 0: it was not. If it has not looked for
// too long, the others may have noticed an end. Then readers wait for an answer on this connection, which shows that there was none.
func (f *failover) beat(now time.Time) (stopped time.Duration) {
	stopped = max(now.Sub(f.pulse), now.Round(0).Sub(f.pulse.Round(0))) // the wall clock too, which runs while a machine sleeps
	f.pulse = now
	if stopped <= stoppedFor {
		return 0
	}
	f.woke = now
	return stopped
}

// allows lets readers read for some more time, unless they wait for an answer, or the connection has ended and it was not read yet
// whether the server had said so. It reports whether readers that were refused read again.
func (f *failover) allows(v *owned.Validity, c Conn, now time.Time) (again bool) {
	if v == nil || !f.woke.IsZero() || c != nil && c.(FailoverConn).Severed() {
		return false
	}
	refused := !v.Holds()
	v.Allow(now.Add(stoppedFor))
	return refused && v.Holds()
}

// answered takes an answer to a statement that was sent at that moment, which shows that the session lives. It reports what readers do
// that waited for one: they read again, or another heartbeat has to be answered.
func (f *failover) answered(sent time.Time) (again, beat bool) {
	f.pulse = later(f.pulse, sent)
	switch {
	case f.woke.IsZero():
		return false, false
	case sent.Before(f.woke):
		return false, true
	}
	f.woke = time.Time{}
	return true, false
}

func (f *failover) pulseDue() time.Time {
	if !f.on {
		return never
	}
	return f.pulse.Add(pulseEvery)
}

// toHold reports whether the connection has to take the liveness lock of a session: before the first heartbeat on a connection, and of a session.
func (f *failover) toHold(session int64) bool { return f.on && f.heldFor != session }

// nextPresence returns the key of the next liveness lock.
func (f *failover) nextPresence() int64 {
	f.presence -= 1 + store.RandomID()>>keyStep
	return f.presence
}

// holds notes that the connection holds the lock of a session.
func (f *failover) holds(session int64) { f.heldFor, f.lookAt = session, atOnce }

// looked takes the answer to a look. A client that does not watch asks again at the next heartbeat, and when a notification comes: a
// client that evicts notifies those that are next.
func (f *failover) looked(look store.Liveness, err error, began time.Time, heartbeat time.Duration, log *slog.Logger) {
	now := time.Now()
	f.lookAt = now.Add(lookEvery) // not since it began: one that takes longer would leave no turn to what is less urgent
	switch {
	case err != nil:
	case look.Watches:
		f.saw(look, now.Add(freeFor))
		if look.Stranger != 0 && !f.warned {
			f.warned = true
			log.Warn("pgleases: fast failover may take the TTL, as another session holds or awaits the lock of a client: pgleases doctor names it",
				slog.Int("server_pid", look.Stranger))
		}
	default:
		f.lookAt = began.Add(heartbeat)
		f.forget()
	}
}

// saw takes what a look shows. A session counts whose lock was seen held and is free, until it has another lock or was renewed.
func (f *failover) saw(look store.Liveness, dueAt time.Time) {
	free := make(map[int64]bool, len(look.Free))
	for _, a := range look.Free {
		free[a.Presence] = true
		switch known := f.absent[a.Presence]; {
		case known != nil && known.Expiry != a.Expiry:
			delete(f.absent, a.Presence)
		case known == nil && f.held[a.Presence] != 0:
			a.PID = f.held[a.Presence]
			f.absent[a.Presence] = &absent{Absence: a, since: f.ends, dueAt: dueAt}
		}
	}
	maps.DeleteFunc(f.absent, func(key int64, _ *absent) bool { return !free[key] })
	f.digest, f.ends = look.Digest, look.Ends
	if look.Held != nil {
		f.held = look.Held
	}
}

// evictDue is when to evict sessions whose locks have been free for long enough.
func (f *failover) evictDue() time.Time {
	_, at := soonest(maps.Values(f.absent), func(a *absent) time.Time { return a.dueAt })
	return at
}

// due returns those that are to be evicted now, of which all locks were last seen held at the same look.
func (f *failover) due(now time.Time) (due []*absent) {
	due = slices.DeleteFunc(slices.Collect(maps.Values(f.absent)), func(a *absent) bool { return a.dueAt.After(now) })
	return slices.DeleteFunc(due, func(a *absent) bool { return a.since != due[0].since })
}

// evicted takes the answer to their eviction. The next look does not show sessions that were evicted.
func (f *failover) evicted(due []*absent, err error) {
	for _, a := range due {
		a.dueAt = time.Now().Add(lookEvery)
		if a.tries++; a.tries == evictTries {
			a.dueAt = never
		}
	}
	if err == nil {
		f.lookAt = atOnce
	}
}
