// Command quickstart ships the orders of a table. Start it in several terminals: each order is
// shipped by the process that owns its partition. README.md shows this program, and
// docs/quickstart.md runs it step by step.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pgleases/pgleases"
)

const partitions = 4 // in production 10 times the number of processes; fixed once the lease is created

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		lease, err := client.Lease(ctx, "orders", partitions)
		if err != nil {
			return err
		}
		return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
			return shipAll(ctx, pool, lease, p)
		})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// shipAll ships the orders of one partition as they come, until ctx ends.
func shipAll(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition) error {
	for ctx.Err() == nil {
		if err := ship(p.Context(), pool, lease, p); err != nil {
			return err // Run logs it, and calls again after 100 ms, doubling to 30 s
		}
		select {
		case <-time.After(time.Second): // then look for new orders
		case <-ctx.Done():
		}
	}
	return nil
}

// ship ships what a partition has now, in a transaction that only its owner can commit.
func ship(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition) error {
	const due = "WHERE pgleases.partition_for(customer, $2) = $1 AND NOT shipped"
	var found bool // most looks find nothing, and need no transaction
	err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM orders "+due+")", p.Number, partitions).Scan(&found)
	if err != nil || !found {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := lease.Guard(ctx, tx, p); err != nil { // another process owns the partition now
			return err
		}
		shipped, err := tx.Exec(ctx, "UPDATE orders SET shipped = true "+due, p.Number, partitions)
		if err != nil {
			return err
		}
		log.Printf("partition %d: shipped %d orders", p.Number, shipped.RowsAffected())
		return nil
	})
}
