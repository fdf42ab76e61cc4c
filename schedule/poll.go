package schedule

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	pollEvery    = time.Second
	pollAhead    = 2 * time.Second // so that a poll that takes long makes nothing late
	pollPause    = 10 * time.Millisecond
	pollLimit    = 5 * time.Second
	pollMost     = 100                    // rows of each partition
	pollLeast    = 10                     // of many partitions
	pollTotal    = 2000                   // or so, of all
	behind       = time.Second            // something may be committed so long after it was written, and is found at once
	farBehind    = 10 * time.Second       // or so long, and is found within about a second: to look back farther costs more
	sweepEvery   = time.Minute            // everything that is due, also what was committed later than that
	silenceAfter = 200 * time.Millisecond // after a notification no other is sent: see schedule_notify
)

// A poll is what is asked about what is due soon, and the answer.
type poll struct {
	partitions, fresh []int32
	of                []*ownership // which are fresh until it is answered
	more              bool         // others are fresh, too
	since             time.Time
	sweep             bool // everything, however long it has been due
	ahead             time.Duration
	left              leftOut
	atMost            int

	sent, answered time.Time
	clock          time.Time     // of the database, when it began
	took           time.Duration // the database
	due            []item
	err            error
}

// A poller decides when to ask what is due soon, and what to ask: once a second, and at once when
// something was enqueued, or may be due that the last answer had no room for. One goroutine uses
// it.
type poller struct {
	times *timings
	conn  *listener // of a poll while one is under way

	polled map[*ownership]bool // partitions, of which a poll was answered

	polling  bool      // a poll is under way
	next     time.Time // when the next is sent
	answered time.Time // when the last was
	again    time.Time // what was enqueued without a notification, because another was notified, is found then
	news     bool      // something was enqueued, or may have been
	more     bool      // there may be more that is due and was not found: it polls when there is room for it

	crowded bool                // there was no room for all in the last answer
	passed  map[string]struct{} // keys that the last poll left out, and have more that is due

	low    time.Time // nothing that was due before is left
	behind time.Time // when it last asked far behind that, for what was committed late
	swept  time.Time // when it last asked for everything

	most  int       // how many fresh partitions the next poll asks for: after one that failed none, and then one after the other
	plain time.Time // until then nothing is left out, because a poll that did so failed
}

func newPoller(times *timings, conn *listener) poller {
	return poller{times: times, conn: conn, most: math.MaxInt, next: time.Now()}
}

// soon makes it poll at once, because something was enqueued, or may have been.
func (p *poller) soon() {
	p.news = true
	p.next = earlier(p.next, p.answered.Add(p.times.pollPause))
}

// heard is soon after a notification, behind which others are silent for a while.
func (p *poller) heard() {
	p.again = time.Now().Add(p.times.silence)
	p.soon()
}

// isDue reports whether a poll is to be sent.
func (p *poller) isDue(now time.Time) bool { return !p.polling && !now.Before(p.next) }

// leavesOut reports whether the next poll is to leave out what has to wait anyway: it may be
// crowded by that, and what is behind is to be found too.
func (p *poller) leavesOut(now time.Time) bool {
	return p.crowded && !p.sweeps(now) && !now.Before(p.plain)
}

func (p *poller) sweeps(now time.Time) bool { return now.Sub(p.swept) >= p.times.sweep }

// question returns the next poll, of these partitions; nil: there are none.
func (p *poller) question(now time.Time, owned []*ownership, left leftOut, mostRunning int) *poll {
	p.next = now.Add(p.times.poll)
	q := &poll{since: p.low.Add(-time.Microsecond), sweep: p.sweeps(now), ahead: pollAhead, left: left}
	switch {
	case q.sweep:
		q.since = time.Time{}
	case now.Sub(p.behind) >= p.times.poll:
		q.since, p.behind, p.news = q.since.Add(-farBehind), now, false
	case p.news: // else it is only for more of what there was
		q.since, p.news = q.since.Add(-behind), false
	}
	p.choose(q, owned)
	if len(q.partitions) == 0 {
		return nil
	}
	q.atMost = mostRunning + min(pollMost, max(pollLeast, pollTotal/len(q.partitions)))
	p.polling, p.more = true, false
	return q
}

// choose chooses the partitions of a poll, of those that are owned. They are in random order: a
// poll for one that is fresh may fail each time, and the others are to have their turn.
func (p *poller) choose(q *poll, owned []*ownership) {
	rand.Shuffle(len(owned), func(i, j int) { owned[i], owned[j] = owned[j], owned[i] })
	known := p.polled
	p.polled = make(map[*ownership]bool, len(owned))
	for _, o := range owned {
		p.polled[o] = known[o]
		if !known[o] && len(q.fresh) == p.most {
			q.more = true
			continue
		}
		q.partitions = append(q.partitions, int32(o.Number))
		if !known[o] {
			q.fresh, q.of = append(q.fresh, int32(o.Number)), append(q.of, o)
		}
	}
	p.most = max(1, p.most)
}

// took takes the answer of a poll, and reports whether it is one.
func (p *poller) took(q *poll) bool {
	asked := p.next.Before(p.answered.Add(p.times.poll)) // since it was sent
	p.polling, p.answered = false, time.Now()
	p.next = p.answered.Add(p.times.poll)
	if p.again.After(q.sent) {
		p.next, p.news = earlier(p.next, p.again), true
	}
	if asked {
		p.next = p.answered.Add(p.times.pollPause)
	}
	if q.err == nil {
		return true
	}
	if q.sweep {
		p.swept = q.sent // it may take too long each time, behind an old snapshot: the polls until the next do not
	}
	if !q.left.empty() {
		p.plain = time.Now().Add(p.times.sweep) // it passes over all of that, and may take too long: what is not behind it goes on
	}
	if len(q.fresh) > 0 {
		p.most = 0 // and so may this: the other partitions go on
	}
	return false
}

// accepted notes that an answer is acted on: the database's clock is trusted.
func (p *poller) accepted(q *poll) {
	for _, o := range q.of {
		p.polled[o] = true
	}
	if q.more {
		p.soon()
	} else {
		p.most = math.MaxInt
	}
	p.passed, p.crowded = q.left.keys, q.crowded() || !q.left.empty() // what was left out is a crowd still, until nothing of it is queued
	if q.left.empty() {
		if q.sweep {
			p.swept = q.sent
		}
		p.low = q.clock // what is more than was found is due after that
	}
}

// lower notes that something is due at an instant, and is not done.
func (p *poller) lower(t time.Time) { p.low = earlier(p.low, t) }

// ended notes the end of a run, of which something may be queued, or less than can run at once.
func (p *poller) ended(f finish, queued, short bool) {
	if _, ok := p.passed[f.Key]; ok && !queued || p.crowded && short {
		p.more = true
	}
	p.lower(f.from) // if it catches up it is due before it was, and a poll may find it before it begins
}

// idle returns how long until the next poll, and listens until then. While a poll is under way it
// returns wait.
func (p *poller) idle(hasRoom bool, wait time.Duration) time.Duration {
	if p.polling {
		return wait
	}
	if p.more && hasRoom {
		p.more = false
		p.next = earlier(p.next, p.answered.Add(p.times.pollPause))
	}
	p.conn.listen()
	return min(wait, time.Until(p.next))
}

// crowded reports whether there may be more in a partition than was found.
func (q *poll) crowded() bool {
	type found struct {
		partition, priority int
		job                 bool
	}
	n := make(map[found]int)
	for _, it := range q.due {
		f := found{it.Partition, it.Priority, it.Job}
		n[f]++
		if n[f] == q.atMost {
			return true
		}
	}
	return false
}

// ask sends a poll on the poller's own connection. What has its key in another partition may run
// there: it is moved, and left out.
func (q *poll) ask(ctx context.Context, conn *listener, partitionFor func(key string) int) error {
	q.sent = time.Now()
	c, err := conn.ready(ctx)
	if err != nil {
		return err
	}
	q.sent = time.Now()
	keys := append([]string{}, slices.Collect(maps.Keys(q.left.keys))...)
	q.clock, q.took, q.due, err = conn.db.sendPoll(ctx, c, q, keys)
	q.answered = time.Now()
	var misplaced []subject
	q.due = slices.DeleteFunc(q.due, func(it item) bool {
		wrong := partitionFor(it.Key) != it.Partition
		if wrong {
			misplaced = append(misplaced, it.subject)
		}
		return wrong
	})
	if err == nil && len(misplaced) > 0 {
		err = conn.db.sendPlace(ctx, c, misplaced)
	}
	if err != nil {
		conn.close() // it may lead to a server that is gone
	}
	return err
}
