// Command leader is a process of an application in which one process at a time leads: it owns the
// only partition of a lease. Start it in several terminals, with the same DATABASE_URL. One prints
// that it leads; stop that one with Ctrl-C or kill -9 and see another lead, at once or after the
// TTL:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/leader -id one
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/leader -id two
//
// The leader counts seconds in the only row of a table, in transactions that nobody but the leader
// can commit: freeze it with kill -STOP for longer than the TTL and thaw it with kill -CONT, and it
// counts no more. Behind PgBouncer in transaction mode, add default_query_exec_mode=exec to
// DATABASE_URL. To look, and to be rid of it all:
//
//	SELECT * FROM pgleases_leader.leader_ticks;
//	DROP SCHEMA pgleases_leader, pgleases CASCADE;
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
	"github.com/pgleases/pgleases/examples/internal/tables"
)

const (
	interval     = time.Second
	closeTimeout = 10 * time.Second
)

func main() {
	id := flag.String("id", "", "client ID, unique among live processes")
	ttl := flag.Duration("ttl", 6*time.Second, "after how long without a heartbeat another leads")
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
	if err := run(ctx, url, options...); err != nil {
		log.Fatal(err)
	}
}

// run stands for election until ctx ends.
func run(ctx context.Context, url string, options ...pgleases.Option) (err error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return fmt.Errorf("DATABASE_URL must lead to a database that lets you in: %w", err)
	}
	if err := createTable(ctx, pool); err != nil {
		return err
	}

	client, err := pgleases.NewClient(ctx, pool, options...)
	if err != nil {
		return err
	}
	defer func() {
		// Run has returned by now, so that nothing is in work and Close hands over at once: the next one
		// leads without waiting for the TTL. ctx has ended too, hence a context of its own.
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()

	lease, err := client.Lease(ctx, "leader", 1)
	if err != nil {
		return err
	}
	l := leader{pool: pool, client: client, lease: lease}
	fmt.Printf("%s: not leading\n", client.ID())
	err = lease.Run(ctx, l.lead)
	if ctx.Err() != nil {
		return nil // it was asked to end
	}
	return err
}

type leader struct {
	pool   *pgxpool.Pool
	client *pgleases.Client
	lease  *pgleases.Lease
}

// lead is called when this process begins to lead. It ends when ctx does; with an error it is
// called again a little later, unless another process leads by then.
func (l *leader) lead(ctx context.Context, p pgleases.Partition) error {
	fmt.Printf("%s: leading under epoch %d\n", l.client.ID(), p.Epoch)
	defer fmt.Printf("%s: not leading\n", l.client.ID())
	for {
		// The tick in hand is finished also when ctx ends: under the ownership's own context.
		if err := l.tick(p.Context(), p); err != nil {
			return err
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return nil
		}
	}
}

const advance = `
UPDATE pgleases_leader.leader_ticks SET ticks = ticks + 1, epoch = $1, leader = $2, ticked_at = clock_timestamp()`

// tick advances the row in a transaction that only the leader can commit.
func (l *leader) tick(ctx context.Context, p pgleases.Partition) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		// Before the write. Once it has passed, nobody else leads before this transaction ends; had
		// another begun to lead meanwhile, while this process was frozen for instance, it would not pass.
		if err := l.lease.Guard(ctx, tx, p); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, advance, p.Epoch, l.client.ID())
		return err
	})
}

const table = `
CREATE SCHEMA pgleases_leader;
CREATE TABLE pgleases_leader.leader_ticks (
    epoch     bigint NOT NULL,
    leader    text NOT NULL,
    ticks     bigint NOT NULL,
    ticked_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX leader_ticks_one_row ON pgleases_leader.leader_ticks ((true));
INSERT INTO pgleases_leader.leader_ticks VALUES (0, 'nobody yet', 0, clock_timestamp())`

// createTable makes the table unless it exists.
func createTable(ctx context.Context, pool *pgxpool.Pool) error {
	err := tables.Create(ctx, pool, "pgleases_leader", "leader_ticks", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, table)
		return err
	})
	if err != nil {
		return fmt.Errorf("create the leader's table: %w", err)
	}
	return nil
}
