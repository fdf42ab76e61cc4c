package seam

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Handler begins the name of the function that is the first in the goroutine of each handler.
const Handler = "github.com/pgleases/pgleases/schedule.(*kind).call."

// Rehearse returns a *schedule.Scheduler without a client, as a process, on the tables in a schema. The options are of type []schedule.Option.
// Package schedule sets it.
var Rehearse func(ctx context.Context, pool *pgxpool.Pool, schema, group string, stage *Stage, options any) (Process, error)

// A Stage is the time of schedulers that a test drives. The test sets the time of the database too.
type Stage struct {
	Now func() time.Time
	// Limit ends a context after d, with a cause.
	Limit func(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc)
	// Wait is what Scheduler.Run does.
	Wait func(context.Context) error
}

// A Process is a scheduler that a test drives: the test says what runs, and when. Own and Drain are not called while anything runs.
type Process interface {
	Scheduler() any // a *schedule.Scheduler
	Partitions() int
	MaxRunning() int
	DrainLimit() time.Duration // see schedule.WithDrain
	// Start puts what the code declares. It is called once.
	Start(context.Context) error
	// Own gives all partitions to the process, under an epoch that the tables have. Its runs end with runs, and what it owns with life.
	Own(life, runs context.Context, epoch int64) error
	// Drain notes that all runs have ended before the process does.
	Drain()
	// Limit is how many of a kind run at once; 0: any number.
	Limit(kind string) int
	// Run does what is due of a schedule or a job, and returns when that is done. Known: it is written down when it is due next, or that
	// it is not. Slotless: it did not begin, because as many of its kind run as its limit allows.
	Run(Due) (known, slotless bool)
}

// A Due is a schedule or a job that is due.
type Due struct {
	ID        int64
	Job       bool
	Priority  int
	Partition int
	Key, Kind string
	At        time.Time // when it is due
	Crashes   int       // counted
}
