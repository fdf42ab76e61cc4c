//go:build unix

package faults

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
)

// Consumers are the handlers of package consumer. The last has effects outside.
var Consumers = []string{"each", "in tx", "at least once"}

// An order is what a handler reads of a row.
type order struct {
	Name, Kind string
	Version    int
}

func tasksOf(rows ...consumer.Row[order]) (tasks []task) {
	for _, r := range rows {
		tasks = append(tasks, task{
			ID:        r.ID,
			Customer:  r.Key,
			Name:      r.Value.Name,
			Kind:      r.Value.Kind,
			Version:   r.Value.Version,
			Partition: r.Partition,
			Epoch:     r.Epoch,
			Attempt:   r.Attempt,
		})
	}
	return tasks
}

// someFailed returns the error of a batch, in half of the cases without the index of the row.
func someFailed(i int, err error) error {
	if err == nil || rand.N(2) == 0 {
		return err
	}
	return consumer.RowError(i, err)
}

// consume works through the queue until ctx ends.
func (h *handler) consume(ctx context.Context) error {
	handler := consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[order]) error {
		return someFailed(h.handle(ctx, nil, tasksOf(rows...)))
	})
	switch h.Queue.Handler {
	case Consumers[0]:
		handler = consumer.Each(func(ctx context.Context, tx pgx.Tx, r consumer.Row[order]) error {
			_, err := h.handle(ctx, tx, tasksOf(r))
			return err
		})
	case Consumers[1]:
		handler = consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[order]) error {
			return someFailed(h.handle(ctx, tx, tasksOf(rows...)))
		})
	}
	failure := consumer.OnFailureBlockKey
	if h.Queue.DeadLetters {
		failure = consumer.OnFailureDeadLetter
	}
	queue := consumer.Queue{Table: "app.outbox", Key: "customer"}
	c, err := consumer.New(ctx, h.client, h.pool, "orders", queue, handler,
		consumer.WithBatch(20, 1<<20),
		consumer.WithPoll(100*time.Millisecond),
		consumer.WithTimeout(5*h.TTL),
		consumer.WithIdleTimeout(5*h.TTL),
		consumer.WithMaxAttempts(QueueAttempts, consumer.Backoff(20*time.Millisecond, 200*time.Millisecond)),
		consumer.WithOnFailure(failure),
		consumer.WithLogger(h.log),
		consumer.WithoutMigration(),
	)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
