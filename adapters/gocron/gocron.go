package gocron

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/wrap"
	"github.com/pgleases/pgleases/lock"
)

// ErrNotLeader is returned by Elector.IsLeader if this process does not own the lease.
var ErrNotLeader = errors.New("pgleases: not the leader")

// An Elector runs the jobs of a scheduler if this process owns partition 0 of a lease. Pass it to
// gocron.WithDistributedElector.
type Elector struct{ lease *pgleases.Lease }

// NewElector returns the elector of a lease, which should have one partition.
func NewElector(lease *pgleases.Lease) Elector { return Elector{lease} }

// IsLeader returns nil if this process owns the lease now, and otherwise ErrNotLeader. It reads the
// clock and memory only.
func (e Elector) IsLeader(context.Context) error {
	if !e.lease.Owns(0) {
		return fmt.Errorf("lease %q: %w", e.lease.Name(), ErrNotLeader)
	}
	return nil
}

// A Locker runs each run of a job in one process. Pass it to gocron.WithDistributedLocker, and
// attach the scheduler.
type Locker struct {
	locks     *lock.Locks
	keep      time.Duration
	scheduler gocron.Scheduler
}

// NewLocker returns a locker that keeps the lock of each run for some time after the run's time,
// and after the period of a DurationJob. Choose more than the clocks of your processes differ, and
// more than a process is late: a minute is ample. A job with a run each second then has about 60
// locks.
func NewLocker(locks *lock.Locks, keep time.Duration) *Locker {
	return &Locker{locks: locks, keep: keep}
}

// Attach sets the scheduler whose jobs the locker locks. Call it once, before Scheduler.Start.
func (l *Locker) Attach(scheduler gocron.Scheduler) { l.scheduler = scheduler }

// Lock acquires the lock of a job's present run. It returns an error that wraps lock.ErrHeld if
// another process runs it or has run it.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	if l.scheduler == nil {
		return nil, fmt.Errorf("pgleases: lock job %q: no scheduler is attached: call Locker.Attach", key)
	}
	type answer struct {
		name string
		end  time.Time
		err  error
	}
	// While the scheduler stops, it answers no question, and waits for this call. Then ctx ends.
	answers := make(chan answer, 1)
	go func() {
		name, end, err := l.run(key)
		answers <- answer{name, end, err}
	}()
	var run answer
	select {
	case run = <-answers:
	case <-ctx.Done():
		run.err = context.Cause(ctx)
	}
	if run.err != nil {
		return nil, wrap.Errorf("pgleases: lock job %q: %w", key, run.err)
	}
	held, err := l.locks.TryAcquire(ctx, run.name)
	if err != nil {
		return nil, err
	}
	return kept{held, run.end.Add(l.keep)}, nil
}

// early is how far a clock may have been set back since a timer was set for a run.
const early = 100 * time.Millisecond

// run returns the name of the lock of a job's present run, and until when other processes have a
// tick of it.
func (l *Locker) run(key string) (lock string, end time.Time, err error) {
	var job gocron.Job
	for _, j := range l.scheduler.Jobs() {
		if j.Name() == key {
			if job != nil {
				return "", end, errors.New("two jobs have this name: give each its own with gocron.WithName")
			}
			job = j
		}
	}
	if job == nil {
		return "", end, gocron.ErrJobNotFound
	}
	if differs(job.Schedule()) {
		return "", end, errors.New("this job has other times in each process: use an Elector")
	}
	// A job in singleton mode may list times that it has skipped.
	times, err := job.NextRuns(100)
	if err != nil {
		return "", end, err
	}
	now := time.Now()
	var at time.Time // the last time that has passed
	for _, t := range times {
		if !t.IsZero() && !t.After(now.Add(early)) {
			at = t
		}
	}
	if at.IsZero() { // RunNow: no other process has this run
		return name(key+"/"+job.ID().String(), now), now, nil
	}
	if schedule, ok := job.Schedule().(gocron.DurationJobSchedule); ok {
		at = at.Truncate(schedule.Duration)
		return name(key, at), at.Add(schedule.Duration), nil
	}
	return name(key, at), at, nil
}

// differs reports whether a job's times depend on the start of its process. The periods of a
// DurationJob do not.
func differs(schedule gocron.JobSchedule) bool {
	switch s := schedule.(type) {
	case gocron.CronJobSchedule:
		return strings.Contains(s.Crontab, "@every")
	case gocron.DailyJobSchedule:
		return s.Interval > 1
	case gocron.WeeklyJobSchedule:
		return s.Interval > 1
	case gocron.MonthlyJobSchedule:
		return s.Interval > 1
	}
	return schedule.JobType() == gocron.DurationRandomJobType
}

func name(key string, at time.Time) string {
	return "gocron/" + key + "@" + at.UTC().Format(time.RFC3339Nano)
}

// kept is a lock that is held until the end of the job and until a time.
type kept struct {
	held  *lock.Held
	until time.Time
}

// Unlock releases the lock at that time, or when the client closes. It does not wait for the
// database.
func (k kept) Unlock(context.Context) error {
	release := func() { _ = k.held.Release(context.Background()) } // if it fails, the client continues
	timer := time.AfterFunc(time.Until(k.until), release)
	context.AfterFunc(k.held.Context(), func() {
		timer.Stop()
		release()
	})
	return nil
}
