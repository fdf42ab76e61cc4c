package pgleases

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// Fast fail-over: each client's connection holds a lock in the database, and two of the clients watch all these locks. The end of a process
// ends its connection, which frees the lock; they evict its session then, and need not wait for its TTL.
//
// It must never be a living client's. So a client drops its trust before it closes its connection, and as soon as the connection ends without
// a word of the server; a client that could not notice that refuses its readers. And who watches waits for longer than that takes.

const (
	// stoppedFor is for how long a client may not have looked at its connection until its readers are refused.
	stoppedFor = 250 * time.Millisecond
	// pulseEvery is how often it looks.
	pulseEvery = 50 * time.Millisecond
	// lookEvery is how often locks are looked at by those who watch them.
	lookEvery = 100 * time.Millisecond
	// freeFor is for how long a lock has to be free until its session is evicted: a living client has dropped its trust by then, or its
	// readers are refused.
	freeFor = stoppedFor + 50*time.Millisecond
	// evictTries is how often that is tried. What is in the way may pass: a row that is locked, a process of the server that is not gone yet.
	evictTries = 5
	// keyStep leaves 40 of 63 random bits to the distance between a client's keys: four million keep them above the lowest number.
	keyStep = 23
)

// failover is the state of fast fail-over. All but presence, pulse and woke is of the present connection.
type failover struct {
	lifeline *lifeline
	attends  int64 // the session for which the connection holds a lock; 0: none
	presence int64 // the last key of such a lock, of this connection or an earlier one

	pulse time.Time // when the client last looked at its connection
	woke  time.Time // since then it waits for an answer of the server, as it was stopped before; zero: it does not

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

func newFailover(now time.Time) failover {
	return failover{presence: -randomID() / 2, pulse: now, held: make(map[int64]int), absent: make(map[int64]*absent)}
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

// end is called by whoever ends the connection, or notices its end.
func (l *lifeline) end() {
	l.mu.Lock()
	l.ended = true
	if l.validity != nil {
		l.validity.End()
	}
	l.mu.Unlock()
	l.wakeUp()
}

// connected takes a new connection.
func (e *engine) connected(c conn) {
	e.connection.conn = c
	if !e.options.fastFailover {
		return
	}
	f := &e.failover
	f.attends, f.lookAt, f.warned, f.digest = 0, atOnce, false, 0
	clear(f.held)
	clear(f.absent)
	// It carries the trust of before once the connection is to hold a lock. Until then its end tells nobody anything.
	f.lifeline = &lifeline{wakeUp: e.client.wakeUp}
	c.(seam.FailoverConn).OnEnd(f.lifeline.end)
}

// newValidity begins at that moment, and ends after so long. With fast failover readers read from
// the next pulse on, until one is missed.
func (e *engine) newValidity(opened time.Time, lasts time.Duration) *owned.Validity {
	if !e.options.fastFailover {
		return owned.Valid(opened, lasts)
	}
	v := owned.ValidWhileAllowed(opened, lasts)
	e.failover.lifeline.carries(v)
	return v
}

// watchConnection looks at the connection, and lets readers read for some more time; not where it has ended, and it was not read yet whether
// the server had said so. Where the client has not looked for too long, the others may have noticed an end. Then readers
// wait for an answer on this connection, which tells that there was none.
func (e *engine) watchConnection(now time.Time) {
	f := &e.failover
	if !e.options.fastFailover {
		return
	}
	stopped := max(now.Sub(f.pulse), now.Round(0).Sub(f.pulse.Round(0))) // the wall clock too, which runs while a machine sleeps
	f.pulse = now
	if stopped > stoppedFor {
		f.woke = now
		e.session.beatNow()
		e.client.log.Info("pgleases: readers wait for the server, as the process was stopped", slog.Duration("for", stopped))
	}
	c := e.connection.conn
	if v := e.session.validity; v != nil && f.woke.IsZero() && (c == nil || !c.(seam.FailoverConn).Severed()) {
		refused := !v.Holds()
		v.Allow(now.Add(stoppedFor))
		if refused && v.Holds() { // readers read again, and who waits for that is told
			for _, m := range e.leases.byName {
				e.show(m, e.served(m))
			}
		}
	}
}

func (e *engine) pulseDue() time.Time {
	if !e.options.fastFailover {
		return never
	}
	return e.failover.pulse.Add(pulseEvery)
}

// answered takes an answer to a statement that was sent at that moment, which tells that the session lives. Readers that waited for one read
// again.
func (e *engine) answered(sent time.Time) {
	f := &e.failover
	f.pulse = later(f.pulse, sent)
	switch {
	case f.woke.IsZero():
	case sent.Before(f.woke):
		e.session.beatNow()
	default:
		f.woke = time.Time{}
		e.watchConnection(time.Now())
	}
}

// attendDue is before the first heartbeat on a connection, and of a session.
func (e *engine) attendDue(time.Time) time.Time { return atOnceIf(e.toAttend()) }

// toAttend reports whether there is no lock yet for the session on this connection.
func (e *engine) toAttend() bool {
	return e.options.fastFailover && e.failover.attends != e.session.number
}

func (e *engine) beginAttend(time.Time) *operation {
	e.failover.presence -= 1 + randomID()>>keyStep
	session, presence := e.session.number, e.failover.presence
	e.failover.lifeline.carries(e.session.validity)
	attend := func(ctx context.Context, c conn) error { return c.(seam.FailoverConn).Attend(ctx, session, presence) }
	return tell(e.limit(), attend, func(err error) {
		e.session.beatFailed = err != nil // without the lock no heartbeat is sent
		if err == nil {
			e.failover.attends, e.failover.lookAt = session, atOnce
		}
	})
}

func (e *engine) lookOutDue(time.Time) time.Time {
	if !e.options.fastFailover || e.ending.reason != nil && e.onlySessionRemains() {
		return never
	}
	return e.failover.lookAt
}

// beginLookOut looks at the locks, where this client is one of those that watch them. Whoever is not asks again at the next heartbeat, and
// when a notification comes: who evicts notifies those that are next.
func (e *engine) beginLookOut(now time.Time) *operation {
	session, digest := e.session.number, e.failover.digest
	lookOut := func(ctx context.Context, c conn) (store.Lookout, error) {
		return c.(seam.FailoverConn).LookOut(ctx, session, digest)
	}
	return ask(e.limit(), lookOut, func(look store.Lookout, err error) {
		f := &e.failover
		f.lookAt = time.Now().Add(lookEvery) // not since it began: one that takes longer would leave no turn to what is less urgent
		switch {
		case err != nil:
		case look.Watches:
			e.lookedOut(look)
		default:
			f.lookAt, f.digest = now.Add(e.options.heartbeat), 0
			clear(f.held)
			clear(f.absent)
		}
	})
}

// lookedOut takes what a look tells. A session counts whose lock was seen held and is free, until it has another lock or was renewed.
func (e *engine) lookedOut(look store.Lookout) {
	f := &e.failover
	if look.Stranger != 0 && !f.warned {
		f.warned = true
		e.client.log.Warn("pgleases: fast fail-over may take the TTL, as another session holds or awaits the lock of a client: pgleases doctor names it",
			slog.Int("server_pid", look.Stranger))
	}
	dueAt := time.Now().Add(freeFor)
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

func (e *engine) evictEndedDue(time.Time) time.Time {
	if e.ending.reason != nil && e.onlySessionRemains() {
		return never
	}
	_, at := soonest(maps.Values(e.failover.absent), func(a *absent) time.Time { return a.dueAt })
	return at
}

// beginEvictEnded evicts those whose locks have been free for long enough, and were last seen held at the same look.
func (e *engine) beginEvictEnded(now time.Time) *operation {
	f := &e.failover
	due := slices.DeleteFunc(slices.Collect(maps.Values(f.absent)), func(a *absent) bool { return a.dueAt.After(now) })
	due = slices.DeleteFunc(due, func(a *absent) bool { return a.since != due[0].since })
	ended := make([]store.Absence, len(due))
	for i, a := range due {
		ended[i] = a.Absence
	}
	since, run := due[0].since, e.check.watch.run
	return ask(e.limit(), func(ctx context.Context, c conn) (store.Evicted, error) {
		return c.(seam.FailoverConn).EvictEnded(ctx, ended, since, run)
	}, func(evicted store.Evicted, err error) {
		for _, a := range due { // who was evicted is not told by the next look
			a.dueAt = time.Now().Add(lookEvery)
			if a.tries++; a.tries == evictTries {
				a.dueAt = never
			}
		}
		if err != nil {
			return
		}
		if len(evicted.IDs) > 0 {
			e.client.log.Info("pgleases: evicted sessions whose connection has ended", slog.Any("clients", evicted.IDs))
		}
		e.evictedOthers(evicted)
		f.lookAt = atOnce
	})
}

// endLifeline drops the trust before this side ends the connection.
func (e *engine) endLifeline() {
	if e.failover.lifeline != nil && !e.connection.conn.Closed() {
		e.failover.lifeline.end()
	}
	e.checkTrust(time.Now())
}

// trustLost is why the trust has ended.
func (e *engine) trustLost() error {
	if l := e.failover.lifeline; l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ended {
			return fmt.Errorf("%w: the connection has ended", ErrTrustLost)
		}
	}
	return ErrTrustLost
}
