package worker

import "time"

// A Reason says why work is ill.
type Reason int

const (
	TimedOut Reason = iota // the application's call took as long as it may
	Locked                 // somebody else keeps a row locked
	Hung                   // a statement was not answered
	reasons
)

// String returns what ill work waits for, as logs and metrics name it.
func (r Reason) String() string { return [reasons]string{"timeout", "lock", "connection"}[r] }

// Reasons are all reasons.
var Reasons = []Reason{TimedOut, Locked, Hung}

// distances say how long ill work waits before it is tried again: least at first, then twice as
// long each time, up to most. A try at a lock is cheap, and whoever holds it may soon be done.
var distances = [reasons]struct{ least, most time.Duration }{
	TimedOut: {time.Second, time.Minute},
	Locked:   {100 * time.Millisecond, 5 * time.Second},
	Hung:     {time.Second, time.Minute},
}

const (
	// slowShare is the part of the time of all slots that slow work gets while healthy work
	// waits: one of so many parts.
	slowShare = 10
	// restMost is the longest time for which slow work waits because healthy work does.
	restMost = 10 * time.Minute
)

// A Lane is the kind of work that may begin.
type Lane int

const (
	Neither Lane = iota
	Healthy
	Slow
)

// Slots decide which work begins when a slot is free, so that ill work never holds what all
// share. Work is healthy until it meets one of the Reasons. From then on it is slow, until it
// succeeds once: it comes back after a distance that grows each time, slow work has half of the
// slots at most, and never the last one. While healthy work waits for a slot, slow work gets a
// tenth of the time. K identifies the work that is ill, for example a partition.
//
// The caller has the clock and the lock: Slots read no time, and one goroutine uses them.
type Slots[K comparable] struct {
	ill   map[K]*illness
	count [reasons]int
	busy  int       // calls under way
	slow  int       // those of slow work
	rest  time.Time // until then no slow work begins while healthy work waits
}

type illness struct {
	why   Reason
	times int
	next  time.Time
}

// Next returns the kind of work that may begin in one of so many slots, if work of these kinds is
// due.
func (s *Slots[K]) Next(size int, healthy, slow bool, now time.Time) Lane {
	switch {
	case slow && s.Room(size) && (!healthy || !now.Before(s.rest)):
		return Slow
	case healthy && s.busy < size:
		return Healthy
	}
	return Neither
}

// Room reports whether slow work may have one of so many slots, whatever else is due. Of a single
// slot it may have all, because Next gives it a tenth of the time.
func (s *Slots[K]) Room(size int) bool { return s.busy < size && s.slow < max(1, size/2) }

// Begin notes that work of a lane begins.
func (s *Slots[K]) Begin(lane Lane) {
	s.busy++
	if lane == Slow {
		s.slow++
	}
}

// End notes that work of a lane has ended, after so much time in one of so many slots.
func (s *Slots[K]) End(lane Lane, size int, took time.Duration, now time.Time) {
	s.busy--
	if lane != Slow {
		return
	}
	s.slow--
	if s.rest.Before(now) {
		s.rest = now
	}
	s.rest = s.rest.Add((slowShare - 1) * took / time.Duration(max(1, size)))
	if most := now.Add(restMost); s.rest.After(most) {
		s.rest = most
	}
}

// Busy returns how many calls are under way.
func (s *Slots[K]) Busy() int { return s.busy }

// Fail notes that work has met a reason to be slow, and returns how long it waits.
func (s *Slots[K]) Fail(k K, why Reason, now time.Time) time.Duration {
	of := s.ill[k]
	if of == nil {
		of = new(illness)
		if s.ill == nil {
			s.ill = make(map[K]*illness)
		}
		s.ill[k] = of
	} else {
		s.count[of.why]--
	}
	if of.why != why {
		of.times = 0
	}
	s.count[why]++
	wait := min(distances[why].least<<min(of.times, 16), distances[why].most)
	*of = illness{why: why, times: of.times + 1, next: now.Add(wait)}
	return wait
}

// Heal notes that work has succeeded, or is no longer there.
func (s *Slots[K]) Heal(k K) {
	if of := s.ill[k]; of != nil {
		s.count[of.why]--
		delete(s.ill, k)
	}
}

// Slow reports whether work is slow, and if so, when it may be tried again.
func (s *Slots[K]) Slow(k K) (next time.Time, slow bool) {
	of := s.ill[k]
	if of == nil {
		return time.Time{}, false
	}
	return of.next, true
}

// Compare compares work that is slow by when it may be tried again.
func (s *Slots[K]) Compare(a, b K) int { return s.ill[a].next.Compare(s.ill[b].next) }

// Why returns why work is slow. It is called only for work that is.
func (s *Slots[K]) Why(k K) Reason { return s.ill[k].why }

// Waiting returns how much work is slow for a reason.
func (s *Slots[K]) Waiting(why Reason) int { return s.count[why] }
