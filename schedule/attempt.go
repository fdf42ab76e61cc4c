package schedule

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// An attemptOutcome is the result of an attempt, which is one transaction.
type attemptOutcome int

const (
	gone          attemptOutcome = iota // in another partition, of another kind, or deleted
	clockUnstable                       // the database's clock shows an unexpected time
	stepped                             // the decision is to be committed; it is if err is nil
	blocked                             // no slot was free
	noted                               // committed: the handler is about to be called
	callable                            // now call the handler, outside of a transaction

	// The following are not known to be committed; attempt.err is the cause.
	abandoned  // the ownership has ended, an edit came first, or it was committed before
	changed    // it was edited or committed before, perhaps by the handler
	rowLocked  // an edit has locked the schedule
	conflicted // the database broke it off in favor of another transaction
	broke      // the connection or the server failed, or a lock was not free
	slowCommit // the commit took longer than the limit, or the connection is silent
	failed     // the handler or a deferred constraint failed, or the database returned another error
)

// An attempt is one transaction of a run.
type attempt struct {
	outcome attemptOutcome
	err     error
	of      runnable  // what runs
	row     *row      // the row of that
	opened  time.Time // when row was read, by this host
	decided decision
	bound   boundHandler  // nil: the arguments were not read
	took    time.Duration // how long the handler took
	handler error         // what the handler returned; nil: it succeeded, or was not called
	own     bool          // handler is no error of the connection or the server, even if they failed too
	lost    bool          // the server no longer has the transaction
	slot    bool          // it took a slot that stays taken after this transaction
}

// called reports whether the handler was called.
func (a *attempt) called() bool { return a.decided.RanUntil != nil }

// mayBeCommitted reports whether the attempt may be committed although it has returned an error:
// its handler succeeded, and the answer to the commit is missing.
func (a *attempt) mayBeCommitted() bool { return a.called() && handlers.MayBeCommitted(a.err) }

// attempt makes one attempt.
func (e *execution) attempt() *attempt {
	a := new(attempt)
	l, transact := limits{timeout: statementLimit, idle: statementLimit}, e.inGoroutine
	if e.kind != nil {
		l = e.kind.limits
	}
	if e.kind != nil && e.kind.calls.inTransaction() {
		transact = e.forItsHandler
	}
	var of runnable
	ctx := e.o.ctx
	// the handler's context ends first
	open := e.db.open(&of, e.item.subject, e.id, l.timeout+time.Second, l.idle)
	err := transact(ctx, e.o.Partition, open, func(tx *handlers.Transaction) error {
		if of == nil {
			a.outcome = gone
			return nil
		}
		r := of.common()
		switch {
		case r.Partition != e.o.Number || r.Kind != e.item.Kind:
			a.outcome = gone
			return nil
		case r.ill != nil:
			e.logger().Warn("schedule: blocked, row unreadable", nonEmpty("name", r.Name), slog.Any("error", r.ill))
			return e.db.sendSetAside(ctx, tx, e.item.subject, r.ill)
		case r.Clock.Sub(e.clock.now()).Abs() > maxStep:
			a.outcome = clockUnstable // it runs when the clock is trusted
			return nil
		}
		err := e.decide(ctx, tx, a, of)
		if err != nil || a.outcome == callable {
			return err
		}
		if a.decided.run != nil {
			if err := e.handle(tx, a); err != nil {
				return err
			}
		} else if a.outcome != noted && a.decided.unchanged(r) {
			return nil
		}
		limit := e.db.times.Answer
		if a.called() { // the commit may take as long as the handler
			limit = max(limit, l.timeout)
		}
		return e.db.sendClose(ctx, tx, of, e.id, a.decided.step, limit, e.db.lockWait(a.took))
	})
	if err != nil {
		a.outcome, a.err = e.classify(a, err, l.idle), err
	}
	return a
}

// forItsHandler is forHandler for the handler of the item.
func (e *execution) forItsHandler(
	life context.Context, p pgleases.Partition, open opening, f func(*handlers.Transaction) error,
) error {
	return e.forHandler(life, e.item.lane, p, open, f)
}

// classify returns the outcome of an attempt with an error.
func (e *execution) classify(a *attempt, err error, idle time.Duration) attemptOutcome {
	committing := a.called() && a.handler == nil
	switch {
	case e.ctx.Err() != nil, !a.called() && errors.Is(err, pgleases.ErrNotOwner):
		return abandoned
	case a.lost:
		return broke
	case a.handler == nil && moved(err):
		if a.called() {
			return changed
		}
		return abandoned
	case errors.As(err, new(locked)):
		return rowLocked
	case decisive(err):
		return failed
	case conflict(err):
		return conflicted
	case !a.called() && a.outcome == noted && passing(err):
		return broke // if it was committed, only this run may call the handler
	case !a.called():
		return failed
	case committing && errors.Is(err, context.DeadlineExceeded):
		return slowCommit
	case errors.As(err, new(timedOut)): // the timeout closed its connection
		return failed
	case a.own, committing && a.byHandler(err, idle): // for example a deferred constraint
		return failed
	}
	// A transaction that has begun is not on a standby: its handler made it read-only.
	whose := worker.Whose(err)
	if whose.Blameless() && whose != worker.Standby {
		return broke
	}
	return failed
}

// byHandler reports whether a statement in a handler's transaction failed because of the handler:
// it waited too long for a lock, or its transaction was idle or took too long. If it was idle for
// less than the limit, the connection is the cause.
func (a *attempt) byHandler(err error, idle time.Duration) bool {
	return store.LockTimeout(err) || idled(err) && a.took >= idle || tookTooLong(err)
}

// decide decides what to do, and whether to call the handler in this transaction.
func (e *execution) decide(ctx context.Context, tx *handlers.Transaction, a *attempt, of runnable) error {
	r := of.common()
	suspected := !r.Trying.countedBy(e.o.Epoch) && e.o.suspects(e.item, r)
	a.of, a.row = of, r
	a.opened, a.outcome = time.Now(), stepped
	var unreadable error
	if e.kind != nil && !suspected {
		a.bound, unreadable = e.parse(tx, r)
	}
	if unreadable == errReadLate {
		return errReadLate
	}
	a.decided = of.decide(e.kind, e.registry.declares(r.Name), e.o.Epoch, unreadable)
	d, k := &a.decided, e.kind
	if d.run == nil {
		return nil
	}
	if !k.calls.repeatable() {
		// Even if this run has begun already. Otherwise a crash or a failover of the server could
		// cause a second call.
		err := e.db.inTime(ctx, e.db.times.Answer, func(ctx context.Context) error {
			_, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = on")
			return err
		})
		if err != nil {
			return err
		}
	}
	switch {
	case r.Trying.begun() != e.id && (r.Trying.calledOnce() || !k.calls.repeatable() && r.Trying.begun() != ""):
		e.runLogger(a).Error(
			"schedule: outcome unknown, handler called at most once", slog.Int64("epoch", r.Trying.Called),
		)
		d.lost(r)
		d.run = nil
	case !k.calls.inTransaction() && r.Trying.begun() == e.id:
		a.outcome = callable
	case r.Trying.crashes() >= k.limits.crashes && !r.Trying.countedBy(e.o.Epoch):
		e.runLogger(a).Error("schedule: run failed, processes crashed", slog.Int("crashes", r.Trying.crashes()))
		d.failed(of, limits{attempts: 1}, errCrashed, r.Clock)
		d.run = nil
	default:
		return e.admit(ctx, tx, a, suspected)
	}
	return nil
}

// admit takes a slot. A call outside of the transaction, or of a crash suspect, is not made in this
// transaction, which only records it.
func (e *execution) admit(ctx context.Context, tx *handlers.Transaction, a *attempt, suspected bool) error {
	d, r := &a.decided, a.row
	k := e.kind
	calls := !k.calls.inTransaction() && !suspected // the arguments of a suspect must be read first
	taken, err := e.takeSlot(ctx, tx, calls)
	switch {
	case err != nil:
		return err
	case !taken:
		a.outcome = blocked
		d.waitForSlot(a.of, k)
		return nil
	}
	a.slot = calls && k.limits.limited
	if k.calls.inTransaction() && !suspected {
		return nil
	}
	if suspected {
		e.o.count(e.item.subject)
	}
	d.note(r, e.o.Epoch, suspected)
	if calls {
		d.Trying.Run, d.Trying.Called = e.id, e.o.Epoch
		d.Trying.Started, d.Trying.Ends = r.Clock, r.Clock.Add(k.limits.timeout)
		d.Trying.Once = !k.calls.repeatable()
	}
	d.run, a.outcome = nil, noted
	return nil
}
