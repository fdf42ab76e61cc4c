package engine_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/store"
)

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
	worldEnds   = 6 * time.Hour // of simulated time, for a test that hangs; the longest takes 63 minutes
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
	lagging      bool                                  // ownerships may be lost: the database is not compared
	evicted      int
	statements   int            // that were executed
	checks       int            // how often the oracle compared what clients show
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

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), began: time.Now(), db: fakestore.New(),
		conns:    make(map[*faultyConn]struct{}),
		calls:    make(map[string]int),
		about:    make(map[string]int),
		beats:    make(map[int64]time.Time),
		ledger:   make(map[place]map[int64]int64),
		highest:  make(map[place]int64),
		working:  make(map[workKey]int),
		injected: make(map[string]int),
	}
	w.db.Step(27 * 365 * 24 * time.Hour) // a bubble begins in 2000, generations in 2020
	w.db.Keep = keepStates
	w.db.Moved = w.moved
	w.db.Evicted = w.gone
	w.db.Renewed = w.renewed
	ends := worldEnds + 2*stepsOfTrouble**troubles
	limit := time.AfterFunc(ends, func() {
		found := cmp.Or(w.failed, "it found no fault")
		panic(fmt.Sprintf("%s: %s\n\nand the test was still running after %v of simulated time; its goroutines:\n\n%s",
			t.Name(), found, ends, bubble()))
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
	others := slices.DeleteFunc(stacks[1:], func(s string) bool { return !strings.Contains(s, name) })
	return strings.Join(others, "\n\n")
}

// executed checks the world after a statement.
func (w *world) executed(client, op string, answer any) {
	w.mu.Lock()
	w.calls[op]++
	w.statements++
	switch a := answer.(type) {
	case store.Evicted:
		if a.Made {
			w.calls["check"]++ // it was due
		}
	case store.Applied:
		if !a.Applied {
			w.calls["overtaken"]++
		}
	case map[store.Span]store.Owners:
		for span := range a {
			if span.Since == (store.Point{}) {
				w.calls["whole owners"]++
			}
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
	case "heartbeat", "read", "snapshot", "claim", "sample", "owners": // without an effect, or of no interest
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
	again := fmt.Sprintf("go test -run '^%s$' ./internal/engine -first-seed %d -seeds 1", name, w.seed)
	w.t.Errorf("%s\n%s\nit usually fails again, maybe at another time: %s",
		w.failed, strings.Join(w.events, "\n"), again)
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
	passes := func() time.Duration { return w.span(100*time.Microsecond, time.Millisecond) }
	f := fault{before: passes(), after: passes()}
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
	"lock timeout", "connection lost before", "connection lost after", "lock timeout after it was executed",
	"statement delayed", "answer delayed", "statement delayed, not canceled", "answer delayed, not canceled",
	"slow statement",
}

// inflict counts a fault.
func (w *world) inflict(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.injected[kind]++
}

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
func (p *proc) mustJoin(name string, partitions int, opts ...pgleases.LeaseOption) *pgleases.Lease {
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
func (p *proc) owning(name string, partitions int, opts ...pgleases.LeaseOption) *pgleases.Lease {
	p.w.t.Helper()
	l := p.mustJoin(name, partitions, opts...)
	p.w.within(5*time.Second, p.name+" owns all of "+name, func() bool { return len(shown(l)) == partitions })
	return l
}

// guard begins a transaction that passes the guard of a partition of lease x.
func (w *world) guard(p pgleases.Partition) (end func()) {
	w.t.Helper()
	end, ok := w.db.Guard("x", p.Number, p.Epoch)
	if !ok {
		w.t.Fatalf("the guard of %v was refused", p)
	}
	return end
}

// passes reports whether the guard of a partition passes.
func (w *world) passes(lease string, p pgleases.Partition) bool {
	end, ok := w.db.Guard(lease, p.Number, p.Epoch)
	if ok {
		end()
	}
	return ok
}

// shows returns what a reader of a lease sees, without being one.
func shows(l *pgleases.Lease) string {
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
		// Of ten minutes, each millisecond would take half a minute of ours.
		time.Sleep(max(time.Millisecond, time.Since(began)/10_000))
	}
	return time.Since(began)
}

// nextBeat waits for another heartbeat.
func (w *world) nextBeat(limit time.Duration) {
	w.t.Helper()
	before := w.count("heartbeat")
	w.within(limit, "another heartbeat", func() bool { return w.count("heartbeat") > before })
}

// seen returns how many partitions readers of the leases see.
func seen(leases ...*pgleases.Lease) (n int) {
	for _, l := range leases {
		n += len(l.Values())
	}
	return n
}

// each returns whether readers of each of the leases see n partitions.
func each(n int, leases ...*pgleases.Lease) func() bool {
	return func() bool {
		return !slices.ContainsFunc(leases, func(l *pgleases.Lease) bool { return seen(l) != n })
	}
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
