package seam

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// PartitionFor returns the partition of a key, of so many. Package pgleases sets it.
var PartitionFor func(key string, partitions int) int

// Handler begins the name of the function that is the first in the goroutine of each handler.
const Handler = "github.com/pgleases/pgleases/schedule.(*kind).call."

// Rehearse makes a *schedule.Scheduler without a database, as a process. Tables is what it is to find there, of a process before; nil:
// nothing. The options are of type []schedule.Option. Package schedule sets it.
var Rehearse func(group string, stage *Stage, tables, options any) (Process, error)

// A Stage is where schedulers without a database run: it has the time, and the transactions.
type Stage struct {
	Now func() time.Time
	// Limit has a context end after d, with a cause.
	Limit func(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc)
	// Pause waits for so long before something that was broken off is tried again.
	Pause func(context.Context, time.Duration)
	// Begin begins a transaction of the application's; its errors are the server's.
	Begin func(context.Context) (pgx.Tx, error)
	// Wait is what Scheduler.Run does once all that the code declares is put.
	Wait func(context.Context) error
}

// A Process is one that has a scheduler without a database. Whoever has it says what it does, and when. Of Own, Drain and Die one is called
// at a time; the others may be called by any goroutine.
type Process interface {
	Scheduler() any // a *schedule.Scheduler
	Enqueuer() any  // a *schedule.Enqueuer
	Tables() any
	MaxRunning() int
	DrainLimit() time.Duration // see schedule.WithDrain
	// Start puts what the code declares. It is to be called once.
	Start(context.Context) error
	// Own has the process own everything, under an epoch. Its runs end with ctx, and what it owns with life.
	Own(life, ctx context.Context, epoch int64)
	// Drain notes that all runs have ended before the process does.
	Drain()
	// Due visits what is due up to an instant, in the order of the instants, until visit returns false.
	Due(until time.Time, visit func(Due) bool)
	// Next is when the first is due after an instant; zero: never.
	Next(after time.Time) time.Time
	// Limit is how many of a kind run at once; 0: any number.
	Limit(kind string) int
	// Run does what is due of one of them, and returns when that is done. Known: when it is due is known by that; else, where it still is,
	// a process looks at it again a little later. Slotless: it was not begun, as so many of its kind run as its limit allows.
	Run(Due) (known, slotless bool)
	// Tx has what is put in a transaction be there once that is committed.
	Tx(pgx.Tx) pgx.Tx
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
