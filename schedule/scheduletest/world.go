package scheduletest

import (
	"cmp"
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
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule"
)

//go:embed *.sql
var files embed.FS

const (
	mostOfOne = 250         // runs of one schedule or job at one instant
	most      = 1_000_000   // runs at one instant
	answers   = time.Minute // the time limit for an answer of the database
)

// A world has what outlives processes: the time, and the database.
type world struct {
	t      testing.TB
	pool   *pgxpool.Pool
	schema string
	text   func(name string) string // of a statement
	stage  bridge.Stage

	now atomic.Int64 // microseconds since 1970, as in the database

	mu     sync.Mutex // guards the following fields
	driven bool       // a call that moves the time is under way
	of     *Scheduler
	runs   bool                    // a handler may be running
	down   time.Time               // no process runs until then; zero: a process runs
	end    context.CancelCauseFunc // ends all ownerships of the process

	// Only the call that moves the time uses the following fields.
	soonest time.Time   // when the next item is due; zero: no item is known
	begun   map[any]int // runs at this instant, by schedule or job
	total   int         // runs at this instant
}

func newWorld(t testing.TB, pool *pgxpool.Pool, at time.Time) *world {
	w := &world{t: t, pool: pool, schema: "scheduletest_" + strings.ToLower(rand.Text()), begun: make(map[any]int)}
	w.text = store.Texts(files, w.schema)
	w.now.Store(at.UnixMicro())
	w.stage = bridge.Stage{
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

// open creates the schema, which is dropped when the test ends.
func (w *world) open() error {
	w.t.Cleanup(func() {
		err := w.ask(func(ctx context.Context) error {
			_, err := w.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{w.schema}.Sanitize()+" CASCADE")
			return err
		})
		if err != nil {
			w.t.Errorf("scheduletest: the schema %s is not dropped: is the pool closed, or a transaction open? %v",
				w.schema, err)
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

// ask runs f with the time limit of the database.
func (w *world) ask(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), answers)
	defer cancel()
	return f(ctx)
}

func (w *world) time() time.Time { return time.UnixMicro(w.now.Load()).UTC() }

// process returns the process that runs now or next.
func (w *world) process() *Scheduler {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of
}

// own gives all partitions to the process.
func (w *world) own() error {
	life, end := context.WithCancelCause(context.Background())
	w.mu.Lock()
	p := w.of.process
	w.end, w.down = end, time.Time{}
	w.mu.Unlock()
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

// drive moves the time to an instant, and runs everything that becomes due until then.
func (w *world) drive(to time.Time) {
	for {
		w.settle()
		next := cmp.Or(w.gone(), w.soonest)
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

// must ends the test if err is not nil.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("scheduletest: %v", err)
	}
}

// gone returns until when no process runs; zero if a process runs.
func (w *world) gone() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down
}

// settle runs what is due now, one after the other, until no item is due.
func (w *world) settle() {
	for {
		down := w.gone()
		if down.After(w.time()) {
			return
		} else if !down.IsZero() {
			w.must(w.own())
		}
		ran := w.step()
		if ran == nil {
			return
		}
		w.begun[ran]++
		w.total++
		if w.begun[ran] > mostOfOne || w.total > most {
			w.t.Fatalf(
				"scheduletest: at %v more than %d runs of one schedule or job began, or %d in all: "+
					"does a handler snooze for 0 s, or enqueue itself?",
				w.time(), mostOfOne, most,
			)
		}
	}
}

// step runs the first item that is due, and returns it; nil if no item is due.
func (w *world) step() (ran any) {
	w.mu.Lock()
	p := w.of.process
	w.runs = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.runs = false
	}()
	w.must(w.ask(func(ctx context.Context) (err error) {
		ran, w.soonest, err = p.Step(ctx)
		return err
	}))
	return ran
}

// crash ends the process at once.
func (w *world) crash(down time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = w.time().Add(max(0, down))
	if w.end != nil {
		w.end(pgleases.ErrTrustLost)
	}
}

// drain ends the process.
func (w *world) drain() {
	w.mu.Lock()
	p, end := w.of.process, w.end
	w.mu.Unlock()
	p.Drain()
	end(pgleases.ErrClosed)
}
