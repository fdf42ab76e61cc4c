package schedule

import (
	"sync"
	"time"
)

// clockDoubt is how long a step of the database's clock is doubted: a clock that was set wrong for
// a moment does no harm. Steps of less than maxStep are followed at once.
const (
	clockDoubt = time.Minute
	maxStep    = time.Minute
)

// A serverClock tells the database's time between two answers of it, by the time that passes here.
// This host's date does not matter. It is safe for concurrent use.
type serverClock struct {
	staged func() time.Time // the time of a test; nil: the database's

	mu    sync.Mutex    // guards what follows
	known bool          // it was heard
	ahead time.Duration // of the database's clock before the host's, whose date is that of processStart
	doubt time.Time     // since when it shows another time; zero: it does not
	other time.Duration // ahead by that
}

// processStart has a monotonic reading, by which times of this host are compared.
var processStart = time.Now()

// heard takes the database's time from an answer to what was sent, and reports whether it is
// trusted. A step is trusted after a while.
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
	c.known, c.ahead, c.doubt = true, ahead, time.Time{}
	return true
}

// unstable reports whether the clock has stepped, and is not trusted yet.
func (c *serverClock) unstable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.doubt.IsZero()
}

// at returns the database's time at an instant of this host, and whether it was ever heard.
func (c *serverClock) at(t time.Time) (server time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return undated(t).Add(c.ahead), c.known
}

// now returns the database's time, as far as it is trusted.
func (c *serverClock) now() time.Time {
	if c.staged != nil {
		return c.staged()
	}
	now, _ := c.at(time.Now())
	return now
}

// undated is an instant of this host by what has passed since processStart: the host's date may
// have been set since.
func undated(t time.Time) time.Time { return processStart.Add(t.Sub(processStart)) }
