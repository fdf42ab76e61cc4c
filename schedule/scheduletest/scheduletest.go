// Package scheduletest runs schedules and jobs under a clock that a test moves, on a database of
// the test's own and without waiting, for tests of an application's handlers, rules and policies.
//
// A test makes a [Scheduler] with [New], gives the *schedule.Scheduler in it to the code that it
// tests, which registers kinds and adds schedules as in production, and moves the time on with
// [Scheduler.Advance]. What is due on the way is run, in order, at exactly its instant, before
// Advance returns: a week of an hourly schedule takes less than a second. Then the test looks at
// what the handlers did, in the database and elsewhere, and at what Get, Job and History tell.
//
// # The database
//
// New takes a pool, as schedule.New does. Each New makes the tables in a new schema, whose name
// begins with scheduletest_, and drops it when the test ends. The role of the pool needs the right
// to create schemas in its database. The application's tables are where its statements find them,
// with the pool's search_path. Such a pool can lead to:
//
//   - the database that an environment variable names, such as DATABASE_URL: on a developer's
//     machine a local server, in CI a service container, such as the image postgres under services
//     in GitHub Actions or GitLab CI;
//   - a container that the test starts itself, with
//     github.com/testcontainers/testcontainers-go/modules/postgres or github.com/ory/dockertest;
//   - a server without a container, with github.com/fergusstrange/embedded-postgres.
//
// All tests of a package can share one pool, also those that run in parallel: their schemas are
// different. Tests that share tables of the application cannot run in parallel, unless each has a
// database or a search_path of its own.
//
// # Differences from production
//
// The handlers, their transactions and all SQL of package schedule run as in production. Only two
// SQL functions are made for tests: the one that tells the time, and one that gives all partitions
// to the process of the test, without a client, a heartbeat and a TTL. So a debugger may stop the
// test for as long as it likes.
//
//   - Nothing is late by itself. A job is run at the instant at which it is due, and a run takes no
//     time: so runs never overlap, no tick is skipped for one, and no WithTimeout, drain or
//     WithMaxConcurrent is reached.
//   - now() in a handler's own SQL is the real time. [Scheduler.Now] is the test's, and
//     schedule.Run has the times of the tick.
//   - One process runs at a time, and one handler. [Scheduler.Crash], [Scheduler.Outage] and
//     [Scheduler.Deploy] have another process follow it.
//   - A statement waits for a lock for 100 ms, of real time: mostly what has the lock waits for the
//     test.
//   - The backoff between attempts is exact.
//   - The history is kept for good. WithSchema, WithoutMigration and WithRetention mean nothing.
package scheduletest

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/schedule"
)

// Group is the name of the group.
const Group = "scheduletest"

// A Scheduler is a process that runs schedules and jobs under a clock that its test moves. Give its
// embedded *schedule.Scheduler to what is tested. Advance, Outage, Deploy and Crash are called by
// one goroutine, the test's, or as they say by handlers; all else is safe for concurrent use. No
// goroutine is left after the test.
//
// Its Run is not needed. Where what is tested calls it, it puts what was added, and returns when
// its context ends.
type Scheduler struct {
	*schedule.Scheduler
	process seam.Process
	world   *world

	starting sync.Mutex // guards what follows
	started  bool
}

// New returns a scheduler whose clock shows an instant. Nothing runs before the first Advance, or
// Run. The options are those of schedule.New. Without WithLogger it logs to the test's output. The
// pool has 2 connections or more; it is not closed, and is to be open until the test has ended:
// close it with t.Cleanup, before New. The test fails at once where an option is bad, or the
// database refuses.
func New(t testing.TB, pool *pgxpool.Pool, at time.Time, opts ...schedule.Option) *Scheduler {
	t.Helper()
	w := newWorld(t, pool, at)
	w.must(w.open())
	s := w.newProcess(opts)
	t.Cleanup(func() { w.crash(0) })
	return s
}

func (w *world) newProcess(opts []schedule.Option) *Scheduler {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			a.Value = slog.TimeValue(w.time())
		}
		return a
	}}))
	var p seam.Process
	w.must(w.ask(func(ctx context.Context) (err error) {
		p, err = seam.Rehearse(ctx, w.pool, w.schema, Group, &w.stage, append([]schedule.Option{schedule.WithLogger(log)}, opts...))
		return err
	}))
	s := &Scheduler{Scheduler: p.Scheduler().(*schedule.Scheduler), process: p, world: w}
	w.mu.Lock()
	w.of = s
	w.mu.Unlock()
	return s
}

// Now is what the clock shows, in UTC and whole microseconds.
func (s *Scheduler) Now() time.Time { return s.world.time() }

// Enqueuer returns what NewEnqueuer does, for code that only puts jobs.
func (s *Scheduler) Enqueuer() *schedule.Enqueuer {
	s.world.t.Helper()
	e, err := schedule.NewEnqueuer(s.world.pool, Group, schedule.WithSchema(s.world.schema))
	s.world.must(err)
	return e
}

// Advance moves the clock on by d, 0 or more, and runs what is due on the way and in the end, each
// at its instant. The first call puts what was added, before anything else. The test fails at once
// where schedule.Scheduler.Run would return an error.
func (s *Scheduler) Advance(d time.Duration) {
	s.world.t.Helper()
	s.AdvanceTo(s.Now().Add(max(0, d)))
}

// AdvanceTo is Advance up to an instant; it moves no clock back.
func (s *Scheduler) AdvanceTo(t time.Time) {
	s.world.t.Helper()
	s.drives("Advance", func() { s.world.drive(t) })
}

// Outage has nothing run for d: the process ends, as [Scheduler.Deploy] says, and one with the same
// code follows when d has passed. What was due meanwhile is late then: it is run, or missed, by the
// next Advance.
func (s *Scheduler) Outage(d time.Duration) {
	s.world.t.Helper()
	s.drives("Outage", func() {
		w, end := s.world, s.Now().Add(max(0, d))
		w.drain()
		w.set(end)
		w.must(w.own())
	})
}

// Deploy ends the process, and returns another, which takes its place: its code registers kinds and
// adds schedules anew. It finds the schedules, the jobs, the history and the clock as they were. Of
// the process before only what reads and edits is of use then.
func (s *Scheduler) Deploy(opts ...schedule.Option) (next *Scheduler) {
	s.world.t.Helper()
	next = s
	s.drives("Deploy", func() {
		s.world.drain()
		next = s.world.newProcess(opts)
	})
	return next
}

// Crash ends the process at once, as kill -9 would: nothing of its runs that is not committed is
// ever. A process with the same code follows after a while, 0 or more. Where a handler calls it, or
// what a handler calls, it does not return: the goroutine ends, its deferred functions are run, and
// the contexts of the process's handlers end.
func (s *Scheduler) Crash(down time.Duration) {
	w := s.world
	w.mu.Lock()
	inHandler := w.runs
	w.mu.Unlock()
	if inHandler {
		w.crash(down)
		runtime.Goexit()
	}
	s.drives("Crash", func() { w.crash(down) })
}

// Entries returns what became of the ticks of a schedule, and of its runs besides, the oldest
// first: History the other way round.
func (s *Scheduler) Entries(name string) []schedule.Entry {
	s.world.t.Helper()
	var entries []schedule.Entry
	for e, err := range s.History(context.Background(), name, 0) {
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
	if err := s.world.own(); err != nil {
		return err
	}
	s.started = true
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
			"scheduletest: %s was called while the time moves: a handler calls Crash alone, and one goroutine everything else",
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
	if err := s.start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	f()
}
