// Package seam gives package scheduletest, and no other package, access to package schedule: to a
// scheduler that a test drives.
package seam

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Rehearse returns a *schedule.Scheduler without a client, as a process, on the tables in a schema.
// The options are of type []schedule.Option. Package schedule sets it.
var Rehearse func(ctx context.Context, pool *pgxpool.Pool, schema, group string, stage *Stage, options any) (Process, error)

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
