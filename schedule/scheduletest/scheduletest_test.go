package scheduletest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/scheduletest"
)

func TestMain(m *testing.M) {
	code := 1
	err := inDatabase(func() { code = m.Run() })
	if err == nil && code == 0 {
		err = testkit.Leftover()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// inDatabase calls f while DATABASE_URL leads to a database with the application's tables.
func inDatabase(f func()) error {
	ctx := context.Background()
	url, drop, err := pgtest.NewDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = drop() }()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE TABLE closings (night timestamptz)")
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	between := "?"
	if strings.Contains(url, "?") {
		between = "&"
	}
	if err := os.Setenv("DATABASE_URL", url+between+"pool_max_conns=12"); err != nil {
		return err
	}
	f()
	return nil
}

var shown func(*testing.T, *pgxpool.Pool)

func TestExampleHolds(t *testing.T) {
	t.Parallel()
	Example()
	shown(t, newPool(t))
}

var midnight = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

type args struct{ N int }

func expect(t testing.TB, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// outcomes returns the outcomes of a schedule's entries, with the number of ticks of each.
func outcomes(s *scheduletest.Scheduler, name string) string {
	var list []string
	for _, e := range s.Entries(name) {
		list = append(list, fmt.Sprintf("%s %d", e.Outcome, e.Ticks))
	}
	return strings.Join(list, ", ")
}

// notes has what handlers did, in order.
type notes []string

func (n *notes) note(format string, args ...any) { *n = append(*n, fmt.Sprintf(format, args...)) }

// noting is a handler that notes its runs.
func (n *notes) noting(s *scheduletest.Scheduler) func(context.Context, pgx.Tx, schedule.Run[args]) error {
	return func(_ context.Context, _ pgx.Tx, r schedule.Run[args]) error {
		n.note("%s %d for %s at %s", r.Name, r.Args.N, r.At.Format("15:04:05"), s.Now().Format("15:04:05"))
		return nil
	}
}

func TestAdvanceRunsInOrder(t *testing.T) {
	t.Parallel()
	s := scheduletest.New(t, newPool(t), midnight)
	var did notes
	k := schedule.InTx(s.Scheduler, "k", did.noting(s))
	testkit.OK(t, k.Add("hour", args{1}, schedule.Cron("0 * * * *", "UTC")))
	testkit.OK(t, k.Add("half", args{2}, schedule.Every(40*time.Minute)))
	s.Advance(0)
	testkit.Must(k.Enqueue(t.Context(), args{3}, schedule.WithDelay(time.Hour), schedule.WithPriority(3)))(t)
	taken := schedule.WithUnique("job", schedule.OnConflictReject)
	testkit.Must(k.Enqueue(t.Context(), args{4}, schedule.WithTime(midnight), taken))(t)
	s.Advance(0)
	s.Advance(time.Hour + 20*time.Minute)
	expect(t, "runs", strings.Join(did, "; "), "job 4 for 00:00:00 at 00:00:00; half 2 for 00:40:00 at 00:40:00; "+
		" 3 for 01:00:00 at 01:00:00; hour 1 for 01:00:00 at 01:00:00; half 2 for 01:20:00 at 01:20:00")
	expect(t, "the clock", s.Now(), midnight.Add(80*time.Minute))
	taken = schedule.WithUnique("again", schedule.OnConflictReject)
	testkit.Must(k.Enqueue(t.Context(), args{}, taken))(t)
	if _, err := k.Enqueue(t.Context(), args{}, taken); !errors.Is(err, schedule.ErrExists) {
		t.Fatalf("a unique key that is taken: %v", err)
	}
}

func TestProcessThatCrashesIsFollowedByAnother(t *testing.T) {
	t.Parallel()
	s := scheduletest.New(t, newPool(t), midnight)
	var did notes
	var crashes int
	kill := func(r schedule.Run[args]) {
		did.note("%s attempt %d, crashes %d, epoch %d", r.Name, r.Attempt, r.Crashes, r.Epoch)
		if crashes++; crashes%2 == 1 {
			s.Crash(time.Minute)
		}
	}
	in := schedule.InTx(s.Scheduler, "in", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		kill(r)
		return nil
	})
	once := schedule.AtMostOnce(s.Scheduler, "once", func(_ context.Context, r schedule.Run[args]) error {
		kill(r)
		return nil
	})
	always := schedule.AtLeastOnce(s.Scheduler, "always", func(_ context.Context, r schedule.Run[args]) error {
		kill(r)
		return nil
	})
	testkit.OK(t, in.Add("in", args{}, schedule.Cron("0 1 * * *", "UTC")))
	testkit.OK(t, once.Add("once", args{}, schedule.Cron("0 2 * * *", "UTC")))
	testkit.OK(t, always.Add("always", args{}, schedule.Cron("0 3 * * *", "UTC")))
	s.Advance(90 * time.Minute)
	expect(t, "in", outcomes(s, "in"), "succeeded 1")
	expect(t, "the time of its end", s.Entries("in")[0].EndedAt, midnight.Add(61*time.Minute))
	s.Advance(time.Hour)
	expect(t, "once", outcomes(s, "once"), "unknown 1")
	crashes = 0
	s.Advance(time.Hour)
	expect(t, "always", outcomes(s, "always"), "succeeded 1")
	expect(t, "runs", strings.Join(did, "\n"), `in attempt 1, crashes 0, epoch 1
in attempt 1, crashes 0, epoch 2
once attempt 1, crashes 0, epoch 2
always attempt 1, crashes 0, epoch 3
always attempt 1, crashes 0, epoch 4`)
}

func TestJobThatCrashesProcessesFails(t *testing.T) {
	t.Parallel()
	s := scheduletest.New(t, newPool(t), midnight)
	calls := 0
	k := schedule.InTx(s.Scheduler, "k", func(context.Context, pgx.Tx, schedule.Run[args]) error {
		calls++
		s.Crash(0)
		return nil
	}, schedule.WithMaxCrashes(3))
	s.Advance(0)
	id := testkit.Must(k.Enqueue(t.Context(), args{}))(t)
	s.Advance(time.Hour)
	j := testkit.Must(s.Job(t.Context(), id))(t)
	expect(t, "outcome", j.Outcome, schedule.OutcomeFailed)
	expect(t, "calls", calls, 4)
}

func TestDeployKeepsState(t *testing.T) {
	t.Parallel()
	s := scheduletest.New(t, newPool(t), midnight)
	var did notes
	declare := func(s *scheduletest.Scheduler, version string, also bool) *schedule.Kind[args] {
		k := schedule.InTx(s.Scheduler, "k", func(_ context.Context, _ pgx.Tx, r schedule.Run[args]) error {
			did.note("%s by %s", r.Name, version)
			return nil
		})
		testkit.OK(t, k.Add("kept", args{}, schedule.Every(time.Hour)))
		if also {
			testkit.OK(t, k.Add("dropped", args{}, schedule.Every(time.Hour)))
		}
		return k
	}
	k := declare(s, "v1", true)
	s.Advance(50 * time.Minute)
	testkit.OK(t, k.Put(t.Context(), "put", args{}, schedule.Every(time.Hour)))
	s.Advance(10 * time.Minute)
	next := s.Deploy(schedule.WithDrainTimeout(10 * time.Second))
	declare(next, "v2", false)
	expect(t, "the clock", next.Now(), midnight.Add(time.Hour))
	next.Advance(time.Hour)
	expect(t, "runs", strings.Join(did, "; "), "dropped by v1; kept by v1; put by v2; kept by v2")
	dropped := testkit.Must(next.Get(t.Context(), "dropped"))(t)
	if !strings.Contains(dropped.Why, "only another version of the code declares it") {
		t.Fatalf("what the code declares no more waits for %q", dropped.Why)
	}
	expect(t, "epochs", next.Entries("kept")[1].Epoch, 2)
}

func TestHandlerPutsAreCommittedWithRun(t *testing.T) {
	t.Parallel()
	s := scheduletest.New(t, newPool(t), midnight)
	var fails bool
	var did notes
	sub := schedule.InTx(s.Scheduler, "sub", did.noting(s))
	main := schedule.JobsOf[args](s.Enqueuer(), "main")
	schedule.InTx(s.Scheduler, "main", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		testkit.Must(sub.EnqueueTx(ctx, tx, args{1}))(t)
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := sub.EnqueueTx(ctx, tx, args{2}, schedule.WithUnique("two", schedule.OnConflictReject))
			return err
		})
		testkit.OK(t, err)
		err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			testkit.Must(sub.EnqueueTx(ctx, tx, args{3}))(t)
			return errors.New("rolled back")
		})
		expect(t, "the error of a savepoint", err, "rolled back")
		testkit.OK(t, sub.PutTx(ctx, tx, "put", args{4}, schedule.Every(time.Hour)))
		if _, err := s.Get(ctx, "put"); !errors.Is(err, schedule.ErrNotFound) {
			t.Errorf("it is seen before it is committed: %v", err)
		}
		if fails {
			return errors.New("the handler fails")
		}
		return nil
	})
	s.Advance(0)
	for _, fails = range []bool{true, false} {
		testkit.Must(main.Enqueue(t.Context(), args{}))(t)
		s.Advance(time.Second)
		if fails {
			expect(t, "runs after one that failed", len(did), 0)
		}
	}
	expect(t, "runs", strings.Join(did, "; "), " 1 for 00:00:01 at 00:00:01; two 2 for 00:00:01 at 00:00:01")
	testkit.Must(s.Get(t.Context(), "put"))(t)
}

// Each test has its own schema, which is dropped at its end.
func TestTheSchemaIsDropped(t *testing.T) {
	pool := newPool(t)
	schemas := func() (n int) {
		const all = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'scheduletest%'"
		testkit.OK(t, pool.QueryRow(t.Context(), all).Scan(&n))
		return n
	}
	before := schemas()
	t.Run("two at once", func(t *testing.T) {
		for range 2 {
			s := scheduletest.New(t, pool, midnight)
			k := schedule.InTx(s.Scheduler, "k", func(context.Context, pgx.Tx, schedule.Run[args]) error { return nil })
			testkit.OK(t, k.Add("k", args{}, schedule.Every(time.Hour)))
			s.Advance(time.Hour)
			expect(t, "outcomes", outcomes(s, "k"), "succeeded 1")
		}
		expect(t, "schemas", schemas(), before+2)
	})
	expect(t, "schemas", schemas(), before)
}

// A week of an hourly schedule takes some round trips for each tick, however long the real time of each.
func TestWeekTakesFewRoundTrips(t *testing.T) {
	wire := new(testkit.Wire)
	pool := testkit.Pool(t, os.Getenv("DATABASE_URL"), wire.Carry)
	s := scheduletest.New(t, pool, midnight)
	k := schedule.InTx(s.Scheduler, "k", func(context.Context, pgx.Tx, schedule.Run[args]) error { return nil })
	testkit.OK(t, k.Add("k", args{}, schedule.Cron("0 * * * *", "UTC")))
	s.Advance(0)
	before, began := wire.Counted(), time.Now()
	s.Advance(7 * 24 * time.Hour)
	n := wire.Counted() - before
	t.Logf("%v, %d round trips", time.Since(began), n)
	expect(t, "ticks", len(s.Entries("k")), 168)
	if each := float64(n) / 168; each > 6 {
		t.Errorf("%.1f round trips for each tick", each)
	}
}

// fails runs a test that fails, and returns what it logs.
func fails(t *testing.T, test func(t testing.TB)) string {
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() { // FailNow ends it
		defer close(done)
		test(f)
	}()
	<-done
	return f.all()
}

func TestHandlerThatSnoozesForNoTimeIsFoundOut(t *testing.T) {
	t.Parallel()
	said := fails(t, func(f testing.TB) {
		s := scheduletest.New(f, newPool(f), midnight)
		snooze := func(context.Context, pgx.Tx, schedule.Run[args]) error { return schedule.Snooze(0) }
		k := schedule.InTx(s.Scheduler, "k", snooze)
		testkit.OK(t, k.Add("k", args{}, schedule.Every(time.Hour)))
		s.Advance(2 * time.Hour)
	})
	if !strings.Contains(said, "snooze for 0 s") {
		t.Fatalf("the test logged %q", said)
	}
}

func TestMisspelledScheduleIsFoundOut(t *testing.T) {
	t.Parallel()
	said := fails(t, func(f testing.TB) {
		s := scheduletest.New(f, newPool(f), midnight)
		k := schedule.InTx(s.Scheduler, "k", func(context.Context, pgx.Tx, schedule.Run[args]) error { return nil })
		testkit.OK(t, k.Add("close", args{}, schedule.Every(time.Hour)))
		s.Advance(0)
		expect(t, "entries before the first tick", len(s.Entries("close")), 0)
		s.Entries("colse")
	})
	if !strings.Contains(said, `"colse"`) || !strings.Contains(said, "not found") {
		t.Fatalf("the test logged %q", said)
	}
}

// failing is a test that fails.
type failing struct {
	testing.TB

	mu   sync.Mutex // guards what follows
	said []string
}

func (f *failing) all() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.said, "; ")
}

func (f *failing) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}
func (f *failing) Fatal(args ...any) { f.Fatalf("%s", fmt.Sprint(args...)) }

// Extra runs have the zone of the schedule's rule. A retry has the zone, the window and the
// idempotency key of its tick, even if the schedule was edited or deleted since.
func TestExtraRunsKeepZoneWindowAndKey(t *testing.T) {
	t.Parallel()
	s := scheduletest.New(t, newPool(t), time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC))
	var did notes
	keys := make(map[string]int)
	k := schedule.AtLeastOnce(s.Scheduler, "k", func(_ context.Context, r schedule.Run[args]) error {
		key := r.IdempotencyKey()
		if keys[key] == 0 {
			keys[key] = len(keys) + 1
		}
		from := r.From.Format("2 Jan 06 15:04")
		did.note("%s %s from %s, key %d", r.Trigger, r.Local.Format("2 15:04 MST"), from, keys[key])
		if r.At.Day() == 27 {
			return nil
		}
		return errors.New("no paper")
	})
	testkit.OK(t, k.Put(t.Context(), "day", args{}, schedule.Cron("0 0 * * *", "Europe/Berlin")))
	s.Advance(48 * time.Hour)
	testkit.OK(t, k.Put(t.Context(), "day", args{1}, schedule.Cron("0 0 * * *", "America/New_York")))
	retry := testkit.Must(s.RetryTick(t.Context(), "day", time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC)))(t)
	s.Advance(time.Second)
	testkit.Must(s.Trigger(t.Context(), "day"))(t)
	s.Advance(time.Second)
	testkit.Must(s.Backfill(t.Context(), "day", s.Now().Add(-24*time.Hour), s.Now().Add(-time.Hour)))(t)
	s.Advance(time.Second)
	testkit.OK(t, s.Delete(t.Context(), "day"))
	testkit.Must(s.Retry(t.Context(), retry))(t)
	s.Advance(time.Second)
	job := testkit.Must(k.Enqueue(t.Context(), args{}, schedule.WithUnique("inv-7", schedule.OnConflictReject)))(t)
	s.Advance(time.Second)
	job = testkit.Must(s.Retry(t.Context(), job))(t)
	s.Advance(time.Second)
	testkit.Must(s.Retry(t.Context(), job))(t)
	testkit.Must(k.Enqueue(t.Context(), args{2}, schedule.WithUnique("inv-7", schedule.OnConflictReplace)))(t)
	s.Advance(time.Second)
	expect(t, "runs", "\n"+strings.Join(did, "\n"), `
tick 28 00:00 CET from 1 Jan 01 00:00, key 1
tick 29 00:00 CET from 27 Mar 26 23:00, key 2
retry 29 00:00 CET from 27 Mar 26 23:00, key 2
manual 29 08:00 EDT from 1 Jan 01 00:00, key 3
backfill 29 00:00 EDT from 28 Mar 26 12:00, key 4
retry 29 00:00 CET from 27 Mar 26 23:00, key 2
job 29 12:00 UTC from 1 Jan 01 00:00, key 5
retry 29 12:00 UTC from 1 Jan 01 00:00, key 5
retry 29 12:00 UTC from 1 Jan 01 00:00, key 6`)
}

// A run whose schedule is being edited runs again after the commit of the edit, with the new
// arguments. Until then it is retried once a second of the test's time.
func TestRunLockedByAnEditIsRunAgain(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{nil, errors.New("it fails")} {
		pool := newPool(t)
		s := scheduletest.New(t, pool, midnight)
		calls := 0
		in := schedule.InTx(s.Scheduler, "in", func(_ context.Context, _ pgx.Tx, r schedule.Run[args]) error {
			if calls++; r.Args.N == 1 {
				return nil
			}
			return fails
		})
		testkit.OK(t, in.Add("in", args{}, schedule.Every(time.Hour)))
		s.Advance(0)
		tx := testkit.Must(pool.Begin(context.Background()))(t)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // an error: it has ended
		testkit.OK(t, in.PutTx(t.Context(), tx, "in", args{1}, schedule.Every(time.Hour)))
		s.Advance(time.Hour + 2*time.Second)
		expect(t, "outcomes while an edit is under way", outcomes(s, "in"), "")
		expect(t, "calls, one each second", calls, 3)
		testkit.OK(t, tx.Commit(t.Context()))
		s.Advance(time.Second)
		expect(t, "outcomes", outcomes(s, "in"), "succeeded 1")
	}
}

// A handler may have many goroutines, any of which may crash the process.
func TestCrashInHandlersGoroutine(t *testing.T) {
	t.Parallel()
	s := scheduletest.New(t, newPool(t), midnight)
	var causes []error
	k := schedule.AtLeastOnce(s.Scheduler, "k", func(ctx context.Context, r schedule.Run[args]) error {
		if len(causes) > 0 {
			return nil
		}
		go func() {
			s.Crash(time.Minute)
			t.Error("Crash returned")
		}()
		<-ctx.Done()
		causes = append(causes, context.Cause(ctx))
		return nil
	})
	testkit.OK(t, k.Add("k", args{}, schedule.Every(time.Hour)))
	s.Advance(time.Hour + time.Minute)
	expect(t, "causes", causes, []error{pgleases.ErrTrustLost})
	expect(t, "outcomes", outcomes(s, "k"), "succeeded 1")
	expect(t, "the time of its end", s.Entries("k")[0].EndedAt, midnight.Add(61*time.Minute))
}

// While the time moves, only Crash may be called. Other calls fail the test, and do not hang.
func TestAdvanceInAHandlerIsFoundOut(t *testing.T) {
	t.Parallel()
	f := &failing{TB: t}
	s := scheduletest.New(f, newPool(f), midnight)
	k := schedule.InTx(s.Scheduler, "k", func(context.Context, pgx.Tx, schedule.Run[args]) error {
		s.Advance(time.Second)
		return nil
	})
	testkit.OK(t, k.Add("k", args{}, schedule.Every(time.Hour)))
	s.Advance(time.Hour)
	expect(t, "outcomes", outcomes(s, "k"), "succeeded 1")
	if said := f.all(); !strings.Contains(said, "Advance was called while the time moves") {
		t.Errorf("the test logged %q", said)
	}
}
