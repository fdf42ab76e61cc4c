package schedule

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
)

// transactions begins transactions under the guard of partitions. One round trip begins each, and
// one ends it.
type transactions struct {
	db    *db
	fence fence
	clock *serverClock
}

// guarded runs f in a transaction of the pool's, and commits it if f has not. What queue queues
// begins it, and is answered before f: the guard of a partition, and what else there is.
func (t *transactions) guarded(life context.Context, queue begin, f func(context.Context, *transaction) error) error {
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
			_ = t.db.within(context.WithoutCancel(life), tx.Tx.Rollback) // if it was not committed; an error has closed the connection
		}
	}()
	err = t.db.within(life, func(ctx context.Context) error {
		batch := new(pgx.Batch)
		batch.BeginTx(readCommitted)
		if err := queue(ctx, batch); err != nil {
			return err
		}
		answers := conn.SendBatch(ctx, batch)
		tx.Tx = answers.Tx()
		return answers.Close()
	})
	if err == nil {
		err = f(life, tx)
	}
	if err == nil && !tx.ended.Load() {
		err = t.db.within(life, tx.Tx.Commit)
	}
	if err != nil && conn.Conn().IsClosed() {
		return lost{err}
	}
	return err
}

// A fence guards transactions by what this process owns.
type fence interface {
	// queueGuard queues the guard of a partition.
	queueGuard(ctx context.Context, batch *pgx.Batch, p pgleases.Partition) error
	// queueGuarded queues a statement that guards a partition itself: its first arguments are the
	// lease, the partition and the epoch.
	queueGuarded(batch *pgx.Batch, p pgleases.Partition, statement string, args []any, read func(pgx.Row) error) error
}

// A leaseFence is the fence of a lease.
type leaseFence struct{ lease *pgleases.Lease }

func (f leaseFence) queueGuard(ctx context.Context, batch *pgx.Batch, p pgleases.Partition) error {
	return bridge.Guarded(f.lease, p).Queue(ctx, batch)
}

func (f leaseFence) queueGuarded(batch *pgx.Batch, p pgleases.Partition, statement string, args []any, read func(pgx.Row) error) error {
	return bridge.Guarded(f.lease, p).QueueStatement(batch, statement, args, read)
}

// A begin queues what begins a transaction.
type begin func(context.Context, *pgx.Batch) error

// guard queues the guards of partitions, and then what more queues.
func (t *transactions) guard(partitions []pgleases.Partition, more func(*pgx.Batch)) begin {
	return func(ctx context.Context, batch *pgx.Batch) error {
		for _, partition := range partitions {
			if err := t.fence.queueGuard(ctx, batch, partition); err != nil {
				return err
			}
		}
		more(batch)
		return nil
	}
}

// opening queues what opens a run, which is guarded with it: r is then the schedule or the job;
// nil: there is none.
func (t *transactions) opening(partition pgleases.Partition, r **record, of subject, run string, timeout, idle time.Duration) begin {
	return func(_ context.Context, batch *pgx.Batch) error {
		return t.db.queueOpen(batch, t.fence, partition, r, of, run, timeout, idle)
	}
}

// nothingMore is for what is queued altogether.
func nothingMore(context.Context, *transaction) error { return nil }

// A transaction is one that guarded has begun.
type transaction struct {
	pgx.Tx
	ended   atomic.Bool           // by commit
	fatal   atomic.Pointer[error] // with which the connection was closed in a statement of the handler's; nil: it was not
	objects atomic.Bool           // the handler has the large objects
}

// status is the server's status of it: T; E after a statement that failed; I if it has ended.
func (t *transaction) status() byte {
	return t.Conn().PgConn().TxStatus()
}

// busy reports whether a statement is under way in it, or its answer was not read to the end.
func (t *transaction) busy() bool {
	return t.Conn().PgConn().IsBusy()
}

// commit commits with what is queued, which is sent before: if a statement of it fails, the server
// skips the others, and commits nothing.
func (t *transaction) commit(ctx context.Context, batch *pgx.Batch) error {
	batch.Queue("commit").Exec(func(done pgconn.CommandTag) error {
		if done.String() != "COMMIT" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	err := t.Tx.SendBatch(ctx, batch).Close()
	t.ended.Store(t.Tx.Conn().PgConn().TxStatus() == 'I')
	if t.ended.Load() && t.objects.Load() {
		none, cancel := context.WithCancel(ctx)
		cancel()
		_ = t.Tx.Commit(none) // sends nothing, and closes it: nothing else ends the use of large objects
	}
	return err
}

// A handlerTx is the transaction as the handler has it: it cannot end it. When that has ended, it
// and its savepoints lead nowhere: the connection may be another run's.
type handlerTx struct {
	pgx.Tx
	of *transaction
}

var errNotYours = errors.New("schedule: the handler does not end its transaction: return nil to have it committed, an error to have it rolled back")

func (handlerTx) Commit(context.Context) error   { return errNotYours }
func (handlerTx) Rollback(context.Context) error { return errNotYours }

// A savepoint is one of the handler's, which it ends itself.
type savepoint struct{ handlerTx }

func (s savepoint) Commit(ctx context.Context) error   { return s.of.saw(s.live().Commit(ctx)) }
func (s savepoint) Rollback(ctx context.Context) error { return s.of.saw(s.live().Rollback(ctx)) }

// closedTx answers everything with pgx.ErrTxClosed.
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
		return nil, h.of.saw(err)
	}
	return savepoint{handlerTx{tx, h.of}}, nil
}

func (h handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	n, err := h.live().CopyFrom(ctx, table, columns, rows)
	return n, h.of.saw(err)
}
func (h handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return seenResults{h.live().SendBatch(ctx, b), h.of}
}
func (h handlerTx) LargeObjects() pgx.LargeObjects {
	h.of.objects.Store(true)
	return h.live().LargeObjects()
}
func (h handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	described, err := h.live().Prepare(ctx, name, sql)
	return described, h.of.saw(err)
}
func (h handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := h.live().Exec(ctx, sql, args...)
	return tag, h.of.saw(err)
}
func (h handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := h.live().Query(ctx, sql, args...)
	return seenRows{rows, h.of}, h.of.saw(err)
}
func (h handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return seenRow{h.live().QueryRow(ctx, sql, args...), h.of}
}

// saw notes the error with which a connection was closed, whatever the handler makes of it.
func (t *transaction) saw(err error) error {
	if err != nil && !t.ended.Load() && t.Conn().IsClosed() {
		t.fatal.CompareAndSwap(nil, &err)
	}
	return err
}

// The answers to a handler's statements, whose errors the transaction sees.
type (
	seenRows struct {
		pgx.Rows
		of *transaction
	}
	seenRow struct {
		pgx.Row
		of *transaction
	}
	seenResults struct {
		pgx.BatchResults
		of *transaction
	}
)

func (r seenRows) Next() bool {
	more := r.Rows.Next()
	_ = r.of.saw(r.Rows.Err())
	return more
}
func (r seenRow) Scan(to ...any) error { return r.of.saw(r.Row.Scan(to...)) }
func (r seenResults) Exec() (pgconn.CommandTag, error) {
	tag, err := r.BatchResults.Exec()
	return tag, r.of.saw(err)
}
func (r seenResults) Query() (pgx.Rows, error) {
	rows, err := r.BatchResults.Query()
	return seenRows{rows, r.of}, r.of.saw(err)
}
func (r seenResults) QueryRow() pgx.Row { return seenRow{r.BatchResults.QueryRow(), r.of} }
func (r seenResults) Close() error      { return r.of.saw(r.BatchResults.Close()) }
