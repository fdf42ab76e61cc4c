package consumer

import (
	"cmp"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/worker"
)

const (
	worthSharing = 2 * time.Millisecond  // rows that take the handler less in all are one job: a transaction costs more
	shortBatch   = 50 * time.Millisecond // rows that take the handler less in all are one batch, even if they are more than usual
	freeAgain    = 10 * time.Second      // a partition that succeeds now and then does not let all others try each time
)

// A job is work for one transaction, or for several after a failure.
type job struct {
	partitions []*partition // in the order of numbers
	retry      *blockedRow  // in the first partition; nil: rows that are not blocked
	handled    bool         // a row was handled
	recovered  bool         // of a partition that was paused, because something was away

	lane    worker.Lane
	began   time.Time
	attempt *time.Timer // see watch
	late    bool        // its slot was given to others
	over    bool
	ill     map[*partition]worker.Reason // partitions that are slow from now on
	healed  []*partition                 // those that are not
}

// fell notes that a partition is slow from now on.
func (j *job) fell(p *partition, why worker.Reason) {
	if j.ill == nil {
		j.ill = make(map[*partition]worker.Reason)
	}
	j.ill[p] = why
}

// Turns are those of partitions with one kind of rows: blocked rows, or the others.
type turns struct {
	next     int       // the index of the partition to begin with
	outageAt time.Time // before then no partition is tried whose pause is over
}

// wait returns how long a partition's rows must wait.
func (t *turns) wait(s *standing, now time.Time) time.Duration {
	at := s.notBefore
	if s.outage > 0 && !s.free && at.Before(t.outageAt) {
		at = t.outageAt
	}
	return at.Sub(now)
}

// standing returns when the job's kind of rows of a partition may be handled.
func (j *job) standing(p *partition) *standing {
	if j.retry != nil {
		return &p.blocked
	}
	return &p.rows
}

// begin begins jobs while there is room, and returns how long to wait for the next.
func (g *group) begin() time.Duration {
	for size := g.places.Most(); ; {
		if g.paused || g.slots.Busy() >= size {
			return g.options.poll
		}
		j, wait := g.choose(size)
		if j == nil {
			return wait
		}
		t := &g.rows
		if g.retried = j.retry != nil; g.retried {
			t = &g.blocked
		}
		for _, p := range j.partitions {
			p.busy = true
			s := j.standing(p)
			if s.outage > 0 && !s.free {
				t.outageAt = time.Now().Add(g.times.outage)
			}
			s.notBefore, s.free = time.Time{}, false
		}
		j.began = time.Now()
		for _, p := range j.partitions {
			p.job = j
		}
		g.slots.Begin(j.lane)
		if j.retry != nil && j.retry.suspect {
			g.suspects++
		}
		go g.run(j)
	}
}

// run does a job, in its goroutine. A hook or tracer of the application's pool may panic in it.
func (g *group) run(j *job) {
	err := errJobEnded
	defer func() {
		if err != nil {
			g.trouble(j, j.partitions, outcome{err: err})
		}
		g.events <- func() { g.end(j) }
	}()
	defer g.watch(j)()
	defer handlers.Caught(&err)
	g.work(j)
	err = nil
}

var errJobEnded = errors.New("the code of the application ended the goroutine of a job, for example in a hook of the pool")

// watch logs a job of which an attempt takes longer than the handler and all its statements may,
// because a tracer or a hook of the pool hangs, and lets others have its slot. Each attempt begins
// the time anew.
func (g *group) watch(j *job) (ended func()) {
	limit := g.attemptLimit()
	j.attempt = time.AfterFunc(limit, func() {
		g.log.Warn("consumer: batch still at work", slog.Int("partition", j.partitions[0].Number), slog.Duration("for", limit))
		g.post(func() { g.giveSlotBack(j) })
	})
	return func() { j.attempt.Stop() }
}

// attemptLimit is the most that an attempt takes: the handler and the commit have the timeout each,
// and about eight other waits have a limit of their own.
func (g *group) attemptLimit() time.Duration {
	return 2*g.options.timeout + 8*g.times.answer + g.times.overrun
}

// post passes f to the goroutine of the group, unless that has ended.
func (g *group) post(f func()) {
	select {
	case g.events <- f:
	case <-g.stopped:
	}
}

// giveSlotBack lets other work have the slot of a job in which code of the application goes on
// after its context has ended. The job keeps its partitions, whose rows must stay in order.
func (g *group) giveSlotBack(j *job) {
	if j.over || j.late {
		return
	}
	j.late = true
	g.overdue(1)
	g.endSlot(j)
	for _, p := range j.partitions {
		g.slots.Fail(p.Number, worker.TimedOut, time.Now())
	}
	g.countSlow()
}

func (g *group) endSlot(j *job) {
	now := time.Now()
	g.slots.End(j.lane, g.places.Most(), now.Sub(j.began), now)
}

// overdue counts jobs whose slots were given to others.
func (g *group) overdue(more int64) {
	g.late += more
	g.counts.overdue.Store(g.late)
}

// idle reports whether no job is at work.
func (g *group) idle() bool { return g.slots.Busy() == 0 && g.late == 0 }

// end receives the end of a job.
func (g *group) end(j *job) {
	now := time.Now()
	j.over = true
	if j.late {
		g.overdue(-1)
	} else {
		g.endSlot(j)
	}
	if j.retry != nil && j.retry.suspect {
		g.suspects--
	}
	g.ended++
	for _, p := range j.healed {
		g.slots.Heal(p.Number)
	}
	for p, why := range j.ill {
		g.slots.Fail(p.Number, why, now)
	}
	g.countSlow()
	for _, p := range j.partitions {
		if p.retried = j.retry != nil; p.retried {
			p.retryEnded = g.ended
			p.retries = slices.DeleteFunc(p.retries, func(b blockedRow) bool { return b.id == j.retry.id })
		}
		g.free(p)
	}
	if j.recovered {
		g.endPauses()
	}
	waiting := slices.ContainsFunc(g.partitions, func(p *partition) bool { return !p.busy && p.due && p.rows.notBefore.IsZero() })
	if (j.handled || g.untilEmpty) && !waiting {
		g.polls.soon() // rows may have come meanwhile
	}
}

// countSlow counts the partitions that are slow, and logs once a minute how many there are.
func (g *group) countSlow() {
	var n [3]int
	for i, why := range worker.Reasons {
		n[i] = g.slots.Waiting(why)
		g.counts.slow[i].Store(int64(n[i]))
	}
	if n == [3]int{} || time.Since(g.slowSaid) < time.Minute {
		return
	}
	g.slowSaid = time.Now()
	g.log.Warn("consumer: partitions slowed down, others continue", slog.Int("by_timeout", n[worker.TimedOut]), slog.Int("by_lock", n[worker.Locked]),
		slog.Int("by_connection", n[worker.Hung]))
}

// free notes that no job works on a partition.
func (g *group) free(p *partition) {
	p.busy = false
	if p.gone {
		close(p.idle)
	}
}

// endPauses lets all paused partitions be tried, because one has succeeded: at once, or one after
// the other if that was done lately.
func (g *group) endPauses() {
	lately := time.Since(g.freed) < freeAgain
	if !lately {
		g.freed = time.Now()
	}
	for _, p := range g.partitions {
		for _, s := range []*standing{&p.rows, &p.blocked} {
			if !p.busy && s.outage > 0 {
				s.notBefore, s.free = time.Time{}, s.free || !lately
			}
		}
	}
}

// choose chooses the next job for one of so many slots. If there is none, it returns how long to
// wait. Blocked rows and slow partitions have half of the slots at most: they may fail, or take
// long, again and again. Blocked rows take turns with other rows. Crash suspects begin alone, and
// for a while nothing begins beside them.
func (g *group) choose(size int) (*job, time.Duration) {
	now := time.Now()
	if held := g.heldTill.Sub(now); g.suspects > 0 && held > 0 {
		return nil, min(g.options.poll, held)
	}
	due, slow, wait := g.dueRows(now)
	retry, suspect, waitOfBlocked := g.dueBlocked(now, g.slots.Room(size))
	wait = min(wait, waitOfBlocked)
	switch {
	case retry != nil && (retry.retry.skip || len(due)+len(slow) == 0 || !g.retried):
		g.blocked.next = slices.Index(g.partitions, retry.partitions[0]) + 1
		return retry, 0
	case suspect != nil:
		if g.heldTill.IsZero() {
			g.heldTill = now.Add(g.times.suspectHold)
		}
		if held := g.heldTill.Sub(now); held > 0 && !g.idle() {
			return nil, min(wait, held)
		}
		return suspect, 0
	}
	switch g.slots.Next(size, len(due) > 0, len(slow) > 0, now) {
	case worker.Slow:
		first := slices.MinFunc(slow, func(a, b *partition) int { return g.slots.Compare(a.Number, b.Number) })
		return &job{partitions: []*partition{first}, lane: worker.Slow}, 0
	case worker.Healthy:
		j := g.share(due, size-g.slots.Busy())
		j.lane = worker.Healthy
		return j, 0
	}
	return nil, wait
}

// inTurn returns the partitions that a job may begin with, from that at an index on.
func (g *group) inTurn(next int) iter.Seq[*partition] {
	return func(yield func(*partition) bool) {
		for i := range g.partitions {
			p := g.partitions[(next+i)%len(g.partitions)]
			if free := !p.busy && p.known && !p.lost && !p.halting.Load(); free && !yield(p) {
				return
			}
		}
	}
}

// dueRows returns the partitions with rows that may be handled now, those of them that are slow,
// and how long others wait.
func (g *group) dueRows(now time.Time) (due, slow []*partition, wait time.Duration) {
	wait = g.options.poll
	for p := range g.inTurn(g.rows.next) {
		if !p.due {
			continue
		}
		left := g.rows.wait(&p.rows, now)
		next, isSlow := g.slots.Slow(p.Number)
		if isSlow {
			left = max(left, next.Sub(now))
		}
		switch {
		case left > 0:
			wait = min(wait, left)
		case isSlow:
			slow = append(slow, p)
		default:
			due = append(due, p)
		}
	}
	return due, slow, wait
}

// dueBlocked returns the next job of a blocked row, that of a crash suspect, and how long others
// wait. If room is false, the first is a skip.
func (g *group) dueBlocked(now time.Time, room bool) (retry, suspect *job, wait time.Duration) {
	wait = g.options.poll
	for p := range g.inTurn(g.blocked.next) {
		if len(p.retries) == 0 || p.retried && p.due && g.rows.wait(&p.rows, now) <= 0 {
			continue
		}
		b := p.retries[0]
		if left := g.blocked.wait(&p.blocked, now); left > 0 && !(b.skip && b.asked) {
			wait = min(wait, left)
			continue
		}
		if b.suspect && g.suspects == 0 {
			if suspect == nil {
				suspect = &job{partitions: []*partition{p}, retry: &b, lane: worker.Slow}
			}
			continue
		}
		if b.suspect { // not beside another
			at := slices.IndexFunc(p.retries, func(b blockedRow) bool { return !b.suspect })
			if at < 0 {
				continue
			}
			b = p.retries[at]
		}
		if (room || b.skip) && (retry == nil || b.asked && !retry.retry.asked) { // somebody waits for it
			retry = &job{partitions: []*partition{p}, retry: &b, lane: worker.Slow}
			if b.skip {
				retry.lane = worker.Healthy // it calls no handler
			}
		}
	}
	return retry, suspect, wait
}

// share returns the job of a worker's share of partitions that have rows. They take turns.
func (g *group) share(due []*partition, room int) *job {
	share, most, pace := (len(due)+room-1)/room, g.batch(), g.counts.pace.Load()
	n, rows := 1, due[0].expect
	// One whose rows might leave no room for those of the others does not join: they would wait
	// for ever.
	for n < len(due) && !due[0].alone() && !due[n].alone() && rows+due[n].expect <= most &&
		(n < share || pace > 0 && int64(rows)*pace < int64(worthSharing)) {
		n, rows = n+1, rows+due[n].expect
	}
	g.rows.next = slices.Index(g.partitions, due[n-1]) + 1
	slices.SortFunc(due[:n], func(a, b *partition) int { return cmp.Compare(a.Number, b.Number) })
	return &job{partitions: due[:n]}
}

// alone reports whether a batch has rows of no other partition.
func (p *partition) alone() bool {
	return p.watched || p.search || p.singly > 0 || p.rows.outage > 0 || p.rows.troubles > 0
}

// batch returns how many rows the next batch may have: more if they take the handler a short time,
// because a transaction costs as much as many rows, and fewer if they are large, because those
// beyond the limit of bytes would be read for nothing. Of rows that are not known yet, a few.
func (g *group) batch() int {
	rows, fitting := int64(g.options.batch), int64(10)
	if pace := g.counts.pace.Load(); pace > 0 {
		rows = max(rows, min(int64(g.options.mostRows), int64(shortBatch)/pace))
	}
	if size := g.counts.size.Load(); size > 0 {
		fitting = 1 + (g.options.bytes-1)/size
	}
	return int(min(rows, fitting))
}
