package pgleases

import (
	"context"

	"github.com/pgleases/pgleases/internal/owned"
)

// A Hold pins the partitions that a client owned when it was taken: none of them is handed over before it is released.
// All methods are safe for concurrent use.
type Hold struct{ hold *owned.Hold }

// Hold pins what this client owns now, for a piece of work: take one, work on its Partitions, release it, take the next. A
// partition that is wanted elsewhere leaves once no open hold contains it. Past the trust deadline, and after the
// lease ended, the hold is empty. Its context is a child of ctx. Always Release it.
func (l *Lease) Hold(ctx context.Context) *Hold { return &Hold{l.board.Hold(ctx)} }

// Partitions returns the ownerships that the hold pins, for Guard, by number. The slice is the caller's. See Values where
// the numbers are enough.
func (h *Hold) Partitions() []Partition {
	pinned := h.hold.Owned()
	partitions := make([]Partition, len(pinned))
	for i, o := range pinned {
		partitions[i] = partitionOf(o)
	}
	return partitions
}

// Values returns the numbers of the partitions that the hold pins, ascending. The slice is shared: clone it before writing.
func (h *Hold) Values() []int { return h.hold.Values() }

// Partition returns the ownership that the hold pins of a partition, and whether there is one.
func (h *Hold) Partition(partition int) (Partition, bool) {
	return maybePartition(h.hold.Find(partition))
}

// Context returns the context for the work: it ends, with the cause, as soon as one of the hold's ownerships does
// (ErrTrustLost, ErrDrainTimeout, ErrSuperseded, ErrEvicted, ErrClosed) or the context given to Lease.Hold, and with Release. A
// hand-over alone does not end it.
func (h *Hold) Context() context.Context { return h.hold.Context() }

// Release ends the hold. Only the first call does anything.
func (h *Hold) Release() { h.hold.Release() }
