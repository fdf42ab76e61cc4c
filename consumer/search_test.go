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
	ids              []int64           // of the visible rows, ascending
	free             map[int64]bool    // those whose keys are not blocked
}

// newPiles returns so many piles without rows.
func newPiles(n int) (piles []*pile) {
	for range n {
		piles = append(piles, &pile{nextXact: 10, open: make(map[int64][]int64), free: make(map[int64]bool)})
	}
	return piles
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
		p.put(id, r.IntN(20) == 0)
	}
	delete(p.open, xact)
	p.ended = max(p.ended, xact)
}

// put makes a row visible.
func (p *pile) put(id int64, free bool) {
	at, _ := slices.BinarySearch(p.ids, id)
	p.ids = slices.Insert(p.ids, at, id)
	if free {
		p.free[id] = true
	}
}

// insert makes so many rows visible, each with the next ID.
func (p *pile) insert(rows int64, free bool) {
	for range rows {
		p.put(p.nextID, free)
		p.nextID++
	}
}

// handle removes the rows whose keys are not blocked.
func (p *pile) handle() {
	p.ids = slices.DeleteFunc(p.ids, func(id int64) bool { return p.free[id] })
	clear(p.free)
}

// searchAll does what poll.sql does. The piles are those of the partitions with these numbers.
func searchAll(q *poll, piles []*pile) {
	q.has, q.seen = make(map[int]bool), make(map[int]sight)
	for i, of := range q.searches {
		p := piles[of.Number]
		if len(p.ids) == 0 {
			continue
		}
		at, tail, most := q.looks.rounds[i], q.looks.tails[i], int(q.looks.most[i])
		seen := sight{end: p.ids[len(p.ids)-1] + 1}
		var found, foundNew bool
		seen.round, found = p.look(at, most)
		if tail > at {
			seen.tail, foundNew = p.look(tail, most)
		}
		q.seen[of.Number] = seen
		if found || foundNew {
			q.has[of.Number], q.anywhere = true, true
		}
	}
	p := piles[0] // has the transactions
	q.oldest, q.next = min(p.oldest(), p.ended+1), p.ended+1
	if q.exact {
		q.next = p.nextXact + 1
		p.ended = p.nextXact
		p.nextXact++
	}
}

// look looks at so many rows from an ID on, and reports whether one is free.
func (p *pile) look(since int64, most int) (at stop, found bool) {
	begin, _ := slices.BinarySearch(p.ids, since)
	for n, id := range p.ids[begin:] {
		switch {
		case p.free[id]:
			return stop{early: true, id: id}, true
		case n+1 == most:
			return stop{early: true, id: id + 1}, false
		}
	}
	return stop{}, false
}

// A crowd is a partition with rows, most of them behind blocked keys, and the polls for it.
type crowd struct {
	*pile
	queue   *queue
	poller  poller
	skipped int // polls that did not begin with the first row
}

func newCrowd(rows int) *crowd {
	c := &crowd{pile: newPiles(1)[0], queue: queued(1), poller: poller{rows: rows}}
	c.nextID = -100
	return c
}

// ask sends a poll, and returns it with its answer.
func (c *crowd) ask(jobs, all int) *poll {
	of, idle := c.queue.asked()
	q, _ := c.poller.question(start, of, idle, jobs, all)
	searchAll(q, []*pile{c.pile})
	return q
}

// poll sends a poll, and lets a job remove the rows that it finds.
func (c *crowd) poll() {
	of, a := c.queue.partitions[0], c.ask(0, 0)
	c.poller.after(a, false, false)
	c.poller.swept(a, start, time.Hour)
	c.queue.answered(a, start)
	if of.searched.from > -100 {
		c.skipped++
	}
	if !of.due {
		return
	}
	of.due = false
	c.handle()
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
		round := 1 + len(c.ids)/most
		for range 2 * round {
			c.poll()
		}
		if len(c.free) > 0 {
			t.Fatalf("seed %d, %d rows a poll: rows %v are not found: %+v",
				seed, most, c.free, c.queue.partitions[0].searched)
		}
		for range 2 * round {
			c.insert(1, r.IntN(3) == 0)
			c.poll()
			if len(c.free) > 0 {
				t.Fatalf("seed %d, %d rows a poll: a new row is not found: %+v",
					seed, most, c.queue.partitions[0].searched)
			}
		}
		c.burst(t, 5*int64(min(most, 10)))
		if c.skipped == 0 {
			t.Fatalf("seed %d: each search was a whole one", seed)
		}
	}
}

// burst inserts so many rows behind blocked keys while a round is under way, and one after them
// that is not. Polls find it long before the round comes to it.
func (c *crowd) burst(t *testing.T, rows int64) {
	t.Helper()
	c.queue.partitions[0].searched.want(whole)
	c.poll()
	c.insert(rows, false)
	c.insert(1, true)
	for range 6 {
		c.poll()
	}
	if len(c.free) > 0 {
		t.Fatalf("the row after %d new ones is not found: %+v", rows, c.queue.partitions[0].searched)
	}
}

// All rows are searched after a key may no longer be blocked, although an answer from before comes
// later, and although other rounds are under way, which are not broken off.
func TestAllRowsAreSearchedWhenAKeyIsFreed(t *testing.T) {
	for _, most := range []int{1, 10, 10_000} {
		c := newCrowd(4 * most)
		c.insert(100, false)
		round := 1 + 100/most
		for range 3 * round {
			c.poll()
		}
		old := c.ask(0, 0)
		c.free[c.ids[7]] = true
		for range round + 2 {
			of := c.queue.partitions[0]
			of.blockedDue = []blockedRow{{id: 7}}
			j, _ := c.queue.next(start, room{size: 1, rows: 1})
			parts := j.parts()
			parts[0].freed = true
			c.queue.end(j, result{parts: parts}, start, 1)
			c.queue.answered(old, start)
			c.poll()
			old = c.ask(0, 0)
		}
		if len(c.free) > 0 {
			t.Errorf("%d rows a poll: rows %v are not found: %+v", most, c.free, c.queue.partitions[0].searched)
		}
	}
}

// pollsToTheEnd returns after how many polls a process has found the only free row, the last one of
// a partition, if each of its other partitions has so many rows behind blocked keys.
func pollsToTheEnd(t *testing.T, backlog, others int64) (polls int) {
	const partitions, of = 64, 7
	q, p, now, piles := queued(partitions), poller{rows: 4 * partitions}, start, newPiles(partitions)
	for n, pile := range piles {
		if n != of {
			pile.insert(others, false)
		}
	}
	piles[of].insert(backlog-1, false)
	piles[of].insert(1, true)
	for polls = 1; polls < 10_000; polls++ {
		now = now.Add(time.Second)
		all, idle := q.asked()
		a, _ := p.question(now, all, idle, 0, 0)
		searchAll(a, piles)
		if a.anywhere {
			return polls
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
	piles := newPiles(2)
	piles[0].insert(100, false)
	q, p := queued(2), poller{rows: 4 * 20}
	for polls := 1; polls < 100; polls++ {
		all, idle := q.asked()
		a, _ := p.question(start, all, idle, 0, 2)
		searchAll(a, piles)
		for n := range a.has {
			piles[n].handle()
		}
		q.answered(a, start)
		empty := p.table.empty(a, true)
		if polls == 4 { // in the last poll of the other round
			piles[1].insert(29, false)
			piles[1].insert(1, true)
		}
		if empty {
			if len(piles[1].free) > 0 || polls < 4 {
				t.Errorf("it is over after %d polls, with a row left that can be handled", polls)
			}
			return
		}
	}
	t.Error("it is never over")
}

// A RunUntilEmpty is not over before all partitions have had their turn, if they are so many that polls
// take turns.
func TestTableIsNotEmptyBeforeAllHadTheirTurn(t *testing.T) {
	const partitions, atOnce = 25, 10
	for n := range partitions {
		piles, p := newPiles(partitions), poller{rows: 4 * atOnce}
		piles[n].insert(1, true)
		for polls := 1; ; polls++ {
			a, _ := p.question(start, nil, nil, 0, partitions)
			searchAll(a, piles)
			for has := range a.has {
				piles[has].handle()
			}
			p.swept(a, start, time.Minute)
			new(queue).answered(a, start)
			if p.table.empty(a, true) {
				if len(piles[n].free) > 0 || polls < 6 {
					t.Errorf("it is over after %d polls, with %d rows of partition %d left",
						polls, len(piles[n].free), n)
				}
				break
			}
			if polls > 20 {
				t.Fatal("it is never over")
			}
		}
	}
}

// A RunUntilEmpty is not over before a round has seen the whole table while nothing was done.
func TestTableIsEmptyAfterAWholeRound(t *testing.T) {
	c := newCrowd(4 * 10)
	c.insert(100, false)
	jobs := 0
	emptyAfter := func() (polls int) {
		for {
			if polls++; polls > 100 {
				t.Fatal("it is never over")
			}
			q := c.ask(jobs, 1)
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
		t.Errorf("%d polls of 20 rows, the first of 10, for a round of 100 rows in which a job ended, and another one",
			n)
	}
	jobs = 10
	c.free[c.ids[99]] = true
	for polls := 0; len(c.free) > 0 && polls < 10; polls++ {
		q := c.ask(jobs, 1)
		c.queue.answered(q, start)
		if q.anywhere {
			c.handle()
		}
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
