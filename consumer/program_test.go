package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

// exampleURL is the URL of a database with the library's tables, in which DDL has run.
func exampleURL(ddl ...string) string {
	schema, err := consumer.Schema()
	if err != nil {
		panic(err)
	}
	return pgtest.ExampleURL(append([]string{schema}, ddl...)...)
}

// docs/consumer.md shows these tables.
const outboxTables = `
CREATE TABLE customers (name text PRIMARY KEY, total bigint NOT NULL DEFAULT 0);
CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid        uuid NOT NULL DEFAULT gen_random_uuid(),
    customer   text NOT NULL,
    partition  int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 1024)) STORED,
    payload    jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON outbox (partition, id);
CREATE TRIGGER consumer_inserted AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION pgleases.consumer_inserted('orders');`

// placeOrder leaves a message in the outbox, in the transaction that changes the customer.
func placeOrder(ctx context.Context, pool *pgxpool.Pool, customer string, amount int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// First lock the row of the customer, so that the IDs of its messages have the order of the commits.
		_, err := tx.Exec(ctx, "SELECT FROM customers WHERE name = $1 FOR NO KEY UPDATE", customer)
		if err != nil {
			return err
		}
		// Here your transaction does its own work.
		_, err = tx.Exec(ctx, "INSERT INTO outbox (customer, payload) VALUES ($1, $2)",
			customer, map[string]any{"amount": amount})
		return err
	})
}

// The work of the example's program, which the example itself does not run.
func TestProgramOfExampleAddsUp(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, exampleURL(outboxTables))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	client := clients.New(t, pool)
	go func() { ended <- runOutbox(ctx, client, pool) }()
	testkit.Execute(t, pool, `INSERT INTO outbox (customer, payload)
		SELECT 'ada', '{"amount": 5}' FROM generate_series(1, 1000)`)
	testkit.Becomes(t, pool, "all amounts are added", int64(5000), "SELECT coalesce(max(total), 0) FROM customers")
	testkit.OK(t, placeOrder(t.Context(), pool, "ada", 6))
	testkit.Becomes(t, pool, "the order is added", int64(5006), "SELECT max(total) FROM customers")
	stop()
	if err := testkit.Receive(t, "it ends", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
