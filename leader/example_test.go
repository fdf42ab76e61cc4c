package leader_test

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/leader"
)

// A whole program: of all processes that run it, the leader writes the time into the table reports
// (made timestamptz).
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return leader.Run(ctx, client, "reports", leader.Callbacks{
			OnStartedLeading: func(ctx context.Context) { makeReports(ctx, pool) },
			OnStoppedLeading: func() { log.Print("standing by") }, // and it may lead again
			OnNewLeader:      func(id string) { log.Print("the leader is ", id) },
		})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// makeReports makes a report each minute, until ctx ends. The next leader waits for its return.
func makeReports(ctx context.Context, pool *pgxpool.Pool) {
	for ctx.Err() == nil {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := leader.Guard(ctx, tx); err != nil { // only the leader of this epoch can commit
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO reports VALUES (now())")
			return err
		})
		if err != nil {
			// If the context has ended, its cause says why. Otherwise the next round tries again.
			log.Printf("leading under epoch %d: %v", leader.Epoch(ctx), errors.Join(err, context.Cause(ctx)))
		}
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
		}
	}
}
