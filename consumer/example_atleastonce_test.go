package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
)

// A Message is what the handler needs of a row.
type Message struct {
	UID     string // the same at each attempt: an idempotency key
	Payload struct{ Event string }
}

// broker stands for a system elsewhere. It is away at first.
func broker() (publish func(ctx context.Context, key string, m Message) error) {
	calls, seen := 0, make(map[string]bool)
	return func(_ context.Context, key string, m Message) error {
		if calls++; calls <= 2 {
			return errors.New("connection refused")
		}
		if !seen[m.UID] {
			fmt.Println(key, m.Payload.Event)
			seen[m.UID] = true
		}
		return nil
	}
}

// A handler of a batch outside of a transaction, which publishes. While the broker is away, the
// partition pauses, and no row is charged with a failed attempt.
func ExampleAtLeastOnce() {
	ctx := context.Background()
	queue := consumer.Queue{Table: "outbox", Key: "customer"}
	pool, err := pgxpool.New(ctx, exampleURL(consumer.TableSQL("mails", "", queue)))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	publish := broker()
	c, err := consumer.New(ctx, client, pool, "mails", queue,
		consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Message]) error {
			for _, row := range rows {
				if err := publish(ctx, row.Key, row.Value); err != nil {
					return consumer.Unavailable(err)
				}
			}
			return nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	_, err = pool.Exec(ctx, `INSERT INTO outbox (customer, payload) SELECT 'ada', jsonb_build_object('event', e) FROM unnest('{ordered,paid,shipped}'::text[]) AS e`)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.RunUntilEmpty(ctx), client.Close(ctx))
	// Output:
	// ada ordered
	// ada paid
	// ada shipped
	// <nil> <nil>
}
