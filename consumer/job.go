package consumer

import (
	"cmp"
	"iter"
	"slices"
	"time"
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
	for room := g.places.Most(); ; {
		if g.paused || g.running >= room {
			return g.options.poll
		}
		j, wait := g.choose(room - g.running)
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
		g.count(j, 1)
		go func() {
			g.work(j)
			g.events <- func() { g.end(j) }
		}()
	}
}

// count counts a job that begins, or with -1 one that ends.
func (g *group) count(j *job, n int) {
	g.running += n
	if j.retry != nil && !j.retry.skip {
		g.retrying += n
	}
	if j.retry != nil && j.retry.suspect {
		g.suspects += n
	}
}

// end receives the end of a job.
func (g *group) end(j *job) {
	g.count(j, -1)
	g.ended++
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

// free notes that no job works on a partition.
func (g *group) free(p *partition) {
	p.busy = false
	if p.gone {
		close(p.idle)
	}
}

// endPauses lets all paused partitions be tried, because one has succeeded: at once, or one after the
// other if that was done lately.
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

// choose chooses the next job, if there is room for so many. Otherwise it returns how long to wait.
// Blocked rows have half of the workers at most, and take turns with other rows: they may fail, or
// take long, again and again. Crash suspects begin alone, and for a while nothing begins beside them.
func (g *group) choose(room int) (*job, time.Duration) {
	now := time.Now()
	if held := g.heldTill.Sub(now); g.suspects > 0 && held > 0 {
		return nil, min(g.options.poll, held)
	}
	due, wait := g.dueRows(now)
	retry, suspect, waitOfBlocked := g.dueBlocked(now, g.retrying < max(1, (g.running+room)/2))
	wait = min(wait, waitOfBlocked)
	switch {
	case retry != nil && (retry.retry.skip || len(due) == 0 || !g.retried):
		g.blocked.next = slices.Index(g.partitions, retry.partitions[0]) + 1
		return retry, 0
	case suspect != nil:
		if g.heldTill.IsZero() {
			g.heldTill = now.Add(g.times.suspectHold)
		}
		if held := g.heldTill.Sub(now); held > 0 && g.running > 0 {
			return nil, min(wait, held)
		}
		return suspect, 0
	case len(due) > 0:
		return g.share(due, room), 0
	}
	return nil, wait
}

// inTurn returns the partitions that a job may begin with.
func (g *group) inTurn(t *turns) iter.Seq[*partition] {
	return func(yield func(*partition) bool) {
		for i := range g.partitions {
			p := g.partitions[(t.next+i)%len(g.partitions)]
			if free := !p.busy && p.known && !p.lost && !p.halting.Load(); free && !yield(p) {
				return
			}
		}
	}
}

// dueRows returns the partitions with rows that may be handled now, and how long others wait.
func (g *group) dueRows(now time.Time) (due []*partition, wait time.Duration) {
	wait = g.options.poll
	for p := range g.inTurn(&g.rows) {
		switch left := g.rows.wait(&p.rows, now); {
		case !p.due:
		case left > 0:
			wait = min(wait, left)
		default:
			due = append(due, p)
		}
	}
	return due, wait
}

// dueBlocked returns the next job of a blocked row, that of a crash suspect, and how long others
// wait. If room is false, the first is a skip.
func (g *group) dueBlocked(now time.Time, room bool) (retry, suspect *job, wait time.Duration) {
	wait = g.options.poll
	for p := range g.inTurn(&g.blocked) {
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
				suspect = &job{partitions: []*partition{p}, retry: &b}
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
			retry = &job{partitions: []*partition{p}, retry: &b}
		}
	}
	return retry, suspect, wait
}

// share returns the job of a worker's share of partitions that have rows. They take turns.
func (g *group) share(due []*partition, room int) *job {
	share, most, pace := (len(due)+room-1)/room, g.batch(), g.counts.pace.Load()
	n, rows := 1, due[0].expect
	// One whose rows might leave no room for those of the others does not join: they would wait for ever.
	for n < len(due) && !due[0].alone() && !due[n].alone() && rows+due[n].expect <= most &&
		(n < share || pace > 0 && int64(rows)*pace < int64(worthSharing)) {
		n, rows = n+1, rows+due[n].expect
	}
	g.rows.next = slices.Index(g.partitions, due[n-1]) + 1
	slices.SortFunc(due[:n], func(a, b *partition) int { return cmp.Compare(a.Number, b.Number) })
	return &job{partitions: due[:n]}
}

// alone reports whether a batch has rows of no other partition.
func (p *partition) alone() bool { return p.watched || p.rows.outage > 0 || p.rows.troubles > 0 }

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
