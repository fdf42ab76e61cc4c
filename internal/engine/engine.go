package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/liveness"
	"github.com/pgleases/pgleases/internal/locks"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// The engine is a client's state, owned by the client's one goroutine. Readers never see it: they
// see the snapshots that it publishes, and send it requests.
//
// It never waits for the database. At most one operation is under way, in another goroutine, which
// returns a function for this goroutine to run. So requests, ends of work and the trust deadline
// are handled at once, even during a statement.
//
// It alone knows all parts. A part knows its own fields, and calls no other part: it returns what
// happened, and the engine passes it on. See doc.go for the list.
type engine struct {
	client *Client
	config Config
	log    *slog.Logger

	progress   progress       // the operation under way, and the tasks that pause after a failure
	connection connection     // the connection to the database
	session    session        // the session that heartbeats keep alive
	trust      trust          // the trust that heartbeats earn
	watch      watch          // observations of the database's clock
	server     server         // the server that the connection leads to
	expiry     expiry         // when to check for expired sessions
	samples    samples        // when to write samples for people
	liveness   liveness.State // with fast failover: liveness locks
	members    members        // the memberships of leases, and their ownerships
	releases   releases       // partitions to release and to announce
	plans      plans          // leases that need a plan
	locks      *locks.Session
	lookups    lookups // calls of applications that look up owners
	closing    closing // the client's end

	reconnects, statementErrors int64

	deaf    logqueue.Condition // notifications do not arrive
	margins Margins
	// When the goroutine has to run again. If it runs much later than this, the process was stopped.
	wakeAt time.Time
}

func newEngine(c *Client, first Conn) *engine {
	now := time.Now()
	e := &engine{
		client: c, config: c.config, log: c.config.Log, wakeAt: now,
		progress:   newProgress(),
		connection: connection{prepareAt: when.Never},
		session:    newSession(now),
		watch:      newWatch(now, c.config.TTL),
		expiry:     expiry{at: when.Never},
		samples:    newSamples(c.config.NoSamples, now),
		liveness:   liveness.New(c.config.FastFailover, now),
		members:    newMembers(c, now),
		releases:   newReleases(),
		plans:      newPlans(),
		lookups:    make(lookups),
		closing:    newClosing(),
		locks: locks.New(locks.Config{
			Heartbeat: c.config.Heartbeat, Log: c.config.Log, TrustLost: c.config.Errors.TrustLost,
			Wake: c.wakeUp, Done: c.done, Err: c.Err,
		}),
	}
	c.Locks = e.locks
	e.connection.connected(first)
	e.liveness.Connected(first, c.wakeUp)
	e.client.stats.Store(statsOf(e))
	return e
}

// --- the goroutine

// registerFirst registers before the goroutine runs. It repeats what may succeed later until ctx
// ends.
func (e *engine) registerFirst(ctx context.Context) error {
	var failed error // the last attempt, unless ctx ended it
	for !e.session.registered {
		if failed != nil && ctx.Err() != nil {
			return wrap.Errorf("%w; the last attempt: %w", context.Cause(ctx), failed)
		}
		t, at := e.nextTask(time.Now())
		if t == nil {
			select {
			case <-time.After(time.Until(at)):
			case <-ctx.Done():
			}
			continue
		}
		err := t.begin(e, time.Now()).run(ctx, e.connection.conn)
		switch {
		case e.closing.ends():
			return e.closing.reason
		case worker.Whose(err).Final() && !errors.Is(err, errContended):
			return err
		case err == nil || ctx.Err() == nil:
			failed = cmp.Or(err, failed)
			e.completed(t, err)
		case failed == nil:
			failed = err
		}
	}
	e.client.stats.Store(statsOf(e))
	e.locks.Stand(e.standing())
	return nil
}

// run is the client's goroutine.
func (e *engine) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		e.watchConnection(now)
		e.checkTrust(now)
		e.members.shared.supervise(e.closing.hurried != nil, e.closing.reason, now)
		e.locks.Remind(now)
		e.members.sayUnowned(now)
		if e.finished(now) {
			break
		}
		e.reportClosing(now)
		e.locks.Stand(e.standing())
		e.wakeAt = when.Later(e.step(now), now)
		e.client.stats.Store(statsOf(e))
		timer.Reset(time.Until(e.wakeAt))
		select {
		case f := <-e.progress.results:
			f()
		case <-e.client.wake:
			e.runRequest()
		case <-timer.C:
		}
	}
	e.finish()
}

// runRequest runs the oldest request, if there is one. The others have their turns after the checks
// that precede each step.
func (e *engine) runRequest() {
	f, more := e.client.requests.next()
	if more {
		e.client.wakeUp()
	}
	if f != nil {
		f(e)
	}
}

func (e *engine) stage() stage {
	switch {
	case !e.connection.open():
		return connecting
	case !e.session.registered:
		return registering
	case !e.connection.known:
		return beating
	case !e.server.accepted:
		return serverKnown
	}
	return accepted
}

// nextTask returns the first task that is due; otherwise nil and the time when the next one will
// be. The tasks connect and register run only in their own stages.
func (e *engine) nextTask(now time.Time) (*task, time.Time) {
	var yielded *task
	at, stage := when.Never, e.stage()
	for _, t := range tasks {
		if t.stage > stage || t.stage < min(stage, beating) || t.traits&untilEnds != 0 && e.closing.ends() {
			continue
		}
		due := when.Later(t.due(e, now), e.progress.rests[t].until)
		switch {
		case due.After(now):
			at = when.Earlier(at, due)
		case t.traits&yields != 0 && e.progress.last == t:
			yielded = t
		default:
			return t, now
		}
	}
	if yielded != nil {
		at = now
	}
	return yielded, at
}

// step begins the task that is due, and returns when the engine has to wake up, unless something
// happens before.
func (e *engine) step(now time.Time) time.Time {
	t, at := e.nextTask(now)
	running := e.progress.running
	switch {
	case running == nil && t != nil:
		e.begin(t, now)
	case running == nil && e.mayWait():
		rests := e.progress.rests[waitForNotifications].until
		if rests.After(now) {
			at = when.Earlier(at, rests)
		} else {
			e.begin(waitForNotifications, now)
		}
	case running != nil && t != nil && running.task == waitForNotifications:
		running.cancel()
		running.endsBy = when.Earlier(running.endsBy, now) // unreachableAt counts from the cancellation
	}
	if t != nil {
		at = when.Never // the end of the operation under way wakes the engine
	}
	for _, due := range []time.Time{
		e.liveness.PulseDue(),
		e.locks.RemindDue(),
		e.members.unownedDue(),
		e.members.shared.drainsDue(),
		e.trust.deadline(),
		e.closing.due(),
		e.unreachableAt(),
	} {
		at = when.Earlier(at, due)
	}
	return at
}

// mayWait reports whether the client waits for notifications while it has nothing else to do. With
// fast failover it does so to detect the end of the connection.
func (e *engine) mayWait() bool {
	return e.connection.listening || e.liveness.On && e.connection.open()
}

func (e *engine) begin(t *task, now time.Time) {
	op := t.begin(e, now)
	ctx, cancel := context.WithTimeout(context.Background(), op.limit)
	op.task, op.cancel = t, cancel
	op.endsBy = now.Add(op.limit)
	e.progress.running, e.progress.last = op, t
	c := e.connection.conn
	handlers.Start(func() error { return op.send(ctx, c) }, func(err error) {
		ended := context.Cause(ctx)
		cancel()
		e.progress.results <- func() {
			e.progress.running = nil
			if t.traits&batched != 0 {
				e.releases.batch = fitting(e.releases.batch, maxBatch, time.Since(now), op.limit, ended)
			}
			e.completed(t, op.take(err, ended))
		}
	})
}

// completed handles the outcome of an operation.
func (e *engine) completed(t *task, err error) {
	switch {
	case err == nil:
		e.progress.succeeded(e.log, t)
		return
	case e.progress.canceled:
		return
	}
	e.statementErrors++
	e.progress.log(e.log, t, err)
	switch {
	case !e.connection.open():
	case e.connection.conn.Closed() || worker.Whose(err) == worker.Standby || cutShort(err):
		e.disconnect()
		if cutShort(err) { // also on the next connection, maybe, after a heartbeat that succeeds
			e.connection.retryAt = when.Later(e.connection.retryAt, time.Now().Add(e.config.Heartbeat/2))
		}
	case t.traits&ownPause == 0:
		e.progress.failed(t, e.config.Heartbeat)
	}
}

// --- the connection

func (e *engine) connected(c Conn) {
	e.connection.connected(c)
	e.liveness.Connected(c, e.client.wakeUp)
	e.session.beatNow()
	clear(e.progress.rests)
	e.reconnects++
	e.client.Line.Renewed()
}

// disconnect ends the trust before this side ends the connection.
func (e *engine) disconnect() {
	if !e.connection.conn.Closed() {
		e.liveness.End()
	}
	e.checkTrust(time.Now())
	e.connection.close()
	e.locks.Disconnected()
	e.connection.backOff(e.config.Heartbeat)
}

// watchConnection checks the connection, with fast failover, and allows readers to read for some
// more time.
func (e *engine) watchConnection(now time.Time) {
	if !e.liveness.On {
		return
	}
	stopped := e.liveness.Beat(now)
	if stopped > 0 {
		e.session.beatNow()
		e.log.Info("pgleases: process was stopped, readers wait for the server", slog.Duration("for", stopped))
	}
	if e.liveness.Allows(e.trust.validity, e.connection.conn, now) {
		for m := range e.members.all() { // readers read again, and waiting readers are notified
			m.assignments.publish(true)
		}
	}
}

// answered handles the answer to a statement that was sent at that time. It shows that the session
// lives.
func (e *engine) answered(sent time.Time) {
	again, beat := e.liveness.Answered(sent)
	if beat {
		e.session.beatNow()
	}
	if again {
		e.watchConnection(time.Now())
	}
}

// fewLeases is up to how many leases a client reads all of them after a notification. That is one
// statement less than a heartbeat and a read of those that have changed.
const fewLeases = 16

// notified handles notifications: of locks, or of changes.
func (e *engine) notified(granted []int64) {
	if len(granted) > 0 {
		e.locks.Notified(granted)
		return
	}
	if e.members.agenda.inDatabase > fewLeases {
		e.session.beatNow() // its answer says which leases have changed
	} else {
		e.members.readAll()
	}
	e.liveness.LookAt = when.AtOnce
}

// --- the session

// registered handles the answer to a registration. Incarnation 0: the newer process has the client
// ID.
func (e *engine) registered(sent time.Time, incarnation int64, newer *store.Process, err error) {
	switch {
	case err != nil:
		e.connection.backOff(e.config.Heartbeat)
		e.session.mayComeLate(time.Now()) // a registration renews the session too
	case incarnation == 0:
		e.close(e.replacedBy(newer))
	default:
		again := e.session.nowRegistered(incarnation)
		e.answered(sent)
		e.earnTrust(sent)
		if again {
			e.log.Info("pgleases: registered",
				slog.Int64("session", e.session.number), slog.Int64("incarnation", incarnation))
		}
	}
}

// replacedBy returns why the client ends: a newer process, or an operator.
func (e *engine) replacedBy(newer *store.Process) error {
	switch superseded := e.config.Errors.Superseded; {
	case newer == nil:
		return superseded
	case newer.Evicted:
		return e.config.Errors.Evicted
	default:
		return fmt.Errorf("%w: host %s, pid %d, started %s; give every live process an ID of its own",
			superseded, newer.Host, newer.PID, newer.StartedAt.Format(time.RFC3339Nano))
	}
}

// heard handles the answer to a heartbeat: what it means to each part.
func (e *engine) heard(sent, received time.Time, beat store.Beat) {
	// If new sessions are evicted before their first renewal, the pauses between registrations
	// become longer.
	if beat.Alive || e.session.began() {
		e.connection.retry = 0
	}
	e.checkTrust(time.Now()) // an interruption of the trust must be seen, even if the next validity begins at once
	e.connection.known, e.server.marked = true, false
	e.watch.observe(sent, received, beat.Clock, beat.Server)
	before := e.server.generation
	if e.server.meetsOthers(beat) {
		e.loseTrust(time.Now(), "the database has other tables than before")
		e.log.Warn("pgleases: the database has other tables than before",
			slog.Int64("generation", beat.ServerGeneration),
			slog.Int64("generation_before", before))
	}
	e.session.beatAnswered(sent, received, e.config.Heartbeat)
	if !beat.Alive {
		e.sessionLost(beat.Copied)
		return
	}
	e.answered(sent)
	if e.session.renewed(sent, received, store.Renewal{Clock: beat.Clock, Marker: beat.Server.Marker}) {
		e.members.readAll() // a crash may have lost announcements, and releases of locks
		e.locks.ToConfirm()
	}
	e.heardServer(sent, beat)
	if beat.Incarnation > e.session.incarnation && !e.closing.ends() {
		e.closing.lookUp = true
		e.close(e.config.Errors.Superseded)
	}
	now := time.Now()
	e.expiry.heard(beat, e.watch.lasts(now), e.watch.spread(), e.config.Heartbeat, now)
	toPlan, gone := e.members.heard(beat.Leases, beat.ServerGeneration)
	e.plans.heard(now, toPlan...)
	for _, m := range gone {
		e.removed(m)
	}
	e.locks.Heard(e.standing())
}

// heardServer prolongs the trust. If this is another server incarnation, or another server, it may
// have missed handoffs. Then everything is read again first.
func (e *engine) heardServer(sent time.Time, beat store.Beat) {
	if e.server.heard(beat) {
		e.members.readAll()
	}
	if !e.server.confirms(beat.Server) {
		e.locks.ToConfirm()
		if e.members.ownsAny() || e.locks.Holds() {
			e.members.readAll()
			return
		}
		e.server.confirm(beat.Server)
	}
	e.earnTrust(sent)
}

// sessionLost handles the news that the session is gone, or that a copy of this process has it: the
// client begins a new session, and joins again.
func (e *engine) sessionLost(copied bool) {
	now := time.Now()
	if copied {
		e.loseTrust(now, "a copy of this process has the session")
		e.log.Warn("pgleases: a copy of this process goes on with the session",
			slog.Int64("session", e.session.number))
	} else {
		silent := passed(e.session.sent, now)
		e.loseTrust(now, "the session was evicted")
		e.log.Warn("pgleases: session was evicted, the client registers again",
			slog.Int64("session", e.session.number),
			slog.String("host", e.config.Host), slog.Int("pid", os.Getpid()), slog.Duration("since_heartbeat", silent),
			slog.String("remedy", remedyOfEviction(silent, e.config.TTL)))
	}
	e.session.replace()
	e.connection.backOff(e.config.Heartbeat)
	e.locks.LoseSession(e.standing())
	clear(e.members.unreleased)
	for _, m := range slices.Collect(e.members.all()) {
		e.removed(m)
	}
}

// remedyOfEviction returns what to look for after an eviction that came so long after the last
// heartbeat.
func remedyOfEviction(silent, ttl time.Duration) string {
	if silent < ttl {
		return "its heartbeats were in time, so look for a change of the tables by hand, or for a clock that jumped"
	}
	return "find out why it sent no heartbeat for its TTL: it was frozen, or cut off from the database"
}

// --- trust

// earnTrust prolongs the trust by a heartbeat that was sent at that time.
func (e *engine) earnTrust(sent time.Time) {
	now, trusts := time.Now(), e.config.trusts()
	if !e.trust.setWallLimit(sent, trusts, now) {
		return
	}
	if e.trust.held() {
		left := e.trust.validity.Deadline().Sub(now)
		if e.trust.validity.Prolong(sent.Add(trusts)) {
			e.margins.add(max(0, float64(left)/float64(trusts)))
			return
		}
		e.loseTrust(now, "the answer to a heartbeat came too late") // a reader has seen the end of the validity
	}
	e.trust.begin(sent, trusts, e.liveness.On)
	e.liveness.Carries(e.trust.validity)
	e.members.shared.validity = e.trust.validity
	e.watchConnection(now)
	e.members.readAll()
	for m := range e.members.all() {
		m.assignments.publish(false)
	}
}

// checkTrust ends the trust if its deadline has passed.
func (e *engine) checkTrust(now time.Time) {
	if !e.trust.over(now) {
		return
	}
	why := fmt.Sprintf("no heartbeat succeeded for %v", passed(e.session.sent, now))
	stopped := passed(e.wakeAt, now)
	if e.liveness.Ended() {
		why = "the connection has ended"
	} else if stopped > liveness.StoppedFor {
		why += fmt.Sprintf("; the process did not run for %v", stopped)
	}
	e.loseTrust(now, why)
}

// passed returns how much time has passed, also while the machine slept, as the log shows it.
func passed(since, now time.Time) time.Duration {
	return liveness.Passed(since, now).Round(10 * time.Millisecond)
}

// loseTrust ends everything that is owned. All assignments drain, also those without work. If the
// session still lives, each is released when its work has ended, and comes back under a new epoch.
func (e *engine) loseTrust(now time.Time, why string) {
	if !e.trust.held() {
		return
	}
	cause := fmt.Errorf("%w: %s", e.config.Errors.TrustLost, why)
	e.margins.add(0) // a loss of the trust counts with a share of 0
	e.trust.end()    // first of all, so that readers see no partition any more
	e.members.shared.validity = nil
	e.watch.reset()
	e.session.beatNow()
	lost := e.members.endAll(cause)
	e.locks.Lose(cause, e.standing())
	for m := range e.members.all() {
		m.assignments.withdraw(m.assignments.serving(), cause, now)
	}
	if lost > 0 {
		e.members.shared.lines.Flush()
		silent := passed(e.session.sent, now)
		e.log.Warn("pgleases: trust lost", slog.String("cause", why), slog.Int("count", lost),
			slog.Duration("since_heartbeat", silent))
	}
	e.members.shared.logEnded()
}

// standing returns the state that acquisitions of locks depend on.
func (e *engine) standing() locks.Standing {
	s := locks.Standing{
		Ending: e.closing.reason, Validity: e.trust.validity, Session: e.session.number, Run: e.watch.run,
		Clock: e.session.renewal.Clock, Sent: e.session.sent,
	}
	if e.server.accepted && e.server.confirms(s.Run) { // another server may return an old state
		s.Confirmed = s.Run.Unmarked()
	}
	return s
}

// confirm prolongs the trust: that server incarnation has confirmed everything that is shown and
// held.
func (e *engine) confirm(run store.Incarnation) {
	if !e.server.confirms(run) {
		e.server.confirm(run)
		e.earnTrust(e.session.sent)
	}
}

// foundLocks handles the named locks that the server has. Locks that another server incarnation has
// granted count after it has confirmed the locks that are held.
func (e *engine) foundLocks(look *locks.Look, found []store.FoundLock) {
	if look.Confirm {
		e.locks.Confirm(look, found, e.session.number)
		if !e.members.toRead() {
			e.confirm(e.watch.run)
		}
	}
	e.locks.Grant(look, found, e.standing())
}

// report returns what only this client knows, for operators.
func (e *engine) report() store.Report {
	return store.Report{LostLocks: e.locks.Unreleased(), Refused: maps.Clone(e.members.refused)}
}

// --- leases

// joined handles the answer to a join, which carried the weight of these calls of SetWeight.
func (e *engine) joined(m *membership, join store.Join, err error, weight int, calls weightCalls) error {
	now := time.Now()
	isMember, again := e.members.joined(m, join, err, now)
	switch {
	case isMember:
		e.plans.joined(m.lease.Name, join, now)
		m.weightSet(weight, calls)
		if join.SettlesIn > 0 {
			e.log.Info("pgleases: rebalance delayed", slog.String("lease", m.lease.Name),
				slog.Duration("for", join.SettlesIn.Round(time.Millisecond)))
		}
	case err == nil && !join.Alive:
		e.sessionLost(false)
	}
	return again
}

// abandon undoes a call of Client.Join.
func (e *engine) abandon(j *joinCall) {
	if m := e.members.abandon(j); m != nil {
		e.leave(m, e.config.Errors.Closed)
	}
}

// leave begins to leave a lease.
func (e *engine) leave(m *membership, reason error) {
	over := e.members.leave(m, reason, e.session.registered, time.Now())
	e.plans.forget(m.lease.Name)
	if over && !e.closing.ends() {
		e.members.closeLease(m, reason)
	}
}

// removed handles the news that the session is not a member of a lease: it joins again, or has
// left.
func (e *engine) removed(m *membership) {
	e.members.removed(m, e.session.registered, time.Now())
	if m.leaving() && !e.closing.ends() {
		e.members.closeLease(m, m.reason)
	}
}

// read handles the ownerships of the session in leases, on that server incarnation.
func (e *engine) read(reads []store.LeaseRead, run store.Incarnation) {
	e.checkTrust(time.Now())
	for _, r := range reads {
		if !e.server.agrees(r, run) { // promoted or accepted since the last heartbeat
			e.session.beatNow()
			return
		}
		if e.server.isBehind(r.ServerGeneration) {
			return
		}
		m := e.members.byName[r.Name]
		if m == nil || !m.inDatabase() || !e.trust.held() {
			continue
		}
		if e.members.read(m, r, e.server.accepted, time.Now()) { // released by a release whose answer was lost
			e.releases.announce(announcement{lease: r.Name})
		}
	}
	// Everything that is shown was confirmed.
	if e.trust.held() && !e.locks.NeedsConfirmation() && !e.server.confirms(run) {
		e.locks.LookNow() // locks that it has granted count now
		e.confirm(run)
	}
}

// released handles the answer to a release.
func (e *engine) released(r release, answer store.Released) {
	now := time.Now()
	changed, beat := e.members.released(r.assignments, answer, e.session.number, now)
	for _, a := range changed {
		e.releases.announce(a)
	}
	e.plans.request(now, answer.ToPlan...)
	gone, beatToo := e.members.left(r.leaving, answer)
	for _, m := range gone {
		e.removed(m)
	}
	if beat || beatToo {
		e.session.beatNow()
	}
}

// evictedOthers handles the result of an eviction: other clients get what the evicted sessions had.
// Each check also sweeps the locks of sessions that were gone before.
func (e *engine) evictedOthers(evicted store.Evicted) {
	if evicted.Made || len(evicted.IDs) > 0 {
		e.locks.SweepNow()
	}
	e.plans.request(time.Now().Add(evicted.PlanDueIn), evicted.ToPlan...)
}

// planned handles the result of a plan, or of its first moves.
func (e *engine) planned(p *planning, o outcome, n portion) {
	now := time.Now()
	if o.err == nil && o.applied.Unaccepted {
		e.session.beatNow() // its answer says so
	}
	made := e.plans.proceeded(p, o, n, e.closing.ends(), now)
	if made && p.leftOver {
		if !e.closing.ends() || e.members.inDatabase() || !e.closing.leavesToOthers(now) {
			e.plans.request(now.Add(p.retryIn), p.names...)
		}
	}
	if made && p.needsPlanOfAll { // if the session is no member, those that are make the plan of all
		e.plans.requestAll(p, now, e.members.among(p.names)...)
	}
	if e.plans.underWay == nil {
		for _, r := range p.read {
			e.members.planned(r.Name)
		}
	}
}

// --- the end

// close begins the client's end, for the given reason.
func (e *engine) close(reason error) {
	if e.closing.ends() {
		return
	}
	e.endsBecause(reason)
	e.closing.begin(time.Now())
	returns := e.closing.returns || errors.Is(reason, e.config.Errors.Superseded) // by a newer process with the ID
	for m := range e.members.all() {
		if returns {
			m.comeBack()
		}
		e.leave(m, reason)
	}
	e.locks.AskToEnd(reason, e.standing())
}

func (e *engine) endsBecause(reason error) { e.closing.reason, e.members.refuses = reason, reason }

// onlySessionRemains reports whether the client ends and the database has only its session.
func (e *engine) onlySessionRemains() bool {
	remains := func(s closeStage) bool { return s.remains(e) }
	return e.closing.ends() && !slices.ContainsFunc(closeStages, remains)
}

// unreachableAt returns when a client that ends, and has no trust any more, takes the database for
// unreachable; never: it is reached. With fast failover the trust ends with the connection, and
// another connection may follow at once, so the client waits for as long as a heartbeat earns
// trust. A server under load may miss the limits of some statements and still answer the next. So
// if the caller of Close has a deadline, failed heartbeats count only two TTLs after the last
// answer. A function of the application in a statement may not return at all.
func (e *engine) unreachableAt() time.Time {
	switch {
	case !e.closing.ends() || e.trust.held():
		return when.Never
	case !e.session.registered || e.connection.failed:
		return when.AtOnce
	case !e.connection.open() || e.session.beatFailed:
		if e.closing.patient {
			return e.session.sent.Add(2 * e.config.TTL)
		}
		return e.session.sent.Add(e.config.trusts())
	case e.progress.running != nil:
		return e.progress.running.endsBy.Add(closeGrace)
	}
	return when.Never
}

// finished reports whether the client may end: it has left, or the rest cannot be done.
func (e *engine) finished(now time.Time) bool {
	switch {
	case !e.closing.ends():
		return false
	case e.closing.sessionEnded, !now.Before(e.unreachableAt()):
		return true
	case e.closing.hurried == nil:
		return false
	case !now.Before(e.closing.giveUpAt) || e.connection.failed:
		return true
	}
	proceeds := func(s closeStage) bool { return s.proceeds(e, now) }
	return e.progress.idle() && !slices.ContainsFunc(closeStages, proceeds) && !e.onlySessionRemains()
}

// finish ends everything that is left, closes the connection, and sets the result.
func (e *engine) finish() {
	inUse := !e.endOperation()
	left := namedLeases(e, "partitions %s of lease %q still in work", "lease %q not left")
	left = append(left, named("lock %q not released", e.locks.Finish(e.closing.reason))...)
	e.members.finish(e.closing.reason)
	e.trust.validity, e.members.shared.validity = nil, nil
	switch { // after the end of all ownerships
	case !e.connection.open():
	case inUse:
		go e.closeAfterUse(e.connection.conn)
	default:
		e.connection.close()
	}
	e.client.stats.Store(statsOf(e))
	c := e.client
	c.Line.End()
	c.closeErr, c.err = leftBehind(left, e.closing.hurried), e.closing.reason
	e.members.shared.lines.Flush()
	e.log.Info("pgleases: client ended", slog.Any("reason", e.closing.reason))
	logqueue.Flush(e.log)
	close(c.done)
}

// endOperation ends the operation under way, and waits for its end. It reports false if a function
// of the application in it, for example a tracer of statements, continues for closeGrace. Meanwhile
// the trust ends on time.
func (e *engine) endOperation() bool {
	if e.progress.running == nil {
		return true
	}
	e.progress.canceled = true
	e.progress.running.cancel()
	limit, trust := time.NewTimer(closeGrace), time.NewTimer(time.Until(e.trust.deadline()))
	defer limit.Stop()
	defer trust.Stop()
	for {
		select {
		case f := <-e.progress.results:
			f()
			return true
		case <-trust.C:
			e.checkTrust(time.Now())
		case <-limit.C:
			return false
		}
	}
}

// closeAfterUse closes the connection when the operation has ended that uses it. It runs in a
// goroutine of its own after the client's end.
func (e *engine) closeAfterUse(conn Conn) {
	<-e.progress.results
	closeQuietly(conn)
}
