//go:build unix

package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/pgleasestest"
	"github.com/pgleases/pgleases/schedule"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// Here the runs are in a database, and what is owned is decided by the test.

// newScheduler returns a scheduler of one job whose only partition it owns.
func newScheduler(t *testing.T, rule schedule.Rule, do func(tick time.Time) error) (*scheduler, *pgleasestest.Lease) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := createTable(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	lease := pgleasestest.NewLease("cron", 1)
	t.Cleanup(lease.Close)
	lease.Gain(0)
	return &scheduler{pool: pool, lease: lease.Lease, jobs: []Job{{
		Name: "job", Schedule: rule,
		Do: func(_ context.Context, _ pgx.Tx, tick time.Time) error { return do(tick) },
	}}}, lease
}

// recordRun has a tick run by an earlier owner.
func recordRun(t *testing.T, s *scheduler, tick time.Time) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), record, "job", tick, 1); err != nil {
		t.Fatal(err)
	}
}

// lastRecorded returns the latest tick that is recorded.
func lastRecorded(t *testing.T, s *scheduler) time.Time {
	t.Helper()
	last, err := s.lastRun(t.Context(), s.jobs[0])
	if err != nil {
		t.Fatal(err)
	}
	return last.UTC()
}

// begin runs the scheduler until the test ends.
func begin(t *testing.T, s *scheduler) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.lease.Run(ctx, s.own) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestTickThatWasRunIsNotRunAgain(t *testing.T) {
	done := 0
	s, _ := newScheduler(t, schedule.Cron("* * * * *", "UTC"), func(time.Time) error { done++; return nil })
	p, _ := s.lease.Partition(0)
	for range 2 {
		if err := s.run(t.Context(), p, s.jobs[0], noon); err != nil {
			t.Error(err)
		}
	}
	if last := lastRecorded(t, s); done != 1 || last != noon {
		t.Errorf("the job was done %d times, the last run is %v", done, last)
	}
}

func TestTickOfAPartitionThatIsNotOwnedIsNotRun(t *testing.T) {
	s, lease := newScheduler(t, schedule.Cron("* * * * *", "UTC"), func(time.Time) error { t.Error("it is"); return nil })
	p, _ := s.lease.Partition(0)
	lease.Expire()
	err := s.run(t.Context(), p, s.jobs[0], noon)
	if last := lastRecorded(t, s); !errors.Is(err, pgleases.ErrNotOwner) || !last.IsZero() {
		t.Errorf("it returned %v, the last run is %v", err, last)
	}
}

func TestTickThatFailedLeavesNothingAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	ticks := make(chan time.Time, 100)
	failed := false
	s, _ := newScheduler(t, schedule.Every(time.Second), func(tick time.Time) error {
		ticks <- tick
		if failed {
			return nil
		}
		failed = true
		return errors.New("broken")
	})
	s.jobs[0].All = true
	begin(t, s)
	first := <-ticks
	if second := <-ticks; second != first {
		t.Errorf("after the tick of %v failed, that of %v was run", first, second)
	}
}

func TestNewOwnerRunsTheLatestTickThatWasMissed(t *testing.T) {
	ticks := make(chan time.Time, 100)
	s, _ := newScheduler(t, schedule.Cron("* * * * *", "UTC"), func(tick time.Time) error { ticks <- tick; return nil })
	recordRun(t, s, time.Now().Truncate(time.Minute).Add(-10*time.Minute))
	began := time.Now()
	begin(t, s)
	tick := <-ticks
	if ended := time.Now(); tick.Before(began.Truncate(time.Minute)) || tick.After(ended) { // a new minute may begin meanwhile
		t.Errorf("between %v and %v the tick of %v was run, not that of the minute", began, ended, tick)
	}
}

func TestNewJobHasMissedNothing(t *testing.T) {
	t.Parallel()
	ticks := make(chan time.Time, 100)
	s, _ := newScheduler(t, schedule.Every(time.Second), func(tick time.Time) error { ticks <- tick; return nil })
	s.jobs[0].All = true
	began := time.Now()
	begin(t, s)
	if tick := <-ticks; !tick.After(began) || tick.After(time.Now()) {
		t.Errorf("the tick of %v was run between %v and %v", tick, began, time.Now())
	}
}

func TestPartitionMovesAfterTheTickInHand(t *testing.T) {
	t.Parallel()
	begun, finish := make(chan struct{}), make(chan struct{})
	s, lease := newScheduler(t, schedule.Every(time.Second), func(time.Time) error {
		close(begun) // a second time it would panic: no tick begins any more
		<-finish
		return nil
	})
	begin(t, s)
	<-begun
	lost := lease.Lose(0)
	select {
	case <-lost:
		t.Error("the partition moved while a job is done")
	case <-time.After(100 * time.Millisecond): // what is not to happen takes less than one
	}
	close(finish)
	<-lost
	if lastRecorded(t, s).IsZero() {
		t.Error("the tick in hand was not recorded")
	}
}
