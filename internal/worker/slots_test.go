package worker

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
)

// A plant simulates workers: items that are healthy get a call each so often, and items that are
// ill are always due.
type plant struct {
	slots   Slots[int]
	size    int
	now     time.Time
	healthy []time.Time // since when each waiting call of healthy items is due
	every   time.Duration
	takes   time.Duration
	ill     int
	grouped bool // ill items are of one group
	why     Reason
	hangs   time.Duration
	under   []call
	busyIll map[int]bool
	waits   []time.Duration // of healthy calls
	tries   int             // of ill items
}

type call struct {
	ends, began time.Time
	lane        Lane
	of          int // the ill item; -1: a healthy one
}

// run lets time pass.
func (p *plant) run(d time.Duration) {
	p.waits, p.tries = nil, 0
	end, arrival := p.now.Add(d), p.now
	for p.now.Before(end) {
		for !arrival.After(p.now) {
			p.healthy, arrival = append(p.healthy, arrival), arrival.Add(p.every)
		}
		p.finish()
		next := cmp.Or(p.begin(), arrival)
		p.now = slices.MinFunc([]time.Time{next, arrival, end}, time.Time.Compare)
		for _, c := range p.under {
			if c.ends.Before(p.now) {
				p.now = c.ends
			}
		}
	}
}

func (p *plant) finish() {
	p.under = slices.DeleteFunc(p.under, func(c call) bool {
		if c.ends.After(p.now) {
			return false
		}
		p.slots.End(c.lane, p.size, c.ends.Sub(c.began), p.now)
		if c.of >= 0 {
			_, known := p.slots.Slow(c.of)
			p.slots.Fail(c.of, p.why, p.now)
			if p.grouped && !known {
				p.slots.Doubt("ill", p.hangs, p.now)
			}
			delete(p.busyIll, c.of)
		}
		return true
	})
}

// begin begins calls, and returns when the next ill item is due.
func (p *plant) begin() (next time.Time) {
	for {
		slow, fresh := -1, -1
		next = time.Time{}
		for i := range p.ill {
			at, known := p.slots.Slow(i)
			switch {
			case p.busyIll[i]:
			case !known:
				fresh = i
			case !at.After(p.now):
				if slow < 0 {
					slow = i
				}
			case next.IsZero() || at.Before(next):
				next = at
			}
		}
		if fresh >= 0 && p.slots.Doubts("ill", p.now) { // it comes before what is known as ill
			slow, fresh = fresh, -1
		}
		lane := p.slots.Next(p.size, len(p.healthy) > 0 || fresh >= 0, slow >= 0, p.now)
		c := call{began: p.now, lane: lane, of: -1, ends: p.now.Add(p.takes)}
		switch {
		case lane == Neither:
			return next
		case lane == Slow:
			c.of = slow
		case fresh >= 0: // nobody knows yet that it is ill
			c.of = fresh
		default:
			p.waits, p.healthy = append(p.waits, p.now.Sub(p.healthy[0])), p.healthy[1:]
		}
		if c.of >= 0 {
			p.busyIll[c.of], c.ends = true, p.now.Add(p.hangs)
			p.tries++
		}
		p.slots.Begin(lane)
		p.under = append(p.under, c)
	}
}

func newPlant(size, ill int, why Reason, hangs time.Duration) *plant {
	return &plant{
		size: size, ill: ill, why: why, hangs: hangs, takes: 20 * time.Millisecond,
		busyIll: make(map[int]bool), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

// Beside 100 ill items, healthy ones that need a part of the slots get all their calls, at once.
func TestIllWorkDelaysNoHealthyWork(t *testing.T) {
	testkit.OnlyInCI(t)
	takes := map[Reason]time.Duration{
		TimedOut: 10 * time.Second, Locked: 12 * time.Millisecond, Hung: 10 * time.Second,
	}
	for _, why := range Reasons {
		for _, size := range []int{2, 4, 10} {
			t.Run(fmt.Sprint(why, " ", size), func(t *testing.T) {
				p := newPlant(size, 100, why, takes[why])
				p.every = 2 * p.takes * 2 / time.Duration(size)      // a quarter of the slots
				p.run(100*p.hangs/time.Duration(size) + time.Minute) // each ill one fails for the first time
				for len(p.healthy) > 10 {                            // what has waited meanwhile is done
					p.run(time.Minute)
				}
				d := 3 * time.Minute
				p.run(d)
				if want := int(d / p.every * 9 / 10); len(p.waits) < want {
					t.Errorf("%d healthy calls, want %d", len(p.waits), want)
				}
				slices.Sort(p.waits)
				if p99 := p.waits[len(p.waits)*99/100]; p99 > time.Second {
					t.Errorf("the 99th percentile of their waits is %v", p99)
				}
				if p.tries == 0 {
					t.Error("no ill item was tried")
				}
				if got := p.slots.Waiting(why); got != 100 {
					t.Errorf("%d items wait for a %v, want 100", got, why)
				}
			})
		}
	}
}

// While each of 100 ill items of a group hangs for the first time, healthy work goes on. Only the calls
// that begin before the first of them has failed may fill all slots.
func TestHealthyWorkGoesOnWhileIllWorkIsLearned(t *testing.T) {
	for _, hangs := range []time.Duration{10 * time.Second, time.Minute} {
		for _, size := range []int{2, 4, 10} {
			t.Run(fmt.Sprint(size, " ", hangs), func(t *testing.T) { learn(t, size, hangs) })
		}
	}
}

// learn simulates so many slots while the ill items hang for so long, for 15 minutes at most.
func learn(t *testing.T, size int, hangs time.Duration) {
	p := newPlant(size, 100, TimedOut, hangs)
	p.grouped = true
	p.every = 2 * p.takes * 2 / time.Duration(size) // a quarter of the slots
	p.run(2*hangs + time.Minute)                    // the first calls end, and what waited meanwhile is done
	begin, healthy := p.now, 0
	var waits []time.Duration
	for p.slots.Waiting(TimedOut) < 100 && p.now.Sub(begin) < 15*time.Minute {
		p.run(time.Minute)
		healthy, waits = healthy+len(p.waits), append(waits, p.waits...)
	}
	learned := p.now.Sub(begin)
	slices.Sort(waits)
	p99 := waits[len(waits)*99/100]
	known := p.slots.Waiting(TimedOut)
	t.Logf("%d are known after %v; meanwhile 99 %% of the calls waited for %v at most", known, learned, p99)
	if want := int(learned / p.every * 9 / 10); healthy < want || p99 > time.Second {
		t.Errorf("%d healthy calls, want %d; the 99th percentile of their waits is %v", healthy, want, p99)
	}
}

// Doubt of a group ends when some of its work succeeds, and otherwise by itself.
func TestDoubtEnds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var s Slots[int]
	for took, lasts := range map[time.Duration]time.Duration{
		0:                time.Minute,
		10 * time.Second: 100 * time.Second,
		time.Hour:        10 * time.Minute,
		math.MaxInt64:    10 * time.Minute,
	} {
		s.Doubt("mail", took, now)
		others := s.Doubts("fax", now) // while mail is doubted: a look after its end deletes the doubt
		lasted := s.Doubts("mail", now.Add(lasts-1)) && !s.Doubts("mail", now.Add(lasts))
		if !lasted || others || s.AnyDoubts() {
			t.Errorf("after work that took %v, the doubt does not last for %v, or is of other groups too", took, lasts)
		}
	}
	s.Doubt("mail", time.Second, now)
	s.Trust("mail")
	if s.Doubts("mail", now) || s.AnySlow() {
		t.Error("the group is doubted after a success")
	}
}

// Healthy work that would fill all slots by itself keeps nine tenths of them, also of a single one.
func TestSlowWorkGetsATenthBesideABacklog(t *testing.T) {
	for _, size := range []int{1, 2, 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			p := newPlant(size, 100, TimedOut, 500*time.Millisecond)
			p.takes = 50 * time.Millisecond
			p.every = p.takes / time.Duration(size) * 9 / 10
			p.run(120 * p.hangs)
			d := 2 * time.Minute
			p.run(d)
			if want := int(d/p.takes) * size * 89 / 100; len(p.waits) < want {
				t.Errorf("%d healthy calls, want %d", len(p.waits), want)
			}
			if p.tries == 0 {
				t.Error("no ill item was tried")
			}
		})
	}
}

// Each time that work fails it waits longer, up to a bound. It is healthy when it has succeeded
// once.
func TestDistanceOfIllWorkGrows(t *testing.T) {
	for _, why := range Reasons {
		var s Slots[string]
		var now time.Time
		before := time.Duration(0)
		for range 40 {
			wait := s.Fail("a", why, now)
			if wait < before || wait > distances[why].most {
				t.Errorf("%v: %v after %v", why, wait, before)
			}
			if next, slow := s.Slow("a"); !slow || !next.Equal(now.Add(wait)) {
				t.Errorf("%v: next %v, slow %v", why, next, slow)
			}
			before = wait
		}
		if before != distances[why].most {
			t.Errorf("%v: the longest distance is %v", why, before)
		}
		s.Heal("a")
		if _, slow := s.Slow("a"); slow || s.Waiting(why) != 0 {
			t.Errorf("%v: slow after a success", why)
		}
		if wait := s.Fail("a", why, now); wait != distances[why].least {
			t.Errorf("%v: %v after a success", why, wait)
		}
	}
}

// Slow work that is due begins after ten minutes at most, although healthy work that hangs lets it rest
// again each minute.
func TestRestOfSlowWorkHasABound(t *testing.T) {
	for _, size := range []int{1, 2, 10} {
		var s Slots[int]
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		last, begun := now, 0
		for range 120 {
			if s.Next(size, true, true, now) == Slow {
				s.Begin(Slow)
				s.End(Slow, size, 10*time.Second, now.Add(10*time.Second))
				last, begun = now, begun+1
			}
			if wait := now.Sub(last); wait > restMost {
				t.Fatalf("of %d slots: slow work waits for %v", size, wait)
			}
			now = now.Add(time.Minute)
			s.Rest(size, time.Minute, now) // a call that was not known as ill has hung
		}
		if begun > 20 {
			t.Errorf("of %d slots: slow work began %d times in two hours", size, begun)
		}
	}
}

// Slow work leaves half of the slots free, even while nothing else is due.
func TestSlowWorkLeavesSlotsFree(t *testing.T) {
	for size := 2; size <= 9; size++ {
		var s Slots[int]
		for s.Next(size, false, true, time.Time{}) == Slow {
			s.Begin(Slow)
		}
		if s.slow > size/2 || s.slow == 0 {
			t.Errorf("slow work has %d of %d slots", s.slow, size)
		}
		if got := s.Next(size, true, true, time.Time{}); got != Healthy {
			t.Errorf("of %d slots, none is left for healthy work: %v", size, got)
		}
	}
}
