// Command dormant runs the schedules of group bench in the database of DATABASE_URL, until its standard input ends. It imports what a program of an application
// does that runs schedules, and nothing else: package bench, which builds and starts it, measures its memory.
package main

import (
	"context"
	"errors"
	"io"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := run(ctx); !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	s, err := schedule.New(ctx, client, pool, "bench")
	if err != nil {
		return err
	}
	schedule.InTx(s, "tick", func(context.Context, pgx.Tx, schedule.Run[struct{}]) error { return nil })
	return s.Run(ctx)
}
