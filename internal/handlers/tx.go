// Package handlers has what calls of an application's code share: the transaction that a handler
// works in, and bounds for what the code may do in place of returning. A handler, a tracer or a hook
// of the pool, and a decoder may panic, end their goroutine, or hang:
//
//   - Caught makes an error of a panic. It costs nothing.
//   - Call also makes an error of the end of the goroutine. It costs a goroutine, whose stack grows
//     each time, so it stands around a transaction and not around each of its statements.
//   - Watch tells its caller that the code hangs. The caller still waits, but can log that, and let
//     others have what it holds.
//   - Within and InTime leave behind what hangs. Do not read what it writes then.
package handlers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ReadCommitted are the options of the transactions of handlers.
var ReadCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}

// begin is the statement of a transaction with these options.
var begin = func() string {
	batch := new(pgx.Batch)
	batch.BeginTx(ReadCommitted)
	return batch.QueuedQueries[0].SQL
}()

// A Transaction is one in which a handler works.
type Transaction struct {
	pgx.Tx
	ended atomic.Bool // by CommitAfter or CommitAndBegin
	gives []func()    // see OnLate
}

// Begin begins a transaction, with the statements that queue adds to its batch, in one round trip.
// The Transaction is not nil: if it has not begun, all its methods return an error.
func Begin(ctx context.Context, conn *pgx.Conn, queue func(*pgx.Batch) error) (*Transaction, error) {
	tx := &Transaction{Tx: closedTx}
	batch := new(pgx.Batch)
	batch.BeginTx(ReadCommitted)
	if err := queue(batch); err != nil {
		return tx, err
	}
	answers := conn.SendBatch(ctx, batch)
	tx.Tx = answers.Tx()
	return tx, answers.Close()
}

// OnLate adds a function that gives others something that the transaction holds. It must not be
// called while code of the application works in the transaction.
func (t *Transaction) OnLate(give func()) { t.gives = append(t.gives, give) }

// Late gives others what the transaction holds, because code of the application goes on in it after
// its context has ended. Another goroutine may call it.
func (t *Transaction) Late() {
	for _, give := range t.gives {
		give()
	}
}

// Ended reports whether the transaction was ended by CommitAfter or CommitAndBegin.
func (t *Transaction) Ended() bool { return t.ended.Load() }

// InUTF8 reports whether the database can store all characters. Others lack some, see InASCII.
func (t *Transaction) InUTF8() bool {
	return t.Conn().PgConn().ParameterStatus("server_encoding") == "UTF8"
}

// CommitAfter sends the queued statements, and commits. If a statement fails, the server skips the
// others, and does not commit. See MayBeCommitted for what an error says.
func (t *Transaction) CommitAfter(ctx context.Context, batch *pgx.Batch) error {
	_, err := t.commit(ctx, batch, func(*pgx.Batch) {})
	return err
}

// CommitAndBegin does what CommitAfter does. In the same round trip, it begins the next transaction
// on the connection, with the statements that queue adds. If the commit fails, the server skips
// them, and err says why. If they fail, the commit stays, and begun is their error. The handler of t
// cannot use t any more when the answer to the commit has arrived. COMMIT AND CHAIN is not used,
// because the next transaction would stay READ ONLY if this one is.
func (t *Transaction) CommitAndBegin(
	ctx context.Context, batch *pgx.Batch, queue func(*pgx.Batch),
) (next *Transaction, begun, err error) {
	begun, err = t.commit(ctx, batch, func(batch *pgx.Batch) {
		batch.Queue(begin)
		queue(batch)
	})
	return &Transaction{Tx: t.Tx}, begun, err
}

// commit sends the queued statements, a commit, and the statements that queue adds. If it has
// committed, after is the error of the latter, and err is nil.
func (t *Transaction) commit(ctx context.Context, batch *pgx.Batch, queue func(*pgx.Batch)) (after, err error) {
	committed := false
	batch.Queue("commit").Exec(func(done pgconn.CommandTag) error {
		committed = done.String() == "COMMIT"
		if !committed {
			return pgx.ErrTxCommitRollback
		}
		t.ended.Store(true) // before the connection is free for the next transaction
		return nil
	})
	queue(batch)
	server := t.Conn().PgConn()
	sent := ctx.Err() == nil && !server.IsClosed()
	err = t.Tx.SendBatch(ctx, batch).Close()
	if committed {
		return err, nil
	}
	t.ended.Store(server.TxStatus() == 'I')
	if sent && err != nil && !NotCommitted(err) {
		err = unansweredCommit{err}
	}
	return nil, err
}

// An unansweredCommit is the error of a commit of which it is not known whether it has happened.
type unansweredCommit struct{ error }

func (e unansweredCommit) Unwrap() error { return e.error }

// MayBeCommitted reports whether an error is of a CommitAfter whose transaction may be committed all
// the same: the connection failed before the answer arrived.
func MayBeCommitted(err error) bool { return errors.As(err, new(unansweredCommit)) }

// NotCommitted reports whether an error of a commit says that it has not happened: the server has
// refused it, or has ended the transaction before, because it was idle or took too long.
func NotCommitted(err error) bool {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.SeverityUnlocalized == "ERROR" || refused.Code == "25P03" || refused.Code == "25P04"
	}
	return errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed)
}

// ErrEnded is returned by Left.
var ErrEnded = errors.New("the handler ended its transaction: what it wrote may be committed")

// EndedBy returns an error that is ErrEnded if a handler has ended the transaction, with the text of
// the handler's error. Otherwise it returns nil. The handler's error cannot ask for another attempt
// then.
func (t *Transaction) EndedBy(returned error) error {
	switch {
	case t.Conn().IsClosed() || t.Left() != ErrEnded:
		return nil
	case returned == nil:
		return ErrEnded
	}
	return fmt.Errorf("%w: %v", ErrEnded, returned)
}

// Left returns an error if a handler that returned nil has left the transaction in a state in which
// it cannot be committed. It is ErrEnded if the handler has ended it. The connection is not closed.
func (t *Transaction) Left() error {
	server := t.Conn().PgConn()
	switch {
	case server.IsBusy():
		return errors.New("the handler returned nil while rows or a batch of its transaction were open: " +
			"close them first")
	case server.TxStatus() == 'E':
		return errors.New("the handler returned nil after a failed statement, so its transaction cannot be committed")
	case server.TxStatus() == 'I':
		return ErrEnded
	}
	return nil
}

// ForHandler returns the transaction as a handler has it, which cannot end it. After its end, it
// and its savepoints return pgx.ErrTxClosed, because the connection may belong to another run.
func (t *Transaction) ForHandler() pgx.Tx { return handlerTx{t.Tx, t} }

type handlerTx struct {
	pgx.Tx
	of *Transaction
}

var errNotYours = errors.New("the handler must not end its transaction: " +
	"return nil to commit it, or an error to roll it back")

func (handlerTx) Commit(context.Context) error   { return errNotYours }
func (handlerTx) Rollback(context.Context) error { return errNotYours }

// A savepoint is one of the handler, which may end it.
type savepoint struct{ handlerTx }

func (s savepoint) Commit(ctx context.Context) error   { return s.live().Commit(ctx) }
func (s savepoint) Rollback(ctx context.Context) error { return s.live().Rollback(ctx) }

// closedTx returns pgx.ErrTxClosed from every method.
var closedTx = func() pgx.Tx {
	batch := new(pgx.Batch)
	batch.BeginTx(ReadCommitted)
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

func (h handlerTx) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource,
) (int64, error) {
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
