package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

// A Reminder is what the job's handler gets.
type Reminder struct{ To string }

// remind stands for a service without idempotency keys.
func remind(_ context.Context, r Reminder) error {
	fmt.Println("reminded", r.To)
	return nil
}

// A handler outside of a transaction that must not be called twice. If its process crashes during
// the call, the outcome is unknown, and the history says so.
func ExampleAtMostOnce() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, exampleURL())
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	s, err := schedule.New(ctx, client, pool, "reminders")
	if err != nil {
		log.Fatal(err)
	}
	reminders := schedule.AtMostOnce(s, "reminders", func(ctx context.Context, r schedule.Run[Reminder]) error {
		defer stop() // a real program goes on until a signal arrives
		return remind(ctx, r.Args)
	})
	id, err := reminders.Enqueue(ctx, Reminder{"ada@example.com"})
	if err != nil {
		log.Fatal(err)
	}
	err = s.Run(ctx) // it finishes what runs
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	job, err := s.Job(context.Background(), id)
	fmt.Println("outcome:", job.Outcome, err, client.Close(context.Background()))
	// Output:
	// reminded ada@example.com
	// stopped: true
	// outcome: succeeded <nil> <nil>
}
