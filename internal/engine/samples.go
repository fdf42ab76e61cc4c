package engine

import (
	"math/rand/v2"
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// samples is when this client next writes samples. Each client tries it once a minute at a second of
// its own, and the database lets one of them do it.
type samples struct {
	at     time.Time
	second time.Duration // of the minute
}

const (
	sampleEvery = time.Minute
	// sampleLimit bounds a call, because the other statements of the client wait for it.
	sampleLimit = 100 * time.Millisecond
	// sampleRest is the pause before what was left of this minute.
	sampleRest = time.Second
	// sampleSkips bounds how many minutes a client leaves out while another one writes the samples.
	sampleSkips = 10
)

func newSamples(off bool, now time.Time) samples {
	if off {
		return samples{at: when.Never}
	}
	s := samples{second: rand.N(50 * time.Second)} // so that what is left has time in the same minute
	s.at = s.after(now.Add(sampleEvery))
	return s
}

// after returns the first time from then on at which this client may write samples.
func (s *samples) after(then time.Time) time.Time {
	at := then.Truncate(sampleEvery).Add(s.second)
	if at.Before(then) {
		at = at.Add(sampleEvery)
	}
	return at
}

// tried handles the answer. If another client writes the samples, this client looks less often: of
// few clients soon enough that no minute is left out when that client ends.
func (s *samples) tried(sampled store.Sampled, sessions int64, now time.Time) {
	switch {
	case sampled.Remains:
		s.at = now.Add(sampleRest)
	case sampled.Wrote:
		s.at = s.after(now.Add(time.Second))
	default:
		skipped := rand.N(min(max(sessions, 1), sampleSkips))
		s.at = s.after(now.Add(time.Second + time.Duration(skipped)*sampleEvery))
	}
}
