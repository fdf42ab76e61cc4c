package worker

import "time"

// A Reason says why work is ill.
type Reason int

const (
	TimedOut Reason = iota // the application's call took as long as it may
	Locked                 // somebody else keeps a row locked
	Hung                   // a statement was not answered, or refused
	Blocked                // this process cannot do it
	reasons
)

// String returns what ill work waits for, as logs and metrics name it.
func (r Reason) String() string {
	return [reasons]string{"timeout", "lock", "connection", "blocked"}[r]
}

// Reasons are those with which work waits for something that may end at any time.
var Reasons = []Reason{TimedOut, Locked, Hung}

// distances say how long ill work waits before it is tried again: least at first, then twice as
// long each time, up to most. A try at a lock is cheap, and whoever holds it may soon be done.
var distances = [reasons]struct{ least, most time.Duration }{
	TimedOut: {time.Second, time.Minute},
	Locked:   {100 * time.Millisecond, 5 * time.Second},
	Hung:     {time.Second, time.Minute},
	Blocked:  {time.Minute, time.Hour},
}

const (
	// slowShare is the part of the time of all slots that slow work gets while healthy work
	// waits: one of so many parts.
	slowShare = 10
	// restMost is the longest time for which slow work that is due waits because healthy work does, in
	// one rest or in several.
	restMost = 10 * time.Minute
	// doubtLeast is how long a group is doubted at least. It is doubted for slowShare times as long as
	// its work took, up to restMost.
	doubtLeast = time.Minute
	// remembered is how long ill work that does not come back is remembered.
	remembered = time.Hour
)

// A Lane is the kind of work that may begin.
type Lane int

const (
	Neither Lane = iota
	Healthy
	Slow
	Doubted // nothing good is known of it while other work hangs: it has slots of slow work, and need not rest
)

// Slots decide which work begins when a slot is free, so that ill work never holds what all
// share. Work is healthy until it meets one of the Reasons. From then on it is slow, until it
// succeeds once: it comes back after a distance that grows each time, slow work has half of the
// slots at most, and never the last one. While healthy work waits for a slot, slow work gets a
// tenth of the time. K identifies the work that is ill, for example a partition.
//
// Work may have a group, such as the kind of a job. When work that was not known as ill takes long,
// its group is doubted: until some work of the group succeeds, or for a while, all of it is slow.
// So a hundred pieces of work that hang do not each hold a slot of healthy work to become known.
//
// The caller has the clock and the lock: Slots read no time, and one goroutine uses them.
type Slots[K comparable] struct {
	ill   map[K]*illness
	count [reasons]int
	busy  int       // calls under way
	slow  int       // those of slow work
	rest  time.Time // until then no slow work begins while healthy work waits
	since time.Time // since when slow work has been due without a begin; zero: it is not due

	doubts map[string]time.Time // until when each group is doubted
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
	case !slow:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = now
	}
	rested := !now.Before(s.rest) || now.Sub(s.since) >= restMost
	switch {
	case slow && s.Room(size) && (!healthy || rested):
		return Slow
	case healthy && s.busy < size:
		return Healthy
	}
	return Neither
}

// Room reports whether slow work may have one of so many slots, whatever else is due. Of a single
// slot it may have all, because Next gives it a tenth of the time.
func (s *Slots[K]) Room(size int) bool { return s.Rooms(size) > 0 }

// Rooms returns how many of so many slots slow work may have besides those that it has. Below 1, it
// may have none.
func (s *Slots[K]) Rooms(size int) int { return min(size-s.busy, max(1, size/2)-s.slow) }

// Begin notes that work of a lane begins.
func (s *Slots[K]) Begin(lane Lane) {
	s.busy++
	if lane != Healthy {
		s.slow++
	}
	if lane == Slow {
		s.since = time.Time{}
	}
}

// End notes that work of a lane has ended, after so much time in one of so many slots.
func (s *Slots[K]) End(lane Lane, size int, took time.Duration, now time.Time) {
	s.busy--
	if lane != Healthy {
		s.slow--
	}
	if lane == Slow {
		s.Rest(size, took, now)
	}
}

// Rest lets slow work rest while other work waits, because work took so long to no effect in one of
// so many slots: other work gets the rest of the time of all slots. Slow work that is due begins after
// ten minutes at most, also if other work calls Rest again and again.
func (s *Slots[K]) Rest(size int, took time.Duration, now time.Time) {
	if s.rest.Before(now) {
		s.rest = now
	}
	s.rest = s.rest.Add((slowShare - 1) * took / time.Duration(max(1, size)))
	most := now.Add(restMost)
	if s.rest.After(most) {
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

// Doubt notes that work of a group, which was not known as ill, took so long to no effect.
func (s *Slots[K]) Doubt(group string, took time.Duration, now time.Time) {
	if s.doubts == nil {
		s.doubts = make(map[string]time.Time)
	}
	s.doubts[group] = now.Add(min(max(slowShare*min(took, restMost), doubtLeast), restMost))
}

// Trust notes that work of a group has succeeded.
func (s *Slots[K]) Trust(group string) { delete(s.doubts, group) }

// Doubts reports whether a group is doubted.
func (s *Slots[K]) Doubts(group string, now time.Time) bool {
	until, doubted := s.doubts[group]
	if doubted && !now.Before(until) {
		delete(s.doubts, group)
		return false
	}
	return doubted
}

// AnyDoubts reports whether a group may be doubted.
func (s *Slots[K]) AnyDoubts() bool { return len(s.doubts) > 0 }

// AnySlow reports whether there may be slow work.
func (s *Slots[K]) AnySlow() bool { return len(s.ill) > 0 || s.AnyDoubts() }

// Forget forgets what is known of ill work that is not here any more, and of work that has not come
// back for an hour, unless it waits.
func (s *Slots[K]) Forget(here, waits func(K) bool, now time.Time) {
	for k, of := range s.ill {
		if !here(k) || !waits(k) && now.Sub(of.next) > remembered {
			s.Heal(k)
		}
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
