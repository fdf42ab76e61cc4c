package lock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/lock"
)

// upgrade brings the application's tables to version 7, unless another process has done so.
func upgrade(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS versions (version int NOT NULL)"); err != nil {
		return err
	}
	var version int
	if err := pool.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM versions").Scan(&version); err != nil || version >= 7 {
		fmt.Println("found version", version)
		return err
	}
	_, err := pool.Exec(ctx, "INSERT INTO versions VALUES (7)")
	fmt.Println("upgraded to version 7")
	return err
}

// A migration at start-up: every process runs it under one lock, each in its turn.
func Example() {
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
	locks := lock.New(client, pool)

	for range 2 { // in a real program, once in each process
		waiting, cancel := context.WithTimeout(ctx, time.Minute)
		err := locks.Do(waiting, "schema-upgrade", func(ctx context.Context) error {
			return upgrade(ctx, pool) // ctx ends if the lock is lost
		})
		cancel()
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(client.Close(ctx))
	// Output:
	// upgraded to version 7
	// found version 7
	// <nil>
}
