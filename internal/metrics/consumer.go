package metrics

import (
	"time"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/worker"
)

// Consumer returns the source for a consumer.
func Consumer(c *consumer.Consumer) Source {
	return newSource(ofConsumer, map[string]string{"consumer": c.Name()}, func() *consumer.Stats {
		now := c.Stats()
		return &now
	})
}

var ofConsumer = []entry[consumer.Stats]{
	{Metric{"pgleases.consumer.rows", "{row}", Counter, nil,
		"Rows that were handled and deleted."},
		count(func(c *consumer.Stats) int64 { return c.Rows }), nil},
	{Metric{"pgleases.consumer.batches", "{call}", Counter, nil,
		"Calls of the handler for a batch, or for the rows of one."},
		count(func(c *consumer.Stats) int64 { return c.Batches }), nil},
	{Metric{"pgleases.consumer.handler.time", "s", Counter, nil,
		"Total time of these calls."},
		seconds(func(c *consumer.Stats) time.Duration { return c.HandlerTime }), nil},
	{Metric{"pgleases.consumer.failures", "{attempt}", Counter, nil,
		"Failed attempts."},
		count(func(c *consumer.Stats) int64 { return c.Failures }), nil},
	{Metric{"pgleases.consumer.snoozed", "{row}", Counter, nil,
		"Rows that wait because their handler said so."},
		count(func(c *consumer.Stats) int64 { return c.Snoozed }), nil},
	{Metric{"pgleases.consumer.dead_letters", "{row}", Counter, nil,
		"Rows that were moved to the dead letters."},
		count(func(c *consumer.Stats) int64 { return c.DeadLetters }), nil},
	{Metric{"pgleases.consumer.pauses", "{pause}", Counter, nil,
		"Pauses of partitions, because something that handlers need was away."},
		count(func(c *consumer.Stats) int64 { return c.Pauses }), nil},
	{Metric{"pgleases.consumer.broken_off", "{batch}", Counter, nil,
		"Batches that the database, the connection or a lock broke off."},
		count(func(c *consumer.Stats) int64 { return c.BrokenOff }), nil},
	{Metric{"pgleases.consumer.partition.slow", "{partition}", Level, []string{"waits_for"},
		"Partitions that are tried less often until they succeed, by what they wait for."},
		func(c *consumer.Stats, to add) {
			to(float64(c.SlowByTimeout), worker.TimedOut.String())
			to(float64(c.SlowByLock), worker.Locked.String())
			to(float64(c.SlowByConnection), worker.Hung.String())
		}, nil},
	{Metric{"pgleases.consumer.overdue", "{call}", Level, nil,
		"Calls that have not ended 5 s after their context, and whose slot went to others."},
		count(func(c *consumer.Stats) int64 { return c.Overdue }), nil},
	{Metric{"pgleases.consumer.polls", "{poll}", Counter, nil,
		"Polls for rows to handle."},
		count(func(c *consumer.Stats) int64 { return c.Polls }), nil},
	{Metric{"pgleases.consumer.poll.errors", "{poll}", Counter, nil,
		"Failed polls for rows to handle."},
		count(func(c *consumer.Stats) int64 { return c.PollErrors }), nil},
	{Metric{"pgleases.consumer.poll.time", "s", Counter, nil,
		"Total time of the polls for rows to handle."},
		seconds(func(c *consumer.Stats) time.Duration { return c.PollTime }), nil},
	{Metric{"pgleases.consumer.poll.age", "s", Gauge, nil,
		"Time since the last successful poll was sent; 0 if the process owns no partition."},
		seconds(func(c *consumer.Stats) time.Duration { return c.SinceLastPoll }), nil},
	{Metric{"pgleases.consumer.batch.age", "s", Gauge, nil,
		"Time since the oldest batch began that is under way; 0 if no batch is."},
		seconds(func(c *consumer.Stats) time.Duration { return c.OldestBatch }), nil},
}
