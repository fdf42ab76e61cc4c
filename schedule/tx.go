package schedule

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// transactions begins transactions under the guard of a partition. Each begins with one round trip,
// and ends with one.
type transactions struct {
	db    *db
	fence fence
	clock *serverClock
	// places has the places for transactions in which code of the application runs.
	places interface {
		Take(context.Context, worker.Lane) (give func(), err error)
	}
	stop context.CancelCauseFunc // ends the Run
	ends *ends
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

// Each of the following functions runs f in a transaction, and commits it if f did not. They differ
// in whose code f is:
//
//	function       goroutine    place on the pool   if code of the application hangs
//	transact       the caller's no                  it waits, see Transaction.Late
//	inGoroutine    its own      no                  it waits
//	forHandler     its own      yes                 it waits
//	fromHandler    the caller's yes                 it waits
//	forUs          its own      no                  it leaves the transaction behind

// forHandler is inGoroutine for an f that calls a handler, which may need the pool once more.
func (t *transactions) forHandler(
	life context.Context, lane worker.Lane, p pgleases.Partition, open opening, f func(*handlers.Transaction) error,
) error {
	return t.inPlace(life, lane, t.inGoroutine, p, open, f)
}

// fromHandler is transact for an f of a handler, in whose goroutine it is called.
func (t *transactions) fromHandler(
	life context.Context, lane worker.Lane, p pgleases.Partition, open opening, f func(*handlers.Transaction) error,
) error {
	return t.inPlace(life, lane, t.transact, p, open, f)
}

// A transactor runs f in a transaction, as transact does.
type transactor func(
	life context.Context, p pgleases.Partition, open opening, f func(*handlers.Transaction) error,
) error

// inPlace calls transact while it has a place for a handler on the pool. The transaction may give
// the place to others before its end.
func (t *transactions) inPlace(
	life context.Context, lane worker.Lane, transact transactor,
	p pgleases.Partition, open opening, f func(*handlers.Transaction) error,
) error {
	give, err := t.places.Take(life, lane)
	if err != nil {
		return worker.Lost(fmt.Errorf("place for a handler on the pool: %w", err))
	}
	defer give()
	return transact(life, p, open, func(tx *handlers.Transaction) error {
		tx.OnLate(give)
		return f(tx)
	})
}

// forUs is transact for statements of this package only. If a tracer or a hook of the pool hangs,
// it leaves the transaction behind. What open and f write must not be read after an error.
func (t *transactions) forUs(
	life context.Context, p pgleases.Partition, open opening, f func(*handlers.Transaction) error,
) error {
	limit := 3 * t.db.times.Answer // a connection, the opening and the commit
	err := handlers.InTime(life, limit, t.db.times.Overrun, func(ctx context.Context) error {
		return t.transact(ctx, p, open, f)
	})
	if errors.Is(err, handlers.ErrHangs) {
		return worker.Lost(err)
	}
	return lostIfCut(err)
}

// inGoroutine is transact in a goroutine of its own. If a tracer or a hook of the pool ends that,
// it is an error of the connection, as a panic is. One goroutine for each transaction is cheaper
// than one for each statement, whose stack would grow each time.
func (t *transactions) inGoroutine(
	life context.Context, p pgleases.Partition, open opening, f func(*handlers.Transaction) error,
) error {
	var err error // of f, for example that a handler panicked
	cut := handlers.Call(func() error {
		err = t.transact(life, p, open, f)
		return nil
	})
	if cut != nil {
		return worker.Lost(cut)
	}
	return err
}

// transact runs f in a transaction of the pool, and commits it if f did not. The answer of the
// opening has arrived before f is called.
func (t *transactions) transact(
	life context.Context, p pgleases.Partition, open opening, f func(*handlers.Transaction) error,
) error {
	var tx *handlers.Transaction
	begin := func(ctx context.Context, conn *pgxpool.Conn) (err error) {
		return t.db.traced(ctx, func() error {
			tx, err = handlers.Begin(ctx, conn.Conn(), func(batch *pgx.Batch) error {
				return t.fence(batch, p, open.statement, open.args, open.read)
			})
			return store.Advised(err)
		})
	}
	conn, release, err := worker.Acquire(life, t.db.line, t.db.pool, t.db.times.Answer, begin)
	if final := worker.EndsRun(err); final != nil {
		t.stop(final)
		return err
	}
	if conn == nil {
		return worker.Lost(fmt.Errorf("connection of the pool: %w", err))
	}
	loan, server := worker.NewLoan(conn, release), conn.Conn()
	defer loan.End(t.db.times.Answer)
	if tx == nil { // a tracer panicked
		return err
	}
	tx.OnLate(loan.Leave)
	defer func() {
		if !tx.Ended() {
			// if it was not committed, and no error has closed the connection
			_ = t.db.inTime(context.WithoutCancel(life), t.db.times.Answer, tx.Tx.Rollback)
		}
	}()
	if err == nil && f != nil {
		err = f(tx)
	}
	if err == nil && !tx.Ended() {
		err = t.db.inTime(life, t.db.times.Answer, tx.Tx.Commit)
	}
	if err != nil && server.IsClosed() {
		return worker.Lost(err)
	}
	return err
}
