package pgleases

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// Connecting, registering, heartbeats, and the trust that they earn.

func (e *engine) opConnect() *operation {
	return &operation{name: "connect", limit: 4 * max(e.o.heartbeat, time.Second),
		run: func(ctx context.Context, _ conn) func(error) error {
			c, err := e.connect(ctx)
			return func(error) error {
				if err != nil {
					e.backOff()
					return err
				}
				e.conn, e.known = c, false
				e.nextBeat = time.Now()
				e.stats.Reconnects++
				return nil
			}
		}}
}

func (e *engine) registration() store.Registration {
	return store.Registration{
		Session: e.session, ID: e.o.clientID, Incarnation: e.incarnation, Process: e.process,
		TTL: e.o.ttl, Host: hostname(), PID: os.Getpid(), StartedAt: e.startedAt,
	}
}

// registerFirst registers before the goroutine runs.
func (e *engine) registerFirst(ctx context.Context) error {
	sent := time.Now()
	incarnation, newer, err := e.conn.Register(ctx, e.registration())
	if err != nil {
		return err
	}
	if incarnation == 0 {
		return superseded(newer)
	}
	e.begin(sent, incarnation)
	e.publishStats()
	return nil
}

func (e *engine) opRegister() *operation {
	r := e.registration()
	return &operation{name: "register", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
		sent := time.Now()
		incarnation, newer, err := c.Register(ctx, r)
		return func(error) error {
			switch {
			case err != nil:
				e.backOff()
				return err
			case incarnation == 0:
				e.close(superseded(newer))
				return nil
			}
			e.begin(sent, incarnation)
			e.c.log.Info("pgleases: registered", slog.Int64("session", e.session), slog.Int64("incarnation", incarnation))
			return nil
		}
	}}
}

// begin starts a session that was registered; the heartbeat that follows tells the rest.
func (e *engine) begin(sent time.Time, incarnation int64) {
	e.registered, e.incarnation = true, incarnation
	e.nextBeat = time.Now()
	e.trust(sent)
}

func superseded(newer *store.Process) error {
	if newer == nil {
		return ErrSuperseded
	}
	return fmt.Errorf("%w: host %s, pid %d, started %s; processes that live at once need an ID each", ErrSuperseded, newer.Host, newer.PID,
		newer.StartedAt.Format(time.RFC3339Nano))
}

func (e *engine) opSuperseder() *operation {
	return &operation{name: "look up the newer process", limit: e.limit(),
		run: func(ctx context.Context, c conn) func(error) error {
			newer, err := c.Superseder(ctx, e.o.clientID)
			return func(error) error {
				e.newer = false
				if err == nil {
					e.ending = superseded(newer)
				}
				return err
			}
		}}
}

func (e *engine) opHeartbeat() *operation {
	session := e.session
	return &operation{name: "heartbeat", limit: max(e.o.heartbeat, e.o.ttl/4), run: func(ctx context.Context, c conn) func(error) error {
		sent := time.Now()
		beat, err := c.Heartbeat(ctx, session)
		received := time.Now()
		return func(error) error {
			if err != nil {
				e.nextBeat, e.checkAt = time.Now().Add(e.o.heartbeat/10), time.Time{}
				return err
			}
			e.beat(sent, received, beat)
			return nil
		}
	}}
}

// beat takes the answer to a heartbeat.
func (e *engine) beat(sent, received time.Time, beat store.Beat) {
	now := time.Now()
	e.known = true
	e.checkTrust(now) // a break is a break, also when the next term begins at once
	e.watch.observe(sent, received, beat.Clock, beat.Run)
	// A little early, each time anew: clients that began together drift apart.
	e.nextBeat = sent.Add(e.o.heartbeat - rand.N(e.o.heartbeat/10))
	if !beat.Alive {
		e.evicted()
		return
	}
	e.roundTrip = received.Sub(sent)
	e.anchor = sent
	if settled := beat.Run.Timeline == beat.Settled; settled != e.settled {
		e.settled = settled
		e.readAll(now)
	}
	if e.timeline == beat.Run.Timeline || !e.holds() {
		e.timeline = beat.Run.Timeline
		e.trust(sent)
	} else {
		// A promoted server may have missed hand-overs. Trust is not prolonged before all was read again.
		e.readAll(now)
	}
	if beat.Incarnation > e.incarnation && e.ending == nil {
		e.newer = true
		e.close(ErrSuperseded)
	}
	e.sessions = beat.Sessions
	e.checkAt, e.evictAt = e.lookAfter(beat.CheckDueIn), time.Time{}
	if beat.CheckDueIn > 0 {
		e.unwatched = 0
	} else if wait := max(minTTL, e.unwatched) - e.watch.lasts(now); wait > 0 {
		e.checkAt = now.Add(wait)
	} else {
		e.checkAt, e.evictAt = time.Time{}, now.Add(e.watch.spread()) // then the cutoff is past it too
	}
	told := make(map[string]bool, len(beat.Leases))
	for _, b := range beat.Leases {
		told[b.Name] = true
		l := e.leases[b.Name]
		if l == nil {
			l = e.adopt(b.Name) // joined by a statement whose answer was lost, and given up since
		}
		if !l.joined && l.leaving == nil {
			continue // it is joined once more
		}
		l.joined = true // by a join whose answer was lost
		if l.generation != b.Generation {
			l.dirty = true
			e.readAt = now
		}
		l.weightLost = l.leaving == nil && b.Weight != l.weight
		if b.DueIn == 0 && e.plans[b.Name].IsZero() {
			e.plans[b.Name] = now
		}
	}
	for _, l := range e.leases {
		if l.joined && !told[l.name] {
			e.unjoined(l)
		}
	}
}

// trust prolongs the trust that a heartbeat sent at that moment earned.
func (e *engine) trust(sent time.Time) {
	worth := e.o.ttl - margin(e.o.ttl)
	limit := sent.Round(0).Add(worth) // on the wall clock, which also runs while a machine sleeps
	if time.Since(sent) >= worth || !time.Now().Round(0).Before(limit) {
		return
	}
	e.wallLimit = limit
	if e.term == nil {
		e.term = &term{opened: sent}
		e.term.deadline.Store(int64(worth))
		for _, l := range e.leases {
			l.dirty = true
			e.publish(l)
		}
		e.readAt = time.Now()
		return
	}
	if !e.term.prolong(sent.Add(worth)) {
		e.loseTrust(time.Now(), ErrTrustLost)
		e.trust(sent)
	}
}

// checkTrust ends the term whose deadline has passed.
func (e *engine) checkTrust(now time.Time) {
	if e.term == nil || e.term.trusted() && now.Round(0).Before(e.wallLimit) {
		return
	}
	e.loseTrust(now, ErrTrustLost)
}

// loseTrust ends everything that is owned. What is still in work stays in mind, to be given back when that has ended.
func (e *engine) loseTrust(now time.Time, cause error) {
	if e.term == nil {
		return
	}
	e.term.deadline.Store(0)
	e.term = nil
	e.watch.reset()
	lost := 0
	for _, l := range e.leases {
		owned := serving(l)
		lost += len(owned)
		e.withdraw(l, owned, cause, now)
		for _, o := range l.owned {
			e.endOwnership(o, cause)
		}
	}
	e.nextBeat = now
	if lost > 0 {
		e.c.log.Warn("pgleases: trust lost", slog.Any("cause", cause), slog.Int("partitions", lost),
			slog.Duration("since_heartbeat", now.Sub(e.anchor)))
	}
}

// evicted takes the news that the session is gone: a new one begins, and joins again.
func (e *engine) evicted() {
	now := time.Now()
	e.c.log.Warn("pgleases: session was evicted", slog.Int64("session", e.session))
	e.loseTrust(now, fmt.Errorf("%w: the session was evicted", ErrTrustLost))
	e.session, e.registered = randomID(), false
	e.retryAt = now
	for _, l := range e.leases {
		e.unjoined(l)
	}
}

func (e *engine) readAll(now time.Time) {
	for _, l := range e.leases {
		l.dirty = l.joined
	}
	e.readAt = now
}

func (e *engine) opListen() *operation {
	probe := randomID()
	return &operation{name: "listen", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
		arrives, err := c.Listen(ctx, probe)
		return func(error) error {
			if err != nil {
				e.probed = !c.Closed() // it is polled until the next connection
				return err
			}
			e.probed, e.listening = true, arrives
			if !arrives {
				e.c.log.Info("pgleases: notifications do not arrive, as behind a connection pooler: polling at the heartbeat")
			}
			e.readAll(time.Now()) // what changed before it listened
			return nil
		}
	}}
}

// listen waits for a notification until anything else is due.
func (e *engine) listen() *operation {
	session := e.session
	return &operation{name: "wait for notifications", limit: time.Hour, idle: true,
		run: func(ctx context.Context, c conn) func(error) error {
			concerned, err := c.Wait(ctx, session)
			return func(ended error) error {
				switch {
				case err != nil && ended != nil && !c.Closed():
					return nil
				case err != nil:
					return err
				}
				if concerned {
					e.readAll(time.Now())
				}
				return nil
			}
		}}
}

func (e *engine) opMark() *operation {
	return &operation{name: "mark the server", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
		err := c.Mark(ctx, randomID())
		return func(error) error {
			if err == nil {
				e.nextBeat = time.Now()
				e.watch.run.Started = 0 // until that heartbeat has read the mark
			}
			return err
		}
	}}
}

func (e *engine) opSettle(now time.Time) *operation {
	watched, run := e.watch.lasts(now), e.watch.run
	return &operation{name: "settle the timeline", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
		settled, busy, err := c.Settle(ctx, watched, run)
		return func(error) error {
			e.settleAt = time.Now().Add(max(busyRetry, e.o.heartbeat/4))
			if busy {
				e.settleAt = time.Now().Add(busyRetry)
			}
			if settled {
				e.c.log.Warn("pgleases: settled a promoted server: epochs begin a new era", slog.Int64("timeline", run.Timeline))
				e.nextBeat = time.Now()
			}
			return err
		}
	}}
}
