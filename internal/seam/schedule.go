// Package seam is what package scheduletest, and no other, has of package schedule: a scheduler
// that a test drives.
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
	// Wait is what Scheduler.Run does.
	Wait func(context.Context) error
}

// A Process is a scheduler that a test drives: the test says what runs, and when, one at a time.
type Process interface {
	Scheduler() any // a *schedule.Scheduler
	Partitions() int
	// Start puts what the code declares. It is called once.
	Start(context.Context) error
	// Own gives all partitions to the process, under an epoch that the tables have. What it owns ends
	// with life.
	Own(life context.Context, epoch int64) error
	// Drain notes that all runs have ended before the process does.
	Drain()
	// Step does the first of what is due, and returns what that was; nil: nothing was. Then next is when
	// the first is due; zero: never.
	Step(context.Context) (ran any, next time.Time, err error)
}
