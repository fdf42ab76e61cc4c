package consumer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/worker"
)

// handlerContext returns the context of a handler. It ends with the timeout, and with the first of
// the ownerships.
func (x *executor) handlerContext(parts []*part) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(x.db.life))
	timer := time.AfterFunc(x.options.timeout, func() { cancel(ErrTimeout) })
	stops := []func() bool{timer.Stop}
	for _, p := range parts {
		life := p.Context()
		stops = append(stops, context.AfterFunc(life, func() { cancel(context.Cause(life)) }))
	}
	return ctx, func() {
		cancel(nil)
		for _, stop := range stops {
			stop()
		}
	}
}

// A calling is the calls of the handler for the rows of one attempt.
type calling struct {
	*attempt
	ctx    context.Context
	tx     pgx.Tx // as the handler has it; nil: it has none
	began  time.Time
	step   int    // how many rows a call has
	inHand inHand // the row, or the first of the batch
	out    *outcome
}

// call calls the handler, for all rows or for one after the other, and returns how far it came.
func (a *attempt) call(ctx context.Context, o outcome) outcome {
	c := &calling{attempt: a, ctx: ctx, began: time.Now(), out: &o}
	defer func() { a.counts.handler(time.Since(c.began), o) }()
	unreadable := slices.IndexFunc(o.rows, func(r row) bool { return r.err != nil })
	if unreadable > 0 && !a.handler.calls.oneRow() {
		o.rows = o.rows[:unreadable]
	}
	o.at, c.step = 0, len(o.rows)
	if a.handler.calls.oneRow() {
		c.step = 1
	}
	if a.handler.calls.inTransaction() {
		c.tx = a.tx.ForHandler()
	}
	var partition int
	var id int64
	defer handlers.Watch(ctx, a.times.overrun, func() {
		partition, id = c.inHand.row()
		a.log.Warn("consumer: handler still running after its context ended", slog.Int("partition", partition),
			slog.Int64("id", id), slog.Any("cause", context.Cause(ctx)))
		a.late(&c.inHand, a.handler.calls.oneRow())
	}, func(lasted time.Duration) {
		a.log.Info("consumer: handler returned after its context ended", slog.Int("partition", partition),
			slog.Int64("id", id), slog.Duration("for", lasted))
	})()
	err := handlers.Call(c.all) // one goroutine for all rows: one for each would cost more than a quick handler
	if err != nil {
		c.judge(err)
	}
	if c.inHand.end() {
		return c.abandoned()
	}
	return o
}

// abandoned returns the outcome of calls that were abandoned: that of the row in hand, and of those
// before it in its partition.
func (c *calling) abandoned() outcome {
	c.keep(&c.inHand)
	if context.Cause(c.ctx) != ErrTimeout {
		return outcome{verdict: refused, at: -1}
	}
	_, id := c.inHand.row()
	rows := slices.DeleteFunc(slices.Clone(c.out.rows), func(r row) bool { return r.partition != c.kept })
	at := slices.IndexFunc(rows, func(r row) bool { return r.id == id })
	verdict := failed
	if c.out.verdict == unavailable || c.out.verdict == ended {
		verdict = c.out.verdict
	}
	return outcome{verdict: verdict, rows: rows, at: at, slow: true, err: cmp.Or(c.out.err, ErrTimeout)}
}

// all calls the handler until all rows are handled, or the process has to stop.
func (c *calling) all() error {
	o := c.out
	for ; o.at < len(o.rows); o.at += c.step {
		stops := c.halting(c.parts) || time.Since(c.began) > c.options.timeout/2
		if o.at > 0 && stops { // the rows so far are committed
			return nil
		}
		rows := o.rows[o.at : o.at+c.step]
		if !c.inHand.next(rows[0].partition.Number, rows[0].id) {
			return nil
		}
		if rows[0].err != nil {
			o.verdict, o.err = failed, rows[0].err
			return nil
		}
		err := c.once(rows)
		if err != nil {
			return err
		}
		goesOn, err := c.checkTx()
		if !goesOn || err != nil {
			return err
		}
	}
	return nil
}

// once calls the handler once, and notes whether its transaction may have been idle for too long.
func (c *calling) once(rows []row) error {
	called := time.Now()
	defer func() {
		if time.Since(called) < c.options.idle {
			return
		}
		c.out.long, c.out.longAt = true, c.out.at
		if len(rows) > 1 {
			c.out.longAt = -1
		}
	}()
	return copied(c.around(rows))
}

// around calls the handler, by way of WithAround if that is set.
func (c *calling) around(rows []row) error {
	around := c.options.around
	if around == nil {
		return c.handler.call(c.ctx, c.tx, rows)
	}
	first := rows[0]
	info := Info{
		Lease: c.db.lease, Kind: c.db.name, Trigger: "row", ID: first.id, Key: first.key, Rows: len(rows),
		Partition: first.partition.Number, Epoch: first.partition.Epoch, Attempt: first.attempts + 1,
	}
	return handlers.Around(
		func(next func(context.Context) error) error { return around(c.ctx, info, next) },
		func(ctx context.Context) error { return c.handler.call(ctx, c.tx, rows) },
	)
}

// checkTx checks in which state a handler has left its transaction.
func (c *calling) checkTx() (goesOn bool, err error) {
	if !c.handler.calls.inTransaction() {
		return true, nil
	}
	tx := c.attempt.tx
	if tx.Conn().PgConn().IsClosed() {
		return false, nil
	}
	err = tx.Left()
	if err == handlers.ErrEnded {
		c.out.verdict, c.out.err = ended, err
		return false, nil
	}
	return err == nil, err
}

// judge sets what the calls came to, after an error of the handler.
func (c *calling) judge(err error) {
	cause, fault := context.Cause(c.ctx), worker.Whose(err)
	o := c.out
	o.verdict, o.err = failed, err
	o.slow = cause == ErrTimeout
	if !c.handler.calls.oneRow() {
		o.at = c.rowIn(err)
	}
	over := c.endedBy(err)
	switch {
	case over != nil:
		o.verdict, o.err = ended, over
		o.slow = false
	case c.ctx.Err() != nil && !o.slow && cause != worker.ErrGone:
		o.verdict = refused
	case fault == worker.Away:
		o.verdict = unavailable
	case snoozedOrDiscarded(err):
	case o.slow:
		o.err = timedOut(err)
	case cause == worker.ErrGone: // if the connection still works, a statement of the handler has failed
	case fault.Blameless(): // the database is at fault, and not the row
		o.verdict = broke
	}
}

// endedBy returns an error if the handler has ended its transaction, with what it returned.
func (c *calling) endedBy(err error) error {
	if !c.handler.calls.inTransaction() {
		return nil
	}
	return c.attempt.tx.EndedBy(err)
}

// timedOut returns the error of a handler that took longer than its timeout. The handler may have
// returned the cause of its context.
func timedOut(err error) error {
	text := strings.TrimPrefix(err.Error(), ErrTimeout.Error())
	text = strings.TrimPrefix(text, ": ")
	if text == "" {
		return ErrTimeout
	}
	return fmt.Errorf("%w: %s", ErrTimeout, text)
}

// rowIn returns which row of the batch an error names; -1: it names none of them.
func (c *calling) rowIn(err error) int {
	i, named := worker.RowIn(err)
	if !named || i < 0 || i >= c.step {
		return -1
	}
	return i
}

// copied copies an error of the application, see worker.Copy. The copy says whose fault it was.
func copied(err error) error {
	if err == nil {
		return nil
	}
	return worker.Says(worker.WhoseOfHandler(err), worker.Copy(err))
}

// snoozedOrDiscarded reports whether the handler says what happens to the row. Unavailable says
// that of partitions.
func snoozedOrDiscarded(err error) bool {
	v, _ := worker.Verdict(err)
	return v == worker.Snoozed || v == worker.Discarded
}
