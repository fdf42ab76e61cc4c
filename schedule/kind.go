package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Kind is a handler under a name, which the database keeps: its schedules run in each process
// that registers the name. All methods are safe for concurrent use.
type Kind[Args any] struct {
	Jobs[Args]
	kind *kind
}

// A Run is what a handler is given about the run.
type Run[Args any] struct {
	Trigger Trigger   // why it runs
	Name    string    // of the schedule; of a job its unique key, or empty
	Job     int64     // of a job, what Enqueue returned; 0: it is a schedule
	Key     string    // under which no other run overlaps with it
	Args    Args      // of the schedule
	At      time.Time // the tick, or the time for which a job was enqueued. Not the time at which it runs
	Local   time.Time // At as the clocks of the schedule's zone show it; of a job, in UTC
	From    time.Time // the last tick that succeeded, so that the window to work on is From to At; zero: none did
	Missed  int64     // how many ticks since the last outcome this run stands for, without its own
	// Attempt counts from 1, over all processes, see WithMaxAttempts. An attempt that the database
	// broke off, or whose process crashed, does not count.
	Attempt int
	Crashes int // how many processes crashed while it ran, without the first

	Partition int   // to which the key belongs
	Epoch     int64 // under which this process owns it: a fencing token

	outside *outside // of AtLeastOnce and AtMostOnce
}

// A Trigger is why a handler is called.
type Trigger string

const (
	TriggerTick     Trigger = "tick"     // a tick of a schedule
	TriggerJob      Trigger = "job"      // Enqueue
	TriggerManual   Trigger = "manual"   // Scheduler.Trigger
	TriggerBackfill Trigger = "backfill" // Scheduler.Backfill
	TriggerRetry    Trigger = "retry"    // Scheduler.Retry and RetryTick
)

// kind is a Kind as the scheduler runs it.
type kind struct {
	name   string
	calls  calls
	limits limits
	counts kindCounts
	// slotsMade is true if the slots of its limit exist, as far as is known.
	slotsMade atomic.Bool
	// parse reads arguments, and returns what calls the handler with them.
	parse func(json.RawMessage) (boundHandler, error)
}

// boundHandler is a handler with the arguments that it is called with.
type boundHandler func(context.Context, pgx.Tx, Run[json.RawMessage]) error

// InTx registers a handler that works in a transaction, at the isolation level READ COMMITTED. What
// it writes there, the schedule's step to the next tick and the history are committed together,
// under the guard of the partition, or not at all. So its effects in this database come exactly
// once for each tick.
//
// The handler returns nil to commit the transaction; it does not end it itself. If it returns an
// error or panics, the transaction is rolled back, and WithMaxAttempts says whether the tick runs
// again or failed; see also Discard and Snooze. A handler that ended its transaction itself is not
// called again for its tick, because its work may stand. If the database broke off the transaction
// (a serialization failure or a deadlock, three times; a lost connection, five times), it is called
// again. Then effects outside of the database are repeated, and also if ctx ends or a process
// crashes.
//
// ctx ends with ErrTimeout and ErrDrained, and with the ownership of the partition; see
// context.Cause. The transaction's lock_timeout is 5 s, its statement_timeout a second more than
// WithTimeout, its idle_in_transaction_session_timeout that of WithIdleTimeout; the handler may set
// others. If one of them ends it, that is the handler's error; so is a context of its own that ends
// in a statement. The error that the handler returns wraps that of the statement: else the
// connection seems lost, and it is called again. The commit may take as long as WithTimeout, and
// 10 s at least. The handler resets a role that it sets: the run is written down with the rights
// that the transaction has in the end.
//
// Args are stored as JSON. Register all kinds before Run: what is blocked because no process knows
// its kind is not late. Each error of a registration (a name that is taken, empty or longer than
// 255 bytes; an option) is returned by Run, and by every method of the Kind.
func InTx[Args any](s *Scheduler, name string, handler func(ctx context.Context, tx pgx.Tx, r Run[Args]) error, opts ...KindOption) *Kind[Args] {
	return register(s, &kind{name: name}, handler, opts)
}

// register registers a kind.
func register[Args any](s *Scheduler, k *kind, handler func(context.Context, pgx.Tx, Run[Args]) error, opts []KindOption) *Kind[Args] {
	k.parse = func(text json.RawMessage) (_ boundHandler, err error) {
		defer caught(&err)
		var args Args
		err = userError(json.Unmarshal(text, &args))
		return func(ctx context.Context, tx pgx.Tx, r Run[json.RawMessage]) error {
			return handler(ctx, tx, Run[Args]{r.Trigger, r.Name, r.Job, r.Key, args, r.At, r.Local, r.From, r.Missed,
				r.Attempt, r.Crashes, r.Partition, r.Epoch, r.outside})
		}, err
	}
	var err error
	k.limits, err = newLimits(opts)
	k.limits.backoff.exact = s.db.staged
	if handler == nil {
		err = errors.Join(err, errors.New("handler is nil"))
	}
	if k.calls == atMostOnce && k.limits.attempts > 1 {
		err = errors.Join(err, errors.New("WithMaxAttempts calls a handler again, and AtMostOnce never does: give one of them"))
	}
	s.registry.register(k, errors.Join(checkName("kind", k.name), err))
	return &Kind[Args]{Jobs[Args]{s, k.name, func() error { return s.registry.registered(k) }}, k}
}

// call calls the handler, in a goroutine that it may end.
func (h boundHandler) call(ctx context.Context, tx pgx.Tx, r Run[json.RawMessage]) error {
	ended := make(chan error, 1)
	go func() {
		err := errors.New("the handler ended its goroutine with runtime.Goexit, as the FailNow of a test does")
		defer func() { ended <- err }()
		defer caught(&err)
		err = userError(h(ctx, tx, r))
	}()
	return <-ended
}

// Add declares a schedule in the code: Run stores it. It runs only in processes whose code declares
// it. If no process of the group declares it any more, it is blocked, see Schedule.DeclaredAt, and
// never deleted. When a process starts that declares it again, it runs by its policy for the time
// that it was blocked. Call Add before Run.
//
// If the schedule exists already, it is edited, see Put.
func (k *Kind[Args]) Add(name string, args Args, rule Rule, opts ...ScheduleOption) error {
	r, err := k.row(name, args, rule, opts)
	if err == nil {
		r.Declared = true
		err = k.scheduler.registry.declare(r)
	}
	if err != nil {
		return fmt.Errorf("schedule: add schedule %q: %w", name, err)
	}
	return nil
}

// Put creates a schedule, or edits the one of the name in the group, which may be of another kind.
// Its first tick is the first of the rule after now. An edit of the rule also begins now: ticks of
// the old rule without a run are canceled, except one that runs now. Other edits hold from the next
// run on. If nothing changes, nothing is written. A schedule that is paused stays paused. A
// schedule that the code declares is Put's from then on.
func (k *Kind[Args]) Put(ctx context.Context, name string, args Args, rule Rule, opts ...ScheduleOption) error {
	return k.put(ctx, k.scheduler.ownTx(ctx), name, args, rule, opts)
}

// PutTx is Put in a transaction of the caller's, of any isolation level: the schedule exists once
// that is committed. It locks the schedule's row until then, so edits and ends of runs wait for the
// transaction: call it as late in the transaction as you can, and in the order of the names. If a
// transaction that is not visible to this one created the schedule, it fails with SQLSTATE 40001,
// as the database would.
func (k *Kind[Args]) PutTx(ctx context.Context, tx pgx.Tx, name string, args Args, rule Rule, opts ...ScheduleOption) error {
	return k.put(ctx, callersTx(tx), name, args, rule, opts)
}

func (k *Kind[Args]) put(ctx context.Context, in inTx, name string, args Args, rule Rule, opts []ScheduleOption) error {
	r, err := k.row(name, args, rule, opts)
	if err == nil {
		err = in(func(tx pgx.Tx) error { return k.scheduler.put(ctx, tx, r, rule) })
	}
	if err != nil {
		return fmt.Errorf("schedule: put schedule %q: %w", name, err)
	}
	return nil
}

// row is a schedule as the caller wants it.
func (k *Kind[Args]) row(name string, args Args, rule Rule, opts []ScheduleOption) (*record, error) {
	if err := errors.Join(k.check(), rule.Err()); err != nil {
		return nil, err
	}
	text, err := writtenArgs(args)
	if err != nil {
		return nil, err
	}
	r := &record{Name: name, Key: name, Kind: k.kind.name, Args: text, Rule: rule.String()}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("option is nil")
		}
		opt(r)
	}
	return r, r.check()
}

// writtenArgs are arguments as the database stores them.
func writtenArgs(args any) (json.RawMessage, error) {
	text, err := json.Marshal(args)
	if err == nil && nul.Match(text) {
		err = fmt.Errorf("%.100s has a NUL in a text, which the database cannot keep", text)
	}
	if err != nil {
		return nil, fmt.Errorf("arguments: %w", err)
	}
	return text, nil
}

// nul is a NUL in a text in JSON, which is written with one backslash; a backslash is written with
// two.
var nul = regexp.MustCompile(`(?:^|[^\\])(?:\\\\)*\\u0000`)
