package scheduletest

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule"
)

//go:embed *.sql
var files embed.FS

const (
	lookEvery = time.Second // how soon a process looks again at what it could not do
	mostOfOne = 250         // runs of one schedule or job at one instant
	most      = 1_000_000   // runs at one instant
	answers   = time.Minute // how long the database is given for an answer
)

// A world is what outlives processes: the time, and what they leave. One goroutine at a time goes on in it, either Advance or one handler:
// they hand over to each other.
type world struct {
	t      testing.TB
	pool   *pgxpool.Pool
	schema string
	text   func(name string) string // of the statements
	stage  seam.Stage

	now atomic.Int64 // microseconds since 1970; the database has it too

	mu       sync.Mutex // guards what follows
	timers   []*timer   // in the order of their instants
	driven   bool       // Advance, or what else moves the time, is under way
	of       *Scheduler
	down     time.Time // nothing runs until then; zero: a process is there
	active   *run      // what goes on; nil: Advance does
	running  []*run
	held     map[subject]time.Time // what is not to be begun before an instant
	slotless map[subject]bool      // schedules that were told to wait for another of their kind
	unclear  map[subject]string    // the state of what was begun, and of which nothing was written down
	soonest  time.Time             // when the next is due; zero: nothing is known
	begun    map[subject]int       // at this instant
	total    int                   // at this instant
	draining bool
	dying    bool
	end      context.CancelCauseFunc // of all that the process owns
	stop     context.CancelCauseFunc // of its runs

	yield chan struct{} // what was active goes on no more
}

type subject struct {
	id  int64
	job bool
}

func of(d seam.Due) subject { return subject{d.ID, d.Job} }

// A run is one that is under way.
type run struct {
	seam.Due
	state   string // when it was found: another after each change of when it is due
	wake    chan struct{}
	asleep  bool
	settled bool // it has ended
}

// A timer is what is to happen at an instant. It is called without mu.
type timer struct {
	at   time.Time
	fire func()
}

func newWorld(t testing.TB, pool *pgxpool.Pool, at time.Time) *world {
	w := &world{
		t: t, pool: pool, schema: "scheduletest_" + strings.ToLower(rand.Text()), yield: make(chan struct{}),
		held: make(map[subject]time.Time), slotless: make(map[subject]bool), unclear: make(map[subject]string), begun: make(map[subject]int),
	}
	w.text = store.Texts(files, w.schema)
	w.now.Store(at.UnixMicro())
	w.stage = seam.Stage{
		Now:   w.time,
		Limit: w.limit,
		Wait: func(ctx context.Context) error {
			if err := w.process().start(ctx); err != nil {
				return err
			}
			<-ctx.Done()
			return context.Cause(ctx)
		},
	}
	return w
}

// open makes the schema, which is dropped when the test ends.
func (w *world) open() error {
	w.t.Cleanup(func() {
		if err := w.ask(func(ctx context.Context) error {
			_, err := w.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{w.schema}.Sanitize()+" CASCADE")
			return err
		}); err != nil {
			w.t.Errorf("scheduletest: the schema %s stays: is the pool closed, or a transaction open? %v", w.schema, err)
		}
	})
	return w.ask(func(ctx context.Context) error {
		err := schedule.Migrate(ctx, w.pool, schedule.WithSchema(w.schema))
		if err == nil {
			_, err = w.pool.Exec(ctx, w.text("stage"), pgx.QueryExecModeSimpleProtocol)
		}
		if err == nil {
			_, err = w.pool.Exec(ctx, w.text("time"), w.time())
		}
		return err
	})
}

// ask asks the database something.
func (w *world) ask(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), answers)
	defer cancel()
	return f(ctx)
}

func (w *world) time() time.Time {
	return time.UnixMicro(w.now.Load()).UTC()
}

// process is the one that runs now, or will.
func (w *world) process() *Scheduler {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of
}

// after has something happen later. It returns what takes that back.
func (w *world) after(d time.Duration, fire func()) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tm := &timer{w.time().Add(max(0, d)), fire}
	i, _ := slices.BinarySearchFunc(w.timers, tm.at.Add(1), func(t *timer, at time.Time) int { return t.at.Compare(at) })
	w.timers = slices.Insert(w.timers, i, tm)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.timers = slices.DeleteFunc(w.timers, func(t *timer) bool { return t == tm })
	}
}

// limit is a context that ends after a while of this world. It has no deadline, which others would compare with the time of the host.
func (w *world) limit(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	limited, end := context.WithCancelCause(ctx)
	w.mu.Lock()
	r := w.active
	w.mu.Unlock()
	cancel := w.after(d, func() {
		end(cause)
		w.wake(r)
	})
	return limited, func() {
		cancel()
		end(nil)
	}
}

// own gives all that there is to the process.
func (w *world) own() error {
	life, end := context.WithCancelCause(context.Background())
	runs, stop := context.WithCancelCause(life)
	w.mu.Lock()
	p := w.of.process
	w.end, w.stop, w.down, w.draining = end, stop, time.Time{}, false
	clear(w.held)
	clear(w.slotless)
	clear(w.unclear)
	w.mu.Unlock()
	var epoch int64
	err := w.ask(func(ctx context.Context) error {
		return w.pool.QueryRow(ctx, w.text("own"), Group, p.Partitions()).Scan(&epoch)
	})
	if err == nil {
		err = p.Own(life, runs, epoch)
	}
	if err != nil {
		return fmt.Errorf("scheduletest: %w", err)
	}
	return nil
}

// drive moves the time on to an instant. What is due on the way happens.
func (w *world) drive(to time.Time) {
	for {
		w.settle()
		next := w.next()
		if next.IsZero() || next.After(to) {
			w.set(to)
			return
		}
		w.set(next)
	}
}

func (w *world) set(now time.Time) {
	if !now.After(w.time()) {
		return
	}
	now = now.Truncate(time.Microsecond)
	w.must(w.ask(func(ctx context.Context) error {
		_, err := w.pool.Exec(ctx, w.text("time"), now)
		return err
	}))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.Store(now.UnixMicro())
	w.total = 0
	clear(w.begun)
}

// must ends the test where the database does not do what it is asked.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("scheduletest: %v", err)
	}
}

// fire has happen what is to happen now.
func (w *world) fire() {
	for {
		w.mu.Lock()
		if len(w.timers) == 0 || w.timers[0].at.After(w.time()) {
			w.mu.Unlock()
			return
		}
		tm := w.timers[0]
		w.timers = w.timers[1:]
		w.mu.Unlock()
		tm.fire()
	}
}

// next is when the next happens; zero: nothing is known.
func (w *world) next() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	var next time.Time
	sooner := func(t time.Time) {
		if t.After(w.time()) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if len(w.timers) > 0 {
		sooner(w.timers[0].at)
	}
	if !w.down.IsZero() {
		sooner(w.down)
		return next
	}
	for _, until := range w.held {
		sooner(until)
	}
	if !w.draining {
		sooner(w.soonest)
	}
	return next
}

// settle has happen what is to happen now, and begins what is due, one after the other, until nothing is.
func (w *world) settle() {
	for {
		w.fire()
		w.mu.Lock()
		back := !w.down.IsZero() && !w.time().Before(w.down)
		w.mu.Unlock()
		if back {
			w.must(w.own())
			continue
		}
		r := w.choose()
		w.mu.Lock()
		if r == nil {
			more := len(w.timers) > 0 && !w.timers[0].at.After(w.time())
			w.mu.Unlock()
			if more {
				continue
			}
			return
		}
		s := of(r.Due)
		w.running = append(w.running, r)
		w.begun[s]++
		w.total++
		n, total, p := w.begun[s], w.total, w.of.process
		w.mu.Unlock()
		if n > mostOfOne || total > most {
			w.t.Fatalf(
				"scheduletest: at %v more than %d runs of one schedule or job began, or %d in all: does a handler snooze for no time, or put itself again?",
				w.time(), mostOfOne, most,
			)
		}
		w.activate(r)
		go func() {
			known, slotless := p.Run(r.Due)
			w.ended(r, known, slotless)
			w.yield <- struct{}{}
		}()
		<-w.yield
		w.handedBack()
	}
}

// choose is what is begun now, as a planner does; nil: nothing is.
func (w *world) choose() *run {
	for {
		w.mu.Lock()
		p, running, now := w.of.process, len(w.running), w.time()
		if !w.down.IsZero() || w.draining || running >= p.MaxRunning() || slices.ContainsFunc(w.running, func(r *run) bool { return r.Crashes > 0 }) {
			w.mu.Unlock()
			return nil
		}
		schedules, jobs, waiting := []int64{}, []int64{}, []int64{}
		leave := func(s subject) {
			if s.job {
				jobs = append(jobs, s.id)
			} else {
				schedules = append(schedules, s.id)
			}
		}
		keys, kinds := []string{}, []string{}
		for _, r := range w.running {
			leave(of(r.Due))
			keys = append(keys, r.Key)
			if w.full(r.Kind) {
				kinds = append(kinds, r.Kind)
			}
		}
		for s, until := range w.held {
			if until.After(now) {
				leave(s)
			}
		}
		for s := range w.slotless { // other schedules are begun, and told to wait: or their ticks would be late for it
			waiting = append(waiting, s.id)
		}
		w.mu.Unlock()
		r := w.find(schedules, jobs, keys, kinds, waiting)
		if r == nil || r.Crashes > 0 && running > 0 { // and nothing else begins before it
			return nil
		}
		w.mu.Lock()
		again := w.unclear[of(r.Due)] == r.state
		delete(w.unclear, of(r.Due))
		if again {
			w.held[of(r.Due)] = now.Add(lookEvery)
		}
		w.mu.Unlock()
		if !again {
			return r
		}
	}
}

// find asks what is due.
func (w *world) find(schedules, jobs []int64, keys, kinds []string, waiting []int64) *run {
	var next, id, due *int64
	var job *bool
	var priority, partition, crashes *int
	var key, kind, state *string
	w.must(w.ask(func(ctx context.Context) error {
		return w.pool.QueryRow(ctx, w.text("due"), Group, schedules, jobs, keys, kinds, waiting).
			Scan(&next, &id, &job, &priority, &partition, &key, &kind, &due, &crashes, &state)
	}))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.soonest = time.Time{}
	if next != nil {
		w.soonest = time.UnixMicro(*next).UTC()
	}
	if id == nil {
		return nil
	}
	return &run{
		Due: seam.Due{
			ID: *id, Job: *job, Priority: *priority, Partition: *partition, Key: *key, Kind: *kind, At: time.UnixMicro(*due).UTC(), Crashes: *crashes,
		},
		state: *state, wake: make(chan struct{}),
	}
}

// full reports whether so many of a kind run as its limit allows. mu is held.
func (w *world) full(kind string) bool {
	limit, n := w.of.process.Limit(kind), 0
	if limit == 0 {
		return false
	}
	for _, r := range w.running {
		if r.Kind == kind {
			n++
		}
	}
	return n >= limit
}

// ended notes the end of a run.
func (w *world) ended(r *run, known, slotless bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = slices.DeleteFunc(w.running, func(o *run) bool { return o == r })
	if !known {
		w.unclear[of(r.Due)] = r.state
	}
	if slotless && !r.Job {
		w.slotless[of(r.Due)] = true
	} else {
		delete(w.slotless, of(r.Due))
	}
	r.settled = true
}

// handedBack looks what became of the process, when what was active goes on no more.
func (w *world) handedBack() {
	w.mu.Lock()
	w.active = nil
	dying := w.dying
	w.mu.Unlock()
	if !dying {
		return
	}
	w.bury()
	w.mu.Lock()
	w.dying, w.active = false, nil
	w.mu.Unlock()
}

func (w *world) activate(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active = r
}

// inside returns the run whose handler goes on just now, where that has called, in its own goroutine; else nil. Of others nobody knows
// whether they go on or wait: the time could not be moved before they do.
func (w *world) inside() *run {
	pcs := make([]uintptr, 128)
	for skip, n := 0, len(pcs); n == len(pcs); skip += n {
		n = runtime.Callers(skip, pcs)
		frames := runtime.CallersFrames(pcs[:n])
		for frame, more := frames.Next(); frame.PC != 0; frame, more = frames.Next() {
			if strings.HasPrefix(frame.Function, seam.Handler) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.active
			}
			if !more {
				break
			}
		}
	}
	return nil
}

// bury ends the handlers of a process that has died.
func (w *world) bury() {
	w.mu.Lock()
	asleep := slices.Clone(w.running)
	w.mu.Unlock()
	for _, r := range asleep {
		w.wake(r)
	}
}

// wake has a run that sleeps go on, until it sleeps again or ends.
func (w *world) wake(r *run) {
	w.mu.Lock()
	asleep := r != nil && r.asleep && !r.settled
	if asleep {
		r.asleep, w.active = false, r
	}
	dying := w.dying
	w.mu.Unlock()
	if !asleep {
		return
	}
	r.wake <- struct{}{}
	<-w.yield
	if !dying {
		w.handedBack()
	}
}

var errNotInside = errors.New("scheduletest: Sleep was called outside of a handler's own goroutine: what a handler starts cannot sleep, and a test calls Advance")

// sleep has the run that goes on sleep.
func (w *world) sleep(ctx context.Context, d time.Duration) error {
	r := w.inside()
	switch {
	case r == nil:
		w.t.Errorf("%v", errNotInside)
		return errNotInside
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	w.mu.Lock()
	r.asleep = true
	w.mu.Unlock()
	cancel := w.after(d, func() { w.wake(r) })
	w.yield <- struct{}{}
	<-r.wake
	cancel()
	w.mu.Lock()
	dying := w.dying
	w.mu.Unlock()
	if dying {
		runtime.Goexit()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// crash ends the process at once, and the handler that calls it.
func (w *world) crash(down time.Duration) {
	w.die(down)
	runtime.Goexit()
}

// kill ends the process at once, while no handler goes on.
func (w *world) kill(down time.Duration) {
	w.die(down)
	w.handedBack()
}

func (w *world) die(down time.Duration) {
	w.mu.Lock()
	w.dying = true
	w.down = w.time().Add(max(0, down))
	end := w.end
	w.mu.Unlock()
	if end != nil {
		end(pgleases.ErrTrustLost)
	}
}

// drain has the process end, when its runs have ended.
func (w *world) drain() {
	w.mu.Lock()
	w.draining = true
	p, stop, end := w.of.process, w.stop, w.end
	w.mu.Unlock()
	if stop == nil {
		return
	}
	late := false
	cancel := w.after(p.DrainLimit(), func() { late = true })
	for w.busy() && !late {
		w.set(w.next())
		w.fire()
	}
	cancel()
	stop(schedule.ErrDrained)
	w.bury()
	for w.busy() { // those that do not heed it
		w.set(w.next())
		w.fire()
	}
	p.Drain()
	end(pgleases.ErrClosed)
}

func (w *world) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running) > 0
}
