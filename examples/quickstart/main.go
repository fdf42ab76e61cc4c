// Command quickstart ships the orders of a table. Start it in several terminals: each order is
// shipped by the process that owns its partition. README.md shows this program, and
// docs/quickstart.md runs it step by step.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pgleases/pgleases"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL")); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, databaseURL string) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool) // creates the schema pgleases if it is missing
	if err != nil {
		return err
	}
	defer func() { // Run has returned: hand the partitions over now
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := client.Close(ctx); err != nil {
			log.Print(err)
		}
	}()
	lease, err := client.Lease(ctx, "orders", 4) // 4 here; in production 10 times the number of processes
	if err != nil {
		return err
	}
	return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		for ctx.Err() == nil { // ctx ends if the process stops, or the partition must move
			if err := ship(p.Context(), pool, lease, p); err != nil { // p.Context() ends only if the partition is lost
				return err // logged; Run calls again after a pause
			}
			select {
			case <-time.After(time.Second): // then poll for new orders
			case <-ctx.Done():
			}
		}
		return nil
	})
}

// ship ships the orders of one partition, in a transaction that only its owner can commit.
func ship(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := lease.Guard(ctx, tx, p); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "UPDATE orders SET shipped = true WHERE pgleases.partition_for(customer, 4) = $1 AND NOT shipped", p.Number)
		if tag.RowsAffected() > 0 {
			fmt.Printf("partition %d: shipped %d orders\n", p.Number, tag.RowsAffected())
		}
		return err
	})
}
