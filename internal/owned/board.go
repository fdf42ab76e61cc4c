package owned

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// A Board shows readers what a client owns of one lease. Only the client's goroutine calls Show,
// Ask, End, EndHolds and Close.
type Board struct {
	lease string
	freed func() // called when the last pin of an ownership goes, after its work was asked to end

	snapshot atomic.Pointer[Snapshot]
	closed   chan struct{}
	cause    error // set before closed is closed

	// mu guards holds, and the fields of the board's ownerships that say so. No pin begins after a
	// withdrawal: a Hold loads the snapshot while it holds mu, and Pin looks whether the ownership was
	// asked to end. The client's goroutine first stores the new snapshot, then asks, and then checks
	// for pins, each while it holds mu. So an ownership that it withdrew is pinned by then, or never
	// will be.
	mu    sync.Mutex
	holds map[*Hold]struct{}
}

// A Snapshot is what readers see of a lease. It never changes.
type Snapshot struct {
	Validity *Validity
	Values   []int        // ascending, never nil
	Owned    []*Ownership // by Values

	changed chan struct{}
	read    atomic.Bool // Values were returned to a reader, which may be working on them
}

// NewBoard returns a board that shows no partition.
func NewBoard(lease string, v *Validity, freed func()) *Board {
	b := &Board{lease: lease, freed: freed, closed: make(chan struct{}), holds: make(map[*Hold]struct{})}
	b.snapshot.Store(newSnapshot(v, nil))
	return b
}

func newSnapshot(v *Validity, owned []*Ownership) *Snapshot {
	return &Snapshot{Validity: v, Values: Numbers(owned), Owned: owned, changed: make(chan struct{})}
}

// Lease returns the name of the lease.
func (b *Board) Lease() string { return b.lease }

// Look returns the current snapshot for a reader that does not work on it.
func (b *Board) Look() *Snapshot { return b.snapshot.Load() }

// Read returns the current snapshot, marked as read. It does not return a snapshot that is replaced
// between the load and the mark: Show first stores the next snapshot and then checks the mark.
func (b *Board) Read() *Snapshot {
	for {
		s := b.snapshot.Load()
		if s.read.Load() {
			return s
		}
		s.read.Store(true)
		if b.snapshot.Load() == s {
			return s
		}
	}
}

// Changed returns a channel that is closed when another snapshot replaces this one.
func (s *Snapshot) Changed() <-chan struct{} { return s.changed }

// Find returns the ownership of a partition; nil if there is no ownership now.
func (s *Snapshot) Find(partition int) *Ownership {
	if !s.Validity.Holds() {
		return nil
	}
	return s.at(partition)
}

// at returns the ownership of a partition that the snapshot shows; nil if it shows none.
func (s *Snapshot) at(partition int) *Ownership {
	i, found := slices.BinarySearch(s.Values, partition)
	if !found {
		return nil
	}
	return s.Owned[i]
}

// Shows reports whether the board shows this validity and these ownerships.
func (b *Board) Shows(v *Validity, owned []*Ownership) bool {
	s := b.snapshot.Load()
	return s.Validity == v && slices.Equal(s.Owned, owned)
}

// Show shows ownerships, which are ascending. It returns the previous ones that a reader may be
// working on. It first stores the new snapshot, and then checks whether the old one was read: a
// reader that marks the old snapshot after that check does not return it.
func (b *Board) Show(v *Validity, owned []*Ownership) (read []*Ownership) {
	old := b.snapshot.Swap(newSnapshot(v, owned))
	if old.read.Load() {
		read = old.Owned
	}
	close(old.changed)
	return read
}

// Close ends the lease for good. A reader that sees the end does not see an earlier snapshot any
// more.
func (b *Board) Close(v *Validity, cause error) {
	final := newSnapshot(v, nil)
	close(final.changed)
	old := b.snapshot.Swap(final)
	b.cause = cause
	close(b.closed)
	close(old.changed)
}

// Closed returns a channel that is closed with the board.
func (b *Board) Closed() <-chan struct{} { return b.closed }

// Cause returns why the board was closed; nil: it is open.
func (b *Board) Cause() error {
	select {
	case <-b.closed:
		return b.cause
	default:
		return nil
	}
}

// Ask asks for the end of the work on ownerships. It cancels after it has released mu, because the
// work may need mu at once.
func (b *Board) Ask(owned []*Ownership, cause error) {
	var cancels []context.CancelCauseFunc
	b.mu.Lock()
	for _, o := range owned {
		cancels = o.ask(cause, cancels)
	}
	b.mu.Unlock()
	for _, cancel := range cancels {
		cancel(cause)
	}
}

// EndHolds ends the contexts of all holds. If the board shows no partition any more, no new holds
// begin.
func (b *Board) EndHolds(cause error) {
	b.mu.Lock()
	holds := slices.Collect(maps.Keys(b.holds))
	b.mu.Unlock()
	for _, h := range holds {
		if h.ctx.Err() == nil {
			h.cancel(cause)
		}
	}
}

// End ends ownerships. It first cancels the holds that contain one of them, because holds are few,
// and much work may run under each.
func (b *Board) End(owned []*Ownership, cause error) {
	cancels := make([]context.CancelCauseFunc, 0, len(owned))
	b.mu.Lock()
	for _, o := range owned {
		o.ended = cause
	}
	for h := range b.holds {
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
	b.mu.Unlock()
	var wg sync.WaitGroup
	for part := range slices.Chunk(cancels, 8192) { // all processors share the work for 65,536
		wg.Go(func() {
			for _, cancel := range part {
				cancel(cause)
			}
		})
	}
	wg.Wait()
}
