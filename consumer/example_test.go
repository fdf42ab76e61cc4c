package consumer_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
)

// exampleURL is the URL of a database with the library's tables, in which DDL has run.
func exampleURL(ddl ...string) string {
	schema, err := consumer.Schema()
	if err != nil {
		panic(err)
	}
	return pgtest.ExampleURL(append([]string{schema}, ddl...)...)
}

func Example() {
	run := func(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool) error { // in each process
		type Order struct{ Payload struct{ Amount int } } // a field for each column that the handler needs
		c, err := consumer.New(ctx, client, pool, "orders", consumer.Queue{Table: "outbox", Key: "customer"},
			consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				_, err := tx.Exec(ctx, "UPDATE customers SET total = total + $2 WHERE name = $1", row.Key, row.Value.Payload.Amount)
				return err
			}))
		if err != nil {
			return err
		}
		return c.Run(ctx) // until ctx ends
	}
	_ = run
	// Output:
}
