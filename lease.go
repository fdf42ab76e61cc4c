package pgleases

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Lease is a client's part in a lease. It shows which partitions the client owns now. It outlives
// sessions: after an outage, or if its session has expired, the client joins again automatically.
// All methods are safe for concurrent use.
type Lease struct {
	client  *Client
	engine  *engine.Lease
	board   *owned.Board // what it shows
	running atomic.Bool  // a Run is under way

	owners   atomic.Pointer[cachedOwners] // what Owners last read; nil: nothing
	reading  sync.Mutex                   // an answer becomes owners
	mu       sync.Mutex
	failures map[string]*failure // not logged yet, by reason; nil: none
}

// Name returns the lease's name.
func (l *Lease) Name() string { return l.engine.Name }

// NumPartitions returns the number of partitions of the lease.
func (l *Lease) NumPartitions() int { return l.engine.Partitions }

// Values returns the numbers of the partitions that this client owns now, ascending. If it owns
// none, the slice is empty and not nil. Values reads the clock, so past the trust deadline it is
// empty at once, even if the process stood still until then. It costs nanoseconds, so call it as
// often as it matters. The slice is shared, so clone it before you write to it.
//
// A loop may be working on what it got from Values or Owns, so a partition that moves then waits
// for WithHandoffDelay. Probes and metrics should use Partition, TrustDeadline and Stats, which
// delay no handoff.
func (l *Lease) Values() []int {
	s := l.board.Read()
	if !s.Validity.Holds() {
		return []int{}
	}
	return s.Values
}

// Owns reports whether this client owns the partition now. Like Values, it is for a loop that asks
// before it works. For a probe, use Partition.
func (l *Lease) Owns(partition int) bool {
	_, found := slices.BinarySearch(l.Values(), partition)
	return found
}

// Partition returns this client's ownership of the partition, with its epoch, and whether the
// client owns it now. It delays no handoff.
func (l *Lease) Partition(partition int) (Partition, bool) {
	return maybePartition(l.board.Look().Find(partition))
}

// PartitionFor returns the partition of a key. This is the number in the first 8 bytes of the
// SHA-256 of the key's UTF-8, big-endian and without the sign bit, modulo NumPartitions. The SQL
// function partition_for(key, partitions) returns the same.
func (l *Lease) PartitionFor(key string) int { return store.PartitionFor(key, l.engine.Partitions) }

// Changed returns a channel that is closed when what Values and Partition return changes, also if
// the trust deadline passes. Call Changed before Values, so that you miss no change in between.
// After the end of the lease the channel is closed already, so a loop that waits for it has to
// check Err too.
func (l *Lease) Changed() <-chan struct{} { return l.board.Look().Changed() }

// Done returns a channel that is closed when the lease has ended, because it was left or replaced
// by another one, or because its client has ended. An outage or an expired session does not end a
// lease, because the client joins again.
func (l *Lease) Done() <-chan struct{} { return l.board.Closed() }

// Err returns why the lease ended: ErrClosed, ErrSuperseded, ErrEvicted or ErrLeaseReplaced. It
// returns nil while the lease lives. It costs nanoseconds.
func (l *Lease) Err() error { return l.board.Cause() }

// Wait waits until the client owns at least one partition of the lease. It returns an error that
// wraps the cause of ctx if ctx ends first, or why the lease ended.
func (l *Lease) Wait(ctx context.Context) error {
	for {
		s := l.board.Look()
		if len(s.Values) > 0 && s.Validity.Holds() {
			return nil
		}
		if err := l.Err(); err != nil {
			return wrap.Errorf("pgleases: wait for lease %q: %w", l.engine.Name, err)
		}
		select {
		case <-s.Changed():
		case <-ctx.Done():
			return wrap.Errorf("pgleases: wait for lease %q: %w", l.engine.Name, context.Cause(ctx))
		}
	}
}

// TrustDeadline returns the time until which this client may act as owner if no further heartbeat
// succeeds. Use it to bound a call to another system. It returns the zero time if the client may
// not act as owner now.
func (l *Lease) TrustDeadline() time.Time {
	v := l.board.Look().Validity
	deadline := v.Deadline()
	if !v.Holds() {
		return time.Time{}
	}
	return deadline
}

// SetWeight changes the client's share relative to the other members' shares. Valid weights are 0
// to 1,000. It returns when the database has the weight; partitions move afterwards. If ctx ends
// first it returns the cause of ctx, and the weight may still change.
func (l *Lease) SetWeight(ctx context.Context, weight int) error {
	if err := checkWeight(l.engine.Name, weight); err != nil {
		return err
	}
	return l.engine.SetWeight(ctx, weight)
}

// Leave ends the client's part in the lease. Values is empty at once, and Run callbacks are asked
// to end. The client hands over each partition when the work on it has ended. Leave does not wait
// for the handoff delay, so stop loops over Values before you call it.
//
// Leave waits for work until ctx ends. Partitions in work then stay with the client until the work
// ends, and Leave returns an error that names them, joined with the cause of ctx. If the database
// cannot be reached, Leave waits until it is back, until the client ends, or until ctx ends (2 s
// longer if no partition is in work).
//
// The Lease is of no use afterwards. Call Client.Lease to join again. Leave is idempotent. If a Run
// callback or a goroutine with an open hold calls Leave, Leave waits for that work too, as
// Client.Close does.
func (l *Lease) Leave(ctx context.Context) error { return l.engine.Leave(ctx) }
