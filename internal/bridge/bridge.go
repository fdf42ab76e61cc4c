// Package bridge is what the packages of this module, and no others, have of the root package,
// which sets these variables.
package bridge

import (
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/store"
)

var (
	// Engine returns the engine of a client, a *pgleases.Client.
	Engine func(client any) *engine.Client

	// Guarded returns the guard of a partition, a pgleases.Partition, of its lease, a *pgleases.Lease.
	Guarded func(lease, partition any) engine.Guarded

	// On returns a pgleases.Option: Open opens the client on a double, and on no server.
	On func(*engine.Double) any

	// Plan returns the moves of a plan of what was read, the very plan that clients make of it. It
	// changes nothing, and needs no client.
	Plan func(read []store.LeasePlan) []store.Move
)
