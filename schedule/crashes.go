package schedule

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

// crashes writes down in which partitions this process runs something: an owner that finds that not
// taken back knows that this process crashed. It is safe for concurrent use.
type crashes struct {
	transactions

	mu      sync.Mutex   // guards closing
	closing []*ownership // whose end the holder of closes writes down
	closes  sync.Mutex   // before mu
}

// open writes down, before the first run in a partition, that something runs in it.
func (c *crashes) open(o *ownership) error {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	if !o.opened.IsZero() {
		return nil
	}
	err := c.db.repeat(o.ctx, maxBreaks, passing, func() error {
		return c.guarded(
			o.ctx, c.guard([]pgleases.Partition{o.Partition}, func(batch *pgx.Batch) { c.db.queueBegin(batch, &o.crashed, o.Number, o.Epoch) }),
			nothingMore,
		)
	})
	if err == nil {
		o.opened = c.clock.now()
	}
	return err
}

// close takes that back, when all runs have ended. If that fails, the next owner is careful for
// nothing. A process that ends closes many at once: those that come while others are written down
// are written together. But one that takes crashes back locks schedules and jobs: two of them in
// one transaction may deadlock with an edit of both, and all would wait for an edit of one. So it
// is alone.
func (c *crashes) close(o *ownership) {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	switch {
	case o.opened.IsZero():
		return
	case len(o.counted) > 0:
		_ = c.db.repeat(o.life, maxConflicts, conflict, func() error { return c.writeClosed([]*ownership{o}) })
		return
	}
	c.mu.Lock()
	c.closing = append(c.closing, o)
	c.mu.Unlock()
	c.closes.Lock()
	defer c.closes.Unlock()
	c.mu.Lock()
	if !slices.Contains(c.closing, o) { // another has written it
		c.mu.Unlock()
		return
	}
	all := c.closing
	c.closing = nil
	c.mu.Unlock()
	c.closeAll(all)
}

// closeMost is how many ownerships are closed in one transaction.
const closeMost = 100

// closeAll closes many in one transaction, or if that is refused each in one of its own: what is
// refused for one is for no other. It gives up if the database does not answer, or refuses one that
// is still owned: it does as much for all that follow, and each of them would be waited for.
func (c *crashes) closeAll(all []*ownership) {
	fails := func(err error) bool { return err != nil && !errors.Is(err, pgleases.ErrNotOwner) }
	for few := range slices.Chunk(all, closeMost) {
		err := c.writeClosed(few)
		if refused := store.Code(err) != "" || errors.Is(err, pgleases.ErrNotOwner); refused && len(few) > 1 {
			err = nil
			for i := 0; i < len(few) && !fails(err); i++ {
				err = c.writeClosed(few[i : i+1])
			}
		}
		if fails(err) {
			return
		}
	}
}

// writeClosed leaves out ownerships that have ended, and gives up when all have: then it is of no
// use.
func (c *crashes) writeClosed(all []*ownership) error {
	live := slices.DeleteFunc(slices.Clone(all), func(o *ownership) bool { return o.life.Err() != nil })
	if len(live) == 0 {
		return nil
	}
	slices.SortFunc(live, func(a, b *ownership) int { return a.Number - b.Number })
	ctx, cancel := context.WithCancel(context.WithoutCancel(live[0].life))
	defer cancel()
	var left atomic.Int64
	left.Store(int64(len(live)))
	var partitions []pgleases.Partition
	for _, o := range live {
		partitions = append(partitions, o.Partition)
		defer context.AfterFunc(o.life, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	err := c.guarded(ctx, c.guard(partitions, func(batch *pgx.Batch) {
		for _, o := range live {
			c.db.queueEnd(batch, o.Number, o.Epoch, o.counted)
		}
	}), nothingMore)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// suspects reports whether the run of a schedule or job may kill this process: others crashed while
// it ran, or may have.
func (o *ownership) suspects(it item, r *record) bool {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	return r.Trying.crashes() > 0 || o.crashed && !it.due().After(o.opened)
}

// count notes that a crash is counted of a schedule or job, until its run has ended.
func (o *ownership) count(s subject) {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	o.counted = append(o.counted, s)
}
