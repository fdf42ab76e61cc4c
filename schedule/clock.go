package schedule

import "time"

// doubted is how long a step of the database's clock is doubted: a clock that was set wrong for a moment does no harm. Steps of less are followed at once.
const doubted = time.Minute

// A serverClock tells the database's time between two answers of it, by the time that passes here. This host's date does not matter. It is
// not safe for concurrent use.
type serverClock struct {
	known bool
	ahead time.Duration // of the database's clock before the host's, whose date is that of processStart
	doubt time.Time     // since when it tells another time; zero: it does not
	other time.Duration // ahead by that
}

// processStart has a monotonic reading, by which times of this host are compared.
var processStart = time.Now()

// heard takes the database's time from an answer to what was sent, and reports whether it is believed. A step is believed after a while.
func (c *serverClock) heard(told, sent, answered time.Time, doubted time.Duration) bool {
	middle := sent.Add(answered.Sub(sent) / 2)
	ahead := told.Sub(undated(middle))
	switch step := (ahead - c.ahead).Abs(); {
	case !c.known || step <= time.Minute:
	case (c.doubt.IsZero() || (ahead-c.other).Abs() > time.Minute) && doubted > 0:
		c.doubt, c.other = answered, ahead
		return false
	case answered.Sub(c.doubt) < doubted:
		return false
	}
	c.known, c.ahead, c.doubt = true, ahead, time.Time{}
	return true
}

// at returns the database's time at an instant of this host.
func (c *serverClock) at(t time.Time) time.Time { return undated(t).Add(c.ahead) }

// undated is an instant of this host by what has passed since processStart: the host's date may have been set since.
func undated(t time.Time) time.Time { return processStart.Add(t.Sub(processStart)) }
