package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

// A Total is what the schedule's handler gets.
type Total struct{ Ledger string }

// addTotal runs once for each tick: one transaction commits its row and the tick's outcome.
func addTotal(ctx context.Context, tx pgx.Tx, r schedule.Run[Total]) error {
	_, err := tx.Exec(ctx, "INSERT INTO totals (ledger, at) VALUES ($1, $2)", r.Args.Ledger, r.At)
	return err
}

// A handler in a transaction: exactly once in this database.
func ExampleInTx() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, exampleURL("CREATE TABLE totals (ledger text NOT NULL, at timestamptz NOT NULL)"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	s, err := schedule.New(ctx, client, pool, "billing")
	if err != nil {
		log.Fatal(err)
	}
	retries := schedule.WithMaxAttempts(5, schedule.Backoff(time.Second, time.Minute))
	totals := schedule.InTx(s, "totals", addTotal, retries)
	nightly := schedule.Cron("30 2 * * *", "Europe/Berlin")
	err = errors.Join(
		totals.Add("night", Total{"main"}, nightly, schedule.WithGrace(6*time.Hour)),
		totals.Add("each second", Total{"test"}, schedule.Every(time.Second)),
	)
	if err != nil {
		log.Fatal(err)
	}

	go func() { // a real program goes on until a signal arrives
		defer stop()
		for n := 0; n == 0 && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			if err := pool.QueryRow(ctx, "SELECT count(*) FROM totals WHERE ledger = 'test'").Scan(&n); err != nil {
				log.Fatal(err)
			}
		}
	}()
	err = s.Run(ctx)
	fmt.Println("stopped:", errors.Is(err, context.Canceled), client.Close(context.Background()))
	// Output: stopped: true <nil>
}
