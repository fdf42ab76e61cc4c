package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/when"
)

// The task table: the statements that the engine sends, in which order, and when. The schedule is
// written once: each task returns when it is due. The engine begins the first task that is due, and
// wakes up for the next.

// A task is something that the engine does in the database whenever it is due.
type task struct {
	name  string // in the log, as docs/logs.md lists them
	stage stage
	due   func(e *engine, now time.Time) time.Time // never: only after something happens
	begin func(e *engine, now time.Time) *operation

	traits traits
}

// The stage is how far a client has come. From beating on, the tasks of one stage also run in the
// next stages.
type stage int

const (
	connecting  stage = iota // there is no connection
	registering              // there is no session
	beating                  // no heartbeat has returned yet which server the connection leads to
	serverKnown              // a heartbeat has returned which server the connection leads to
	accepted                 // the server is accepted
)

type traits int

const (
	ownPause  traits = 1 << iota // it sets its own pause after a failure
	batched                      // it works in batches, see fitting
	untilEnds                    // it is not due after the client begins to end
	yields                       // another due task runs before it runs again
)

// tasks in the order of precedence. An announcement comes before the next release, because releases
// may follow each other for long. Notifications come after the first plan: a client that plans
// reads the result of its plan anyway.
var tasks = []*task{
	{"connect", connecting, retryDue, beginConnect, ownPause},
	{"register", registering, retryDue, beginRegister, ownPause | untilEnds},
	{"look up the newer process", beating, lookUpDue, beginLookUp, 0},
	{"hold the liveness lock", beating, holdLivenessDue, beginHoldLiveness, 0},
	{"heartbeat", beating, heartbeatDue, beginHeartbeat, ownPause},
	{"write the boot marker", serverKnown, markDue, beginMark, 0},
	{"reject an old server", serverKnown, rejectDue, beginReject, 0},
	{"accept the server", serverKnown, acceptDue, beginAccept, 0},
	{"join", serverKnown, joinDue, beginJoin, ownPause | untilEnds | yields},
	{"read", serverKnown, readDue, beginRead, 0},
	{"announce", serverKnown, announceDue, beginAnnounce, 0},
	{"release", accepted, releaseDue, beginRelease, batched},
	{"release locks", serverKnown, releaseLocksDue, beginReleaseLocks, 0},
	{"fence", accepted, fenceDue, beginFence, batched},
	{"look up owners", serverKnown, lookUpOwnersDue, beginLookUpOwners, yields},
	{"listen to locks", serverKnown, listenToLocksDue, beginListenToLocks, 0},
	{"look at locks", serverKnown, lookAtLocksDue, beginLookAtLocks, 0},
	{"watch liveness", serverKnown, watchLivenessDue, beginWatchLiveness, 0},
	{"evict disconnected sessions", accepted, evictDisconnectedDue, beginEvictDisconnected, 0},
	{"evict", accepted, evictDue, beginEvict, untilEnds},
	{"sweep locks", accepted, sweepLocksDue, beginSweepLocks, untilEnds},
	{"plan", accepted, planDue, beginPlan, 0},
	{"report", serverKnown, reportDue, beginReport, untilEnds},
	{"tidy", accepted, tidyDue, beginTidy, untilEnds},
	{"sample", accepted, sampleDue, beginSample, untilEnds | yields},
	{"listen", serverKnown, listenDue, beginListen, untilEnds},
	{"prepare", serverKnown, prepareDue, beginPrepare, untilEnds},
	{"end the session", serverKnown, endDue, beginEnd, 0},
}

// waitForNotifications runs while no task is due, and yields to each task.
var waitForNotifications = &task{name: "wait for notifications", stage: serverKnown, begin: beginWait}

// When each task is due.

func retryDue(e *engine, _ time.Time) time.Time { return e.connection.retryAt }

func lookUpDue(e *engine, _ time.Time) time.Time { return when.AtOnceIf(e.closing.lookUp) }

func holdLivenessDue(e *engine, _ time.Time) time.Time {
	return when.AtOnceIf(e.liveness.ToHold(e.session.number))
}

// heartbeatDue returns an early time if a check for expired sessions is due: the answer says
// whether another client made it. So looking has no task of its own, and evicting has.
func heartbeatDue(e *engine, _ time.Time) time.Time {
	if e.liveness.ToHold(e.session.number) {
		return when.Never
	}
	return when.Earlier(e.session.nextBeat, e.expiry.due(stepLook))
}

// markDue returns when.AtOnce if a heartbeat found a server incarnation without a boot marker:
// after the server's crash.
func markDue(e *engine, _ time.Time) time.Time {
	return when.AtOnceIf(e.watch.run.Marker == 0 && !e.server.marked)
}

func rejectDue(e *engine, _ time.Time) time.Time { return when.AtOnceIf(e.server.toReject) }

// acceptDue returns when the clock of a promoted server was watched for this client's TTL.
func acceptDue(e *engine, now time.Time) time.Time {
	return e.server.acceptDue(e.watch.willLast(e.config.TTL, now))
}

func joinDue(e *engine, now time.Time) time.Time {
	_, at := e.members.agenda.nextJoin(now)
	return at
}

func readDue(e *engine, _ time.Time) time.Time {
	return when.AtOnceIf(e.trust.held() && !e.server.toReject && e.members.toRead())
}

func announceDue(e *engine, _ time.Time) time.Time {
	return when.AtOnceIf(len(e.releases.unannounced) > 0)
}

func releaseDue(e *engine, now time.Time) time.Time { return e.members.releaseDue(now) }

func releaseLocksDue(e *engine, _ time.Time) time.Time { return e.locks.ReleaseDue() }

func fenceDue(e *engine, _ time.Time) time.Time { return e.members.fenceDue(e.server.generation) }

func lookUpOwnersDue(e *engine, _ time.Time) time.Time { return when.AtOnceIf(len(e.lookups) > 0) }

func listenToLocksDue(e *engine, _ time.Time) time.Time {
	return when.AtOnceIf(e.connection.listening && e.locks.ToListen(e.session.number))
}

func lookAtLocksDue(e *engine, _ time.Time) time.Time {
	if !e.trust.held() {
		return when.Never
	}
	return e.locks.LookDue()
}

func watchLivenessDue(e *engine, _ time.Time) time.Time {
	if !e.liveness.On || e.onlySessionRemains() {
		return when.Never
	}
	return e.liveness.LookAt
}

func evictDisconnectedDue(e *engine, _ time.Time) time.Time {
	if e.onlySessionRemains() {
		return when.Never
	}
	return e.liveness.EvictDue()
}

func evictDue(e *engine, _ time.Time) time.Time { return e.expiry.due(stepEvict) }

func sweepLocksDue(e *engine, _ time.Time) time.Time { return e.locks.SweepDue() }

func planDue(e *engine, _ time.Time) time.Time { return e.plans.due() }

func reportDue(e *engine, _ time.Time) time.Time {
	return when.AtOnceIf(e.session.toldInDoubt || e.report().String() != e.session.told)
}

func tidyDue(e *engine, _ time.Time) time.Time { return when.AtOnceIf(e.expiry.toTidy) }

func sampleDue(e *engine, _ time.Time) time.Time { return e.samples.at }

func listenDue(e *engine, _ time.Time) time.Time {
	return when.AtOnceIf(!e.connection.probed && !e.config.Polling)
}

func prepareDue(e *engine, _ time.Time) time.Time { return e.connection.prepareAt }

func endDue(e *engine, _ time.Time) time.Time { return when.AtOnceIf(e.onlySessionRemains()) }

// progress is the operation under way, and the tasks that pause after a failure.
type progress struct {
	running  *operation
	canceled bool        // the end of the client has canceled the operation, so its error is no failure
	last     *task       // the task that was begun last
	results  chan func() // functions that ended operations return

	// A failed task pauses, and no other task with it: a task that cannot run now does not delay
	// others.
	rests map[*task]rest

	failures map[string]*failures // since the task of this name last succeeded
}

// failures are those of a task that were logged.
type failures struct {
	logqueue.Condition
	kinds map[string]bool // of errors
}

// rest is the pause of a task after it failed. It doubles with each failure.
type rest struct {
	length time.Duration
	until  time.Time
}

func newProgress() progress {
	return progress{results: make(chan func(), 1), rests: make(map[*task]rest), failures: make(map[string]*failures)}
}

const (
	retryMin = 50 * time.Millisecond
	// The pause before another attempt if an open guarded transaction blocked the last one.
	busyRetry = 50 * time.Millisecond

	minBatch = 64
	maxBatch = 8192
)

// succeeded notes that a task succeeded, and logs that if its failure was logged.
func (p *progress) succeeded(log *slog.Logger, t *task) {
	name := t.name
	delete(p.rests, t)
	f := p.failures[name]
	if f == nil {
		return
	}
	delete(p.failures, name)
	lasted, _ := f.End(time.Now())
	log.Info("pgleases: "+name+" succeeded again", slog.Duration("after", lasted))
}

// failed makes a task pause, at most for the given time.
func (p *progress) failed(t *task, most time.Duration) {
	length := min(max(2*p.rests[t].length, retryMin), most)
	p.rests[t] = rest{length, time.Now().Add(length)}
}

// log logs each kind of error once until the task succeeds.
func (p *progress) log(log *slog.Logger, t *task, err error) {
	name, kind := t.name, KindOf(err.Error())
	f := p.failures[name]
	if f == nil {
		f = &failures{kinds: make(map[string]bool)}
		f.Begin(time.Now())
		p.failures[name] = f
	}
	if !f.kinds[kind] {
		f.kinds[kind] = true
		log.Warn("pgleases: "+name+" failed, will be tried again", slog.Any("error", err))
	}
}

// KindOf returns an error's text without digits, because a new local port at each attempt is not a
// new error.
func KindOf(text string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, text)
}

// idle reports whether no task is under way.
func (p *progress) idle() bool { return p.running == nil || p.running.task == waitForNotifications }

// fitting returns the size of the next batch after one that took that long. It makes batches fit
// the limit of a statement, which is short if the TTL is.
func fitting(batch, most int, took, limit time.Duration, ended error) int {
	switch {
	case errors.Is(ended, context.DeadlineExceeded):
		return max(batch/4, minBatch)
	case took < limit/4:
		return min(2*batch, most)
	}
	return batch
}

// An operation runs statements, by send, outside of the goroutine that owns the state. In send run
// functions of the application too, for example a tracer, which may panic or end the goroutine. That
// becomes an error. Then the goroutine that owns the state runs take, with the error of send, and
// with why the context of send ended; nil: it did not end.
type operation struct {
	task   *task
	limit  time.Duration
	send   func(context.Context, Conn) error
	take   func(err, ended error) error
	cancel context.CancelFunc
	endsBy time.Time // when its context has ended
}

// run runs an operation for a caller that owns the state, and waits.
func (op *operation) run(ctx context.Context, c Conn) error {
	return op.take(handlers.Call(func() error { return op.send(ctx, c) }), nil)
}

// query returns the operation that sends a statement. Its error is the statement's, whatever take
// does with it.
func query[T any](limit time.Duration, send func(context.Context, Conn) (T, error), take func(T, error)) *operation {
	var answer T
	return &operation{limit: limit, send: func(ctx context.Context, c Conn) (err error) {
		answer, err = send(ctx, c)
		return err
	}, take: func(err, _ error) error {
		take(answer, err)
		return err
	}}
}

// cutShort reports whether a function of the application has panicked, or has ended the goroutine.
func cutShort(err error) bool { return errors.As(err, new(handlers.CutShort)) }

// exec is query for a statement without an answer.
func exec(limit time.Duration, send func(context.Context, Conn) error, take func(error)) *operation {
	return query(limit,
		func(ctx context.Context, c Conn) (struct{}, error) { return struct{}{}, send(ctx, c) },
		func(_ struct{}, err error) { take(err) })
}
