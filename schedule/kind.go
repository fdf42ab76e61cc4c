package schedule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Kind is a handler under a name, which the database keeps: schedules of it run wherever a process knows it. All methods are safe for
// concurrent use.
type Kind[Args any] struct {
	Jobs[Args]
	kind *kind
}

// A Run is what a handler is told about the run that it is to do.
type Run[Args any] struct {
	Trigger Trigger   // why it runs
	Name    string    // of the schedule; of a job its WithUnique key, or empty
	Job     int64     // of a job, what Enqueue returned; 0: it is a schedule
	Key     string    // under which no other run overlaps with it
	Args    Args      // of the schedule
	At      time.Time // the tick, or the time that a job was put for: what the run is for. Not the time at which it runs
	Local   time.Time // At as the clocks of the schedule's zone show it; of a job, in UTC
	From    time.Time // the last tick that was done, so that the window to work on is From to At; zero: none was.
	Missed  int64     // how many ticks since the last outcome this run stands for besides its own
	// from 1: which attempt at this tick it is, over all processes, see WithMaxAttempts. One that the database broke off, or whose process died, does not count
	Attempt int
	Crashes int // how many processes died while it ran, without the first

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
	// slotsMade tells that the slots of its limit are there, as far as is known.
	slotsMade atomic.Bool
	// parse checks arguments.
	parse func(json.RawMessage) error
	// run calls the handler.
	run func(context.Context, pgx.Tx, Run[json.RawMessage]) error
}

// InTx registers a handler that works in a transaction, at the isolation level READ COMMITTED: what it writes there, the schedule's step to
// the next tick and the history are committed together, under Guard, or nothing of it. So its effects in this database come exactly once
// for each tick. It returns nil to have the transaction committed; it does not end it itself. When it returns an error or panics, nothing
// of it is committed, and WithMaxAttempts says whether the tick is tried again or dead; see Discard and Snooze too. A handler that ended its
// transaction itself is not called again for its tick, as its work may stand. Where the database broke off the transaction (a serialization
// failure or a deadlock, three times; a lost connection, five times) it is called again. Effects outside of the database come more often
// then: where ctx ends or a process dies, too.
//
// ctx ends with ErrTimeout and ErrDrained, and with the ownership of the partition; see context.Cause. The transaction's lock_timeout is 5
// s, its statement_timeout a second more than WithTimeout, its idle_in_transaction_session_timeout that of WithIdleTimeout; the handler may set others for
// itself. Where one of them ends it, that is the handler's error, as is a context of its own that ends in a statement. The commit may
// take as long as WithTimeout, and 10 s at least. A role that it sets it resets: the run is written down with the rights that the transaction has in the end.
//
// Args are kept as JSON. Register all kinds before Run: what waits for a kind that no process knows waits without being late. Every error of a
// registration (a name that is taken, empty or longer than 255 bytes; an option) is returned by Run, and by every method of the Kind.
func InTx[Args any](s *Scheduler, name string, handler func(ctx context.Context, tx pgx.Tx, r Run[Args]) error, opts ...KindOption) *Kind[Args] {
	k := &kind{name: name}
	if handler != nil {
		k.run = func(ctx context.Context, tx pgx.Tx, r Run[json.RawMessage]) error {
			run, err := argued[Args](r)
			if err != nil {
				return err
			}
			return handler(ctx, tx, run)
		}
	}
	return register[Args](s, k, opts)
}

// argued is a run with its arguments as the handler has them.
func argued[Args any](r Run[json.RawMessage]) (Run[Args], error) {
	run := Run[Args]{r.Trigger, r.Name, r.Job, r.Key, *new(Args), r.At, r.Local, r.From, r.Missed, r.Attempt, r.Crashes, r.Partition, r.Epoch, r.outside}
	return run, json.Unmarshal(r.Args, &run.Args)
}

// register registers a kind whose run is set.
func register[Args any](s *Scheduler, k *kind, opts []KindOption) *Kind[Args] {
	k.parse = func(args json.RawMessage) (err error) {
		defer caught(&err)
		return userError(json.Unmarshal(args, new(Args)))
	}
	var err error
	k.limits, err = newLimits(opts)
	k.limits.backoff.exact = s.db.staged
	if k.run == nil {
		err = errors.Join(err, errors.New("handler is nil"))
	}
	if k.calls == atMostOnce && k.limits.attempts > 1 {
		err = errors.Join(err, errors.New("WithMaxAttempts calls a handler again, and AtMostOnce never does: give one of them"))
	}
	s.registry.register(k, errors.Join(checkName("kind", k.name), err))
	return &Kind[Args]{Jobs[Args]{s, k.name, func() error { return s.registry.registered(k) }}, k}
}

// call calls the handler of a kind, in a goroutine that it may end.
func (k *kind) call(ctx context.Context, tx pgx.Tx, r Run[json.RawMessage]) error {
	ended := make(chan error, 1)
	go func() {
		err := errors.New("the handler ended its goroutine with runtime.Goexit, as the FailNow of a test does")
		defer func() { ended <- err }()
		defer caught(&err)
		err = userError(k.run(ctx, tx, r))
	}()
	return <-ended
}

// Add declares a schedule in the code: Run puts it. It runs only where the code declares it. Where no process of the group does any more it
// waits, see Schedule.DeclaredAt, and is never deleted. When a process starts that declares it again it runs by its policy for the time that
// it waited. It is to be called before Run.
//
// Where the schedule exists already it is edited, see Put.
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

// Put makes a schedule, or edits the one of the name in the group, which may be of another kind. Its first tick is the first of the rule after now. An edit of
// the rule begins there too: ticks of the old rule that nobody has run are canceled, but for one that runs now. Other edits hold from the next run on.
// Where nothing is changed, nothing is written. A schedule that is paused stays so. One that the code declares is Put's from then on.
func (k *Kind[Args]) Put(ctx context.Context, name string, args Args, rule Rule, opts ...ScheduleOption) error {
	return k.put(ctx, k.scheduler.ownTx(ctx), name, args, rule, opts)
}

// PutTx is Put in a transaction of the caller's, of any isolation level: the schedule is there once that is committed. It locks the schedule's row
// until then, for which edits and ends of runs wait: call it as late in the transaction as can be, and in the order of the names. Where the
// schedule was made by a transaction that is not visible to this one it fails, with SQLSTATE 40001, as the database would.
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

// writtenArgs are arguments as the database keeps them.
func writtenArgs(args any) (json.RawMessage, error) {
	text, err := json.Marshal(args)
	if err == nil && hasNUL(text) {
		err = fmt.Errorf("%.100s has a NUL in a text, which the database cannot keep", text)
	}
	if err != nil {
		return nil, fmt.Errorf("arguments: %w", err)
	}
	return text, nil
}

// hasNUL reports whether a text in JSON has a NUL, which is written with one backslash; a backslash is written with two.
func hasNUL(text []byte) bool {
	for before, after, found := bytes.Cut(text, []byte(`\u0000`)); found; before, after, found = bytes.Cut(after, []byte(`\u0000`)) {
		if (len(before)-len(bytes.TrimRight(before, `\`)))%2 == 0 {
			return true
		}
	}
	return false
}
