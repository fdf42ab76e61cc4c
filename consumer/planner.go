package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/listen"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// drainMargin is by how much the default of WithDrainTimeout is longer than the timeout of a batch.
const drainMargin = 5 * time.Second

// timings are the same in all processes, except in tests.
type timings struct {
	sweep       time.Duration // between two looks for blocked rows that are gone or changed
	suspectHold time.Duration // the most that other work waits for crash suspects
	pauses      BackoffPolicy // while something that handlers need is away
	outage      time.Duration // between two attempts of a process while something is away
	quiet       time.Duration // for this long after a notification, the process polls each time
	leave       time.Duration // for leaving the lease after the last batch
	record      time.Duration // the most that recording the ends of ownerships takes
	answer      time.Duration // the most that a poll, or the begin of ownerships, takes
	look        time.Duration // between two looks whether the transaction of a call still exists
	overrun     time.Duration // after the end of its context, it is logged that code of the application continues
	goOn        time.Duration // for this long, a job may go on with the next rows of its partition
	rows        int           // the most that a poll looks at
}

var defaultTimings = timings{
	sweep:       time.Minute,
	suspectHold: 5 * time.Second,
	pauses:      worker.OutagePauses,
	outage:      100 * time.Millisecond,
	quiet:       10 * time.Second,
	leave:       2 * time.Second,
	record:      2 * time.Second,
	answer:      answerTime,
	look:        5 * time.Second,
	overrun:     drainMargin,
	goOn:        10 * time.Millisecond,
	rows:        rowsOfPoll,
}

// A planner knows all parts of a Run, and passes the results of each part to the others. The parts
// do not know each other: the poller decides when to ask what there is to do, the queue decides
// what begins next, and the executor does it, in one goroutine for each job.
type planner struct {
	*Consumer
	lease      *pgleases.Lease
	share      *worker.Share // of the pool
	untilEmpty bool
	stop       context.CancelCauseFunc // ends the Run
	life       context.Context
	db         *db
	exec       executor
	ends       ends
	announces  func() bool // notifications announce rows

	events  chan func() // are called by the goroutine of loop
	stopped <-chan struct{}

	// Only the goroutine of loop uses the following fields.
	queue      queue
	poller     poller
	beginning  bool // the begin of ownerships is being recorded
	beginAfter time.Time
	// that polls fail, that new partitions cannot begin, that partitions are slow, and that an operator has
	// paused the consumer
	failing, fresh, slow, pausing logqueue.Condition
}

// newPlanner returns the planner of a Run, which ends with life.
func newPlanner(
	life context.Context, c *Consumer, lease *pgleases.Lease,
	share *worker.Share, untilEmpty bool, stop context.CancelCauseFunc,
) *planner {
	p := &planner{
		Consumer: c, lease: lease, share: share, untilEmpty: untilEmpty, stop: stop, life: life,
		events: make(chan func()), ends: newEnds(), db: c.newDB(life, stop),
		queue: queue{times: &c.times, poll: c.options.poll, untilEmpty: untilEmpty, ascending: c.options.ascending},
		poller: poller{
			pace: pace{every: c.options.poll, quiet: c.times.quiet}, rows: c.times.rows,
			conn: listen.New(c.pool, c.options.schema, leaseOf+c.name),
		},
	}
	p.announces = func() bool { return !untilEmpty && p.announced && p.poller.conn.Direct() }
	p.exec = executor{
		db: p.db, handler: c.handler, options: &c.options, times: &c.times,
		counts: &c.counts, log: c.log, share: share, batch: c.batch,
		outage: outage{log: c.log}, trusted: func() bool { return !lease.TrustDeadline().IsZero() },
		overdue: func(j *job, free []int) { p.post(func() { p.giveSlotBack(j, free) }) },
	}
	return p
}

// start starts the goroutines. They go on after the end of the Run's context until the returned
// function is called.
func (p *planner) start() (end func()) {
	stopped := make(chan struct{})
	p.stopped = stopped
	var all sync.WaitGroup
	all.Go(func() { p.loop(stopped) })
	all.Go(func() { p.ends.record(p.db, p.log, stopped) })
	return func() { close(stopped); all.Wait() }
}

// serve is the callback of the lease for a partition. It returns when its context has ended and no
// job works on the partition.
func (p *planner) serve(ctx context.Context, owned pgleases.Partition) error {
	o := &ownership{Partition: owned, idle: make(chan struct{})}
	of := newPartition(o)
	p.events <- func() { p.queue.add(of) }
	<-ctx.Done()
	o.halting.Store(true)
	p.events <- func() { p.queue.leave(of) }
	<-o.idle
	p.exec.outage.left(owned.Number)
	p.ends.note(o)
	return nil
}

// post passes f to the goroutine of loop, unless that has ended.
func (p *planner) post(f func()) {
	select {
	case p.events <- f:
	case <-p.stopped:
	}
}

func (p *planner) loop(stopped <-chan struct{}) {
	defer func() { p.poller.conn.Close() }()
	done := p.life.Done()
	for {
		var timer <-chan time.Time
		p.queue.removeGone()
		p.countSlow()
		p.countOldest()
		if p.life.Err() == nil {
			p.beginNew()
			p.poll()
			timer = time.After(p.begin())
		}
		select {
		case <-timer:
		case f := <-p.events:
			p.handle(f)
		case <-p.poller.conn.Heard:
			p.poller.notified()
		case <-done:
			done = nil
		case <-stopped:
			for p.poller.polling || p.beginning {
				(<-p.events)()
			}
			return
		}
	}
}

// handle calls f, and what else there is: many partitions come and go at once.
func (p *planner) handle(f func()) {
	for {
		f()
		select {
		case f = <-p.events:
		default:
			return
		}
	}
}

// begin begins jobs while there is room, and returns how long to wait.
func (p *planner) begin() time.Duration {
	for {
		now := time.Now()
		j, wait := p.queue.next(now, room{p.share.Most(), p.batch(), time.Duration(p.counts.pace.Load())})
		if j == nil {
			if !p.poller.polling {
				p.poller.conn.Listen()
				wait = min(wait, p.poller.at.Sub(now))
			}
			return wait
		}
		e := p.exec.execution(j)
		handlers.Go(func() {
			defer func() { p.events <- func() { p.end(j, e.result) } }()
			e.run()
		})
	}
}

// end receives the end of a job.
func (p *planner) end(j *job, r result) {
	if p.queue.end(j, r, time.Now(), p.share.Most()) {
		p.poller.soon()
	}
	p.counts.overdue.Store(int64(p.queue.overdue))
}

// giveSlotBack lets others have the slot of a job in which code of the application goes on, and the
// partitions that are free.
func (p *planner) giveSlotBack(j *job, free []int) {
	p.queue.giveSlotBack(j, free, time.Now(), p.share.Most())
	p.counts.overdue.Store(int64(p.queue.overdue))
}

// countSlow counts the partitions that are slow, and logs once a minute how many there are, and how
// many are doubted and wait, and when there are none any more.
func (p *planner) countSlow() {
	slow := &p.counts.slow
	some, now := slow.Set(p.queue.slots.Waiting), time.Now()
	if !some && !p.queue.slots.AnyDoubts() {
		lasted, log := p.slow.End(now)
		if log {
			p.log.Info("consumer: partitions no longer slowed down", slog.Duration("for", lasted))
		}
		return
	}
	if !some && p.queue.doubtedDue(now) == 0 || !p.slow.Last(time.Minute, now) {
		return
	}
	p.log.Warn("consumer: partitions slowed down, others continue", slog.Int64("by_timeout", slow.Of(worker.TimedOut)),
		slog.Int64("by_lock", slow.Of(worker.Locked)), slog.Int64("by_connection", slow.Of(worker.Hung)),
		slog.Int("doubted", p.queue.doubtedDue(now)))
}

// countOldest notes which batch is the oldest.
func (p *planner) countOldest() {
	if len(p.queue.under) == 0 {
		p.counts.oldest.Clear()
		return
	}
	p.counts.oldest.Set(p.queue.under[0].began)
}

// beginNew records the begin of new ownerships, and learns what was before them. It goes on when
// the Run ends: otherwise the end might be recorded before the begin. The partitions are busy
// meanwhile.
func (p *planner) beginNew() {
	if p.beginning || time.Now().Before(p.beginAfter) {
		return
	}
	fresh := p.queue.fresh()
	if len(fresh) == 0 {
		return
	}
	p.beginning = true
	parts := (&job{of: fresh}).parts() // copies, because what hangs may write to them later
	go func() {
		limit := 3 * p.times.answer // its statements have that time each
		err := handlers.InTime(context.WithoutCancel(p.life), limit, p.times.overrun, func(ctx context.Context) error {
			err := p.exec.begin(parts)
			if store.Code(err) == "42704" { // the tables were restored or made anew, or an operator has deleted it
				return p.registerAgain(ctx, p.db.line, err)
			}
			return err
		})
		p.events <- func() { p.begun(fresh, parts, err) }
	}()
}

// begun receives the end of beginNew.
func (p *planner) begun(fresh []*partition, parts []*part, err error) {
	p.beginning = false
	for i, of := range fresh {
		after := state{}
		if err == nil {
			after = parts[i].state
		}
		p.queue.began(of, after, err == nil)
	}
	if p.life.Err() != nil {
		p.poller.soon()
		return
	}
	p.fresh.Tried(err, func() {
		p.log.Warn("consumer: cannot begin with new partitions, retried each second",
			slog.Int("partitions", len(fresh)), slog.Any("error", store.Advised(err)))
	}, func(lasted time.Duration) {
		p.log.Info("consumer: began with new partitions",
			slog.Int("partitions", len(fresh)), slog.Duration("for", lasted))
	})
	if err != nil {
		p.beginAfter = time.Now().Add(time.Second)
		return
	}
	p.poller.soon()
}

// poll sends a poll if it is time; answer receives its answer.
func (p *planner) poll() {
	now := time.Now()
	if !p.poller.isDue(now) {
		return
	}
	all := 0
	if p.untilEmpty {
		all = p.source.Partitions
	}
	of, idle := p.queue.asked()
	q, send := p.poller.question(now, of, idle, p.queue.ended, all)
	if !send {
		p.counts.polled.Clear() // it owns no partition
		return
	}
	if p.counts.polled.Since() == 0 {
		p.counts.polled.Set(now)
	}
	conn := p.poller.conn
	go func() {
		ctx, stop := p.db.line.Until(p.life)
		defer stop()
		began := time.Now()
		err := handlers.InTime(ctx, p.times.answer, p.times.overrun, func(ctx context.Context) error {
			return p.db.ask(ctx, conn, q, p.source.Partitions)
		})
		p.events <- func() {
			if errors.Is(err, handlers.ErrHangs) { // it keeps its connection, and may still write its answer
				p.poller.conn = conn.Another()
				q = &poll{ended: q.ended, took: time.Since(began)}
			}
			p.answer(q, err)
		}
	}()
}

// answer receives the answer of a poll.
func (p *planner) answer(q *poll, err error) {
	p.poller.polling = false
	idle := p.queue.idle() && q.ended == p.queue.ended // no job was at work meanwhile
	if err == nil || p.life.Err() == nil {             // otherwise the end of Run broke it off
		p.counts.poll(q.took, err)
	}
	if final := worker.EndsRun(err); final != nil {
		p.stop(final)
	}
	if p.life.Err() == nil {
		p.failing.Tried(err, func() {
			p.log.Warn("consumer: poll failed, retried each second", slog.Any("error", store.Advised(err)))
		}, func(lasted time.Duration) {
			p.log.Info("consumer: poll succeeded again", slog.Duration("after", lasted))
		})
	}
	if err != nil {
		p.poller.failed()
		return
	}
	p.poller.succeeded(q, p.announces(), idle)
	now := time.Now()
	p.poller.swept(q, now, p.times.sweep)
	for _, number := range p.queue.swept(q.changed) {
		p.exec.outage.left(number)
	}
	p.saidPaused(q.paused, now)
	p.queue.answered(q, now)
	switch {
	case !p.untilEmpty:
	case p.poller.table.empty(q, idle):
		p.endEmpty()
	case p.poller.table.unseen(q):
		p.poller.soon()
	}
}

// saidPaused logs that an operator has paused the consumer, or has resumed it.
func (p *planner) saidPaused(paused bool, now time.Time) {
	p.pausing.Set(paused, now, func() {
		p.log.Warn("consumer: paused by an operator")
	}, func(lasted time.Duration) {
		p.log.Info("consumer: resumed by an operator", slog.Duration("for", lasted))
	})
}

// endEmpty ends a RunUntilEmpty, because a poll has found nothing that can be done.
func (p *planner) endEmpty() {
	reason, err := p.db.why()
	switch {
	case err != nil: // the next poll asks again
	case reason != "":
		p.stop(fmt.Errorf("%w: %s", ErrBlocked, reason))
	default:
		p.stop(errEmpty)
	}
}

// why returns what is known about why rows are left, after the end.
func (p *planner) why() string {
	last := p.exec.outage.lastError()
	switch {
	case p.queue.paused:
		return ", and an operator has paused the consumer"
	case last != "":
		return ", last error: " + last
	}
	return ""
}

// shortBatch is how long a batch takes the handler at most if it has more rows than WithBatch says.
const shortBatch = 50 * time.Millisecond

// batch returns how many rows the next batch may have: more if they take the handler a short time,
// because a transaction costs as much as many rows, and fewer if they are large, because those
// beyond the limit of bytes would be read for nothing. Of rows that are not known yet, a few.
func (c *Consumer) batch() int {
	rows, fitting := int64(c.options.batch), int64(10)
	pace, size := c.counts.pace.Load(), c.counts.size.Load()
	if pace > 0 {
		rows = max(rows, min(int64(c.options.mostRows), int64(shortBatch)/pace))
	}
	if size > 0 {
		fitting = 1 + (c.options.bytes-1)/size
	}
	return int(min(rows, fitting))
}
