package schedule

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
	"github.com/pgleases/pgleases/internal/worker"
)

const (
	// maxBreaks is how many attempts a run has if its connection is lost, or if it waits too long
	// for a lock.
	maxBreaks = 5
	// maxOutcomes is how many attempts recording an outcome has: about 2 minutes.
	maxOutcomes = 60
	// statementLimit limits the statements for a run besides those of its handler.
	statementLimit = 10 * time.Second
)

// An executor runs schedules and jobs that are due, see execute. It knows neither the queue nor the
// poller. It is safe for concurrent use.
type executor struct {
	transactions
	registry *registry
	log      *slog.Logger
	gotSlot  func(kind string) // a run of the kind got a slot, so another may try
	parked   func(subject)     // the record of an outcome is delayed, or a slot not freed, so the run needs no place
	// overdue is called when code of the application goes on after its context, which ended by the
	// cause, so others may have the place
	overdue   func(of subject, cause error)
	postponed *postponed
}

// A result is the result of executing an item.
type result struct {
	outcome attemptOutcome
	again   *item     // the item when it is due again; nil: the next poll finds out
	from    time.Time // it is not due before this instant

	called bool  // its handler was called
	away   error // the handler says that something that it needs is away

	slow bool          // it took long to no effect, or is blocked
	why  worker.Reason // if it is slow
}

// An execution runs one item until it has an outcome, or until only the next poll can find out.
type execution struct {
	*executor
	o    *ownership
	ctx  context.Context // of the handler; it ends before that of o if what runs is gone
	item item
	kind *kind // nil: not registered in this process
	id   string

	from      time.Time
	last      runnable
	conflicts int
	breaks    int
	slot      bool            // it may have a slot
	slots     []*int          // what each attempt has taken; nil: that is not known, or it has not
	begun     *attempt        // a recorded call outside of a transaction that has not been made yet
	stuck     bool            // the database refuses to begin it, or to record its outcome
	doubted   *attempt        // the last one, if it may be committed although its answer is missing
	late      context.Context // the context of writing; nil before its first use
	cancel    func()
}

// execute does what is due of a schedule or a job, and repeats it if the database broke it off.
// ctx ends if it is deleted meanwhile.
func (x *executor) execute(ctx context.Context, o *ownership, it item) result {
	e := &execution{
		executor: x, o: o, ctx: ctx, item: it, kind: x.registry.kind(it.Kind),
		id: rand.Text(), from: it.due(), cancel: func() {},
	}
	if err := e.makeSlots(); err != nil {
		e.logPostponed(e.logger(), e.item.Kind, err)
		return result{outcome: gone, from: e.from, slow: lasts(err), why: worker.Hung}
	}
	if it.locked && e.stillLocked() {
		return e.judged(e.unsettled(rowLocked), &attempt{outcome: rowLocked})
	}
	defer func() { e.cancel() }()
	defer e.freeSlot()
	defer e.takeBack()
	for {
		a := e.attempt()
		e.noteAttempt(a)
		switch {
		case a.outcome == noted:
			continue
		case a.outcome == callable && ctx.Err() == nil:
			e.begun = nil
			return e.judged(e.callOutside(a), a)
		case a.err == nil:
			return e.judged(e.settled(a), a)
		}
		if wait, again := e.patience(a); again {
			store.Pause(ctx, wait)
			continue
		}
		return e.judged(e.giveUp(a), a)
	}
}

// timedOut reports whether the handler took its whole timeout.
func (r result) timedOut() bool { return r.slow && r.why == worker.TimedOut }

// judged adds to a result whether the run took long to no effect, or was blocked.
func (e *execution) judged(r result, a *attempt) result {
	r.slow, r.called = true, a.called()
	if saidBy(a.handler) == worker.Away {
		r.away = a.handler
	}
	switch {
	case e.stuck:
		r.why = worker.Hung
	case r.outcome == rowLocked:
		r.why = worker.Locked
	case errors.As(a.handler, new(timedOut)), store.LockTimeout(a.handler):
		r.why = worker.TimedOut
	case r.outcome == slowCommit:
		r.why = worker.Hung
	case r.outcome == stepped && a.decided.BlockedReason != nil:
		r.why = worker.Blocked
	default:
		r.slow = false
	}
	return r
}

// stillLocked reports whether another transaction has locked the row of the schedule or job.
func (e *execution) stillLocked() (is bool) {
	err := e.db.within(e.o.ctx, func(ctx context.Context) error {
		return e.db.asking(ctx, func(ctx context.Context, q querier) (err error) {
			is, err = e.db.sendLocked(ctx, q, e.item.subject)
			return err
		})
	})
	return err == nil && is
}

// noteAttempt notes what an attempt has read and committed.
func (e *execution) noteAttempt(a *attempt) {
	e.slot = e.slot || a.slot
	doubted := e.doubted
	if a.mayBeCommitted() {
		e.doubted = a
	}
	if a.row == nil {
		if a.err == nil && doubted != nil { // it is gone, perhaps because it has succeeded
			e.jobSucceeded(doubted)
		}
		return
	}
	if now, is := a.of.(*scheduleRow); is {
		// its next tick may be due, whether or not this step was committed
		e.from = when.Earlier(e.from, now.Cursor)
		last, again := e.last.(*scheduleRow)
		if again && (!last.Cursor.Equal(now.Cursor) || last.attempts() != now.attempts()) {
			// the attempt before was committed, and its answer was lost
			e.conflicts, e.breaks = 0, 0
		}
		if again && doubted != nil && !last.Cursor.Equal(now.Cursor) && now.Cursor.Equal(doubted.decided.Cursor) {
			e.kind.counts.wrote(doubted.decided.Outcomes)
		}
	}
	e.last = a.of
	if a.err != nil {
		return
	}
	if a.outcome != callable && e.kind != nil {
		e.kind.counts.wrote(a.decided.Outcomes)
	}
	if a.outcome == noted && a.decided.Trying.begun() == e.id {
		e.begun = a
	}
}

// patience returns whether to repeat an attempt that is not known to be committed, and after how
// long.
func (e *execution) patience(a *attempt) (wait time.Duration, again bool) {
	switch a.outcome {
	case conflicted:
		e.conflicts++
		return 10 * time.Millisecond << e.conflicts, e.conflicts < maxConflicts
	case slowCommit:
		e.breaks = max(e.breaks, maxBreaks-2) // once more: the connection may be the cause
	case broke:
	default:
		return 0, false
	}
	e.breaks++
	return 50 * time.Millisecond << e.breaks, e.breaks < maxBreaks
}

// giveUp ends an execution whose last attempt is not repeated.
func (e *execution) giveUp(a *attempt) result {
	switch {
	case e.canceled() && a.called():
		e.endCanceled(a)
	case a.outcome == abandoned:
		e.logBrokenOff(a)
	case a.outcome == changed:
		e.recordFailure(e.o.ctx, a, changedItself{a.err})
	case a.outcome == rowLocked:
		e.logger().Warn(
			"schedule: run rolled back, schedule locked by an edit", slog.String("name", value(a.row).Name),
			slog.Any("error", a.err),
		)
	case !a.called(), a.outcome == broke && worker.Whose(a.err) == worker.Server: // the server may lack it for long
		e.stuck = lasts(a.err)
		e.logPostponed(e.logger(), e.item.Kind, a.err)
	default:
		if a.outcome == slowCommit {
			a.err = timedOut{a.err}
		}
		if e.recordFailure(e.o.ctx, a, a.err) {
			return e.settled(a)
		}
	}
	return e.unsettled(a.outcome)
}

// canceled reports whether the schedule or job was deleted during the run, so that no outcome of
// the run can be recorded.
func (e *execution) canceled() bool { return context.Cause(e.ctx) == ErrCanceled }

// logBrokenOff logs that a handler was called for a run that this process does not finish. That is
// no attempt, so it leaves no other trace. If the answer to the commit is missing, the next owner
// repeats the run only if it is not committed.
func (e *execution) logBrokenOff(a *attempt) {
	cause := cmp.Or(context.Cause(e.ctx), a.err)
	switch {
	case a.mayBeCommitted():
		e.runLogger(a).Warn("schedule: run broken off during its commit, perhaps committed", slog.Any("cause", cause))
	case a.called():
		e.runLogger(a).Warn("schedule: run broken off, repeated", slog.Any("cause", cause))
	}
}

// endCanceled says how a run ended whose schedule or job a poll found deleted during the run. If
// the answer to its commit is missing, the run itself may have removed its job.
func (e *execution) endCanceled(a *attempt) {
	switch {
	case !a.mayBeCommitted():
		e.runLogger(a).Info("schedule: run canceled")
	case !e.jobSucceeded(a):
		e.runLogger(a).Info("schedule: run deleted during its commit, perhaps committed", slog.Any("error", a.err))
	}
}

// jobSucceeded reports whether the history has the success of a job whose last attempt may be
// committed, and counts it then.
func (e *execution) jobSucceeded(doubted *attempt) bool {
	if !e.item.Job {
		return false
	}
	var job *Job
	err := e.db.within(e.o.ctx, func(ctx context.Context) error {
		return e.db.asking(ctx, func(ctx context.Context, q querier) (err error) {
			job, err = e.db.sendJob(ctx, q, e.item.ID)
			return err
		})
	})
	if err != nil || job == nil || job.Outcome != OutcomeSucceeded {
		return false
	}
	e.kind.counts.wrote(doubted.decided.Outcomes)
	return true
}

// settled returns the result after a committed decision: when the item is due again.
func (e *execution) settled(a *attempt) result {
	if a.row == nil || a.decided.Due == nil {
		return e.unsettled(a.outcome)
	}
	again := e.item
	again.Crashes = a.decided.Trying.crashes()
	again.DueMicro, again.earliest = a.decided.Due.UnixMicro(), a.opened.Add(a.decided.Due.Sub(a.row.Clock))
	return result{outcome: a.outcome, again: &again, from: again.due()}
}

// unsettled returns the result if the next poll must find out.
func (e *execution) unsettled(o attemptOutcome) result { return result{outcome: o, from: e.from} }

// recordFailure records the result of a failed run, and reports whether it was committed.
func (e *execution) recordFailure(life context.Context, a *attempt, err error) bool {
	a.decided.failed(a.of, e.kind.limits, err, *a.decided.RanUntil)
	written := e.recordOutcome(life, a)
	switch {
	case written:
		e.logFailure(a, err)
	case errors.As(err, new(changedItself)): // recording is refused for the same reason
		e.runLogger(a).Info("schedule: run not committed, it was changed meanwhile", slog.Any("error", err))
	}
	if written && a.decided.Trying != nil {
		e.kind.counts.again(saidBy(err))
	}
	if written && a.decided.PausedAt != nil {
		e.runLogger(a).Error("schedule: paused until it is resumed, after consecutive failures",
			slog.Int("failures", *a.decided.Failures))
	}
	return written
}

// logFailure logs that a run failed. The planner logs that something is away.
func (e *execution) logFailure(a *attempt, err error) {
	switch said := saidBy(err); {
	case said == worker.Snoozed, said == worker.Away:
	case a.decided.Trying != nil:
		t := a.decided.Trying
		e.runLogger(a).Warn(
			"schedule: run failed, retry planned", slog.Int("attempt", t.Attempts), slog.Time("again", t.Again),
			slog.Any("error", err),
		)
	case a.decided.doubtful:
		e.runLogger(a).Error("schedule: outcome unknown, handler called at most once", slog.Any("error", err))
	default:
		e.runLogger(a).Error("schedule: run failed", slog.Any("error", err))
	}
}

// recordOutcome records the outcome of a run, in a transaction without its handler, and reports
// whether it was committed. It repeats that while runs may continue, because no other process knows
// the outcome, and a call of AtMostOnce would become unknown. If the outcome is not recorded, the
// handler is called again, which makes the run slow.
func (e *execution) recordOutcome(life context.Context, a *attempt) bool {
	var why error  // the last error before life ended
	var lost error // why the answer to a write is missing that may be committed; nil: all were answered
	passes := func(err error) bool {
		if store.Code(err) == "" {
			lost = err
		}
		if why == nil || life.Err() == nil {
			why = err
		}
		if store.LockTimeout(err) {
			e.parked(e.item.subject)
		}
		return passing(err)
	}
	inTime := !e.kind.calls.inTransaction() || !timeIsUp(cmp.Or(a.handler, a.err))
	err := e.db.repeat(life, maxOutcomes, passes, func() error { return e.write(life, a.of, a.decided.step, inTime) })
	if e.o.life.Err() != nil {
		why = context.Cause(e.o.life)
	}
	switch {
	case err == nil:
		e.kind.counts.wrote(a.decided.Outcomes)
	case !moved(err):
		e.stuck = e.o.ctx.Err() == nil && worker.Whose(err) != worker.NotOwner
		e.runLogger(a).Warn("schedule: outcome not recorded, run repeated", slog.Any("error", remedied(why)))
	case lost != nil: // or an edit came between the writes
		e.runLogger(a).Warn("schedule: outcome perhaps recorded, its answer was lost",
			slog.Any("error", lost), slog.Any("failure", a.handler))
	}
	return err == nil
}

// takeBack removes the record that a handler outside of a transaction has begun, if it was not
// called. So the next owner calls it even for AtMostOnce. If this fails, the next owner treats the
// handler as called.
func (e *execution) takeBack() {
	if e.begun == nil {
		return
	}
	step, trying := e.begun.decided.step, *e.begun.decided.Trying
	step.Before = step.Cursor // as it was written
	trying.Run, trying.Called = "", 0
	trying.Once = false
	step.Trying, step.Outcomes = &trying, nil
	life := e.writing()
	_ = e.db.repeat(life, maxBreaks, passing, func() error { return e.write(life, e.begun.of, step, true) })
}

// writing returns the context for writes after a call, or after a call that was not made. It ends
// with the ownership. If runs must end, it ends 1 s before lastWrites, which is left for the
// partition.
func (e *execution) writing() context.Context {
	if e.late == nil {
		life, cancel := context.WithCancel(e.o.life)
		stop := context.AfterFunc(e.o.ctx, func() { time.AfterFunc(lastWrites-time.Second, cancel) })
		e.late, e.cancel = life, func() { stop(); cancel() }
	}
	return e.late
}

// write writes a step in a transaction without a handler. If the handler's transaction timed out,
// and its server is not this one any more, the server was the cause: the error is worker.ErrGone.
func (e *execution) write(life context.Context, of runnable, st step, inTime bool) error {
	run := rand.Text()
	var now runnable
	open := e.db.open(&now, e.item.subject, run, statementLimit, statementLimit)
	return e.forUs(life, e.o.Partition, open, func(tx *handlers.Transaction) error {
		if !inTime && now != nil && !now.common().Server.Equal(of.common().Server) {
			return worker.ErrGone
		}
		return e.db.sendClose(life, tx, of, run, st, e.db.times.Answer, e.db.lockWait(0))
	})
}

func (e *execution) logger() *slog.Logger { return itemLogger(e.log, e.item) }

// runLogger returns the logger of a run. A job may have no name.
func (e *execution) runLogger(a *attempt) *slog.Logger {
	return e.logger().With(nonEmpty("name", a.row.Name), slog.Time("at", a.decided.run.At))
}

// nonEmpty returns the attribute of a text; for an empty text an empty one, which is not logged.
func nonEmpty(key, text string) (a slog.Attr) {
	if text != "" {
		a = slog.String(key, text)
	}
	return a
}

// itemLogger returns the logger of an item.
func itemLogger(log *slog.Logger, it item) *slog.Logger {
	of := "schedule"
	if it.Job {
		of = "job"
	}
	return log.With(
		slog.Int64(of, it.ID), slog.String("key", it.Key), slog.String("kind", it.Kind),
		slog.Int("partition", it.Partition),
	)
}
