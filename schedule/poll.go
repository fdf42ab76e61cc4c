package schedule

import (
	"context"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/listen"
	"github.com/pgleases/pgleases/internal/when"
)

const (
	pollAhead = 2 * time.Second // so a slow poll delays no run
	pollMost  = 100             // rows for each partition
	pollLeast = 10              // rows for each of many partitions
	pollTotal = 2000            // rows in all, besides those that wait
	// partitions that are gained within this time have one poll
	gainedTogether = time.Millisecond
	// a row that is committed this long after it was written is found at once
	behind = time.Second
	// and after this long, within about 1 s: reading further back costs more
	farBehind = 10 * time.Second
)

// A poll asks what is due soon, and has the answer.
type poll struct {
	partitions, fresh []int32
	of                []*ownership // of the fresh partitions
	more              bool         // there are more fresh partitions
	since             time.Time
	further           map[int]time.Duration // how much further back some partitions are read
	sweep             bool                  // everything that is due, from any time
	ahead             time.Duration
	left              leftOut
	least             int         // rows of each partition, besides those that wait there
	few               int         // of these, also when those of higher priorities fill the answer
	waiting           map[int]int // in each partition, what is due and need not be found
	total             int         // rows in all
	running           []subject   // what runs in this process

	sent, answered time.Time
	clock          time.Time     // time of the database when it began
	took           time.Duration // how long the database took
	due            []item
	gone           []subject // of running: these do not exist any more
	rows           int       // of the answer
	err            error
}

// A poller decides when to poll, and for what: once a second, and at once when something was
// enqueued, when partitions were gained, or when more may be due than the last answer had room for.
// The goroutine of loop uses it.
type poller struct {
	times *timings
	conn  *listen.Listener // while a poll is under way, that poll uses it

	polled map[*ownership]bool // partitions that were polled successfully

	polling  bool      // a poll is under way
	next     time.Time // when the next poll is sent
	freshAt  time.Time // then a poll finds what is due in partitions that were gained since the last poll was sent
	answered time.Time // when the last poll was answered
	again    time.Time // then a poll finds what was enqueued without a notification of its own
	news     bool      // something may have been enqueued
	more     bool      // more may be due than was found: poll when there is room

	crowded bool                // the last answer had no room for everything
	passed  map[string]struct{} // keys that the last poll left out, although more is due

	low    time.Time         // everything that was due before has ended, but for the partitions of lows
	lows   map[int]time.Time // partitions in which only what was due before an earlier time has ended
	behind time.Time         // when the last poll read farBehind that, for late commits
	swept  time.Time         // when the last poll read everything

	most  int       // fresh partitions in the next poll: after a failure 0, then 1
	plain time.Time // until then polls do not use leftOut, because such a poll failed
}

func newPoller(times *timings, conn *listen.Listener) poller {
	return poller{
		times: times, conn: conn, lows: make(map[int]time.Time), most: math.MaxInt,
		next: time.Now(), freshAt: when.Never,
	}
}

// soon makes the poller poll at once, because something may have been enqueued.
func (p *poller) soon() {
	p.news = true
	p.next = when.Earlier(p.next, p.answered.Add(p.times.PollPause))
}

// heard is soon after a notification. Enqueueings shortly after it send no other notification.
func (p *poller) heard() {
	p.again = time.Now().Add(p.times.Silence)
	p.soon()
}

// gained makes the poller poll, because there is a fresh partition. It does not wait for PollPause:
// nothing runs in the partition until that poll, and it is needed once. It waits for gainedTogether.
func (p *poller) gained() {
	p.freshAt = when.Earlier(p.freshAt, time.Now().Add(gainedTogether))
	p.next = when.Earlier(p.next, p.freshAt)
}

// isDue reports whether to send a poll now.
func (p *poller) isDue(now time.Time) bool { return !p.polling && !now.Before(p.next) }

// leavesOut reports whether the next poll leaves out what must wait anyway, to find the items after
// it.
func (p *poller) leavesOut(now time.Time) bool { return p.crowded && p.mayLeaveOut(now) }

// mayLeaveOut reports whether the next poll need not return everything.
func (p *poller) mayLeaveOut(now time.Time) bool { return !p.sweeps(now) && !now.Before(p.plain) }

func (p *poller) sweeps(now time.Time) bool { return now.Sub(p.swept) >= p.times.Sweep }

// question returns the next poll of these partitions; nil if len(owned) is 0.
func (p *poller) question(now time.Time, owned []*ownership, left leftOut, waiting map[int]int) *poll {
	p.next, p.freshAt = now.Add(p.times.Poll), when.Never
	q := &poll{since: p.low.Add(-time.Microsecond), sweep: p.sweeps(now), ahead: pollAhead, left: left}
	switch {
	case q.sweep:
		q.since = time.Time{}
	case now.Sub(p.behind) >= p.times.Poll:
		q.since = q.since.Add(-farBehind)
		p.behind, p.news = now, false
	case p.news: // otherwise the poll is only for more of what was found before
		q.since, p.news = q.since.Add(-behind), false
	}
	q.further = make(map[int]time.Duration, len(p.lows))
	for partition, low := range p.lows {
		q.further[partition] = p.low.Sub(low)
	}
	p.choose(q, owned)
	if len(q.partitions) == 0 {
		return nil
	}
	q.least = min(pollMost, max(pollLeast, pollTotal/len(q.partitions)))
	q.few = max(1, q.least/10)
	q.waiting, q.total = waiting, pollTotal
	for _, n := range waiting {
		q.total += n
	}
	p.polling, p.more = true, false
	return q
}

// choose sets the partitions of a poll. They are in random order: a poll with a certain fresh
// partition may fail each time, and the others must have their turn.
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

// received records the end of a poll, and reports whether it succeeded.
func (p *poller) received(q *poll) bool {
	asked := p.next.Before(p.answered.Add(p.times.Poll)) // since the poll was sent
	p.polling, p.answered = false, time.Now()
	if errors.Is(q.err, handlers.ErrHangs) { // it keeps its connection
		p.conn = p.conn.Another()
	}
	p.next = p.answered.Add(p.times.Poll)
	if p.again.After(q.sent) {
		p.next, p.news = when.Earlier(p.next, p.again), true
	}
	if asked {
		p.next = p.answered.Add(p.times.PollPause)
	}
	p.next = when.Earlier(p.next, p.freshAt)
	if q.err == nil {
		return true
	}
	if q.sweep {
		// behind an old snapshot each sweep may take too long; the polls until the next sweep do
		// not
		p.swept = q.sent
	}
	if !q.left.empty() {
		p.plain = time.Now().Add(p.times.Sweep) // it reads over all of that, and may take too long
	}
	if len(q.fresh) > 0 {
		p.most = 0 // fresh partitions may be the cause; poll the others
	}
	return false
}

// accepted records that the scheduler uses an answer, because it trusts the database's clock.
func (p *poller) accepted(q *poll) {
	for _, o := range q.of {
		p.polled[o] = true
	}
	if q.more {
		p.soon()
	} else {
		p.most = math.MaxInt
	}
	// what was left out still fills an answer, until its items are no longer queued
	p.passed, p.crowded = q.left.keys, q.crowded() || !q.left.empty()
	if q.left.empty() {
		if q.sweep {
			p.swept = q.sent
		}
		if !q.full() {
			p.low = q.clock // anything beyond what was found is due later
			clear(p.lows)
		}
	}
}

// lower records that something in a partition is due at an instant, and has not ended. One that
// waits for long makes polls of its own partition slower only, which read what has ended since
// then.
func (p *poller) lower(partition int, t time.Time) {
	low, known := p.lows[partition]
	if !known {
		low = p.low
	}
	if t.Before(low) {
		p.lows[partition] = t
	}
}

// leftOut reports whether the last poll left out a key of which more is due.
func (p *poller) leftOut(key string) bool {
	_, out := p.passed[key]
	return out
}

// ended records the end of a run. lacks says whether only a poll can find the next item of its key,
// short whether fewer items are queued than can run at once.
func (p *poller) ended(f finish, lacks, short bool) {
	if lacks || p.crowded && short {
		p.more = true
	}
	p.lower(f.Partition, f.from) // a schedule that catches up is due earlier than it was
}

// idle returns how long to wait for the next poll, and listens until then. While a poll is under
// way it returns wait.
func (p *poller) idle(hasRoom bool, wait time.Duration) time.Duration {
	if p.polling {
		return wait
	}
	if p.more && hasRoom {
		p.more = false
		p.next = when.Earlier(p.next, p.answered.Add(p.times.PollPause))
	}
	p.conn.Listen()
	return min(wait, time.Until(p.next))
}

// most returns how many rows of a partition the answer has at most, of schedules, and of jobs of
// each priority. Runs under way are still due there, and take no room of what may begin.
func (q *poll) most(partition int) int { return q.least + q.waiting[partition] }

// room returns from how many rows on the answer has only few of each lower priority.
func (q *poll) room() (n int) {
	for _, partition := range q.partitions {
		n += q.most(int(partition))
	}
	return min(n, q.total)
}

// mostOf returns most of each partition.
func (q *poll) mostOf() []int32 {
	most := make([]int32, len(q.partitions))
	for i, partition := range q.partitions {
		most[i] = int32(q.most(int(partition)))
	}
	return most
}

// furtherBack returns further for each partition, in microseconds.
func (q *poll) furtherBack() []int64 {
	further := make([]int64, len(q.partitions))
	for i, partition := range q.partitions {
		further[i] = q.further[int(partition)].Microseconds()
	}
	return further
}

// full reports whether there may be more in any partition than the answer has.
func (q *poll) full() bool { return q.rows >= q.total }

// crowded reports whether a partition may have more than the answer has.
func (q *poll) crowded() bool {
	if q.rows >= q.room() {
		return true
	}
	n := make(map[item]int) // of each partition, priority, and schedules or jobs
	for _, it := range q.due {
		f := item{subject: subject{Job: it.Job}, Partition: it.Partition, Priority: it.Priority}
		n[f]++
		if n[f] == q.most(it.Partition) {
			return true
		}
	}
	return false
}

// within asks within the time limit of polls, and returns the poll with its answer or its error. If
// a tracer of the application hangs, within leaves it behind with a copy.
func (q *poll) within(ctx context.Context, db *db, conn *listen.Listener, partitionFor func(key string) int) *poll {
	asked, unanswered := *q, *q
	unanswered.sent = time.Now()
	unanswered.err = handlers.InTime(ctx, db.times.PollLimit, db.times.Overrun, func(ctx context.Context) error {
		return asked.ask(ctx, db, conn, partitionFor)
	})
	if unanswered.err != nil {
		return &unanswered
	}
	return &asked
}

// ask sends a poll on the connection of the poller. An item whose key belongs to another partition
// may run there, so ask moves it, and removes it from the answer.
func (q *poll) ask(ctx context.Context, db *db, conn *listen.Listener, partitionFor func(key string) int) error {
	q.sent = time.Now()
	c, err := conn.Ready(ctx)
	if err != nil {
		return err
	}
	q.sent = time.Now()
	keys := append([]string{}, slices.Collect(maps.Keys(q.left.keys))...)
	err = db.sendPoll(ctx, c, q, keys)
	q.answered, q.rows = time.Now(), len(q.due)
	var misplaced []subject
	q.due = slices.DeleteFunc(q.due, func(it item) bool {
		wrong := partitionFor(it.Key) != it.Partition
		if wrong {
			misplaced = append(misplaced, it.subject)
		}
		return wrong
	})
	if err == nil && len(misplaced) > 0 {
		err = db.sendPlace(ctx, c, misplaced)
	}
	if err != nil || ctx.Err() != nil {
		conn.Close() // its server may no longer exist, or the poll was left behind with it
	}
	return err
}
