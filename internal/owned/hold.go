package owned

import (
	"context"
	"slices"
	"sync"
)

// A Hold pins the ownerships that were shown when it was taken. All methods are safe for concurrent
// use.
type Hold struct {
	board   *Board
	pinned  *Snapshot
	ctx     context.Context
	cancel  context.CancelCauseFunc
	release sync.Once
}

// Hold pins what is shown now. If readers wait for the server, it waits too, until ctx ends. The
// hold's context is a child of ctx.
func (b *Board) Hold(ctx context.Context) *Hold {
	h := &Hold{board: b, pinned: &Snapshot{Values: []int{}}}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	for {
		changed := b.Look().Changed()
		if h.pin() != Paused {
			return h
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return h
		}
	}
}

// pin pins what is shown now.
func (h *Hold) pin() Pinning {
	b := h.board
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.snapshot.Load()
	switch {
	case len(s.Values) == 0:
		return Over
	case s.Validity.Holds():
	case s.Validity.Over():
		return Over
	default:
		return Paused
	}
	h.pinned = s
	for _, o := range s.Owned {
		o.pins++
		if o.ended != nil { // a moment ago, before this hold could be found
			h.cancel(o.ended)
		}
	}
	b.holds[h] = struct{}{}
	return Pinned
}

// Values returns the numbers of the pinned partitions, ascending. The slice is shared.
func (h *Hold) Values() []int { return h.pinned.Values }

// Owned returns the pinned ownerships, by number. The slice is shared.
func (h *Hold) Owned() []*Ownership { return h.pinned.Owned }

// Find returns the pinned ownership of a partition; nil if the hold pins no such ownership.
func (h *Hold) Find(partition int) *Ownership { return h.pinned.at(partition) }

// Context returns the context for the work. It ends when one of the ownerships ends, and with
// Release.
func (h *Hold) Context() context.Context { return h.ctx }

// Release ends the hold. Only the first call has an effect.
func (h *Hold) Release() {
	h.release.Do(func() {
		h.cancel(context.Canceled)
		h.board.unpin(h.pinned.Owned, h)
	})
}

// lost reports whether the hold pins one of the ownerships, which have just ended. The caller has
// mu. It searches the shorter list: if all are lost, that is the hold's, and its first element has
// ended.
func (h *Hold) lost(ended []*Ownership) bool {
	if len(h.pinned.Owned) <= len(ended) {
		return slices.ContainsFunc(h.pinned.Owned, func(o *Ownership) bool { return o.ended != nil })
	}
	return slices.ContainsFunc(ended, func(o *Ownership) bool { return h.Find(o.Number) == o })
}
