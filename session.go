package pgleases

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
)

// Registering, heartbeats, the trust that they earn, and promotions, which interrupt it.

// session is the client's session in the database, and how long the client may trust what it read under it.
type session struct {
	number      int64 // see randomID
	registered  bool
	incarnation int64 // 0 before the first registration
	process     int64 // see nextProcess
	startedAt   time.Time

	nextBeat   time.Time
	sent       time.Time // the last heartbeat that succeeded
	beatFailed bool      // the last heartbeat
	roundTrip  time.Duration
	marked     bool // the server's run, since the last heartbeat that succeeded

	renewal   store.Renewal // the last that was answered
	last      bool          // it is the last of all: none was given up since, nor can one come late
	lateUntil time.Time     // until then one may come late

	validity  *owned.Validity // nil: there is no trust
	invalid   *owned.Validity // for snapshots without trust
	wallLimit time.Time       // the trust deadline on the wall clock

	confirmed store.Run // of the server that confirmed all that is shown, without the mark
	settled   bool      // that server is
	settleAt  time.Time
	era       int64 // the highest that was read, on any server
	behind    bool  // the server's is lower
}

// lateAtMost is more than a statement takes that a connection, a pooler or a server held back after its client had given it up.
const lateAtMost = 10 * time.Minute

// beatNow makes the next heartbeat due.
func (s *session) beatNow() { s.nextBeat = atOnce }

func (e *engine) registration() store.Registration {
	return store.Registration{
		Session: e.session.number, ID: e.options.clientID, Incarnation: e.session.incarnation, Process: e.session.process,
		TTL: e.options.ttl, Host: hostname(), PID: os.Getpid(), StartedAt: e.session.startedAt,
	}
}

// registerFirst connects and registers before the goroutine runs. What may succeed when it is
// repeated is tried again until ctx ends.
func (e *engine) registerFirst(ctx context.Context) error {
	var failed error // the last attempt, unless ctx ended it
	for !e.session.registered {
		if failed != nil && ctx.Err() != nil {
			return fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), failed)
		}
		d, at := e.next(time.Now())
		if d == nil {
			select {
			case <-time.After(time.Until(at)):
			case <-ctx.Done():
			}
			continue
		}
		err := d.begin(e, time.Now()).call(ctx, e.connection.conn)(nil)
		switch {
		case e.ending.reason != nil:
			return e.ending.reason
		case err != nil && !store.Transient(err):
			return err
		case err == nil || ctx.Err() == nil:
			failed = cmp.Or(err, failed)
			e.completed(d, err)
		case failed == nil:
			failed = err
		}
	}
	e.publishStats()
	return nil
}

func (e *engine) beginRegister(time.Time) *operation {
	r := e.registration()
	var sent time.Time
	var newer *store.Process
	return ask(e.limit(), func(ctx context.Context, c conn) (incarnation int64, err error) {
		sent = time.Now()
		incarnation, newer, err = c.Register(ctx, r)
		return incarnation, err
	}, func(incarnation int64, err error) {
		switch {
		case err != nil:
			e.connection.backOff(e.options)
			e.session.lateUntil = time.Now().Add(lateAtMost) // it renews the session too
		case incarnation == 0:
			e.close(e.superseded(newer))
		default:
			again := e.session.incarnation != 0
			e.session.registered, e.session.incarnation = true, incarnation
			e.session.beatNow() // which tells the rest
			e.answered(sent)
			e.trust(sent)
			if again {
				e.client.log.Info("pgleases: registered", slog.Int64("session", e.session.number), slog.Int64("incarnation", incarnation))
			}
		}
	})
}

func (e *engine) superseded(newer *store.Process) error {
	switch {
	case newer == nil:
		return ErrSuperseded
	case newer.Evicted:
		return ErrEvicted
	}
	return fmt.Errorf("%w: host %s, pid %d, started %s; processes that live at once need an ID each", ErrSuperseded, newer.Host, newer.PID,
		newer.StartedAt.Format(time.RFC3339Nano))
}

// heartbeatDue is early where a check for the dead is due: the heartbeat tells whether another client made it.
func (e *engine) heartbeatDue(time.Time) time.Time {
	if e.toAttend() {
		return never
	}
	return earlier(e.session.nextBeat, e.check.lookAt)
}

func (e *engine) beginHeartbeat(now time.Time) *operation {
	session, watched, last := e.session.number, e.check.watch.lasts(now), e.session.renewal
	if !e.session.last {
		last.Mark = 0
	}
	e.session.last = false
	var sent, received time.Time
	return ask(max(e.options.heartbeat, e.options.ttl/4), func(ctx context.Context, c conn) (store.Beat, error) {
		sent = time.Now()
		beat, err := c.Heartbeat(ctx, session, watched, last)
		received = time.Now()
		return beat, err
	}, func(beat store.Beat, err error) {
		e.session.beatFailed = err != nil
		if err != nil {
			e.session.nextBeat = time.Now().Add(max(e.options.heartbeat/10, retryMin))
			e.check.lookAt = never
			if last.Mark == 0 { // one that is compared renews nothing if it comes after the next
				e.session.lateUntil = time.Now().Add(lateAtMost)
			}
			return
		}
		if beat.Alive || e.session.renewal != (store.Renewal{}) { // else it is evicted again and again, and each time later registered
			e.connection.retry = 0
		}
		e.heard(sent, received, beat)
	})
}

// heard takes the answer to a heartbeat.
func (e *engine) heard(sent, received time.Time, beat store.Beat) {
	e.checkTrust(time.Now()) // a break is a break, also where the next validity begins at once
	e.connection.known, e.session.marked = true, false
	e.check.watch.observe(sent, received, beat.Clock, beat.Run)
	// A little early, each time anew: clients that began together drift apart.
	e.session.nextBeat = sent.Add(e.options.heartbeat - rand.N(e.options.heartbeat/20))
	if !beat.Alive {
		e.evicted(beat.Copied)
		return
	}
	e.answered(sent)
	e.renewed(received, store.Renewal{Clock: beat.Clock, Mark: beat.Run.Mark})
	e.session.sent, e.session.roundTrip = sent, received.Sub(sent)
	e.heardTimeline(sent, beat)
	if beat.Incarnation > e.session.incarnation && e.ending.reason == nil {
		e.ending.lookUp = true
		e.close(ErrSuperseded)
	}
	e.heardCheck(beat)
	e.heardLeases(beat.Leases)
	e.heardLocks()
}

// renewed notes a renewal. Where it is another run of the server, or the clock has stepped back, those that were given up before
// may come late after all: compared with it, they are not the earlier ones. And a crash may have lost announcements, and releases of locks.
func (e *engine) renewed(received time.Time, now store.Renewal) {
	before := e.session.renewal
	if before.Mark != now.Mark {
		e.readAll()
		e.locks.toConfirm = e.locks.used.Load() // also where none is held: a crash may have undone releases
	}
	if before.Mark != 0 && (before.Mark != now.Mark || before.Clock >= now.Clock) {
		e.session.lateUntil = received.Add(lateAtMost)
	}
	e.session.renewal, e.session.last = now, received.After(e.session.lateUntil)
}

// heardTimeline prolongs trust, unless this is another run of the server, or another server: it may have missed hand-overs, so all
// is read again before. Where a higher era has begun, owners have to renew what they have: it may be over between two heartbeats that
// the server was not settled, and no lease changes by it.
func (e *engine) heardTimeline(sent time.Time, beat store.Beat) {
	if settled := beat.Run.Timeline == beat.Settled && !e.session.behind; settled != e.session.settled || beat.Era > e.session.era {
		e.session.settled = settled
		e.readAll()
	}
	run := unmarked(beat.Run)
	if e.session.confirmed != run {
		e.locks.toConfirm = e.locks.used.Load() // also where none is held: what was released may be back
		if e.holdsAnything() || e.locks.any(lockHeld) {
			e.readAll()
			return
		}
		e.session.confirmed = run
	}
	e.trust(sent)
}

// unmarked is a run as a read tells it. A mark comes and goes while the server runs, with nothing lost that anybody owns or holds.
func unmarked(run store.Run) store.Run {
	run.Mark = 0
	return run
}

// trust prolongs the trust to what a heartbeat earned that was sent at that moment.
func (e *engine) trust(sent time.Time) {
	worth := e.options.ttl - margin(e.options.ttl)
	wallLimit := sent.Round(0).Add(worth) // on the wall clock, which also runs while a machine sleeps
	if time.Since(sent) >= worth || !time.Now().Round(0).Before(wallLimit) {
		return
	}
	e.session.wallLimit = wallLimit
	if e.session.validity != nil {
		if e.session.validity.Prolong(sent.Add(worth)) {
			return
		}
		e.loseTrust(time.Now(), ErrTrustLost) // a reader has seen its end
	}
	e.session.validity = e.newValidity(sent, worth)
	e.watchConnection(time.Now())
	for _, m := range e.leases.byName {
		m.toRead = true
		e.publish(m)
	}
}

// currentValidity is what snapshots show.
func (e *engine) currentValidity() *owned.Validity {
	if e.session.validity == nil {
		return e.session.invalid
	}
	return e.session.validity
}

// trustEnds is the trust deadline, at once if a reader has seen it pass.
func (e *engine) trustEnds() time.Time {
	switch v := e.session.validity; {
	case v == nil:
		return never
	case v.Over():
		return atOnce
	default:
		return v.Deadline()
	}
}

// checkTrust ends the validity whose deadline has passed.
func (e *engine) checkTrust(now time.Time) {
	v := e.session.validity
	if v == nil || !v.Over() && now.Round(0).Before(e.session.wallLimit) {
		return
	}
	e.loseTrust(now, e.trustLost())
}

// loseTrust ends everything that is owned. What is still in work is not forgotten: it is given back when the work has ended.
func (e *engine) loseTrust(now time.Time, cause error) {
	if e.session.validity == nil {
		return
	}
	e.session.validity.End()
	e.session.validity = nil
	e.check.watch.reset()
	e.session.beatNow()
	lost := e.endAll(cause) // before all else: nothing is shown any more
	e.loseLocks(cause)
	for _, m := range e.leases.byName {
		e.withdraw(m, m.serving(), cause, now)
	}
	if lost > 0 {
		e.client.log.Warn("pgleases: trust lost", slog.Any("cause", cause), slog.Int("count", lost),
			slog.Duration("since_heartbeat", now.Sub(e.session.sent)))
	}
	e.tellEnded()
}

// evicted takes the news that the session is gone, or goes on with a copy of this process: a new one begins, and joins again.
func (e *engine) evicted(copied bool) {
	now := time.Now()
	if copied {
		e.loseTrust(now, fmt.Errorf("%w: a copy of this process has the session", ErrTrustLost))
		e.client.log.Warn("pgleases: a copy of this process goes on with the session", slog.Int64("session", e.session.number))
	} else {
		e.loseTrust(now, fmt.Errorf("%w: the session was evicted", ErrTrustLost))
		e.client.log.Warn("pgleases: session was evicted", slog.Int64("session", e.session.number))
	}
	e.session.number, e.session.registered = randomID(), false
	e.session.renewal, e.session.last, e.session.lateUntil = store.Renewal{}, false, time.Time{}
	e.connection.backOff(e.options)
	e.loseLockSession()
	clear(e.leases.relics)
	for _, m := range e.leases.byName {
		e.unjoined(m)
	}
}

// markDue is when a heartbeat found a run of the server without a mark: after the server's crash.
func (e *engine) markDue(time.Time) time.Time {
	return atOnceIf(e.check.watch.run.Mark == 0 && !e.session.marked)
}

func (e *engine) beginMark(time.Time) *operation {
	return tell(e.limit(), func(ctx context.Context, c conn) error { return c.Mark(ctx, randomID()) }, func(err error) {
		if err == nil {
			e.session.marked = true
			e.session.beatNow() // which reads the mark
		}
	})
}

func (e *engine) unsettleDue(time.Time) time.Time { return atOnceIf(e.session.behind) }

// beginUnsettle has a server settled anew that is behind one on which this client has been.
func (e *engine) beginUnsettle(time.Time) *operation {
	era := e.session.era
	return tell(e.limit(), func(ctx context.Context, c conn) error { return c.Unsettle(ctx, era) }, func(err error) {
		if err == nil {
			e.session.behind = false
			e.session.beatNow() // which tells that the server is not settled
			e.client.log.Warn("pgleases: the server is behind one seen before, and is settled anew", slog.Int64("era", era))
		}
	})
}

// settleDue is when the clock of a promoted server was watched for this client's TTL.
func (e *engine) settleDue(now time.Time) time.Time {
	if e.session.settled {
		return never
	}
	return later(e.session.settleAt, e.check.watch.willLast(e.options.ttl, now))
}

func (e *engine) beginSettle(now time.Time) *operation {
	watched, run, seen := e.check.watch.lasts(now), e.check.watch.run, e.session.era
	settle := func(ctx context.Context, c conn) (int64, error) { return c.Settle(ctx, watched, run, seen) }
	return ask(e.limit(), settle, func(era int64, _ error) {
		e.session.settleAt = time.Now().Add(max(busyRetry, e.options.heartbeat/4))
		if era > 0 {
			e.client.log.Warn("pgleases: settled a promoted server: epochs begin a new era", slog.Int64("era", era))
			e.session.beatNow()
		}
	})
}
