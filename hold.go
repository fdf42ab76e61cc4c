package pgleases

import (
	"context"
	"slices"
	"sync"
)

// A Hold pins the partitions that a client owned when it was taken: none of them is handed over before it is released.
// All methods are safe for concurrent use.
type Hold struct {
	lease   *Lease
	values  []int
	owned   []*ownership
	ctx     context.Context
	cancel  context.CancelCauseFunc
	release sync.Once
}

// Hold pins what this client owns now, for a piece of work: take one, work on its Partitions, release it, take the next. A
// partition that is wanted elsewhere leaves once no open hold contains it. Past the trust deadline, and after the
// lease ended, the hold is empty. Its context is a child of ctx. Always Release it.
func (l *Lease) Hold(ctx context.Context) *Hold {
	h := &Hold{lease: l, values: noValues}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.snapshot.Load()
	if !s.term.trusted() || len(s.values) == 0 {
		return h
	}
	h.values, h.owned = s.values, s.owned
	for _, o := range h.owned {
		o.pins++
		if o.ended != nil { // a moment ago, before this hold could be found
			h.cancel(o.ended)
		}
	}
	if l.holds == nil {
		l.holds = make(map[*Hold]struct{})
	}
	l.holds[h] = struct{}{}
	return h
}

// Partitions returns the ownerships that the hold pins, for Guard, by number. The slice is the caller's. See Values where
// the numbers are enough.
func (h *Hold) Partitions() []Partition {
	partitions := make([]Partition, len(h.owned))
	for i, o := range h.owned {
		partitions[i] = o.partition()
	}
	return partitions
}

// Values returns the numbers of the partitions that the hold pins, ascending. The slice is shared: clone it before writing.
func (h *Hold) Values() []int { return h.values }

// Partition returns the ownership that the hold pins of a partition, and whether there is one.
func (h *Hold) Partition(partition int) (Partition, bool) {
	i, found := slices.BinarySearch(h.values, partition)
	if !found {
		return Partition{}, false
	}
	return h.owned[i].partition(), true
}

// Context returns the context for the work: it ends, with the cause, as soon as one of the hold's ownerships does
// (ErrTrustLost, ErrDrainTimeout, ErrSuperseded, ErrClosed) or the context given to Lease.Hold, and with Release. A
// hand-over alone does not end it.
func (h *Hold) Context() context.Context { return h.ctx }

// Release ends the hold. Only the first call does anything.
func (h *Hold) Release() {
	h.release.Do(func() {
		h.cancel(context.Canceled)
		l := h.lease
		l.mu.Lock()
		freed := false
		for _, o := range h.owned {
			o.pins--
			freed = freed || o.pins == 0 && o.asked != nil
		}
		delete(l.holds, h)
		l.mu.Unlock()
		if freed {
			l.client.wakeUp()
		}
	})
}

// lost reports whether the hold pins one of the ownerships, which have just ended; lease.mu is held. It goes through the fewer: where
// all is lost the hold's, of which the first has ended.
func (h *Hold) lost(ended []*ownership) bool {
	if len(h.owned) <= len(ended) {
		return slices.ContainsFunc(h.owned, func(o *ownership) bool { return o.ended != nil })
	}
	return slices.ContainsFunc(ended, func(o *ownership) bool {
		i, found := slices.BinarySearch(h.values, o.number)
		return found && h.owned[i] == o
	})
}
