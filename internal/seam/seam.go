// Package seam is where package pgleasestest gets at the root package: it opens clients there without a database.
package seam

import "context"

// A Database stands in for the database.
type Database interface {
	// Connect opens a connection: a value with the methods of *store.Conn that the root package's engine calls.
	Connect(ctx context.Context) (any, error)
	// Guard stands in for the SQL function guard: it returns nil where the partition is owned under the epoch.
	Guard(ctx context.Context, lease string, partition int, epoch int64) error
}

// The root package sets these when it is initialized. Their types cannot be written here.
var (
	// Open opens a client on a Database; a func(context.Context, Database, ...pgleases.Option) (*pgleases.Client, error).
	Open any
	// Turn waits until a client's goroutine has done what it was about, or ended; a func(*pgleases.Client).
	Turn any
)
