package schedule

import "time"

// ServerTime is the database's time at an instant of this host, where it was told at another.
func ServerTime(told, then, now time.Time) time.Time {
	var c serverClock
	c.heard(told, then, then, 0)
	server, _ := c.at(now)
	return server
}

// BelievesLast reports whether the last of some readings is believed: each so long after the first, and so far off.
func BelievesLast(readings ...[2]time.Duration) (believed bool) {
	var c serverClock
	for _, r := range readings {
		believed = c.heard(processStart.Add(r[0]+r[1]), processStart.Add(r[0]), processStart.Add(r[0]), clockDoubt)
	}
	return believed
}

// Flattened is an error that a handler returned, as it leaves the handler's goroutine.
func Flattened(err error) (safe error) {
	defer caught(&safe)
	return userError(err)
}

// Hasten has a scheduler look often, and believe the database's clock at once: for tests that set that clock.
func (s *Scheduler) Hasten() {
	s.times.poll, s.times.pollPause, s.times.clockDoubt = 25*time.Millisecond, 250*time.Microsecond, 0
}

// LookAlways has a scheduler look before whatever else it does.
func (s *Scheduler) LookAlways() { s.times.poll = 0 }

// Doubt sets how long a step of the database's clock is doubted.
func (s *Scheduler) Doubt(d time.Duration) { s.times.clockDoubt = d }

// LookEvery sets how often it is looked what is due.
func (s *Scheduler) LookEvery(d time.Duration) { s.times.poll = d }

// PauseFor sets how long it waits between two looks.
func (s *Scheduler) PauseFor(d time.Duration) { s.times.pollPause = d }

// TellEvery sets how long it is not told again that something is put.
func (s *Scheduler) TellEvery(d time.Duration) { s.times.silence = d }

// LookFor sets how long a look may take.
func (s *Scheduler) LookFor(d time.Duration) { s.times.pollLimit = d }

// SweepEvery sets how often it is looked for everything that is due, however long it has been.
func (s *Scheduler) SweepEvery(d time.Duration) { s.times.sweep = d }

// TrimEvery sets how often the history is trimmed.
func (s *Scheduler) TrimEvery(d time.Duration) { s.times.trim = d }

// DeclareEvery sets how often it is said what the code declares.
func (s *Scheduler) DeclareEvery(d time.Duration) { s.times.declare = d }

// Give sets how long the database is given for an answer.
func (s *Scheduler) Give(d time.Duration) { s.times.answer = d }

// Heed sets how long a handler may go on after the end of its context until that is logged.
func (s *Scheduler) Heed(d time.Duration) { s.times.overrun = d }

// HoldForSuspects sets how long others wait for what may kill the process.
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

// SetZone has a zone be another from now on, as in a process with other zone data.
func SetZone(name string, data *time.Location) { zones.Store(name, data) }
