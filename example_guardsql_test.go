package pgleases_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // or another driver of PostgreSQL

	"github.com/pgleases/pgleases"
)

// shipAll ships the orders of a partition with database/sql.
func shipAll(ctx context.Context, db *sql.DB, lease *pgleases.Lease, p pgleases.Partition) (shipped int64, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if err := lease.GuardSQL(ctx, tx, p); err != nil {
		return 0, err
	}
	done, err := tx.ExecContext(ctx, "UPDATE orders SET shipped = true WHERE partition = $1 AND NOT shipped", p.Number)
	if err != nil {
		return 0, err
	}
	if shipped, err = done.RowsAffected(); err != nil {
		return 0, err
	}
	return shipped, tx.Commit()
}

// An application that uses database/sql has a pool of pgx for the client alone.
func ExampleLease_GuardSQL() {
	ctx, url := context.Background(), exampleURL()
	db, err := sql.Open("pgx", url)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	pool, err := pgxpool.New(ctx, url)
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
	if err := lease.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	if p, owned := lease.Partition(lease.PartitionFor("customer-42")); owned {
		shipped, err := shipAll(ctx, db, lease, p)
		fmt.Println("shipped orders:", shipped > 0, err)
	}
	fmt.Println(client.Close(ctx))
	// Output:
	// shipped orders: true <nil>
	// <nil>
}
