package faults

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/fence"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/oracle/writes"
)

// pooled is the execution mode that works behind a pooler in transaction mode.
const pooled = pgx.QueryExecModeExec

// Effects is a table of writes under Guard. Each write is a row with the epoch that Guard let pass,
// and with its place in the partition's order of commits. The place comes from a counter that every
// writer has to lock. A writer that writes after a newer epoch has written is a zombie. Locks are
// recorded in the same way, by number, with their tokens.
type Effects struct {
	// Returns gets a line when a write is known to be committed: its name and the time. See
	// Linearizable of package writes. Nil: no lines.
	Returns io.Writer
	// Fence is the fence of the writes, if the pool's database does not have the leases; empty: Guard.
	Fence fence.Schema

	pool  *pgxpool.Pool
	lease string

	Written atomic.Int64 // committed transactions
	Refused atomic.Int64 // guards that did not pass
	Zombies atomic.Int64 // refused guards in SQL, with an epoch that had ended for the client
}

// NewEffects returns the writes of a lease. They use the pool.
func NewEffects(pool *pgxpool.Pool, lease string) *Effects { return &Effects{pool: pool, lease: lease} }

const effectsTables = `
CREATE TABLE IF NOT EXISTS effect_counters (lease text, partition int, n bigint NOT NULL, PRIMARY KEY (lease, partition));
CREATE TABLE IF NOT EXISTS effects (lease text, partition int, n bigint, epoch bigint NOT NULL, writer text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(), name text NOT NULL, called bigint NOT NULL, PRIMARY KEY (lease, partition, n))`

// Create creates the tables.
func (e *Effects) Create(ctx context.Context, partitions int) error {
	const counters = "INSERT INTO effect_counters SELECT '%s', n, 0 FROM generate_series(0, %d) AS n"
	sql := effectsTables + "; " + fmt.Sprintf(counters, e.lease, partitions-1)
	_, err := e.pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// Write writes for the partitions that the lease owns, one transaction after the other, until ctx
// ends. It prefers newly owned partitions, because a zombie that still writes shows there. Some
// transactions pause between Guard and their writes. Others act as a zombie: they use an epoch seen
// earlier, and the guard in SQL, which does not know what the client knows.
func (e *Effects) Write(ctx context.Context, lease *pgleases.Lease, writer string) {
	seen := make(map[int]pgleases.Partition)
	for ctx.Err() == nil {
		p, zombie, found := choose(lease, seen)
		if !found {
			select {
			case <-lease.Changed():
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		guard := func(ctx context.Context, tx pgx.Tx) error { return lease.Guard(ctx, tx, p) }
		if zombie {
			guard = func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT pgleases.guard($1, $2, $3)", e.lease, p.Number, p.Epoch)
				return err
			}
			// A zombie that never pauses would keep its partition locked.
			pause(ctx, rand.N(100*time.Millisecond))
		}
		if e.Fence != "" {
			guard = func(ctx context.Context, tx pgx.Tx) error {
				return e.Fence.Check(ctx, tx, fence.Name(e.lease, p.Number), p.Epoch)
			}
		}
		refused := e.write(ctx, p.Number, p.Epoch, writer, guard)
		if refused && zombie {
			e.Zombies.Add(1)
			delete(seen, p.Number)
		}
	}
}

// choose returns the partition to write for, and whether to write as a zombie.
func choose(lease *pgleases.Lease, seen map[int]pgleases.Partition) (p pgleases.Partition, zombie, found bool) {
	owned := lease.Values()
	if len(seen) > 0 && (len(owned) == 0 || rand.N(4) == 0) {
		for _, p := range seen { // in random order
			return p, true, true
		}
	}
	if len(owned) == 0 {
		return p, false, false
	}
	n := owned[rand.N(len(owned))]
	for _, o := range owned {
		p, ok := lease.Partition(o)
		if ok && seen[o].Epoch != p.Epoch {
			n = o
			break
		}
	}
	p, found = lease.Partition(n)
	if found {
		seen[n] = p
	}
	return p, false, found
}

// pause waits for d, or until ctx ends, and reports whether ctx is still active.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// Refused reports whether a guard refused: the client's or the database's.
func Refused(err error) bool {
	var refused *pgconn.PgError
	byClient := errors.Is(err, pgleases.ErrNotOwner) || errors.Is(err, fence.ErrFenced) || lostLock(err)
	return byClient || errors.As(err, &refused) && refused.Code == "PL001"
}

// A guardFunc returns an error unless the transaction may write.
type guardFunc func(ctx context.Context, tx pgx.Tx) error

// write writes under a guard, in some cases after a pause, and reports whether the guard refused.
func (e *Effects) write(
	ctx context.Context, number int, epoch int64, writer string, guard guardFunc,
) (refused bool) {
	name, called := crand.Text(), oracle.Now()
	err := pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		if err := guard(ctx, tx); err != nil {
			return err
		}
		var linger time.Duration
		switch rand.N(3) {
		case 0:
			linger = rand.N(300 * time.Millisecond)
		case 1:
			linger = rand.N(20 * time.Millisecond)
		}
		if linger > 0 && !pause(ctx, linger) {
			return ctx.Err()
		}
		_, err := tx.Exec(ctx, `WITH counter AS (
    UPDATE effect_counters SET n = n + 1 WHERE lease = $1 AND partition = $2 RETURNING n
)
INSERT INTO effects (lease, partition, n, epoch, writer, name, called) SELECT $1, $2, n, $3, $4, $5, $6 FROM counter`,
			e.lease, number, epoch, writer, name, int64(called))
		return err
	})
	if err == nil && e.Returns != nil {
		_, err = fmt.Fprintln(e.Returns, name, int64(oracle.Now()))
	}
	switch {
	case err == nil:
		e.Written.Add(1)
	case Refused(err):
		e.Refused.Add(1)
		return true
	default: // the server, or the connection to it, is down
		pause(ctx, 50*time.Millisecond)
	}
	return false
}

// Ledger reads the writes for their oracle.
func (e *Effects) Ledger(ctx context.Context) (*writes.Ledger, error) {
	return writes.Read(ctx, e.pool, e.lease)
}
