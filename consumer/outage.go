package consumer

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/ranges"
)

// keysOfOutage is how many keys of a process fail in a row before the reason is searched elsewhere.
const keysOfOutage = 3

// An outage is what all jobs of a Run know about something that handlers need and that is away. It
// is safe for concurrent use.
type outage struct {
	log   *slog.Logger
	lines logqueue.Joiner // of pauses that come again and again

	mu     sync.Mutex       // guards the following fields
	failed []failedKey      // those since the last success
	away   map[int]struct{} // partitions that were paused since then, of which the first is logged
	since  time.Time        // when the first of them was paused
	broke  time.Time        // when it was last logged that a batch was broken off
	// when it was last logged that this happened during a commit that has no answer
	doubted time.Time
	last    string // the last error
}

// A failedKey is a key whose row has failed. Without a column of keys, the partition is the key.
type failedKey struct {
	partition int
	key       string
}

// seems notes that the key of a row failed, and reports whether so many have failed since the last
// success in this process that something seems to be away. Keys that were blocked already say
// nothing about that.
func (o *outage) seems(r row) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	of := failedKey{r.partition.Number, r.key}
	if r.attempts == 0 && !slices.Contains(o.failed, of) {
		o.failed = append(o.failed, of)
	}
	return len(o.failed) >= keysOfOutage
}

// pausing is the reason of the lines that the lines of pauses are joined with.
var pausing = logqueue.Reason{Message: "paused"}

// succeeded notes that a row of a partition was handled. If the partition was paused, what was away
// is back, so all that are paused try again.
func (o *outage) succeeded(p *part, wasPaused bool) {
	o.mu.Lock()
	o.failed = o.failed[:0]
	lasted := time.Since(o.since)
	ended := wasPaused && len(o.away) > 0
	if ended {
		clear(o.away)
	}
	o.mu.Unlock()
	if ended {
		lasted = lasted.Round(time.Millisecond)
		o.lines.Follow(pausing, func() {
			o.log.Info("consumer: pause of partitions ended",
				slog.Int("partition", p.Number), slog.Duration("for", lasted))
		})
	}
}

// paused notes that a partition pauses for an error. It is logged for the first one only, and pauses
// that follow on each other are logged together.
func (o *outage) paused(p *part, why error) {
	o.mu.Lock()
	first := len(o.away) == 0
	if first {
		o.away, o.since = make(map[int]struct{}), time.Now()
	}
	o.away[p.Number] = struct{}{}
	o.last = why.Error()
	o.mu.Unlock()
	if first {
		o.logPaused(p, why)
	}
}

func (o *outage) logPaused(p *part, why error) {
	o.lines.Add(pausing, []int{p.Number}, func(numbers []int, lines int) {
		if lines == 0 {
			o.log.Warn("consumer: partition paused, no attempt is counted",
				slog.Int("partition", p.Number), slog.Any("error", why))
			return
		}
		o.log.Warn("consumer: partition paused, no attempt is counted",
			slog.String("partitions", ranges.Logged(numbers)),
			slog.Int("count", len(numbers)), slog.Int("lines", lines), slog.Any("error", why))
	})
}

// left notes that this process handles no rows of a partition any more.
func (o *outage) left(number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.away, number)
}

// brokeOff notes that a batch was broken off. It is logged once a second for all partitions, and once
// a second if the answer to the commit is missing. Then only the rows that are still there are
// handled again.
func (o *outage) brokeOff(parts []*part, err error) {
	doubtful := handlers.MayBeCommitted(err)
	logged := &o.broke
	if doubtful {
		logged = &o.doubted
	}
	o.mu.Lock()
	log := time.Since(*logged) > time.Second
	o.last = fmt.Sprint(err)
	if log {
		*logged = time.Now()
	}
	o.mu.Unlock()
	if !log {
		return
	}
	if doubtful {
		o.log.Warn("consumer: batch broken off during its commit, perhaps committed",
			slog.Int("partition", parts[0].Number), slog.Int("partitions", len(parts)), slog.Any("error", err))
		return
	}
	o.log.Warn("consumer: batch broken off, repeated",
		slog.Int("partition", parts[0].Number), slog.Int("partitions", len(parts)), slog.Any("error", err))
}

// lastError returns the last error; empty if there was none.
func (o *outage) lastError() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}
