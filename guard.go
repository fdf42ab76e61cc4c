package pgleases

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// Guard fences a transaction: it passes only while p is owned under exactly p's epoch, and from then on a take-over of the
// partition waits until the transaction ends. Call it before the writes, in the same transaction, and commit: the
// writes are then ordered before everything that the next owner does under its own Guard. ErrNotOwner tells that p is
// not owned any more; roll back.
//
// The lock lasts as long as the transaction or savepoint in which Guard was called; it needs a read-write
// transaction. In a REPEATABLE READ or SERIALIZABLE one that began before a change of the partition, the database
// reports a serialization failure instead (SQLSTATE 40001). Guard lowers idle_in_transaction_session_timeout, for this
// transaction only, to the trust that is left, so that a process that froze inside it gives the partition free; a
// statement that runs on is not bounded, nor the transaction as a whole: heartbeats prolong the trust while it works. Nor is a
// transaction after PREPARE TRANSACTION: it keeps the partition until it is committed or rolled back.
//
// While a partition drains, Guard still passes. When all work on it has ended, and guarded transactions still keep it from being
// handed over, Guard passes no more, also not a second time in a transaction that is open: so transactions that overlap do not
// keep it for ever. A failover to a standby ends every epoch once the new server was watched for a TTL: Guard refuses those of
// before.
//
// It costs one round trip on the transaction's own connection, which ctx covers. A Partition made from a stored number and
// epoch is checked the same way.
func (l *Lease) Guard(ctx context.Context, tx pgx.Tx, p Partition) error {
	return l.guard(ctx, p, store.InTx(ctx, tx))
}

// GuardSQL is Guard for a database/sql transaction of any PostgreSQL driver that takes $1 as placeholder.
func (l *Lease) GuardSQL(ctx context.Context, tx *sql.Tx, p Partition) error {
	return l.guard(ctx, p, store.InSQLTx(ctx, tx))
}

func init() {
	seam.QueueGuard = func(ctx context.Context, batch *pgx.Batch, lease, partition any) error {
		l, p := lease.(*Lease), partition.(Partition)
		return l.guard(ctx, p, func(statement string, args ...any) error {
			batch.Queue(statement, args...).Query(func(rows pgx.Rows) error {
				rows.Close()
				return l.guardError(p, rows.Err())
			})
			return nil
		})
	}
	seam.QueueGuarded = func(batch *pgx.Batch, lease, partition any, statement string, args []any, read func(pgx.Row) error) error {
		l, p := lease.(*Lease), partition.(Partition)
		if _, err := l.guardable(p); err != nil {
			return l.guardError(p, err)
		}
		batch.Queue(statement, append([]any{l.name, int32(p.Number), p.Epoch}, args...)...).QueryRow(func(row pgx.Row) error {
			err := read(row)
			if store.Refused(err) {
				err = l.guardError(p, err)
			}
			return err
		})
		return nil
	}
}

// guard checks p, first here and then by query, with the trust left in milliseconds.
func (l *Lease) guard(ctx context.Context, p Partition, query store.Query) error {
	trust, err := l.guardable(p)
	switch {
	case err != nil:
	case l.client.options.database != nil:
		err = l.client.options.database.Guard(ctx, l.name, p.Number, p.Epoch)
	default:
		err = query(l.client.guardStatement, l.name, int32(p.Number), p.Epoch, trust)
	}
	return l.guardError(p, err)
}

// guardable checks what can be known without the database, and returns the trust left in milliseconds.
func (l *Lease) guardable(p Partition) (int64, error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	if p.Number < 0 || p.Number >= l.partitions {
		return 0, fmt.Errorf("%w: the lease has partitions 0 to %d", ErrNotOwner, l.partitions-1)
	}
	v := l.board.Look().Validity
	if o := p.ownership; o != nil {
		if o.Board() != l.board {
			return 0, fmt.Errorf("%w: the partition is of lease %q", ErrNotOwner, o.Board().Lease())
		}
		if cause := o.Cause(); cause != nil {
			return 0, fmt.Errorf("%w: %w", ErrNotOwner, cause)
		}
		v = o.Validity
	}
	left := v.Remaining()
	if left <= 0 {
		return 0, fmt.Errorf("%w: %w", ErrNotOwner, ErrTrustLost)
	}
	return max(1, int64(left/time.Millisecond)), nil
}

func (l *Lease) guardError(p Partition, err error) error {
	if err == nil {
		return nil
	}
	if store.Refused(err) {
		err = ErrNotOwner
	}
	return fmt.Errorf("pgleases: guard partition %d of lease %q under epoch %d: %w", p.Number, l.name, p.Epoch, err)
}
