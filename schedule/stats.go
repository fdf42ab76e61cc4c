package schedule

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/worker"
)

func init() {
	bridge.Lateness = func(scheduler any) map[string]bridge.Delays { return scheduler.(*Scheduler).registry.delays() }
}

// Stats has the numbers of a Scheduler in this process, for metrics and health checks. Counters
// begin at 0 when the process starts.
type Stats struct {
	Partitions int // owned
	Running    int // handlers under way, or reading their arguments, at most WithMaxRunning besides those in Overdue
	// Waiting counts schedules and jobs that are due, and wait for room or for another run of their
	// key. If there are many, it counts those that the last poll returned.
	Waiting int
	// Schedules and jobs that are due soon and may crash their process. See WithMaxCrashes
	CrashSuspects int
	Polls         int64         // polls for due schedules and jobs; about one each second
	PollErrors    int64         // failed polls
	PollTime      time.Duration // total time of all polls
	// Since the last successful poll was sent, or since Run began; 0: Run is not under way
	SinceLastPoll time.Duration
	// Since the oldest run began that is under way; 0: no run is, or Run is not under way
	OldestRun time.Duration
	// Runs whose handler, or other code of the application, goes on after its context has ended and
	// 10 s have passed. They keep their keys and partitions, and others have the places of up to 100.
	Overdue int
	// Schedules and jobs that run or are due soon, and are tried less often than others until they
	// succeed once: a run took longer than its timeout, somebody else keeps a row locked, or a
	// connection did not answer.
	SlowByTimeout, SlowByLock, SlowByConnection int
	// The database's clock minus the clock of this host; 0: not known yet
	ClockOffset time.Duration
	// The database's clock has stepped: no run begins until it is trusted
	ClockUnstable bool
	Kinds         map[string]KindStats // by name, all registered kinds; the caller owns the map
}

// KindStats has the numbers of a kind. The outcomes are those that this process recorded, one for
// each tick or job. If the answer to a commit was lost, its outcome is not counted.
type KindStats struct {
	Running int   // handlers under way, or reading their arguments
	Begun   int64 // calls of the handler, including repeated calls for one tick
	Retried int64 // runs that failed and run again: see WithMaxAttempts
	Snoozed int64 // runs whose handler returned Snooze
	// runs whose handler returned Unavailable
	Unavailable int64
	Succeeded   int64 // OutcomeSucceeded
	Failed      int64 // OutcomeFailed
	Unknown     int64 // OutcomeUnknown
	Missed      int64 // OutcomeMissed
	Skipped     int64 // OutcomeSkipped
	// Total time from when runs were due to the calls of the handler, by the database's clock: by
	// Begun, the mean lateness. A tick is due at its time plus its jitter, and a retried tick when
	// its retry is. The metric pgleases.schedule.lateness has the distribution.
	TotalLateness time.Duration
}

// Stats returns the numbers of the Scheduler now. It sends no statement, and does not wait. It is
// safe for concurrent use, also before and after Run.
func (s *Scheduler) Stats() Stats {
	c := &s.counts
	st := Stats{
		Polls: c.polls.Load(), PollErrors: c.pollErrors.Load(), PollTime: time.Duration(c.pollTime.Load()),
		Kinds: s.registry.stats(),
	}
	for _, k := range st.Kinds {
		st.Running += k.Running
	}
	p := s.planner.Load()
	if p == nil {
		return st
	}
	st.Waiting, st.CrashSuspects = int(c.waiting.Load()), int(c.suspects.Load())
	st.Overdue = int(c.overdue.Load())
	st.SinceLastPoll, st.OldestRun = c.polled.Since(), c.oldest.Since()
	st.SlowByTimeout, st.SlowByLock = int(c.slow.Of(worker.TimedOut)), int(c.slow.Of(worker.Locked))
	st.SlowByConnection = int(c.slow.Of(worker.Hung))
	st.Partitions = len(p.owned.all())
	now := time.Now()
	if server, known := p.clock.at(now); known {
		// the difference of the clocks, not of elapsed time
		st.ClockOffset = server.Round(0).Sub(now.Round(0))
	}
	st.ClockUnstable = p.clock.unstable()
	return st
}

// counts has the numbers of a Scheduler.
type counts struct {
	polls, pollErrors, pollTime atomic.Int64
	polled                      worker.Moment // when the last successful poll was sent
	oldest                      worker.Moment // when the oldest run began that is under way
	waiting, suspects, overdue  atomic.Int64
	slow                        worker.SlowCounts
}

// poll counts a poll.
func (c *counts) poll(sent time.Time, err error) {
	c.polls.Add(1)
	c.pollTime.Add(int64(time.Since(sent)))
	if err != nil {
		c.pollErrors.Add(1)
		return
	}
	c.polled.Set(sent)
}

// kindCounts has the numbers of a kind.
type kindCounts struct {
	mu    sync.Mutex // guards the following fields
	stats KindStats
	late  [len(bridge.DelayBounds) + 1]int64 // the last counts what is later than all bounds
}

// count changes the numbers.
func (c *kindCounts) count(change func(k *KindStats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.stats)
}

// begin counts a call with its lateness, and returns a function that counts the end of the call.
func (c *kindCounts) begin(late time.Duration) (end func()) {
	late = max(0, late)
	bucket, _ := slices.BinarySearch(bridge.DelayBounds[:], late)
	c.count(func(k *KindStats) {
		c.late[bucket]++
		k.TotalLateness += late
		k.Begun++
		k.Running++
	})
	return func() { c.count(func(k *KindStats) { k.Running-- }) }
}

// reading counts the reading of arguments as running, and returns a function that counts its end.
func (c *kindCounts) reading() (end func()) {
	c.count(func(k *KindStats) { k.Running++ })
	return func() { c.count(func(k *KindStats) { k.Running-- }) }
}

// again counts a run that runs again, because of what its handler said.
func (c *kindCounts) again(verdict worker.Fault) {
	c.count(func(k *KindStats) {
		switch verdict {
		case worker.Snoozed:
			k.Snoozed++
		case worker.Away:
			k.Unavailable++
		default:
			k.Retried++
		}
	})
}

// wrote counts committed outcomes.
func (c *kindCounts) wrote(outcomes []newEntry) {
	c.count(func(k *KindStats) {
		of := map[Outcome]*int64{
			OutcomeSucceeded: &k.Succeeded, OutcomeFailed: &k.Failed, OutcomeUnknown: &k.Unknown,
			OutcomeMissed: &k.Missed, OutcomeSkipped: &k.Skipped,
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
	return c.stats
}

// delays returns how late the calls were.
func (c *kindCounts) delays() (d bridge.Delays) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, n := range c.late {
		d.Count += n
		if i < len(d.Within) {
			d.Within[i] = d.Count
		}
	}
	return d
}
