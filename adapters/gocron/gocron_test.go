package gocron

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/lock"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// naive is a Locker as most are: the lock has the job's name, and ends with the job.
type naive struct{ locks *lock.Locks }

func (n naive) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	held, err := n.locks.TryAcquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return naiveLock{held}, nil
}

type naiveLock struct{ held *lock.Held }

func (n naiveLock) Unlock(ctx context.Context) error {
	return n.held.Release(context.WithoutCancel(ctx))
}

// Two processes start 0.7 s apart, and each has 6 ticks of a job. With the Locker the job runs once in
// each period of 2 s. The naive locker shows that the test sees runs too many.
func TestLockerRunsEachTickOnce(t *testing.T) {
	t.Parallel()
	const every, ticks, apart = 2 * time.Second, 6, 700 * time.Millisecond
	ours := func(locks *lock.Locks) gocron.Locker { return NewLocker(locks, time.Minute) }
	for name, test := range map[string]struct {
		locker   func(*lock.Locks) gocron.Locker
		phase    time.Duration // of the first process, in a period
		min, max int32
	}{
		"ours":               {ours, 300 * time.Millisecond, ticks, ticks},
		"ours, in 7 periods": {ours, 1700 * time.Millisecond, ticks + 1, ticks + 1},
		"naive":              {func(locks *lock.Locks) gocron.Locker { return naive{locks} }, 300 * time.Millisecond, ticks + 1, 2 * ticks},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
			lockers := []gocron.Locker{test.locker(lock.New(clients.New(t, pool), pool)), test.locker(lock.New(clients.New(t, pool), pool))}
			var ran, refused atomic.Int32
			var schedulers []gocron.Scheduler
			start := time.Now().Truncate(every).Add(every + test.phase)
			for i, locker := range lockers {
				s := scheduler(t, gocron.WithDistributedLocker(locker))
				first := start.Add(time.Duration(i) * apart)
				testkit.Must(s.NewJob(gocron.DurationJob(every), gocron.NewTask(func() { ran.Add(1) }), gocron.WithName("report"),
					gocron.WithStartAt(gocron.WithStartDateTime(first)), gocron.WithStopAt(gocron.WithStopDateTime(first.Add(ticks*every-every/2))),
					gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
						if refused.Add(1); !errors.Is(err, lock.ErrHeld) {
							t.Error(err)
						}
					}))))(t)
				if l, ok := locker.(*Locker); ok {
					l.Attach(s)
				}
				s.Start()
				schedulers = append(schedulers, s)
			}
			for _, s := range schedulers {
				testkit.Until(t, "its ticks are over", func() bool { return len(s.Jobs()) == 0 })
			}
			testkit.Until(t, "each tick ran or was refused", func() bool { return ran.Load()+refused.Load() == 2*ticks })
			t.Logf("%d runs in %d ticks of two processes", ran.Load(), ticks)
			if n := ran.Load(); n < test.min || n > test.max {
				t.Errorf("%d runs, want %d to %d", n, test.min, test.max)
			}
		})
	}
}

// A kept lock does not delay Close, and RunNow takes no scheduled run away.
func TestLockerCloseAndRunNow(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	client := clients.New(t, pool)
	locker := NewLocker(lock.New(client, pool), time.Hour)
	ran := make(chan struct{}, 100)
	s := scheduler(t, gocron.WithDistributedLocker(locker))
	locker.Attach(s)
	job := testkit.Must(s.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(func() { ran <- struct{}{} }), gocron.WithName("hourly")))(t)
	s.Start()
	for range 2 {
		testkit.OK(t, job.RunNow())
		testkit.Receive(t, "RunNow runs it", ran)
	}
	if n := locks(t, pool); n != 2 {
		t.Errorf("%d locks are kept, want 2", n)
	}
	next := testkit.Must(job.NextRun())(t)
	if taken := testkit.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pgleases.locks WHERE name = $1)", name("hourly", next.Truncate(time.Hour))); taken {
		t.Error("RunNow has the lock of the next run")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	testkit.OK(t, client.Close(ctx))
	if n := locks(t, pool); n != 0 {
		t.Errorf("%d locks are left, want none", n)
	}
}

// A job whose runs cannot be known is refused, not run in each process.
func TestLockerRefusesUnknownRuns(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	locker := NewLocker(lock.New(clients.New(t, pool), pool), time.Minute)
	if _, err := locker.Lock(t.Context(), "any"); err == nil {
		t.Error("a locker without a scheduler locked a job")
	}
	s := scheduler(t, gocron.WithDistributedLocker(locker))
	locker.Attach(s)
	nothing := gocron.NewTask(func() {})
	testkit.Must(s.NewJob(gocron.DurationRandomJob(time.Second, time.Minute), nothing, gocron.WithName("random")))(t)
	for range 2 {
		testkit.Must(s.NewJob(gocron.DurationJob(time.Minute), nothing, gocron.WithName("twice")))(t)
	}
	for _, key := range []string{"random", "twice", "absent"} {
		if _, err := locker.Lock(t.Context(), key); err == nil {
			t.Errorf("job %q was locked", key)
		}
	}
}

// Jobs run on the owner only. When it closes, they run on the other process.
func TestElectorRunsOnOwner(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	type process struct {
		client     *pgleases.Client
		asked, ran atomic.Int32
	}
	start := func() *process {
		p := &process{client: clients.New(t, pool)}
		lease := testkit.Must(p.client.Lease(t.Context(), "cron", 1, pgleases.WithHandoffDelay(0)))(t)
		elector := asked{NewElector(lease), &p.asked}
		s := scheduler(t, gocron.WithDistributedElector(elector))
		testkit.Must(s.NewJob(gocron.DurationJob(20*time.Millisecond), gocron.NewTask(func() { p.ran.Add(1) })))(t)
		s.Start()
		return p
	}
	one := start()
	testkit.Until(t, "the first process leads", func() bool { return one.ran.Load() > 0 })
	two := start()
	testkit.Until(t, "both were asked", func() bool { return one.ran.Load() > 5 && two.asked.Load() > 5 })
	if n := two.ran.Load(); n > 0 {
		t.Errorf("the process that does not lead ran %d jobs", n)
	}
	clients.Close(t, one.client)
	testkit.Until(t, "the second process leads", func() bool { return two.ran.Load() > 0 })
	ran, before := one.ran.Load(), one.asked.Load()
	testkit.Until(t, "the first process is asked again", func() bool { return one.asked.Load() > before+5 })
	if n := one.ran.Load(); n > ran {
		t.Errorf("the process that led ran %d more jobs", n-ran)
	}
}

type asked struct {
	gocron.Elector
	times *atomic.Int32
}

func (a asked) IsLeader(ctx context.Context) error {
	a.times.Add(1)
	return a.Elector.IsLeader(ctx)
}

func scheduler(t *testing.T, options ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s := testkit.Must(gocron.NewScheduler(options...))(t)
	t.Cleanup(func() { testkit.OK(t, s.Shutdown()) })
	return s
}

func locks(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return testkit.Value[int](t, pool, "SELECT count(*) FROM pgleases.locks")
}
