// Package scheduletest runs schedules and jobs without a database and without waiting, for tests of an application's handlers, rules and policies.
//
// A test makes a [Scheduler] with New, gives the *schedule.Scheduler in it to the code that it tests, which registers kinds and adds
// schedules as in production, and moves the time on with [Scheduler.Advance]. What is due on the way is run, in order, at exactly its
// instant, before Advance returns: a year of a schedule of each minute takes seconds. Then the test looks at what the handlers did, and at
// what Get, Job and History tell.
//
// The rules are those of package schedule: ticks, missed ones, grace, overlap, jitter, retries, Snooze, Discard, crashes, keys, priorities, limits, unique
// jobs, edits and pauses. What a planner and the SQL functions do in production is done in memory here; tests run both side by side through the same random
// sequences, and compare what became of each tick. Differences:
//
//   - Nothing is late by itself. A job is run at the instant at which it is due, and a run takes no time, unless its handler calls [Scheduler.Sleep].
//   - One process runs at a time. [Scheduler.Crash], [Scheduler.Outage] and [Scheduler.Deploy] have another follow it. So a Limit is reached only by handlers that call Sleep, and what finds no slot begins when one of its kind has ended.
//   - A handler of InTx gets a transaction of the test's own choice, see [Scheduler.Transactions]; without one its statements fail. What the
//     transaction does to the handler's schedule and jobs is there in any case: all is committed together, or nothing.
//   - Where a transaction would wait for another that is under way, it fails at once with what the database's lock_timeout raises, SQLSTATE 55P03.
//   - The history is kept for good. WithSchema, WithoutMigration and WithRetention mean nothing, and WithMaxRunning is 10 by default.
//   - The contexts of handlers end by the time of the test, and have no deadline.
package scheduletest

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/schedule"
)

// Group is the name of the group.
const Group = "scheduletest"

// A Scheduler is a process that runs schedules and jobs in memory, under a clock that its test moves. Give its embedded *schedule.Scheduler
// to what is tested. Advance, Outage, Deploy and Crash are called by one goroutine, the test's, or as they say by handlers; all else is
// safe for concurrent use. No goroutine is left after the test.
//
// Its Run is not needed. Where what is tested calls it, it puts what was added, and returns when its context ends.
type Scheduler struct {
	*schedule.Scheduler
	process seam.Process
	world   *world

	starting sync.Mutex // guards what follows
	started  bool
}

// New returns a scheduler whose clock shows an instant. Nothing runs before the first Advance, or Run. The options are those of
// schedule.New. Without WithLogger it logs to the test's output. The test fails at once where an option is bad.
func New(t testing.TB, at time.Time, opts ...schedule.Option) *Scheduler {
	t.Helper()
	w := newWorld(t, at)
	s := w.newProcess(nil, opts)
	t.Cleanup(func() {
		w.kill(0)
		w.rest()
	})
	return s
}

func (w *world) newProcess(tables any, opts []schedule.Option) *Scheduler {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			a.Value = slog.TimeValue(w.time())
		}
		return a
	}}))
	p, err := seam.Rehearse(Group, &w.stage, tables, append([]schedule.Option{schedule.WithLogger(log)}, opts...))
	if err != nil {
		w.t.Fatal(err)
	}
	s := &Scheduler{Scheduler: p.Scheduler().(*schedule.Scheduler), process: p, world: w}
	w.mu.Lock()
	w.of = s
	w.mu.Unlock()
	return s
}

// Now is what the clock shows, in UTC and whole microseconds.
func (s *Scheduler) Now() time.Time { return s.world.time() }

// Transactions sets what begins the transactions of handlers, such as the Begin of a test's pool, or of one transaction that the test rolls
// back in the end. A transaction is begun with the handler's first statement, and committed or rolled back by what becomes of the run,
// before that is seen. Without it, each statement of a handler is an error.
func (s *Scheduler) Transactions(begin func(context.Context) (pgx.Tx, error)) {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.world.begin = begin
}

// Tx returns a transaction for EnqueueTx and PutTx outside of handlers. What they put is there once it is committed; its other statements
// and its end are those of tx, which may be nil: then other statements fail. In a transaction that is neither this nor a handler's, what
// EnqueueTx and PutTx put is there at once, whatever becomes of the transaction.
func (s *Scheduler) Tx(tx pgx.Tx) pgx.Tx { return s.process.Tx(tx) }

// Enqueuer returns what NewEnqueuer does, for code that only puts jobs.
func (s *Scheduler) Enqueuer() *schedule.Enqueuer { return s.process.Enqueuer().(*schedule.Enqueuer) }

// Advance moves the clock on by d, 0 or more, and runs what is due on the way and in the end, each at its instant. The first call puts what
// was added, before anything else. A handler that sleeps for longer goes on in the next call. The test fails at once where
// schedule.Scheduler.Run would return an error.
func (s *Scheduler) Advance(d time.Duration) {
	s.world.t.Helper()
	s.AdvanceTo(s.Now().Add(max(0, d)))
}

// AdvanceTo is Advance up to an instant; it moves no clock back.
func (s *Scheduler) AdvanceTo(t time.Time) {
	s.world.t.Helper()
	s.drives("Advance", func() { s.world.drive(t) })
}

// Outage has nothing run for d: the process ends, as [Scheduler.Deploy] says, and one with the same code follows when d has passed. What
// was due meanwhile is late then: it is run, or missed, by the next Advance.
func (s *Scheduler) Outage(d time.Duration) {
	s.world.t.Helper()
	s.drives("Outage", func() {
		w, end := s.world, s.Now().Add(max(0, d))
		w.drain()
		w.set(end)
		w.own()
	})
}

// Deploy ends the process, and returns another, which takes its place: its code registers kinds and adds schedules anew. It finds the
// schedules, the jobs, the history and the clock as they were. Of the process before only what reads and edits is of use then. Runs that
// are under way, as their handlers sleep, go on until they end, up to the limit of WithDrain; the clock moves on meanwhile.
func (s *Scheduler) Deploy(opts ...schedule.Option) (next *Scheduler) {
	s.world.t.Helper()
	next = s
	s.drives("Deploy", func() {
		s.world.drain()
		next = s.world.newProcess(s.process.Tables(), opts)
	})
	return next
}

// Crash ends the process at once, as kill -9 would: nothing of its runs that is not committed is ever. A process with the same code follows
// after a while, 0 or more. Where a handler calls it, or what a handler calls, it does not return: the goroutine ends, its deferred
// functions are run.
func (s *Scheduler) Crash(down time.Duration) {
	if s.world.inside() != nil {
		s.world.crash(down)
	}
	s.drives("Crash", func() { s.world.kill(down) })
}

// Sleep is for handlers that take time: it returns when the clock shows so much more, or ctx has ended, with its cause. Meanwhile others
// run, the run of the schedule is under way, and its Timeout comes nearer. It is called by the handler's own goroutine, mostly in what a
// test has in the place of something slow. Elsewhere it returns an error at once, and the test fails: whether a handler waits for what it
// has started, or goes on, nobody knows.
func (s *Scheduler) Sleep(ctx context.Context, d time.Duration) error {
	return s.world.sleep(ctx, max(0, d))
}

// Entries returns what became of the ticks of a schedule, the oldest first: History the other way round.
func (s *Scheduler) Entries(name string) []schedule.Entry {
	s.world.t.Helper()
	var entries []schedule.Entry
	for e, err := range s.History(context.Background(), name) {
		if err != nil {
			s.world.t.Fatal(err)
		}
		entries = append(entries, e)
	}
	slices.Reverse(entries)
	return entries
}

// start puts what the code declares, and has the process own all.
func (s *Scheduler) start(ctx context.Context) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.started {
		return nil
	}
	if err := s.process.Start(ctx); err != nil {
		return err
	}
	s.started = true
	s.world.own()
	return nil
}

// drives calls what moves the time, in a process that is there.
func (s *Scheduler) drives(call string, f func()) {
	w := s.world
	w.t.Helper()
	w.mu.Lock()
	switch {
	case w.of != s:
		w.mu.Unlock()
		w.t.Fatalf("scheduletest: %s of a process that Deploy has ended: call that of the next", call)
	case w.driven:
		w.mu.Unlock()
		w.t.Errorf(
			"scheduletest: %s was called while the time moves: a handler calls Sleep or Crash, in its own goroutine, and one goroutine everything else",
			call,
		)
		return // and ends no goroutine: a handler may wait for it
	}
	w.driven = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.driven = false
	}()
	defer w.rest()
	if err := s.start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	f()
}
