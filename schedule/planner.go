package schedule

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/listen"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// A planner knows all parts of a Run, and passes the results of each part to the others. The parts
// do not know each other: the poller asks what is due, the queue decides what begins next, and the
// executor runs it, in one goroutine for each run.
type planner struct {
	s     *Scheduler
	lease *pgleases.Lease
	owned ownerships
	clock serverClock
	exec  executor
	lines logqueue.Joiner // of pauses that come again and again

	wake     chan struct{} // of capacity 1: poll at once
	gained   chan struct{} // of capacity 1: there are fresh partitions
	finished chan finish
	gotSlot  chan string  // the kind of a run that got a slot
	parked   chan subject // a run that needs no place any more, see executor
	overdue  chan overdue // a run whose place others may have, see executor
	stopped  <-chan struct{}
	answers  chan *poll // of capacity 1

	blockedAll chan struct{} // of capacity 1: what is due of strange kinds is blocked

	// Only the goroutine of loop uses the following fields.
	queue   queue
	cancels map[subject]context.CancelCauseFunc // end the contexts of what runs
	poller  poller
	strange strange

	failing, doubted, slow logqueue.Condition // of polls, of the database's clock, and of runs
}

func newPlanner(s *Scheduler, lease *pgleases.Lease, share *worker.Share, stop context.CancelCauseFunc) *planner {
	s.counts.polled.Set(time.Now())
	p := &planner{
		s: s, lease: lease, wake: make(chan struct{}, 1), gained: make(chan struct{}, 1),
		finished: make(chan finish), gotSlot: make(chan string), parked: make(chan subject),
		overdue: make(chan overdue), answers: make(chan *poll, 1), blockedAll: make(chan struct{}, 1),
		cancels: make(map[subject]context.CancelCauseFunc),

		queue:  newQueue(&s.times, share.Most, s.registry.limit),
		poller: newPoller(&s.times, listen.New(s.db.pool, s.options.schema, leaseOf+s.db.group)),
	}
	within := transactions{s.db, leaseFence(lease), &p.clock, share, stop, newEnds()}
	p.exec = executor{
		within, &s.registry, s.log,
		func(kind string) { p.gotSlot <- kind }, func(of subject) { p.parked <- of }, p.noteOverdue, new(postponed),
	}
	return p
}

// serve is the callback of the lease for a partition. It returns when the callback's context has
// ended and the runs in the partition have ended.
func (p *planner) serve(ctx context.Context, partition pgleases.Partition) error {
	o := newOwnership(partition)
	defer o.cancel(nil)
	p.owned.Store(o.Number, o)
	listen.Signal(p.gained)
	if o.Number == 0 {
		var trimming sync.WaitGroup
		trimming.Go(func() { p.s.trim(ctx, &p.clock) })
		defer trimming.Wait()
	}
	<-ctx.Done()
	p.owned.Delete(o.Number)
	release := o.drain(p.s.options.drain) // waits here until the runs have ended
	defer release()
	p.exec.noteEnd(o)
	return ctx.Err()
}

// pollSoon makes the goroutine poll at once.
func (p *planner) pollSoon() { listen.Signal(p.wake) }

// An overdue is a run whose context has ended, and in which code of the application goes on.
type overdue struct {
	subject
	timedOut bool // its context ended by its timeout
}

// noteOverdue passes a run whose place others may have to the goroutine of loop, unless that has
// ended.
func (p *planner) noteOverdue(of subject, cause error) {
	select {
	case p.overdue <- overdue{of, cause == ErrTimeout}:
	case <-p.stopped:
	}
}

// start starts the goroutine. It polls until ctx ends, and receives the ends of runs until the
// returned function is called.
func (p *planner) start(ctx context.Context) (stop func()) {
	stopped := make(chan struct{})
	p.stopped = stopped
	var loop sync.WaitGroup
	loop.Go(func() { p.loop(ctx, stopped) })
	return func() {
		close(stopped)
		loop.Wait()
		p.lines.Flush()
	}
}

func (p *planner) loop(ctx context.Context, stopped <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { p.poller.conn.Close() }() // not the one that it began with: a hung poll keeps that
	done := ctx.Done()
	for {
		var timer <-chan time.Time
		if ctx.Err() == nil {
			p.poll(ctx)
			wait := p.begin()
			timer = time.After(p.poller.idle(p.queue.hasRoom() || p.short(), wait))
		}
		p.countRunning()
		select {
		case <-timer:
		case <-p.wake:
			p.poller.soon()
		case <-p.gained:
			p.poller.gained()
		case <-p.poller.conn.Heard:
			p.poller.heard()
		case q := <-p.answers:
			p.answer(ctx, q)
		case f := <-p.finished:
			p.end(f)
		case kind := <-p.gotSlot:
			p.queue.slotFree(kind)
		case of := <-p.parked:
			p.queue.park(of, time.Now())
		case of := <-p.overdue:
			p.queue.giveUp(of.subject, of.timedOut, time.Now())
		case <-p.blockedAll:
			p.strange = strange{}
		case <-done:
			done = nil
		case <-stopped:
			cancel()
			if p.poller.polling {
				p.poller.received(<-p.answers)
			}
			return
		}
	}
}

// poll sends a poll if it is time; answer receives its answer.
func (p *planner) poll(ctx context.Context) {
	now := time.Now()
	if !p.poller.isDue(now) {
		return
	}
	p.queue.polled(now)
	var left leftOut
	if p.poller.leavesOut(now) {
		left = p.queue.blocked(p.poller.passed)
	}
	if p.poller.mayLeaveOut(now) {
		left.kinds = append(left.kinds, p.strange.kinds...)
	}
	q := p.poller.question(now, p.owned.all(), left, p.queue.waitIn())
	if q == nil {
		p.queue.clear()
		p.countSlow()
		return
	}
	q.running = slices.Collect(maps.Keys(p.cancels))
	conn := p.poller.conn
	go func() {
		ctx, stop := p.s.db.line.Until(ctx)
		defer stop()
		p.answers <- q.within(ctx, p.s.db, conn, p.lease.PartitionFor)
	}()
}

// answer receives the answer of a poll. Its items replace those of the poll before.
func (p *planner) answer(ctx context.Context, q *poll) {
	p.s.counts.poll(q.sent, q.err)
	if final := worker.EndsRun(q.err); final != nil {
		p.exec.stop(final)
	}
	ok := p.poller.received(q)
	p.saidPoll(ctx, q.err)
	if !ok {
		return
	}
	p.cancelGone(q.gone)
	if !p.trusts(q.clock.Add(q.took/2), q.sent, q.answered) {
		p.queue.clear() // no run begins
		return
	}
	p.poller.accepted(q)
	server, _ := p.clock.at(time.Now())
	known, unknown := p.s.registry.sort(q.due, server)
	p.blockStrange(ctx, unknown, server)
	p.s.counts.suspects.Store(int64(p.queue.replace(known, q.left)))
	p.queue.forget(func(partition int) bool { return p.owned.get(partition) != nil }, time.Now())
	p.countSlow()
	for partition, at := range p.queue.earliest() {
		p.poller.lower(partition, at)
	}
	for _, f := range p.queue.finished {
		lacks := p.poller.leftOut(f.Key) && !p.queue.has(f.Key)
		p.poller.ended(f, lacks, p.short())
	}
}

// countSlow counts the items that are slow, and logs once a minute how many there are, and when there
// are none any more.
func (p *planner) countSlow() {
	n, slow := p.queue.slowBy(), &p.s.counts.slow
	some, now := slow.Set(func(why worker.Reason) int { return n[why] }), time.Now()
	if !some {
		lasted, log := p.slow.End(now)
		if log {
			p.s.log.Info("schedule: runs no longer slowed down", slog.Duration("for", lasted))
		}
		return
	}
	if !p.slow.Last(time.Minute, now) {
		return
	}
	p.s.log.Warn("schedule: runs slowed down, others continue", slog.Int64("by_timeout", slow.Of(worker.TimedOut)),
		slog.Int64("by_lock", slow.Of(worker.Locked)), slog.Int64("by_connection", slow.Of(worker.Hung)))
}

// countRunning notes when the oldest run began, and how many are overdue.
func (p *planner) countRunning() {
	p.s.counts.overdue.Store(int64(len(p.queue.overdue)))
	if len(p.queue.order) == 0 {
		p.s.counts.oldest.Clear()
		return
	}
	p.s.counts.oldest.Set(p.queue.running[p.queue.order[0]].begun)
}

// saidPoll logs that polls begin to fail, and when one succeeds again.
func (p *planner) saidPoll(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	p.failing.Tried(err, func() {
		p.s.log.Warn("schedule: poll failed, retried each second", slog.Any("error", store.Advised(err)))
	}, func(lasted time.Duration) {
		p.s.log.Info("schedule: poll succeeded again", slog.Duration("after", lasted))
	})
}

// cancelGone ends the runs of what does not exist any more: it was canceled or deleted, or the run
// itself has removed its job, and the answer to its commit is under way or lost: see endCanceled.
func (p *planner) cancelGone(gone []subject) {
	for _, of := range gone {
		if cancel := p.cancels[of]; cancel != nil { // otherwise the run has ended meanwhile
			cancel(ErrCanceled)
		}
	}
}

// trusts records the database's time, and reports whether it is trusted.
func (p *planner) trusts(shows, sent, answered time.Time) bool {
	expected, _ := p.clock.at(answered)
	trusted := p.clock.heard(shows, sent, answered, p.s.times.ClockDoubt)
	p.doubted.Set(!trusted, time.Now(), func() {
		p.s.log.Warn("schedule: clock unstable, runs suspended",
			slog.Time("shows", shows), slog.Time("expected", expected))
	}, func(lasted time.Duration) {
		p.s.log.Info("schedule: clock trusted again", slog.Time("shows", shows), slog.Time("expected", expected),
			slog.Duration("for", lasted))
	})
	return trusted
}

// begin begins what is due, if there is room, and returns how long to wait for the next item.
func (p *planner) begin() time.Duration {
	for {
		now := time.Now()
		server, _ := p.clock.at(now)
		it, wait, ok := p.queue.next(now, server)
		if !ok {
			p.s.counts.waiting.Store(int64(p.queue.due(server)))
			return wait
		}
		o := p.owned.get(it.Partition)
		if o == nil || !o.begin() {
			continue
		}
		if !p.queue.began(it, now) {
			itemLogger(p.s.log, it).Warn(
				"schedule: crash suspect started beside other runs", slog.Int("crashes", it.Crashes),
			)
		}
		ctx, cancel := context.WithCancelCause(o.ctx)
		p.cancels[it.subject] = cancel
		p.startRun(ctx, cancel, o, it)
	}
}

// startRun starts the goroutine of a run. A panic in a hook of the application's pool becomes a
// postponed run.
func (p *planner) startRun(ctx context.Context, cancel context.CancelCauseFunc, o *ownership, it item) {
	r := result{outcome: gone, from: it.due(), slow: true, why: worker.Hung}
	handlers.Start(func() error {
		r = p.run(ctx, o, it)
		return nil
	}, func(err error) {
		if err != nil {
			p.exec.logPostponed(itemLogger(p.s.log, it), it.Kind, err)
		}
		p.finished <- finish{it, r}
		cancel(nil)
		o.runs.Done()
	})
}

// run runs an item.
func (p *planner) run(ctx context.Context, o *ownership, it item) result {
	if err := p.exec.noteRuns(o); err != nil {
		if o.ctx.Err() == nil && !errors.Is(err, pgleases.ErrNotOwner) {
			p.exec.logPostponed(itemLogger(p.s.log, it), it.Kind, err)
		}
		return result{outcome: gone, from: it.due(), slow: lasts(err), why: worker.Hung}
	}
	return p.exec.execute(ctx, o, it)
}

// end receives the end of a run.
func (p *planner) end(f finish) {
	delete(p.cancels, f.subject)
	now := time.Now()
	since, wasAway := p.queue.outages.Since(f.Kind)
	if p.queue.end(f, now) {
		p.logPaused(f)
	}
	if wasAway && !p.queue.isAway(f.Kind) {
		lasted := now.Sub(since).Round(time.Millisecond)
		p.lines.Follow(pausing(f.Kind), func() {
			p.s.log.Info("schedule: pause of a kind ended", slog.String("kind", f.Kind), slog.Duration("for", lasted))
		})
	}
	if f.outcome == clockUnstable {
		p.poller.soon()
	}
	lacks := p.poller.leftOut(f.Key) && !p.queue.has(f.Key)
	p.poller.ended(f, lacks, p.short())
}

// pausing is the reason of the lines that the lines of a kind's pauses are joined with.
func pausing(kind string) logqueue.Reason { return logqueue.Reason{Message: "paused", Of: kind} }

// logPaused logs that a kind is paused. Pauses that follow on each other are logged together.
func (p *planner) logPaused(f finish) {
	p.lines.Add(pausing(f.Kind), nil, func(_ []int, lines int) {
		if lines == 0 {
			p.s.log.Warn("schedule: kind paused, no attempt is counted", slog.String("kind", f.Kind),
				slog.Any("error", f.away))
			return
		}
		p.s.log.Warn("schedule: kind paused, no attempt is counted", slog.String("kind", f.Kind),
			slog.Int("lines", lines), slog.Any("error", f.away))
	})
}

// short reports whether fewer of the queued items are due than can run at once.
func (p *planner) short() bool {
	server, _ := p.clock.at(time.Now())
	return p.queue.short(server)
}
