package schedule

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
)

// transactions begins transactions under the guard of a partition. Each begins with one round trip,
// and ends with one.
type transactions struct {
	db    *db
	fence fence
	clock *serverClock
}

// A fence queues a statement that guards a partition itself. Its first arguments are the lease, the
// partition and the epoch; args are the others.
type fence func(batch *pgx.Batch, p pgleases.Partition, statement string, args []any, read func(pgx.Row) error) error

// leaseFence returns the fence of a lease.
func leaseFence(lease *pgleases.Lease) fence {
	return func(batch *pgx.Batch, p pgleases.Partition, statement string, args []any, read func(pgx.Row) error) error {
		return bridge.Guarded(lease, p).QueueStatement(batch, statement, args, read)
	}
}

// An opening is the statement that begins a transaction and guards its partition.
type opening struct {
	statement string
	args      []any
	read      func(pgx.Row) error
}

// guarded runs f in a transaction of the pool, and commits it if f did not. The answer of the
// opening has arrived before f is called.
func (t *transactions) guarded(life context.Context, p pgleases.Partition, open opening, f func(*transaction) error) error {
	var conn *pgxpool.Conn
	err := t.db.within(life, func(ctx context.Context) (err error) {
		conn, err = t.db.pool.Acquire(ctx)
		return err
	})
	if err != nil {
		return lost{fmt.Errorf("connection of the pool: %w", err)}
	}
	defer conn.Release()
	tx := &transaction{Tx: closedTx}
	defer func() {
		if !tx.ended.Load() {
			// if it was not committed, and no error has closed the connection
			_ = t.db.within(context.WithoutCancel(life), tx.Tx.Rollback)
		}
	}()
	err = t.db.within(life, func(ctx context.Context) error {
		batch := new(pgx.Batch)
		batch.BeginTx(readCommitted)
		if err := t.fence(batch, p, open.statement, open.args, open.read); err != nil {
			return err
		}
		answers := conn.SendBatch(ctx, batch)
		tx.Tx = answers.Tx()
		return answers.Close()
	})
	if err == nil && f != nil {
		err = f(tx)
	}
	if err == nil && !tx.ended.Load() {
		err = t.db.within(life, tx.Tx.Commit)
	}
	if err != nil && conn.Conn().IsClosed() {
		return lost{err}
	}
	return err
}

// A transaction is one that guarded has begun.
type transaction struct {
	pgx.Tx
	ended atomic.Bool // by commit
}

// commit sends the queued statements, and commits. If a statement fails, the server skips the
// others, and does not commit.
func (t *transaction) commit(ctx context.Context, batch *pgx.Batch) error {
	batch.Queue("commit").Exec(func(done pgconn.CommandTag) error {
		if done.String() != "COMMIT" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	err := t.Tx.SendBatch(ctx, batch).Close()
	t.ended.Store(t.Conn().PgConn().TxStatus() == 'I')
	return err
}

// A handlerTx is the transaction as the handler has it, which cannot end it. After its end, it and
// its savepoints return pgx.ErrTxClosed, because the connection may belong to another run.
type handlerTx struct {
	pgx.Tx
	of *transaction
}

var errNotYours = errors.New("schedule: the handler must not end its transaction: return nil to commit it, or an error to roll it back")

func (handlerTx) Commit(context.Context) error   { return errNotYours }
func (handlerTx) Rollback(context.Context) error { return errNotYours }

// A savepoint is one of the handler, which may end it.
type savepoint struct{ handlerTx }

func (s savepoint) Commit(ctx context.Context) error   { return s.live().Commit(ctx) }
func (s savepoint) Rollback(ctx context.Context) error { return s.live().Rollback(ctx) }

// closedTx returns pgx.ErrTxClosed from every method.
var closedTx = func() pgx.Tx {
	batch := new(pgx.Batch)
	batch.BeginTx(readCommitted)
	return pgx.FailedBatchResults(batch, pgx.ErrTxClosed).Tx()
}()

func (h handlerTx) live() pgx.Tx {
	if h.of.ended.Load() {
		return closedTx
	}
	return h.Tx
}

func (h handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := h.live().Begin(ctx)
	if err != nil {
		return nil, err
	}
	return savepoint{handlerTx{tx, h.of}}, nil
}

func (h handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	return h.live().CopyFrom(ctx, table, columns, rows)
}
func (h handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return h.live().SendBatch(ctx, b)
}
func (h handlerTx) LargeObjects() pgx.LargeObjects { return h.live().LargeObjects() }
func (h handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return h.live().Prepare(ctx, name, sql)
}
func (h handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return h.live().Exec(ctx, sql, args...)
}
func (h handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return h.live().Query(ctx, sql, args...)
}
func (h handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return h.live().QueryRow(ctx, sql, args...)
}
