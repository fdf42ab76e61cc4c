// Package liveness is the state of fast failover: each client's connection holds a liveness lock in
// the database, and two of the clients watch all these locks. The end of a process ends its
// connection, which releases the lock. Then the watching clients evict its session without waiting
// for its TTL.
//
// They must never evict a live client. So a client ends its trust before it closes its connection,
// and as soon as the connection ends without an announcement by the server. A client that could not
// notice this end refuses its readers. The watching clients wait for longer than that takes.
package liveness

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

const (
	// StoppedFor is how long a client may be without a check of its connection before it refuses its
	// readers.
	StoppedFor = 250 * time.Millisecond
	// PulseEvery is how often the client checks its connection.
	PulseEvery = 50 * time.Millisecond
	// lookEvery is how often the watching clients check the locks.
	lookEvery = 100 * time.Millisecond
	// freeFor is how long a lock has to be free before its session is evicted: by then a live client
	// has ended its trust, or refuses its readers.
	freeFor = StoppedFor + 50*time.Millisecond
	// evictTries is how often an eviction is tried. The obstacle may pass: a locked row, or a server
	// process that is not gone yet.
	evictTries = 5
	// keyStep leaves 40 of 63 random bits for the distance between a client's keys, so that 4,000,000
	// keys stay above the lowest number.
	keyStep = 23
)

// A Conn is a connection with fast failover; *store.Conn is one.
type Conn interface {
	OnEnd(func())
	Severed() bool
	HoldLiveness(ctx context.Context, session, presence int64) error
	WatchLiveness(ctx context.Context, session, digest int64) (store.Liveness, error)
	EvictDisconnected(
		ctx context.Context, ended []store.Absence, since store.SessionEnds, run store.Incarnation,
	) (store.Evicted, error)
}

// A State is a client's state of fast failover. Only the client's goroutine calls its methods. All
// fields except presence, pulse and woke belong to the present connection.
type State struct {
	On       bool      // fast failover is on
	lifeline *lifeline // nil: fast failover is off
	heldFor  int64     // the session whose liveness lock the connection holds; 0: it holds none
	presence int64     // the last key of such a lock, of this connection or an earlier one

	pulse time.Time // when the client last checked its connection

	// woke is since when the client waits for an answer of the server, because it was stopped before.
	// It is zero while the client does not wait.
	woke time.Time

	LookAt   time.Time          // when to check the locks of others
	stranger logqueue.Condition // another session has a client's lock, or awaits it
	Digest   int64              // of the last check
	ends     store.SessionEnds  // at the last check
	held     map[int64]int      // by key of a lock that was held at the last check: the server process that held it
	absent   map[int64]*absent  // by key of a lock that was seen held, and has been free since
}

// An absent session is one whose lock is free.
type absent struct {
	store.Absence
	since store.SessionEnds // when the lock was last seen held
	dueAt time.Time         // to evict it
	tries int
}

// New returns the state of a client.
func New(on bool, now time.Time) State {
	return State{
		On: on, presence: -store.RandomID() / 2, pulse: now,
		held: make(map[int64]int), absent: make(map[int64]*absent),
	}
}

// A lifeline ends the trust of a client when the connection ends.
type lifeline struct {
	wakeUp func()

	// mu guards the fields below.
	mu       sync.Mutex
	validity *owned.Validity
	ended    bool
}

// carries sets the validity that ends with the connection; nil: no validity does.
func (l *lifeline) carries(v *owned.Validity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.validity = v
	if l.ended && v != nil {
		v.End()
	}
}

// end is called by the code that ends the connection, or detects its end.
func (l *lifeline) end() {
	l.mu.Lock()
	l.ended = true
	if l.validity != nil {
		l.validity.End()
	}
	l.mu.Unlock()
	l.wakeUp()
}

// Connected handles a new connection. The earlier trust depends on it from the moment when it is to
// hold the lock. Until then the watching clients do not notice its end.
func (f *State) Connected(c any, wakeUp func()) {
	if !f.On {
		return
	}
	f.heldFor = 0
	f.LookAt = time.Time{}
	f.forget()
	f.lifeline = &lifeline{wakeUp: wakeUp}
	c.(Conn).OnEnd(f.lifeline.end)
}

// forget forgets all checks.
func (f *State) forget() {
	f.Digest = 0
	clear(f.held)
	clear(f.absent)
}

// Carries sets the validity that ends with the connection.
func (f *State) Carries(v *owned.Validity) {
	if f.On {
		f.lifeline.carries(v)
	}
}

// Ended reports whether the connection has ended without an announcement by the server.
func (f *State) Ended() bool {
	if f.lifeline == nil {
		return false
	}
	f.lifeline.mu.Lock()
	defer f.lifeline.mu.Unlock()
	return f.lifeline.ended
}

// Beat notes a check of the connection, and returns how long the client was stopped before; 0: it
// was not stopped. If the last check was too long ago, the other clients may have seen the
// connection end. Then readers wait for an answer on this connection, which shows that it did not
// end.
func (f *State) Beat(now time.Time) (stopped time.Duration) {
	stopped = Passed(f.pulse, now)
	f.pulse = now
	if stopped <= StoppedFor {
		return 0
	}
	f.woke = now
	return stopped
}

// Passed returns the time between two times, by the clock that shows more: the wall clock also runs
// while a machine sleeps.
func Passed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// Allows allows readers to read for some more time. It does not if they wait for an answer, or if
// the connection has ended and no announcement of the server was read yet. It reports whether
// refused readers can read again.
func (f *State) Allows(v *owned.Validity, c any, now time.Time) (again bool) {
	if v == nil || !f.woke.IsZero() || c != nil && c.(Conn).Severed() {
		return false
	}
	return v.Allow(now.Add(StoppedFor))
}

// Answered handles the answer to a statement that was sent at that time. The answer shows that the
// session lives. If readers waited for an answer, it reports whether they read again, or whether
// another heartbeat has to be answered.
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

// PulseDue returns when to check the connection again.
func (f *State) PulseDue() time.Time {
	if !f.On {
		return when.Never
	}
	return f.pulse.Add(PulseEvery)
}

// ToHold reports whether the connection has to acquire the liveness lock of a session: before the
// first heartbeat on a connection, and of a session.
func (f *State) ToHold(session int64) bool { return f.On && f.heldFor != session }

// NextPresence returns the key of the next liveness lock.
func (f *State) NextPresence() int64 {
	f.presence -= 1 + store.RandomID()>>keyStep
	return f.presence
}

// SetHeld notes that the connection holds the lock of a session.
func (f *State) SetHeld(session int64) { f.heldFor, f.LookAt = session, time.Time{} }

// Looked handles the answer to a check. A client that does not watch asks again at the next
// heartbeat, and when a notification arrives: a client that evicts notifies the clients that watch
// next.
func (f *State) Looked(look store.Liveness, err error, began time.Time, heartbeat time.Duration, log *slog.Logger) {
	now := time.Now()
	f.LookAt = now.Add(lookEvery) // not since its beginning: a slow check would leave no time for less urgent tasks
	switch {
	case err != nil:
	case look.Watches:
		f.saw(look, now.Add(freeFor))
		f.saidStranger(look.Stranger, now, log)
	default:
		f.LookAt = began.Add(heartbeat)
		f.forget()
	}
}

// saidStranger logs that a server process that is not a client's keeps the lock of one, and when it
// does not any more.
func (f *State) saidStranger(pid int, now time.Time, log *slog.Logger) {
	f.stranger.Set(pid != 0, now, func() {
		log.Warn("pgleases: fast failover may take the TTL, "+
			"because another session holds or awaits the lock of a client: pgleases doctor names it",
			slog.Int("server_pid", pid))
	}, func(lasted time.Duration) {
		log.Info("pgleases: fast failover no longer delayed by another session", slog.Duration("for", lasted))
	})
}

// saw handles the result of a check. A session is absent if its lock was seen held and is free now,
// until it has another lock or was renewed.
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

// EvictDue returns when to evict sessions whose locks have been free for long enough.
func (f *State) EvictDue() time.Time {
	_, at := when.Soonest(maps.Values(f.absent), func(a *absent) time.Time { return a.dueAt })
	return at
}

// Due returns the sessions to evict now. All their locks were last seen held at the same check.
func (f *State) Due(now time.Time) (e Eviction) {
	for _, a := range f.absent {
		if !a.dueAt.After(now) && (len(e.of) == 0 || a.since == e.Since) {
			e.Since = a.since
			e.Ended, e.of = append(e.Ended, a.Absence), append(e.of, a)
		}
	}
	return e
}

// An Eviction is an eviction of sessions whose connections have ended.
type Eviction struct {
	Ended []store.Absence
	Since store.SessionEnds // when their locks were last seen held
	of    []*absent
}

// Evicted handles the answer to an eviction. The next check no longer shows evicted sessions.
func (f *State) Evicted(e Eviction, err error) {
	for _, a := range e.of {
		a.dueAt = time.Now().Add(lookEvery)
		a.tries++
		if a.tries == evictTries {
			a.dueAt = when.Never
		}
	}
	if err == nil {
		f.LookAt = when.AtOnce
	}
}

// End ends the trust before this side ends the connection.
func (f *State) End() {
	if f.lifeline != nil {
		f.lifeline.end()
	}
}
