// Command first shares four partitions among the processes that run it, and prints which of them
// this process owns. README.md shows this program.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pgleases/pgleases"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := pgleases.Run(ctx, pool, work); err != nil {
		log.Fatal(err)
	}
}

func work(ctx context.Context, client *pgleases.Client) error {
	lease, err := client.Lease(ctx, "demo", 4)
	if err != nil {
		return err
	}
	return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		log.Printf("I own partition %d", p.Number)
		<-ctx.Done() // your work goes here, until ctx ends
		log.Printf("I give up partition %d", p.Number)
		return nil
	})
}
