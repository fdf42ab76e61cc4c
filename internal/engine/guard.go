package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Guarded is a partition with the epoch that a guard checks.
type Guarded struct {
	Lease     *Lease
	Number    int
	Epoch     int64
	Ownership *owned.Ownership // nil: the partition was made from a stored number and epoch
}

// Guard checks the ownership, first locally and then by query, with the trust that is left.
func (g Guarded) Guard(ctx context.Context, query store.Query) error {
	trust, err := g.check()
	switch double := g.Lease.client.config.Double; {
	case err != nil:
	case double != nil:
		err = double.Guard(ctx, g.Lease.Name, g.Number, g.Epoch)
	default:
		err = query(g.Lease.client.guard, g.Lease.Name, int32(g.Number), g.Epoch, trust)
	}
	return g.error(err)
}

// QueueStatement queues a statement that calls the function guard itself, in a batch that begins
// the transaction. Its first arguments are the lease, the partition and the epoch; args are the
// others. Read reads its row. If the guard refuses, the batch's Close returns the same error as
// Guard. If QueueStatement returns an error, no statement is queued.
func (g Guarded) QueueStatement(batch *pgx.Batch, statement string, args []any, read func(pgx.Row) error) error {
	if _, err := g.check(); err != nil {
		return g.error(err)
	}
	args = append([]any{g.Lease.Name, int32(g.Number), g.Epoch}, args...)
	batch.Queue(statement, args...).QueryRow(func(row pgx.Row) error {
		err := read(row)
		if store.Refused(err) {
			err = g.error(err)
		}
		return err
	})
	return nil
}

// check checks what is known without the database, and returns the trust left in milliseconds.
func (g Guarded) check() (int64, error) {
	l, errs := g.Lease, &g.Lease.client.config.Errors
	if err := l.Board.Cause(); err != nil {
		return 0, err
	}
	if g.Number < 0 || g.Number >= l.Partitions {
		return 0, fmt.Errorf("%w: the lease has partitions 0 to %d", errs.NotOwner, l.Partitions-1)
	}
	v := l.Board.Look().Validity
	if o := g.Ownership; o != nil {
		if o.Board() != l.Board {
			return 0, fmt.Errorf("%w: the partition is of lease %q", errs.NotOwner, o.Board().Lease())
		}
		if cause := o.Cause(); cause != nil {
			return 0, wrap.Errorf("%w: %w", errs.NotOwner, cause)
		}
		v = o.Validity
	}
	left := v.Left()
	if left > 0 { // in a pause of fast failover the database decides
		return max(1, int64(left/time.Millisecond)), nil
	}
	return 0, wrap.Errorf("%w: %w", errs.NotOwner, errs.TrustLost)
}

func (g Guarded) error(err error) error {
	if err == nil {
		return nil
	}
	if store.Refused(err) {
		err = g.Lease.client.config.Errors.NotOwner
	}
	if errors.Is(err, g.Lease.client.config.Errors.NotOwner) {
		g.Lease.guardRefused()
	}
	return wrap.Errorf("pgleases: guard partition %d of lease %q under epoch %d: %w",
		g.Number, g.Lease.Name, g.Epoch, err)
}
