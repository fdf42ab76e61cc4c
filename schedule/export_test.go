package schedule

import (
	"time"

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
		trusted = c.heard(processStart.Add(r[0]+r[1]), processStart.Add(r[0]), processStart.Add(r[0]), clockDoubt)
	}
	return trusted
}

// Flattened returns an error of a handler as it leaves the handler's goroutine.
func Flattened(err error) (safe error) {
	defer handlers.Caught(&safe)
	return userError(err)
}

// Hasten makes a scheduler poll often and trust the database's clock at once, for tests that set
// that clock.
func (s *Scheduler) Hasten() {
	s.times.poll, s.times.pollPause, s.times.clockDoubt = 50*time.Millisecond, 2*time.Millisecond, 0
}

// PollAlways makes a scheduler poll before anything else.
func (s *Scheduler) PollAlways() { s.times.poll = 0 }

// Doubt sets how long a step of the database's clock is doubted.
func (s *Scheduler) Doubt(d time.Duration) { s.times.clockDoubt = d }

// PollEvery sets the time between two polls.
func (s *Scheduler) PollEvery(d time.Duration) { s.times.poll = d }

// PauseFor sets the shortest time between two polls.
func (s *Scheduler) PauseFor(d time.Duration) { s.times.pollPause = d }

// NotifyEvery sets how long no notification follows another.
func (s *Scheduler) NotifyEvery(d time.Duration) { s.times.silence = d }

// PollLimit sets the most that a poll may take.
func (s *Scheduler) PollLimit(d time.Duration) { s.times.pollLimit = d }

// SweepEvery sets the time between two polls for everything that is due.
func (s *Scheduler) SweepEvery(d time.Duration) { s.times.sweep = d }

// TrimEvery sets how often the history is trimmed.
func (s *Scheduler) TrimEvery(d time.Duration) { s.times.trim = d }

// DeclareEvery sets the time between two records of what the code declares.
func (s *Scheduler) DeclareEvery(d time.Duration) { s.times.declare = d }

// Give sets the time limit for an answer of the database.
func (s *Scheduler) Give(d time.Duration) { s.times.answer = d }

// Heed sets how long a handler may run after its context has ended until that is logged.
func (s *Scheduler) Heed(d time.Duration) { s.times.overrun = d }

// HoldForSuspects sets how long other runs wait for crash suspects.
func (s *Scheduler) HoldForSuspects(d time.Duration) { s.times.suspectHold = d }

// WaitForLocks sets how long a statement waits for a lock.
func (s *Scheduler) WaitForLocks(d time.Duration) { s.times.lockWait = d }

// ZoneFile is the data of a zone whose clocks change at instants, from one offset to the next.
func ZoneFile(at []time.Time, offsets ...time.Duration) []byte {
	var instants []int64
	for _, t := range at {
		instants = append(instants, t.Unix())
	}
	var seconds []int
	for _, d := range offsets {
		seconds = append(seconds, int(d/time.Second))
	}
	return zoneFile(instants, seconds, "")
}

// MakeZone makes such a zone.
func MakeZone(name string, at []time.Time, offsets ...time.Duration) *time.Location {
	location, err := time.LoadLocationFromTZData(name, ZoneFile(at, offsets...))
	if err != nil {
		panic(err)
	}
	return location
}

// SetZone replaces the data of a zone, as in a process with other zone data.
func SetZone(name string, data *time.Location) { zones.Store(name, data) }
