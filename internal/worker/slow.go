package worker

import "sync/atomic"

// SlowCounts say how much work is slow, by what it waits for. One goroutine sets them, and others
// read them.
type SlowCounts struct{ by [reasons]atomic.Int64 }

// Set sets the counts, and reports whether any work is slow.
func (c *SlowCounts) Set(count func(Reason) int) (some bool) {
	for _, why := range Reasons {
		n := count(why)
		c.by[why].Store(int64(n))
		some = some || n > 0
	}
	return some
}

// Of returns how much work waits for the reason.
func (c *SlowCounts) Of(why Reason) int64 { return c.by[why].Load() }
