// Command state keeps the totals of customers in memory, and adds payments to them as they come. Each
// customer is in the memory of one process. A process loads the totals of a partition when it gains
// it, and writes them back each few seconds and when it gives the partition up. docs/state.md shows
// this program.
//
// After pgleases migrate, create the tables of docs/state.md and add payments:
//
//	INSERT INTO payments (customer, amount) SELECT 'customer-' || n % 100, n FROM generate_series(1, 1000) AS n;
//
// Then build it, and start it in several terminals. Don't use go run, because a kill -9 of go run
// leaves the program alive:
//
//	go build -o totals ./examples/state
//	DATABASE_URL=postgres://localhost/postgres ./totals
//
// Behind PgBouncer in transaction mode, add default_query_exec_mode=exec to DATABASE_URL.
package main

import (
	"context"
	"errors"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pgleases/pgleases"
)

const (
	partitions   = 16               // as in the tables; in production 10 times the number of processes
	flushEach    = 5 * time.Second  // a crash repeats the work since the last flush
	mostApplied  = 10_000           // payments in memory after which it flushes earlier
	mostFailures = 30               // a second apart, after which Run logs the error and the state is loaded again
	drainTimeout = 15 * time.Second // how long a last flush may delay a handoff
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return work(ctx, client, pool)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// work keeps the state of the partitions that this process owns, until ctx ends.
func work(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool) error {
	lease, err := client.Lease(ctx, "totals", partitions, pgleases.WithDrainTimeout(drainTimeout))
	if err != nil {
		return err
	}
	loading := make(chan struct{}, 4) // a process may gain many partitions at once, and loads 4 at a time
	return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		select {
		case loading <- struct{}{}:
		case <-ctx.Done(): // the partition must move before its turn has come
			return nil
		}
		s, err := load(ctx, pool, p) // under ctx, because no total has changed yet
		<-loading
		if err != nil {
			return err // Run logs it, and calls again after a pause
		}
		return s.serve(ctx, pool, lease, p)
	})
}

// A state is what this process has in memory for one partition. Only the goroutine of the partition
// uses it.
type state struct {
	totals   map[string]int64 // by customer
	changed  map[string]int64 // the totals that the database does not have yet
	applied  []int64          // the payments in them
	failures int              // calls of the database that failed one after the other
}

// load reads the state of a partition that this process has gained. The owner before has ended its
// last transaction by now, so the state is complete.
func load(ctx context.Context, pool *pgxpool.Pool, p pgleases.Partition) (*state, error) {
	s := &state{totals: make(map[string]int64), changed: make(map[string]int64), applied: []int64{}}
	rows, err := pool.Query(ctx, "SELECT customer, total FROM totals WHERE partition = $1", p.Number)
	if err != nil {
		return nil, err
	}
	var customer string
	var total int64
	_, err = pgx.ForEachRow(rows, []any{&customer, &total}, func() error {
		s.totals[customer] = total
		return nil
	})
	if err != nil {
		return nil, err
	}
	log.Printf("partition %d: loaded %d customers", p.Number, len(s.totals))
	return s, nil
}

// serve adds payments until ctx ends, and flushes last.
func (s *state) serve(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition) error {
	flushed := time.Now()
	for ctx.Err() == nil { // ctx ends if the process stops, or the partition must move
		err := s.apply(p.Context(), pool, p) // p.Context() ends only if the partition is lost
		if err == nil && (time.Since(flushed) >= flushEach || len(s.applied) >= mostApplied) {
			err = s.flush(p.Context(), pool, lease, p)
			if err == nil {
				flushed = time.Now()
			}
		}
		if !s.keep(p, err) {
			return err // the memory is thrown away, and load reads what the database has
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	for {
		err := s.flush(p.Context(), pool, lease, p)
		if err == nil || !s.keep(p, err) {
			return err
		}
		select {
		case <-time.After(time.Second): // Run does not call again after ctx has ended, so try it here
		case <-p.Context().Done():
		}
	}
}

// keep reports whether the memory may be kept after a call of the database, and the call repeated. It
// may not if another process may own the partition, nor if the error seems to stay.
func (s *state) keep(p pgleases.Partition, err error) bool {
	if err == nil {
		s.failures = 0
		return true
	}
	s.failures++
	if s.failures >= mostFailures || errors.Is(err, pgleases.ErrNotOwner) || p.Context().Err() != nil {
		return false
	}
	log.Printf("partition %d: tried again in a second: %v", p.Number, err)
	return true
}

// apply adds new payments in memory. If it fails, it has added some of them, and the next call adds
// the others. It looks for all payments that are not in applied, because a payment with a lower ID
// may commit later.
func (s *state) apply(ctx context.Context, pool *pgxpool.Pool, p pgleases.Partition) error {
	rows, err := pool.Query(ctx, `SELECT id, customer, amount FROM payments
		WHERE partition = $1 AND id NOT IN (SELECT unnest($2::bigint[])) ORDER BY id LIMIT $3`,
		p.Number, s.applied, mostApplied-len(s.applied))
	if err != nil {
		return err
	}
	var id, amount int64
	var customer string
	_, err = pgx.ForEachRow(rows, []any{&id, &customer, &amount}, func() error {
		s.totals[customer] += amount
		s.changed[customer] = s.totals[customer]
		s.applied = append(s.applied, id)
		return nil
	})
	return err
}

// flush writes the totals and deletes the payments that are in them, in a transaction that only the
// owner can commit. So each payment is in the totals once, whatever crashes. A flush that returned an
// error may have committed. Another one writes the same totals again, or later ones, so it does no harm.
func (s *state) flush(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition) error {
	if len(s.applied) == 0 {
		return nil
	}
	customers := slices.Sorted(maps.Keys(s.changed))
	totals := make([]int64, len(customers))
	for i, customer := range customers {
		totals[i] = s.changed[customer]
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := lease.Guard(ctx, tx, p)
		if err != nil {
			return err // another process owns the partition, and has loaded it without these payments
		}
		_, err = tx.Exec(ctx, "DELETE FROM payments WHERE id = ANY ($1)", s.applied)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO totals (customer, total) SELECT * FROM unnest($1::text[], $2::bigint[])
			ON CONFLICT (customer) DO UPDATE SET total = excluded.total`, customers, totals)
		return err
	})
	if err == nil {
		s.applied = s.applied[:0]
		clear(s.changed)
	}
	return err
}
