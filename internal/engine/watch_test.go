package engine

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgleases/pgleases/internal/store"
)

// A driftingClock is a database's clock as a function of true time, which is the client's: it
// drifts and steps.
type driftingClock struct {
	ppm   float64
	steps []clockStep
}

type clockStep struct{ at, by time.Duration }

// at returns the reading at a true time.
func (c *driftingClock) at(t time.Duration) time.Duration {
	reading := 900_000*time.Hour + t + time.Duration(float64(t)*c.ppm/1e6)
	for _, s := range c.steps {
		if s.at <= t {
			reading += s.by
		}
	}
	return reading
}

// A watcher feeds a watch with heartbeats.
type watcher struct {
	watch
	opened time.Time
	clock  driftingClock
	run    store.Incarnation
}

func newWatcher(ttl time.Duration) *watcher {
	opened := time.Now()
	run := store.Incarnation{Timeline: 1, Started: 1, Marker: 1}
	return &watcher{watch: newWatch(opened, ttl), opened: opened, run: run}
}

// beat sends a heartbeat at a true time, with these durations there and back.
func (w *watcher) beat(sent, there, back time.Duration) {
	w.observe(w.opened.Add(sent), w.opened.Add(sent+there+back), w.clock.at(sent+there).Microseconds(), w.run)
}

// beats sends n heartbeats from the opening on, one every 2 s.
func (w *watcher) beats(n int) {
	for i := range n {
		w.beat(time.Duration(i)*2*time.Second, time.Millisecond, time.Millisecond)
	}
}

func (w *watcher) lastsAt(t time.Duration) time.Duration { return w.lasts(w.opened.Add(t)) }

func (w *watcher) cutoffAt(t time.Duration) time.Duration {
	return time.Duration(w.cutoff(w.opened.Add(t))) * time.Microsecond
}

// TestCutoffEvictsOnlySessionsSilentForATTL lets a clock drift and step in all ways, at most
// once between two readings, and a victim heartbeat at any time.
func TestCutoffEvictsOnlySessionsSilentForATTL(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ttls := []time.Duration{time.Second, 2 * time.Second, 6 * time.Second, time.Minute, 10 * time.Minute}
		own, victims := rapid.SampledFrom(ttls).Draw(t, "own TTL"), rapid.SampledFrom(ttls).Draw(t, "the victim's TTL")
		w := newWatcher(own)
		w.clock.ppm = rapid.Float64Range(-500, 500).Draw(t, "ppm")
		beats := rapid.IntRange(1, 100).Draw(t, "beats")
		now := time.Duration(0)
		trip := rapid.Custom(func(t *rapid.T) time.Duration {
			most := rapid.SampledFrom([]time.Duration{time.Millisecond, margin(own) / 16, margin(own)}).Draw(t, "most")
			return time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, "trip"))
		})
		var heard []time.Duration     // times of the victim's heartbeats
		var last, apart time.Duration // the last reading of the clock, and the longest time between two readings
		for i := range beats {
			period := own / time.Duration(rapid.IntRange(2, 4).Draw(t, "period"))
			heard = append(heard, now+time.Duration(rapid.Int64Range(0, int64(period)).Draw(t, "heard")))
			there, back := trip.Draw(t, "there"), trip.Draw(t, "back")
			counted := len(w.seen)
			w.beat(now, there, back)
			seen := there+back <= w.tolerance/2 || len(w.seen) > counted
			answered := now + there + back
			if w.lastsAt(answered) > 0 && seen && w.cutoffAt(answered) > w.clock.at(answered) {
				t.Fatalf("beat %d: the cutoff %v is past the clock %v", i, w.cutoffAt(answered), w.clock.at(answered))
			}
			if seen && rapid.IntRange(0, 9).Draw(t, "steps") == 0 { // and the clock is read before the next step
				far := rapid.SampledFrom([]time.Duration{time.Hour, own, margin(own)}).Draw(t, "far")
				w.clock.steps = append(w.clock.steps, clockStep{answered + time.Microsecond,
					time.Duration(rapid.Int64Range(-int64(far), int64(far)).Draw(t, "by"))})
			}
			evict := answered + time.Duration(rapid.Int64Range(0, int64(period)).Draw(t, "evicted after"))
			apart = max(apart, answered-last)
			if seen {
				last = answered
			}
			// Readings are whole microseconds, and drift between two readings is not seen.
			drift := time.Microsecond + time.Duration(float64(max(apart, evict-last))*math.Abs(w.clock.ppm)/1e6)
			if lasts := w.lastsAt(evict); lasts >= victims && len(w.seen) > 0 {
				// This is what the statement checks in the database.
				cutoff, clock := w.cutoffAt(evict), w.clock.at(evict)
				for _, h := range heard {
					expires := w.clock.at(h) + victims
					condemned := h <= evict && clock >= cutoff && expires < cutoff
					if silent := evict - h; condemned && silent < victims-drift {
						t.Fatalf("a victim heard %v ago, with TTL %v, is condemned by a watch of %v",
							silent, victims, lasts)
					}
				}
			}
			now = max(answered, now+period)
		}
	})
}

func TestAWatchGrowsWithTime(t *testing.T) {
	t.Parallel()
	w := newWatcher(6 * time.Second)
	if got := w.lastsAt(time.Hour); got != 0 {
		t.Errorf("it lasts %v without a sighting", got)
	}
	w.beats(10)
	if got, want := w.lastsAt(19*time.Second), 19*time.Second-2*time.Millisecond; got != want {
		t.Errorf("it lasts %v, not %v", got, want)
	}
}

func TestAWatchBeginsAnewWhenTheClockSteps(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{
		-time.Hour, -time.Second, -400 * time.Millisecond, 400 * time.Millisecond, time.Second, time.Hour,
	} {
		w := newWatcher(6 * time.Second) // tolerates 150 ms
		w.clock.steps = []clockStep{{19 * time.Second, by}}
		w.beats(15)
		if got := w.lastsAt(28 * time.Second); got > 9*time.Second {
			t.Errorf("after a step by %v at 19s, it lasts %v at 28s", by, got)
		}
		if got := w.lastsAt(28 * time.Second); got < 7*time.Second {
			t.Errorf("after a step by %v at 19s, it lasts only %v at 28s", by, got)
		}
	}
}

func TestASlowRoundTripNeitherCountsNorResetsAWatch(t *testing.T) {
	t.Parallel()
	w := newWatcher(6 * time.Second)
	w.beat(0, 2*time.Second, 0)
	if len(w.seen) != 0 {
		t.Fatalf("a round trip of 2s began a watch")
	}
	w.beat(2*time.Second, time.Millisecond, 0)
	w.beat(4*time.Second, time.Second, time.Second)
	w.beat(6*time.Second, time.Second, 0)
	w.beat(7*time.Second, 0, time.Millisecond)
	if got, want := w.lastsAt(8*time.Second), 6*time.Second-time.Millisecond; got != want {
		t.Errorf("it lasts %v, not %v", got, want)
	}
}

func TestAWatchWithoutSightingsForATTLIsNone(t *testing.T) {
	t.Parallel()
	w := newWatcher(6 * time.Second)
	w.beats(5)
	// The clock may step twice while every round trip is slow.
	for i := range 5 {
		w.beat(10*time.Second+time.Duration(i)*2*time.Second, time.Second, time.Second)
	}
	if got := w.lastsAt(20 * time.Second); got != 0 {
		t.Errorf("it lasts %v, 12 s after the last sighting", got)
	}
	w.beat(20*time.Second, time.Millisecond, time.Millisecond)
	if got := w.lastsAt(21 * time.Second); got > time.Second {
		t.Errorf("it lasts %v, one second after the first sighting again", got)
	}
}

func TestAWatchIsOfOneRunOfTheServer(t *testing.T) {
	t.Parallel()
	for _, next := range []store.Incarnation{
		{Timeline: 2, Started: 1, Marker: 1},
		{Timeline: 1, Started: 2, Marker: 1},
		{Timeline: 1, Started: 1, Marker: 2},
	} {
		w := newWatcher(6 * time.Second)
		w.beats(5)
		w.run = next
		w.beat(10*time.Second, time.Second, time.Second) // even one that is not a sighting
		if got := w.lastsAt(12 * time.Second); got != 0 {
			t.Errorf("it lasts %v on run %v", got, next)
		}
		w.beat(12*time.Second, time.Millisecond, 0)
		if got := w.lastsAt(13 * time.Second); got > time.Second {
			t.Errorf("it lasts %v on run %v", got, next)
		}
	}
}

func TestAWatchNeedsAMark(t *testing.T) {
	t.Parallel()
	w := newWatcher(6 * time.Second)
	w.run.Marker = 0
	w.beats(10)
	if got := w.lastsAt(20 * time.Second); got != 0 {
		t.Errorf("it lasts %v on a run without a mark", got)
	}
}

func TestAWatchOutlivesDrift(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{time.Second, 6 * time.Second, time.Minute, 10 * time.Minute} {
		for _, ppm := range []float64{-200, 200} {
			t.Run(fmt.Sprintf("%v at %v ppm", ttl, ppm), func(t *testing.T) {
				w := newWatcher(ttl)
				w.clock.ppm = ppm
				period := ttl / 3
				for i := range int(2 * time.Hour / period) {
					at := time.Duration(i) * period
					w.beat(at, margin(ttl)/40, margin(ttl)/40)
					if got := w.lastsAt(at + margin(ttl)/20); at > 2*ttl && got < ttl {
						t.Fatalf("after %v it lasts %v only", at, got)
					}
				}
			})
		}
	}
}

func TestAWatchStaysSmall(t *testing.T) {
	t.Parallel()
	for period, length := range map[time.Duration]time.Duration{
		2 * time.Second:       4 * time.Hour,
		50 * time.Millisecond: MaxTTL + 5*time.Minute,
	} {
		w := newWatcher(6 * time.Second)
		for at := time.Duration(0); at < length; at += period {
			w.beat(at, time.Millisecond, time.Millisecond)
		}
		most := int((MaxTTL + 2*time.Minute) / sightingEvery) // it keeps those of MaxTTL and a minute
		if n, room := len(w.seen), cap(w.seen); n > most || room > 3*most {
			t.Errorf("%d sightings and room for %d after %v of heartbeats every %v, want at most %d",
				n, room, length, period, most)
		}
		if got := w.lastsAt(length); got < MaxTTL {
			t.Errorf("the watch lasts %v after %v: no client with a TTL of %v could be evicted", got, length, MaxTTL)
		}
	}
}
