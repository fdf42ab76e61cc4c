package schedule

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

// An attemptOutcome is what came of an attempt, which is one transaction, and of the last of an
// execution.
type attemptOutcome int

const (
	gone          attemptOutcome = iota // it is not here, or of another kind: the next poll finds what there is
	clockUnstable                       // the database's clock shows another time than expected
	stepped                             // what was decided is committed, without a handler or after it
	blocked                             // there was no slot
	noted                               // it is committed that the handler is about to be called: now it may be
	callable                            // the handler is to be called now, in no transaction

	// Of these nothing is committed, as far as is known, and attempt.err says why.
	abandoned  // the next owner runs it, or an edit came first, or it had been committed
	changed    // it was edited, or had been committed, and the handler may have done it
	rowLocked  // an edit has the schedule locked
	conflicted // the database broke it off in favor of another transaction
	broke      // the connection or the server failed
	slowCommit // the commit took longer than the run may, or the connection is silent
	failed     // the handler failed, or what it left to the commit did, or the database refuses it for any other reason
)

// An attempt is one transaction of a run.
type attempt struct {
	outcome attemptOutcome
	err     error
	row     *record
	opened  time.Time // by this host, when row was read
	decided decision
	bound   boundHandler  // nil: the arguments were not read
	took    time.Duration // the handler
	handler error         // the handler's; nil: it did not fail, or was not called
	own     bool          // that error is no fault of the connection or the server, whatever became of these
	slot    bool          // it took a slot that is not free at the end of this transaction
}

// called reports whether the handler was.
func (a *attempt) called() bool { return a.decided.RanUntil != nil }

// attempt does it once.
func (e *execution) attempt() *attempt {
	a, l := new(attempt), limits{timeout: closing, idle: closing}
	if e.kind != nil {
		l = e.kind.limits
	}
	var r *record
	ctx := e.o.ctx
	open := e.db.open(&r, e.item.subject, e.id, l.timeout+time.Second, l.idle) // the handler's context ends first
	err := e.guarded(ctx, e.o.Partition, open, func(tx *transaction) error {
		switch {
		case r == nil || r.Partition != e.o.Number || r.Kind != e.item.Kind:
			return nil
		case r.Clock.Sub(e.clock.now()).Abs() > maxStep:
			a.outcome = clockUnstable // run when it is trusted
			return nil
		}
		if err := e.decide(ctx, tx, a, r); err != nil || a.outcome == callable {
			return err
		}
		if a.decided.run != nil {
			if err := e.handle(tx, a); err != nil {
				return err
			}
		} else if a.outcome != noted && a.decided.unchanged(r) {
			return nil
		}
		limit := e.db.times.answer
		if a.called() { // the commit may take as long as the handler
			limit = max(limit, l.timeout)
		}
		return e.db.sendClose(ctx, tx, r, e.id, a.decided.step, limit)
	})
	if err != nil {
		a.outcome, a.err = e.classify(a, err, l.idle), err
	}
	return a
}

// classify returns what an error means for an attempt.
func (e *execution) classify(a *attempt, err error, idle time.Duration) attemptOutcome {
	committing := a.called() && a.handler == nil
	switch {
	case e.o.ctx.Err() != nil, !a.called() && errors.Is(err, pgleases.ErrNotOwner):
		return abandoned
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
	case !a.called() && a.outcome == noted && broken(err):
		return broke // if it was committed, the handler may be called by this run only
	case !a.called():
		return failed
	case committing && errors.Is(err, context.DeadlineExceeded):
		return slowCommit
	case a.own, committing && a.byHandler(err, idle): // what it left to the commit: a constraint that is deferred
		return failed
	case broken(err):
		return broke
	}
	return failed
}

// byHandler reports whether a statement in a handler's transaction failed by the handler's own
// doing: it waited for a lock that its work needs, or its transaction idled or took too long. If it
// idled for less, its connection is at fault.
func (a *attempt) byHandler(err error, idle time.Duration) bool {
	return store.LockTimeout(err) || idled(err) && a.took >= idle || tookTooLong(err)
}

// decide decides what is to be done, and whether the handler is to be called in this transaction.
func (e *execution) decide(ctx context.Context, tx *transaction, a *attempt, r *record) error {
	if e.kind == nil {
		e.warnUnknown(r)
	}
	suspected := !r.Trying.countedBy(e.o.Epoch) && e.o.suspects(e.item, r)
	a.row, a.opened, a.outcome = r, time.Now(), stepped
	var unreadable error
	if e.kind != nil && !suspected {
		a.bound, unreadable = e.kind.parse(r.Args)
	}
	a.decided = r.decide(e.kind, e.registry.declares(r.Name), e.o.Epoch, unreadable)
	d, k := &a.decided, e.kind
	if d.run == nil {
		return nil
	}
	if k.calls == atMostOnce {
		// Even if it is found that this run has begun: a crash or a failover of the server would make it
		// be called once more.
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = on"); err != nil {
			return err
		}
	}
	switch {
	case k.calls == atMostOnce && r.Trying.begun() != "" && r.Trying.begun() != e.id:
		e.runLogger(a).Error("schedule: outcome unknown, handler called at most once", slog.Int64("epoch", r.Trying.Called))
		d.lost(r)
		d.run = nil
	case k.calls != inTransaction && r.Trying.begun() == e.id:
		a.outcome = callable
	case r.Trying.crashes() >= k.limits.crashes && !r.Trying.countedBy(e.o.Epoch):
		e.runLogger(a).Error("schedule: run failed, processes crashed", slog.Int("crashes", r.Trying.crashes()))
		d.failed(r, limits{attempts: 1}, errCrashed, r.Clock)
		d.run = nil
	default:
		return e.admit(ctx, tx, a, suspected)
	}
	return nil
}

// admit takes a slot. What is called outside of the transaction, or is a crash suspect, is not
// called in this one: it is noted first.
func (e *execution) admit(ctx context.Context, tx *transaction, a *attempt, suspected bool) error {
	d, k, r := &a.decided, e.kind, a.row
	calls := k.calls != inTransaction && !suspected // whose arguments are to be read first
	taken, err := e.takeSlot(ctx, tx, calls)
	switch {
	case err != nil:
		return err
	case !taken:
		a.outcome = blocked
		d.waitForSlot(r, k)
		return nil
	}
	a.slot = calls && k.limits.limited
	if k.calls == inTransaction && !suspected {
		return nil
	}
	if suspected {
		e.o.count(e.item.subject)
	}
	d.note(r, e.o.Epoch, suspected)
	if calls {
		d.Trying.Run, d.Trying.Called = e.id, e.o.Epoch
	}
	d.run, a.outcome = nil, noted
	return nil
}
