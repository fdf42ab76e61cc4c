package worker

import (
	"context"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A Share is what one Run may take of a pool. All Runs of a process on one pool are counted here,
// of whatever package. A handler that works in a transaction may need the pool once more, and so
// may what it calls. If the transactions of handlers had all connections, each of them would wait
// for another. So a Run takes a place for each such transaction, and the places are fewer than the
// connections.
type Share struct {
	of    *shared
	given bool // the application gave the number
	most  int  // how many handlers at once; only if given
}

// shared has the places of a pool.
type shared struct {
	size int // connections

	mu      sync.Mutex // guards the following fields
	runs    []*Share
	taken   int
	slow    int        // of these, for work that is not healthy
	waiting []*request // those that have waited longest come first
}

// A request is one for a place.
type request struct {
	slow bool          // of work that is not healthy
	turn chan struct{} // closed when it has the place
}

var (
	pools   = make(map[*pgxpool.Pool]*shared) // those with a Run
	poolsMu sync.Mutex
)

// Join counts a Run on a pool, which gets an even share of what the size of the pool allows. The
// caller must call Leave at its end.
func Join(pool *pgxpool.Pool) *Share { return join(pool, &Share{}) }

// JoinWith is Join for a Run whose application gave the number of its handlers at once.
func JoinWith(pool *pgxpool.Pool, most int) *Share {
	return join(pool, &Share{given: true, most: most})
}

func join(pool *pgxpool.Pool, s *Share) *Share {
	poolsMu.Lock()
	defer poolsMu.Unlock()
	s.of = pools[pool]
	if s.of == nil {
		s.of = &shared{size: int(pool.Config().MaxConns)}
		pools[pool] = s.of
	}
	s.of.change(func() { s.of.runs = append(s.of.runs, s) })
	return s
}

// Leave ends the Run. All its places must have been given back.
func (s *Share) Leave() {
	poolsMu.Lock()
	defer poolsMu.Unlock()
	s.of.change(func() { s.of.runs = slices.DeleteFunc(s.of.runs, func(other *Share) bool { return other == s }) })
	if len(s.of.runs) == 0 {
		for pool, of := range pools {
			if of == s.of {
				delete(pools, pool)
			}
		}
	}
}

// Most returns how many handlers of the Run may be called at once: the number that the application
// gave, otherwise an even share of half of the connections. It is at least two if there are two
// places, so that Slots can keep one for healthy work.
func (s *Share) Most() int {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.of.mostOf(s)
}

// Crowded reports whether the Runs on the pool may wait for places of each other, because together
// they may call more handlers at once than there are places. It also returns both numbers.
func (s *Share) Crowded() (crowded bool, handlers, places int) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	for _, run := range s.of.runs {
		handlers += s.of.mostOf(run)
	}
	places = s.of.places()
	return handlers > places, handlers, places
}

// Take waits for a place, for a transaction that calls a handler for work of a lane. Places go to
// those that have waited longest, so no Run is left without one. If there are several, the last is for
// healthy work. The caller must call give after the connection is released. More calls do nothing.
func (s *Share) Take(ctx context.Context, lane Lane) (give func(), err error) {
	r := &request{slow: lane != Healthy, turn: make(chan struct{})}
	s.of.change(func() { s.of.waiting = append(s.of.waiting, r) })
	give = sync.OnceFunc(func() { s.of.change(func() { s.of.end(r) }) })
	select {
	case <-r.turn:
		return give, nil
	default:
	}
	select {
	case <-r.turn:
		return give, nil
	case <-ctx.Done():
		s.of.giveUp(r)
		return nil, context.Cause(ctx)
	}
}

// mostOf returns how many handlers a Run may call at once.
func (p *shared) mostOf(s *Share) int {
	if s.given {
		return s.most
	}
	sharing := 0
	for _, run := range p.runs {
		if !run.given {
			sharing++
		}
	}
	return max(p.size/2/max(1, sharing), min(2, p.places()))
}

// places returns how many transactions may call handlers at once: half of the connections, and what
// the application gave to single Runs. One connection is left for what handlers call, if there is
// more than one.
func (p *shared) places() int {
	n := p.size / 2
	for _, run := range p.runs {
		if run.given {
			n += run.most
		}
	}
	return max(1, min(n, p.size-1))
}

// change makes a change, and gives places that are free then to those that wait.
func (p *shared) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	for p.taken < p.places() {
		i := slices.IndexFunc(p.waiting, p.mayBegin)
		if i < 0 {
			return
		}
		p.begin(p.waiting[i])
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
}

// mayBegin reports whether a request may have a place that is free.
func (p *shared) mayBegin(r *request) bool { return !r.slow || p.slow < max(1, p.places()-1) }

func (p *shared) begin(r *request) {
	p.taken++
	if r.slow {
		p.slow++
	}
	close(r.turn)
}

func (p *shared) end(r *request) {
	p.taken--
	if r.slow {
		p.slow--
	}
}

// giveUp ends a wait. If it was over already, the place is given back.
func (p *shared) giveUp(r *request) {
	p.change(func() {
		i := slices.Index(p.waiting, r)
		if i < 0 {
			p.end(r)
			return
		}
		p.waiting = slices.Delete(p.waiting, i, i+1)
	})
}
