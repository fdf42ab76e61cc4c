package consumer_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
)

// A whole program that handles the rows of an outbox, and adds up the amounts of each customer. The
// page docs/consumer.md has its tables. Start it in as many processes as you like.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return runOutbox(ctx, client, pool)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// runOutbox handles rows until ctx ends.
func runOutbox(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool) error {
	type Order struct{ Payload struct{ Amount int } } // a field for each column that the handler needs
	queue := consumer.Queue{Table: "outbox", Key: "customer", Time: "created_at"}
	c, err := consumer.New(ctx, client, pool, "orders", queue,
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
