package pgleases

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/store"
)

// Guard fences a transaction: it passes only while p is owned under exactly p's epoch, and from
// then on a takeover of the partition waits until the transaction ends. Call it before the writes,
// in the same transaction, and commit: the writes are then ordered before everything that the next
// owner does under its own Guard. ErrNotOwner tells that p is not owned any more; roll back.
//
// The lock lasts as long as the transaction or savepoint in which Guard was called; it needs a
// read-write transaction. In a REPEATABLE READ or SERIALIZABLE one that began before a change of
// the partition, the database reports a serialization failure instead (SQLSTATE 40001). Guard
// lowers idle_in_transaction_session_timeout, for this transaction only, to the trust that is left,
// so that a process that froze inside it gives the partition free; a statement that runs on is not
// bounded, nor the transaction as a whole: heartbeats prolong the trust while it works. Nor is a
// transaction after PREPARE TRANSACTION: it keeps the partition until it is committed or rolled
// back.
//
// While a partition drains, Guard still passes. When all work on it has ended, and guarded
// transactions still keep it from being handed over, Guard passes no more, also not a second time
// in a transaction that is open: so transactions that overlap do not keep it for ever. A failover
// to a standby ends every epoch once the new server was watched for a TTL: Guard refuses those of
// before.
//
// It costs one round trip on the transaction's own connection, which ctx covers. A Partition made
// from a stored number and epoch is checked the same way.
func (l *Lease) Guard(ctx context.Context, tx pgx.Tx, p Partition) error {
	return l.guarded(p).Guard(ctx, store.InTx(ctx, tx))
}

// GuardSQL is Guard for a database/sql transaction of any PostgreSQL driver that takes $1 as
// placeholder.
func (l *Lease) GuardSQL(ctx context.Context, tx *sql.Tx, p Partition) error {
	return l.guarded(p).Guard(ctx, store.InSQLTx(ctx, tx))
}

func (l *Lease) guarded(p Partition) engine.Guarded {
	return engine.Guarded{Lease: l.engine, Number: p.Number, Epoch: p.Epoch, Ownership: p.ownership}
}
