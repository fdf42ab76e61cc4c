package pgleases

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/store"
)

// Guard fences a transaction. It passes only while p is owned under exactly p's epoch. From then on
// a takeover of the partition waits until the transaction ends. Call Guard before the writes, in
// the same transaction, and commit. The writes then come before everything that the next owner does
// under its own Guard. If Guard returns ErrNotOwner, p is not owned any longer, so roll back.
//
// The lock lasts as long as the transaction or savepoint in which Guard was called. The transaction
// has to be read-write. In a REPEATABLE READ or SERIALIZABLE transaction that began before the
// partition changed, the database reports a serialization failure instead (SQLSTATE 40001).
//
// Guard lowers idle_in_transaction_session_timeout to the trust that is left, for this transaction
// only, so that a process that freezes in the transaction does not keep the partition. It bounds
// neither a statement that runs on nor the transaction as a whole, because heartbeats prolong the
// trust while the transaction works. A transaction after PREPARE TRANSACTION is not bounded either.
// It keeps the partition until it is committed or rolled back.
//
// While a partition drains, Guard still passes. If all work on it has ended and guarded
// transactions alone keep it from moving, Guard does not pass any longer, not even a second time in
// an open transaction. So transactions that overlap cannot keep a partition forever. After a
// failover to a standby, clients watch the new server for a TTL. Then every earlier epoch ends, and
// Guard refuses it.
//
// Guard costs one round trip on the transaction's own connection, which ctx covers. It checks a
// Partition that was made from a stored number and epoch in the same way.
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
