package engine_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
)

var (
	seeds     = flag.Int("seeds", 4, "how many histories the oracle tests play")
	firstSeed = flag.Uint64("first-seed", 1, "seed of the first of them")
	lastStep  = flag.Int("steps", math.MaxInt, "how many steps of trouble a history has at most")
	usualTTL  = flag.Duration("ttl", defaultTTL, "the TTL of most clients of a history; long times grow with it")
	troubles  = flag.Duration("every", densely, "the mean time between two steps of trouble")
)

// densely is the time between two steps of trouble in the tests.
const densely = 10 * time.Second

// TestNoTwoClientsEverShowAPartition plays random histories under faults.
func TestNoTwoClientsEverShowAPartition(t *testing.T) {
	histories(t, func(w *world) { w.history(stepsOfTrouble * *troubles) })
}

// stepsOfTrouble is how many a history has about.
const stepsOfTrouble = 90

// histories plays one history for each seed, until one fails.
func histories(all *testing.T, play func(w *world)) {
	all.Parallel()
	for seed := *firstSeed; seed < *firstSeed+uint64(*seeds); seed++ {
		all.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			if all.Failed() {
				t.Skip("another history failed")
			}
			synctest.Test(t, func(t *testing.T) { play(newWorld(t, seed)) })
		})
	}
}

// history plays one history: a time of trouble, then quiet, when everything has to recover.
func (w *world) history(length time.Duration) {
	d := newDice(w.seed, 0)
	leases := map[string]int{"a": 1 + d.n(3), "b": 1 + d.n(16), "c": 1}
	promotions := d.chance(0.5)
	short, long := d.chance(0.3), d.chance(0.3)
	var alive []*proc
	ids := 0
	var stepped time.Time
	var dump fakestore.Tables
	opts := func() []pgleases.Option {
		switch {
		case short && !promotions && w.chance(0.5):
			return []pgleases.Option{pgleases.WithTTL(scaled(2 * time.Second))}
		case long && !promotions && w.chance(0.3):
			return []pgleases.Option{pgleases.WithTTL(scaled(longTTL))}
		case w.chance(0.3):
			return []pgleases.Option{pgleases.WithTTL(*usualTTL), pgleases.WithPolling()}
		}
		return []pgleases.Option{pgleases.WithTTL(*usualTTL)}
	}
	var placed []pgleases.LeaseOption
	if e := newDice(w.seed, -1); e.chance(0.5) {
		delay, grace := scaled(e.span(0, 2*time.Second)), scaled(e.span(0, 6*time.Second))
		placed = []pgleases.LeaseOption{pgleases.WithRebalanceDelay(delay), pgleases.WithRestartGrace(grace)}
		w.waits = 5*delay + grace + scaled(4*time.Second) // a check finds out at a heartbeat
	}
	join := func(p *proc, name string, patience time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if l := p.join(ctx, name, leases[name], placed...); l != nil {
			p.work(l)
		}
	}
	add := func(id string) *proc {
		p := w.start(id, opts()...)
		for _, name := range slices.Sorted(maps.Keys(leases)) {
			if w.chance(0.8) {
				join(p, name, scaled(20*time.Second))
			}
		}
		alive = append(alive, p)
		return p
	}
	newID := func() string { ids++; return fmt.Sprintf("id%d", ids) }
	for range 2 + d.n(3) {
		add(newID())
	}
	w.mu.Lock()
	w.odds = []float64{0, 0.002, 0.01, 0.05}[d.n(4)] * densely.Seconds() / troubles.Seconds()
	w.mu.Unlock()
	drop := func(p *proc) { alive = slices.DeleteFunc(alive, func(q *proc) bool { return q == p }) }
	var crashed []*proc
	stopped := make(chan struct{})
	var background, ending sync.WaitGroup
	go func() { // the sampler
		for {
			select {
			case <-stopped:
				return
			case <-time.After(scaled(2 * time.Second)):
				w.check()
			}
		}
	}()
	steps := 0
	for end := time.Now().Add(length); steps < *lastStep && time.Now().Before(end) && !w.broken(); {
		steps++
		s := newDice(w.seed, steps) // so that what one step draws does not change the next
		time.Sleep(s.span(0, 2**troubles))
		if len(alive) == 0 {
			add(newID())
		}
		p := alive[s.n(len(alive))]
		switch s.n(17) {
		case 0: // a network is cut for a while
			w.inflict("network cut")
			d := s.span(0, scaled(20*time.Second))
			w.event("%s: cut off for %v", p.name, d)
			p.cutOff(true)
			background.Go(func() {
				time.Sleep(d)
				p.cutOff(false)
				w.event("%s: no longer cut off", p.name)
			})
		case 1: // a process stops for a while: what it sent arrives
			w.inflict("process stopped")
			d, slow := s.span(0, scaled(20*time.Second)), s.span(0, scaled(8*time.Second))
			w.event("%s: slow by up to %v for %v", p.name, slow, d)
			p.set(func(p *proc) { p.slow, p.late = slow, true })
			background.Go(func() {
				time.Sleep(d)
				p.set(func(p *proc) { p.slow, p.late = 0, false })
			})
		case 2: // killed
			w.inflict("process killed")
			p.kill()
			drop(p)
			crashed = append(crashed, p)
			ending.Go(func() { // long after its trust has ended: it would go on trying to connect
				time.Sleep(5 * p.engine().TTL())
				_ = p.close(0, scaled(3*time.Second))
			})
			if s.chance(0.5) {
				add(p.id)
			}
		case 3:
			if len(alive) > 1 {
				w.inflict("client closed")
				drop(p)
				background.Go(func() { _ = p.close(w.span(0, scaled(10*time.Second)), scaled(13*time.Second)) })
			}
		case 4, 5:
			if len(alive) < 6 {
				w.inflict("client opened")
				add(newID())
			}
		case 6: // superseded
			if len(alive) < 6 {
				w.inflict("client superseded")
				drop(p)
				crashed = append(crashed, p)
				w.event("%s: to be superseded", p.name)
				add(p.id)
			}
		case 7, 8:
			// No check sees two steps that undo each other between two readings of the clock.
			if time.Since(stepped) > scaled(12*time.Second) {
				far := []time.Duration{time.Hour, 10 * time.Second}[s.n(2)]
				by := s.span(-far, far)
				if promotions {
					// A server promoted in the past of the one before gives lower epochs: a limit in
					// docs/promises.md.
					by = by.Abs()
				}
				w.inflict("clock stepped")
				w.event("database: clock steps by %v", by)
				w.db.Step(by)
				stepped = time.Now()
			}
		case 9:
			w.inflict("database crashed")
			w.event("database: crashed, %d heartbeats lost", w.db.Crash(s.n(20)))
		case 10:
			w.inflict("database stopped")
			w.event("database: stops")
			w.db.Stop()
			time.Sleep(s.span(0, scaled(8*time.Second)))
			if promotions && s.chance(0.5) {
				w.promote(s.n(20), false)
			} else {
				w.db.Boot()
				w.event("database: restarted")
			}
		case 11:
			if promotions {
				w.inflict("standby promoted")
				w.promote(s.n(20), s.chance(0.3))
			}
		case 16: // a dump, and later the tables are restored from it
			if promotions && dump.Clients != nil {
				w.inflict("tables restored")
				w.replace(dump, alive, []time.Duration{0, time.Second}[s.n(2)])
			}
			dump = w.copyOf()
		case 12:
			if name := w.anyOf(leases); p.leases[name] != nil {
				w.inflict("lease left")
				l := p.leases[name]
				delete(p.leases, name)
				ctx, cancel := context.WithTimeout(context.Background(), s.span(0, scaled(10*time.Second)))
				err := l.Leave(ctx)
				cancel()
				w.event("%s: left %s: %v", p.name, name, err)
				if s.chance(0.7) {
					join(p, name, s.span(0, scaled(10*time.Second)))
				}
			}
		case 13:
			name := w.anyOf(leases)
			if l := p.leases[name]; l != nil {
				w.inflict("weight changed")
				ctx, cancel := context.WithTimeout(context.Background(), s.span(0, scaled(10*time.Second)))
				weight := 1 + s.n(2)
				err := l.SetWeight(ctx, weight)
				cancel()
				p.weight[name] = weight
				if err != nil {
					p.weight[name] = -1
				}
				w.event("%s: set weight of %s to %d: %v", p.name, name, weight, err)
			} else {
				join(p, name, s.span(0, 10*time.Millisecond))
			}
		case 14, 15: // a guarded transaction of the present owner
			for _, name := range slices.Sorted(maps.Keys(leases)) {
				k := place{name, s.n(leases[name])}
				epoch := int64(0)
				w.db.Look(func(t *fakestore.Tables, _ int64) {
					if rows := t.Partitions[name]; len(rows) > 0 {
						epoch = rows[k.partition].Epoch
					}
				})
				if end, ok := w.db.Guard(name, k.partition, epoch); ok {
					w.inflict("partition guarded")
					background.Go(func() {
						time.Sleep(w.span(0, 5*time.Second))
						end()
					})
				}
			}
		}
	}
	w.mu.Lock()
	w.odds = 0
	w.mu.Unlock()
	background.Wait()
	for _, p := range crashed { // a failover may have forgotten who superseded it
		p.kill()
	}
	w.event("quiet")
	if !w.broken() {
		longest := *usualTTL
		for _, p := range slices.Concat(alive, crashed) {
			longest = max(longest, p.engine().TTL())
		}
		w.comesRight(alive, leases, longest)
		w.knowOwners(alive)
	}
	for _, p := range slices.Concat(alive, crashed) {
		ending.Go(func() { _ = p.close(0, scaled(3*time.Second)) })
	}
	ending.Wait()
	close(stopped)
	time.Sleep(scaled(time.Minute)) // the bubble's clock stops with this goroutine; let the others end
	w.t.Logf("seed %d: %d evictions, %d processes, promotions %v, right after %v",
		w.seed, w.evicted, len(w.procs), promotions, w.took)
	w.report(steps)
}

// A dice draws what a step needs. Only the goroutine of the history uses it.
type dice struct{ rng *rand.Rand }

func newDice(seed uint64, step int) dice { return dice{rand.New(rand.NewPCG(seed, 2+uint64(step)))} }

func (d dice) n(n int) int           { return d.rng.IntN(n) }
func (d dice) chance(p float64) bool { return d.rng.Float64() < p }
func (d dice) span(from, to time.Duration) time.Duration {
	return from + time.Duration(d.rng.Int64N(int64(to-from)+1))
}

// A played is what a history has shown, for the program that plays many.
type played struct {
	Seed       uint64         `json:"seed"`
	Steps      int            `json:"steps"`
	Clients    time.Duration  `json:"clients"` // the time of all clients together
	Statements int            `json:"statements"`
	Checks     int            `json:"checks"` // how often the oracle compared what clients show
	Faults     map[string]int `json:"faults"`
	Right      time.Duration  `json:"right"` // until all was right again after the faults
	Bound      time.Duration  `json:"bound"` // the longest that it may take
	Failed     string         `json:"failed"`
}

// report writes what the history has shown into an attribute of the test.
func (w *world) report(steps int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := played{
		Seed: w.seed, Steps: steps, Statements: w.statements, Checks: w.checks, Faults: w.injected,
		Right: w.took, Bound: w.bound, Failed: w.failed,
	}
	for _, p := range w.procs {
		p.mu.Lock()
		if p.ended.IsZero() {
			p.ended = time.Now()
		}
		r.Clients += p.ended.Sub(p.began)
		p.mu.Unlock()
	}
	text, err := json.Marshal(r)
	if err != nil {
		w.t.Error(err)
	}
	w.t.Attr("history", string(text))
}

func (w *world) anyOf(leases map[string]int) string {
	return slices.Sorted(maps.Keys(leases))[w.n(len(leases))]
}

// promote replaces the server by a standby. From then on the database may have less than the
// clients know.
func (w *world) promote(missing int, pooler bool) {
	w.mu.Lock()
	w.lagging = true
	w.mu.Unlock()
	lost := w.db.Promote(missing, pooler)
	w.event("database: promoted a standby that missed %d writes", lost)
}

// cutOff makes statements of the process not arrive, or arrive again, over new connections.
func (p *proc) cutOff(is bool) {
	p.set(func(p *proc) { p.cut = is })
	p.w.breakConns(p)
}

// breakConns breaks the connections of a process.
func (w *world) breakConns(p *proc) {
	w.mu.Lock()
	conns := maps.Clone(w.conns)
	w.mu.Unlock()
	for c := range conns {
		if c.client == p.name {
			c.Conn.Close()
		}
	}
}
