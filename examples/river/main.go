// Command river feeds a job queue by a schedule: at each tick the schedule enqueues one job of
// River (riverqueue.com) for each customer, in the transaction in which the tick is done. So a
// customer gets one job for each tick, whatever crashes; River then works its jobs, on all
// processes at once, with its retries. Start it in several terminals, and end some of them with
// Ctrl-C or kill -9:
//
//	DATABASE_URL=postgres://localhost/postgres go -C examples/river run .
//
// It leaves River's tables in the schema public, and the schemas pgleases; to be rid of the latter:
// DROP SCHEMA pgleases CASCADE.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/schedule"
)

func main() {
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		log.Fatal("DATABASE_URL is not set: set it to a database's URL, such as postgres://localhost/postgres")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	context.AfterFunc(ctx, cancel) // a second signal ends the process at once
	if err := run(ctx, url, schedule.Cron("* * * * *", "Europe/Berlin")); err != nil {
		log.Fatal(err)
	}
}

// Invoicing is what the schedule is given: for whom invoices are made.
type Invoicing struct {
	Customers []string `json:"customers"`
}

// Invoice is a job of River's: to bill a customer for what came after From, until Until.
type Invoice struct {
	Customer string    `json:"customer"`
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
}

// Kind is River's name for such jobs.
func (Invoice) Kind() string { return "invoice" }

type invoiceWorker struct {
	river.WorkerDefaults[Invoice]
}

// Work stands for the application's work.
func (*invoiceWorker) Work(_ context.Context, job *river.Job[Invoice]) error {
	fmt.Printf("%s is billed until %s\n", job.Args.Customer, job.Args.Until.Format(time.RFC3339))
	return nil
}

// run works jobs, and enqueues those of the schedules that it owns, until ctx ends.
func run(ctx context.Context, url string, rule schedule.Rule) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer pool.Close()
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return work(ctx, client, pool, rule)
	})
}

func work(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, rule schedule.Rule) (err error) {
	queue, err := startQueue(ctx, client, pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(queue)) }()
	s, err := schedule.New(ctx, client, pool, "billing")
	if err != nil {
		return err
	}
	invoicing := schedule.InTx(s, "invoicing", func(ctx context.Context, tx pgx.Tx, r schedule.Run[Invoicing]) error {
		jobs := make([]river.InsertManyParams, len(r.Args.Customers))
		for i, customer := range r.Args.Customers {
			jobs[i].Args = Invoice{customer, r.From, r.At}
		}
		_, err := queue.InsertManyTx(ctx, tx, jobs) // with the tick, or not at all
		return err
	})
	if err := invoicing.Add("invoices", Invoicing{[]string{"Ada", "Grace", "Linus"}}, rule); err != nil {
		return err
	}
	return s.Run(ctx)
}

// startQueue creates River's tables if they are missing, one process after the other, and works
// its jobs.
func startQueue(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool) (*river.Client[pgx.Tx], error) {
	driver := riverpgxv5.New(pool)
	err := lock.New(client, pool).Do(ctx, "river-tables", func(ctx context.Context) error {
		migrator, err := rivermigrate.New(driver, nil)
		if err == nil {
			_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &invoiceWorker{})
	queue, err := river.NewClient(driver, &river.Config{
		Logger:  slog.New(slog.DiscardHandler),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers: workers,
	})
	if err != nil {
		return nil, err
	}
	return queue, queue.Start(context.WithoutCancel(ctx)) // Stop ends it
}

// stop stops the queue in time. The context of the work has ended already.
func stop(queue *river.Client[pgx.Tx]) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return queue.Stop(ctx)
}
