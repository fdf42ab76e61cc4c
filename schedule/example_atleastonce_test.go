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

// A Payment is what the job's handler gets.
type Payment struct{ Invoice int }

// pay stands for a payment service that pays once for each idempotency key.
func pay(_ context.Context, key string, p Payment) error {
	fmt.Println("paid invoice", p.Invoice, "with a key:", key != "")
	return nil
}

// A handler outside of a transaction, for a service that knows idempotency keys. After a crash it is
// called again, with the same key. The job is enqueued in the transaction that writes the invoice.
func ExampleAtLeastOnce() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, exampleURL("CREATE TABLE invoices (id int PRIMARY KEY)"))
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
	payments := schedule.AtLeastOnce(s, "payments", func(ctx context.Context, r schedule.Run[Payment]) error {
		defer stop() // a real program goes on until a signal arrives
		return pay(ctx, r.IdempotencyKey(), r.Args)
	}, schedule.WithMaxAttempts(10, schedule.Backoff(time.Second, time.Hour)))

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO invoices VALUES (7)"); err != nil {
			return err
		}
		once := schedule.WithUnique("invoice-7", schedule.OnConflictReject)
		_, err := payments.EnqueueTx(ctx, tx, Payment{Invoice: 7}, once)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	err = s.Run(ctx) // it finishes what runs
	fmt.Println("stopped:", errors.Is(err, context.Canceled), client.Close(context.Background()))
	// Output:
	// paid invoice 7 with a key: true
	// stopped: true <nil>
}
