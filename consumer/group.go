package consumer

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/listen"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

const (
	drainMargin = 5 * time.Second  // the lease's drain timeout is longer than the handler's timeout by this
	recordTime  = 2 * time.Second  // the most that recording ends takes
	answerTime  = 10 * time.Second // the most that a statement of a job takes
	lockWait    = time.Second      // the most that it waits for a lock
	// readWait is the most that the read of a batch waits for a lock, and searchWait the most if
	// it is known that a lock is kept there.
	readWait    = 100 * time.Millisecond
	searchWait  = 10 * time.Millisecond
	troubleWait = time.Second // the most that rows wait after an error that none is charged with
	atOnce      = 4096        // the most partitions that begin or end in one transaction
)

// timings are the same in all processes, except in tests.
type timings struct {
	sweep       time.Duration // between two looks for blocked rows that are gone or changed
	suspectHold time.Duration // the most that other work waits for crash suspects
	pauseMax    time.Duration // the longest pause while something that handlers need is away
	outage      time.Duration // between two attempts of a process while something is away
	quiet       time.Duration // after a notification, the process probes at every poll
	leave       time.Duration // for leaving the lease after the last batch
	answer      time.Duration // the most that a probe, or the begin of ownerships, takes
	look        time.Duration // between two looks whether the transaction of a call still exists
	overrun     time.Duration // after the end of its context, it is logged that code of the application continues
}

var defaultTimings = timings{sweep: time.Minute, suspectHold: 5 * time.Second, pauseMax: time.Minute, outage: 100 * time.Millisecond,
	quiet: 10 * time.Second, leave: 2 * time.Second, answer: answerTime,
	look: 5 * time.Second, overrun: drainMargin}

// A partition is an ownership. Its fields from due on belong to the job that works on the
// partition, and otherwise, as the others, to the goroutine of the group.
type partition struct {
	pgleases.Partition
	halting atomic.Bool   // it is to end
	idle    chan struct{} // closed when it is to end, and no job works on it

	gone       bool         // the goroutine of the group knows that it is to end
	known      bool         // what was before this ownership is known
	busy       bool         // a job works on it
	job        *job         // the last one
	retries    []blockedRow // those that are due
	retried    bool         // the last job was one of them, so rows that are not blocked come next
	retryEnded int          // group.ended after the last such job

	due     bool  // it may have rows to handle
	expect  int   // how many rows the next read may find
	watched bool  // batches are noted
	search  bool  // a batch with rows of this partition met a lock, perhaps of one of its rows
	singly  int   // so many rows are handled one by one, because a batch of them took too long
	noted   int64 // the highest ID of the noted batch
	rows    standing
	blocked standing
	lost    bool // it is not owned
}

// A standing says when a partition's rows may be handled, or its blocked rows: a blocked row that
// is locked, or whose handler finds something away, keeps no others.
type standing struct {
	notBefore time.Time
	outage    time.Duration // the pause, if something that handlers need is away; 0: no pause
	tried     []string      // keys that failed in that time
	troubles  int           // errors that no row is charged with, in a row
	free      bool          // another partition has succeeded, so this one is tried at once
}

// leaveOut returns the keys to leave out of a read.
func (s *standing) leaveOut() []string { return append([]string{}, s.tried...) } // not null

// A blockedRow is a row whose key is blocked, and that is to be handled again.
type blockedRow struct {
	id      int64
	asked   bool // an operator retries or skips it
	suspect bool // it may crash the process
	skip    bool // an operator skips it
}

// A group is the work of one Run. One goroutine decides what is done, and others do it.
type group struct {
	*Consumer
	lease      *pgleases.Lease
	places     *worker.Share // of the pool
	untilEmpty bool
	stop       context.CancelCauseFunc // ends the Run
	listener   *listen.Listener        // a probe that is under way uses it
	events     chan func()
	ends       chan endedPartition
	life       context.Context
	stopped    <-chan struct{} // closed when the goroutine ends

	mu     sync.Mutex // guards the following fields
	failed []string   // keys that failed since the last success
	away   bool       // it is logged that something is away
	// when it was last logged that a batch was broken off
	brokenOff time.Time
	last      string // the last error

	// Only the goroutine uses the following fields.
	partitions []*partition
	gone       bool // some of them are gone
	opening    bool
	openAfter  time.Time
	paused     bool // by an operator

	polls   polls
	probing bool
	sweepAt time.Time
	failing time.Time // when it was last logged that probes fail; zero: the last one did not

	slots    worker.Slots[int] // of the jobs; the partitions that are slow
	slowSaid time.Time         // when it was last logged that partitions are slow
	rows     turns
	blocked  turns
	late     int64     // jobs whose slots were given to others
	suspects int       // jobs of a crash suspect
	retried  bool      // the last that began has a blocked row
	ended    int       // jobs that have ended
	freed    time.Time // when the pauses of all partitions were last ended
	heldTill time.Time // until then other work waits for suspects; zero: no suspect is due
}

// An ended partition is one on which all work has ended.
type endedPartition struct {
	p    *partition
	done chan struct{}
}

func newGroup(c *Consumer, lease *pgleases.Lease, places *worker.Share, untilEmpty bool, stop context.CancelCauseFunc) *group {
	return &group{
		Consumer: c, lease: lease, places: places, untilEmpty: untilEmpty, stop: stop, listener: c.newListener(),
		events: make(chan func()), ends: make(chan endedPartition), polls: polls{every: c.options.poll, quiet: c.times.quiet},
	}
}

func (c *Consumer) newListener() *listen.Listener {
	return listen.New(c.pool, c.options.schema, leaseOf+c.name)
}

// start starts the goroutines. They go on after ctx until the returned function is called.
func (g *group) start(ctx context.Context) (end func()) {
	g.life = ctx
	stopped := make(chan struct{})
	g.stopped = stopped
	var all sync.WaitGroup
	all.Go(func() { g.loop(ctx, stopped) })
	all.Go(func() { g.recordEnds(stopped) })
	return func() { close(stopped); all.Wait() }
}

// serve is the callback of the lease for a partition. It returns when its context has ended and no
// job works on the partition.
func (g *group) serve(ctx context.Context, owned pgleases.Partition) error {
	p := &partition{Partition: owned, idle: make(chan struct{})}
	g.events <- func() { g.partitions = append(g.partitions, p) }
	<-ctx.Done()
	p.halting.Store(true)
	g.events <- func() {
		p.gone, g.gone = true, true
		if !p.busy {
			close(p.idle)
		}
	}
	<-p.idle
	e := endedPartition{p, make(chan struct{})}
	g.ends <- e
	<-e.done
	return nil
}

// recordEnds records the ends of ownerships, those that come together in one statement. What fails
// is repeated each second, so that no partition counts as crashed after an outage of the database.
func (g *group) recordEnds(stopped <-chan struct{}) {
	var owned []*partition // whose ends are to be recorded
	var logged time.Time
	for pause := time.Duration(0); ; {
		var ends []endedPartition
		var again <-chan time.Time
		if len(owned) > 0 {
			again = time.After(pause)
		}
		select {
		case e := <-g.ends:
			ends = append(ends, e)
		case <-again:
		case <-stopped:
			return
		}
		for more := true; more && len(ends) < atOnce; {
			select {
			case e := <-g.ends:
				ends = append(ends, e)
			default:
				more = false
			}
		}
		for _, e := range ends {
			owned = append(owned, e.p)
		}
		rest := max(0, len(owned)-atOnce)
		numbers, epochs := keysOf(owned[rest:])
		ctx, cancel := context.WithTimeout(context.Background(), recordTime)
		pause = time.Second
		switch err := handlers.Within(ctx, g.times.overrun, func() error { return g.write(ctx, g.sql.End, g.name, numbers, epochs) }); {
		case err == nil:
			owned, pause = owned[:rest], 0
		case time.Since(logged) > time.Minute:
			logged = time.Now()
			g.log.Warn("consumer: end not recorded yet, the next owner takes it for a crash", slog.Int("partitions", len(owned)), slog.Any("error", store.Advised(err)))
		}
		cancel()
		for _, e := range ends {
			close(e.done)
		}
	}
}

// keysOf returns the numbers and the epochs of partitions.
func keysOf(owned []*partition) (numbers []int32, epochs []int64) {
	for _, p := range owned {
		numbers, epochs = append(numbers, int32(p.Number)), append(epochs, p.Epoch)
	}
	return numbers, epochs
}

// byNumber returns partitions by their numbers.
func byNumber(owned []*partition) map[int]*partition {
	all := make(map[int]*partition, len(owned))
	for _, p := range owned {
		all[p.Number] = p
	}
	return all
}

func (g *group) loop(ctx context.Context, stopped <-chan struct{}) {
	defer g.listener.Close()
	done := ctx.Done()
	for {
		var timer <-chan time.Time
		if g.gone {
			g.removeGone()
		}
		if ctx.Err() == nil {
			g.open(ctx)
			g.probe(ctx)
			wait := g.begin()
			if !g.probing {
				g.listener.Listen()
				wait = min(wait, time.Until(g.polls.at))
			}
			timer = time.After(wait)
		}
		select {
		case <-timer:
		case f := <-g.events:
			for more := true; more; { // many partitions come and go at once
				f()
				select {
				case f = <-g.events:
				default:
					more = false
				}
			}
		case <-g.listener.Heard:
			g.polls.notified()
		case <-done:
			done = nil
		case <-stopped:
			for g.probing || g.opening {
				(<-g.events)()
			}
			return
		}
	}
}

// removeGone forgets the partitions that are gone.
func (g *group) removeGone() {
	g.gone = false
	g.partitions = slices.DeleteFunc(g.partitions, func(p *partition) bool {
		if p.gone {
			g.slots.Heal(p.Number)
		}
		return p.gone
	})
	g.countSlow()
}

// open records the begin of new ownerships, and learns what was before them.
func (g *group) open(ctx context.Context) {
	if g.opening || time.Now().Before(g.openAfter) {
		return
	}
	var fresh []*partition
	for _, p := range g.partitions {
		if !p.busy && !p.known && !p.lost && !p.halting.Load() && len(fresh) < atOnce {
			fresh = append(fresh, p)
		}
	}
	if len(fresh) == 0 {
		return
	}
	g.opening = true
	begun := make([]*partition, len(fresh)) // copies, because what hangs may write to them later
	for i, p := range fresh {
		p.busy = true
		begun[i] = &partition{Partition: p.Partition}
	}
	go func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*g.times.answer) // its statements have that time each
		defer cancel()
		err := handlers.Within(within, g.times.overrun, func() error { return g.beginAll(begun) })
		g.events <- func() {
			g.opening = false
			for i, p := range fresh {
				if p.known = err == nil; p.known {
					p.watched, p.lost = begun[i].watched, begun[i].lost
				}
				g.free(p)
			}
			if err != nil && ctx.Err() == nil {
				g.openAfter = time.Now().Add(time.Second)
				g.log.Warn("consumer: cannot begin with new partitions, retried in a second", slog.Int("partitions", len(fresh)), slog.Any("error", store.Advised(err)))
				return
			}
			g.polls.soon()
		}
	}()
}
