package consumer

import (
	"context"
	"log/slog"

	"github.com/pgleases/pgleases/internal/listen"
)

// simulated is a group without a database, for what its goroutine decides.
func simulated(opts ...Option) *group {
	o, err := newOptions(append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...))
	if err != nil {
		panic(err)
	}
	c := &Consumer{options: o, times: defaultTimings, log: o.log}
	return &group{Consumer: c, life: context.Background(), listener: listen.New(nil, "pgleases", "consumer/simulated"),
		polls: polls{every: o.poll, quiet: c.times.quiet}}
}
