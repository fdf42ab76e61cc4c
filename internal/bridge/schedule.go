package bridge

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Package schedule sets these variables.
var (
	// DeleteSchedule is Delete of a *schedule.Scheduler, for the schedule with this ID. It returns
	// schedule.ErrNotFound if another schedule has the name by now.
	DeleteSchedule func(ctx context.Context, scheduler any, name string, id int64) error

	// Lateness returns how late the calls of a *schedule.Scheduler were, by kind.
	Lateness func(scheduler any) map[string]Delays

	// Rehearse returns a *schedule.Scheduler without a client, as a process that package
	// scheduletest drives, on the tables in a schema. The options are of type []schedule.Option.
	Rehearse func(
		ctx context.Context, pool *pgxpool.Pool, schema, group string, stage *Stage, options any,
	) (Process, error)
)

// DelayBounds are the bounds of Delays.Within, in order.
var DelayBounds = [...]time.Duration{
	5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 5 * time.Minute, time.Hour,
}

// Delays are the delays from due times to calls of handlers.
type Delays struct {
	Count  int64
	Within [len(DelayBounds)]int64 // how many were no later than the bound of the same index
}

// A Stage is the time of schedulers that a test drives. The test sets the time of the database too.
type Stage struct {
	Now func() time.Time
	// Wait replaces Scheduler.Run.
	Wait func(context.Context) error
}

// A Process is a scheduler that a test drives: the test decides what runs, and when, one at a time.
type Process interface {
	Scheduler() any // a *schedule.Scheduler
	Partitions() int
	// Start writes the schedules that the code declares. Call it once.
	Start(context.Context) error
	// Own gives all partitions to the process, under an epoch that the tables have. The ownerships end
	// with life.
	Own(life context.Context, epoch int64) error
	// Drain notes that all runs have ended before the process does.
	Drain()
	// Step runs the first thing that is due, and returns it. If nil, no run was due; then next is when
	// the first will be due; zero: never.
	Step(context.Context) (ran any, next time.Time, err error)
}
