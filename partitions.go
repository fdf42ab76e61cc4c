package pgleases

import (
	"context"
	"fmt"

	"github.com/pgleases/pgleases/internal/owned"
)

// A Partition is one ownership of a partition of a lease. The same number under another epoch is
// another ownership. It is a small value: copy it freely, also beyond the ownership's end.
type Partition struct {
	Number int   // 0 to the lease's number of partitions - 1
	Epoch  int64 // the fencing token: higher than that of every earlier ownership of this partition

	ownership *owned.Ownership
}

func partitionOf(o *owned.Ownership) Partition {
	return Partition{Number: o.Number, Epoch: o.Epoch, ownership: o}
}

// maybePartition is partitionOf for an ownership that may be nil.
func maybePartition(o *owned.Ownership) (Partition, bool) {
	if o == nil {
		return Partition{}, false
	}
	return partitionOf(o), true
}

// Context returns the context of this ownership. It ends with the ownership; its cause is
// ErrHandoff after a handoff, else ErrTrustLost, ErrDrainTimeout, ErrSuperseded, ErrEvicted or
// ErrClosed. While the partition drains, after its owner was asked to hand it over, the context
// lives. A Partition that does not come from a lease returns a context that has ended, with the
// cause ErrNotOwner.
func (p Partition) Context() context.Context {
	if p.ownership == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ErrNotOwner)
		return ctx
	}
	return p.ownership.Context()
}

// String returns number and epoch: "7@12".
func (p Partition) String() string { return fmt.Sprintf("%d@%d", p.Number, p.Epoch) }
