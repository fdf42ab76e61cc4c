package consumer

import (
	"cmp"
	"slices"
	"time"
)

const (
	worthSharing = 2 * time.Millisecond   // rows that take the handler less in all are one job: a transaction costs more
	shortBatch   = 50 * time.Millisecond  // rows that take the handler less in all are one batch, even if they are more than usual
	outagePause  = 100 * time.Millisecond // between two attempts of a process while something is away
)

// A job is work for one transaction, or for several after a failure.
type job struct {
	partitions []*partition // in the order of numbers
	retry      *blockedRow  // in the first partition; nil: rows that are not blocked
	alone      bool         // no other job begins beside it
	handled    bool         // a row was handled
	recovered  bool         // of a partition that was paused, because something was away
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
			if p.notBefore = (time.Time{}); p.outage > 0 {
				g.outageAt = time.Now().Add(outagePause)
			}
		}
		g.running++
		if g.retried = j.retry != nil; g.retried {
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
			g.retrying--
			p.last, p.tries = j.retry.id, p.tries+1
			p.retries = slices.DeleteFunc(p.retries, func(b blockedRow) bool { return b.id == j.retry.id })
		}
		g.free(p)
	}
	if j.recovered {
		for _, p := range g.partitions {
			if !p.busy && p.outage > 0 {
				p.notBefore = time.Time{}
			}
		}
	}
	waiting := slices.ContainsFunc(g.partitions, func(p *partition) bool { return !p.busy && p.due && p.notBefore.IsZero() })
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
	now, wait := time.Now(), g.options.poll
	if g.alone {
		if left := g.heldTill.Sub(now); left > 0 {
			return nil, min(wait, left)
		}
		g.alone = false
	}
	var due []*partition
	var suspect *job
	retry, ahead := -1, len(g.partitions) // the index of the next partition with a blocked row, and how far it is from nextRetry
	for i := range g.partitions {
		at := (g.next + i) % len(g.partitions)
		switch p := g.partitions[at]; {
		case p.busy || !p.known || p.lost || p.asked.Load() || !p.due && len(p.retries) == 0:
		case now.Before(p.notBefore):
			wait = min(wait, p.notBefore.Sub(now))
		case p.outage > 0 && now.Before(g.outageAt):
			wait = min(wait, g.outageAt.Sub(now))
		default:
			if p.due {
				due = append(due, p)
			}
			switch far := (at + len(g.partitions) - g.nextRetry%len(g.partitions)) % len(g.partitions); {
			case len(p.retries) == 0 || p.due && p.retried:
			case firstSafe(p.retries) < 0:
				if suspect == nil {
					suspect = retryOf(p, 0)
				}
			case far < ahead:
				retry, ahead = at, far
			}
		}
	}
	if retry >= 0 && g.retrying < max(1, (g.running+room)/2) && (len(due) == 0 || !g.retried) {
		p := g.partitions[retry]
		g.nextRetry = retry + 1
		return retryOf(p, firstSafe(p.retries)), 0
	}
	if suspect == nil && g.suspects == 0 {
		g.heldTill = time.Time{}
	}
	if suspect != nil {
		if g.heldTill.IsZero() {
			g.heldTill = now.Add(g.times.suspectHold)
		}
		left := g.heldTill.Sub(now)
		switch suspect.alone = left > 0; {
		case left > 0 && g.running > 0:
			return nil, min(wait, left)
		case g.suspects == 0:
			return suspect, 0
		}
	}
	if len(due) == 0 {
		return nil, wait
	}
	j, rows := new(job), 0
	share, most, pace := (len(due)+room-1)/room, g.batch(), g.counts.pace.Load()
	for len(j.partitions) < len(due) && rows < most && (len(j.partitions) < share || pace > 0 && int64(rows)*pace < int64(worthSharing)) {
		p := due[len(j.partitions)]
		if alone := p.watched || p.outage > 0 || p.troubles > 0; alone {
			if len(j.partitions) == 0 {
				j.partitions = due[:1]
			}
			break
		}
		j.partitions, rows = append(j.partitions, p), rows+p.expect
	}
	j.partitions = slices.Clone(j.partitions)
	g.next = slices.Index(g.partitions, j.partitions[len(j.partitions)-1]) + 1 // they take turns
	slices.SortFunc(j.partitions, func(a, b *partition) int { return cmp.Compare(a.Number, b.Number) })
	return j, 0
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

// firstSafe returns the index of the first blocked row that is no suspect; -1: there is none.
func firstSafe(retries []blockedRow) int {
	return slices.IndexFunc(retries, func(b blockedRow) bool { return !b.suspect })
}

// retryOf returns the job of one of a partition's blocked rows that are due.
func retryOf(p *partition, at int) *job {
	retry := p.retries[at]
	return &job{partitions: []*partition{p}, retry: &retry}
}
