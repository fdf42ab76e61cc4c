package pgleases

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// conn is what the engine needs of a connection; *store.Conn is one. Its methods are called by one goroutine at a time.
type conn interface {
	Register(context.Context, store.Registration) (int64, *store.Process, error)
	Superseder(ctx context.Context, id string) (*store.Process, error)
	Heartbeat(ctx context.Context, session int64) (store.Beat, error)
	Mark(ctx context.Context, mark int64) error
	Settle(ctx context.Context, watched time.Duration, run store.Run) (settled, busy bool, err error)
	End(ctx context.Context, session int64) (bool, error)
	Join(ctx context.Context, session int64, lease string, partitions, weight int) (store.Join, error)
	SetWeight(ctx context.Context, session int64, lease string, weight int) (bool, error)
	Read(ctx context.Context, session int64, leases []string) ([]store.LeaseRead, error)
	Release(ctx context.Context, session int64, releases []store.Release, leaving []string) (store.Released, error)
	Evict(ctx context.Context, cutoff int64, watched time.Duration, run store.Run) (store.Evicted, error)
	Claim(ctx context.Context, leases []string) ([]string, error)
	Plan(ctx context.Context, leases []string) ([]store.LeasePlan, error)
	Apply(ctx context.Context, plan []store.LeasePlan, moves []store.Move) (store.Applied, error)
	Listen(ctx context.Context, probe int64) (bool, error)
	Wait(ctx context.Context, session int64) (bool, error)
	Closed() bool
	Close()
}

// The engine is a client's state, owned by its one goroutine. It never waits for the database: at most one operation at a
// time is under way in another goroutine, which hands back a function that this one runs. So requests, ends of work
// and the trust deadline are served at once, whatever a statement does.
type engine struct {
	c       *Client
	o       options
	connect func(context.Context) (conn, error)
	conn    conn // nil: to be connected
	known   bool // a heartbeat told to what server it leads

	running *operation
	results chan func()

	startedAt   time.Time
	process     int64 // see nextProcess
	incarnation int64 // 0 before the first registration
	session     int64
	registered  bool

	term      *term     // nil: not trusted
	wallLimit time.Time // the trust deadline on the wall clock
	nothing   *term     // the term of those without trust
	anchor    time.Time // before the last successful heartbeat was sent
	roundTrip time.Duration
	watch     watch
	timeline  int64 // on which all that is shown was confirmed
	settled   bool  // the server's timeline is

	leases   map[string]*Lease
	waiting  map[string][]*joining // for a lease of the name to have been left
	draining map[*ownership]struct{}
	plans    map[string]time.Time // when to plan a lease that asks for it

	nextBeat  time.Time
	retryAt   time.Time // of connecting and registering
	retry     time.Duration
	pausedTo  time.Time // of all other operations, after one failed
	pause     time.Duration
	checkAt   time.Time     // when to look whether a session may have expired; zero: not before the next heartbeat
	sessions  int64         // of all clients, about
	evictAt   time.Time     // when to evict, after the database said so; zero: not
	unwatched time.Duration // the least TTL for which the watch was too short at the last eviction; 0: for none
	settleAt  time.Time
	readAt    time.Time // when leases that changed are read
	listening bool
	probed    bool
	troubles  map[string]map[string]bool // by operation, since it last succeeded: the errors that were logged

	ending   error // why the client ends; nil: it does not
	hurried  error // why Close waits for work no more
	hurryEnd time.Time
	newer    bool // who superseded is to be read
	ended    bool // the session

	stats Stats
}

// An operation runs statements, apart from the goroutine that owns the state. What run returns is run by that goroutine.
type operation struct {
	name   string
	limit  time.Duration
	run    func(context.Context, conn) func(error) error
	idle   bool   // gives way to any other
	joins  *Lease // the lease that it joins
	cancel context.CancelFunc
}

const (
	retryMin = 50 * time.Millisecond
	// A take-over waits so long for a guarded transaction before it tries again.
	busyRetry = 50 * time.Millisecond
	warnAfter = 30 * time.Second
)

func newEngine(c *Client, first conn, connect func(context.Context) (conn, error)) *engine {
	now := time.Now()
	nothing := &term{opened: now}
	e := &engine{
		c: c, o: c.options, connect: connect, conn: first,
		results:   make(chan func(), 1),
		startedAt: now, process: nextProcess(), session: randomID(),
		nothing: nothing, anchor: now,
		watch:    newWatch(now, c.options.ttl),
		leases:   make(map[string]*Lease),
		waiting:  make(map[string][]*joining),
		draining: make(map[*ownership]struct{}),
		plans:    make(map[string]time.Time),
		troubles: make(map[string]map[string]bool),
		nextBeat: now,
	}
	e.publishStats()
	return e
}

// randomID is 63 random bits, never 0. A sequence would repeat numbers after a crash or a promotion.
func randomID() int64 { return rand.Int64N(1<<63-1) + 1 }

// Clients of this program count up from a random number, so that of two of them the database knows the newer.
var (
	thisProgram = randomID() &^ (1<<store.ProcessBits - 1)
	opened      atomic.Int64
)

// nextProcess numbers a client.
func nextProcess() int64 { return thisProgram | opened.Add(1)&(1<<store.ProcessBits-1) }

// run is the client's goroutine.
func (e *engine) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		e.checkTrust(now)
		e.drainAll(now)
		if e.finished(now) {
			break
		}
		if op := e.next(now); op != nil {
			if e.running == nil {
				e.start(op)
			} else if e.running.idle {
				e.running.cancel()
			}
		} else if e.running == nil && e.listening && e.conn != nil {
			e.start(e.listen())
		}
		e.publishStats()
		timer.Reset(time.Until(e.wakeAt(now)))
		select {
		case f := <-e.c.requests:
			f(e)
		case f := <-e.results:
			f()
		case <-e.c.wake:
		case <-timer.C:
		}
	}
	e.finish()
}

// start begins an operation.
func (e *engine) start(op *operation) {
	ctx, cancel := context.WithTimeout(context.Background(), op.limit)
	op.cancel = cancel
	e.running = op
	c := e.conn
	go func() {
		apply := op.run(ctx, c)
		err := context.Cause(ctx)
		cancel()
		e.results <- func() {
			e.running = nil
			e.after(op.name, apply(err))
		}
	}()
}

// after takes the outcome of an operation: an error is logged when it is of a new kind, and what comes next waits a little.
func (e *engine) after(name string, err error) {
	now := time.Now()
	if err == nil {
		delete(e.troubles, name)
		if name == "heartbeat" {
			e.retry = 0
		} else {
			e.pause = 0
		}
		return
	}
	if told := e.troubles[name]; !told[kindOf(err)] {
		if told == nil {
			told = make(map[string]bool)
			e.troubles[name] = told
		}
		told[kindOf(err)] = true
		e.c.log.Warn("pgleases: "+name+" failed, will be tried again", slog.Any("error", err))
	}
	if e.conn != nil && (e.conn.Closed() || store.ReadOnly(err)) {
		e.disconnect()
		return
	}
	e.pause = min(max(2*e.pause, retryMin), e.o.heartbeat)
	e.pausedTo = now.Add(e.pause)
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

func (e *engine) disconnect() {
	e.conn.Close()
	e.conn, e.listening, e.probed = nil, false, false
	e.backOff()
}

// backOff spaces attempts to connect and register.
func (e *engine) backOff() {
	e.retryAt = time.Now().Add(rand.N(e.retry + 1))
	e.retry = min(max(2*e.retry, retryMin), max(e.o.heartbeat/2, retryMin))
}

// next returns what is to be done first, nil if nothing is.
func (e *engine) next(now time.Time) *operation {
	due := func(t time.Time) bool { return !now.Before(t) }
	switch {
	case e.conn == nil:
		if due(e.retryAt) {
			return e.opConnect()
		}
		return nil
	case e.newer:
		return e.opSuperseder()
	case !e.registered:
		if due(e.retryAt) && e.ending == nil {
			return e.opRegister()
		}
		return nil
	case due(e.nextBeat), !e.checkAt.IsZero() && due(e.checkAt):
		return e.opHeartbeat() // early where a check is due: it tells whether another client made it
	case !due(e.pausedTo) || !e.known:
		return nil
	case !e.probed && !e.o.polling && e.ending == nil:
		return e.opListen()
	case e.watch.run.Started != 0 && e.watch.run.Mark == 0:
		return e.opMark()
	case !e.settled && due(e.settleAt) && e.watch.lasts(now) >= e.o.ttl:
		return e.opSettle(now)
	}
	if op := e.opJoin(now); op != nil {
		return op
	}
	if e.term != nil && due(e.readAt) {
		if op := e.opRead(); op != nil {
			return op
		}
	}
	if op := e.opRelease(now); op != nil {
		return op
	}
	if op := e.opWeight(); op != nil {
		return op
	}
	if e.settled {
		if !e.evictAt.IsZero() && due(e.evictAt) && e.ending == nil {
			return e.opEvict(now)
		}
		if op := e.opRebalance(now); op != nil {
			return op
		}
	}
	if e.ending != nil && e.left() {
		return e.opEnd()
	}
	return nil
}

// wakeAt is the next instant at which anything may be due.
func (e *engine) wakeAt(now time.Time) time.Time {
	at := now.Add(time.Minute)
	sooner := func(t time.Time) {
		if t.After(now) && t.Before(at) {
			at = t
		}
	}
	sooner(e.nextBeat)
	sooner(e.retryAt)
	sooner(e.pausedTo)
	sooner(e.settleAt)
	sooner(e.readAt)
	sooner(e.hurryEnd)
	sooner(e.checkAt)
	sooner(e.evictAt)
	for _, t := range e.plans {
		sooner(t)
	}
	if e.term != nil {
		if !e.term.trusted() {
			return now
		}
		sooner(e.term.opened.Add(time.Duration(e.term.deadline.Load())))
	}
	for _, l := range e.leases {
		sooner(l.retryAt)
	}
	for o := range e.draining {
		sooner(o.readyAt)
		sooner(o.warnAt)
		sooner(o.limitAt)
	}
	return at
}

// limit bounds a statement that is not a heartbeat, so that the next heartbeats still come in time.
func (e *engine) limit() time.Duration {
	return min(e.o.ttl/2, (e.o.ttl-margin(e.o.ttl)-e.o.heartbeat)*3/4)
}

func (e *engine) publishStats() {
	n := &numbers{Stats: e.stats, term: e.nothing, sent: e.anchor}
	if e.term != nil {
		n.term = e.term
	}
	n.RoundTrip, n.Listening, n.Draining = e.roundTrip, e.listening, len(e.draining)
	for o := range e.draining {
		if n.DrainingSince.IsZero() || o.since.Before(n.DrainingSince) {
			n.DrainingSince = o.since
		}
	}
	for _, l := range e.leases {
		if l.joined {
			n.Leases++
		}
		n.Owned += len(l.snapshot.Load().values)
	}
	e.c.numbers.Store(n)
}
