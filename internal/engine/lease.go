package engine

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Lease is a lease that a client has joined, for other goroutines. All methods are safe for
// concurrent use.
type Lease struct {
	Name       string
	Partitions int
	Options    LeaseOptions
	Board      *owned.Board // the board that readers read

	client *Client
	stats  atomic.Pointer[LeaseStats]
	news   atomic.Pointer[News]

	counts counts

	public sync.Once
	lease  any // see Public
}

// Public returns the root package's Lease for this one. At the first call, make returns it.
func (l *Lease) Public(make func() any) any {
	l.public.Do(func() { l.lease = make() })
	return l.lease
}

// News are what the client last heard of a lease from the database.
type News struct {
	Generation int64         // it rises with every change of owners, unless a failover lost changes
	Server     int64         // the server generation
	Next       chan struct{} // closed at the next news
}

// News returns the last news.
func (l *Lease) News() *News { return l.news.Load() }

// hear notes generations of the lease and of the server that a heartbeat or a read has returned.
func (l *Lease) hear(generation, server int64) {
	old := l.news.Load()
	if old.Generation != generation || old.Server != server {
		l.news.Store(&News{generation, server, make(chan struct{})})
		close(old.Next)
	}
}

// Owners returns who owns the partitions that have changed since an answer. See Client.Owners.
func (l *Lease) Owners(ctx context.Context, since store.Point) (Owners, error) {
	return l.client.Owners(ctx, store.Span{Lease: l.Name, Last: l.Partitions - 1, Since: since})
}

// counts are counted by other goroutines than the client's.
type counts struct{ guardRefusals, callbackFailures atomic.Int64 }

func (c *counts) addTo(s LeaseStats) LeaseStats {
	s.GuardRefusals, s.CallbackFailures = c.guardRefusals.Load(), c.callbackFailures.Load()
	return s
}

// CallbackFailed counts a callback that failed.
func (l *Lease) CallbackFailed() {
	l.counts.callbackFailures.Add(1)
	l.client.counts.callbackFailures.Add(1)
}

// guardRefused counts a guard that refused.
func (l *Lease) guardRefused() {
	l.counts.guardRefusals.Add(1)
	l.client.counts.guardRefusals.Add(1)
}

// Stats returns the lease's numbers as of the client's last loop.
func (l *Lease) Stats() LeaseStats { return l.counts.addTo(*l.stats.Load()) }

// SetWeight returns when the database has the weight. If ctx ends first, the weight may still
// change.
func (l *Lease) SetWeight(ctx context.Context, weight int) error {
	var done chan<- error // only the client's goroutine uses it
	refused, err := requestAnswer(ctx, l.client, func(e *engine, answer chan<- error) {
		done = answer
		e.members.setWeight(l, weight, done)
	})
	err = cmp.Or(err, refused)
	if err != nil {
		l.client.post(func(e *engine) {
			if m := e.members.of(l); m != nil {
				m.abandonWeight(done)
			}
		})
		return wrap.Errorf("pgleases: set weight of lease %q: %w", l.Name, err)
	}
	return nil
}

// Leave ends the client's part in the lease, and waits for the work on its partitions until ctx
// ends. Then it returns an error that names the partitions in work.
func (l *Lease) Leave(ctx context.Context) error {
	// Not bounded by ctx: what is free is released even if ctx has ended already.
	l.client.post(func(e *engine) {
		m := e.members.of(l)
		if m != nil && !m.leaving() {
			e.leave(m, e.config.Errors.Closed)
		}
	})
	select {
	case <-l.Board.Closed():
		return nil
	case <-ctx.Done():
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	// The error would say that the client has ended, or hangs.
	working, _ := requestAnswer(short, l.client, func(e *engine, answer chan<- []int) {
		answer <- e.members.shared.inWork(e.members.of(l))
	})
	if len(working) > 0 {
		return wrap.Errorf("pgleases: leave lease %q: partitions %s still in work: %w",
			l.Name, ranges.Short(working), context.Cause(ctx))
	}
	select {
	case <-l.Board.Closed():
		return nil
	case <-short.Done():
		return wrap.Errorf("pgleases: leave lease %q: not released yet: %w", l.Name, context.Cause(ctx))
	}
}

// EndOverdue ends ownerships whose work takes too long after the end of Run's context.
func (l *Lease) EndOverdue(working []*owned.Ownership) {
	l.client.post(func(e *engine) {
		if m := e.members.of(l); m != nil {
			m.assignments.endOverdue(working, time.Now())
		}
	})
}
