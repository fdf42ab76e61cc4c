package schedule_test

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
	"github.com/pgleases/pgleases/schedule"
)

// A whole program that closes books each night. Start it in as many processes as you like: each
// night runs once over all of them. It needs a table closings (ledger text, night timestamptz).
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return runBilling(ctx, client, pool)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// runBilling runs the schedules of the group billing until ctx ends.
func runBilling(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool) error {
	s, err := schedule.New(ctx, client, pool, "billing")
	if err != nil {
		return err
	}
	books := schedule.InTx(s, "books", closeBooks, schedule.WithTimeout(10*time.Minute))
	nightly := schedule.Cron("0 2 * * *", "Europe/Berlin")
	err = books.Add("close", Books{"main"}, nightly, schedule.WithGrace(6*time.Hour))
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// Books are what the handler gets. The database keeps them with the schedule, as JSON.
type Books struct{ Ledger string }

// closeBooks closes the books of one night. The row that it writes and the outcome of the tick
// commit together, or neither does.
func closeBooks(ctx context.Context, tx pgx.Tx, r schedule.Run[Books]) error {
	_, err := tx.Exec(ctx, "INSERT INTO closings (ledger, night) VALUES ($1, $2)", r.Args.Ledger, r.At)
	return err
}
