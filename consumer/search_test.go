package consumer

import (
	"maps"
	"math"
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
	q.has, q.to = make(map[int]bool), make(map[int]int64)
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	for id, free := range p.visible {
		last = max(last, id)
		if free && id >= q.from[0] {
			first = min(first, id)
		}
	}
	switch {
	case first < math.MaxInt64:
		q.has[0], q.to[0] = true, first
	case len(p.visible) > 0:
		q.to[0] = last + 1
	}
	q.oldest, q.next = min(p.oldest(), p.ended+1), p.ended+1
	if q.exact {
		q.next = p.nextXact + 1
		p.ended = p.nextXact
		p.nextXact++
	}
}

// Polls find all rows whose keys are not blocked, in whatever order their transactions commit, and
// without a sweep, within two polls after the older transactions have ended.
func TestSearchFindsEveryRow(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		p := &pile{nextID: -100, nextXact: 10, open: make(map[int64][]int64), visible: make(map[int64]bool)}
		q, poller, now, skipped := queued(1), new(poller), start, 0
		of := q.partitions[0]
		poll := func() {
			all, idle := q.asked()
			a, _ := poller.question(now, all, idle, 0)
			p.search(a)
			poller.after(a, false, false)
			poller.swept(a, now, time.Hour)
			q.answered(a, now)
			if of.searched.from > -100 {
				skipped++
			}
			if !of.due { // otherwise a job removes the row
				return
			}
			of.due = false
			for id, free := range p.visible {
				if free {
					delete(p.visible, id)
				}
			}
		}
		for range 300 {
			p.happen(r)
			if r.IntN(3) == 0 {
				poll()
			}
		}
		for xact := range p.open {
			p.commit(xact, r)
		}
		poll()
		poll()
		for id, free := range p.visible {
			if free {
				t.Fatalf("seed %d: row %d is not found: %+v", seed, id, of.searched)
			}
		}
		if skipped == 0 {
			t.Fatalf("seed %d: each search was a whole one", seed)
		}
	}
}

// A search begins anew when a key may no longer be blocked, although an answer from before comes
// later.
func TestSearchBeginsAnewWhenAKeyIsFreed(t *testing.T) {
	q, poller := queued(1), new(poller)
	of := q.partitions[0]
	of.searched, of.sweepAt = search{from: 100, next: 100}, start.Add(time.Hour)
	all, idle := q.asked()
	old, _ := poller.question(start, all, idle, 0)
	old.to = map[int]int64{0: 200}
	of.blockedDue = []blockedRow{{id: 7}}
	j, _ := q.next(start, room{size: 1, rows: 1})
	parts := j.parts()
	parts[0].freed = true
	q.end(j, result{parts: parts}, start, 1)
	q.answered(old, start)
	if of.searched != newSearch() {
		t.Errorf("the next search is %+v", of.searched)
	}
}

// A transaction that stays open keeps a search from going on until the second sweep at most, and
// numbers of transactions that begin again, on a new primary, do not keep it at all.
func TestSearchGoesOnWithTheSecondSweep(t *testing.T) {
	s := newSearch()
	ended := func(to int64, whole bool, before, next, want int64) {
		t.Helper()
		s.ended(asked{from: s.from, whole: whole}, to, &poll{before: before, next: next, exact: s.waits()})
		if s.from != want {
			t.Errorf("it goes on from %d, want %d", s.from, want)
		}
	}
	first := newSearch().from
	ended(100, true, 5, 20, first)
	ended(110, false, 5, 25, first) // transaction 5 is open
	ended(120, true, 5, 30, first)
	ended(130, false, 5, 40, first)
	ended(140, true, 5, 50, 100)
	ended(150, false, 5, 60, 100)
	ended(160, false, 3, 3, 140) // a new primary
}
