// Command worker ships the orders in a table, on any number of processes: all orders of a customer
// belong to one partition, one process at a time works on a partition, and each order is shipped
// once, in the order of ids. If two transactions insert orders of one customer at once, the second may
// commit first; if that matters, let them lock the customer before they insert. Start it in several
// terminals, with the same DATABASE_URL, and see how the processes share the partitions; stop one
// with Ctrl-C or kill -9, and the others take over its partitions:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/worker -id worker-1
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/worker -id worker-2
//
// It creates its tables, with 1,000 orders, if they are missing. Behind PgBouncer in transaction
// mode, add default_query_exec_mode=exec to DATABASE_URL. To add orders, and to remove everything:
//
//	INSERT INTO pgleases_example.orders (customer) SELECT 'customer-' || n FROM generate_series(1, 1000) AS n;
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
)

const (
	// partitions is also in the generated column below. Choose it once: 10 times the largest number of
	// processes.
	partitions = 128

	poll         = time.Second // how often a partition without orders is looked at
	closeTimeout = 10 * time.Second
)

func main() {
	id := flag.String("id", "", "client ID, unique among live workers; a worker that restarts with the same ID gets its partitions back")
	ttl := flag.Duration("ttl", 6*time.Second, "time without a heartbeat after which other workers take over")
	flag.Parse()

	// Kubernetes and systemd stop a process with SIGTERM.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	options := []pgleases.Option{pgleases.WithTTL(*ttl)}
	if *id != "" {
		options = append(options, pgleases.WithClientID(*id))
	}
	if err := run(ctx, os.Getenv("DATABASE_URL"), 1000, options...); err != nil {
		log.Fatal(err)
	}
}

// run ships orders until ctx ends.
func run(ctx context.Context, url string, orders int, options ...pgleases.Option) (err error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool, options...)
	if err != nil {
		return err
	}
	defer func() {
		// Run has returned, so no partition is in use, and Close hands all of them over at once: other
		// processes need not wait for the TTL. Close needs another context, because ctx has ended.
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()
	// After NewClient, which creates the function that the generated column calls.
	if _, err := pool.Exec(ctx, fmt.Sprintf(tables, orders), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}

	lease, err := client.Lease(ctx, "orders", partitions)
	if err != nil {
		return err
	}
	// Run calls the function for each partition that this process owns, each in a goroutine.
	err = lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		log.Printf("%s works on partition %d", client.ID(), p.Number)
		for ctx.Err() == nil { // ctx ends if the process stops, or the partition is to go to another process
			// An order is finished even if ctx ends: p.Context() ends only if the partition is lost.
			shipped, err := ship(p.Context(), pool, lease, p, client.ID())
			if err != nil {
				return err // Run logs the error, and calls the function again after a pause
			}
			if !shipped {
				select {
				case <-time.After(poll):
				case <-ctx.Done():
				}
			}
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil // a signal has ended it
	}
	return err
}

const next = `
UPDATE pgleases_example.orders SET shipped_at = clock_timestamp()
WHERE id = (SELECT id FROM pgleases_example.orders WHERE partition = $1 AND shipped_at IS NULL ORDER BY id LIMIT 1)
RETURNING id`

// ship ships the oldest order of a partition, and reports whether there was one. It works in a
// transaction that only the partition's owner can commit.
func ship(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition, worker string) (shipped bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// Guard comes first. After it, no other process becomes the owner until the transaction ends.
		// It returns ErrNotOwner if another process is the owner already, for example because this
		// process was frozen for longer than the TTL.
		if err := lease.Guard(ctx, tx, p); err != nil {
			return err
		}
		var order int64
		if err := tx.QueryRow(ctx, next, p.Number).Scan(&order); errors.Is(err, pgx.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		shipped = true
		_, err := tx.Exec(ctx, "INSERT INTO pgleases_example.shipments (order_id, worker, epoch) VALUES ($1, $2, $3)", order, worker, p.Epoch)
		return err
	})
	return shipped, err
}

// tables is one transaction. The lock is for processes that start together: IF NOT EXISTS does not
// wait for another CREATE of the same name, and fails.
const tables = `
SELECT pg_advisory_xact_lock(5318008371);
CREATE SCHEMA IF NOT EXISTS pgleases_example;
CREATE TABLE IF NOT EXISTS pgleases_example.orders (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer   text NOT NULL,
    partition  int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 128)) STORED,
    shipped_at timestamptz
);
CREATE INDEX IF NOT EXISTS orders_to_ship ON pgleases_example.orders (partition, id) WHERE shipped_at IS NULL;
DO $$
BEGIN
    IF to_regclass('pgleases_example.shipments') IS NULL THEN
        CREATE TABLE pgleases_example.shipments (order_id bigint NOT NULL, worker text NOT NULL, epoch bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
        INSERT INTO pgleases_example.orders (customer) SELECT 'customer-' || n %% 100 FROM generate_series(1, %d) AS n;
    END IF;
END $$`
