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

var errAway = errors.New("connection refused")

// newBroker returns a call of a system elsewhere. It is away when it is called for the second time.
func newBroker() (publish func(ctx context.Context, idempotencyKey, customer, event string) error) {
	calls := 0
	return func(_ context.Context, _, customer, event string) error {
		if calls++; calls == 2 {
			return errAway
		}
		fmt.Println(customer, event)
		return nil
	}
}

// A handler that makes one call for each row. Each call has the row's UID as its idempotency key, so
// the receiver recognizes a call that a crash has repeated. While the broker is away, the handler
// names the row that was not published. Then the rows before it are done and not called again, and no
// row is charged with a failed attempt.
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
	publish := newBroker()
	c, err := consumer.New(ctx, client, pool, "mails", queue,
		consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Message]) error {
			for i, row := range rows {
				err := publish(ctx, row.Value.UID, row.Key, row.Value.Payload.Event)
				if errors.Is(err, errAway) {
					return consumer.RowError(i, consumer.Unavailable(err)) // an outage, and not the fault of the row
				}
				if err != nil {
					return consumer.RowError(i, err) // an attempt of this row; Discard(err) if it will never be taken
				}
			}
			return nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	_, err = pool.Exec(ctx, `
		INSERT INTO outbox (customer, payload)
		SELECT 'ada', jsonb_build_object('event', e) FROM unnest('{ordered,paid,shipped}'::text[]) AS e`)
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
