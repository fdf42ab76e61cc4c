package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file calls handlers whose effects are outside of the database: that cannot be exactly once.

// calls is how often a handler is called for a tick.
type calls int

const (
	inTransaction calls = iota
	atLeastOnce
	atMostOnce
)

// outside is what a handler outside of a transaction has besides.
type outside struct {
	key     string
	guarded func(context.Context, func(pgx.Tx) error) error
}

// AtLeastOnce registers a handler whose effects are outside of this database. It is called for each
// tick or job until it returns nil, or that fails by WithMaxAttempts, WithMaxCrashes or Discard. A
// commit before each call notes that it begins, and a commit after it what came of it. If its
// process crashes or is cut off in between, another calls it again, with the same IdempotencyKey
// and a higher Epoch. Calls under one key overlap only if a process was cut off and does not heed
// ctx, which ends then.
//
// It holds no connection while it runs. Each call costs three transactions. WithTimeout,
// WithMaxAttempts and WithMaxCrashes hold as for InTx; WithIdleTimeout holds in Run.Guarded; errors
// are as there.
func AtLeastOnce[Args any](s *Scheduler, name string, handler func(ctx context.Context, r Run[Args]) error, opts ...KindOption) *Kind[Args] {
	return outsideKind(s, name, atLeastOnce, handler, opts)
}

// AtMostOnce registers a handler whose effects are outside of this database, and that is called at
// most once for each tick or job. If it returns an error, that failed. If its process crashes or is
// cut off before the outcome is committed, the outcome is unknown, see OutcomeUnknown. A run that
// ends by WithDrainTimeout or WithTimeout has the outcome of the handler's return: succeeded for
// nil. It may return Snooze if it has done nothing: then it is called again.
//
// A commit with synchronous_commit on notes before that it is called. A failover to a standby that
// replicates asynchronously may lose that, and the handler is called once more: for at most once
// over failovers too, use a synchronous standby.
//
// It holds no connection while it runs. WithTimeout holds as for InTx, WithIdleTimeout in
// Run.Guarded; WithMaxCrashes has no effect, WithMaxAttempts is an error; errors are as there.
func AtMostOnce[Args any](s *Scheduler, name string, handler func(ctx context.Context, r Run[Args]) error, opts ...KindOption) *Kind[Args] {
	return outsideKind(s, name, atMostOnce, handler, opts)
}

func outsideKind[Args any](s *Scheduler, name string, n calls, handler func(context.Context, Run[Args]) error, opts []KindOption) *Kind[Args] {
	var inTx func(context.Context, pgx.Tx, Run[Args]) error
	if handler != nil {
		inTx = func(ctx context.Context, _ pgx.Tx, r Run[Args]) error { return handler(ctx, r) }
	}
	return register(s, &kind{name: name, calls: n}, inTx, opts)
}

// IdempotencyKey is the same for each call of a handler for one tick or job, and for no other of
// the group, also after a failover: for a service that does what it is asked for under one key
// once. It is a text of up to 350 bytes.
func (r Run[Args]) IdempotencyKey() string {
	if r.outside == nil {
		return ""
	}
	return r.outside.key
}

// Guarded runs f in a transaction, at the isolation level READ COMMITTED, under the guard of the
// partition and with the limits of a run of InTx, and commits it: for steps of handlers of
// AtLeastOnce and AtMostOnce in this database.
// If another process owns the partition by now, it returns pgleases.ErrNotOwner. f does not end the
// transaction itself. Guarded may be called in several goroutines.
func (r Run[Args]) Guarded(ctx context.Context, f func(tx pgx.Tx) error) error {
	if r.outside == nil {
		return errors.New("schedule: Guarded is for handlers of AtLeastOnce and AtMostOnce: one of InTx has its transaction")
	}
	return r.outside.guarded(ctx, f)
}

// callOutside calls a handler outside of a transaction, and writes down what came of it.
func (e *execution) callOutside(a *attempt) result {
	run := e.run(a)
	run.outside = &outside{a.row.idempotencyKey(e.db.group), func(ctx context.Context, f func(pgx.Tx) error) error {
		l := e.kind.limits
		open := e.db.open(new(*record), e.item.subject, e.id, l.timeout+time.Second, l.idle)
		return e.guarded(ctx, e.o.Partition, open, func(tx *transaction) error { return f(handlerTx{tx.Tx, tx}) })
	}}
	ctx, cancel := e.limited()
	defer cancel()
	err := e.call(ctx, nil, a, run)
	life := e.writing() // what was done is written down even if the run was to end
	written := false
	switch {
	case err == nil:
		a.decided.done()
		written = e.recordOutcome(life, a)
	case e.o.ctx.Err() != nil && e.kind.calls == atLeastOnce && !decisive(err): // the next owner calls it
	default:
		if context.Cause(ctx) == ErrTimeout {
			err = timedOut{err}
		}
		written = e.recordFailure(life, a, err)
	}
	if !written {
		return e.unsettled(abandoned)
	}
	return e.settled(a)
}

// idempotencyKey names a tick or a job. A job that is replaced has another key; so has a job with
// the ID of another, which a failover has lost.
func (r *record) idempotencyKey(group string) string {
	if r.Job {
		return fmt.Sprintf("%s/job/%s/%d", group, r.Nonce, r.Revision)
	}
	return fmt.Sprintf("%s/schedule/%s/%s", group, r.Nonce, r.Trying.At.UTC().Format(time.RFC3339Nano))
}
