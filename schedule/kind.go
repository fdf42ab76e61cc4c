package schedule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Kind is a handler with a name, which the database stores. The schedules and jobs of a kind run
// in processes that register its name. All methods are safe for concurrent use.
type Kind[Args any] struct {
	Jobs[Args]
	kind *kind
}

// A Run is one call of a handler.
type Run[Args any] struct {
	Trigger Trigger   // the reason for the run
	Name    string    // of the schedule; of a job: its unique key, or empty
	Job     int64     // the ID of the job; 0: a tick of a schedule
	Key     string    // runs of one key do not overlap, see WithKey
	Args    Args      // of the schedule or job
	At      time.Time // the tick, or the At of the job; not the time of the call
	// At in the zone of the schedule's rule, also in the runs of Trigger, Backfill and RetryTick. A
	// retry keeps the zone of the tick if the rule has changed. In UTC: a job without a schedule
	Local time.Time
	// The last tick that had succeeded, so the window to process is From to At. A retry has the From
	// of its tick; a backfill has the tick before. Zero: no tick had succeeded, or the run is of
	// Trigger or Enqueue
	From   time.Time
	Missed int64 // how many missed ticks this run stands for, besides its own
	// Attempt counts from 1, over all processes, see WithMaxAttempts. It does not count attempts
	// that the database broke off, or whose process crashed.
	Attempt int
	Crashes int // processes that crashed while it ran, without the first: see WithMaxCrashes

	Partition int   // of the key
	Epoch     int64 // of the ownership of Partition: a fencing token

	outside *outside // of AtLeastOnce and AtMostOnce
}

// A Trigger is the reason for a run.
type Trigger string

const (
	TriggerTick     Trigger = "tick"     // a tick of a schedule
	TriggerJob      Trigger = "job"      // Enqueue
	TriggerManual   Trigger = "manual"   // Scheduler.Trigger
	TriggerBackfill Trigger = "backfill" // Scheduler.Backfill
	TriggerRetry    Trigger = "retry"    // Scheduler.Retry and RetryTick
)

// A kind is a Kind as the scheduler runs it.
type kind struct {
	name   string
	calls  calls
	limits limits
	counts kindCounts
	// slotsMade is true if the slots of its limit are known to exist.
	slotsMade atomic.Bool
	// parse reads arguments, and returns a function that calls the handler with them.
	parse func(json.RawMessage) (boundHandler, error)
}

// A boundHandler is a handler with its arguments.
type boundHandler func(context.Context, pgx.Tx, Run[json.RawMessage]) error

// InTx registers a handler that works in a transaction, at the isolation level READ COMMITTED. What
// it writes there commits together with the schedule's step to the next tick and with the history,
// under the guard of the partition. So the effects of each tick in this database exist exactly
// once.
//
// The handler returns nil to commit the transaction, and must not end it. If it returns an error or
// panics, the transaction is rolled back. WithMaxAttempts decides whether the tick runs again or
// has failed. See also Discard, Snooze and Unavailable. If a handler ended its transaction anyway,
// it is not called again for the tick, because its work may be committed. If the database broke off
// the transaction, the handler is called again. It is called up to 3 times after a serialization
// failure or a deadlock, and up to 5 times after a lost connection. Effects outside of the database
// are then repeated. The same holds if ctx ends or the process crashes.
//
// The context ends with ErrTimeout, with ErrCanceled, with ErrDrained, or with the ownership of the
// partition, and context.Cause returns which. The transaction's lock_timeout is 5 s, its
// statement_timeout is WithTimeout plus 1 s, and its idle_in_transaction_session_timeout is
// WithIdleTimeout. The handler may change them. If one of them ends the transaction, that is an
// error of the handler. So is a context of the handler's own that ends during a statement. The
// error that the handler returns must wrap the error of the statement. Otherwise the connection
// seems lost, and the handler is called again. The commit may take as long as WithTimeout, and at
// least 10 s. A handler that sets a role must reset it, because the run is recorded with the rights
// at the end of the transaction.
//
// Args are stored as JSON. Register all kinds before Run. A schedule or job is blocked, and not
// late, while its process does not know its kind. A registration fails if the name is taken, empty
// or longer than 255 bytes, or if an option is invalid. Run and every method of the Kind then
// return the error.
func InTx[Args any](
	s *Scheduler, name string, handler func(ctx context.Context, tx pgx.Tx, r Run[Args]) error, opts ...KindOption,
) *Kind[Args] {
	return register(s, &kind{name: name}, handler, opts)
}

// register registers a kind.
func register[Args any](
	s *Scheduler, k *kind, handler func(context.Context, pgx.Tx, Run[Args]) error, opts []KindOption,
) *Kind[Args] {
	k.parse = func(text json.RawMessage) (_ boundHandler, err error) {
		defer handlers.Caught(&err)
		var args Args
		err = copied(json.Unmarshal(text, &args))
		return func(ctx context.Context, tx pgx.Tx, r Run[json.RawMessage]) error {
			return handler(ctx, tx, Run[Args]{r.Trigger, r.Name, r.Job, r.Key, args, r.At, r.Local, r.From, r.Missed,
				r.Attempt, r.Crashes, r.Partition, r.Epoch, r.outside})
		}, err
	}
	var err error
	k.limits, err = newLimits(opts)
	if s.db.staged {
		k.limits.backoff, k.limits.exact = worker.WithoutJitter(k.limits.backoff), true
	}
	if handler == nil {
		err = errors.Join(err, errors.New("handler is nil"))
	}
	if !k.calls.repeatable() && k.limits.attempts > 1 {
		err = errors.Join(err, errors.New(
			"WithMaxAttempts is not valid for AtMostOnce, which never calls a handler again",
		))
	}
	s.registry.register(k, errors.Join(checkName("kind", k.name), err))
	return &Kind[Args]{Jobs[Args]{s, k.name, func() error { return s.registry.registered(k) }}, k}
}

// Add declares a schedule in the code. Run stores it, and edits it as Put does if it exists
// already. After a failover of the database, processes store it again if the new server lacks it.
// It runs only in processes whose code declares it. If no process of the group declares it any
// more, it is blocked, and never deleted. Schedule.DeclaredAt says since when. When a process
// starts that declares it again, its policies decide about the ticks that passed. Call Add before
// Run. It returns an error for an invalid argument, a name that was added before, or a call after
// Run.
func (k *Kind[Args]) Add(name string, args Args, rule Rule, opts ...ScheduleOption) error {
	r, err := k.row(name, args, rule, opts)
	if err == nil {
		r.Declared = true
		err = k.scheduler.registry.declare(r)
	}
	if err != nil {
		return wrap.Errorf("schedule: add schedule %q: %w", name, err)
	}
	return nil
}

// Put creates a schedule, or edits the schedule of this name in the group, which may be of another
// kind. Its first tick is the first tick of the rule after now. A new rule also begins now, so
// passed ticks of the old rule that have not run are canceled, except a tick that is running. Other
// edits take effect at the next run. If all is equal, Put does not write. A paused schedule stays
// paused. After Put, a schedule that the code declared is no longer declared.
func (k *Kind[Args]) Put(ctx context.Context, name string, args Args, rule Rule, opts ...ScheduleOption) error {
	return k.put(ctx, k.scheduler.ownTx(), name, args, rule, opts)
}

// PutTx is Put in the caller's transaction, of any isolation level. The schedule exists once that
// is committed. PutTx locks the schedule's row until then, so edits of the schedule wait for the
// transaction. A run of the schedule waits for about as long as its handler took, 5 s at most. Then
// it is rolled back, and runs again when the row is free. Call PutTx as late in the transaction as
// you can. Put several schedules in the order of their names, because two transactions with
// different orders can deadlock. If a transaction that is not visible to this one created the
// schedule, PutTx fails with SQLSTATE 40001.
func (k *Kind[Args]) PutTx(
	ctx context.Context, tx pgx.Tx, name string, args Args, rule Rule, opts ...ScheduleOption,
) error {
	return k.put(ctx, callersTx(tx), name, args, rule, opts)
}

func (k *Kind[Args]) put(ctx context.Context, in inTx, name string, args Args, rule Rule, opts []ScheduleOption) error {
	r, err := k.row(name, args, rule, opts)
	if err == nil {
		err = in(ctx, func(ctx context.Context, tx pgx.Tx) error { return k.scheduler.put(ctx, tx, r, rule) })
	}
	if err != nil {
		return wrap.Errorf("schedule: put schedule %q: %w", name, err)
	}
	return nil
}

// row returns the schedule that the caller wants.
func (k *Kind[Args]) row(name string, args Args, rule Rule, opts []ScheduleOption) (*scheduleRow, error) {
	text, err := writtenArgs(args)
	err = errors.Join(k.check(), cmp.Or(rule.Err(), err))
	if err != nil {
		return nil, err
	}
	r := &scheduleRow{row: row{Name: name, Key: name, Kind: k.kind.name, Rule: rule.String()}}
	r.Args = json.RawMessage(text)
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("option is nil")
		}
		opt(r)
	}
	return r, r.check()
}

// writtenArgs returns arguments as the database stores them.
func writtenArgs(args any) (string, error) {
	text, err := json.Marshal(args)
	if err == nil && nul.Match(text) {
		err = fmt.Errorf("%.100s has a NUL in a string, which the database cannot store", text)
	}
	if err != nil {
		return "", fmt.Errorf("arguments: %w", err)
	}
	return string(text), nil
}

// nul matches a NUL in a JSON string: \u0000 with one backslash. An escaped backslash has two.
var nul = regexp.MustCompile(`(?:^|[^\\])(?:\\\\)*\\u0000`)
