package lock_test

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
	"github.com/pgleases/pgleases/lock"
)

// A whole program that makes a report of many minutes, unless another process makes it. It works
// behind PgBouncer. It needs tables orders (id bigint PRIMARY KEY, amount int) and reports (made
// timestamptz, total bigint).
func Example_report() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL")) // of PgBouncer
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	direct, err := pgx.ParseConfig(os.Getenv("DIRECT_URL")) // of PostgreSQL itself, for one connection
	if err != nil {
		log.Fatal(err)
	}
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return report(ctx, lock.New(client, pool), pool)
	}, pgleases.WithConnConfig(direct), pgleases.WithTTL(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	if ctx.Err() != nil {
		log.Fatal("stopped by a signal, so the report may be missing")
	}
}

// report makes the report, unless another process makes it now.
func report(ctx context.Context, locks *lock.Locks, pool *pgxpool.Pool) error {
	held, err := locks.TryAcquire(ctx, "report")
	if errors.Is(err, lock.ErrHeld) {
		log.Print(err) // it says which process has the lock
		return nil
	}
	if err != nil {
		return err
	}
	owning, cancel := context.WithCancel(held.Context()) // ends if the lock is lost
	defer cancel()
	defer context.AfterFunc(ctx, cancel)() // and if the process is asked to stop
	err = makeReport(owning, pool, held)
	releasing, done := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second) // the database may be away
	defer done()
	return errors.Join(err, held.Release(releasing))
}

// sumOrders adds up the next 1,000 orders. It is a short query of your report.
const sumOrders = `SELECT coalesce(sum(amount), 0), max(id)
	FROM (SELECT id, amount FROM orders WHERE id > $1 ORDER BY id LIMIT 1000) AS next`

// makeReport computes for many minutes, in short queries. Then it stores the result in a short
// transaction.
func makeReport(ctx context.Context, pool *pgxpool.Pool, held *lock.Held) error {
	var total, done int64
	for {
		var sum int64
		var last *int64 // nil: there are no more orders
		err := pool.QueryRow(ctx, sumOrders, done).Scan(&sum, &last)
		if err != nil {
			return err
		}
		if last == nil {
			break
		}
		total, done = total+sum, *last
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := held.Guard(ctx, tx) // refuses if another process has got the lock meanwhile
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO reports VALUES (now(), $1)", total)
		return err
	})
}
