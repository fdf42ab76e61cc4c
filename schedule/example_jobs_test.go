package schedule_test

import (
	"context"
	"errors"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

// A whole program that takes an order, and sends a mail for it. The job that sends the mail exists
// exactly if the order does. It needs a table orders (customer text).
func ExampleJobs() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return runShop(ctx, client, pool)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// runShop takes an order, and runs the jobs of the group shop until ctx ends.
func runShop(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool) error {
	s, err := schedule.New(ctx, client, pool, "shop")
	if err != nil {
		return err
	}
	retries := schedule.WithMaxAttempts(12, schedule.Backoff(time.Minute, time.Hour))
	mails := schedule.AtLeastOnce(s, "mail", sendMail, retries)
	err = takeOrder(ctx, pool, mails, "ada@example.com") // in a real program, for a request
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// A Welcome is what the handler gets. The database keeps it with the job, as JSON.
type Welcome struct{ To string }

// takeOrder inserts an order and enqueues a job, in one transaction.
func takeOrder(ctx context.Context, pool *pgxpool.Pool, mails *schedule.Kind[Welcome], customer string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO orders (customer) VALUES ($1)", customer)
		if err != nil {
			return err
		}
		_, err = mails.EnqueueTx(ctx, tx, Welcome{customer})
		return err
	})
}

// sendMail sends the mail. If it returns an error, it is called again after a minute, with the same
// key.
func sendMail(ctx context.Context, r schedule.Run[Welcome]) error {
	err := deliver(ctx, r.Args.To, r.IdempotencyKey())
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" {
		return schedule.Unavailable(err) // the mail server is away, and no attempt is counted
	}
	return err
}

// deliver stands for a call of a mail service.
func deliver(_ context.Context, to, key string) error {
	log.Printf("mail to %s with the key %s", to, key)
	return nil
}
