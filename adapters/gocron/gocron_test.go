package gocron

import (
	"context"
	"errors"
	"maps"
	"slices"
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
	unkept := func(locks *lock.Locks) gocron.Locker { return naive{locks} }
	for name, test := range map[string]struct {
		locker   func(*lock.Locks) gocron.Locker
		phase    time.Duration // of the first process, in a period
		min, max int32
	}{
		"ours":               {ours, 300 * time.Millisecond, ticks, ticks},
		"ours, in 7 periods": {ours, 1700 * time.Millisecond, ticks + 1, ticks + 1},
		"naive":              {unkept, 300 * time.Millisecond, ticks + 1, 2 * ticks},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
			lockers := []gocron.Locker{
				test.locker(lock.New(clients.New(t, pool), pool)),
				test.locker(lock.New(clients.New(t, pool), pool)),
			}
			var ran, refused atomic.Int32
			var schedulers []gocron.Scheduler
			start := time.Now().Truncate(every).Add(every + test.phase)
			for i, locker := range lockers {
				s := scheduler(t, gocron.WithDistributedLocker(locker))
				first := start.Add(time.Duration(i) * apart)
				last := first.Add(ticks*every - every/2)
				onError := gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
					if refused.Add(1); !errors.Is(err, lock.ErrHeld) {
						t.Error(err)
					}
				})
				testkit.Must(s.NewJob(
					gocron.DurationJob(every),
					gocron.NewTask(func() { ran.Add(1) }),
					gocron.WithName("report"),
					gocron.WithStartAt(gocron.WithStartDateTime(first)),
					gocron.WithStopAt(gocron.WithStopDateTime(last)),
					gocron.WithEventListeners(onError),
				))(t)
				if l, ok := locker.(*Locker); ok {
					l.Attach(s)
				}
				s.Start()
				schedulers = append(schedulers, s)
			}
			for _, s := range schedulers {
				testkit.Until(t, "its ticks are over", func() bool { return len(s.Jobs()) == 0 })
			}
			testkit.Until(t, "each tick ran or was refused", func() bool {
				return ran.Load()+refused.Load() == 2*ticks
			})
			t.Logf("%d runs in %d ticks of two processes", ran.Load(), ticks)
			if n := ran.Load(); n < test.min || n > test.max {
				t.Errorf("%d runs, want %d to %d", n, test.min, test.max)
			}
		})
	}
}

// In singleton mode too a job runs once in each period, also if a run takes longer than a period. (gocron drops
// the last run before a stop time in this mode, so the jobs have none.)
func TestLockerRunsSingletonOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mode  gocron.LimitMode
		takes time.Duration
	}{
		"wait":                  {gocron.LimitModeWait, 0},
		"reschedule":            {gocron.LimitModeReschedule, 0},
		"reschedule, long runs": {gocron.LimitModeReschedule, 2500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const every = time.Second
			pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
			start := time.Now().Truncate(every).Add(every + 200*time.Millisecond)
			type run struct{ process, period int }
			ran, refused := make(chan run, 100), make(chan error, 100)
			for i := range 2 {
				locker := NewLocker(lock.New(clients.New(t, pool), pool), time.Minute)
				s := scheduler(t, gocron.WithDistributedLocker(locker))
				locker.Attach(s)
				first := start.Add(time.Duration(i) * 400 * time.Millisecond)
				report := func(ctx context.Context) {
					ran <- run{i, int(time.Since(start.Truncate(every)) / every)}
					select {
					case <-time.After(test.takes):
					case <-ctx.Done():
					}
				}
				onError := gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { refused <- err })
				testkit.Must(s.NewJob(
					gocron.DurationJob(every),
					gocron.NewTask(report),
					gocron.WithName("report"),
					gocron.WithSingletonMode(test.mode),
					gocron.WithStartAt(gocron.WithStartDateTime(first)),
					gocron.WithEventListeners(onError),
				))(t)
				s.Start()
			}
			periods, processes := map[int]bool{}, map[int]bool{}
			for len(periods) < 5 || test.takes > 0 && len(processes) < 2 {
				r := testkit.Receive(t, "the job runs", ran)
				if periods[r.period] {
					t.Errorf("it ran again in period %d", r.period)
				}
				periods[r.period], processes[r.process] = true, true
			}
			for len(refused) > 0 {
				if err := <-refused; !errors.Is(err, lock.ErrHeld) {
					t.Error(err)
				}
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
	task := gocron.NewTask(func() { ran <- struct{}{} })
	job := testkit.Must(s.NewJob(gocron.DurationJob(time.Hour), task, gocron.WithName("hourly")))(t)
	s.Start()
	for range 2 {
		testkit.OK(t, job.RunNow())
		testkit.Receive(t, "RunNow runs it", ran)
	}
	if n := locks(t, pool); n != 2 {
		t.Errorf("%d locks are kept, want 2", n)
	}
	next := testkit.Must(job.NextRun())(t)
	const exists = "SELECT EXISTS (SELECT FROM pgleases.locks WHERE name = $1)"
	if testkit.Value[bool](t, pool, exists, name("hourly", next.Truncate(time.Hour))) {
		t.Error("RunNow has the lock of the next run")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	testkit.OK(t, client.Close(ctx))
	if n := locks(t, pool); n != 0 {
		t.Errorf("%d locks are left, want none", n)
	}
}

// Without a database, Unlock does not wait: gocron would not begin the job's next run, nor stop.
func TestLockerUnlocksInOutage(t *testing.T) {
	t.Parallel()
	wire := &testkit.Wire{}
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t), wire.Carry)
	held := testkit.Must(lock.New(clients.New(t, pool), pool).TryAcquire(t.Context(), "any"))(t)
	wire.Cut()
	defer wire.Mend()
	unlocked := make(chan error, 1)
	go func() { unlocked <- kept{held, time.Now()}.Unlock(t.Context()) }()
	testkit.OK(t, testkit.Receive(t, "Unlock returns", unlocked))
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
	noon := gocron.NewAtTimes(gocron.NewAtTime(12, 0, 0))
	jobs := map[string]gocron.JobDefinition{
		"random": gocron.DurationRandomJob(time.Second, time.Minute), "every": gocron.CronJob("@every 1h30m", false),
		"two days": gocron.DailyJob(2, noon), "two weeks": gocron.WeeklyJob(2, gocron.NewWeekdays(time.Monday), noon),
		"two months": gocron.MonthlyJob(2, gocron.NewDaysOfTheMonth(1), noon),
	}
	for key, job := range jobs {
		testkit.Must(s.NewJob(job, nothing, gocron.WithName(key)))(t)
	}
	for range 2 {
		testkit.Must(s.NewJob(gocron.DurationJob(time.Minute), nothing, gocron.WithName("twice")))(t)
	}
	for _, key := range slices.AppendSeq([]string{"twice", "absent"}, maps.Keys(jobs)) {
		if _, err := locker.Lock(t.Context(), key); err == nil {
			t.Errorf("job %q was locked", key)
		}
	}
	for key, job := range map[string]gocron.JobDefinition{
		"cron":    gocron.CronJob("0 12 * * *", false),
		"daily":   gocron.DailyJob(1, noon),
		"weekly":  gocron.WeeklyJob(1, gocron.NewWeekdays(time.Monday), noon),
		"monthly": gocron.MonthlyJob(1, gocron.NewDaysOfTheMonth(1), noon),
	} {
		testkit.Must(s.NewJob(job, nothing, gocron.WithName(key)))(t)
		testkit.OK(t, testkit.Must(locker.Lock(t.Context(), key))(t).Unlock(t.Context()))
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
