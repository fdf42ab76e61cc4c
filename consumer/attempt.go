package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// A verdict is what an attempt came to.
type verdict int

const (
	handled     verdict = iota // all rows were handled, or those until the process had to stop
	refused                    // partitions are not owned
	failed                     // a row, or the batch, has failed
	ended                      // the handler ended its transaction
	unavailable                // something that handlers need is away
	broke                      // the rows are not at fault: the connection, the database or a lock
)

// An outcome is the result of an attempt.
type outcome struct {
	verdict
	rows []row // the rows that were read
	more bool  // there may be more than these
	at   int   // the first row that was not handled, which may have failed; -1: it is not known which
	err  error
	slow bool // it failed by the timeout, or because the transaction was idle for too long

	long   bool // a call took as long as its transaction may be idle
	longAt int  // the row of the last such call; -1: the batch
}

// broken returns the outcome of an attempt that was broken off.
func broken(err error) outcome { return outcome{verdict: broke, at: -1, err: err} }

// lostOf notes which partitions are lost, and returns the outcome of an attempt that was refused.
func lostOf(parts []*part) outcome {
	for _, p := range parts {
		p.lost = p.lost || p.gone()
	}
	return outcome{verdict: refused, at: -1}
}

// An attempt handles rows in one transaction, or, of AtLeastOnce, between two. It may go on with
// the next rows, in further transactions.
type attempt struct {
	*execution
	parts []*part
	limit int // how many rows are read
	began time.Time
	tx    *handlers.Transaction
	xact  string  // identifies tx
	found outcome // of the read in tx
	ahead bool    // found was read with the commit before, and is not handled yet

	ctx    context.Context // of the handler, for the rows in found
	cancel context.CancelFunc

	give    func()    // gives the place in the pool back, once
	conn    *pgx.Conn // belongs to the attempt until release or leave
	release func()
	leave   func() // see worker.Loan
}

// attempt reads rows, handles them, and removes those that were handled, in order.
func (e *execution) attempt(parts []*part, limit int) outcome {
	e.watchAgain()
	nothing := func() {}
	a := &attempt{
		execution: e, parts: parts, limit: limit, began: time.Now(), give: nothing, release: nothing, cancel: nothing,
	}
	defer func() { a.give() }()
	defer func() { a.release() }()
	err := a.acquire()
	if err != nil {
		return broken(err)
	}
	defer func() { a.cancel() }()
	a.found = a.read()
	defer func() { e.db.rollback(a.tx) }() // before the connection is released
	o := a.handleFound()
	for a.ahead && !e.halting(parts) {
		e.advance(parts, o)
		e.watchAgain()
		o = a.handleFound()
	}
	return o
}

// handleFound handles the rows that were read last.
func (a *attempt) handleFound() outcome {
	o := a.found
	a.ahead = false
	switch {
	case a.kept != nil, o.verdict != handled:
		return o
	case slices.ContainsFunc(a.parts, (*part).gone):
		return lostOf(a.parts)
	case len(o.rows) == 0 && !a.job.isRetry:
		return o
	case !a.handler.calls.inTransaction():
		return a.outside(o)
	}
	return a.inside(o)
}

// mayGoOn reports whether the commit may also read the next rows. A job with one healthy partition
// goes on with batches of the same size, but only for a while, because others wait for its slot.
func (a *attempt) mayGoOn(o outcome) bool {
	one := len(a.execution.parts) == 1 && a.job.lane == worker.Healthy && !a.job.isRetry && !a.db.hooks
	same := a.limit == a.job.limit && a.limit == a.batch() // it is smaller after a failure
	return one && same && !a.parts[0].batchesAlone() && o.more && o.at == len(o.rows) &&
		time.Since(a.began) < a.times.goOn && !a.halting(a.parts)
}

// acquire takes a place in the pool, and a connection.
func (a *attempt) acquire() error {
	if a.handler.calls.inTransaction() { // the handler may need the pool once more
		err := a.takePlace()
		if err != nil {
			return err
		}
	}
	conn, giveBack, err := a.db.acquire(func(context.Context, *pgxpool.Conn) error { return nil })
	if err != nil {
		giveBack()
		return err
	}
	loan := worker.NewLoan(conn, giveBack)
	a.conn = conn.Conn()
	a.release = func() { loan.End(a.times.answer) }
	a.leave = loan.Leave
	return nil
}

var errNoPlace = errors.New("no place for a transaction on the pool: handlers have had all of them for long")

// takePlace takes a place in the pool.
func (a *attempt) takePlace() error {
	err := a.db.inTime(func(ctx context.Context) (err error) {
		give, err := a.share.Take(ctx, a.job.lane)
		if err == nil {
			a.give = give
		}
		return err
	})
	if err != nil { // the database is not at fault
		return errNoPlace
	}
	return nil
}

// late lets others have what the attempt holds, because code of the application goes on after its
// context has ended. Another goroutine calls it. If that code has a single row in hand, the
// transaction is closed, and the other partitions go on without the attempt.
func (a *attempt) late(h *inHand, single bool) {
	a.give()
	a.leave()
	busy := a.parts
	if single && len(busy) > 1 && h.abandon() {
		_ = a.conn.PgConn().Conn().Close()
		kept, _ := h.row()
		busy = slices.DeleteFunc(slices.Clone(busy), func(p *part) bool { return p.Number != kept })
	}
	var free []int
	for _, p := range a.execution.parts { // the attempt may be at one of them only, see handleOne
		if !slices.Contains(busy, p) {
			free = append(free, p.Number)
		}
	}
	a.overdue(a.job, free)
}

// keep notes that the attempt was abandoned, and has only the partition of the row in hand.
func (a *attempt) keep(h *inHand) {
	number, _ := h.row()
	a.kept = byNumber(a.parts)[number]
}

// outside calls a handler outside of a transaction, and removes the rows that it has handled.
func (a *attempt) outside(o outcome) outcome {
	err := a.db.commit(a.tx)
	if err != nil {
		return outcome{verdict: broke, rows: o.rows, at: -1, err: err}
	}
	a.release()
	if !a.trusted() { // the process was frozen, and the handler's context may end late
		return broken(pgleases.ErrTrustLost)
	}
	o = a.call(a.ctx, o)
	if o.verdict == refused {
		return lostOf(a.parts)
	}
	return a.removeSame(o)
}

// inside calls a handler in the transaction, removes the rows that it has handled, and commits.
func (a *attempt) inside(o outcome) outcome {
	watched, stop := worker.WatchTx(a.ctx, a.db.pool, a.xact, a.times.look)
	o = a.call(watched, o)
	stop()
	if a.kept != nil {
		return o
	}
	o = a.checked(o, context.Cause(watched) == worker.ErrGone)
	if o.verdict != handled {
		return o
	}
	batch := new(pgx.Batch)
	batch.Queue(a.db.sql.Ours)
	removed := int64(o.at)
	a.queueRemoval(batch, o.rows[:o.at], a.xact, &removed)
	commit := func(ctx context.Context) error { return a.tx.CommitAfter(ctx, batch) }
	if a.mayGoOn(o) {
		commit = func(ctx context.Context) error { return a.commitAndRead(ctx, batch) }
	}
	limit := max(a.times.answer, a.options.timeout)
	err := a.db.inTimeOf(limit, func(ctx context.Context) error { return a.db.line.Answered(ctx, commit) })
	switch {
	case err == nil:
		a.counts.rows.Add(removed)
	case a.tx.Conn().PgConn().IsClosed():
		return a.cutOff(o, err)
	default:
		return o.ofBatch(verdictOfCommit(err), hinted(err))
	}
	return o
}

// commitAndRead commits, and reads the next rows in the same round trip. If they cannot be read,
// that is no error of the commit.
func (a *attempt) commitAndRead(ctx context.Context, batch *pgx.Batch) error {
	r := a.reader()
	next, begun, err := a.tx.CommitAndBegin(ctx, batch, r.queue)
	if err == nil {
		a.found = r.outcome(store.Advised(begun))
		a.tx, a.ahead = next, true
	}
	return err
}

// ofBatch returns the outcome of a batch in which it is not known which row is at fault.
func (o outcome) ofBatch(v verdict, err error) outcome {
	o.verdict, o.at = v, -1
	o.err = err
	return o
}

var errIgnored = errors.New("the handler returned nil after its connection was closed: " +
	"it ignored the error of a statement")

// checked returns the outcome of the calls in a transaction. If its connection is lost, most of
// what a handler returns is a consequence of that. gone is true if the server lacks the
// transaction.
func (a *attempt) checked(o outcome, gone bool) outcome {
	lost := a.tx.Conn().PgConn().IsClosed()
	endedContext := o.slow || worker.EndedContext(o.err)
	switch {
	case o.verdict == failed && snoozedOrDiscarded(o.err): // this counts whatever else has failed
		return o
	case lost && gone: // a statement was under way, whose end closed the connection
		return a.cutOff(o, worker.ErrGone)
	case o.verdict == refused:
		return lostOf(a.parts)
	case !lost, o.verdict == ended, o.verdict == unavailable:
		return o
	case o.verdict == failed && endedContext: // the end of a context closed the connection in use
		return o
	case o.err == nil:
		return a.cutOff(o, errIgnored)
	}
	return a.cutOff(o, o.err)
}

// timeLimits are the SQLSTATEs of transactions that the server ended, with their connection,
// because they were idle for too long, or took too long.
var timeLimits = []string{"25P03", "25P04"}

const idleTooLong = "%w; the transaction was idle for longer than %v, or open for too long: see WithIdleTimeout"

// cutOff returns the outcome of an attempt that lost its connection. A row is at fault if the
// server names a time limit, and its call took that long. Otherwise the length of a call says
// nothing: it may have waited for a statement.
func (a *attempt) cutOff(o outcome, err error) outcome {
	if o.long && slices.Contains(timeLimits, store.Code(err)) {
		o.verdict, o.at = failed, o.longAt
		o.err = fmt.Errorf(idleTooLong, err, a.options.idle)
		o.slow = true
		return o
	}
	return o.ofBatch(broke, err)
}

// queueRemoval queues the removal of handled rows, or of a blocked row that is gone or handled.
// After AtLeastOnce, rows that were changed stay, and removed becomes the number of the others.
func (a *attempt) queueRemoval(batch *pgx.Batch, rows []row, xact string, removed *int64) {
	switch {
	case len(rows) == 0:
	case !a.handler.calls.inTransaction():
		a.db.queueRemoveSame(batch, rows, xact, removed)
	default:
		a.db.queueRemove(batch, rows, xact)
	}
	if a.job.isRetry {
		a.db.queueUnblock(batch, a.parts[0], a.job.retry.id)
	}
}

// removeSame removes handled rows that were not changed, after a handler outside of a transaction.
func (a *attempt) removeSame(o outcome) outcome {
	if o.at == 0 && (!a.job.isRetry || o.verdict != handled) || o.at < 0 {
		return o
	}
	removed := int64(0)
	err := a.db.guarded(a.parts, func(ctx context.Context, tx *handlers.Transaction, xact string) error {
		rows := slices.DeleteFunc(slices.Clone(o.rows[:o.at]), func(r row) bool { return r.partition.lost })
		batch := new(pgx.Batch)
		a.queueRemoval(batch, rows, xact, &removed)
		return tx.CommitAfter(ctx, batch)
	})
	switch {
	case errors.Is(err, pgleases.ErrNotOwner):
		return outcome{verdict: refused, at: -1}
	case err != nil:
		return outcome{verdict: verdictOfCommit(err), rows: o.rows, at: -1, err: hinted(err)}
	}
	a.counts.rows.Add(removed)
	return o
}

// verdictOfCommit returns the verdict on an error of the removal or the commit. A row is at fault
// if a constraint, a trigger or what the handler did to the transaction refuses the commit, because
// that would happen again. PC001 and PC002 are from consumer_expect; 25P02: a statement of the
// handler failed; 25006: the handler made the transaction read-only; 0A: a rule; 22, 23, P0: a
// value, a constraint, or the code of a trigger.
func verdictOfCommit(err error) verdict {
	code := store.Code(err)
	refusesRow := len(code) == 5 && slices.Contains([]string{"0A", "22", "23", "P0"}, code[:2])
	switch {
	case code == "PC002":
		return ended
	case slices.Contains([]string{"PC001", "25P02", "25006"}, code):
		return failed
	case refusesRow && worker.Whose(err) == worker.Refused:
		return failed
	}
	return broke
}

// hinted adds the hint to an error of the server, for the log and for the blocked row.
func hinted(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Hint != "" {
		return fmt.Errorf("%w; %s", err, refused.Hint)
	}
	return err
}

// An inHand says which row the application's code works on. That code goes through the rows to the
// end, or it is abandoned at a row because it goes on after its context has ended, and never both.
type inHand struct {
	mu        sync.Mutex // guards the following fields
	known     bool       // it works on a row
	partition int
	id        int64
	ended     bool
	abandoned bool
}

// next begins with a row, unless the code was abandoned at the one before.
func (h *inHand) next(partition int, id int64) (ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.abandoned {
		h.known = true
		h.partition, h.id = partition, id
	}
	return !h.abandoned
}

// row returns the row.
func (h *inHand) row() (partition int, id int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.partition, h.id
}

// end ends the code, and reports whether it was abandoned before.
func (h *inHand) end() (abandoned bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	return h.abandoned
}

// abandon abandons the code at its row, unless it has ended or works on none.
func (h *inHand) abandon() (ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.abandoned = h.known && !h.ended
	return h.abandoned
}

// A reader reads rows into an outcome, and of a blocked row what is known about it.
type reader struct {
	*attempt
	out    outcome
	at     map[int]*part
	inHand inHand

	row               row // as it is read
	number            int
	attempts, crashes int  // of a blocked row
	same              bool // it is as it was when it failed
	behind            bool // another row of its key comes first
}

func (a *attempt) reader() *reader { return &reader{attempt: a, at: byNumber(a.parts)} }

// read opens a transaction in which it reads rows.
func (a *attempt) read() outcome {
	r := a.reader()
	var err error
	a.tx, err = a.db.open(a.conn, r.queue)
	return r.outcome(err)
}

// queue queues the guard of partitions, and the read of their first rows, or of a blocked row.
func (r *reader) queue(batch *pgx.Batch) {
	first := r.parts[0]
	wait, high := readWait, int64(math.MaxInt64)
	if first.search || r.job.lane == worker.Slow && !r.job.isRetry {
		wait = searchWait
	}
	if first.watched { // then it is the only one
		high = first.noted
	}
	r.db.queueGuard(batch, r.parts, wait, &r.xact)
	if !r.handler.calls.inTransaction() {
		batch.Queue("SET LOCAL synchronous_commit = on") // what is published must not be lost
	}
	if r.job.isRetry {
		read := r.collect(&r.attempts, &r.crashes, &r.same, &r.behind)
		r.db.queueReadBlocked(batch, first, r.job.retry.id, read)
	} else {
		r.db.queueRead(batch, r.parts, high, r.limit, r.collect())
	}
	batch.Queue(r.db.sql.Theirs)
}

// begin makes the context of the handler, whose time begins when its rows arrive. An earlier begin
// would blame a row for an exhausted pool, or for the commit before, if they take long. If a decoder
// still runs after that time, others get what the attempt holds.
func (r *reader) begin() (ended func()) {
	r.cancel()
	ctx, cancel := r.handlerContext(r.parts)
	r.ctx, r.cancel = ctx, cancel
	var partition int
	var id int64
	return handlers.Watch(ctx, r.times.overrun, func() {
		partition, id = r.inHand.row()
		r.log.Warn("consumer: decoder still running after its context ended", slog.Int("partition", partition),
			slog.Int64("id", id), slog.Any("cause", context.Cause(ctx)))
		r.late(&r.inHand, true)
	}, func(lasted time.Duration) {
		r.log.Info("consumer: decoder returned after its context ended", slog.Int("partition", partition),
			slog.Int64("id", id), slog.Duration("for", lasted))
	})
}

// outcome returns what was read.
func (r *reader) outcome(err error) outcome {
	o, p := r.out, r.parts[0]
	switch {
	case r.inHand.end():
		r.keep(&r.inHand)
		return broken(ErrTimeout)
	case errors.Is(err, pgleases.ErrNotOwner), r.behind:
		return outcome{verdict: refused, at: -1}
	case err != nil:
		return broken(err)
	case len(o.rows) == 0 && !r.job.isRetry:
		o.more, p.rows.triedKeys = len(p.rows.triedKeys) > 0, nil // all keys are tried again
	case len(o.rows) == 0:
	case errors.As(o.rows[0].err, new(crashError)):
		o.rows[0].attempts = r.options.attempts
	case r.same:
		o.rows[0].attempts = r.attempts
	}
	o.at = len(o.rows)
	return o
}

// collect returns what reads the rows of a query. further are the destinations of the columns
// before those of the handler.
func (r *reader) collect(further ...any) func(pgx.Rows) error {
	how := &reading{
		types: r.conn.TypeMap(), limit: r.options.bytes,
		first: append([]any{&r.number, &r.row.id, &r.row.key, &r.row.version}, further...),
	}
	how.begin = func() error {
		if !r.inHand.next(r.number, r.row.id) {
			return ErrTimeout
		}
		if r.same && r.crashes > r.options.crashes { // this attempt is counted already
			return crashError{r.crashes - 1}
		}
		return nil
	}
	how.add = func(value any, unreadable error) {
		r.row.partition = r.at[r.number]
		r.row.value, r.row.err = value, unreadable
		r.out.rows = append(r.out.rows, r.row)
	}
	return func(rows pgx.Rows) error {
		defer r.begin()()
		n, bytes, err := r.handler.collect(rows, how)
		r.counts.read(n, bytes)
		r.out.more = n == r.attempt.limit || n > len(r.out.rows)
		return err
	}
}
