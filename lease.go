package pgleases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/ranges"
)

// A Lease is a client's part in a lease: it tells which partitions the client owns now. It outlives sessions: after an
// outage or an eviction the client joins again by itself. All methods are safe for concurrent use.
type Lease struct {
	client     *Client
	name       string
	partitions int
	options    leaseOptions

	board   *owned.Board // what it shows
	running atomic.Bool  // a Run is under way
}

// Name returns the lease's name.
func (l *Lease) Name() string { return l.name }

// Partitions returns the number of partitions of the lease.
func (l *Lease) Partitions() int { return l.partitions }

// Values returns the partitions that this client owns now, ascending; empty, never nil, if none. It reads the clock:
// past the trust deadline it is empty at once, whatever the process slept through. It takes nanoseconds, so call it as
// often as it matters. The slice is shared: clone it before writing.
//
// After Values or Owns a loop may be working on what it read, so a partition that moves waits for WithHandoffDelay. Probes and
// metrics read Partition, TrustDeadline and Client.Stats, which delay nothing.
func (l *Lease) Values() []int {
	s := l.board.Read()
	if !s.Validity.Holds() {
		return []int{}
	}
	return s.Values
}

// Owns reports whether this client owns the partition now, as Values does, for a loop that asks before it works. For a probe, use
// Partition.
func (l *Lease) Owns(partition int) bool {
	_, found := slices.BinarySearch(l.Values(), partition)
	return found
}

// Partition returns this client's ownership of the partition, with its epoch, and whether it owns it now. It delays no handoff.
func (l *Lease) Partition(partition int) (Partition, bool) {
	return maybePartition(l.board.Look().Find(partition))
}

// PartitionFor returns the partition of a key: the first 8 bytes of SHA-256 of its UTF-8, big-endian, without the sign
// bit, modulo Partitions. The SQL function partition_for(key, partitions) returns the same.
func (l *Lease) PartitionFor(key string) int { return partitionFor(key, l.partitions) }

// Changed returns a channel that is closed at the next change of what Values and Partition tell, the passing of the trust
// deadline included. Take it before reading Values, and a change in between is not missed. After the end of the lease it
// is closed already: a loop that waits for it has to look at Err too.
func (l *Lease) Changed() <-chan struct{} { return l.board.Look().Changed() }

// Done returns a channel that is closed when the lease has ended: it was left, or its client was closed or superseded. An
// outage or an eviction ends no lease: the client joins again.
func (l *Lease) Done() <-chan struct{} { return l.board.Closed() }

// Err returns why the lease ended, ErrClosed, ErrSuperseded or ErrEvicted; nil while it has not. It costs nanoseconds.
func (l *Lease) Err() error { return l.board.Cause() }

// Wait waits until the client owns at least one partition of the lease. It returns the cause of ctx if that ends first, and
// the cause of the lease's or client's end.
func (l *Lease) Wait(ctx context.Context) error {
	for {
		s := l.board.Look()
		if len(s.Values) > 0 && s.Validity.Holds() {
			return nil
		}
		if err := l.Err(); err != nil {
			return fmt.Errorf("pgleases: wait for lease %q: %w", l.name, err)
		}
		select {
		case <-s.Changed():
		case <-ctx.Done():
			return fmt.Errorf("pgleases: wait for lease %q: %w", l.name, context.Cause(ctx))
		}
	}
}

// TrustDeadline returns until when what the lease tells can be trusted if no further heartbeat succeeds, to bound a call
// to something outside; the zero time where nothing can be trusted now.
func (l *Lease) TrustDeadline() time.Time {
	v := l.board.Look().Validity
	deadline := v.Deadline()
	if !v.Holds() {
		return time.Time{}
	}
	return deadline
}

// SetWeight changes the client's share relative to the other members': 0 to 1,000. It returns once the database has it;
// partitions move afterwards. If ctx ends first its cause is returned, and the change may still come.
func (l *Lease) SetWeight(ctx context.Context, weight int) error {
	if err := checkWeight(l.name, weight); err != nil {
		return err
	}
	var done chan<- error // the client's goroutine alone uses it
	refused, err := requestAnswer(ctx, l.client, func(e *engine, answer chan<- error) {
		done = answer
		e.setWeight(l, weight, done)
	})
	if err = cmp.Or(err, refused); err != nil {
		_ = l.client.request(context.WithoutCancel(ctx), func(e *engine) { e.abandonWeight(l, done) })
		return fmt.Errorf("pgleases: set weight of lease %q: %w", l.name, err)
	}
	return nil
}

// Leave ends the client's part in the lease: Values is empty at once, Run callbacks are asked to end, and what is no
// longer in work is handed over. It waits for work until ctx ends; what is still in work then keeps its partition
// until the work ends, and is returned as an error joined with the cause of ctx. The Lease is of no use afterwards;
// Client.Lease joins anew. Leave is idempotent, and does not pay the hand-off delay: stop a loop over Values first.
// Without a database it waits until that is back, ctx ends (2 s longer where nothing is in work) or the client does. In a Run
// callback, or under a hold of the same goroutine, it waits for that work too: see Client.Close.
func (l *Lease) Leave(ctx context.Context) error {
	// Not bounded by ctx: what is free is released also when ctx has ended already.
	_ = l.client.request(context.WithoutCancel(ctx), func(e *engine) {
		if m := e.membershipOf(l); m != nil && m.leaving == nil {
			e.leave(m, ErrClosed)
		}
	})
	select {
	case <-l.board.Closed():
		return nil
	case <-ctx.Done():
	}
	if working := l.working(); len(working) > 0 {
		return errors.Join(fmt.Errorf("pgleases: leave lease %q: partitions still in work: %s",
			l.name, ranges.Short(working)), context.Cause(ctx))
	}
	select {
	case <-l.board.Closed():
		return nil
	case <-time.After(closeGrace):
		return errors.Join(fmt.Errorf("pgleases: leave lease %q: not released yet", l.name), context.Cause(ctx))
	}
}

// working returns the partitions that a hold or a callback keeps.
func (l *Lease) working() []int {
	working, _ := requestAnswer(context.Background(), l.client, func(e *engine, answer chan<- []int) { // an error tells that it ended
		answer <- e.inWork(e.membershipOf(l))
	})
	return working
}
