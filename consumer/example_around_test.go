package consumer_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
)

// A function around each call of the handler, for traces, metrics and logs.
func ExampleWithAround() {
	ctx := context.Background()
	queue := consumer.Queue{Table: "outbox", Key: "customer"}
	pool, err := pgxpool.New(ctx, exampleURL(consumer.TableSQL("traced", "", queue)+
		"INSERT INTO outbox (customer, payload) VALUES ('ada', '{}')"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	handler := consumer.Each(func(context.Context, pgx.Tx, consumer.Row[struct{ UID string }]) error { return nil })

	traced := func(ctx context.Context, info consumer.Info, next func(context.Context) error) error {
		fmt.Println("begins with", info.Rows, "row, attempt", info.Attempt) // begin a span, and put it into ctx
		err := next(ctx)                                                    // calls the handler
		fmt.Println("ended with", err)                                      // end the span
		return err
	}
	c, err := consumer.New(ctx, client, pool, "traced", queue, handler, consumer.WithAround(traced))
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(c.RunUntilEmpty(ctx), client.Close(ctx))
	// Output:
	// begins with 1 row, attempt 1
	// ended with <nil>
	// <nil> <nil>
}
