package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

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

// docs/consumer.md shows this table and runOutbox. A table of TableSQL has a uuid, too.
const outboxTables = `
CREATE TABLE customers (name text PRIMARY KEY, total bigint NOT NULL DEFAULT 0);
CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer   text NOT NULL,
    partition  int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 1024)) STORED,
    payload    jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON outbox (partition, id);
CREATE TRIGGER consumer_inserted AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION pgleases.consumer_inserted('orders');`

func runOutbox(ctx context.Context, databaseURL string) (err error) { // in each process
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		return err
	}
	defer func() { // Run has returned: hand the partitions over now
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()
	type Order struct{ Payload struct{ Amount int } } // a field for each column that the handler needs
	c, err := consumer.New(ctx, client, pool, "orders", consumer.Queue{Table: "outbox", Key: "customer", Time: "created_at"},
		consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
			_, err := tx.Exec(ctx, `INSERT INTO customers VALUES ($1, $2)
				ON CONFLICT (name) DO UPDATE SET total = customers.total + excluded.total`, row.Key, row.Value.Payload.Amount)
			return err
		}))
	if err != nil {
		return err
	}
	return c.Run(ctx) // until ctx ends
}

func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	url := exampleURL(outboxTables)
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	ended := make(chan error)
	go func() { ended <- runOutbox(ctx, url) }()
	if _, err := pool.Exec(ctx, `INSERT INTO outbox (customer, payload) SELECT 'ada', '{"amount": 5}' FROM generate_series(1, 1000)`); err != nil {
		log.Fatal(err)
	}
	for total := 0; total < 5000; time.Sleep(10 * time.Millisecond) {
		if err := pool.QueryRow(ctx, "SELECT coalesce(max(total), 0) FROM customers").Scan(&total); err != nil {
			log.Fatal(err)
		}
	}
	stop()
	fmt.Println(<-ended)
	// Output: consumer: run "orders": context canceled
}
