package engine

import (
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// A watch is what a client has seen of the database's clock, beside its own monotonic one, on one
// run of the server. Only over a watch as long as a session's TTL does the clock's distance from
// expires_at prove that this time passed: a clock that stepped, a server that restarted or a client
// that slept begin the watch anew.
type watch struct {
	opened    time.Time     // zero of the client's clock here
	gap       time.Duration // how long it may be without a sighting
	tolerance time.Duration // how far the offset between the clocks may spread
	run       store.Incarnation
	seen      []sighting // oldest first
}

// A sighting bounds the offset of the database's clock to the client's: it was read between sending
// and answer.
type sighting struct {
	at        time.Duration // of the answer, since opened
	low, high time.Duration
}

// sightingEvery merges what is seen in quick succession, so that a watch stays small.
const sightingEvery = 100 * time.Millisecond

func newWatch(now time.Time, ttl time.Duration) watch {
	return watch{opened: now, gap: ttl, tolerance: margin(ttl) / 2}
}

// observe takes the answer to a heartbeat: when it was sent and received, and what the database's
// clock said between.
func (w *watch) observe(sent, received time.Time, clock int64, run store.Incarnation) {
	if run != w.run || run.Marker == 0 {
		w.run, w.seen = run, nil
	}
	read := time.Duration(clock) * time.Microsecond
	s := sighting{received.Sub(w.opened), read - received.Sub(w.opened), read - sent.Sub(w.opened)}
	if run.Marker == 0 || s.high-s.low > w.tolerance {
		return // a slow round trip tells nothing, neither for the watch nor against it
	}
	if last := len(w.seen) - 1; last >= 0 && s.at-w.seen[last].at > w.gap {
		w.seen = nil
	}
	if last := len(w.seen) - 1; last > 0 && s.at-w.seen[last].at < sightingEvery {
		w.seen[last].low, w.seen[last].high = min(w.seen[last].low, s.low), max(w.seen[last].high, s.high)
	} else {
		w.seen = append(w.seen, s)
	}
	// The watch is the longest run of sightings up to now that agree, and no longer than any TTL.
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

// reset begins the watch anew.
func (w *watch) reset() { w.seen = nil }

// lasts is how long the clock was watched without a break.
func (w *watch) lasts(now time.Time) time.Duration {
	if len(w.seen) == 0 || now.Sub(w.opened)-w.seen[len(w.seen)-1].at > w.gap {
		return 0
	}
	return now.Sub(w.opened) - w.seen[0].at
}

// willLast is when the watch will have lasted so long, provided that sightings go on; never where
// there is none now.
func (w *watch) willLast(d time.Duration, now time.Time) time.Time {
	lasts := w.lasts(now)
	if lasts == 0 {
		return never
	}
	return now.Add(d - lasts)
}

// cutoff is what the database's clock is at the least, in microseconds since 1970, by the lowest
// offset of the watch. A heartbeat at clock reading c, within the watch, was before c - low on the
// client's clock; so a session whose expires_at = c + TTL lies before the cutoff has been silent
// for a TTL, whatever the offset was.
func (w *watch) cutoff(now time.Time) int64 {
	low, _ := w.offset()
	return (now.Sub(w.opened) + low).Microseconds()
}

// spread is how far the database's clock may be ahead of the cutoff.
func (w *watch) spread() time.Duration {
	low, high := w.offset()
	return high - low
}

// offset bounds what was seen of the offset of the database's clock to the client's.
func (w *watch) offset() (low, high time.Duration) {
	for i, s := range w.seen {
		if i == 0 {
			low, high = s.low, s.high
		}
		low, high = min(low, s.low), max(high, s.high)
	}
	return low, high
}
