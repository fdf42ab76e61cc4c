package worker

import (
	"sync/atomic"
	"time"
)

// A Moment is a time that one goroutine sets and others read, such as that of the last poll. The
// zero value is not set.
type Moment struct{ at atomic.Pointer[time.Time] }

// Set sets the moment. An equal one is not stored again, because a loop may set it in each turn.
func (m *Moment) Set(at time.Time) {
	old := m.at.Load()
	if old != nil && *old == at {
		return
	}
	stored := at
	m.at.Store(&stored)
}

// Clear makes it one that is not set.
func (m *Moment) Clear() { m.at.Store(nil) }

// Since returns the time that has passed since the moment; 0 if it is not set.
func (m *Moment) Since() time.Duration {
	at := m.at.Load()
	if at == nil {
		return 0
	}
	return time.Since(*at)
}
