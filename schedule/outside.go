package schedule

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/handlers"
)

// This file calls handlers with effects outside of the database. Such effects cannot be exactly
// once.

// calls says how often a handler is called for a tick.
type calls int

const (
	inTransaction calls = iota
	atLeastOnce
	atMostOnce
)

// inTransaction reports whether a call is in the transaction that records its outcome.
func (c calls) inTransaction() bool { return c == inTransaction }

// repeatable reports whether a call may be repeated if its outcome is not known.
func (c calls) repeatable() bool { return c != atMostOnce }

// outside has the fields of a Run that only handlers outside of a transaction get.
type outside struct {
	key     string
	guarded func(context.Context, func(pgx.Tx) error) error
}

// AtLeastOnce registers a handler with effects outside of this database. It is called for each tick
// or job until it returns nil, or until the run has failed by WithMaxAttempts, WithMaxCrashes or
// Discard. A commit before each call records that it begins, and a commit after the call records
// its outcome. If the process crashes or is cut off in between, another process calls the handler
// again, with the same IdempotencyKey and a higher Epoch. Calls of one key overlap only if a
// process was cut off, and its handler continues after the end of ctx.
//
// The call holds no connection, and costs three transactions. WithTimeout, WithMaxAttempts and
// WithMaxCrashes apply as for InTx; WithIdleTimeout applies to Run.Guarded. Errors of the
// registration are returned as for InTx.
func AtLeastOnce[Args any](
	s *Scheduler, name string, handler func(ctx context.Context, r Run[Args]) error, opts ...KindOption,
) *Kind[Args] {
	return outsideKind(s, name, atLeastOnce, handler, opts)
}

// AtMostOnce registers a handler with effects outside of this database, which is called at most
// once for each tick or job. If it returns an error, this says that it had no effect. The run has
// then failed, and Retry calls it again. The outcome is OutcomeUnknown if the process crashes or is
// cut off before the outcome is committed, or if the handler panics. It is also unknown if the
// handler returns an error after WithDrainTimeout or WithTimeout has ended its context. A handler
// that has had no effect yet may return Discard, and has failed even then. It may also return
// Snooze or Unavailable, and is then called again.
//
// The record of a call says that it is made at most once. So the handler is not called again for
// the tick after a deploy that registers the kind with InTx or AtLeastOnce.
//
// A commit with synchronous_commit = on records the call before it is made. A failover to an
// asynchronous standby may lose that record, and the handler is called once more. For at most once
// over failovers too, use a synchronous standby.
//
// The call holds no connection. WithTimeout applies as for InTx, and WithIdleTimeout to
// Run.Guarded. WithMaxCrashes has no effect, and WithMaxAttempts is an error. Errors of the
// registration are returned as for InTx.
func AtMostOnce[Args any](
	s *Scheduler, name string, handler func(ctx context.Context, r Run[Args]) error, opts ...KindOption,
) *Kind[Args] {
	return outsideKind(s, name, atMostOnce, handler, opts)
}

func outsideKind[Args any](
	s *Scheduler, name string, n calls, handler func(context.Context, Run[Args]) error, opts []KindOption,
) *Kind[Args] {
	var inTx func(context.Context, pgx.Tx, Run[Args]) error
	if handler != nil {
		inTx = func(ctx context.Context, _ pgx.Tx, r Run[Args]) error { return handler(ctx, r) }
	}
	return register(s, &kind{name: name, calls: n}, inTx, opts)
}

// IdempotencyKey returns a key of the tick or job. It is the same for each call of its handler,
// even for those of Retry, RetryTick and RetryFailed. No other tick or job of the group has it,
// even after a failover. A job that was replaced has another key, and so has each run of Trigger
// and Backfill. Pass it to a service that processes each key once. It has up to 350 bytes. For InTx
// it is empty.
func (r Run[Args]) IdempotencyKey() string {
	if r.outside == nil {
		return ""
	}
	return r.outside.key
}

// Guarded runs f in a transaction and commits it, for steps in this database of handlers of
// AtLeastOnce and AtMostOnce. The transaction has the isolation level READ COMMITTED, the guard of
// the partition, and the limits of a run of InTx. f must not end the transaction, and must not
// call Guarded again. If another process owns the partition by now, Guarded returns
// pgleases.ErrNotOwner. It is safe for concurrent use.
func (r Run[Args]) Guarded(ctx context.Context, f func(tx pgx.Tx) error) error {
	if r.outside == nil {
		return errors.New(
			"schedule: Guarded is for handlers of AtLeastOnce and AtMostOnce: use the transaction of InTx",
		)
	}
	if f == nil {
		return errors.New("schedule: guarded: the function is nil; pass the one that works in the transaction")
	}
	return r.outside.guarded(ctx, f)
}

// openTransactions are those of the calls of Guarded of one handler.
type openTransactions struct {
	mu     sync.Mutex // guards the following fields
	all    map[*handlers.Transaction]bool
	isLate bool
}

// add adds a transaction until the caller calls end.
func (o *openTransactions) add(tx *handlers.Transaction) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = make(map[*handlers.Transaction]bool)
	}
	o.all[tx] = true
	if o.isLate {
		tx.Late()
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.all, tx)
	}
}

// late gives others what the transactions hold, and those that begin later.
func (o *openTransactions) late() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isLate = true
	for tx := range o.all {
		tx.Late()
	}
}

// callOutside calls a handler outside of a transaction, and records its outcome.
func (e *execution) callOutside(a *attempt) result {
	run := e.run(a)
	open := new(openTransactions)
	guarded := func(ctx context.Context, f func(pgx.Tx) error) error {
		l := e.kind.limits
		opening := e.db.open(new(runnable), e.item.subject, e.id, l.timeout+time.Second, l.idle)
		return e.fromHandler(ctx, e.item.lane, e.o.Partition, opening, func(tx *handlers.Transaction) error {
			defer open.add(tx)()
			return f(tx.ForHandler())
		})
	}
	run.outside = &outside{a.of.idempotencyKey(e.db.group, run.At), guarded}
	ctx, cancel := e.limited()
	defer cancel()
	err := e.call(ctx, nil, open.late, a, run)
	life := e.writing() // record what was done, even if runs must end
	written := false
	switch {
	case e.canceled():
		e.runLogger(a).Info("schedule: run canceled")
	case err == nil:
		a.decided.done()
		written = e.recordOutcome(life, a)
	case e.o.ctx.Err() != nil && e.kind.calls.repeatable() && !decisive(err): // the next owner calls it again
		e.logBrokenOff(a)
	default:
		cut := ctx.Err() != nil || errors.As(err, new(handlers.CutShort))
		a.decided.doubtful = cut && !e.kind.calls.repeatable() && !decisive(err)
		if context.Cause(ctx) == ErrTimeout {
			err = timedOut{err}
		}
		a.handler = err
		written = e.recordFailure(life, a, err)
	}
	if !written {
		return e.unsettled(abandoned)
	}
	return e.settled(a)
}

// idempotencyKey identifies a tick, and its retries.
func (r *scheduleRow) idempotencyKey(group string, at time.Time) string { return r.tickKey(group, at) }

// idempotencyKey identifies a job, and its retries. A job that was replaced has another key. So has
// a job that got the ID of another job, which a failover has lost.
func (r *jobRow) idempotencyKey(group string, at time.Time) string {
	if r.Revision == 0 { // it repeats a tick
		return r.tickKey(group, at)
	}
	return fmt.Sprintf("%s/job/%s/%d", group, r.Nonce, r.Revision)
}

func (r *row) tickKey(group string, at time.Time) string {
	return fmt.Sprintf("%s/schedule/%s/%s", group, r.Nonce, at.UTC().Format(time.RFC3339Nano))
}
