package consumer

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// keysOfOutage is how many keys of a process fail in a row before the reason is searched elsewhere.
const keysOfOutage = 3

// An outage is what all jobs of a Run know about something that handlers need and that is away. It
// is safe for concurrent use.
type outage struct {
	log *slog.Logger

	mu     sync.Mutex // guards the following fields
	failed []string   // keys that failed since the last success
	away   bool       // it is logged that something is away
	broke  time.Time  // when it was last logged that a batch was broken off
	last   string     // the last error
}

// seems notes that the key of a row failed, and reports whether so many have failed since the last
// success in this process that something seems to be away. Keys that were blocked already say
// nothing about that.
func (o *outage) seems(r row) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.attempts == 0 && !slices.Contains(o.failed, r.key) {
		o.failed = append(o.failed, r.key)
	}
	return len(o.failed) >= keysOfOutage
}

// ends notes that a row was handled, so that nothing is away.
func (o *outage) ends() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed, o.away = o.failed[:0], false
}

// paused notes that a partition pauses for an error. It is logged once until rows are handled again.
func (o *outage) paused(p *part, why error) {
	o.mu.Lock()
	logged := o.away
	o.away, o.last = true, why.Error()
	o.mu.Unlock()
	if !logged {
		o.log.Warn("consumer: partition paused, no attempt is counted", slog.Int("partition", p.Number), slog.Any("error", why))
	}
}

// brokeOff notes that a batch was broken off. It is logged once a second for all partitions.
func (o *outage) brokeOff(parts []*part, err error) {
	o.mu.Lock()
	log := time.Since(o.broke) > time.Second
	o.last = fmt.Sprint(err)
	if log {
		o.broke = time.Now()
	}
	o.mu.Unlock()
	if log {
		o.log.Warn("consumer: batch broken off, repeated", slog.Int("partition", parts[0].Number), slog.Int("partitions", len(parts)), slog.Any("error", err))
	}
}

// lastError returns the last error; empty if there was none.
func (o *outage) lastError() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}
