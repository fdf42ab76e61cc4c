package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
)

// A proc is a process with a client.
type proc struct {
	w      *world
	id     string
	name   string                     // unique
	c      *pgleases.Client           // guarded by mu
	leases map[string]*pgleases.Lease // by name; these two the test's goroutine only
	weight map[string]int             // by lease, as the database has it; negative: it may have it
	began  time.Time                  // when its client was open

	mu     sync.Mutex // guards the rest
	cut    bool       // statements do not arrive
	slow   time.Duration
	late   bool // what is under way when the client gives up arrives later
	killed bool
	ended  time.Time // zero: it has not ended
}

// A handle is what the oracle watches.
type handle struct {
	p *proc
	l *pgleases.Lease
}

// start opens a client.
func (w *world) start(id string, opts ...pgleases.Option) *proc {
	w.mu.Lock()
	p := &proc{w: w, id: id, name: fmt.Sprintf("%s#%d", id, len(w.procs)+1)}
	p.leases, p.weight = make(map[string]*pgleases.Lease), make(map[string]int)
	w.procs = append(w.procs, p)
	w.mu.Unlock()
	opts = append(p.options(), opts...)
	var err error
	for range 1000 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		var c *pgleases.Client
		c, err = pgleases.Open(ctx, "", opts...)
		cancel()
		if err == nil {
			p.set(func(p *proc) { p.c, p.began = c, time.Now() })
			p.engine().Batches(1 + w.n(4)) // so that plans and releases of few partitions take several statements
			return p
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Fatalf("start %s: %v", id, err)
	return nil
}

// options are those of a client of a process that is not in the world.
func (w *world) options(id string) []pgleases.Option {
	return (&proc{w: w, id: id, name: id}).options()
}

func (p *proc) options() []pgleases.Option {
	w := p.w
	double := bridge.On(&engine.Double{
		Connect: func(ctx context.Context) (engine.Conn, error) {
			c, err := w.connect(ctx, p.name)
			if err != nil {
				return nil, err // not a nil *faultyConn in an interface
			}
			return c, nil
		},
		Locks: lockTable{w.db.LockTable(), w},
		Guard: func(_ context.Context, lease string, partition int, epoch int64) error {
			if !w.passes(lease, pgleases.Partition{Number: partition, Epoch: epoch}) {
				return pgleases.ErrNotOwner
			}
			return nil
		},
	}).(pgleases.Option)
	log := slog.New(&eventLog{w: w, name: p.name})
	return []pgleases.Option{pgleases.WithClientID(p.id), pgleases.WithLogger(log), double}
}

// engine returns the engine of the process's client.
func (p *proc) engine() *engine.Client { return bridge.Engine(p.c) }

// inside returns the engine's side of a lease.
func inside(l *pgleases.Lease) *engine.Lease { return bridge.Guarded(l, pgleases.Partition{}).Lease }

// join joins a lease; a nil lease where ctx ended first.
func (p *proc) join(ctx context.Context, name string, partitions int, opts ...pgleases.LeaseOption) *pgleases.Lease {
	l, err := p.c.Lease(ctx, name, partitions, opts...)
	if err != nil {
		p.w.event("%s: Lease(%s): %v", p.name, name, err)
		return nil
	}
	p.leases[name] = l
	p.weight[name] = inside(l).Options.Weight
	p.w.watch(p, l)
	return l
}

// watch makes the oracle check whenever the lease changes.
func (w *world) watch(p *proc, l *pgleases.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.ContainsFunc(w.handles, func(h *handle) bool { return h.l == l }) {
		return
	}
	h := &handle{p, l}
	w.handles = append(slices.Clone(w.handles), h)
	go func() {
		for {
			changed := l.Changed()
			w.check()
			select {
			case <-l.Done():
				w.over(h)
				return
			case <-changed:
			}
		}
	}()
}

// over checks that a lease that has ended shows no partition. It never will again, so the oracle
// forgets it.
func (w *world) over(h *handle) {
	if owned := shown(h.l); len(owned) > 0 {
		w.failf("%s shows %v of %s after its end", h.p.name, owned, h.l.Name())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handles = slices.DeleteFunc(slices.Clone(w.handles), func(other *handle) bool { return other == h })
}

// work runs callbacks and holds on a lease until it ends, and notes what is in work.
func (p *proc) work(l *pgleases.Lease) {
	w := p.w
	note := func(o pgleases.Partition, n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.working[workKey{place{l.Name(), o.Number}, o.Epoch}] += n
	}
	switch w.n(3) {
	case 0:
		go func() {
			_ = l.Run(context.Background(), func(ctx context.Context, o pgleases.Partition) error {
				note(o, 1)
				<-ctx.Done()
				time.Sleep(w.span(0, 500*time.Millisecond))
				note(o, -1)
				return nil
			})
		}()
	case 1:
		go func() {
			for {
				select {
				case <-l.Done():
					return
				case <-time.After(w.span(0, scaled(3*time.Second))):
				}
				h := l.Hold(context.Background())
				for _, o := range h.Partitions() {
					note(o, 1)
				}
				time.Sleep(w.span(0, scaled(2*time.Second)))
				for _, o := range h.Partitions() {
					note(o, -1)
				}
				h.Release()
			}
		}()
	case 2:
		go func() {
			for {
				select {
				case <-l.Done():
					return
				case <-time.After(w.span(0, scaled(3*time.Second))):
					l.Values()
					_, _ = p.lookUp(l)
				}
			}
		}()
	}
}

// lookUp returns the owners of all partitions, as a client knows them.
func (p *proc) lookUp(l *pgleases.Lease) (map[int]pgleases.Owner, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scaled(5*time.Second))
	defer cancel()
	return l.Owners(ctx)
}

// knowOwners checks at rest that each client knows the owners.
func (w *world) knowOwners(alive []*proc) {
	for _, p := range alive {
		for name, l := range p.leases {
			owners, err := p.lookUp(l)
			if err != nil || l.Err() != nil {
				continue // it has just ended
			}
			w.db.Look(func(t *fakestore.Tables, _ int64) {
				for number, row := range t.Partitions[name] {
					if owner := t.Clients[row.Owner].ID; owners[number].ID != owner {
						w.failf("%s: the owner of %s/%d is %q, not %q", p.name, name, number, owner, owners[number].ID)
					}
				}
			})
		}
	}
}

// close ends the client within d, or reports that it did not.
func (p *proc) close(d, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	began := time.Now()
	err := p.c.Close(ctx)
	p.end()
	p.w.event("%s: closed after %v: %v", p.name, time.Since(began), err)
	if took := time.Since(began); took > bound {
		p.w.failf("%s: Close took %v", p.name, took)
	}
	return err
}

// end notes that the client does not run any more.
func (p *proc) end() {
	p.set(func(p *proc) {
		if p.ended.IsZero() {
			p.ended = time.Now()
		}
	})
}

func (p *proc) set(f func(p *proc)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

// An eventLog is a logger that writes to the trace.
type eventLog struct {
	w    *world
	name string
}

func (*eventLog) Enabled(context.Context, slog.Level) bool { return true }

func (h *eventLog) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %v", a)
		return true
	})
	h.w.event("%s: %v %s%s", h.name, r.Level, r.Message, b.String())
	if r.Message == "pgleases: a copy of this process goes on with the session" && !h.w.copies {
		h.w.failf("%s believes that there is a copy of it", h.name)
	}
	return nil
}

func (h *eventLog) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *eventLog) WithGroup(string) slog.Handler      { return h }
