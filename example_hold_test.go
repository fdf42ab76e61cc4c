package pgleases_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
)

// shipBatch ships the oldest orders of all partitions that this process owns, in one transaction.
func shipBatch(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease) (shipped int64, err error) {
	hold := lease.Hold(ctx) // these partitions go to no other process until Release
	defer hold.Release()
	ctx = hold.Context() // it ends if one of them is lost
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, p := range hold.Partitions() {
			if err := lease.Guard(ctx, tx, p); err != nil {
				return err
			}
		}
		done, err := tx.Exec(ctx, `UPDATE orders SET shipped = true WHERE id IN
			(SELECT id FROM orders WHERE partition = ANY ($1) AND NOT shipped ORDER BY id LIMIT 100)`, hold.Values())
		shipped = done.RowsAffected()
		return err
	})
	return shipped, err
}

// One loop for all partitions: with Hold, a batch reads the rows of many partitions at once.
func ExampleLease_Hold() {
	ctx := context.Background()
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
	for total := int64(0); total < 300 && lease.Err() == nil; {
		changed := lease.Changed() // before Hold: a change after this line closes the channel
		shipped, err := shipBatch(ctx, pool, lease)
		if err != nil {
			log.Print(err) // the transaction was rolled back: the orders are still there
		}
		if total += shipped; shipped == 0 {
			select {
			case <-changed: // this process owns other partitions now
			case <-time.After(time.Second):
			}
		}
	}
	fmt.Println("shipped all orders:", client.Close(ctx))
	// Output: shipped all orders: <nil>
}
