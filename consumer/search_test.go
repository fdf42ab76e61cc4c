package consumer

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A pile has the rows of a partition, most of them behind blocked keys.
type pile struct {
	nextID, nextXact int64
	ended            int64             // the highest number of a transaction that has ended
	open             map[int64][]int64 // the IDs of the rows of open transactions
	visible          map[int64]bool    // whether a row's key is not blocked
}

func (p *pile) oldest() int64 {
	oldest := p.nextXact
	for xact := range p.open {
		oldest = min(oldest, xact)
	}
	return oldest
}

// happen lets a transaction begin, insert a row, or commit.
func (p *pile) happen(r *rand.Rand) {
	if len(p.open) == 0 || r.IntN(4) == 0 {
		p.open[p.nextXact] = nil
		p.nextXact++
		return
	}
	under := slices.Sorted(maps.Keys(p.open))
	xact := under[r.IntN(len(under))]
	if r.IntN(3) == 0 {
		p.commit(xact, r)
		return
	}
	p.open[xact] = append(p.open[xact], p.nextID)
	p.nextID++
}

func (p *pile) commit(xact int64, r *rand.Rand) {
	for _, id := range p.open[xact] {
		p.visible[id] = r.IntN(20) == 0
	}
	delete(p.open, xact)
	p.ended = max(p.ended, xact)
}

// search does what poll.sql does.
func (p *pile) search(q *poll) {
	q.has, q.seen = make(map[int]bool), make(map[int]sight)
	ids := slices.Sorted(maps.Keys(p.visible))
	if len(ids) > 0 {
		at, tail := q.looks.rounds[0], q.looks.tails[0]
		seen := sight{end: ids[len(ids)-1] + 1, round: p.look(ids, at, q)}
		if tail > at {
			seen.tail = p.look(ids, tail, q)
		}
		q.seen[0] = seen
	}
	q.oldest, q.next = min(p.oldest(), p.ended+1), p.ended+1
	if q.exact {
		q.next = p.nextXact + 1
		p.ended = p.nextXact
		p.nextXact++
	}
}

// look looks at rows from an ID on.
func (p *pile) look(ids []int64, since int64, q *poll) stop {
	n := int32(0)
	for _, id := range ids {
		if id < since {
			continue
		}
		n++
		if p.visible[id] {
			q.has[0] = true
			return stop{early: true, id: id}
		}
		if n == q.looks.most[0] {
			return stop{early: true, id: id + 1}
		}
	}
	return stop{}
}

// crowd is a partition with rows, most of them behind blocked keys, and the polls for it.
type crowd struct {
	pile
	queue   *queue
	poller  poller
	skipped int // polls that did not begin with the first row
}

func newCrowd(rows int) *crowd {
	return &crowd{
		pile:  pile{nextID: -100, nextXact: 10, open: make(map[int64][]int64), visible: make(map[int64]bool)},
		queue: queued(1), poller: poller{rows: rows},
	}
}

// poll sends a poll, and lets a job remove the rows that it finds.
func (c *crowd) poll() {
	now, of := start, c.queue.partitions[0]
	all, idle := c.queue.asked()
	a, _ := c.poller.question(now, all, idle, 0, 0)
	c.search(a)
	c.poller.after(a, false, false)
	c.poller.swept(a, now, time.Hour)
	c.queue.answered(a, now)
	if of.searched.from > -100 {
		c.skipped++
	}
	if !of.due {
		return
	}
	of.due = false
	maps.DeleteFunc(c.visible, func(_ int64, free bool) bool { return free })
}

// free returns the rows whose keys are not blocked.
func (c *crowd) free() (ids []int64) {
	for id, free := range c.visible {
		if free {
			ids = append(ids, id)
		}
	}
	return ids
}

// Polls find all rows whose keys are not blocked, in whatever order their transactions commit, and
// without a sweep. They do so within two rounds after the older transactions have ended, although a
// poll looks at few rows, and they find new rows at once.
func TestSearchFindsEveryRow(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		most := []int{1, 3, 10, 10_000}[seed%4]
		c := newCrowd(4 * most)
		for range 300 {
			c.happen(r)
			if r.IntN(3) == 0 {
				c.poll()
			}
		}
		for xact := range c.open {
			c.commit(xact, r)
		}
		round := 1 + len(c.visible)/most
		for range 2 * round {
			c.poll()
		}
		if left := c.free(); len(left) > 0 {
			t.Fatalf("seed %d, %d rows a poll: rows %d are not found: %+v", seed, most, left, c.queue.partitions[0].searched)
		}
		for range 2 * round {
			c.visible[c.nextID] = r.IntN(3) == 0
			c.nextID++
			c.poll()
			if len(c.free()) > 0 {
				t.Fatalf("seed %d, %d rows a poll: a new row is not found: %+v", seed, most, c.queue.partitions[0].searched)
			}
		}
		c.burst(t, 5*min(most, 10))
		if c.skipped == 0 {
			t.Fatalf("seed %d: each search was a whole one", seed)
		}
	}
}

// burst inserts so many rows behind blocked keys while a round is under way, and one after them
// that is not. Polls find it long before the round comes to it.
func (c *crowd) burst(t *testing.T, rows int) {
	t.Helper()
	c.queue.partitions[0].searched.want(whole)
	c.poll()
	for range rows {
		c.visible[c.nextID] = false
		c.nextID++
	}
	c.visible[c.nextID] = true
	c.nextID++
	for range 6 {
		c.poll()
	}
	if len(c.free()) > 0 {
		t.Fatalf("the row after %d new ones is not found: %+v", rows, c.queue.partitions[0].searched)
	}
}

// All rows are searched after a key may no longer be blocked, although an answer from before comes
// later, and although other rounds are under way, which are not broken off.
func TestAllRowsAreSearchedWhenAKeyIsFreed(t *testing.T) {
	for _, most := range []int{1, 10, 10_000} {
		c := newCrowd(4 * most)
		for id := range int64(100) {
			c.visible[id] = false
		}
		round := 1 + 100/most
		for range 3 * round {
			c.poll()
		}
		all, idle := c.queue.asked()
		old, _ := c.poller.question(start, all, idle, 0, 0)
		c.search(old)
		c.visible[7] = true
		for range round + 2 {
			of := c.queue.partitions[0]
			of.blockedDue = []blockedRow{{id: 7}}
			j, _ := c.queue.next(start, room{size: 1, rows: 1})
			parts := j.parts()
			parts[0].freed = true
			c.queue.end(j, result{parts: parts}, start, 1)
			c.queue.answered(old, start)
			c.poll()
			all, idle = c.queue.asked()
			old, _ = c.poller.question(start, all, idle, 0, 0)
			c.search(old)
		}
		if left := c.free(); len(left) > 0 {
			t.Errorf("%d rows a poll: rows %d are not found: %+v", most, left, c.queue.partitions[0].searched)
		}
	}
}

// pollsToTheEnd returns after how many polls a process has found the only free row, the last one of
// a partition, if each of its other partitions has so many rows behind blocked keys.
func pollsToTheEnd(t *testing.T, backlog, others int64) (polls int) {
	const partitions, of = 64, 7
	q, p, now := queued(partitions), poller{rows: 4 * partitions}, start
	look := func(most, rows, since int64) (stop, bool) {
		since = max(since, 0)
		last := since + most
		switch {
		case rows == backlog && since < backlog && last >= backlog:
			return stop{true, backlog - 1}, true
		case since < rows && last <= rows:
			return stop{true, last}, false
		}
		return stop{}, false
	}
	for polls = 1; polls < 10_000; polls++ {
		now = now.Add(time.Second)
		all, idle := q.asked()
		a, _ := p.question(now, all, idle, 0, 0)
		a.has, a.seen, a.sweptTo = make(map[int]bool), make(map[int]sight), make(map[int]int64)
		a.oldest, a.next = 100, 100
		for i, searched := range a.searches {
			rows := others
			if searched.Number == of {
				rows = backlog
			}
			if rows == 0 {
				continue
			}
			seen := sight{end: rows}
			var found, foundBehind bool
			seen.round, found = look(int64(a.looks.most[i]), rows, a.looks.rounds[i])
			if a.looks.tails[i] > a.looks.rounds[i] {
				seen.tail, foundBehind = look(int64(a.looks.most[i]), rows, a.looks.tails[i])
			}
			if found || foundBehind {
				return polls
			}
			a.seen[searched.Number] = seen
		}
		p.after(a, false, false)
		p.swept(a, now, time.Minute)
		q.answered(a, now)
	}
	t.Fatalf("not found after %d polls", polls)
	return polls
}

// Blocked rows of other partitions slow no long round down.
func TestRoundsOfOthersTakeNoRowsFromALongOne(t *testing.T) {
	alone, beside := pollsToTheEnd(t, 20_000, 0), pollsToTheEnd(t, 20_000, 1)
	if beside > alone+alone/10 {
		t.Errorf("%d polls, and %d beside partitions with a blocked row each", alone, beside)
	}
}

// A RunUntilEmpty is not over while a poll has stopped within the rows that came to a partition whose
// round had ended.
func TestTableIsNotEmptyBeforeItsNewRowsAreSeen(t *testing.T) {
	var piles []*pile
	for range 2 {
		piles = append(piles, &pile{nextXact: 10, open: make(map[int64][]int64), visible: make(map[int64]bool)})
	}
	for id := range int64(100) {
		piles[0].visible[id] = false
	}
	q, p := queued(2), poller{rows: 4 * 20}
	for polls := 1; polls < 100; polls++ {
		all, idle := q.asked()
		a, _ := p.question(start, all, idle, 0, 2)
		a.has, a.seen = make(map[int]bool), make(map[int]sight)
		for i, pile := range piles {
			l := &a.looks
			one := &poll{looks: looks{rounds: l.rounds[i : i+1], tails: l.tails[i : i+1], most: l.most[i : i+1]}}
			pile.search(one)
			if seen, some := one.seen[0]; some {
				a.seen[i] = seen
			}
			if one.has[0] { // it is handled
				a.has[i], a.anywhere = true, true
				maps.DeleteFunc(pile.visible, func(_ int64, free bool) bool { return free })
			}
		}
		q.answered(a, start)
		empty := p.table.empty(a, true)
		if polls == 4 { // in the last poll of the other round
			for id := range int64(30) {
				piles[1].visible[id] = id == 29
			}
		}
		if empty {
			if piles[1].visible[29] || polls < 4 {
				t.Errorf("it is over after %d polls, with a row left that can be handled", polls)
			}
			return
		}
	}
	t.Error("it is never over")
}

// A RunUntilEmpty is not over before a round has seen the whole table while nothing was done.
func TestTableIsEmptyAfterAWholeRound(t *testing.T) {
	c := newCrowd(4 * 10)
	for id := range int64(100) {
		c.visible[id] = false
	}
	jobs := 0
	emptyAfter := func() (polls int) {
		for {
			polls++
			all, idle := c.queue.asked()
			q, _ := c.poller.question(start, all, idle, jobs, 1)
			c.search(q)
			q.anywhere = q.has[0]
			c.queue.answered(q, start)
			if c.poller.table.empty(q, true) {
				return polls
			}
			if polls == 3 {
				jobs++ // one ends in the round
			}
		}
	}
	if n := emptyAfter(); n < 12 {
		t.Errorf("%d polls of 20 rows, the first of 10, for a round of 100 rows in which a job ended, and another one", n)
	}
	jobs = 10
	c.visible[99] = true
	polls := 0
	for c.visible[99] && polls < 10 {
		polls++
		all, idle := c.queue.asked()
		q, _ := c.poller.question(start, all, idle, jobs, 1)
		c.search(q)
		c.queue.answered(q, start)
		if q.has[0] {
			delete(c.visible, 99)
		}
		q.anywhere = q.has[0]
		if c.poller.table.empty(q, true) {
			t.Fatal("it ends with a row left")
		}
	}
}

// A transaction that stays open keeps a search from going on until the second sweep at most, and
// numbers of transactions that begin again, on a new primary, do not keep it at all.
func TestSearchGoesOnWithTheSecondSweep(t *testing.T) {
	s := newSearch()
	ended := func(to int64, r reach, before, next, want int64) {
		t.Helper()
		s.want(r)
		s.begin(before)
		s.saw(sight{end: to}, &poll{next: next, exact: s.waits()})
		if s.from != want {
			t.Errorf("it goes on from %d, want %d", s.from, want)
		}
	}
	first := newSearch().from
	ended(100, sweep, 5, 20, first)
	ended(110, recent, 5, 25, first) // transaction 5 is open
	ended(120, sweep, 5, 30, first)
	ended(125, whole, 5, 35, first) // a key was freed
	ended(130, recent, 5, 40, first)
	ended(140, sweep, 5, 50, 100)
	ended(150, recent, 5, 60, 100)
	ended(160, recent, 3, 3, 140) // a new primary
}
