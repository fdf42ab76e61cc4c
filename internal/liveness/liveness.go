// Package liveness is the state of fast failover: each client's connection holds a liveness lock in
// the database, and two of the clients watch all these locks. The end of a process ends its
// connection, which frees the lock. The watching clients evict its session then, and need not wait
// for its TTL.
//
// It must never be a live client's. So a client drops its trust before it closes its connection,
// and as soon as the connection ends without a word of the server. A client that could not notice
// that refuses its readers. The watching clients wait for longer than that takes.
package liveness

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
)

var never = time.Unix(1<<40, 0)

const (
	// StoppedFor is for how long a client may not have looked at its connection until its readers are
	// refused.
	StoppedFor = 250 * time.Millisecond
	// PulseEvery is how often it looks.
	PulseEvery = 50 * time.Millisecond
	// lookEvery is how often the watching clients look at the locks.
	lookEvery = 100 * time.Millisecond
	// freeFor is for how long a lock has to be free until its session is evicted: a live client has
	// dropped its trust by then, or its readers are refused.
	freeFor = StoppedFor + 50*time.Millisecond
	// evictTries is how often that is tried. What is in the way may pass: a row that is locked, a
	// process of the server that is not gone yet.
	evictTries = 5
	// keyStep leaves 40 of 63 random bits to the distance between a client's keys: four million keep
	// them above the lowest number.
	keyStep = 23
)

// A Conn is a connection with fast failover; *store.Conn is one.
type Conn interface {
	OnEnd(func())
	Severed() bool
	HoldLiveness(ctx context.Context, session, presence int64) error
	WatchLiveness(ctx context.Context, session, digest int64) (store.Liveness, error)
	EvictDisconnected(ctx context.Context, ended []store.Absence, since store.SessionEnds, run store.Incarnation) (store.Evicted, error)
}

// A State is a client's. The client's goroutine alone calls its methods. All but presence, pulse
// and woke is of the present connection.
type State struct {
	On       bool      // fast failover is
	lifeline *lifeline // nil: fast failover is off
	heldFor  int64     // the session for which the connection holds the liveness lock; 0: none
	presence int64     // the last key of such a lock, of this connection or an earlier one

	pulse time.Time // when the client last looked at its connection
	woke  time.Time // since then it waits for an answer of the server, because it was stopped before; zero: it does not

	LookAt time.Time         // when to look at the locks of others
	warned bool              // of a stranger
	Digest int64             // of the last look
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

// New returns the state of a client.
func New(on bool, now time.Time) State {
	return State{On: on, presence: -store.RandomID() / 2, pulse: now, held: make(map[int64]int), absent: make(map[int64]*absent)}
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

// Connected takes a new connection. It carries the trust of before once it is to hold the lock.
// Until then its end says nothing to others.
func (f *State) Connected(c any, wakeUp func()) {
	if !f.On {
		return
	}
	f.heldFor, f.LookAt, f.warned = 0, time.Time{}, false
	f.forget()
	f.lifeline = &lifeline{wakeUp: wakeUp}
	c.(Conn).OnEnd(f.lifeline.end)
}

// forget forgets all looks.
func (f *State) forget() {
	f.Digest = 0
	clear(f.held)
	clear(f.absent)
}

// Carries says which validity ends with the connection.
func (f *State) Carries(v *owned.Validity) {
	if f.On {
		f.lifeline.carries(v)
	}
}

// Ended reports whether the connection has ended without a word of the server.
func (f *State) Ended() bool {
	if f.lifeline == nil {
		return false
	}
	f.lifeline.mu.Lock()
	defer f.lifeline.mu.Unlock()
	return f.lifeline.ended
}

// Beat notes a look at the connection, and returns for how long the client was stopped before; 0:
// it was not. If it has not looked for too long, the others may have noticed an end. Then readers
// wait for an answer on this connection, which shows that there was none.
func (f *State) Beat(now time.Time) (stopped time.Duration) {
	stopped = max(now.Sub(f.pulse), now.Round(0).Sub(f.pulse.Round(0))) // the wall clock too, which runs while a machine sleeps
	f.pulse = now
	if stopped <= StoppedFor {
		return 0
	}
	f.woke = now
	return stopped
}

// Allows lets readers read for some more time, unless they wait for an answer, or the connection
// has ended and it was not read yet whether the server had said so. It reports whether readers that
// were refused read again.
func (f *State) Allows(v *owned.Validity, c any, now time.Time) (again bool) {
	if v == nil || !f.woke.IsZero() || c != nil && c.(Conn).Severed() {
		return false
	}
	refused := !v.Holds()
	v.Allow(now.Add(StoppedFor))
	return refused && v.Holds()
}

// Answered takes an answer to a statement that was sent at that moment, which shows that the
// session lives. It reports what readers do that waited for one: they read again, or another
// heartbeat has to be answered.
func (f *State) Answered(sent time.Time) (again, beat bool) {
	if sent.After(f.pulse) {
		f.pulse = sent
	}
	switch {
	case f.woke.IsZero():
		return false, false
	case sent.Before(f.woke):
		return false, true
	}
	f.woke = time.Time{}
	return true, false
}

// PulseDue is when to look at the connection again.
func (f *State) PulseDue() time.Time {
	if !f.On {
		return never
	}
	return f.pulse.Add(PulseEvery)
}

// ToHold reports whether the connection has to take the liveness lock of a session: before the
// first heartbeat on a connection, and of a session.
func (f *State) ToHold(session int64) bool { return f.On && f.heldFor != session }

// NextPresence returns the key of the next liveness lock.
func (f *State) NextPresence() int64 {
	f.presence -= 1 + store.RandomID()>>keyStep
	return f.presence
}

// SetHeld notes that the connection holds the lock of a session.
func (f *State) SetHeld(session int64) { f.heldFor, f.LookAt = session, time.Time{} }

// Looked takes the answer to a look. A client that does not watch asks again at the next heartbeat,
// and when a notification comes: a client that evicts notifies those that are next.
func (f *State) Looked(look store.Liveness, err error, began time.Time, heartbeat time.Duration, log *slog.Logger) {
	now := time.Now()
	f.LookAt = now.Add(lookEvery) // not since it began: one that takes longer would leave no turn to what is less urgent
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
		f.LookAt = began.Add(heartbeat)
		f.forget()
	}
}

// saw takes what a look shows. A session counts whose lock was seen held and is free, until it has
// another lock or was renewed.
func (f *State) saw(look store.Liveness, dueAt time.Time) {
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
	f.Digest, f.ends = look.Digest, look.Ends
	if look.Held != nil {
		f.held = look.Held
	}
}

// EvictDue is when to evict sessions whose locks have been free for long enough.
func (f *State) EvictDue() time.Time {
	at := never
	for _, a := range f.absent {
		if a.dueAt.Before(at) {
			at = a.dueAt
		}
	}
	return at
}

// Due returns those that are to be evicted now, of which all locks were last seen held at the same
// look.
func (f *State) Due(now time.Time) (e Eviction) {
	for _, a := range f.absent {
		if !a.dueAt.After(now) && (len(e.of) == 0 || a.since == e.Since) {
			e.Ended, e.Since, e.of = append(e.Ended, a.Absence), a.since, append(e.of, a)
		}
	}
	return e
}

// An Eviction is of sessions whose connections have ended.
type Eviction struct {
	Ended []store.Absence
	Since store.SessionEnds // when their locks were last seen held
	of    []*absent
}

// Evicted takes the answer to their eviction. The next look does not show sessions that were
// evicted.
func (f *State) Evicted(e Eviction, err error) {
	for _, a := range e.of {
		a.dueAt = time.Now().Add(lookEvery)
		if a.tries++; a.tries == evictTries {
			a.dueAt = never
		}
	}
	if err == nil {
		f.LookAt = time.Time{}
	}
}

// End drops the trust before this side ends the connection.
func (f *State) End() {
	if f.lifeline != nil {
		f.lifeline.end()
	}
}
