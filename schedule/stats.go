package schedule

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Stats are the numbers of a scheduler in this process, for metrics and health checks. Counters
// begin with the process.
type Stats struct {
	Partitions int // owned
	Running    int // handlers under way, at most as many as WithMaxRunning says
	// Waiting counts schedules and jobs that are due, and wait for one of those to end, or for a run
	// under their key; of many, those that a poll found.
	Waiting       int
	CrashSuspects int                  // schedules and jobs that are due soon, and may crash their process: see WithMaxCrashes
	Polls         int64                // for what is due; about one each second
	PollErrors    int64                // of these
	PollTime      time.Duration        // that all of them took
	SinceLastPoll time.Duration        // since the last that succeeded was sent, or since Run began; 0: Run is not under way
	ClockOffset   time.Duration        // of the database's clock before that of this host; 0: it is not known yet
	ClockUnstable bool                 // that clock has stepped: no run begins until it is trusted
	Kinds         map[string]KindStats // by name, all that are registered. It is the caller's
}

// KindStats are the numbers of a kind. They count what this process wrote down, of one tick or one
// job each. If the answer to a commit was lost, it is not counted.
type KindStats struct {
	Running   int      // handlers under way
	Begun     int64    // calls of the handler, also again for the same tick
	Retried   int64    // runs that failed, and run again: see WithMaxAttempts
	Snoozed   int64    // runs that their handler has put off: see Snooze
	Succeeded int64    // OutcomeSucceeded
	Failed    int64    // OutcomeFailed
	Unknown   int64    // OutcomeUnknown
	Missed    int64    // OutcomeMissed
	Skipped   int64    // OutcomeSkipped
	Lateness  Lateness // of the calls
}

// Lateness is how long after they were due handlers were called, by the database's clock. A tick is
// due at its time and its jitter; a tick that is retried is due when its retry is.
type Lateness struct {
	Count  int64
	Sum    time.Duration
	Within []int64 // how many were no later than the bound of the same index in LatenessBounds. It is the caller's
}

var latenessBounds = [...]time.Duration{
	5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, time.Hour,
}

// LatenessBounds returns the bounds of Lateness.Within, from 5ms to 1h. The slice is the caller's.
func LatenessBounds() []time.Duration {
	return slices.Clone(latenessBounds[:])
}

// Stats returns the scheduler's numbers now. It sends no statement, and waits for nothing. It is
// safe for concurrent use, also before Run and after it.
func (s *Scheduler) Stats() Stats {
	c := &s.counts
	st := Stats{Polls: c.polls.Load(), PollErrors: c.pollErrors.Load(), PollTime: time.Duration(c.pollTime.Load()), Kinds: s.registry.stats()}
	for _, k := range st.Kinds {
		st.Running += k.Running
	}
	p := s.planner.Load()
	if p == nil {
		return st
	}
	st.Waiting, st.CrashSuspects = int(c.waiting.Load()), int(c.suspects.Load())
	st.SinceLastPoll = time.Since(processStart) - time.Duration(c.polled.Load())
	st.Partitions = len(p.owned.all())
	now := time.Now()
	if server, known := p.clock.at(now); known {
		st.ClockOffset = server.Round(0).Sub(now.Round(0)) // what the clocks show, not what has passed
	}
	st.ClockUnstable = p.clock.unstable()
	return st
}

// counts are what Stats returns of a scheduler.
type counts struct {
	polls, pollErrors, pollTime atomic.Int64
	polled                      atomic.Int64 // when the last look that did not fail was sent: how long after processStart
	waiting, suspects           atomic.Int64
}

// poll counts a poll.
func (c *counts) poll(sent time.Time, err error) {
	c.polls.Add(1)
	c.pollTime.Add(int64(time.Since(sent)))
	if err != nil {
		c.pollErrors.Add(1)
		return
	}
	c.polled.Store(int64(sent.Sub(processStart)))
}

// kindCounts are what Stats returns of a kind.
type kindCounts struct {
	mu    sync.Mutex // guards what follows
	stats KindStats
	late  [len(latenessBounds) + 1]int64 // the last is of those beyond all bounds
}

// count changes the numbers.
func (c *kindCounts) count(change func(k *KindStats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.stats)
}

// begin counts a call that is so late, until the returned function is called.
func (c *kindCounts) begin(late time.Duration) (end func()) {
	late = max(0, late)
	bucket, _ := slices.BinarySearch(latenessBounds[:], late)
	c.count(func(k *KindStats) {
		c.late[bucket]++
		k.Lateness.Sum += late
		k.Begun++
		k.Running++
	})
	return func() { c.count(func(k *KindStats) { k.Running-- }) }
}

// wrote counts outcomes that were committed.
func (c *kindCounts) wrote(outcomes []newEntry) {
	c.count(func(k *KindStats) {
		of := map[Outcome]*int64{
			OutcomeSucceeded: &k.Succeeded, OutcomeFailed: &k.Failed, OutcomeUnknown: &k.Unknown, OutcomeMissed: &k.Missed, OutcomeSkipped: &k.Skipped,
		}
		for _, o := range outcomes {
			if n := of[o.Outcome]; n != nil {
				*n += o.Ticks
			}
		}
	})
}

// now returns the numbers.
func (c *kindCounts) now() KindStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.stats
	for i, n := range c.late {
		k.Lateness.Count += n
		if i < len(latenessBounds) {
			k.Lateness.Within = append(k.Lateness.Within, k.Lateness.Count)
		}
	}
	return k
}
