package consumer

import (
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/worker"
)

// Stats has the numbers of a Consumer in this process, for metrics and health checks. Counters
// begin at 0 when the process starts.
type Stats struct {
	Rows        int64         // handled and deleted
	Batches     int64         // calls of the handler for a batch, or for the rows of one
	HandlerTime time.Duration // total time of these
	Failures    int64         // failed attempts
	Snoozed     int64         // rows whose handler returned Snooze
	DeadLetters int64         // rows moved to the dead letters
	Pauses      int64         // pauses of partitions because something was away
	BrokenOff   int64         // batches that were broken off by the database, the connection or a lock
	Polls       int64         // queries for rows; at most one each second when no rows come
	PollErrors  int64
	PollTime    time.Duration // total time of all polls

	// Since the last successful poll was sent, or since the process owns partitions; 0: it owns no
	// partition, or Run is not under way. An idle process polls every 5 s.
	SinceLastPoll time.Duration
	// Since the oldest batch began that is under way; 0: no batch is.
	OldestBatch time.Duration

	// Batches whose handler, or other code of the application, goes on after its context has ended
	// and 5 s have passed. Others have their slots. They keep the partitions on whose rows that code
	// may be at work.
	Overdue int64

	// Partitions that are tried less often than others, until they succeed once, because a batch
	// took longer than its timeout, because somebody else keeps a row locked, or because a
	// connection did not answer.
	SlowByTimeout, SlowByLock, SlowByConnection int64
}

type counts struct {
	rows, batches, failures, snoozed, dead atomic.Int64
	pauses, brokenOff, overdue             atomic.Int64
	polls, pollErrors                      atomic.Int64
	handlerTime, pollTime                  atomic.Int64 // nanoseconds
	slow                                   worker.SlowCounts

	polled worker.Moment // when the last successful poll was sent
	oldest worker.Moment // when the oldest batch began
	pace   atomic.Int64  // nanoseconds that the handler takes for a row; 0: not known
	size   atomic.Int64  // bytes that a row has; 0: not known
}

// follow follows a value that differs from one time to the next.
func follow(of *atomic.Int64, value int64) {
	now := of.Load()
	if now > 0 {
		value = now + (value-now)/4
	}
	of.Store(max(1, value))
}

func (c *counts) read(rows int, bytes int64) {
	if rows > 0 {
		follow(&c.size, bytes/int64(rows))
	}
}

func (c *counts) poll(took time.Duration, err error) {
	c.polls.Add(1)
	c.pollTime.Add(int64(took))
	if err != nil {
		c.pollErrors.Add(1)
		return
	}
	c.polled.Set(time.Now().Add(-took))
}

func (c *counts) handler(took time.Duration, o outcome) {
	if len(o.rows) > 0 {
		c.batches.Add(1)
		c.handlerTime.Add(int64(took))
	}
	if o.verdict == handled && o.at > 0 { // failures may be quick
		follow(&c.pace, int64(took)/int64(o.at))
	}
}

// Stats returns the numbers of the Consumer now. It sends no statement, and does not wait. It is
// safe for concurrent use, also before and after Run.
func (c *Consumer) Stats() Stats {
	n := &c.counts
	return Stats{
		Rows:        n.rows.Load(),
		Batches:     n.batches.Load(),
		HandlerTime: time.Duration(n.handlerTime.Load()),
		Failures:    n.failures.Load(),
		Snoozed:     n.snoozed.Load(),
		DeadLetters: n.dead.Load(),
		Pauses:      n.pauses.Load(),
		BrokenOff:   n.brokenOff.Load(),
		Polls:       n.polls.Load(),
		PollErrors:  n.pollErrors.Load(),
		PollTime:    time.Duration(n.pollTime.Load()),

		SinceLastPoll: n.polled.Since(),
		OldestBatch:   n.oldest.Since(),
		Overdue:       n.overdue.Load(),

		SlowByTimeout:    n.slow.Of(worker.TimedOut),
		SlowByLock:       n.slow.Of(worker.Locked),
		SlowByConnection: n.slow.Of(worker.Hung),
	}
}
