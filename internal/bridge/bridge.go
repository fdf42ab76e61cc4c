// Package bridge gives the packages of this module, and no others, access to the root package and to
// package schedule, which set its variables.
package bridge

import (
	"context"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/store"
)

// The root package sets these variables.
var (
	// CheckLease returns the error of a join that would fail on any database, by a client with those
	// options, a []pgleases.Option.
	CheckLease func(lease string, partitions int, options any) error

	// Engine returns the engine of a client, a *pgleases.Client.
	Engine func(client any) *engine.Client

	// Guarded returns the guard of a partition, a pgleases.Partition, of its lease, a *pgleases.Lease.
	Guarded func(lease, partition any) engine.Guarded

	// LeaseNews returns the last news of a lease, a *pgleases.Lease.
	LeaseNews func(lease any) *engine.News

	// On returns a pgleases.Option: with it, Open opens the client on a double instead of a server.
	On func(*engine.Double) any

	// OpenError adds the remedy to an error of opening or migrating the tables of a package.
	OpenError func(ctx context.Context, of, doing, schema string, err error) error

	// Plan returns the moves of a plan of what was read, the same plan that clients make of it, and
	// sets what has no owner after it. It needs neither a client nor a database.
	Plan func(read []store.LeaseSnapshot) []store.Move
)
