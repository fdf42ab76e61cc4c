package engine

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/pgleases/pgleases/internal/liveness"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// This file has the statement that each task of the table sends. An answer that concerns one part
// is passed to that part here. engine.go passes on an answer that concerns several.

func beginConnect(e *engine, _ time.Time) *operation {
	return query(time.Hour, func(ctx context.Context, _ Conn) (Conn, error) {
		return e.config.Connect(ctx)
	}, func(c Conn, err error) {
		if err != nil {
			e.connection.failed = true
			e.connection.backOff(e.config.Heartbeat)
			return
		}
		e.connected(c)
	})
}

func beginRegister(e *engine, _ time.Time) *operation {
	r := e.session.registration(&e.config)
	var sent time.Time
	var newer *store.Process
	return query(e.config.limit(), func(ctx context.Context, c Conn) (incarnation int64, err error) {
		sent = time.Now()
		incarnation, newer, err = c.Register(ctx, r)
		if err == nil && newer != nil && newer.Contended {
			err = contended(r.ID, newer)
		}
		return incarnation, err
	}, func(incarnation int64, err error) { e.registered(sent, incarnation, newer, err) })
}

// beginLookUp reads which process superseded this one.
func beginLookUp(e *engine, _ time.Time) *operation {
	return query(e.config.limit(), func(ctx context.Context, c Conn) (*store.Process, error) {
		return c.Superseder(ctx, e.config.ClientID)
	}, func(newer *store.Process, err error) {
		e.closing.lookUp = false
		if err == nil {
			e.endsBecause(e.replacedBy(newer))
		}
	})
}

func beginHoldLiveness(e *engine, _ time.Time) *operation {
	session, presence := e.session.number, e.liveness.NextPresence()
	e.liveness.Carries(e.trust.validity)
	return exec(e.config.limit(), func(ctx context.Context, c Conn) error {
		return c.(liveness.Conn).HoldLiveness(ctx, session, presence)
	}, func(err error) {
		e.session.beatFailed = err != nil // without the lock the client sends no heartbeat
		if err == nil {
			e.liveness.SetHeld(session)
		}
	})
}

func beginHeartbeat(e *engine, now time.Time) *operation {
	session, watched := e.session.number, e.watch.lasts(now)
	last := e.session.takeRenewal()
	var sent, received time.Time
	return query(max(e.config.Heartbeat, e.config.TTL/4), func(ctx context.Context, c Conn) (store.Beat, error) {
		sent = time.Now()
		beat, err := c.Heartbeat(ctx, session, watched, last)
		received = time.Now()
		return beat, err
	}, func(beat store.Beat, err error) {
		if err != nil {
			e.session.beatLost(last, e.config.Heartbeat, time.Now())
			e.expiry.unheard()
			return
		}
		e.heard(sent, received, beat)
	})
}

func beginMark(e *engine, _ time.Time) *operation {
	return exec(e.config.limit(), func(ctx context.Context, c Conn) error {
		return c.SetMarker(ctx, store.RandomID())
	}, func(err error) {
		if err == nil {
			e.server.marked = true
			e.session.beatNow() // its answer has the boot marker
		}
	})
}

// beginReject makes the server require acceptance again, because it is behind what this client has
// seen.
func beginReject(e *engine, _ time.Time) *operation {
	timeline, generation := e.watch.run.Timeline, e.server.generation
	return exec(e.config.limit(), func(ctx context.Context, c Conn) error {
		return c.RejectServer(ctx, timeline, generation)
	}, func(err error) {
		if err == nil {
			e.server.toReject = false
			e.session.beatNow() // its answer says that the server is not accepted
			e.log.Warn("pgleases: rejected a server that is behind one seen before",
				slog.Int64("generation", generation))
		}
	})
}

func beginAccept(e *engine, now time.Time) *operation {
	watched, run := e.watch.lasts(now), e.watch.run
	seen := e.server.generation
	return query(e.config.limit(), func(ctx context.Context, c Conn) (int64, error) {
		return c.AcceptServer(ctx, watched, run, seen)
	}, func(generation int64, _ error) {
		e.server.acceptTried(e.config.Heartbeat, time.Now())
		if generation > 0 {
			e.log.Warn("pgleases: accepted a promoted server: epochs begin a new generation",
				slog.Int64("generation", generation))
			e.session.beatNow()
		}
	})
}

func beginJoin(e *engine, now time.Time) *operation {
	m, number := e.members.beginJoin(now)
	session, l := e.session.number, m.lease
	weight, calls := m.weight, maps.Clone(m.weightCalls)
	var join store.Join
	return &operation{limit: e.config.limit(), send: func(ctx context.Context, c Conn) (err error) {
		join, err = c.Join(ctx, session, l.Name, l.Partitions, l.Options.terms(weight), number)
		return err
	}, take: func(err, _ error) error { return e.joined(m, join, err, weight, calls) }}
}

// beginRead reads the ownerships of the leases that changed.
func beginRead(e *engine, _ time.Time) *operation {
	session, run := e.session.number, e.watch.run
	names := e.members.namesToRead()
	return query(e.config.limit(), func(ctx context.Context, c Conn) ([]store.LeaseRead, error) {
		return c.Read(ctx, session, names)
	}, func(reads []store.LeaseRead, err error) {
		if err == nil {
			e.read(reads, run)
		}
	})
}

// beginAnnounce notifies the new owners of released partitions.
func beginAnnounce(e *engine, now time.Time) *operation {
	names, sessions := e.releases.nextAnnouncement()
	return exec(e.config.limit(), func(ctx context.Context, c Conn) error {
		return c.Announce(ctx, names, sessions)
	}, func(err error) {
		e.releases.announced(names, err, now)
	})
}

// beginRelease releases partitions whose work has ended, at most a batch in one statement, and leaves
// leases.
func beginRelease(e *engine, now time.Time) *operation {
	r := e.releases.nextRelease(e.members.releasable(now), e.members.toLeave())
	session, lastJoin := e.session.number, e.members.joinsSent
	alone := e.plans.portion(now).alone
	var many bool
	var planned time.Time
	return query(e.config.limit(), func(ctx context.Context, c Conn) (answer store.Released, err error) {
		if r.successors {
			many, err = planWithout(ctx, c, e.config.Plan, session, e.config.ClientID, r.leaves, alone)
			if err != nil {
				return answer, err
			}
			planned = time.Now()
		}
		return c.Release(ctx, session, r.rows, r.leaves, lastJoin)
	}, func(answer store.Released, err error) {
		if many {
			e.plans.restAfterLargePlan(planned.Sub(now), planned)
		}
		e.releases.tried(r, err, now)
		if err == nil {
			e.released(r, answer)
		}
	})
}

// beginLookUpOwners reads who owns the partitions that applications ask about.
func beginLookUpOwners(e *engine, _ time.Time) *operation {
	calls, spans := e.lookups.take()
	var sent time.Time
	return query(e.config.limit(), func(ctx context.Context, c Conn) (map[store.Span]store.Owners, error) {
		sent = time.Now()
		return c.Owners(ctx, spans)
	}, func(found map[store.Span]store.Owners, err error) { calls.answer(found, sent, err) })
}

func beginReleaseLocks(e *engine, now time.Time) *operation {
	session, run := e.session.number, e.watch.run
	r := e.locks.BeginRelease(now, e.closing.ends())
	return query(e.config.limit(), func(ctx context.Context, c Conn) (store.LocksReleased, error) {
		return c.ReleaseLocks(ctx, session, r.Rows, run)
	}, func(answer store.LocksReleased, err error) {
		if !e.locks.Released(r, answer, err, time.Now()) {
			e.session.beatNow()
		}
	})
}

// beginFence prevents further guarded transactions on partitions whose release waits for open ones.
func beginFence(e *engine, _ time.Time) *operation {
	session, busy := e.session.number, e.members.toFence(e.server.generation, e.releases.batch)
	rows := rowsOf(busy, func(a *assignment) int64 { return a.ownership.Epoch })
	return exec(e.config.limit(), func(ctx context.Context, c Conn) error {
		return c.Fence(ctx, session, rows)
	}, func(error) {
		fenceSent(busy)
	})
}

func beginListenToLocks(e *engine, _ time.Time) *operation {
	session := e.session.number
	return exec(e.config.limit(), func(ctx context.Context, c Conn) error {
		return c.ListenToLocks(ctx, session)
	}, func(err error) {
		if err == nil {
			e.locks.Listened(session)
		}
	})
}

// beginLookAtLocks checks whether waiting acquisitions were granted, and whether another server
// incarnation confirms the locks that are held.
func beginLookAtLocks(e *engine, _ time.Time) *operation {
	session, run := e.session.number, e.watch.run
	look := e.locks.BeginLook()
	var answered store.Incarnation
	return query(e.config.limit(), func(ctx context.Context, c Conn) (found []store.FoundLock, err error) {
		found, answered, err = c.LookAtLocks(ctx, session, look.Nonces, look.Confirm)
		return found, err
	}, func(found []store.FoundLock, err error) {
		e.checkTrust(time.Now())
		switch {
		case err != nil:
			e.locks.LookNow() // after a pause
		case answered != run.Unmarked() || answered != e.watch.run.Unmarked():
			e.session.beatNow() // after it, the client checks again
		case session == e.session.number && e.trust.held():
			e.foundLocks(look, found)
		}
	})
}

// beginWatchLiveness checks the liveness locks, if this client is one of those that watch them.
func beginWatchLiveness(e *engine, now time.Time) *operation {
	session, digest := e.session.number, e.liveness.Digest
	return query(e.config.limit(), func(ctx context.Context, c Conn) (store.Liveness, error) {
		return c.(liveness.Conn).WatchLiveness(ctx, session, digest)
	}, func(look store.Liveness, err error) { e.liveness.Looked(look, err, now, e.config.Heartbeat, e.log) })
}

func beginEvictDisconnected(e *engine, now time.Time) *operation {
	due, run := e.liveness.Due(now), e.watch.run
	return query(e.config.limit(), func(ctx context.Context, c Conn) (store.Evicted, error) {
		return c.(liveness.Conn).EvictDisconnected(ctx, due.Ended, due.Since, run)
	}, func(evicted store.Evicted, err error) {
		e.liveness.Evicted(due, err)
		if err != nil {
			e.locks.SweepNow() // it may have been made
			return
		}
		if len(evicted.IDs) > 0 {
			e.log.Info("pgleases: evicted sessions whose connection has ended", slog.Any("clients", evicted.IDs),
				slog.Any("hosts", evicted.Hosts), slog.Any("pids", evicted.PIDs))
		}
		e.evictedOthers(evicted)
	})
}

func beginEvict(e *engine, now time.Time) *operation {
	cutoff, watched := e.watch.cutoff(now), e.watch.lasts(now)
	run := e.watch.run
	return query(e.config.limit(), func(ctx context.Context, c Conn) (store.Evicted, error) {
		return c.Evict(ctx, cutoff+time.Since(now).Microseconds(), watched, e.config.TTL, run)
	}, func(evicted store.Evicted, err error) {
		e.expiry.evicted(evicted, err, e.watch.spread(), e.config.Heartbeat, time.Now())
		if err != nil {
			e.locks.SweepNow() // it may have been made
			return
		}
		if len(evicted.IDs) > 0 {
			e.log.Info("pgleases: evicted expired sessions", slog.Any("clients", evicted.IDs),
				slog.Any("hosts", evicted.Hosts), slog.Any("pids", evicted.PIDs))
		}
		e.evictedOthers(evicted)
	})
}

func beginSweepLocks(e *engine, _ time.Time) *operation {
	return query(e.config.limit(), func(ctx context.Context, c Conn) (bool, error) {
		return c.SweepLocks(ctx)
	}, func(done bool, err error) {
		if err == nil {
			e.locks.Swept(done, time.Now())
		}
	})
}

// beginPlan plans the leases that need it, or continues a plan.
func beginPlan(e *engine, now time.Time) *operation {
	longest := min(e.config.Heartbeat, time.Second)
	if e.closing.ends() { // see leavesToOthers
		longest = busyRetry
	}
	p, limit := e.plans.begin(longest, now), e.config.limit()
	n := e.plans.portion(now)
	var o outcome
	return &operation{limit: limit, send: func(ctx context.Context, c Conn) error {
		o = p.proceed(ctx, c, e.config.Plan, n)
		return o.err
	}, take: func(err, ended error) error {
		o.err = err
		if o.took > 0 {
			e.plans.batch = fitting(e.plans.batch, MaxPartitions, o.took, limit, ended)
		}
		e.planned(p, o, n)
		return err
	}}
}

// beginReport writes for operators what only this client knows.
func beginReport(e *engine, _ time.Time) *operation {
	session, report := e.session.number, e.report()
	told := report.String()
	e.session.toldInDoubt, e.session.reports = true, true
	return exec(e.config.limit(), func(ctx context.Context, c Conn) error {
		return c.Report(ctx, session, report)
	}, func(err error) {
		if err == nil {
			e.session.told, e.session.toldInDoubt = told, false
		}
	})
}

// beginTidy does the work that can wait. If it fails, the next check does it.
func beginTidy(e *engine, _ time.Time) *operation {
	return query(e.config.limit(), func(ctx context.Context, c Conn) ([]string, error) {
		return c.Tidy(ctx)
	}, func(toPlan []string, _ error) {
		e.expiry.toTidy = false
		e.plans.request(time.Now(), toPlan...)
	})
}

// beginSample writes samples of this minute. If it fails, the next minute has samples again.
func beginSample(e *engine, _ time.Time) *operation {
	return query(e.config.limit(), func(ctx context.Context, c Conn) (store.Sampled, error) {
		return c.Sample(ctx, sampleLimit)
	}, func(sampled store.Sampled, _ error) {
		e.samples.tried(sampled, e.expiry.sessions, time.Now())
	})
}

func beginListen(e *engine, _ time.Time) *operation {
	return query(e.config.limit(), func(ctx context.Context, c Conn) (bool, error) {
		return c.Listen(ctx)
	}, func(arrives bool, err error) {
		e.connection.listened(arrives, err, e.expiry.sessions)
		if err != nil {
			return
		}
		e.saidArrives(arrives, time.Now())
		if arrives {
			e.members.readAll() // for changes from before it listened
		}
	})
}

// saidArrives logs that notifications do not arrive, and when they do on a later connection.
func (e *engine) saidArrives(arrives bool, now time.Time) {
	e.deaf.Set(!arrives, now, func() {
		e.log.Info("pgleases: notifications do not arrive, for example behind a connection pooler: " +
			"polling at the heartbeat")
	}, func(lasted time.Duration) {
		e.log.Info("pgleases: notifications arrive again", slog.Duration("for", lasted))
	})
}

// beginPrepare makes the server plan the statements of a handoff on this connection, so that no
// handoff waits for the planning. Behind a pooler it has no use, because the client has no server
// connection of its own.
func beginPrepare(e *engine, _ time.Time) *operation {
	return exec(e.config.limit(), func(ctx context.Context, c Conn) error { return c.Prepare(ctx) }, func(err error) {
		if err == nil {
			e.connection.prepareAt = when.Never
		}
	})
}

func beginEnd(e *engine, _ time.Time) *operation {
	session := e.session.number
	return exec(e.config.limit(), func(ctx context.Context, c Conn) error {
		ended, err := c.End(ctx, session)
		if err == nil && !ended {
			err = errors.New("the session is a member of a lease, or has a lock")
		}
		return err
	}, func(err error) {
		e.closing.sessionEnded = err == nil
		e.locks.ToConfirm()
		e.session.beatNow() // its answer shows which lease or lock remains
	})
}

// beginWait waits for a notification until a task is due.
func beginWait(e *engine, _ time.Time) *operation {
	c := e.connection.conn
	return &operation{limit: time.Hour, send: func(ctx context.Context, _ Conn) error {
		return c.Wait(ctx)
	}, take: func(err, canceled error) error {
		switch {
		case err == nil:
			e.notified(c.GrantedLocks())
		case canceled != nil && !c.Closed():
			return nil
		}
		return err
	}}
}
