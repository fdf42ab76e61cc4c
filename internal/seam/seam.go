// Package seam is what the packages of this module, and nobody else, have of the root package: seam.go opens clients on a database of the
// module's own making, and has the plan that clients make, locks.go is a client's session as package lock uses it, failover.go what fast
// failover needs of a connection, guard.go a guard that package schedule sends together with other statements, schedule.go schedulers
// that a test drives.
package seam

import (
	"context"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// Replan returns the moves of a plan of what was read, the very plan that clients make of it: for a dry run of what operators have in mind. It
// changes nothing, and needs no client. Package pgleases sets it.
var Replan func(read []store.LeasePlan) []store.Move

// An Option is what an option of a client is. Nobody outside this module can write one: Only has no name there.
type Option interface{ Option(Only) }

// Only is a parameter that names this package.
type Only struct{}

// A Database is an option of pgleases.Open: the client runs on this, and on no server.
type Database struct {
	// Connect opens a connection.
	Connect func(context.Context) (Conn, error)
	// Guard stands in for the SQL function guard: nil where the partition is owned under the epoch.
	Guard func(ctx context.Context, lease string, partition int, epoch int64) error
	// Locks is where package lock takes locks.
	Locks LockTable
	// Turn waits until the client's goroutine has done what it was about, or ended. Open sets it.
	Turn func()
}

// Option makes it an option.
func (*Database) Option(Only) {}

// A Conn is what a client needs of a connection; *store.Conn is one. Its methods are called by one goroutine at a time.
type Conn interface {
	LockConn
	Register(context.Context, store.Registration) (int64, *store.Process, error)
	Superseder(ctx context.Context, id string) (*store.Process, error)
	Heartbeat(ctx context.Context, session int64, watched time.Duration, last store.Renewal) (store.Beat, error)
	Mark(ctx context.Context, mark int64) error
	Settle(ctx context.Context, watched time.Duration, run store.Run, era int64) (int64, error)
	Unsettle(ctx context.Context, era int64) error
	End(ctx context.Context, session int64) (bool, error)
	Join(ctx context.Context, session int64, lease string, partitions, weight int, number int64) (store.Join, error)
	SetWeight(ctx context.Context, session int64, lease string, weight int) (bool, error)
	Read(ctx context.Context, session int64, leases []string) ([]store.LeaseRead, error)
	Release(ctx context.Context, session int64, releases []store.Release, leaving []store.Leave, lastJoin int64) (store.Released, error)
	Announce(ctx context.Context, leases []string, sessions []int64) error
	Fence(ctx context.Context, session int64, busy []store.Release) error
	Evict(ctx context.Context, cutoff int64, watched, ttl time.Duration, run store.Run) (store.Evicted, error)
	Tidy(ctx context.Context) (asked []string, err error)
	Claim(ctx context.Context, leases []string) ([]string, error)
	Plan(ctx context.Context, leases []string, alone bool) ([]store.LeasePlan, error)
	Apply(ctx context.Context, plan []store.LeasePlan, moves []store.Move, again time.Duration) (store.Applied, error)
	Listen(ctx context.Context, probe int64) (bool, error)
	Prepare(ctx context.Context) error
	Wait(ctx context.Context) error
	Closed() bool
	Close()
}
