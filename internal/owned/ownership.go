package owned

import "context"

// An Ownership is one client's ownership of a partition under one epoch.
type Ownership struct {
	Number   int
	Epoch    int64
	Validity *Validity // the validity when it began

	board *Board

	// Guarded by board.mu. Only the client's goroutine writes asked and ended, and it reads them
	// without board.mu.
	pins  int   // open holds and running callbacks
	asked error // why its work is to end, set at the latest when the ownership ends; nil: it may continue
	ended error // why it ended; nil: it has not ended

	// Guarded by board.mu. A context is created when a caller asks for it: creating and canceling one
	// for each of 65,536 partitions would delay other work.
	ctx    context.Context         // ends with the ownership; nil: no caller asked for it
	cancel context.CancelCauseFunc // ends ctx
	stop   context.CancelCauseFunc // ends the context of a callback; nil: there was no callback
}

// Own returns a new ownership, which is not shown yet.
func (b *Board) Own(v *Validity, number int, epoch int64) *Ownership {
	return &Ownership{Number: number, Epoch: epoch, Validity: v, board: b}
}

// Numbers returns the numbers of ownerships, never nil.
func Numbers(owned []*Ownership) []int {
	numbers := make([]int, len(owned))
	for i, o := range owned {
		numbers[i] = o.Number
	}
	return numbers
}

// Board returns the board of its lease.
func (o *Ownership) Board() *Board { return o.board }

// Context returns the context that ends with the ownership.
func (o *Ownership) Context() context.Context {
	o.board.mu.Lock()
	defer o.board.mu.Unlock()
	if o.ctx == nil {
		o.ctx, o.cancel = context.WithCancelCause(context.Background())
		if o.ended != nil {
			o.cancel(o.ended)
		}
	}
	return o.ctx
}

// Cause returns why the ownership ended; nil: it has not ended.
func (o *Ownership) Cause() error {
	o.board.mu.Lock()
	defer o.board.mu.Unlock()
	return o.ended
}

// Ended is Cause != nil for the client's goroutine, without a lock.
func (o *Ownership) Ended() bool { return o.ended != nil }

// StopWith sets the function that ends the context of a callback. Call it before the first Pin,
// whose answer is Over if it was too late.
func (o *Ownership) StopWith(stop context.CancelCauseFunc) {
	o.board.mu.Lock()
	defer o.board.mu.Unlock()
	o.stop = stop
}

// A Pinning is the answer to a request for a pin.
type Pinning int

const (
	Over   Pinning = iota // the work on the ownership is to end
	Paused                // readers wait for the server: ask again when the board's snapshot changes
	Pinned                // the ownership is not released before Unpin
)

// Pin asks for a pin, which keeps the ownership from being released.
func (o *Ownership) Pin() Pinning {
	o.board.mu.Lock()
	defer o.board.mu.Unlock()
	switch {
	case o.asked != nil:
		return Over
	case o.Validity.Holds():
		o.pins++
		return Pinned
	case o.Validity.Over():
		return Over
	}
	return Paused
}

// AwaitPin asks for a pin, and waits while readers wait for the server. It reports false if the
// work on the ownership is to end, or if ctx ended first. The end of the callback's context, see
// StopWith, has to end ctx.
func (o *Ownership) AwaitPin(ctx context.Context) bool {
	for {
		changed := o.board.Look().Changed()
		answer := o.Pin()
		if answer != Paused {
			return answer == Pinned
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Unpin takes a pin back.
func (o *Ownership) Unpin() { o.board.unpin([]*Ownership{o}, nil) }

// Pinned reports whether the ownership is in work.
func (o *Ownership) Pinned() bool {
	o.board.mu.Lock()
	defer o.board.mu.Unlock()
	return o.pins != 0 // below 0 would be an Unpin too many
}

// unpin takes back the pins of a hold; nil: pins of a callback.
func (b *Board) unpin(owned []*Ownership, of *Hold) {
	b.mu.Lock()
	freed := false
	for _, o := range owned {
		o.pins--
		freed = freed || o.pins == 0 && o.asked != nil
	}
	delete(b.holds, of)
	b.mu.Unlock()
	if freed {
		b.freed()
	}
}

// ask notes that the work on the ownership is to end, and appends the function that stops a
// callback. The caller has mu.
func (o *Ownership) ask(cause error, cancels []context.CancelCauseFunc) []context.CancelCauseFunc {
	if o.asked != nil {
		return cancels
	}
	o.asked = cause
	if o.stop == nil {
		return cancels
	}
	return append(cancels, o.stop)
}
