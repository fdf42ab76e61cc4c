package lock_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/lock"
)

// A whole program that upgrades the tables of an application. Start it in as many processes as you
// like: each of them runs upgrade in its turn, the first does the work, and the others find it done.
// It needs a table versions (version int).
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return upgrade(ctx, lock.New(client, pool), pool)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// upgrade brings the application's tables to version 7, unless another process has done so.
func upgrade(ctx context.Context, locks *lock.Locks, pool *pgxpool.Pool) error {
	return locks.Do(ctx, "schema-upgrade", func(ctx context.Context) error {
		var version int
		err := pool.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM versions").Scan(&version)
		if err != nil || version >= 7 {
			fmt.Println("version", version)
			return err
		}
		_, err = pool.Exec(ctx, "INSERT INTO versions VALUES (7)") // your migration
		fmt.Println("upgraded")
		return err
	})
}
