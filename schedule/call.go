package schedule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/worker"
)

// handle calls the handler, and takes the outcome from its return.
func (e *execution) handle(tx *handlers.Transaction, a *attempt) error {
	ctx, cancel := e.limited()
	defer cancel()
	watched, stop := worker.WatchTx(ctx, e.db.pool, a.row.Transaction, e.db.times.Look)
	a.handler = e.call(watched, tx.ForHandler(), tx.Late, a, e.run(a))
	stop()
	server := tx.Conn().PgConn()
	ended := tx.EndedBy(a.handler)
	switch {
	case context.Cause(watched) == worker.ErrGone:
		a.lost, a.handler = true, cmp.Or(a.handler, worker.ErrGone)
		_ = tx.Conn().Close(watched) // it would wait for an answer
	case ended != nil:
		a.handler = ended
	case context.Cause(ctx) == ErrTimeout: // the timeout has closed a connection in use
		a.handler = timedOut{a.handler}
	case a.handler != nil: // if a context of its own ended, that also closed the connection
		a.own = a.byHandler(a.handler, e.kind.limits.idle) || worker.EndedContext(a.handler) && ctx.Err() == nil
	case server.IsClosed():
		a.own = true
		a.handler = errors.New(
			"the handler returned nil after its connection was closed: it ignored the error of a statement",
		)
	default:
		a.handler = tx.Left()
	}
	a.decided.done()
	return a.handler
}

// parse reads the arguments of a run, which may call code of the application. It is counted as
// running, and if it takes longer than a handler may, parse logs that, and lets others have the
// place of the run. Then it returns errReadLate, because the run has no place for its handler any
// more.
func (e *execution) parse(tx *handlers.Transaction, r *row) (bound boundHandler, err error) {
	ctx, cancel := e.limited()
	defer cancel()
	late := false
	ended := handlers.Watch(ctx, e.db.times.Overrun, func() {
		e.logger().Warn(
			"schedule: arguments still being read after the timeout", nonEmpty("name", r.Name),
			slog.Any("cause", context.Cause(ctx)),
		)
		late = true
		tx.Late()
		e.overdue(e.item.subject, context.Cause(ctx))
	}, func(lasted time.Duration) {
		e.logger().Info(
			"schedule: arguments read after the timeout", nonEmpty("name", r.Name), slog.Duration("for", lasted),
		)
	})
	defer e.kind.counts.reading()()
	err = handlers.Call(func() (err error) {
		bound, err = e.kind.parse(r.Args)
		return err
	})
	ended()
	if late {
		return nil, errReadLate
	}
	return bound, err
}

var errReadLate = errors.New("reading the arguments took longer than the timeout of the run: make UnmarshalJSON return")

// limited returns the context of a handler, with its timeout; without a timeout under the clock of
// a test.
func (e *execution) limited() (context.Context, context.CancelFunc) {
	if e.db.staged {
		return context.WithCancel(e.ctx)
	}
	return context.WithTimeoutCause(e.ctx, e.kind.limits.timeout, ErrTimeout)
}

// call calls a handler, and records when it returned. tx is nil for a handler outside of a
// transaction. If a handler continues for long after its context has ended, call logs that, and
// lets others have the place of the run, and by late what the handler holds. The key and the
// partition wait for it.
func (e *execution) call(
	ctx context.Context, tx pgx.Tx, late func(), a *attempt, run Run[json.RawMessage],
) error {
	returned := handlers.Watch(ctx, e.db.times.Overrun, func() {
		e.runLogger(a).Warn(
			"schedule: handler still running after its context ended", slog.Any("cause", context.Cause(ctx)),
		)
		late()
		e.overdue(e.item.subject, context.Cause(ctx))
	}, func(lasted time.Duration) {
		e.runLogger(a).Info("schedule: handler returned after its context ended", slog.Duration("for", lasted))
	})
	called := e.kind.counts.begin(e.clock.now().Sub(a.due()))
	began := time.Now()
	err := handlers.Call(func() error { return copied(e.around(ctx, tx, a.bound, run)) })
	returned()
	called()
	ended := e.clock.now()
	a.took = time.Since(began)
	a.decided.RanUntil = &ended
	return err
}

// around calls a handler, by way of WithAround if that is set.
func (e *execution) around(ctx context.Context, tx pgx.Tx, h boundHandler, run Run[json.RawMessage]) error {
	around := e.db.around
	if around == nil {
		return h(ctx, tx, run)
	}
	info := Info{
		Lease: leaseOf + e.db.group, Kind: e.kind.name, Trigger: string(run.Trigger),
		Name: run.Name, ID: run.Job, Key: run.Key, At: run.At, Rows: 1,
		Partition: run.Partition, Epoch: run.Epoch, Attempt: run.Attempt,
	}
	return handlers.Around(
		func(next func(context.Context) error) error { return around(ctx, info, next) },
		func(ctx context.Context) error { return h(ctx, tx, run) },
	)
}

// due returns when the run was due.
func (a *attempt) due() time.Time { return a.of.dueAt(a.decided.run) }

func (r *scheduleRow) dueAt(run *Tick) time.Time {
	if r.Trying != nil && !r.Trying.Again.IsZero() {
		return r.Trying.Again
	}
	return jitter(r.Name, run.At, r.Policy.Jitter)
}

func (r *jobRow) dueAt(run *Tick) time.Time {
	switch {
	case r.Due != nil: // it may be later than At
		return *r.Due
	case r.Trying != nil && !r.Trying.Again.IsZero():
		return r.Trying.Again
	default:
		return run.At
	}
}

// run returns the Run for the handler.
func (e *execution) run(a *attempt) Run[json.RawMessage] {
	r := a.row
	run := Run[json.RawMessage]{
		Name: r.Name, Key: r.Key, Args: r.Args, At: a.decided.run.At.UTC(),
		Local: a.decided.run.At.In(a.decided.zone), Missed: a.decided.missed,
		Attempt: r.attempts() + 1, Crashes: max(0, r.Trying.crashes()-1), Partition: e.o.Number, Epoch: e.o.Epoch,
	}
	a.of.describe(&run)
	return run
}

func (r *scheduleRow) describe(run *Run[json.RawMessage]) {
	run.Trigger, run.From = TriggerTick, value(r.Succeeded).UTC()
}

func (r *jobRow) describe(run *Run[json.RawMessage]) {
	run.Trigger, run.Job = r.Trigger, r.ID
	run.From = value(r.Begins).UTC()
}
