package scheduletest

import (
	"context"
	"crypto/rand"
	"embed"
	"fmt"
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

// A world is what outlives processes: the time, and what they leave.
type world struct {
	t      testing.TB
	pool   *pgxpool.Pool
	schema string
	text   func(name string) string // of the statements
	stage  seam.Stage

	now atomic.Int64 // microseconds since 1970; the database has it too

	mu     sync.Mutex // guards what follows
	driven bool       // Advance, or what else moves the time, is under way
	of     *Scheduler
	runs   bool                    // a handler is called
	down   time.Time               // nothing runs until then; zero: a process is there
	end    context.CancelCauseFunc // of all that the process owns

	// The rest is for who moves the time.
	held    map[subject]time.Time // what is not to be begun before an instant
	unclear map[subject]string    // the state of what was begun, and of which nothing was written down
	soonest time.Time             // when the next is due; zero: nothing is known
	begun   map[subject]int       // runs at this instant
	total   int                   // of them
}

type subject struct {
	id  int64
	job bool
}

func newWorld(t testing.TB, pool *pgxpool.Pool, at time.Time) *world {
	w := &world{
		t: t, pool: pool, schema: "scheduletest_" + strings.ToLower(rand.Text()),
		held: make(map[subject]time.Time), unclear: make(map[subject]string), begun: make(map[subject]int),
	}
	w.text = store.Texts(files, w.schema)
	w.now.Store(at.UnixMicro())
	w.stage = seam.Stage{
		Now: w.time,
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

// own gives all that there is to the process.
func (w *world) own() error {
	life, end := context.WithCancelCause(context.Background())
	w.mu.Lock()
	p := w.of.process
	w.end, w.down = end, time.Time{}
	w.mu.Unlock()
	clear(w.held)
	clear(w.unclear)
	var epoch int64
	err := w.ask(func(ctx context.Context) error {
		return w.pool.QueryRow(ctx, w.text("own"), Group, p.Partitions()).Scan(&epoch)
	})
	if err == nil {
		err = p.Own(life, epoch)
	}
	if err != nil {
		return fmt.Errorf("scheduletest: %w", err)
	}
	return nil
}

// drive moves the time on to an instant. What is due on the way is run.
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

// gone is until when there is no process; zero: there is one.
func (w *world) gone() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down
}

// next is when the next happens; zero: nothing is known.
func (w *world) next() time.Time {
	next := w.gone()
	if !next.IsZero() {
		return next
	}
	sooner := func(t time.Time) {
		if t.After(w.time()) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, until := range w.held {
		sooner(until)
	}
	sooner(w.soonest)
	return next
}

// settle runs what is due now, one after the other, until nothing is.
func (w *world) settle() {
	for {
		if down := w.gone(); down.After(w.time()) {
			return
		} else if !down.IsZero() {
			w.must(w.own())
		}
		due, state := w.find()
		if due == nil {
			return
		}
		s := subject{due.ID, due.Job}
		before, unclear := w.unclear[s]
		delete(w.unclear, s)
		if unclear && before == state {
			w.held[s] = w.time().Add(lookEvery)
			continue
		}
		w.begun[s]++
		w.total++
		if w.begun[s] > mostOfOne || w.total > most {
			w.t.Fatalf(
				"scheduletest: at %v more than %d runs of one schedule or job began, or %d in all: does a handler snooze for no time, or put itself again?",
				w.time(), mostOfOne, most,
			)
		}
		if !w.run(*due) {
			w.unclear[s] = state
		}
	}
}

// run does what is due, and reports whether anything was written down of it.
func (w *world) run(due seam.Due) bool {
	w.mu.Lock()
	p := w.of.process
	w.runs = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.runs = false
	}()
	return p.Run(due)
}

// find asks what is due now, but for what is held; nil: nothing is. State is another after each
// change of when it is due.
func (w *world) find() (found *seam.Due, state string) {
	schedules, jobs := []int64{}, []int64{}
	for s, until := range w.held {
		switch {
		case !until.After(w.time()):
		case s.job:
			jobs = append(jobs, s.id)
		default:
			schedules = append(schedules, s.id)
		}
	}
	var next, id, due *int64
	var d seam.Due
	w.must(w.ask(func(ctx context.Context) error {
		return w.pool.QueryRow(ctx, w.text("due"), Group, schedules, jobs).
			Scan(&next, &id, &due, &d.Job, &d.Priority, &d.Partition, &d.Key, &d.Kind, &d.Crashes, &state)
	}))
	w.soonest = time.Time{}
	if next != nil {
		w.soonest = time.UnixMicro(*next).UTC()
	}
	if id == nil {
		return nil, ""
	}
	d.ID, d.At = *id, time.UnixMicro(*due).UTC()
	return &d, state
}

// die ends the process at once.
func (w *world) die(down time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = w.time().Add(max(0, down))
	if w.end != nil {
		w.end(pgleases.ErrTrustLost)
	}
}

// drain has the process end.
func (w *world) drain() {
	w.mu.Lock()
	p, end := w.of.process, w.end
	w.mu.Unlock()
	p.Drain()
	end(pgleases.ErrClosed)
}
