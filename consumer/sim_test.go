package consumer

import (
	"context"
	"log/slog"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/listen"
)

// simulated is a planner without a database, for what its goroutine decides.
func simulated(life context.Context) *planner {
	o, err := newOptions([]Option{WithLogger(slog.New(slog.DiscardHandler))})
	if err != nil {
		panic(err)
	}
	c := &Consumer{options: o, times: defaultTimings, log: o.log}
	return &planner{
		Consumer: c, life: life, announces: func() bool { return false }, queue: queue{times: &c.times, poll: o.poll},
		poller: poller{
			pace: pace{every: o.poll, quiet: c.times.quiet},
			conn: listen.New(nil, "pgleases", "consumer/simulated"),
		},
	}
}

// queued is a queue with so many partitions that have begun.
func queued(n int) *queue {
	times := defaultTimings
	q := &queue{times: &times, poll: defaultPoll}
	for i := range n {
		q.add(newPartition(&ownership{Partition: pgleases.Partition{Number: i}, idle: make(chan struct{})}))
		q.partitions[i].begun = true
	}
	return q
}
