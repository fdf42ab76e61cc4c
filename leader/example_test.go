package leader_test

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
	"github.com/pgleases/pgleases/leader"
)

// A whole program: the leader writes the time into the table reports (made timestamptz). Put it into
// main.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	err = leader.Run(ctx, client, "reports", leader.Callbacks{
		OnStartedLeading: func(ctx context.Context) {
			for ctx.Err() == nil {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if err := leader.Guard(ctx, tx); err != nil { // only the leader of this epoch can commit
						return err
					}
					_, err := tx.Exec(ctx, "UPDATE reports SET made = now()")
					return err
				})
				fmt.Println("leading under epoch", leader.Epoch(ctx), err)
				select {
				case <-time.After(time.Minute):
				case <-ctx.Done(): // stop now: the next leader waits for it
				}
			}
		},
		OnStoppedLeading: func() { fmt.Println("not leading") },
		OnNewLeader:      func(id string) { fmt.Println("the leader is", id) },
	})
	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := client.Close(closing); err != nil {
		log.Print(err)
	}
	if !errors.Is(err, context.Canceled) { // not a signal, for example a newer process has its ID
		log.Print(err)
	}
}
