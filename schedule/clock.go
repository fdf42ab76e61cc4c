package schedule

import (
	"sync"
	"time"
)

// maxStep is how large a step of the database's clock is accepted at once. A larger step is
// doubted, so a clock that is wrong for a moment does no harm.
const maxStep = time.Minute

// A serverClock computes the database's time between two answers, from the time that elapses on
// this host. The date of this host does not matter. It is safe for concurrent use.
type serverClock struct {
	staged func() time.Time // the clock of a test; nil: the database's

	mu    sync.Mutex    // guards the following fields
	known bool          // an answer has arrived
	ahead time.Duration // the database's clock minus that of this host, as of undated
	// since when the database shows an unexpected time; zero: it shows the expected time
	doubt time.Time
	other time.Duration // ahead according to that time
}

// processStart has a monotonic reading, which makes times of this host comparable.
var processStart = time.Now()

// heard takes the database's time from an answer, and reports whether it is trusted. A step is
// trusted after a while.
func (c *serverClock) heard(shows, sent, answered time.Time, doubted time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	middle := sent.Add(answered.Sub(sent) / 2)
	ahead := shows.Sub(undated(middle))
	switch step := (ahead - c.ahead).Abs(); {
	case !c.known || step <= maxStep:
	case (c.doubt.IsZero() || (ahead-c.other).Abs() > maxStep) && doubted > 0:
		c.doubt, c.other = answered, ahead
		return false
	case answered.Sub(c.doubt) < doubted:
		return false
	}
	c.known, c.ahead = true, ahead
	c.doubt = time.Time{}
	return true
}

// unstable reports whether the clock has stepped and is not trusted yet.
func (c *serverClock) unstable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.doubt.IsZero()
}

// at returns the database's time at an instant of this host, and whether it is known.
func (c *serverClock) at(t time.Time) (server time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return undated(t).Add(c.ahead), c.known
}

// now returns the trusted time of the database.
func (c *serverClock) now() time.Time {
	if c.staged != nil {
		return c.staged()
	}
	now, _ := c.at(time.Now())
	return now
}

// undated returns an instant of this host, computed from the time elapsed since processStart,
// because the host's date may have been set since.
func undated(t time.Time) time.Time { return processStart.Add(t.Sub(processStart)) }
