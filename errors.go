package pgleases

import "errors"

// The errors to test for with errors.Is. What a call returns wraps one of them in a text that names
// the values at hand.
var (
	// ErrClosed is why a client or a lease ended that was closed or left: Client.Err after Close,
	// every call on them from then on, and the cause of contexts that Close or Leave canceled.
	ErrClosed = errors.New("pgleases: closed")

	// ErrSuperseded is why a client ended whose ID a newer process took over. The text names that
	// process's host, pid and start. Give every live process an ID of its own.
	ErrSuperseded = errors.New("pgleases: superseded by a newer process with the same client ID")

	// ErrEvicted is why a client ended that an operator has evicted. The events say who has, and why.
	// A process that starts later with the same ID is let in.
	ErrEvicted = errors.New("pgleases: evicted by an operator")

	// ErrNotOwner is returned by Guard and GuardSQL: the partition is not, or no longer, owned under
	// this epoch. Roll back, and leave the work to the new owner.
	ErrNotOwner = errors.New("pgleases: not the owner")

	// ErrPartitionCount is returned by Client.Lease: the lease exists with another number of
	// partitions, or was dropped less than 24 hours ago and may be made again with another number
	// only.
	ErrPartitionCount = errors.New("pgleases: lease has another number of partitions")

	// ErrSchema is returned by NewClient, Open and Migrate: the schema is missing, too old, or too new
	// for this code. The text says what to run.
	ErrSchema = errors.New("pgleases: schema does not fit")
)

// The causes of canceled contexts, for context.Cause.
var (
	// ErrHandoff cancels the context of a Run callback: the partition is wanted elsewhere. Take no new
	// item.
	ErrHandoff = errors.New("pgleases: partition is handed over")

	// ErrTrustLost cancels everything that is owned when no heartbeat succeeded in time, or the
	// session was evicted: another client may own the partition now.
	ErrTrustLost = errors.New("pgleases: trust in the ownership was lost")

	// ErrDrainTimeout cancels an ownership whose work did not end within WithDrainTimeout of being
	// asked to.
	ErrDrainTimeout = errors.New("pgleases: work did not end within the drain timeout")
)
