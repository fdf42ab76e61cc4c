// Command worker is one worker process of an application that spreads its jobs over all processes
// that live. Start it in several terminals, with the same DATABASE_URL, and see how they share the
// partitions; stop one with Ctrl-C or kill -9 and see the others take its share:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/worker -id worker-1
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/worker -id worker-2
//
// Where its tables are missing it makes them, with a thousand jobs. The loop that works is in
// examples/internal/jobs; this file shows how to start and, more important, in which order to stop.
// Behind PgBouncer in transaction mode, add default_query_exec_mode=exec to DATABASE_URL. To have
// new jobs, and to be rid of it all:
//
//	INSERT INTO pgleases_example.jobs (customer) SELECT 'customer-' || n FROM generate_series(1, 1000) AS n;
//	DROP SCHEMA pgleases_example, pgleases CASCADE;
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/examples/internal/jobs"
)

const (
	sampleJobs      = 1000
	sampleCustomers = 100
	closeTimeout    = 10 * time.Second
)

func main() {
	id := flag.String("id", "", "client ID, unique among live workers; who comes back under it gets its partitions back")
	ttl := flag.Duration("ttl", 6*time.Second, "after how long without a heartbeat others take over")
	flag.Parse()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		log.Fatal("DATABASE_URL is not set: set it to a database's URL, such as postgres://localhost/postgres")
	}

	// SIGTERM is what Kubernetes and systemd stop a process with.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	options := []pgleases.Option{pgleases.WithTTL(*ttl)}
	if *id != "" {
		options = append(options, pgleases.WithClientID(*id))
	}
	if err := run(ctx, url, sampleJobs, options...); err != nil {
		log.Fatal(err)
	}
}

// run works until ctx ends.
func run(ctx context.Context, url string, count int, options ...pgleases.Option) (err error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return fmt.Errorf("DATABASE_URL must lead to a database that lets you in: %w", err)
	}

	client, err := pgleases.NewClient(ctx, pool, options...)
	if err != nil {
		return err
	}
	defer func() {
		// The loop has ended by now, so that nothing is in work and Close hands everything over at once:
		// the others need not wait for the TTL. ctx has ended too, hence a context of its own.
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()

	// After NewClient, which has made the function that the table's generated column calls.
	if err := jobs.Create(ctx, pool, count, sampleCustomers); err != nil {
		return err
	}
	lease, err := client.Lease(ctx, jobs.Lease, jobs.Partitions)
	if err != nil {
		return err
	}
	worker := jobs.Worker{Pool: pool, Client: client, Lease: lease, Do: do}
	return worker.Run(ctx)
}

// do stands for what a job does: it writes through tx, and takes some milliseconds.
func do(context.Context, pgx.Tx, jobs.Job) error {
	time.Sleep(5 * time.Millisecond)
	return nil
}
