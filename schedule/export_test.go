package schedule

import (
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
)

// ServerTime returns the database's time at an instant of this host, after an answer at another
// instant.
func ServerTime(shown, then, now time.Time) time.Time {
	var c serverClock
	c.heard(shown, then, then, 0)
	server, _ := c.at(now)
	return server
}

// TrustsLast reports whether the last of some readings is trusted. A reading is a time after the
// first and a clock offset.
func TrustsLast(readings ...[2]time.Duration) (trusted bool) {
	var c serverClock
	for _, r := range readings {
		since := processStart.Add(r[0])
		trusted = c.heard(since.Add(r[1]), since, since, defaultTimings.ClockDoubt)
	}
	return trusted
}

// AskedFor returns how many rows a poll asks for, in each partition and in all, while runs are under
// way.
func AskedFor(partitions, runs int) (most []int32, few, total int) {
	p := newPoller(&defaultTimings, nil)
	p.swept = time.Now()
	var owned []*ownership
	waiting := make(map[int]int)
	for n := range partitions {
		owned = append(owned, newOwnership(pgleases.Partition{Number: n}))
		waiting[n] = runs / partitions
	}
	q := p.question(time.Now(), owned, leftOut{}, waiting)
	return q.mostOf(), q.few, q.total
}

// Flattened returns an error of a handler as it leaves the handler's goroutine.
func Flattened(err error) (safe error) {
	defer handlers.Caught(&safe)
	return copied(err)
}

// Hasten makes a scheduler poll often and trust the database's clock at once, for tests that set
// that clock.
func (s *Scheduler) Hasten() {
	s.times.Poll, s.times.PollPause, s.times.ClockDoubt = 50*time.Millisecond, 2*time.Millisecond, 0
}

// Times returns the timings of a scheduler, to change before it runs.
func (s *Scheduler) Times() *timings { return &s.times }

// MakeZone returns a zone whose clocks change at instants, from one offset to the next.
func MakeZone(name string, at []time.Time, offsets ...time.Duration) *time.Location {
	var instants []int64
	for _, t := range at {
		instants = append(instants, t.Unix())
	}
	var seconds []int
	for _, d := range offsets {
		seconds = append(seconds, int(d/time.Second))
	}
	location, err := zoneOf(name, instants, seconds, "")
	if err != nil {
		panic(err)
	}
	return location
}

// SetZone replaces the data of a zone, as in a process with other zone data.
func SetZone(name string, data *time.Location) { zones.Store(name, data) }
