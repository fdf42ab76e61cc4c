//go:build unix

package faults

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
)

// Consumers are the loops of package consumer. The last has effects outside.
var Consumers = []string{"each", "in tx", "at least once"}

func init() {
	Loops[Consumers[0]] = func(h *handler, ctx context.Context) error {
		return consume(h, ctx, consumer.Each(func(ctx context.Context, tx pgx.Tx, r consumer.Row[order]) error {
			_, err := h.handle(ctx, tx, tasksOf(r))
			return err
		}))
	}
	Loops[Consumers[1]] = func(h *handler, ctx context.Context) error {
		return consume(h, ctx, consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[order]) error {
			return someFailed(h.handle(ctx, tx, tasksOf(rows...)))
		}))
	}
	Loops[Consumers[2]] = func(h *handler, ctx context.Context) error {
		return consume(h, ctx, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[order]) error {
			return someFailed(h.handle(ctx, nil, tasksOf(rows...)))
		}))
	}
}

// An order is what a handler reads of a row.
type order struct {
	Name, Kind string
	Version    int
}

func tasksOf(rows ...consumer.Row[order]) (tasks []task) {
	for _, r := range rows {
		tasks = append(tasks, task{r.ID, r.Key, r.Value.Name, r.Value.Kind, r.Value.Version, r.Partition, r.Epoch, r.Attempt})
	}
	return tasks
}

// someFailed returns the error of a batch, in half of the cases without the index of the row.
func someFailed(i int, err error) error {
	if err == nil || rand.N(2) == 0 {
		return err
	}
	return consumer.Failed(i, err)
}

func consume(h *handler, ctx context.Context, handler consumer.Handler[order]) error {
	failure := consumer.BlockKey
	if h.Queue.DeadLetters {
		failure = consumer.DeadLetter
	}
	c, err := consumer.New(ctx, h.client, h.pool, "orders", consumer.Queue{Table: "app.outbox", Key: "customer"}, handler,
		consumer.WithBatch(20, 1<<20), consumer.WithPoll(100*time.Millisecond), consumer.WithTimeout(5*h.TTL), consumer.WithIdleTimeout(5*h.TTL),
		consumer.WithAttempts(QueueAttempts), consumer.WithBackoff(20*time.Millisecond, 200*time.Millisecond), consumer.WithOnFailure(failure),
		consumer.WithLogger(h.log), consumer.WithoutMigration())
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
