package lock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/locks"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// Held is a lock that was acquired. All methods are safe for concurrent use.
type Held struct {
	locks       *Locks
	acquisition *locks.Acquisition
	shared      bool
	token       int64

	ctx    context.Context
	cancel context.CancelCauseFunc
	outer  *Held // the lock under whose context this one was acquired; nil: none

	mu       sync.Mutex    // guards what follows
	lost     error         // why; nil: it is not lost
	released chan struct{} // closed when the lock is given up; nil: no Release has begun
	failed   error         // why the release failed
}

func newHeld(ctx context.Context, l *Locks, a *locks.Acquisition, shared bool, token int64) *Held {
	h := &Held{locks: l, acquisition: a, shared: shared, token: token, outer: heldBy(ctx)}
	h.ctx, h.cancel = context.WithCancelCause(h.under(context.WithoutCancel(ctx)))
	return h
}

type heldKey struct{}

// under returns a context for work under the lock. A call with it cannot wait for this lock.
func (h *Held) under(ctx context.Context) context.Context {
	return context.WithValue(ctx, heldKey{}, h)
}

// heldBy returns the last lock that was acquired for the work of a context; nil: none.
func heldBy(ctx context.Context) *Held {
	h, _ := ctx.Value(heldKey{}).(*Held)
	return h
}

// checkNested returns an error for a lock that the caller holds itself: it would wait forever.
func (l *Locks) checkNested(ctx context.Context, m mode, name string) error {
	for h := heldBy(ctx); h != nil; h = h.outer {
		sharing := h.shared && m.shared
		if h.locks.client == l.client && h.Name() == name && !sharing && h.holds() {
			return fmt.Errorf("%w: by the caller itself, whose context comes from this lock; "+
				"a lock is not reentrant", ErrHeld)
		}
	}
	return nil
}

// holds reports whether the lock is neither lost nor released.
func (h *Held) holds() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost == nil && h.released == nil
}

// end ends the work under the lock. The client calls it if the client closes and the lock stays, or
// if the lock is lost.
func (h *Held) end(cause error, lost bool) {
	if lost {
		cause = wrap.Errorf("%w: %w", ErrLost, cause)
		h.mu.Lock()
		if h.released == nil { // else the release decides: its row may have been deleted, and its answer be under way
			h.lost = cause
		}
		h.mu.Unlock()
	}
	h.cancel(cause)
}

// Name returns the lock's name.
func (h *Held) Name() string { return h.acquisition.Name }

// Shared reports whether the lock is held together with others that share it.
func (h *Held) Shared() bool { return h.shared }

// Token returns the fencing token of this acquisition. It is higher than the token of every earlier
// acquisition of the name, also after crashes, after the row was deleted, and after failovers to a
// standby.
func (h *Held) Token() int64 { return h.token }

// Context returns a context for work under the lock. It ends when the lock is lost (the cause wraps
// ErrLost, and pgleases.ErrTrustLost), when it is released, or when the client begins to close
// (pgleases.ErrClosed, ErrSuperseded, ErrEvicted). In the last case the lock stays until it is
// released, and Close waits for that. The context has the values of the context given to the
// acquisition, and does not end with it.
//
// Context reads the clock: past the trust deadline it returns one that has ended, even if the
// process was asleep until then. With pgleases.WithFastFailover, a call in a process that was
// stopped returns one that has ended, until the server has answered.
func (h *Held) Context() context.Context {
	if err := h.trusted(); errors.Is(err, locks.ErrPaused) {
		refused, cancel := context.WithCancelCause(h.ctx)
		cancel(err)
		return refused
	}
	return h.ctx
}

// trusted returns why no trust is left; nil: trust is left. If it is locks.ErrPaused, the trust may
// be left, and the lock is not lost.
func (h *Held) trusted() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.lost != nil:
	case h.released != nil:
		return fmt.Errorf("%w: it was released", ErrLost)
	case h.acquisition.Validity.Remaining() > 0:
	case !h.acquisition.Validity.Over():
		return locks.ErrPaused
	default:
		h.lost = wrap.Errorf("%w: %w", ErrLost, pgleases.ErrTrustLost)
		h.cancel(h.lost)
	}
	return h.lost
}

// Guard fences a transaction. It passes only while the lock is held. From then on no other client
// gets the lock until the transaction ends. Call Guard before the writes, in the same transaction,
// and commit. The writes then come before everything that the next holder does under its own Guard.
// If Guard returns ErrLost, the lock is not held any longer, so roll back.
//
// The fence lasts as long as the transaction or savepoint in which Guard was called. The
// transaction has to be read-write. Guard lowers idle_in_transaction_session_timeout to the trust
// that is left, for this transaction only, so that a process that freezes in the transaction does
// not keep the lock. It costs one round trip on the transaction's own connection, which ctx covers.
// The SQL function guard_lock(name, token) does the same, and raises SQLSTATE PL001.
func (h *Held) Guard(ctx context.Context, tx pgx.Tx) error { return h.guard(ctx, store.InTx(ctx, tx)) }

// GuardSQL is Guard for a database/sql transaction of any PostgreSQL driver that takes $1 as
// placeholder.
func (h *Held) GuardSQL(ctx context.Context, tx *sql.Tx) error {
	return h.guard(ctx, store.InSQLTx(ctx, tx))
}

func (h *Held) guard(ctx context.Context, query store.Query) error {
	err := h.trusted()
	if err == nil || errors.Is(err, locks.ErrPaused) { // in a pause of fast failover the database decides
		err = h.locks.table.Guard(ctx, query, h.Name(), h.token, max(1, h.acquisition.Validity.Left().Milliseconds()))
	}
	if store.Refused(err) {
		err = ErrLost
	}
	if err != nil {
		return wrap.Errorf("pgleases: guard lock %q under token %d: %w", h.Name(), h.token, err)
	}
	return nil
}

// poolWait is how long a release waits for a connection of the pool. The calls that use all
// connections may be waiting for this very lock.
const poolWait = 100 * time.Millisecond

// Release gives the lock up, and ends Context. When it returns nil, the next client in the queue
// has the lock. Release also gives up a lock that was lost, because its row may still keep others
// from the lock, and returns ErrLost then.
//
// Release takes one round trip on a connection of the pool. If the pool has no connection for
// 100 ms, or if the answer is lost, the release goes over the client's own connection. It waits for
// open guarded transactions under the lock. ctx covers the wait only. If it ends, Release returns
// its cause, and the client continues to release the lock. Release is idempotent: after it has
// returned nil, it returns nil again.
func (h *Held) Release(ctx context.Context) error {
	_ = h.trusted() // the first check past the deadline ends the trust
	h.mu.Lock()
	first := h.released == nil
	if first {
		h.released = make(chan struct{})
		h.cancel(errReleased)
	}
	h.mu.Unlock()
	if first {
		h.release(ctx)
	}
	_, err := locks.Answer(ctx, nil, nil, h.released)
	h.mu.Lock()
	err = cmp.Or(err, h.failed)
	if h.lost != nil && err != nil {
		err = wrap.Errorf("%w; %w", h.lost, err)
	}
	err = cmp.Or(err, h.lost)
	h.mu.Unlock()
	if err != nil {
		return wrap.Errorf("pgleases: release lock %q: %w", h.Name(), err)
	}
	return nil
}

// release gives the lock up, once. It waits for the attempt on the pool only, which ends with ctx.
func (h *Held) release(ctx context.Context) {
	h.mu.Lock()
	lost := h.lost
	h.mu.Unlock()
	untold := false  // the release may have been executed, but its answer was lost
	if lost == nil { // else the row may be that of a copy of this process, which the client knows
		a := h.acquisition
		row := store.LockRelease{Name: a.Name, Nonce: a.Nonce}
		became, sent, err := h.locks.table.Release(ctx, poolWait, a.Session, row, a.Run)
		if err == nil && (became == store.LockReleased || became == store.LockAbsent) {
			h.locks.client.Locks.Forget(a)
			h.gaveUp(became == store.LockReleased, false, nil)
			return
		}
		untold = sent && err != nil
	}
	go func() {
		found, err := h.locks.client.Locks.Release(context.WithoutCancel(ctx), h.acquisition)
		h.gaveUp(found, untold, err)
	}()
}

// gaveUp notes the result of the release.
func (h *Held) gaveUp(found, untold bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer close(h.released)
	h.failed = err
	if err == nil && h.lost == nil && !found && !(untold && h.acquisition.Validity.Remaining() > 0) {
		h.lost = fmt.Errorf("%w: the database no longer has it", ErrLost)
	}
}

// releaseGrace is how long Do and TryDo wait for the release.
const releaseGrace = 2 * time.Second

// run runs fn under the lock, and releases it.
func (h *Held) run(ctx context.Context, fn func(context.Context) error) (err error) {
	under, cancel := context.WithCancelCause(h.under(ctx))
	stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	defer func() {
		stop()
		cancel(nil)
		bounded, done := context.WithTimeout(context.WithoutCancel(ctx), releaseGrace)
		defer done()
		err = errors.Join(err, h.Release(bounded))
	}()
	for under.Err() == nil && errors.Is(h.trusted(), locks.ErrPaused) {
		_ = h.locks.client.Beat(under, true) // an error says that under or the client has ended
	}
	return fn(under)
}
