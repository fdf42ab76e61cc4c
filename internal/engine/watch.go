package engine

import (
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// A watch compares the database's clock with the client's own monotonic clock, on one server
// incarnation. A database clock past expires_at does not prove that the session was silent for its
// TTL, because the clock may have stepped. A watch that has lasted for this TTL proves it. The
// watch starts again if the clock steps, the server restarts or the client sleeps.
type watch struct {
	opened    time.Time     // zero of the client's clock here
	gap       time.Duration // the longest time without a sighting
	tolerance time.Duration // how far the offsets between the clocks may differ
	run       store.Incarnation
	seen      []sighting // oldest first
}

// A sighting bounds the offset between the database's clock and the client's: the clock was read
// between sending and answer.
type sighting struct {
	at        time.Duration // when the answer arrived, since opened
	low, high time.Duration
}

// sightingEvery merges sightings in quick succession, so that a watch stays small.
const sightingEvery = 100 * time.Millisecond

func newWatch(now time.Time, ttl time.Duration) watch {
	return watch{opened: now, gap: ttl, tolerance: margin(ttl) / 2}
}

// observe notes the answer to a heartbeat: when it was sent and received, and the database's clock
// in between.
func (w *watch) observe(sent, received time.Time, clock int64, run store.Incarnation) {
	if run != w.run || run.Marker == 0 {
		w.run, w.seen = run, nil
	}
	read := time.Duration(clock) * time.Microsecond
	s := sighting{received.Sub(w.opened), read - received.Sub(w.opened), read - sent.Sub(w.opened)}
	if run.Marker == 0 || s.high-s.low > w.tolerance {
		return // a slow round trip is not used, neither for the watch nor against it
	}
	last := len(w.seen) - 1
	if last >= 0 && s.at-w.seen[last].at > w.gap {
		w.seen = nil
		last = -1
	}
	if last > 0 && s.at-w.seen[last].at < sightingEvery {
		w.seen[last].low, w.seen[last].high = min(w.seen[last].low, s.low), max(w.seen[last].high, s.high)
	} else {
		w.seen = append(w.seen, s)
	}
	// The watch is the longest run of sightings up to now that agree. It is not kept for longer
	// than any TTL.
	first := len(w.seen) - 1
	low, high := s.low, s.high
	for ; first >= 0; first-- {
		low, high = min(low, w.seen[first].low), max(high, w.seen[first].high)
		if high-low > w.tolerance || s.at-w.seen[first].at > MaxTTL+time.Minute {
			break
		}
	}
	w.seen = append(w.seen[:0], w.seen[first+1:]...)
}

// reset starts the watch again.
func (w *watch) reset() { w.seen = nil }

// lasts returns how long the clock was watched without a break.
func (w *watch) lasts(now time.Time) time.Duration {
	if len(w.seen) == 0 || now.Sub(w.opened)-w.seen[len(w.seen)-1].at > w.gap {
		return 0
	}
	return now.Sub(w.opened) - w.seen[0].at
}

// willLast returns when the watch will have lasted for that time, if sightings continue; never:
// there is no watch now.
func (w *watch) willLast(d time.Duration, now time.Time) time.Time {
	lasts := w.lasts(now)
	if lasts > 0 {
		return now.Add(d - lasts)
	}
	return when.Never
}

// cutoff returns the lowest possible reading of the database's clock, in microseconds since 1970,
// by the lowest offset of the watch. A heartbeat within the watch that read c on the database's
// clock was executed at c - low or earlier on the client's clock. So a session whose expires_at =
// c + TTL is before the cutoff has been silent for a TTL, whatever the offset was: from
// cutoff > c + TTL follows now - (c - low) > TTL.
func (w *watch) cutoff(now time.Time) int64 {
	low, _ := w.offset()
	return (now.Sub(w.opened) + low).Microseconds()
}

// spread returns how far the database's clock may be ahead of the cutoff.
func (w *watch) spread() time.Duration {
	low, high := w.offset()
	return high - low
}

// offset returns the bounds of the observed offset between the database's clock and the client's.
func (w *watch) offset() (low, high time.Duration) {
	for i, s := range w.seen {
		if i == 0 {
			low, high = s.low, s.high
		}
		low, high = min(low, s.low), max(high, s.high)
	}
	return low, high
}
