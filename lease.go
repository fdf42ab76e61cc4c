package pgleases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/ranges"
)

// A Lease is a client's part in a lease: it tells which partitions the client owns now. It outlives sessions: after an
// outage or an eviction the client joins again by itself. All methods are safe for concurrent use.
type Lease struct {
	client     *Client
	name       string
	partitions int
	options    leaseOptions

	snapshot atomic.Pointer[snapshot]
	running  atomic.Bool   // a Run is under way
	ended    chan struct{} // closed when the lease was left or its client ended
	endErr   error         // why; set before ended is closed

	// mu guards holds, and what this lease's ownerships say that it guards. A reader that pins loads the snapshot while it holds
	// mu. The client's goroutine stores the new snapshot first, then looks for pins while it holds mu: an ownership that it
	// withdrew is pinned by then, or never will be.
	mu    sync.Mutex
	holds map[*Hold]struct{}
}

// A snapshot is what readers see of a lease, published by the client's goroutine and never changed.
type snapshot struct {
	term    *term
	values  []int        // ascending
	owned   []*ownership // by values
	changed chan struct{}
	read    atomic.Bool // values were returned to a reader, which may be working on them
}

// A term is the time through which a client was trusted without a break. Once over, it stays over: a reader that was
// stopped on its way from an old snapshot to the clock finds the old term's end there, not the new term's.
type term struct {
	opened   time.Time
	deadline atomic.Int64 // trust deadline, nanoseconds after opened; 0: over
	trust    atomic.Int64 // with WithFastFailover: the trust deadline. Then deadline is sooner, see awake; else 0
}

func (t *term) trusted() bool {
	return time.Duration(t.deadline.Load()) > time.Since(t.opened) || t.remaining() > 0
}

// remaining is the trust that is left; 0 or less where there is none. The first look at it after its end ends it for all: a
// heartbeat that was answered just then does not bring it back.
func (t *term) remaining() time.Duration {
	for {
		deadline := t.deadline.Load()
		passed := time.Since(t.opened)
		left := time.Duration(deadline) - passed
		if trust := time.Duration(t.trust.Load()); trust > passed && deadline != 0 {
			if left > 0 {
				return trust - passed
			}
			return left // readers wait for the server
		}
		if left > 0 || deadline == 0 || t.deadline.CompareAndSwap(deadline, 0) {
			return left
		}
	}
}

// over reports whether the term has ended. Where readers wait for the server it has not.
func (t *term) over() bool { return !t.trusted() && t.deadline.Load() == 0 }

// ends is the trust deadline, after opened; 0: it is over.
func (t *term) ends() time.Duration {
	deadline := t.deadline.Load()
	if deadline == 0 {
		return 0
	}
	return time.Duration(max(deadline, t.trust.Load()))
}

// prolong moves the deadline, and reports whether it did: a term that is over stays so.
func (t *term) prolong(deadline time.Time) bool {
	old := t.deadline.Load()
	if t.trust.Load() != 0 {
		t.trust.Store(int64(deadline.Sub(t.opened)))
		return old != 0
	}
	return old != 0 && t.deadline.CompareAndSwap(old, int64(deadline.Sub(t.opened)))
}

// awake lets readers read until then, no longer than the trust lasts.
func (t *term) awake(until time.Time) {
	for {
		old, next := t.deadline.Load(), min(int64(until.Sub(t.opened)), t.trust.Load())
		if old == 0 || next <= old || t.deadline.CompareAndSwap(old, next) {
			return
		}
	}
}

// An ownership is one client's ownership of a partition under one epoch, as readers see it.
type ownership struct {
	lease  *Lease
	term   *term
	number int
	epoch  int64

	// Guarded by lease.mu. The client's goroutine alone writes asked and ended, and reads them without.
	pins  int   // open holds and running callbacks
	asked error // why its work is to end, set when the ownership ends at the latest; nil: it may go on
	ended error // why it ended; nil: it has not

	// Guarded by lease.mu. A context is made for the one who needs it: of 65,536 that nobody waits for, to make and to cancel each
	// would keep the others waiting.
	ctx    context.Context         // ends with the ownership; nil: nobody has asked for it
	cancel context.CancelCauseFunc // ends ctx
	stop   context.CancelCauseFunc // ends the context that a callback of Run works under; nil: there was none
}

var noValues = []int{}

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
	s := l.read()
	if !s.term.trusted() {
		return noValues
	}
	return s.values
}

// Owns reports whether this client owns the partition now, as Values does, for a loop that asks before it works. For a probe, use
// Partition.
func (l *Lease) Owns(partition int) bool {
	_, owned := slices.BinarySearch(l.Values(), partition)
	return owned
}

// read returns the current snapshot, marked as read. A snapshot that is withdrawn between the load and the mark is not
// returned: see publish, which stores the next one first and then looks at the mark.
func (l *Lease) read() *snapshot {
	for {
		s := l.snapshot.Load()
		if s.read.Load() {
			return s
		}
		s.read.Store(true)
		if l.snapshot.Load() == s {
			return s
		}
	}
}

// Partition returns this client's ownership of the partition, with its epoch, and whether it owns it now. It delays no handoff.
func (l *Lease) Partition(partition int) (Partition, bool) {
	s := l.snapshot.Load()
	i, found := slices.BinarySearch(s.values, partition)
	if !found || !s.term.trusted() {
		return Partition{}, false
	}
	return s.owned[i].partition(), true
}

func (o *ownership) partition() Partition {
	return Partition{Number: o.number, Epoch: o.epoch, ownership: o}
}

// context returns the context that ends with the ownership.
func (o *ownership) context() context.Context {
	o.lease.mu.Lock()
	defer o.lease.mu.Unlock()
	if o.ctx == nil {
		o.ctx, o.cancel = context.WithCancelCause(context.Background())
		if o.ended != nil {
			o.cancel(o.ended)
		}
	}
	return o.ctx
}

// cause returns why the ownership ended; nil: it has not.
func (o *ownership) cause() error {
	o.lease.mu.Lock()
	defer o.lease.mu.Unlock()
	return o.ended
}

// ask notes that the work on the ownership is to end, and appends what tells a callback of Run; lease.mu is held.
func (o *ownership) ask(cause error, cancels []context.CancelCauseFunc) []context.CancelCauseFunc {
	if o.asked != nil {
		return cancels
	}
	o.asked = cause
	if o.stop == nil {
		return cancels
	}
	return append(cancels, o.stop)
}

// ask has the work on ownerships end. It cancels when mu is free again: whoever is told may need it at once.
func (l *Lease) ask(owned []*ownership, cause error) {
	var cancels []context.CancelCauseFunc
	l.mu.Lock()
	for _, o := range owned {
		cancels = o.ask(cause, cancels)
	}
	l.mu.Unlock()
	for _, cancel := range cancels {
		cancel(cause)
	}
}

// endHolds ends the contexts of all holds. Nothing is shown any more, so there is no new one.
func (l *Lease) endHolds(cause error) {
	l.mu.Lock()
	holds := slices.Collect(maps.Keys(l.holds))
	l.mu.Unlock()
	for _, h := range holds {
		if h.ctx.Err() == nil {
			h.cancel(cause)
		}
	}
}

// end ends ownerships. The holds that contain one of them are told first: they are few, and much work may go on under each.
func (l *Lease) end(owned []*ownership, cause error) {
	cancels := make([]context.CancelCauseFunc, 0, len(owned))
	l.mu.Lock()
	for _, o := range owned {
		o.ended = cause
	}
	for h := range l.holds {
		if h.ctx.Err() == nil && h.lost(owned) {
			cancels = append(cancels, h.cancel)
		}
	}
	for _, o := range owned {
		if o.cancel != nil {
			cancels = append(cancels, o.cancel)
		}
		cancels = o.ask(cause, cancels)
	}
	l.mu.Unlock()
	var wg sync.WaitGroup
	for part := range slices.Chunk(cancels, 8192) { // all processors share in 65,536
		wg.Go(func() {
			for _, cancel := range part {
				cancel(cause)
			}
		})
	}
	wg.Wait()
}

// PartitionFor returns the partition of a key: the first 8 bytes of SHA-256 of its UTF-8, big-endian, without the sign
// bit, modulo Partitions. The SQL function partition_for(key, partitions) returns the same.
func (l *Lease) PartitionFor(key string) int { return partitionFor(key, l.partitions) }

// Changed returns a channel that is closed at the next change of what Values and Partition tell, the passing of the trust
// deadline included. Take it before reading Values, and a change in between is not missed. After the end of the lease it
// is closed already: a loop that waits for it has to look at Err too.
func (l *Lease) Changed() <-chan struct{} { return l.snapshot.Load().changed }

// Done returns a channel that is closed when the lease has ended: it was left, or its client was closed or superseded. An
// outage or an eviction ends no lease: the client joins again.
func (l *Lease) Done() <-chan struct{} { return l.ended }

// Err returns why the lease ended, ErrClosed or ErrSuperseded; nil while it has not. It costs nanoseconds.
func (l *Lease) Err() error {
	select {
	case <-l.ended:
		return l.endErr
	default:
		return nil
	}
}

// Wait waits until the client owns at least one partition of the lease. It returns the cause of ctx if that ends first, and
// the cause of the lease's or client's end.
func (l *Lease) Wait(ctx context.Context) error {
	for {
		s := l.snapshot.Load()
		if len(s.values) > 0 && s.term.trusted() {
			return nil
		}
		if err := l.Err(); err != nil {
			return fmt.Errorf("pgleases: wait for lease %q: %w", l.name, err)
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return fmt.Errorf("pgleases: wait for lease %q: %w", l.name, context.Cause(ctx))
		}
	}
}

// TrustDeadline returns until when what the lease tells can be trusted if no further heartbeat succeeds, to bound a call
// to something outside; the zero time where nothing can be trusted now.
func (l *Lease) TrustDeadline() time.Time {
	t := l.snapshot.Load().term
	deadline := t.ends()
	if deadline == 0 || !t.trusted() {
		return time.Time{}
	}
	return t.opened.Add(deadline)
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
	case <-l.ended:
		return nil
	case <-ctx.Done():
	}
	if working := l.working(); len(working) > 0 {
		return errors.Join(fmt.Errorf("pgleases: leave lease %q: partitions still in work: %s",
			l.name, ranges.Short(working)), context.Cause(ctx))
	}
	select {
	case <-l.ended:
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
