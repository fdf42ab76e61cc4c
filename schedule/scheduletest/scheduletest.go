// Package scheduletest helps you test your handlers, rules and policies. It runs schedules and jobs
// on a database, under a clock that your test moves, so that no test waits for the night:
//
//	s := scheduletest.New(t, pool, time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC))
//	err := register(s.Scheduler) // as in production
//	s.Advance(48 * time.Hour)    // runs all that becomes due
//	entries := s.Entries("close")
//
// A test creates a [Scheduler] with [New]. It passes the embedded *schedule.Scheduler to the code
// under test, which registers kinds and adds schedules as in production. Then it moves the clock
// with [Scheduler.Advance]. Advance runs everything that becomes due, in order, each at exactly its
// instant, before it returns. Each tick costs some milliseconds, on a loaded machine 13 to 17, so a
// week of an hourly schedule takes 1 to 3 s. With a schedule of each minute, start the clock
// shortly before the tick that you test. Then the test checks what the handlers did, in the
// database and elsewhere, and what Get, Job and History return.
//
// # The database
//
// New takes a pool, as schedule.New does. Each New creates the tables in a new schema, whose name
// begins with scheduletest_, and drops it when the test ends. The role of the pool needs the right
// to create schemas in its database. Statements find the application's tables by the pool's
// search_path. The pool can connect to:
//
//   - the database that an environment variable names, for example DATABASE_URL: a local server on
//     a developer's machine, and in CI a service container, for example the image postgres under
//     services in GitHub Actions or GitLab CI;
//   - a container that the test starts, with
//     github.com/testcontainers/testcontainers-go/modules/postgres or github.com/ory/dockertest;
//   - a server without a container, with github.com/fergusstrange/embedded-postgres.
//
// All tests of a package can share one pool, including parallel tests, because each has its own
// schema. Tests that share tables of the application cannot run in parallel, unless each has its
// own database or search_path.
//
// # Differences from production
//
// The handlers, their transactions and all SQL of package schedule run as in production. Only two
// SQL functions are special: one returns the time, and one gives all partitions to the process of
// the test, without a client, a heartbeat and a TTL. So a debugger may stop the test for any time.
//
//   - A job runs at exactly the instant at which it is due, and a run takes no time. So runs never
//     overlap, no tick is skipped for that, and no WithTimeout, WithDrainTimeout or
//     WithMaxConcurrent is reached.
//   - now() in a handler's own SQL is the real time. [Scheduler.Now] is the time of the test, and
//     schedule.Run has the times of the tick.
//   - One process runs at a time, and one handler. After [Scheduler.Crash], [Scheduler.Outage] and
//     [Scheduler.Deploy] another process replaces it.
//   - A statement waits for a lock for 100 ms of real time, because usually the transaction with
//     the lock waits for the test.
//   - The pauses of Backoff are exact.
//   - The history is kept forever. WithSchema, WithoutMigration and WithRetention have no effect.
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

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/schedule"
)

// Group is the name of the group.
const Group = "scheduletest"

// A Scheduler is a process that runs schedules and jobs under the clock of a test. Pass its
// embedded *schedule.Scheduler to the code under test. One goroutine, that of the test, may call
// Advance, Outage, Deploy and Crash; a handler may also call Crash. All other methods are safe for
// concurrent use. No goroutine remains after the test.
//
// A test need not call Run. If the code under test calls Run, it stores what was added, and returns
// when its context ends.
type Scheduler struct {
	*schedule.Scheduler
	process bridge.Process
	world   *world

	starting sync.Mutex // guards started
	started  bool
}

// New returns a Scheduler whose clock shows at. No run begins before the first Advance, or Run. The
// options are those of schedule.New. Without WithLogger it logs to the test's output. The pool has
// at least 2 connections. New does not close it, and it must stay open until the test has ended:
// call t.Cleanup with its Close before New. The test fails at once if an option is invalid, or the
// database returns an error.
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
	worldTime := func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			a.Value = slog.TimeValue(w.time())
		}
		return a
	}
	options := &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: worldTime}
	log := slog.New(slog.NewTextHandler(w.t.Output(), options))
	opts = append([]schedule.Option{schedule.WithLogger(log)}, opts...)
	var p bridge.Process
	w.must(w.ask(func(ctx context.Context) (err error) {
		p, err = bridge.Rehearse(ctx, w.pool, w.schema, Group, &w.stage, opts)
		return err
	}))
	s := &Scheduler{Scheduler: p.Scheduler().(*schedule.Scheduler), process: p, world: w}
	w.mu.Lock()
	w.of = s
	w.mu.Unlock()
	return s
}

// Now returns the time of the test, in UTC and whole microseconds.
func (s *Scheduler) Now() time.Time { return s.world.time() }

// Enqueuer returns a schedule.Enqueuer of the group, for code that only enqueues jobs.
func (s *Scheduler) Enqueuer() *schedule.Enqueuer {
	s.world.t.Helper()
	e, err := schedule.NewEnqueuer(s.world.pool, Group, schedule.WithSchema(s.world.schema))
	s.world.must(err)
	return e
}

// Advance moves the clock on by d, and runs everything that becomes due until then, each at its
// instant. A negative d is 0. The first call stores what was added before it runs anything. The
// test fails at once if schedule.Scheduler.Run would return an error.
func (s *Scheduler) Advance(d time.Duration) {
	s.world.t.Helper()
	s.AdvanceTo(s.Now().Add(max(0, d)))
}

// AdvanceTo is Advance up to t. It never moves the clock back.
func (s *Scheduler) AdvanceTo(t time.Time) {
	s.world.t.Helper()
	s.drives("Advance", func() { s.world.drive(t) })
}

// Outage ends the process, as [Scheduler.Deploy] does, and starts a process with the same code
// after d. The next Advance decides about the ticks that passed in between: they are late, or
// missed.
func (s *Scheduler) Outage(d time.Duration) {
	s.world.t.Helper()
	s.drives("Outage", func() {
		w, end := s.world, s.Now().Add(max(0, d))
		w.drain()
		w.set(end)
		w.must(w.own())
	})
}

// Deploy ends the process, and returns another one in its place, whose code registers kinds and
// adds schedules again. It finds the schedules, the jobs, the history and the clock unchanged. Of
// the process before, only the methods that read and edit can be used then.
func (s *Scheduler) Deploy(opts ...schedule.Option) (next *Scheduler) {
	s.world.t.Helper()
	next = s
	s.drives("Deploy", func() {
		s.world.drain()
		next = s.world.newProcess(opts)
	})
	return next
}

// Crash ends the process at once, like kill -9: its runs that are not committed never will be. A
// process with the same code starts after down; a negative down is 0. If a handler calls Crash, it
// does not return: its goroutine ends with its deferred functions, and the contexts of the
// process's handlers end.
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

// Entries returns the outcomes of a schedule's ticks and of its extra runs, oldest first: History
// in reverse order. The test fails at once if there are none, and no schedule of this name is
// stored. The first Advance or Run stores what was added.
func (s *Scheduler) Entries(name string) []schedule.HistoryEntry {
	s.world.t.Helper()
	var entries []schedule.HistoryEntry
	for e, err := range s.History(context.Background(), name, 0) {
		s.world.must(err)
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		if _, err := s.Get(context.Background(), name); err != nil {
			s.world.t.Fatalf("scheduletest: Entries takes the name of a schedule, Job(ctx, id) the ID of a job: %v",
				err)
		}
	}
	slices.Reverse(entries)
	return entries
}

// start stores what the code declares, and makes the process the owner of all partitions.
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

// drives calls f, which moves the time, unless another process or call does.
func (s *Scheduler) drives(call string, f func()) {
	w := s.world
	w.t.Helper()
	w.mu.Lock()
	switch {
	case w.of != s:
		w.mu.Unlock()
		w.t.Fatalf("scheduletest: %s of a process that Deploy has ended: call it on the Scheduler that Deploy returned",
			call)
	case w.driven:
		w.mu.Unlock()
		w.t.Errorf(
			"scheduletest: %s was called while the time moves: "+
				"a handler may call Crash only, and one goroutine the other methods",
			call,
		)
		return // without ending the goroutine, because a handler may wait for it
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
