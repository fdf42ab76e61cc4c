package engine_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

var (
	seeds     = flag.Int("seeds", 4, "how many histories the oracle tests play")
	firstSeed = flag.Uint64("first-seed", 1, "seed of the first of them")
	lastStep  = flag.Int("steps", math.MaxInt, "how many steps of trouble a history has at most")
	usualTTL  = flag.Duration("ttl", defaultTTL, "the TTL of most clients of a history; what takes long is longer with it")
	troubles  = flag.Duration("every", densely, "the mean time between two steps of trouble")
)

// densely is the time between two steps of trouble in the tests.
const densely = 10 * time.Second

// defaultTTL is that of clients.
const defaultTTL = 6 * time.Second

// scaled is a time that fits to the usual TTL, if it is given for the default.
func scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * usualTTL.Seconds() / defaultTTL.Seconds())
}

const (
	traceLength = 600
	keepStates  = 30
	longTTL     = 20 * time.Second
	worldEnds   = 6 * time.Hour // of simulated time: the longest test takes 63 minutes, and one that hangs would never end
)

// calmAfter is how long it may take, once nothing disturbs them any more, that clients connect (up
// to a heartbeat), watch the clock (for the longest TTL), evict, plan and hand over (work takes up
// to 2 s, bare values 1 s, polling a heartbeat).
func calmAfter(longest time.Duration) time.Duration { return scaled(8*time.Second) + 2*longest }

// A world is a database in memory, the clients on it, and an oracle that checks all of them after
// every event.
type world struct {
	t    testing.TB
	db   *fakestore.Database
	rng  *rand.Rand // guarded by mu
	seed uint64

	mu    sync.Mutex // guards the rest; not held while the database is used, which calls back
	conns map[*faultyConn]struct{}
	calls map[string]int      // executed statements
	about map[string]int      // the leases in the answers to snapshots, reads and joins
	beats map[int64]time.Time // by session: when the last heartbeat was executed, by the bubble's clock
	after func(op string)     // called for every executed statement; nil: not called
	blind atomic.Bool         // the oracle does not check

	changed atomic.Bool // owners or epochs, since the last check after a statement

	releaseTakes time.Duration // the answer to a release of a lock
	copies       bool          // a process has one; set before it does
	procs        []*proc
	handles      []*handle
	events       []string
	began        time.Time
	failed       string                                // the first fault found
	ledger       map[place]map[int64]int64             // session by epoch
	highest      map[place]int64                       // the highest epoch
	working      map[workKey]int                       // callbacks and holds on it
	odds         float64                               // of a fault
	extra        func(client, op string) (fault, bool) // faults of one test
	lagging      bool                                  // the database may have lost ownerships: its state is not compared
	evicted      int
	injected     map[string]int // faults by kind
	took         time.Duration  // until all was right
	bound        time.Duration  // the longest that it may take
	waits        time.Duration  // how much longer, because of delays and graces
}

// A place is a partition.
type place struct {
	lease     string
	partition int
}

type workKey struct {
	place
	epoch int64
}

// A proc is a process with a client.
type proc struct {
	w      *world
	id     string
	name   string            // unique
	c      *Client           // guarded by mu
	leases map[string]*Lease // by name; these two the test's goroutine only
	weight map[string]int    // by lease, as the database has it; negative: it may have it
	began  time.Time         // when its client was open

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
	l *Lease
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), began: time.Now(), db: fakestore.New(),
		conns: make(map[*faultyConn]struct{}), calls: make(map[string]int), about: make(map[string]int), beats: make(map[int64]time.Time),
		ledger: make(map[place]map[int64]int64), highest: make(map[place]int64),
		working: make(map[workKey]int), injected: make(map[string]int),
	}
	w.db.Step(27 * 365 * 24 * time.Hour) // a bubble begins in 2000, generations in 2020
	w.db.Keep = keepStates
	w.db.Moved = w.moved
	w.db.Evicted = w.gone
	w.db.Renewed = w.renewed
	ends := worldEnds + 2*stepsOfTrouble**troubles
	limit := time.AfterFunc(ends, func() {
		panic(fmt.Sprintf("%s: %s\n\nand the test was still running after %v of simulated time; its goroutines:\n\n%s", t.Name(), cmp.Or(w.failed, "it found no fault"), ends, bubble()))
	})
	t.Cleanup(func() { limit.Stop() })
	return w
}

// bubble returns the stacks of the other goroutines of the caller's bubble.
func bubble() string {
	buffer := make([]byte, 8<<20)
	stacks := strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n")
	header, _, _ := strings.Cut(stacks[0], "\n") // goroutine 9 [running, synctest bubble 7]:
	_, name, _ := strings.Cut(header, ", ")
	return strings.Join(slices.DeleteFunc(stacks[1:], func(s string) bool { return !strings.Contains(s, name) }), "\n\n")
}

// executed checks the world after a statement.
func (w *world) executed(client, op string, answer any) {
	w.mu.Lock()
	w.calls[op]++
	switch a := answer.(type) {
	case store.Evicted:
		if a.Made {
			w.calls["check"]++ // it was due
		}
	case store.Applied:
		if !a.Applied {
			w.calls["overtaken"]++
		}
	case []store.LeaseSnapshot:
		w.about[op] += len(a)
	case []store.LeaseRead:
		w.about[op] += len(a)
	}
	after := w.after
	w.mu.Unlock()
	if after != nil {
		after(op)
	}
	if w.blind.Load() {
		return
	}
	switch op {
	case "heartbeat", "read", "snapshot", "claim", "sample": // without an effect, or of no interest
	default:
		w.event("%s: %s: %+v", client, op, answer)
	}
	// What a client shows is compared whenever it changes. So a heartbeat without a change of an owner
	// gives nothing to compare.
	if w.changed.Swap(false) || op != "heartbeat" {
		w.check()
	}
}

// count returns how often a statement was executed.
func (w *world) count(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[op]
}

// leases returns how many leases the executed statements of a kind returned.
func (w *world) leases(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.about[op]
}

// renewed notes a heartbeat.
func (w *world) renewed(session int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beats[session] = time.Now()
}

// silence is how long ago the last heartbeat was of the session that has had none for longest.
func (w *world) silence() (longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, beat := range w.beats {
		longest = max(longest, time.Since(beat))
	}
	return longest
}

// event notes what happened, for the trace of a failure.
func (w *world) event(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%12v ", time.Since(w.began))+fmt.Sprintf(format, args...))
	if len(w.events) > 2*traceLength {
		w.events = append(w.events[:0], w.events[traceLength:]...)
	}
}

// failf reports the first failure, with what led to it. The test goes on: the oracle calls failf in
// other goroutines too.
func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != "" {
		return
	}
	w.failed = fmt.Sprintf("seed %d, after %v: %s", w.seed, time.Since(w.began), fmt.Sprintf(format, args...))
	name, _, _ := strings.Cut(w.t.Name(), "/")
	w.t.Errorf("%s\n%s\nit usually fails again, maybe at another time: go test -run '^%s$' ./internal/engine -first-seed %d -seeds 1", w.failed, strings.Join(w.events, "\n"), name, w.seed)
}

// ok fails the world at an error.
func (w *world) ok(err error) {
	if err != nil {
		w.failf("%v", err)
	}
}

func (w *world) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed != ""
}

func (w *world) chance(p float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.Float64() < p
}

// n draws a number below n.
func (w *world) n(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

func (w *world) span(from, to time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return from + time.Duration(w.rng.Int64N(int64(to-from)+1))
}

// faults decides what happens to a statement.
func (w *world) faults(client, op string) fault {
	var p *proc
	w.mu.Lock()
	odds, extra, failed := w.odds, w.extra, w.failed
	for _, q := range w.procs {
		if q.name == client {
			p = q
		}
	}
	w.mu.Unlock()
	f := fault{before: w.span(100*time.Microsecond, time.Millisecond), after: w.span(100*time.Microsecond, time.Millisecond)}
	if p == nil {
		return f
	}
	if extra != nil {
		if f, ok := extra(client, op); ok {
			return f
		}
	}
	p.mu.Lock()
	cut, slow, late := p.cut || p.killed, p.slow, p.late
	ghosts := p.c != nil // a first registration that its process has given up would supersede the next try
	p.mu.Unlock()
	if cut || failed != "" && ghosts { // what follows a failure takes time, and shows nothing
		return fault{before: 24 * time.Hour}
	}
	if slow > 0 {
		f.before += w.span(0, slow)
		f.after += w.span(0, slow)
		f.late = late
	}
	if odds == 0 || !w.chance(odds) {
		return f
	}
	defer func() { w.event("%s: fault for %s: %+v", client, op, f) }()
	kind := w.n(len(statementFaults))
	w.inflict(statementFaults[kind])
	switch kind {
	case 0:
		f.err = errLocked
	case 1:
		f.err, f.broken = errBroken, true
	case 2:
		f.err, f.broken, f.applied = errBroken, true, true
	case 3:
		f.err, f.applied = errLocked, true
	case 4:
		f.before += w.span(0, scaled(8*time.Second))
		f.late = ghosts
	case 5:
		f.after += w.span(0, scaled(8*time.Second))
	case 6:
		f.before += w.span(0, scaled(8*time.Second))
		f.survives = true
	case 7:
		f.after += w.span(0, scaled(8*time.Second))
		f.survives = true
	case 8:
		f.before += w.span(0, 500*time.Millisecond)
		f.after += w.span(0, 500*time.Millisecond)
	}
	return f
}

// statementFaults are the faults of single statements, in the order of faults.
var statementFaults = []string{
	"lock timeout", "connection lost before", "connection lost after", "lock timeout after it was executed", "statement delayed",
	"answer delayed", "statement delayed, not canceled", "answer delayed, not canceled", "slow statement",
}

// inflict counts a fault.
func (w *world) inflict(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.injected[kind]++
}

// --- the oracle

// shown returns what a reader of the lease sees now. It does not read Values, because that would
// delay handoffs.
func shown(l *Lease) []Partition {
	var owned []Partition
	for number := range l.NumPartitions() {
		if o, owns := l.Partition(number); owns {
			owned = append(owned, o)
		}
	}
	return owned
}

// shows reports whether a reader still sees the ownership.
func (h *handle) shows(o Partition) bool {
	now, owns := h.l.Partition(o.Number)
	return owns && now == o
}

// check compares what all clients show, with each other and with the database.
func (w *world) check() {
	w.mu.Lock()
	handles := w.handles
	lagging := w.lagging
	w.mu.Unlock()
	type claim struct {
		h *handle
		o Partition
	}
	claims := make(map[place]claim)
	for _, h := range handles {
		for _, o := range shown(h.l) {
			k := place{h.l.Name(), o.Number}
			// The other still shows it before and after this one does: so both did at one time.
			if other, taken := claims[k]; taken && other.o != o && other.h.shows(other.o) && h.shows(o) && other.h.shows(other.o) {
				w.failf("overlap: %s and %s both show partition %d of %s, under epochs %d and %d",
					other.h.p.name, h.p.name, o.Number, k.lease, other.o.Epoch, o.Epoch)
			}
			claims[k] = claim{h, o}
			if lagging {
				continue
			}
			var row fakestore.Partition
			stale := false
			w.db.Look(func(t *fakestore.Tables, _ int64) {
				if rows := t.Partitions[k.lease]; o.Number < len(rows) {
					row = rows[o.Number]
				}
				// Meanwhile nothing changes in the database: what is shown now has to be true now.
				stale = h.shows(o) && (row.Epoch != o.Epoch || row.Owner == 0)
			})
			if stale {
				w.failf("stale: %s shows partition %d of %s under epoch %d; the database has epoch %d, owner %d",
					h.p.name, o.Number, k.lease, o.Epoch, row.Epoch, row.Owner)
			}
		}
	}
}

// moved notes a change of owner or epoch.
func (w *world) moved(by, lease string, partition int, from, to fakestore.Partition) {
	w.changed.Store(true)
	k := place{lease, partition}
	w.mu.Lock()
	if w.ledger[k] == nil {
		w.ledger[k] = make(map[int64]int64)
	}
	session, known := w.ledger[k][to.Epoch]
	highest := w.highest[k]
	w.ledger[k][to.Epoch] = to.Owner
	w.highest[k] = max(highest, to.Epoch)
	work := w.working[workKey{k, from.Epoch}]
	w.mu.Unlock()
	w.event("%s: %s/%d goes from session %d to %d (%s), epoch %d", by, lease, partition, from.Owner, to.Owner, to.OwnerID, to.Epoch)
	switch {
	case known:
		w.failf("epoch %d of partition %d of %s was given twice: to session %d, and to %d", to.Epoch, partition, lease, session, to.Owner)
	case to.Epoch <= highest:
		w.failf("epoch of partition %d of %s went from %d to %d", partition, lease, highest, to.Epoch)
	case by == "release" && work > 0:
		w.failf("partition %d of %s was handed over under work on epoch %d", partition, lease, from.Epoch)
	}
}

// gone checks that an evicted session had been silent for its TTL.
func (w *world) gone(row fakestore.Client) {
	w.mu.Lock()
	w.evicted++
	silent := time.Since(w.beats[row.Session])
	w.mu.Unlock()
	if silent < row.TTL {
		w.failf("session %d of %s was evicted %v after a heartbeat", row.Session, row.ID, silent)
	}
}

// --- processes

// start opens a client.
func (w *world) start(id string, opts ...Option) *proc {
	w.mu.Lock()
	p := &proc{w: w, id: id, name: fmt.Sprintf("%s#%d", id, len(w.procs)+1), leases: make(map[string]*Lease), weight: make(map[string]int)}
	w.procs = append(w.procs, p)
	w.mu.Unlock()
	opts = append(p.options(), opts...)
	var err error
	for range 1000 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		var c *Client
		c, err = Open(ctx, "", opts...)
		cancel()
		if err == nil {
			p.set(func(p *proc) { p.c, p.began = c, time.Now() })
			p.engine().Batches(1 + w.n(4)) // so that plans and releases take more than one statement, although there are few partitions
			return p
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Fatalf("start %s: %v", id, err)
	return nil
}

// options are those of a client of a process that is not in the world.
func (w *world) options(id string) []Option { return (&proc{w: w, id: id, name: id}).options() }

func (p *proc) options() []Option {
	w := p.w
	return []Option{WithClientID(p.id), WithLogger(slog.New(&eventLog{w: w, name: p.name})), bridge.On(&engine.Double{
		Connect: func(ctx context.Context) (engine.Conn, error) {
			c, err := w.connect(ctx, p.name)
			if err != nil {
				return nil, err // not a nil *faultyConn in an interface
			}
			return c, nil
		},
		Locks: lockTable{w.db.LockTable(), w},
		Guard: func(_ context.Context, lease string, partition int, epoch int64) error {
			if !w.passes(lease, Partition{Number: partition, Epoch: epoch}) {
				return ErrNotOwner
			}
			return nil
		},
	}).(Option)}
}

// engine returns the engine of the process's client.
func (p *proc) engine() *engine.Client { return bridge.Engine(p.c) }

// inside returns the engine's side of a lease.
func inside(l *Lease) *engine.Lease { return bridge.Guarded(l, Partition{}).Lease }

// join joins a lease; a nil lease where ctx ended first.
func (p *proc) join(ctx context.Context, name string, partitions int, opts ...LeaseOption) *Lease {
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
func (w *world) watch(p *proc, l *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.ContainsFunc(w.handles, func(h *handle) bool { return h.l == l }) {
		return
	}
	w.handles = append(slices.Clone(w.handles), &handle{p, l})
	go func() {
		for {
			changed := l.Changed()
			w.check()
			select {
			case <-l.Done():
				return
			case <-changed:
			}
		}
	}()
}

// work runs callbacks and holds on a lease until it ends, and notes what is in work.
func (p *proc) work(l *Lease) {
	w := p.w
	note := func(o Partition, n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.working[workKey{place{l.Name(), o.Number}, o.Epoch}] += n
	}
	switch w.n(3) {
	case 0:
		go func() {
			_ = l.Run(context.Background(), func(ctx context.Context, o Partition) error {
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
				}
			}
		}()
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

// --- random histories

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
	opts := func() []Option {
		switch {
		case short && !promotions && w.chance(0.5):
			return []Option{WithTTL(scaled(2 * time.Second))}
		case long && !promotions && w.chance(0.3):
			return []Option{WithTTL(scaled(longTTL))}
		case w.chance(0.3):
			return []Option{WithTTL(*usualTTL), WithPolling()}
		}
		return []Option{WithTTL(*usualTTL)}
	}
	var placed []LeaseOption
	if e := newDice(w.seed, -1); e.chance(0.5) {
		delay, grace := scaled(e.span(0, 2*time.Second)), scaled(e.span(0, 6*time.Second))
		placed = []LeaseOption{WithRebalanceDelay(delay), WithRestartGrace(grace)}
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
	var background sync.WaitGroup
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
					by = by.Abs() // a server promoted in the past of the one before gives lower epochs: a limit in docs/promises.md
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
	}
	var ending sync.WaitGroup
	for _, p := range slices.Concat(alive, crashed) {
		ending.Go(func() { _ = p.close(0, scaled(3*time.Second)) })
	}
	ending.Wait()
	close(stopped)
	time.Sleep(scaled(time.Minute)) // the bubble's clock stops with this goroutine; let the others end
	w.t.Logf("seed %d: %d evictions, %d processes, promotions %v, right after %v", w.seed, w.evicted, len(w.procs), promotions, w.took)
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
	Seed    uint64         `json:"seed"`
	Steps   int            `json:"steps"`
	Clients time.Duration  `json:"clients"` // the time of all clients together
	Faults  map[string]int `json:"faults"`
	Right   time.Duration  `json:"right"` // until all was right again after the faults
	Bound   time.Duration  `json:"bound"` // the longest that it may take
	Failed  string         `json:"failed"`
}

// report writes what the history has shown into an attribute of the test.
func (w *world) report(steps int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := played{Seed: w.seed, Steps: steps, Faults: w.injected, Right: w.took, Bound: w.bound, Failed: w.failed}
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

// comesRight checks that every partition has one live owner and that shares are even, in time and
// permanently.
func (w *world) comesRight(alive []*proc, leases map[string]int, longest time.Duration) {
	began, right := time.Now(), time.Now()
	why := ""
	for time.Since(began) < scaled(time.Minute) {
		w.db.Look(func(t *fakestore.Tables, _ int64) {
			if now := wrong(t, alive, leases); now != "" {
				why, right = now, time.Now()
			}
		})
		time.Sleep(scaled(10 * time.Millisecond))
	}
	took := right.Sub(began)
	w.bound = calmAfter(longest) + w.waits
	if took > w.bound {
		w.failf("all was right only %v after quiet: %s", took, why)
	}
	w.took = took
}

// wrong returns what is not as it has to be at rest.
func wrong(t *fakestore.Tables, alive []*proc, leases map[string]int) string {
	for name, n := range leases {
		owners := make([]string, n)
		members := 0
		for _, p := range alive {
			l := p.leases[name]
			if l == nil {
				continue
			}
			if err := l.Err(); err != nil {
				return fmt.Sprintf("%s: lease %s has ended: %v", p.name, name, err)
			}
			members++
			for _, o := range shown(l) {
				if owners[o.Number] != "" {
					return fmt.Sprintf("%s/%d has two owners", name, o.Number)
				}
				owners[o.Number] = p.name
			}
		}
		if members == 0 {
			continue
		}
		weights := make(map[int64]int) // by session
		sum := 0
		var who []string
		for m, member := range t.Members {
			if m.Lease == name {
				weight := member.Weight
				weights[m.Session] = weight
				sum += weight
				who = append(who, fmt.Sprintf("%s session %d weight %d", t.Clients[m.Session].ID, m.Session, weight))
			}
		}
		if len(t.Partitions[name]) != n { // a failover may have forgotten the lease until its members join again
			return fmt.Sprintf("%s has %d partitions, not %d", name, len(t.Partitions[name]), n)
		}
		for number, owner := range owners {
			if owner == "" {
				return fmt.Sprintf("%s/%d has no owner; row %+v, lease %+v, members %v", name, number, t.Partitions[name][number], t.Leases[name], who)
			}
		}
		if len(who) != members {
			return fmt.Sprintf("%s has %d members, not those: %v", name, members, who)
		}
		for _, p := range alive {
			weight, known := weights[sessionOf(t, p.id)]
			if want := p.weight[name]; p.leases[name] != nil && known && want >= 0 && weight != want {
				return fmt.Sprintf("%s: weight of %s is %d, not %d", name, p.name, weight, want)
			}
		}
		counts := make(map[int64]int)
		for _, row := range t.Partitions[name] {
			counts[row.Owner]++
		}
		for session, weight := range weights {
			if d := float64(counts[session]) - float64(n*weight)/float64(max(sum, 1)); d >= 1 || d <= -1 {
				return fmt.Sprintf("%s: %s owns %d of %d with weight %d of %d", name, t.Clients[session].ID, counts[session], n, weight, sum)
			}
		}
	}
	return ""
}

// sessionOf returns the newest session under a client ID.
func sessionOf(t *fakestore.Tables, id string) int64 {
	var session, incarnation int64
	for _, row := range t.Clients {
		if row.ID == id && row.Incarnation >= incarnation {
			session, incarnation = row.Session, row.Incarnation
		}
	}
	return session
}

// --- single promises

// inWorld runs f in a bubble with a world of its own, and ends what is left of it, also after
// t.FailNow. f gets the bubble's t: FailNow of the outer t in a bubble panics, which hides all later
// tests.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		defer w.end()
		f(t, w)
	})
}

// end closes all clients.
func (w *world) end() {
	w.mu.Lock()
	procs := w.procs
	w.extra, w.odds = nil, 0
	w.mu.Unlock()
	var ending sync.WaitGroup
	for _, p := range procs {
		if p.c != nil {
			ending.Go(func() { _ = p.close(0, 3*time.Second) })
		}
	}
	ending.Wait()
	time.Sleep(time.Minute) // the bubble's clock stops with its first goroutine; let the others end
}

// inject makes extra decide what happens to a statement. If it returns false, the world decides.
func (w *world) inject(extra func(client, op string) (fault, bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.extra = extra
}

// mustJoin joins a lease, and ends the test if it has not joined after an hour: in a world that has
// failed, no join returns.
func (p *proc) mustJoin(name string, partitions int, opts ...LeaseOption) *Lease {
	p.w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	l := p.join(ctx, name, partitions, opts...)
	if l == nil {
		p.w.t.Fatalf("%s did not join %s", p.name, name)
	}
	return l
}

// owning joins a lease, and waits until the client owns all of it.
func (p *proc) owning(name string, partitions int, opts ...LeaseOption) *Lease {
	p.w.t.Helper()
	l := p.mustJoin(name, partitions, opts...)
	p.w.within(5*time.Second, p.name+" owns all of "+name, func() bool { return len(shown(l)) == partitions })
	return l
}

// guard begins a transaction that passes the guard of a partition of lease x.
func (w *world) guard(p Partition) (end func()) {
	w.t.Helper()
	end, ok := w.db.Guard("x", p.Number, p.Epoch)
	if !ok {
		w.t.Fatalf("the guard of %v was refused", p)
	}
	return end
}

// passes reports whether the guard of a partition passes.
func (w *world) passes(lease string, p Partition) bool {
	end, ok := w.db.Guard(lease, p.Number, p.Epoch)
	if ok {
		end()
	}
	return ok
}

// shows returns what a reader of a lease sees, without being one.
func shows(l *Lease) string {
	var numbers []int
	for _, o := range shown(l) {
		numbers = append(numbers, o.Number)
	}
	return ranges.Format(numbers)
}

// within waits for a condition, and returns how long it took. After the limit it ends the test. It
// polls every millisecond, and less often later.
func (w *world) within(limit time.Duration, what string, holds func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for !holds() {
		if time.Since(began) > limit {
			w.failf("not within %v: %s", limit, what)
			w.t.FailNow() // in a world that has failed, what the test does next would not end
		}
		time.Sleep(max(time.Millisecond, time.Since(began)/10_000)) // of ten minutes, each millisecond would take half a minute of ours
	}
	return time.Since(began)
}

// wait waits for a channel, or for the end of a test that has failed.
func (w *world) wait(finish <-chan struct{}) {
	select {
	case <-finish:
	case <-w.t.Context().Done():
	}
}

// give gives a free partition to a client, as a plan does, and asks for it on behalf of another.
func (w *world) give(k place, to, target *proc) {
	var from, row fakestore.Partition
	w.db.Edit(func(t *fakestore.Tables, _ int64) {
		from = t.Partitions[k.lease][k.partition]
		row = from
		row.Owner, row.Target, row.Epoch = sessionOf(t, to.id), sessionOf(t, target.id), row.Epoch+1
		t.Partitions[k.lease][k.partition] = row
		changed(t, k.lease)
	})
	w.moved("edit", k.lease, k.partition, from, row)
}

// changed has the members of a lease read it.
func changed(t *fakestore.Tables, lease string) {
	l := t.Leases[lease]
	l.Generation++
	t.Leases[lease] = l
}

// notify has clients read what they own.
func (w *world) notify(ids ...string) {
	var sessions []int64
	w.db.Look(func(t *fakestore.Tables, _ int64) {
		for _, id := range ids {
			sessions = append(sessions, sessionOf(t, id))
		}
	})
	w.db.Notify(sessions...)
}

func TestPartitionGainedAndWantedElsewhereIsHandedOver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a", WithPolling()), w.start("b", WithPolling())
		la, lb := a.mustJoin("x", 1, WithWeight(0)), b.mustJoin("x", 1, WithWeight(0))
		time.Sleep(5 * time.Second)
		w.give(place{"x", 0}, b, a)
		w.within(6*time.Second, "a owns it", func() bool { return shows(la) == "0" && shows(lb) == "-" })
	})
}

func TestOwnersReadAgainAfterServerIsAccepted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, _, la, lb := w.pair(2)
		w.mu.Lock()
		w.after = func(op string) {
			if op == "accept" {
				w.notify("a", "b")
			}
		}
		w.mu.Unlock()
		w.promote(0, false)
		w.within(12*time.Second, "accepted", w.accepted)
		time.Sleep(2 * time.Second)
		if len(la.Values()) != 1 || len(lb.Values()) != 1 {
			w.failf("a shows %s, b shows %s", shows(la), shows(lb))
		}
	})
}

// handOver has a hand a partition to b, by giving b all the weight. A standby that misses what it
// can misses that.
func (w *world) handOver(a, b *proc) (la, lb *Lease) {
	la = a.owning("x", 1, WithHandoffDelay(0))
	lb = b.mustJoin("x", 1, WithHandoffDelay(0))
	time.Sleep(time.Second)
	w.db.KeepNone()
	testkit.OK(w.t, la.SetWeight(context.Background(), 0))
	w.within(5*time.Second, "b owns it", func() bool { return shows(lb) == "0" })
	return la, lb
}

// staysAway watches for 4 s that a lease does not show what it had handed over to another.
func (w *world) staysAway(lease, other *Lease) {
	for range 4000 {
		time.Sleep(time.Millisecond)
		if shows(lease) != "-" {
			w.failf("it shows what it had handed over; the other shows %s", shows(other))
			return
		}
	}
}

func TestNewConnectionGainsAfterFirstHeartbeatOnly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		la, lb := w.handOver(a, b)
		w.inject(func(client, op string) (fault, bool) {
			return fault{err: errLocked}, op == "heartbeat" && client == a.name
		})
		w.promote(keepStates, false)
		w.staysAway(la, lb)
	})
}

func TestAReadThatAPromotedServerAnswersGainsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		la, lb := w.handOver(a, b)
		w.inject(func(client, op string) (fault, bool) {
			return fault{before: time.Second}, op == "read" && client == a.name
		})
		w.notify("a")
		time.Sleep(500 * time.Millisecond)
		w.promote(keepStates, true) // a pooler keeps the connections
		w.staysAway(la, lb)
	})
}

func TestFencedPartitionWaitsForFormerGuards(t *testing.T) {
	for name, f := range map[string]fault{
		"answered":        {},
		"its answer lost": {err: errBroken, broken: true, applied: true},
		"it failed":       {err: errLocked},
		"it arrives late": {before: 4500 * time.Millisecond, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a, b := w.start("a"), w.start("b")
				la, lb := a.owning("x", 1, WithHandoffDelay(0)), b.mustJoin("x", 1, WithWeight(0), WithHandoffDelay(0))
				p, _ := la.Partition(0)
				end, ok := w.db.Guard("x", 0, p.Epoch)
				if !ok {
					t.Fatal("the guard was refused")
				}
				var sent, arrived atomic.Bool
				w.inject(func(client, op string) (fault, bool) {
					switch {
					case op == "fence" && !sent.Swap(true):
						return f, true
					case op == "fence" && f.late && !arrived.Load():
						return fault{err: errLocked}, true
					}
					return fault{}, false
				})
				w.mu.Lock()
				w.after = func(op string) { // by another plan it shall stay at once
					if op == "fence" {
						arrived.Store(true)
						w.db.Edit(func(t *fakestore.Tables, _ int64) {
							row := &t.Partitions["x"][0]
							row.Target = row.Owner
							changed(t, "x")
						})
					}
				}
				w.mu.Unlock()
				testkit.OK(t, errors.Join(lb.SetWeight(context.Background(), 1), la.SetWeight(context.Background(), 0)))
				w.within(5*time.Second, "no further guard passes", func() bool { return !w.passes("x", p) })
				w.staysAway(la, lb)
				end()
				w.within(2*time.Second, "a owns it again", func() bool { return shows(la) == "0" })
			})
		})
	}
}

func TestADeathAfterTheClockStepsBackIsSeenInTime(t *testing.T) {
	for _, step := range []time.Duration{-3 * time.Second, -7 * time.Minute, -time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				_, b, la, _ := w.pair(2)
				time.Sleep(10 * time.Second)
				w.db.Step(step)
				b.kill()
				// The watch begins anew with the next heartbeat, and what b left runs for a TTL from when that
				// is seen.
				took := w.within(2*6*time.Second+4*time.Second, "a owns both", func() bool { return len(la.Values()) == 2 })
				t.Logf("after %v", took)
			})
		})
	}
}

// kill ends a process without a message.
func (p *proc) kill() {
	p.w.event("%s: killed", p.name)
	p.set(func(p *proc) { p.killed = true })
	p.end()
	p.w.breakConns(p)
}

func TestUnwatchedClientDoesNotDelayOtherEvictions(t *testing.T) {
	for _, long := range []time.Duration{20 * time.Second, 10 * time.Minute} {
		t.Run(long.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				crashed := w.start("crashed", WithTTL(long))
				crashed.mustJoin("x", 9)
				crashed.kill()
				time.Sleep(long - 6*time.Second)
				a, b, c := w.start("a", WithTTL(time.Second)), w.start("b", WithTTL(time.Second)), w.start("c", WithTTL(2*time.Second))
				began := time.Now()
				w.inject(func(_, op string) (fault, bool) { return fault{err: errLocked}, op == "snapshot" }) // the first plan is for all of them
				la, lb, lc := a.mustJoin("x", 9), b.mustJoin("x", 9), c.mustJoin("x", 9)
				w.inject(nil)
				owned := func(leases ...*Lease) (n int) {
					for _, l := range leases {
						n += len(l.Values())
					}
					return n
				}
				w.within(5*time.Second, "they own what the crashed one does not", func() bool { return owned(la, lb, lc) >= 6 })
				evictions := func() int {
					before := w.count("evict")
					time.Sleep(3 * time.Second)
					return w.count("evict") - before
				}
				without := evictions()
				time.Sleep(time.Until(began.Add(8 * time.Second))) // it expired, and no client has watched for long enough
				if with := evictions(); with > without+6 {
					t.Errorf("%v evictions in 3 s, %v before it expired", with, without)
				}
				for _, victim := range []struct {
					p   *proc
					ttl time.Duration
					own *Lease
				}{{b, time.Second, lb}, {c, 2 * time.Second, lc}} {
					victim.p.kill()
					took := w.within(time.Minute, "what it owned is taken over", func() bool {
						taken := true
						w.db.Look(func(t *fakestore.Tables, _ int64) {
							for _, row := range t.Partitions["x"] {
								taken = taken && row.OwnerID != victim.p.id
							}
						})
						return taken
					})
					if most := victim.ttl + 300*time.Millisecond; took > most { // 200 ms, and a round trip on each side
						t.Errorf("with a TTL of %v it took %v, and not up to %v", victim.ttl, took, most)
					}
				}
				w.within(time.Until(began.Add(long+300*time.Millisecond)), "the crashed one is evicted once a has watched for its TTL", func() bool { return owned(la) == 9 })
			})
		})
	}
}

func TestAClientThatMayNotListenPolls(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.inject(func(_, op string) (fault, bool) { return fault{err: errLocked}, op == "listen" })
		w.start("a").owning("x", 4)
	})
}

func TestAWeightThatAFailoverLostIsSetAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		la, lb := w.handOver(a, b)
		testkit.OK(t, lb.SetWeight(context.Background(), 1))
		w.promote(keepStates, false) // a has weight 1 there
		time.Sleep(20 * time.Second)
		w.within(5*time.Second, "b owns it", func() bool { return len(la.Values()) == 0 && len(lb.Values()) == 1 })
	})
}

// For example because its row is deleted each time.
func TestAClientEvictedAgainAndAgainPauses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		l := w.start("a").mustJoin("x", 4)
		w.blind.Store(true) // the oracle knows no such eviction
		w.inject(func(_, op string) (f fault, is bool) {
			if op == "heartbeat" {
				w.db.Edit(func(t *fakestore.Tables, _ int64) { delete(t.Clients, sessionOf(t, "a")) })
			}
			return f, false
		})
		before := w.count("register")
		time.Sleep(time.Minute)
		if n := w.count("register") - before; n < 30 || n > 240 { // the pause is up to half a heartbeat, of 2 s
			t.Errorf("%d registrations in a minute", n)
		}
		w.inject(nil)
		w.within(10*time.Second, "a owns all", func() bool { return len(l.Values()) == 4 })
	})
}

// accepted reports whether the server's timeline is.
func (w *world) accepted() (accepted bool) {
	run := w.db.Run()
	w.db.Look(func(t *fakestore.Tables, _ int64) { accepted = t.Server.AcceptedTimeline == run.Timeline })
	return accepted
}

// --- trust

// A pulse records when successful heartbeats were sent.
type pulse struct {
	mu   sync.Mutex // guards the rest
	sent time.Time
	stop bool // heartbeats get no answer any more
}

// feel makes heartbeats take so long there and back, and notes when they were sent.
func (w *world) feel(there, back time.Duration) *pulse {
	p := &pulse{}
	w.inject(func(_, op string) (fault, bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.stop {
			return fault{before: 24 * time.Hour}, true
		}
		if op == "heartbeat" {
			p.sent = time.Now()
		}
		return fault{before: there, after: back}, op == "heartbeat"
	})
	return p
}

func TestTrustEndsAMarginBeforeTheTTL(t *testing.T) {
	for _, delay := range []struct{ there, back time.Duration }{{0, 0}, {time.Millisecond, time.Millisecond}, {1500 * time.Millisecond, 0}, {0, 1700 * time.Millisecond}} {
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.start("a", WithPolling())
				l := a.owning("x", 1)
				pulse := w.feel(delay.there, delay.back)
				time.Sleep(20 * time.Second)
				beats := w.count("heartbeat")
				w.within(3*time.Second, "a heartbeat", func() bool { return w.count("heartbeat") > beats })
				time.Sleep(delay.back + time.Millisecond)
				pulse.mu.Lock()
				pulse.stop = true
				deadline := pulse.sent.Add(5700 * time.Millisecond)
				pulse.mu.Unlock()
				if got := l.TrustDeadline(); !got.Equal(deadline) {
					t.Errorf("trust deadline is %v, not %v", got, deadline)
				}
				o, owned := l.Partition(0)
				changed := l.Changed()
				hold := l.Hold(context.Background())
				time.Sleep(time.Until(deadline) - time.Nanosecond)
				if len(l.Values()) != 1 || !l.Owns(0) || !owned || o.Context().Err() != nil {
					t.Errorf("not owned just before the deadline: %v", l.Values())
				}
				time.Sleep(time.Nanosecond)
				if len(l.Values()) != 0 || l.Owns(0) {
					t.Errorf("owned at the deadline")
				}
				if _, owned := l.Partition(0); owned || len(l.Hold(context.Background()).Values()) != 0 {
					t.Errorf("owned at the deadline")
				}
				synctest.Wait()
				select {
				case <-changed:
				default:
					t.Errorf("Changed's channel was not closed")
				}
				for _, ctx := range []context.Context{o.Context(), hold.Context()} {
					if err := context.Cause(ctx); !errors.Is(err, ErrTrustLost) {
						t.Errorf("the context's cause is %v", err)
					}
				}
				hold.Release()
			})
		})
	}
}

func TestAnswerAfterTheDeadlineStartsNewValidity(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", WithPolling(), WithTTL(6*time.Second), WithHeartbeat(3*time.Second))
		l := a.owning("x", 1)
		time.Sleep(10 * time.Second)
		old := inside(l).Board.Look()
		o, _ := l.Partition(0)
		w.inject(func(_, op string) (fault, bool) {
			return fault{after: 2950 * time.Millisecond}, op == "heartbeat"
		})
		// Sent up to 3 s after the last one, answered 2.95 s later: sometimes too late.
		w.within(time.Hour, "a heartbeat was late", func() bool { return !old.Validity.Holds() })
		w.inject(nil)
		w.within(10*time.Second, "a owns it again", func() bool { return shows(l) == "0" })
		if old.Validity.Holds() {
			t.Errorf("a reader with the old snapshot believes it again")
		}
		again, _ := l.Partition(0)
		if o.Context().Err() == nil || again.Epoch <= o.Epoch {
			t.Errorf("after the break the epoch is %d, before it was %d; the context says %v", again.Epoch, o.Epoch, o.Context().Err())
		}
	})
}

func TestPromotionTrustWaitsForDrainsToBeConfirmed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 1)
		time.Sleep(10 * time.Second)
		o, _ := l.Partition(0)
		hold := l.Hold(context.Background()) // work that goes on
		defer hold.Release()
		b := w.start("b")
		b.mustJoin("x", 1)
		w.db.Edit(func(t *fakestore.Tables, _ int64) {
			t.Partitions["x"][0].Target = sessionOf(t, "b")
			changed(t, "x")
		})
		w.within(5*time.Second, "it drains", func() bool { return shows(l) == "-" })
		w.inject(func(client, op string) (fault, bool) {
			return fault{err: errLocked}, op == "read" && client == a.name
		})
		w.promote(0, true)
		time.Sleep(8 * time.Second)
		if o.Context().Err() == nil && hold.Context().Err() == nil {
			t.Error("its work goes on, though this server has not confirmed it for longer than the TTL")
		}
	})
}

func TestAStatementThatHangsCostsNoTrust(t *testing.T) {
	for _, heartbeat := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
		for _, survives := range []bool{true, false} {
			t.Run(fmt.Sprintf("heartbeat %v, the connection survives %v", heartbeat, survives), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					a := w.start("a", WithTTL(6*time.Second), WithHeartbeat(heartbeat))
					l := a.owning("x", 1)
					o, _ := l.Partition(0)
					for range 100 {
						var once sync.Once
						w.inject(func(_, op string) (f fault, hangs bool) {
							if op == "read" {
								once.Do(func() { f, hangs = fault{before: 24 * time.Hour, survives: survives}, true })
							}
							return f, hangs
						})
						time.Sleep(10*time.Second + w.span(0, heartbeat))
						w.notify("a")
					}
					w.ok(context.Cause(o.Context()))
				})
			})
		}
	}
}

// A join that creates many partitions has no more time than any other statement.
func TestJoinThatHangsCostsNoTrust(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 1)
		o, _ := l.Partition(0)
		w.inject(func(_, op string) (fault, bool) { return fault{before: 24 * time.Hour}, op == "join" })
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if _, err := a.c.Lease(ctx, "large", engine.MaxPartitions); !errors.Is(err, context.DeadlineExceeded) {
			w.failf("Lease: %v", err)
		}
		w.ok(context.Cause(o.Context()))
		w.inject(nil)
	})
}

// --- costs

func TestAtRestAClientSendsLittleMoreThanItsHeartbeats(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.db.Keep = 0
		var last []*Lease
		const clients = 10
		for i := range clients {
			p := w.start(fmt.Sprint("client", i))
			for j := range 10 {
				last = append(last, p.mustJoin(fmt.Sprint("lease", j), 32))
			}
		}
		time.Sleep(time.Minute)
		w.blind.Store(true) // the oracle would take longest
		w.mu.Lock()
		before := maps.Clone(w.calls)
		w.mu.Unlock()
		const length = 5 * time.Minute
		time.Sleep(length)
		w.mu.Lock()
		total, calls := 0, maps.Clone(w.calls)
		w.mu.Unlock()
		for op := range calls {
			calls[op] -= before[op]
			total += calls[op]
		}
		total -= calls["check"] // is an eviction that was due
		if ratio := float64(total) / float64(calls["heartbeat"]); ratio > 1.1 {
			t.Errorf("%.3f statements for each heartbeat: %v", ratio, calls)
		}
		// After each check the earliest that anybody expires is more than half a TTL away.
		if most := int(length / (3 * time.Second)); calls["check"] > most {
			t.Errorf("%d checks in %v, at most %d were expected: one for all clients", calls["check"], length, most)
		}
		if calls["claim"]+calls["snapshot"]+calls["apply"] > 0 {
			t.Errorf("plans at rest: %v", calls)
		}
		t.Logf("%v: %v; %.3f statements for each period of 1.9 s", length, calls, float64(total)/(clients*length.Seconds()/1.9))
		for _, l := range last {
			if len(l.Values()) == 0 {
				t.Errorf("a client owns nothing of %s", l.Name())
			}
		}
	})
}
