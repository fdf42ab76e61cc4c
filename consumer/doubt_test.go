package consumer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/worker"
)

// A clinic is a plant with partitions whose handlers hang, and others that get rows at a pace. A hung
// row blocks its key after its first attempt, and comes back.
type clinic struct {
	*plant
	hangs   time.Duration // a call of a hung row
	takes   time.Duration // a healthy row
	hung    map[int]bool  // partitions that have a row that hangs
	learned map[int]bool  // its first attempt has ended
	ended   bool          // a call has hung
	first   int           // the first partition with rows that do not hang
	rows    map[int][]time.Time
	arrive  time.Time
	waits   []time.Duration // of the rows that arrived since `since`
	since   time.Time
}

func newClinic(t *testing.T, healthy, size int, hangs time.Duration) *clinic {
	c := &clinic{
		plant: newPlant(t, 100+healthy, size), hangs: hangs, takes: 20 * time.Millisecond,
		first: 100, arrive: start, hung: make(map[int]bool), learned: make(map[int]bool),
		rows: make(map[int][]time.Time),
	}
	c.plant.takes, c.plant.ends = c.took, c.result
	return c
}

// sicken gives each of the first partitions a row that hangs.
func (c *clinic) sicken(partitions int) {
	a := &poll{of: c.q.partitions, has: make(map[int]bool), ended: -1}
	for n := range partitions {
		c.hung[n], a.has[n] = true, true
	}
	c.q.answered(a, c.now)
}

// took returns how long a job takes: until its first row that hangs, or until half of the timeout.
func (c *clinic) took(j *job) (d time.Duration) {
	if j.isRetry {
		return c.hangs
	}
	for _, of := range j.of {
		if c.hung[of.Number] && !c.learned[of.Number] {
			return d + c.hangs
		}
		d += time.Duration(max(1, len(c.rows[of.Number]))) * c.takes
		if d > c.hangs/2 {
			break
		}
	}
	return d
}

// result is what a job of Each comes back with.
func (c *clinic) result(j *job, parts []*part) result {
	if j.isRetry {
		return result{parts: parts, retryHung: true}
	}
	for i, p := range parts {
		if c.hung[p.Number] && !c.learned[p.Number] {
			c.learned[p.Number], c.ended = true, true
			p.slowBy(worker.TimedOut)
			p.charged = true
			for _, before := range parts[:i] {
				before.answered = true
			}
			return result{parts: parts}
		}
	}
	left := c.hangs / 2
	for _, p := range parts {
		if left < 0 {
			break
		}
		left -= time.Duration(max(1, len(c.rows[p.Number]))) * c.takes
		for _, at := range c.rows[p.Number] {
			if !at.Before(c.since) && !c.since.IsZero() {
				c.waits = append(c.waits, c.now.Sub(at))
			}
		}
		c.rows[p.Number] = nil
		p.rows, p.healed, p.answered, p.due, p.expect = delay{}, true, true, false, 1
	}
	return result{parts: parts, handled: true}
}

// live lets time pass, in which rows come at a pace, and polls find them.
func (c *clinic) live(d, every time.Duration) {
	for end := c.now.Add(d); c.now.Before(end); {
		a := &poll{ended: c.q.ended, of: c.q.partitions, has: make(map[int]bool)}
		a.blockedDue = make(map[int][]blockedRow)
		for ; !c.arrive.After(c.now); c.arrive = c.arrive.Add(every) {
			n := c.first + int(c.arrive.Sub(start)/every)%(len(c.q.partitions)-c.first)
			c.rows[n] = append(c.rows[n], c.arrive)
		}
		for _, p := range c.q.partitions {
			a.has[p.Number] = len(c.rows[p.Number]) > 0 || c.hung[p.Number] && !c.learned[p.Number]
			if c.learned[p.Number] {
				a.blockedDue[p.Number] = []blockedRow{{id: 1}}
			}
		}
		c.q.answered(a, c.now)
		c.run(max(50*time.Millisecond, every))
	}
}

// While the handlers of 100 partitions hang, and each is called for the first time, others keep what
// they handle, from the end of the first call that hangs.
func TestPartitionsGoOnWhileOthersAreFoundToHang(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		for _, size := range []int{2, 4, 10} {
			t.Run(fmt.Sprintf("%d slots, restarted: %v", size, restarted), func(t *testing.T) {
				c := newClinic(t, 60, size, 10*time.Second)
				every := 80 * time.Millisecond / time.Duration(size) // a quarter of the slots
				if !restarted {
					c.live(time.Minute, every)
				}
				c.sicken(100)
				c.live(time.Minute, every) // the first calls end, and the rows that waited meanwhile are handled
				c.since = c.now
				c.live(time.Minute, every)
				if len(c.learned) == 100 {
					t.Error("all are known before the time has passed")
				}
				slices.Sort(c.waits)
				want := int(time.Minute / every * 9 / 10)
				if len(c.waits) < want {
					t.Fatalf("%d rows were handled, want %d", len(c.waits), want)
				}
				p99 := c.waits[len(c.waits)*99/100]
				t.Logf("%d of 100 are known; 99 %% of the rows waited for %v at most", len(c.learned), p99)
				if p99 > time.Second {
					t.Errorf("the 99th percentile of the waits is %v", p99)
				}
			})
		}
	}
}

// With the default timeout too, all that is unknown is found out in places that rows which are known to
// hang do not hold. Others keep what they handle, from three quarters of a timeout after the first calls.
func TestKnownHangsLeaveAPlaceForTheDoubted(t *testing.T) {
	t.Parallel()
	const timeout = time.Minute
	for _, of := range []struct{ size, hung int }{{2, 3}, {2, 100}, {4, 100}, {10, 100}} {
		t.Run(fmt.Sprintf("%d slots, %d hung", of.size, of.hung), func(t *testing.T) {
			t.Parallel()
			c := newClinic(t, 60, of.size, timeout)
			every := 80 * time.Millisecond / time.Duration(of.size) // a quarter of the slots
			c.live(10*time.Second, every)
			c.sicken(of.hung)
			c.live(timeout*7/4, every) // the first calls end, and the rows that waited meanwhile are handled
			c.since = c.now
			c.live(timeout, every)
			want := int(timeout / every * 9 / 10)
			if len(c.waits) < want {
				t.Errorf("%d rows were handled, want %d", len(c.waits), want)
			}
			for _, rows := range c.rows { // those that still wait
				for _, at := range rows {
					c.waits = append(c.waits, c.now.Sub(at))
				}
			}
			slices.Sort(c.waits)
			p99 := c.waits[len(c.waits)*99/100]
			t.Logf("%d are known; 99 %% of %d rows waited for %v at most", len(c.learned), len(c.waits), p99)
			if p99 > time.Second {
				t.Errorf("the 99th percentile of the waits is %v", p99)
			}
		})
	}
}

// A row now and then, of a partition that had none since others hung, finds a place though rows that are
// known to hang are tried again all the time.
func TestKnownHangsLeaveAPlaceForSeldomRows(t *testing.T) {
	t.Parallel()
	for _, size := range []int{4, 10} {
		t.Run(fmt.Sprintf("%d slots", size), func(t *testing.T) {
			t.Parallel()
			c := newClinic(t, 1000, size, 10*time.Second)
			const every = 3 * time.Second
			c.sicken(20)
			for len(c.learned) < 20 {
				c.live(10*time.Second, every)
			}
			c.since = c.now
			c.live(5*time.Minute, every)
			if len(c.waits) < 90 {
				t.Fatalf("%d rows were handled, want 99", len(c.waits))
			}
			longest := slices.Max(c.waits)
			t.Logf("the longest wait of %d rows is %v", len(c.waits), longest)
			if longest > time.Second {
				t.Errorf("a row waited for %v", longest)
			}
		})
	}
}

// A row that is known to hang holds its partition whenever it is tried. So it is tried a tenth of the
// time, also if no other row waits at that moment, and ninety-nine in a hundred other rows of such
// partitions do not notice.
func TestKnownHangsHoldTheirPartitionsSeldom(t *testing.T) {
	t.Parallel()
	for _, size := range []int{2, 4, 10} {
		t.Run(fmt.Sprintf("%d slots", size), func(t *testing.T) {
			t.Parallel()
			c := newClinic(t, 28, size, time.Second)
			c.first = 0
			every := 80 * time.Millisecond / time.Duration(size) // a quarter of the slots
			c.sicken(100)
			for len(c.learned) < 100 {
				c.live(time.Second, every)
			}
			c.live(30*time.Second, every)
			c.since = c.now
			c.live(time.Minute, every)
			want := int(time.Minute / every * 9 / 10)
			if len(c.waits) < want {
				t.Fatalf("%d rows were handled, want %d", len(c.waits), want)
			}
			slices.Sort(c.waits)
			p99 := c.waits[len(c.waits)*99/100]
			t.Logf("99 %% of %d rows waited for %v at most", len(c.waits), p99)
			if p99 > time.Second {
				t.Errorf("the 99th percentile of the waits is %v", p99)
			}
		})
	}
}

// While one doubted partition after the other is found to hang in the only place for them, rows that are
// known to hang come again, each time after ten minutes of rest at most.
func TestKnownHangsComeAgainBesideTheDoubted(t *testing.T) {
	t.Parallel()
	const timeout, most = time.Minute, 10*time.Minute + 2*time.Minute // the rest, and what is in the place
	c := newClinic(t, 2, 2, timeout)
	last, tries := start.Add(timeout), 0
	c.began = func(j *job) {
		if !j.isRetry {
			return
		}
		tries++
		if c.now.Sub(last) > most {
			t.Errorf("a row that is known to hang was tried after %v", c.now.Sub(last))
		}
		last = c.now
	}
	c.sicken(100)
	c.live(30*time.Minute, 500*time.Millisecond)
	if c.now.Sub(last) > most || tries < 2 || len(c.learned) < 10 {
		t.Errorf("%d tries, the last %v ago; %d are known", tries, c.now.Sub(last), len(c.learned))
	}
	t.Logf("%d tries; %d are known", tries, len(c.learned))
}

// Rows that are known to hang come again after ten minutes of rest at most, although each minute a healthy
// partition begins to hang, and others always have rows.
func TestKnownHangsComeAgainBesideNewOnes(t *testing.T) {
	t.Parallel()
	const timeout, most = time.Minute, 10*time.Minute + 2*time.Minute // the rest, and what is in the places
	for _, size := range []int{1, 2, 4} {
		p := newPlant(t, 100, size)
		p.room.rows = 1
		p.due()
		hung := 1 // the first partitions
		hangs := func(j *job) bool { return j.of[0].Number < hung }
		last := start.Add(timeout)
		p.began = func(j *job) {
			if j.lane != worker.Slow {
				return
			}
			if wait := p.now.Sub(last); wait > most {
				t.Errorf("%d slots: a partition that is known to hang was tried after %v", size, wait)
			}
			last = p.now
		}
		p.takes = func(j *job) time.Duration {
			if hangs(j) {
				return timeout
			}
			return time.Second
		}
		p.ends = func(j *job, parts []*part) result {
			if !hangs(j) {
				return succeed(parts)
			}
			parts[0].slowBy(worker.TimedOut)
			return result{parts: parts}
		}
		for range 30 {
			p.run(time.Minute)
			hung++
		}
		if wait := p.now.Sub(last); wait > most {
			t.Errorf("%d slots: a partition that is known to hang was last tried %v ago", size, wait)
		}
	}
}

// While no call hangs, partitions of which nothing is known have all slots, however long they take.
func TestUnknownPartitionsFillAllSlots(t *testing.T) {
	p := newPlant(t, 50, 4)
	p.room.rows = 1
	p.due()
	p.takes = func(*job) time.Duration { return 50 * time.Second }
	begun := 0
	p.began = func(*job) { begun++ }
	p.run(time.Minute)
	if begun != 8 {
		t.Errorf("%d batches began in the time of two in each of 4 slots", begun)
	}
}

// After a batch that hung, its neighbors have half of the slots until they answer, and nothing is
// doubted when the doubt is over.
func TestDoubtOfPartitionsEnds(t *testing.T) {
	p := newPlant(t, 50, 4)
	p.room.rows = 1
	p.due()
	j, _ := p.q.next(p.now, p.room)
	parts := j.parts()
	parts[0].slowBy(worker.TimedOut)
	p.now = p.now.Add(time.Second)
	p.q.end(j, result{parts: parts}, p.now, 4)
	p.takes = func(*job) time.Duration { return 40 * time.Second }
	p.run(time.Millisecond)
	if len(p.under) != 2 {
		t.Errorf("%d batches of doubted partitions began, want 2", len(p.under))
	}
	p.run(41 * time.Second)
	if len(p.under) != 4 {
		t.Errorf("%d batches are under way after two partitions have answered, want 4", len(p.under))
	}
	p.run(41 * time.Second) // the doubt lasts for a minute
	if len(p.under) != 4 {
		t.Errorf("%d batches are under way after the doubt, want 4", len(p.under))
	}
}
