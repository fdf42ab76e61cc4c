package pgleases

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/owned"
)

// A Lease is a client's part in a lease: it tells which partitions the client owns now. It outlives
// sessions: after an outage or an eviction the client joins again by itself. All methods are safe
// for concurrent use.
type Lease struct {
	client  *Client
	engine  *engine.Lease
	board   *owned.Board // what it shows
	running atomic.Bool  // a Run is under way
}

// Name returns the lease's name.
func (l *Lease) Name() string { return l.engine.Name }

// NumPartitions returns the number of partitions of the lease.
func (l *Lease) NumPartitions() int { return l.engine.Partitions }

// Values returns the partitions that this client owns now, ascending; empty, never nil, if none. It
// reads the clock: past the trust deadline it is empty at once, whatever the process slept through.
// It takes nanoseconds, so call it as often as it matters. The slice is shared: clone it before
// writing.
//
// After Values or Owns a loop may be working on what it read, so a partition that moves waits for
// WithHandoffDelay. Probes and metrics read Partition, TrustDeadline and Client.Stats, which delay
// nothing.
func (l *Lease) Values() []int {
	s := l.board.Read()
	if !s.Validity.Holds() {
		return []int{}
	}
	return s.Values
}

// Owns reports whether this client owns the partition now, as Values does, for a loop that asks
// before it works. For a probe, use Partition.
func (l *Lease) Owns(partition int) bool {
	_, found := slices.BinarySearch(l.Values(), partition)
	return found
}

// Partition returns this client's ownership of the partition, with its epoch, and whether it owns
// it now. It delays no handoff.
func (l *Lease) Partition(partition int) (Partition, bool) {
	return maybePartition(l.board.Look().Find(partition))
}

// PartitionFor returns the partition of a key: the first 8 bytes of SHA-256 of its UTF-8,
// big-endian, without the sign bit, modulo NumPartitions. The SQL function partition_for(key,
// partitions) returns the same.
func (l *Lease) PartitionFor(key string) int { return partitionFor(key, l.engine.Partitions) }

// Changed returns a channel that is closed at the next change of what Values and Partition tell,
// the passing of the trust deadline included. Take it before reading Values, and a change in
// between is not missed. After the end of the lease it is closed already: a loop that waits for it
// has to look at Err too.
func (l *Lease) Changed() <-chan struct{} { return l.board.Look().Changed() }

// Done returns a channel that is closed when the lease has ended: it was left, or its client was
// closed or superseded. An outage or an eviction ends no lease: the client joins again.
func (l *Lease) Done() <-chan struct{} { return l.board.Closed() }

// Err returns why the lease ended, ErrClosed, ErrSuperseded or ErrEvicted; nil while it has not. It
// costs nanoseconds.
func (l *Lease) Err() error { return l.board.Cause() }

// Wait waits until the client owns at least one partition of the lease. It returns the cause of ctx
// if that ends first, and the cause of the lease's or client's end.
func (l *Lease) Wait(ctx context.Context) error {
	for {
		s := l.board.Look()
		if len(s.Values) > 0 && s.Validity.Holds() {
			return nil
		}
		if err := l.Err(); err != nil {
			return fmt.Errorf("pgleases: wait for lease %q: %w", l.engine.Name, err)
		}
		select {
		case <-s.Changed():
		case <-ctx.Done():
			return fmt.Errorf("pgleases: wait for lease %q: %w", l.engine.Name, context.Cause(ctx))
		}
	}
}

// TrustDeadline returns until when what the lease tells can be trusted if no further heartbeat
// succeeds, to bound a call to something outside; the zero time where nothing can be trusted now.
func (l *Lease) TrustDeadline() time.Time {
	v := l.board.Look().Validity
	deadline := v.Deadline()
	if !v.Holds() {
		return time.Time{}
	}
	return deadline
}

// SetWeight changes the client's share relative to the other members': 0 to 1,000. It returns once
// the database has it; partitions move afterwards. If ctx ends first its cause is returned, and the
// change may still come.
func (l *Lease) SetWeight(ctx context.Context, weight int) error {
	if err := checkWeight(l.engine.Name, weight); err != nil {
		return err
	}
	return l.engine.SetWeight(ctx, weight)
}

// Leave ends the client's part in the lease: Values is empty at once, Run callbacks are asked to
// end, and what is no longer in work is handed over. It waits for work until ctx ends; what is
// still in work then keeps its partition until the work ends, and is returned as an error joined
// with the cause of ctx. The Lease is of no use afterwards; Client.Lease joins anew. Leave is
// idempotent, and does not pay the handoff delay: stop a loop over Values first. Without a database
// it waits until that is back, ctx ends (2 s longer where nothing is in work) or the client does.
// In a Run callback, or under a hold of the same goroutine, it waits for that work too: see
// Client.Close.
func (l *Lease) Leave(ctx context.Context) error { return l.engine.Leave(ctx) }
