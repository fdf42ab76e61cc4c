// Command calls calls a slow API for each row of a table, on any number of processes. One process
// at a time works on a partition, and no transaction is open during a call. A call that fails is
// tried again later, and the other rows continue. After pgleases migrate, create the table calls of
// docs/concepts.md, "Effects outside of the database", and add rows:
//
//	INSERT INTO calls (customer) SELECT 'customer-' || n FROM generate_series(1, 1000) AS n;
//
// Then start it in several terminals:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/calls
//
// Behind PgBouncer in transaction mode, add default_query_exec_mode=exec to DATABASE_URL.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pgleases/pgleases"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), call); err != nil {
		log.Fatal(err)
	}
}

// A caller makes the call of a row.
type caller func(ctx context.Context, id int64, p pgleases.Partition) error

// call stands for the slow API. An error puts the row off. Send the API a key: it is the same each
// time that a row is tried, so the API can recognize a call that it has answered already. Give your
// call a timeout: a partition that must move waits for it.
func call(ctx context.Context, id int64, p pgleases.Partition) error {
	log.Printf("key call-%d, partition %d, epoch %d", id, p.Number, p.Epoch)
	time.Sleep(100 * time.Millisecond)
	return ctx.Err()
}

func run(ctx context.Context, databaseURL string, call caller) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		lease, err := client.Lease(ctx, "calls", 128) // as in the table; 10 times the number of processes
		if err != nil {
			return err
		}
		return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
			return callAll(ctx, pool, lease, p, call)
		})
	})
}

// callAll makes the calls of one partition as their rows become due, until ctx ends.
func callAll(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition, call caller) error {
	for ctx.Err() == nil { // ctx ends if the process stops, or the partition must move
		err := callNext(p.Context(), pool, lease, p, call) // p.Context() ends only if the partition is lost
		if errors.Is(err, pgx.ErrNoRows) {
			select { // no row is due
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		} else if err != nil {
			return err // of the whole partition: Run logs it, and calls again after a pause
		}
	}
	return nil
}

// callNext makes the call of the first row that is due, and records the result. A call that failed
// is no error of callNext. If no row is due, it returns pgx.ErrNoRows.
func callNext(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition, call caller) error {
	const due = `SELECT id FROM calls WHERE partition = $1 AND done_at IS NULL AND next_at <= now()
		ORDER BY next_at, id LIMIT 1`
	var id int64
	err := pool.QueryRow(ctx, due, p.Number).Scan(&id) // without Guard: an idle partition costs one statement
	if err != nil {
		return err
	}
	err = underGuard(ctx, pool, lease, p, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, due, p.Number).Scan(&id)
	})
	if err != nil {
		return err
	}
	failure := call(ctx, id, p) // no transaction is open
	if ctx.Err() != nil {
		return context.Cause(ctx) // the partition was lost: no failure of the row, and its next owner calls again
	}
	return underGuard(ctx, pool, lease, p, func(tx pgx.Tx) error {
		if failure == nil {
			_, err := tx.Exec(ctx, "UPDATE calls SET done_at = now() WHERE id = $1", id)
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE calls SET attempts = attempts + 1, error = $2,
			next_at = now() + 2 ^ least(attempts, 12) * interval '1 second' WHERE id = $1`, // the next row is first
			id, strconv.Quote(failure.Error())) // quoted, because the database refuses some bytes
		return err
	})
}

// underGuard calls fn in a transaction that only the partition's owner can commit.
func underGuard(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition,
	fn func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := lease.Guard(ctx, tx, p); err != nil {
			return err
		}
		return fn(tx)
	})
}
