package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
)

// TestCallsInAnyOrderReturn plays histories of random calls, several at once, with contexts that
// end early, while the database and the network fail. Every call returns within its bound and
// leaves no state behind, each ownership ends once and with a cause, no client floods the database,
// and everything recovers in the end.
func TestCallsInAnyOrderReturn(t *testing.T) {
	histories(t, func(w *world) { w.disorder(4 * time.Minute) })
}

// aMoment is how much longer than its context and its waits a call may take: a loop of the engine,
// and the end of a statement.
const aMoment = 50 * time.Millisecond

// flood is the maximum number of statements that a client sends within 1 s. A client that repeats
// something endlessly sends 1,000.
const flood = 60

// Callers are the callers of one client.
type callers struct {
	w     *world
	p     *proc
	ended chan struct{}
	calls sync.WaitGroup

	mu         sync.Mutex // guards the rest
	leases     map[*pgleases.Lease]struct{}
	ownerships map[pgleases.Partition]struct{}
}

// disorder plays one history.
func (w *world) disorder(length time.Duration) {
	// If ownerships of a live client are taken away by hand, the promises do not hold, so the oracle
	// does not check then.
	byHand := w.chance(0.5)
	w.blind.Store(byHand)
	sizes := map[string]int{"a": 2, "b": 5, "c": 1}
	var everyone []*callers
	add := func() {
		opts := []pgleases.Option{pgleases.WithTTL(time.Duration(2+w.n(8)) * time.Second)}
		if w.chance(0.4) {
			opts = append(opts, pgleases.WithPolling())
		}
		c := &callers{w: w, p: w.start(fmt.Sprint("id", len(everyone)), opts...), ended: make(chan struct{}),
			leases: make(map[*pgleases.Lease]struct{}), ownerships: make(map[pgleases.Partition]struct{})}
		for range 1 + w.n(4) {
			c.calls.Go(func() { c.caller(sizes) })
		}
		everyone = append(everyone, c)
	}
	for range 2 + w.n(2) {
		add()
	}
	w.mu.Lock()
	w.odds = []float64{0, 0.01, 0.05, 0.2}[w.rng.IntN(4)]
	w.mu.Unlock()
	stopped := make(chan struct{})
	most := 0
	var mu sync.Mutex
	sent := make(map[string]map[string]int) // in this second, by client and statement
	w.inject(func(client, op string) (fault, bool) {
		mu.Lock()
		defer mu.Unlock()
		if sent[client] == nil {
			sent[client] = make(map[string]int)
		}
		sent[client][op]++
		return fault{}, false
	})
	go func() {
		for {
			select {
			case <-stopped:
				return
			case <-time.After(time.Second):
			}
			mu.Lock()
			for client, ops := range sent {
				n := 0
				for _, times := range ops {
					n += times
				}
				if most < n {
					most = n
				}
				if n > flood {
					w.failf("%s sent %d statements within a second: %v", client, n, ops)
				}
			}
			clear(sent)
			mu.Unlock()
		}
	}()
	for end := time.Now().Add(length); time.Now().Before(end) && !w.broken(); {
		time.Sleep(w.span(0, 5*time.Second))
		c := everyone[w.n(len(everyone))]
		switch w.n(9) {
		case 0:
			w.breakConns(c.p)
		case 1:
			w.event("%s: cut off", c.p.name)
			c.p.set(func(p *proc) { p.cut = true })
			time.Sleep(w.span(0, 15*time.Second))
			c.p.cutOff(false)
		case 2:
			w.event("database: crashed, %d heartbeats lost", w.db.Crash(w.n(20)))
		case 3:
			w.event("database: stops")
			w.db.Stop()
			time.Sleep(w.span(0, 4*time.Second))
			w.db.Boot()
		case 4:
			w.promote(w.n(20), w.chance(0.3))
		case 5:
			if byHand {
				w.event("by hand: %s is evicted", c.p.name)
				w.evict(c.p.id)
			}
		case 6:
			if byHand {
				name := w.anyOf(sizes)
				w.event("by hand: no one is a member of %s", name)
				w.db.Edit(func(t *fakestore.Tables, _ int64) {
					maps.DeleteFunc(t.Members, func(m fakestore.Member, _ fakestore.Membership) bool {
						return m.Lease == name
					})
				})
				if w.chance(0.7) {
					err := w.db.Drop(name, 0)
					w.event("by hand: %s is dropped: %v", name, err)
					if n := 1 + w.n(5); err == nil && w.chance(0.7) {
						w.remake(name, n)
					}
				}
			}
		case 7:
			c.p.set(func(p *proc) { p.slow, p.late = w.span(0, 3*time.Second), true })
			time.Sleep(w.span(0, 10*time.Second))
			c.p.set(func(p *proc) { p.slow, p.late = 0, false })
		case 8:
			if len(everyone) < 6 {
				add()
			}
		}
	}
	w.mu.Lock()
	w.odds = 0
	w.mu.Unlock()
	w.event("quiet")
	for _, c := range everyone {
		close(c.ended)
	}
	for _, c := range everyone {
		c.returned()
	}
	if !w.broken() {
		w.comesRightAgain(everyone)
	}
	var ending sync.WaitGroup
	for _, c := range everyone {
		ending.Go(c.finish)
	}
	ending.Wait()
	close(stopped)
	time.Sleep(time.Minute) // the bubble's clock stops with this goroutine; let the others end
	w.t.Logf("by hand %v, %d clients, at most %d statements a second", byHand, len(everyone), most)
}

// remake creates a dropped lease again with another number of partitions, as a client does that
// leaves again.
func (w *world) remake(name string, partitions int) {
	w.event("by hand: %s is made with %d", name, partitions)
	w.db.Edit(func(t *fakestore.Tables, clock int64) {
		l := t.Leases[name]
		l.Partitions, l.Generation, l.NextCheckAt = int64(partitions), l.Generation+1, clock
		l.CreatedGeneration = l.Generation
		t.Leases[name] = l
		rows := make([]fakestore.Partition, partitions)
		for i := range rows {
			rows[i].Epoch = l.EpochFloor
		}
		t.Partitions[name] = rows
	})
}

// bounded reports a call that took longer than it may, or that returned an unexpected error.
func (c *callers) bounded(call string, began time.Time, bound time.Duration, err error) {
	c.w.event("%s: %s after %v: %v", c.p.name, call, time.Since(began), err)
	if took := time.Since(began); took > bound+aMoment {
		c.w.failf("%s: %s took %v, at most %v were expected: %v", c.p.name, call, took, bound, err)
	}
}

// caller makes random calls.
func (c *callers) caller(sizes map[string]int) {
	w := c.w
	var l *pgleases.Lease
	for {
		select {
		case <-c.ended:
			return
		case <-time.After(w.span(0, 3*time.Second)):
		}
		patience := w.span(0, 3*time.Second)
		if w.chance(0.2) {
			patience = 0
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		began := time.Now()
		what := w.n(20)
		if l == nil {
			what = 0
		}
		switch what {
		default:
			name := w.anyOf(sizes)
			n := sizes[name] + w.n(6)/5
			var opts []pgleases.LeaseOption
			if w.chance(0.2) {
				opts = []pgleases.LeaseOption{
					pgleases.WithWeight(w.n(3)),
					pgleases.WithHandoffDelay(0),
					pgleases.WithDrainTimeout(w.span(0, 2*time.Second)),
				}
			}
			joined, err := c.p.c.Lease(ctx, name, n, opts...)
			c.bounded(fmt.Sprintf("Lease(%s, %d)", name, n), began, patience, err)
			if (joined == nil) == (err == nil) {
				w.failf("Lease returned %v and %v", joined, err)
			}
			if joined != nil {
				l = joined
				c.got(l)
			}
		case 3, 4:
			c.bounded("SetWeight("+l.Name()+")", began, patience, l.SetWeight(ctx, w.n(4)))
		case 5, 6:
			c.bounded("Leave("+l.Name()+")", began, patience+engine.CloseGrace, l.Leave(ctx))
			if w.chance(0.5) {
				l = nil
			}
		case 7, 8:
			c.bounded("Wait("+l.Name()+")", began, patience, l.Wait(ctx))
		case 9, 10, 11:
			h := l.Hold(ctx)
			for _, o := range h.Partitions() {
				c.owned(o)
			}
			select {
			case <-h.Context().Done():
			case <-time.After(w.span(0, 4*time.Second)):
			}
			h.Release()
			if w.chance(0.1) {
				h.Release()
			}
		case 12, 13, 14:
			err := l.Run(ctx, func(ctx context.Context, o pgleases.Partition) error {
				c.owned(o)
				switch w.n(3) {
				case 0:
					return errors.New("a callback's error")
				case 1:
					return nil
				}
				<-ctx.Done()
				time.Sleep(w.span(0, time.Second))
				return ctx.Err()
			})
			c.bounded("Run("+l.Name()+")", began, patience+time.Second, err)
			if err == nil {
				w.failf("Run returned nil")
			}
		case 15, 16:
			l.Values()
		case 17:
			if w.chance(0.1) {
				err := c.p.c.Close(ctx)
				c.bounded("Close", began, patience+engine.CloseGrace, err)
				_, err = c.p.c.Lease(context.Background(), "a", 2)
				if !errors.Is(err, pgleases.ErrClosed) && !errors.Is(err, pgleases.ErrSuperseded) {
					w.failf("Lease after Close: %v", err)
				}
			}
		}
		cancel()
	}
}

// got notes a lease.
func (c *callers) got(l *pgleases.Lease) {
	c.mu.Lock()
	_, known := c.leases[l]
	c.leases[l] = struct{}{}
	c.mu.Unlock()
	if !known && !c.w.blind.Load() {
		c.w.watch(c.p, l)
	}
}

// owned notes an ownership.
func (c *callers) owned(o pgleases.Partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ownerships[o] = struct{}{}
}

// returned waits for the calls that are under way.
func (c *callers) returned() {
	done := make(chan struct{})
	go func() {
		c.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		c.w.failf("%s: a call does not return", c.p.name)
		<-done
	}
}

// comesRightAgain makes every live client join the leases again, and waits until each partition has
// an owner.
func (w *world) comesRightAgain(everyone []*callers) {
	sizes := make(map[string]int)
	w.db.Look(func(t *fakestore.Tables, _ int64) {
		for name, l := range t.Leases {
			if l.Partitions > 0 {
				sizes[name] = int(l.Partitions)
			}
		}
	})
	var alive []*proc
	for _, c := range everyone {
		if c.p.c.Err() != nil {
			continue
		}
		alive = append(alive, c.p)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		for l := range maps.Clone(c.leases) {
			if err := l.Leave(ctx); err != nil {
				w.failf("%s: leave %s: %v", c.p.name, l.Name(), err)
			}
		}
		for name, n := range sizes {
			l, err := c.p.c.Lease(ctx, name, n)
			if err != nil {
				w.failf("%s: join %s: %v", c.p.name, name, err)
				cancel()
				return
			}
			c.got(l)
			c.p.leases[name], c.p.weight[name] = l, -1
		}
		cancel()
	}
	w.comesRight(alive, sizes, 6*time.Second)
}

// finish closes the client, and checks what is left.
func (c *callers) finish() {
	w := c.w
	_ = c.p.close(0, 3*time.Second)
	for l := range c.leases {
		if err := l.Err(); !errors.Is(err, pgleases.ErrClosed) && !errors.Is(err, pgleases.ErrSuperseded) {
			w.failf("%s: after Close the error of lease %s is %v", c.p.name, l.Name(), err)
		}
		if len(l.Values()) > 0 {
			w.failf("%s: after Close it owns %v of %s", c.p.name, l.Values(), l.Name())
		}
	}
	for o := range c.ownerships {
		cause := context.Cause(o.Context())
		known := false
		for _, why := range []error{
			pgleases.ErrHandoff,
			pgleases.ErrTrustLost,
			pgleases.ErrDrainTimeout,
			pgleases.ErrClosed,
			pgleases.ErrSuperseded,
		} {
			known = known || errors.Is(cause, why)
		}
		if !known {
			w.failf("%s: partition %d ended with %v", c.p.name, o.Number, cause)
		}
		if bridge.Guarded(new(pgleases.Lease), o).Ownership.Pinned() {
			w.failf("%s: partition %d is pinned", c.p.name, o.Number)
		}
	}
	s := c.p.c.Stats()
	losses := s.Losses
	if s.Gains != losses.Handoff+losses.TrustLost+losses.DrainTimeout+losses.Closed || s.Draining > 0 {
		w.failf("%s: gains and losses differ: %+v", c.p.name, s)
	}
}
