package pgleases_test

import (
	"context"
	"errors"
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

// shipNext ships the oldest order of a partition, in a transaction that only the partition's owner
// can commit. It returns pgx.ErrNoRows if there is no order.
func shipNext(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := lease.Guard(ctx, tx, p); err != nil { // first
			return err
		}
		var id int64
		return tx.QueryRow(ctx, `UPDATE orders SET shipped = true WHERE id =
			(SELECT id FROM orders WHERE partition = $1 AND NOT shipped ORDER BY id LIMIT 1) RETURNING id`, p.Number).Scan(&id)
	})
}

// A worker for one process of many: Run calls a function for each partition that the process owns,
// and Guard refuses the transaction of a process that owns it no more.
func ExampleLease_Run() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, exampleURL())
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	lease, err := client.Lease(ctx, "orders", 128)
	if err != nil {
		log.Fatal(err)
	}

	go stopWhenShipped(ctx, pool, stop) // a real worker goes on until a signal arrives
	err = lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		for ctx.Err() == nil { // ctx ends if the process stops, or the partition is to go to another process
			err := shipNext(p.Context(), pool, lease, p)
			switch {
			case errors.Is(err, pgx.ErrNoRows):
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			case err != nil:
				return err // Run calls the function again after a pause
			}
		}
		return nil
	})
	fmt.Println("stopped by a signal:", errors.Is(err, context.Canceled))

	// Run has returned, so Close hands over all partitions at once.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := client.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: stopped by a signal: true
}

// stopWhenShipped calls stop when all orders are shipped.
func stopWhenShipped(ctx context.Context, pool *pgxpool.Pool, stop func()) {
	for left := true; left && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM orders WHERE NOT shipped)").Scan(&left); err != nil {
			log.Fatal(err)
		}
	}
	stop()
}
