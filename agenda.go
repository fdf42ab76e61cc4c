package pgleases

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// The agenda: what the engine does at the database, in which order, and when. The schedule is written once: each duty says when it
// is due, work begins the first one that is, and wakes up for the next.

// A duty is something that the engine does at the database whenever it is due.
type duty struct {
	name  string // in the log, as docs/operations.md lists them
	stage stage
	due   func(e *engine, now time.Time) time.Time // never: not unless something happens
	begin func(e *engine, now time.Time) *operation

	traits traits
}

// The stage is how far a client has come. What belongs to one of its stages goes on in the next
// ones, from beating on.
type stage int

const (
	connecting  stage = iota // there is no connection
	registering              // there is no session
	beating                  // no heartbeat told yet to which server the connection leads
	working
	settled // the server is settled
)

type traits int

const (
	ownPause  traits = 1 << iota // it sets by itself when to try again after a failure
	batched                      // it does a batch, see learn
	untilEnds                    // it is not due once the client ends
	yields                       // another that is due comes between it and the next time
)

// duties in the order of precedence. An announcement comes before the next release, as there may be one after the other for long.
// Notifications come after the first plan, which gives nothing to the client that has just joined.
var duties = []*duty{
	{"connect", connecting, (*engine).retryDue, (*engine).beginConnect, ownPause},
	{"register", registering, (*engine).retryDue, (*engine).beginRegister, ownPause | untilEnds},
	{"look up the newer process", beating, (*engine).lookUpDue, (*engine).beginLookUp, 0},
	{"hold the session's lock", beating, (*engine).attendDue, (*engine).beginAttend, 0},
	{"heartbeat", beating, (*engine).heartbeatDue, (*engine).beginHeartbeat, ownPause},
	{"mark the server", working, (*engine).markDue, (*engine).beginMark, 0},
	{"unsettle an old server", working, (*engine).unsettleDue, (*engine).beginUnsettle, 0},
	{"settle the timeline", working, (*engine).settleDue, (*engine).beginSettle, 0},
	{"join", working, (*engine).joinDue, (*engine).beginJoin, ownPause | untilEnds | yields},
	{"read", working, (*engine).readDue, (*engine).beginRead, 0},
	{"announce", working, (*engine).announceDue, (*engine).beginAnnounce, 0},
	{"release", settled, (*engine).releaseDue, (*engine).beginRelease, batched},
	{"release locks", working, (*engine).releaseLocksDue, (*engine).beginReleaseLocks, 0},
	{"fence", settled, (*engine).fenceDue, (*engine).beginFence, batched},
	{"listen to locks", working, (*engine).listenToLocksDue, (*engine).beginListenToLocks, 0},
	{"look at locks", working, (*engine).lookAtLocksDue, (*engine).beginLookAtLocks, 0},
	{"set weight", working, (*engine).weightDue, (*engine).beginWeight, 0},
	{"look at sessions' locks", working, (*engine).lookOutDue, (*engine).beginLookOut, 0},
	{"evict the ended", settled, (*engine).evictEndedDue, (*engine).beginEvictEnded, 0},
	{"evict", settled, (*engine).evictDue, (*engine).beginEvict, untilEnds},
	{"sweep locks", settled, (*engine).sweepLocksDue, (*engine).beginSweepLocks, untilEnds},
	{"rebalance", settled, (*engine).rebalanceDue, (*engine).beginRebalance, 0},
	{"tidy", settled, (*engine).tidyDue, (*engine).beginTidy, untilEnds},
	{"listen", working, (*engine).listenDue, (*engine).beginListen, untilEnds},
	{"prepare", working, (*engine).prepareDue, (*engine).beginPrepare, untilEnds},
	{"end the session", working, (*engine).endDue, (*engine).beginEnd, 0},
}

// waitForNotifications is what the connection does while no duty is due, and gives way to each.
var waitForNotifications = &duty{name: "wait for notifications", stage: working, begin: (*engine).beginWait}

// Two instants that duties are due at. The zero time has always passed.
var (
	atOnce time.Time
	never  = time.Unix(1<<40, 0)
)

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// atOnceIf is when a duty is due that depends on nothing but a condition.
func atOnceIf(condition bool) time.Time {
	if condition {
		return atOnce
	}
	return never
}

// soonest returns what is due first, and when; never: nothing is.
func soonest[T any](all iter.Seq[T], at func(T) time.Time) (first T, due time.Time) {
	due = never
	for x := range all {
		if t := at(x); t.Before(due) {
			first, due = x, t
		}
	}
	return first, due
}

// agenda is the state of the work.
type agenda struct {
	running *operation
	last    *duty       // that was begun
	results chan func() // what the operation that ended hands back

	batch int // the most partitions that one statement moves or releases; see learn

	// A duty that failed pauses, and no other with it: what cannot be done now keeps nothing else from being done.
	pauses map[*duty]pause

	logged map[string]map[string]bool // by duty, since it last succeeded: the kinds of errors that were logged
}

// pause is the time that a duty rests after it failed; with each failure twice as long.
type pause struct {
	length time.Duration
	until  time.Time
}

// An operation runs statements, apart from the goroutine that owns the state. That goroutine runs the function that call returns.
// The function's argument says why the context of call ended; nil: it did not.
type operation struct {
	duty   *duty
	limit  time.Duration
	call   func(context.Context, conn) func(error) error
	cancel context.CancelFunc
}

// ask is the operation that sends a statement. Its error is that of the statement, whatever take
// does about it.
func ask[T any](limit time.Duration, send func(context.Context, conn) (T, error), take func(T, error)) *operation {
	return &operation{limit: limit, call: func(ctx context.Context, c conn) func(error) error {
		answer, err := send(ctx, c)
		return func(error) error {
			take(answer, err)
			return err
		}
	}}
}

// tell is ask for a statement that has no answer.
func tell(limit time.Duration, send func(context.Context, conn) error, take func(error)) *operation {
	return ask(limit,
		func(ctx context.Context, c conn) (struct{}, error) { return struct{}{}, send(ctx, c) },
		func(_ struct{}, err error) { take(err) })
}

const (
	retryMin = 50 * time.Millisecond
	// How soon something is tried again that an open guarded transaction was in the way of.
	busyRetry = 50 * time.Millisecond

	minBatch = 64
	maxBatch = 8192
)

// learn makes batches fit the limit of a statement, which is short where the TTL is.
func (a *agenda) learn(took, limit time.Duration, ended error) {
	a.batch = fitting(a.batch, maxBatch, took, limit, ended)
}

// fitting is the next batch after one that took so long.
func fitting(batch, most int, took, limit time.Duration, ended error) int {
	switch {
	case errors.Is(ended, context.DeadlineExceeded):
		return max(batch/4, minBatch)
	case took < limit/4:
		return min(2*batch, most)
	}
	return batch
}

func (e *engine) stage() stage {
	switch {
	case e.connection.conn == nil:
		return connecting
	case !e.session.registered:
		return registering
	case !e.connection.known:
		return beating
	case !e.session.settled:
		return working
	}
	return settled
}

// next returns the first duty that is due; else nil, and the instant at which the next one will be.
func (e *engine) next(now time.Time) (*duty, time.Time) {
	var yielded *duty
	at, stage := never, e.stage()
	for _, d := range duties {
		if d.stage > stage || d.stage < min(stage, beating) || d.traits&untilEnds != 0 && e.ending.reason != nil {
			continue
		}
		due := d.due(e, now)
		due = later(due, e.agenda.pauses[d].until)
		switch {
		case due.After(now):
			at = earlier(at, due)
		case d.traits&yields != 0 && e.agenda.last == d:
			yielded = d
		default:
			return d, now
		}
	}
	if yielded != nil {
		at = now
	}
	return yielded, at
}

// work begins what is due, and returns the instant at which the engine is to wake up, unless something happens before.
func (e *engine) work(now time.Time) time.Time {
	d, at := e.next(now)
	running := e.agenda.running
	switch {
	case running == nil && d != nil:
		e.begin(d, now)
	case running == nil && (e.connection.listening || e.options.fastFailover && e.connection.conn != nil): // which notices the connection's end
		if paused := e.agenda.pauses[waitForNotifications].until; paused.After(now) {
			at = earlier(at, paused)
		} else {
			e.begin(waitForNotifications, now)
		}
	case running != nil && d != nil && running.duty == waitForNotifications:
		running.cancel()
	}
	if d != nil {
		at = never // the end of what is under way wakes the engine
	}
	at = earlier(at, e.pulseDue())
	return earlier(at, earlier(e.trustEnds(), earlier(e.drainsDue(), e.ending.giveUpAt)))
}

func (e *engine) begin(d *duty, now time.Time) {
	op := d.begin(e, now)
	ctx, cancel := context.WithTimeout(context.Background(), op.limit)
	op.duty, op.cancel = d, cancel
	e.agenda.running, e.agenda.last = op, d
	c := e.connection.conn
	go func() {
		finish := op.call(ctx, c)
		err := context.Cause(ctx)
		cancel()
		e.agenda.results <- func() {
			e.agenda.running = nil
			if d.traits&batched != 0 {
				e.agenda.learn(time.Since(now), op.limit, err)
			}
			e.completed(d, finish(err))
		}
	}()
}

// completed takes the outcome of an operation.
func (e *engine) completed(d *duty, err error) {
	if err == nil {
		delete(e.agenda.logged, d.name)
		delete(e.agenda.pauses, d)
		return
	}
	e.logFailure(d, err)
	if e.connection.conn == nil {
		return
	}
	if e.connection.conn.Closed() || store.ReadOnly(err) {
		e.disconnect()
		return
	}
	if d.traits&ownPause == 0 {
		length := min(max(2*e.agenda.pauses[d].length, retryMin), e.options.heartbeat)
		e.agenda.pauses[d] = pause{length, time.Now().Add(length)}
	}
}

// logFailure logs each kind of error once until the duty succeeds.
func (e *engine) logFailure(d *duty, err error) {
	name, kind := d.name, kindOf(err)
	if e.agenda.logged[name][kind] {
		return
	}
	if e.agenda.logged[name] == nil {
		e.agenda.logged[name] = make(map[string]bool)
	}
	e.agenda.logged[name][kind] = true
	e.client.log.Warn("pgleases: "+name+" failed, will be tried again", slog.Any("error", err))
}

// kindOf is what an error says, less the numbers: a new local port at each attempt makes no new error.
func kindOf(err error) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, err.Error())
}

// limit bounds a statement that is not a heartbeat, so that the next heartbeats still come in time.
func (e *engine) limit() time.Duration {
	o := e.options
	return min(o.ttl/2, (o.ttl-margin(o.ttl)-o.heartbeat)*3/4)
}
