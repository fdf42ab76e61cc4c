package seam

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
)

// LocksOf returns what a client, a *pgleases.Client, offers to package lock. Package pgleases sets it.
var LocksOf func(client any) Locks

// Locks is what package lock has of a client. Its methods are safe for concurrent use. Where they return an error that is none of ctx, the
// client has ended, or has lost its trust, and the error wraps the root package's that says so.
type Locks interface {
	// Table is where the client takes locks: on connections of a pool, or on a double of a server;
	// nil: there is neither.
	Table(pool *pgxpool.Pool) LockTable
	// Reaches returns an error if connections of a pool do not reach the client's session in a schema; empty: in the client's.
	Reaches(ctx context.Context, pool *pgxpool.Pool, schema string) error

	// Begin begins an acquisition. It ends with one of Hold, Forget and Abandon.
	Begin(ctx context.Context, name string) (*Acquisition, error)
	// Beat waits until the next heartbeat was answered; atOnce: it is sent now.
	Beat(ctx context.Context, atOnce bool) error
	// Await waits until the acquisition, which has a place in the queue, was granted, and returns the token. 0: the place is lost,
	// with the session that had it. It renews what the acquisition says of session and trust.
	Await(ctx context.Context, a *Acquisition) (int64, error)
	// Hold has the client answer for what was granted. It calls end once when the client begins to close, and the lock is not lost, and
	// once when the lock is lost; end must not wait. An error tells that the grant does not count: then the client gives the lock back.
	Hold(a *Acquisition, token int64, end func(cause error, lost bool)) error
	// Forget notes that nothing was granted, nor will be; or that what was held is released.
	Forget(a *Acquisition)
	// Abandon has the client give back what the acquisition has, or may still get.
	Abandon(a *Acquisition)
	// Release has the client give up a lock on its own connection, and waits for that. It reports whether the database had the lock. It goes
	// on where ctx ends.
	Release(ctx context.Context, a *Acquisition) (bool, error)
}

// An Acquisition is one attempt to take a lock, and what it has got.
type Acquisition struct {
	Name     string
	Nonce    int64
	Session  int64
	Run      store.Run       // of the server, at the last heartbeat
	Latest   int64           // by the database's clock, microseconds since 1970: it may be carried out until then
	Validity *owned.Validity // in which it began, or was granted
	Twice    bool            // it was sent twice: the first may arrive until then, whatever the second got, and became of that
}

// A LockTable is where package lock takes and releases locks, outside of the client's own connection. Sent tells whether the database may have
// been asked.
type LockTable interface {
	Acquire(ctx context.Context, r store.LockRequest) (answer store.LockAnswer, sent bool, err error)
	// Release waits for a connection so long at most.
	Release(ctx context.Context, wait time.Duration, session int64, r store.LockRelease, run store.Run) (became store.LockOutcome, sent bool, err error)
	// Guard fences a transaction, in which query runs a statement, for so many milliseconds of idling at most.
	Guard(ctx context.Context, query store.Query, name string, token, trust int64) error
}

// A LockConn is what a client needs of a connection to look after its locks.
type LockConn interface {
	LookAtLocks(ctx context.Context, session int64, nonces []int64, everything bool) ([]store.FoundLock, store.Run, error)
	ReleaseLocks(ctx context.Context, session int64, releases []store.LockRelease, run store.Run) (store.LocksReleased, error)
	SweepLocks(ctx context.Context) (bool, error)
	ListenToLocks(ctx context.Context, session int64) error
	GrantedLocks() []int64
}
