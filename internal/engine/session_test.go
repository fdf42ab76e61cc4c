package engine

import (
	"testing"
	"time"
)

// Heartbeats come once in an interval. Those of many clients are far apart after one that they may
// have sent together.
func TestHeartbeatsOfManyClientsAreFarApart(t *testing.T) {
	const interval = 2 * time.Second
	const half = interval / 2
	now := time.Now()
	for what, c := range map[string]struct {
		before         func(s *session)
		earliest, most time.Duration
	}{
		"in calm":                {func(*session) {}, interval * 99 / 100, interval / 100},
		"after a new connection": {func(s *session) { s.beatNow() }, half, half},
		"after a failure":        {func(s *session) { s.beatLost(s.renewal, interval, now) }, half, half},
		"after a server's silence": {func(s *session) {
			s.beatAnswered(now.Add(-interval), now, interval)
		}, half, half},
	} {
		first, last := 2*interval, time.Duration(0)
		for range 1000 {
			s := newSession(now)
			c.before(&s)
			s.beatAnswered(now, now.Add(time.Millisecond), interval)
			pause := s.nextBeat.Sub(now)
			first, last = min(first, pause), max(last, pause)
		}
		if first < c.earliest || last > interval || last-first < c.most*9/10 {
			t.Errorf("%s, the next heartbeats come after %v to %v", what, first, last)
		}
	}
}
