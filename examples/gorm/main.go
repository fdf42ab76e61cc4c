// Command gorm ships the orders of a table with GORM. GuardSQL fences GORM's transactions. The
// client has a connection of its own, and GORM has all others.
// docs/database-sql.md shows parts of it.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/pgleases/pgleases"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
}

// The table is created in SQL, because AutoMigrate does not know generated columns.
const table = `CREATE TABLE IF NOT EXISTS orders (
	id        bigserial PRIMARY KEY,
	customer  text NOT NULL,
	partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 16)) STORED,
	shipped   boolean NOT NULL DEFAULT false
)`

// An Order is shipped by the process that owns its partition.
type Order struct {
	ID        int64
	Customer  string
	Partition int `gorm:"->"` // GORM reads it and never writes it
	Shipped   bool
}

func run(ctx context.Context, databaseURL string) error {
	pool, err := pgxpool.New(ctx, databaseURL) // only its configuration is used, so it opens no connection
	if err != nil {
		return err
	}
	defer pool.Close()
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return work(ctx, client, databaseURL)
	})
}

// work ships orders until ctx ends. The schema pgleases is there by now, and so partition_for.
func work(ctx context.Context, client *pgleases.Client, databaseURL string) error {
	db, err := gorm.Open(postgres.Open(databaseURL))
	if err != nil {
		return err
	}
	connections, err := db.DB()
	if err != nil {
		return err
	}
	defer connections.Close()
	err = db.WithContext(ctx).Exec(table).Error
	if err != nil {
		return err
	}
	lease, err := client.Lease(ctx, "orders", 16) // as in the table
	if err != nil {
		return err
	}
	return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		for ctx.Err() == nil { // ctx ends if the process stops, or the partition must move
			err := ship(p.Context(), db, lease, p) // p.Context() ends only if the partition is lost
			if err != nil {
				return err // logged; Run calls again after a pause
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
		return nil
	})
}

// ship ships the orders of one partition, in a transaction that only its owner can commit.
func ship(ctx context.Context, db *gorm.DB, lease *pgleases.Lease, p pgleases.Partition) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		err := guard(ctx, tx, lease, p)
		if err != nil {
			return err
		}
		shipped := tx.Model(&Order{}).Where("partition = ? AND NOT shipped", p.Number).Update("shipped", true)
		if shipped.RowsAffected > 0 {
			log.Printf("partition %d: shipped %d orders", p.Number, shipped.RowsAffected)
		}
		return shipped.Error
	})
}

// guard fences a transaction of GORM, which hides its *sql.Tx.
func guard(ctx context.Context, tx *gorm.DB, lease *pgleases.Lease, p pgleases.Partition) error {
	switch inner := tx.Statement.ConnPool.(type) {
	case *sql.Tx:
		return lease.GuardSQL(ctx, inner, p)
	case *gorm.PreparedStmtTX: // with PrepareStmt
		return lease.GuardSQL(ctx, inner.Tx.(*sql.Tx), p)
	default:
		return fmt.Errorf("%T is no transaction", inner)
	}
}
