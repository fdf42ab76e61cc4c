package consumer

import (
	"cmp"
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
	alone      bool         // no other job begins beside it
	handled    bool         // a row was handled
	recovered  bool         // of a partition that was paused, because something was away
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
	for room := g.workers(); ; {
		if g.paused || g.running >= room {
			return g.options.poll
		}
		j, wait := g.choose(room - g.running)
		if j == nil {
			return wait
		}
		for _, p := range j.partitions {
			p.busy = true
			s := j.standing(p)
			switch next := time.Now().Add(g.times.outage); {
			case s.outage == 0 || s.free:
			case j.retry != nil:
				g.retryAt = next
			default:
				g.outageAt = next
			}
			s.notBefore, s.free = time.Time{}, false
		}
		g.running++
		if g.retried = j.retry != nil; g.retried && !j.retry.skip {
			g.retrying++
		}
		suspect := j.retry != nil && j.retry.suspect
		if suspect {
			g.suspects++
			g.alone = j.alone
		}
		go func() {
			g.work(j)
			g.events <- func() { g.end(j, suspect) }
		}()
	}
}

// end receives the end of a job.
func (g *group) end(j *job, suspect bool) {
	g.running--
	g.ended++
	if suspect {
		g.suspects--
		g.alone = false
	}
	for _, p := range j.partitions {
		p.retried = j.retry != nil
		if j.retry != nil {
			if !j.retry.skip {
				g.retrying--
			}
			p.tries++
			p.retries = slices.DeleteFunc(p.retries, func(b blockedRow) bool { return b.id == j.retry.id })
		}
		g.free(p)
	}
	if j.recovered {
		free := time.Since(g.freed) > freeAgain
		if free {
			g.freed = time.Now()
		}
		for _, p := range g.partitions {
			for _, s := range []*standing{&p.rows, &p.blocked} {
				if !p.busy && s.outage > 0 {
					s.notBefore, s.free = time.Time{}, s.free || free
				}
			}
		}
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

// choose chooses the next job, if there is room for so many. Otherwise it returns how long to wait.
// Blocked rows have half of the workers at most, and take turns with other rows: they may fail, or
// take long, again and again.
func (g *group) choose(room int) (*job, time.Duration) {
	now := time.Now()
	if g.alone {
		if left := g.heldTill.Sub(now); left > 0 {
			return nil, min(g.options.poll, left)
		}
		g.alone = false
	}
	due, retry, suspect, wait := g.ready(now, g.retrying < max(1, (g.running+room)/2))
	if retry != nil && (retry.retry.skip || len(due) == 0 || !g.retried) {
		g.nextRetry = slices.Index(g.partitions, retry.partitions[0]) + 1
		return retry, 0
	}
	if suspect != nil {
		if g.heldTill.IsZero() {
			g.heldTill = now.Add(g.times.suspectHold)
		}
		left := g.heldTill.Sub(now)
		if suspect.alone = left > 0; suspect.alone && g.running > 0 {
			return nil, min(wait, left)
		}
		return suspect, 0
	}
	if len(due) == 0 {
		return nil, wait
	}
	return g.share(due, room), 0
}

// ready returns the partitions with rows that may be handled now, the next job of a blocked row, that
// of a crash suspect, and how long to wait if there is none. If room is false, the first is a skip.
func (g *group) ready(now time.Time, room bool) (due []*partition, retry, suspect *job, wait time.Duration) {
	wait = g.options.poll
	mayBegin := func(s *standing, at time.Time) bool {
		if s.outage == 0 || s.free || at.Before(s.notBefore) {
			at = s.notBefore
		}
		if left := at.Sub(now); left > 0 {
			wait = min(wait, left)
			return false
		}
		return true
	}
	nearest := len(g.partitions) // how far the partition of retry is from nextRetry
	for i := range g.partitions {
		at := (g.next + i) % len(g.partitions)
		p := g.partitions[at]
		if p.busy || !p.known || p.lost || p.asked.Load() {
			continue
		}
		rows := p.due && mayBegin(&p.rows, g.outageAt)
		if rows {
			due = append(due, p)
		}
		if len(p.retries) == 0 || rows && p.retried {
			continue
		}
		if first := p.retries[0]; !(first.skip && first.asked) && !mayBegin(&p.blocked, g.retryAt) {
			continue
		}
		pick := 0
		if p.retries[0].suspect {
			if g.suspects == 0 && suspect == nil {
				suspect = retryOf(p, 0)
			}
			pick = slices.IndexFunc(p.retries, func(b blockedRow) bool { return !b.suspect })
			if g.suspects == 0 || pick < 0 {
				continue
			}
		}
		if !room && !p.retries[pick].skip {
			continue
		}
		far := (at + len(g.partitions) - g.nextRetry%len(g.partitions)) % len(g.partitions)
		if p.retries[pick].asked {
			far -= len(g.partitions) // somebody waits for it
		}
		if far < nearest {
			retry, nearest = retryOf(p, pick), far
		}
	}
	return due, retry, suspect, wait
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
	g.next = slices.Index(g.partitions, due[n-1]) + 1
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

// retryOf returns the job of one of a partition's blocked rows that are due.
func retryOf(p *partition, at int) *job {
	retry := p.retries[at]
	return &job{partitions: []*partition{p}, retry: &retry}
}
