// Command leader is a process of an application in which one process at a time leads: it owns the
// only partition of a lease. Start it in several terminals, with the same DATABASE_URL. One prints
// that it leads, the others which one leads; stop that process with Ctrl-C, and another leads at
// once; or with kill -9, and another leads after the TTL. With -who it prints which process leads
// now:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/leader -id one
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/leader -id two
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/leader -who
//
// The leader counts seconds in the only row of a table, in transactions that only the leader can
// commit: freeze it with kill -STOP for longer than the TTL, thaw it with kill -CONT, and its next
// transaction is refused. Behind PgBouncer in transaction mode, add default_query_exec_mode=exec to
// DATABASE_URL. To see the row, and to remove everything:
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
)

const closeTimeout = 10 * time.Second

func main() {
	id := flag.String("id", "", "client ID, unique among live processes")
	ttl := flag.Duration("ttl", 6*time.Second, "time without a heartbeat after which another process leads")
	who := flag.Bool("who", false, "print which process leads now, and exit")
	flag.Parse()

	// Kubernetes and systemd stop a process with SIGTERM.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	options := []pgleases.Option{pgleases.WithTTL(*ttl)}
	if *id != "" {
		options = append(options, pgleases.WithClientID(*id))
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal("DATABASE_URL: ", err)
	}
	defer pool.Close()
	if *who {
		err = printLeader(ctx, pool, "")
	} else {
		err = run(ctx, pool, options...)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// leaderNow excludes a leader that has crashed: status shows it until another process takes over.
const leaderNow = `
SELECT coalesce((
    SELECT s.owner || ' leads under epoch ' || s.epoch FROM pgleases.status AS s JOIN pgleases.clients AS c ON c.id = s.owner
    WHERE s.lease = 'leader' AND c.expires_at > clock_timestamp()), 'no process leads')`

// printLeader answers from any process: it needs the database, and no client.
func printLeader(ctx context.Context, pool *pgxpool.Pool, prefix string) error {
	var text string
	if err := pool.QueryRow(ctx, leaderNow).Scan(&text); err != nil {
		return err
	}
	fmt.Println(prefix + text)
	return nil
}

// run leads whenever this process is elected, until ctx ends.
func run(ctx context.Context, pool *pgxpool.Pool, options ...pgleases.Option) (err error) {
	if _, err := pool.Exec(ctx, table, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("create the leader's table: %w", err)
	}
	client, err := pgleases.NewClient(ctx, pool, options...)
	if err != nil {
		return err
	}
	defer func() {
		// Run has returned, so Close hands the partition over at once: the next process leads
		// without waiting for the TTL. Close needs another context, because ctx has ended.
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()

	lease, err := client.Lease(ctx, "leader", 1)
	if err != nil {
		return err
	}
	l := leader{pool: pool, client: client, lease: lease}
	if _, leads := lease.Partition(0); !leads {
		if err := printLeader(ctx, pool, client.ID()+": standby: "); err != nil {
			return err
		}
	}
	err = lease.Run(ctx, l.lead)
	if ctx.Err() != nil {
		return nil // a signal has ended it
	}
	return err
}

type leader struct {
	pool   *pgxpool.Pool
	client *pgleases.Client
	lease  *pgleases.Lease
}

// lead is called when this process begins to lead, and returns when ctx ends. A tick that fails is
// tried again: if lead returned its error, Run would call lead again after a pause, so in an outage
// the process would seem to stop and begin to lead.
func (l *leader) lead(ctx context.Context, p pgleases.Partition) error {
	fmt.Printf("%s: leading under epoch %d\n", l.client.ID(), p.Epoch)
	defer fmt.Printf("%s: not leading\n", l.client.ID())
	for {
		// A tick is finished even if ctx ends: p.Context() ends only if the partition is lost.
		if err := l.tick(p.Context(), p); err != nil {
			fmt.Printf("%s: a tick failed: %v\n", l.client.ID(), err)
		}
		select {
		case <-time.After(time.Second):
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
		// Guard comes first. After it, no other process leads until the transaction ends. It
		// returns ErrNotOwner if another process leads already, for example because this process
		// was frozen.
		if err := l.lease.Guard(ctx, tx, p); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, advance, p.Epoch, l.client.ID())
		return err
	})
}

// table is one transaction. The lock is for processes that start together: IF NOT EXISTS does not
// wait for another CREATE of the same name, and fails.
const table = `
SELECT pg_advisory_xact_lock(5318008371);
CREATE SCHEMA IF NOT EXISTS pgleases_leader;
CREATE TABLE IF NOT EXISTS pgleases_leader.leader_ticks (
    epoch     bigint NOT NULL,
    leader    text NOT NULL,
    ticks     bigint NOT NULL,
    ticked_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS leader_ticks_one_row ON pgleases_leader.leader_ticks ((true));
INSERT INTO pgleases_leader.leader_ticks VALUES (0, 'no leader yet', 0, clock_timestamp()) ON CONFLICT DO NOTHING`
