package schedule

import (
	"context"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
)

// This file records the partitions that this process runs something in. A new owner that finds such
// a record of the previous owner knows that the previous owner crashed.

// noteRuns records, before the first run in a partition, that something runs in it.
func (t *transactions) noteRuns(o *ownership) error {
	o.crashMu.Lock()
	defer o.crashMu.Unlock()
	if !o.opened.IsZero() {
		return nil
	}
	o.noted = true
	err := t.db.repeat(o.ctx, maxBreaks, passing, func() error {
		crashed := new(bool)
		err := t.forUs(o.ctx, o.Partition, t.db.begin(crashed), nil)
		if err == nil {
			o.crashed = *crashed
		}
		return err
	})
	if err == nil {
		o.opened = t.clock.now()
	}
	return err
}

// noteEnd removes that record when all runs have ended, also if noteRuns has failed: it may be
// committed all the same. If noteEnd fails, the next owner wrongly assumes a crash.
func (t *transactions) noteEnd(o *ownership) {
	o.crashMu.Lock()
	defer o.crashMu.Unlock()
	if !o.noted {
		return
	}
	if len(o.counted) > 0 {
		t.writeEnds(o.life, []*ownership{o}, o.counted)
		return
	}
	select {
	case <-t.ends.join(o, t.writeEnds):
	case <-o.life.Done():
	}
}

// writeEnds removes the records of ownerships, and takes back the counted crashes of the only one.
func (t *transactions) writeEnds(ctx context.Context, of []*ownership, counted []subject) {
	_ = handlers.InTime(ctx, t.db.times.Answer, t.db.times.Overrun, func(ctx context.Context) error {
		return t.db.repeat(ctx, maxConflicts, conflict, func() error {
			return t.db.asking(ctx, func(ctx context.Context, q querier) error {
				return t.db.sendEnd(ctx, q, of, counted)
			})
		})
	})
}

// ends gathers the ends of ownerships while the record of others is under way. A process that closes
// ends many at once, and a transaction for each would keep the partitions from their next owners.
type ends struct {
	writing chan struct{} // has a value during a record

	mu   sync.Mutex
	next *gathered // what the next record is for; nil: nothing yet
}

type gathered struct {
	of   []*ownership
	done chan struct{} // closed when their record was tried
}

// gathering is how long the next record waits at most for the one that is under way.
const gathering = time.Second

func newEnds() *ends { return &ends{writing: make(chan struct{}, 1)} }

// join adds an ownership to the next record, which is written by write. The returned channel is
// closed when that was tried.
func (e *ends) join(o *ownership, write func(context.Context, []*ownership, []subject)) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.next == nil {
		e.next = &gathered{done: make(chan struct{})}
		go e.record(e.next, write)
	}
	e.next.of = append(e.next.of, o)
	return e.next.done
}

func (e *ends) record(g *gathered, write func(context.Context, []*ownership, []subject)) {
	defer close(g.done)
	select {
	case e.writing <- struct{}{}:
		defer func() { <-e.writing }()
	case <-time.After(gathering): // a record that hangs must not hold the others
	}
	e.mu.Lock()
	e.next = nil
	e.mu.Unlock()
	write(context.Background(), g.of, nil)
}

// suspects reports whether a run may crash this process, because processes crashed while it ran, or
// may have.
func (o *ownership) suspects(it item, r *row) bool {
	o.crashMu.Lock()
	defer o.crashMu.Unlock()
	return r.Trying.crashes() > 0 || o.crashed && !it.due().After(o.opened)
}

// count records that a crash is counted for a schedule or job until its run has ended.
func (o *ownership) count(s subject) {
	o.crashMu.Lock()
	defer o.crashMu.Unlock()
	o.counted = append(o.counted, s)
}
