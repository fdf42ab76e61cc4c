package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// A verdict is what an attempt came to.
type verdict int

const (
	handled     verdict = iota // all rows, or those until the process had to stop
	refused                    // partitions are not owned
	failed                     // a row, or the batch
	ended                      // the handler ended its transaction
	unavailable                // something that handlers need is away
	troubled                   // the rows are not at fault: the connection, the database or a lock
)

// An outcome is the result of an attempt.
type outcome struct {
	verdict
	rows []row // that were read
	more bool  // there may be more of them
	at   int   // the first row that was not handled, which may have failed; -1: it is not known which
	err  error
	slow bool // it failed by the timeout, or because the transaction was idle for too long

	longest   time.Duration // the longest call of the handler
	longestAt int           // its row; -1: the batch
}

// work does a job.
func (g *group) work(j *job) {
	if j.retry == nil {
		g.workOnRows(j, j.partitions)
	} else if !g.workOnBlocked(j) {
		g.putOff(j)
	}
}

// workOnRows handles rows of partitions that are not blocked.
func (g *group) workOnRows(j *job, parts []*partition) {
	first := parts[0]
	if first.watched && !g.note(j, first) {
		return
	}
	limit := max(1, g.batch()>>first.rows.troubles)
	if first.rows.outage > 0 || first.singly > 0 {
		limit = 1
	}
	var failing *partition // its first row failed, after rows of the batch that are committed before
	var away *outcome      // that row only said that something is away
	for {
		if parts = ownedOf(parts); len(parts) == 0 {
			return
		}
		o := g.attempt(parts, limit, nil, j.lane == worker.Slow)
		switch {
		case o.verdict == refused:
			continue
		case o.verdict == handled:
			g.took(j, parts, o)
			switch {
			case away != nil: // it is known already
				g.pauseAll(j, []*partition{failing}, *away)
			case failing != nil: // what was read before is not used again: another row may come first now
				g.workOnOne(j, failing)
			}
			return
		case o.verdict == unavailable && o.at < 0:
			g.pauseAll(j, parts, o)
			return
		case o.verdict == unavailable && o.at > 0 && g.handler.calls != atLeastOnce && !o.slow: // the rows before are committed first
			limit, failing, away = o.at, o.rows[o.at].partition, &o
		case o.verdict == unavailable:
			if o.at > 0 && g.handler.calls == atLeastOnce {
				g.took(j, parts, o)
			}
			g.pauseAll(j, []*partition{o.rows[o.at].partition}, o)
			return
		case o.verdict == troubled && len(parts) > 1 && store.LockTimeout(o.err):
			for _, p := range parts { // each comes alone next, which finds the one
				p.search, p.due = true, true
			}
			return
		case o.verdict == troubled:
			g.trouble(j, parts, o)
			return
		case o.slow:
			g.tookTooLong(j, parts, o)
			return
		case o.verdict == ended: // what was written for the rows before may be committed as well
			if o.at < 0 {
				o.at = len(o.rows) - 1
			}
			for _, r := range o.rows[:o.at+1] {
				g.charge(j, r, o.err, true)
			}
			return
		case o.at == 0 || o.at < 0 && len(o.rows) == 1:
			g.charge(j, o.rows[0], o.err, false)
			return
		case o.at > 0 && g.handler.calls == atLeastOnce: // the rows before are removed
			g.took(j, parts, o)
			g.workOnOne(j, o.rows[o.at].partition)
			return
		case o.at > 0:
			limit, failing, away = o.at, o.rows[o.at].partition, nil
		default:
			limit, failing, away = len(o.rows)/2, nil, nil
		}
	}
}

// pauseAll pauses partitions, because a handler said that something is away. If it took its whole
// timeout to find that out, they are slow too.
func (g *group) pauseAll(j *job, parts []*partition, o outcome) {
	for _, p := range parts {
		p.due = true
		g.pause(j, p, o.err)
		if o.slow {
			j.fell(p, worker.TimedOut)
		}
	}
}

// workOnOne does a job on one of its partitions, unless that has to end.
func (g *group) workOnOne(j *job, p *partition) {
	if parts := []*partition{p}; !g.halting(parts) {
		g.workOnRows(j, parts)
	}
}

// took notes what a job has handled.
func (g *group) took(j *job, parts []*partition, o outcome) {
	counts := make(map[*partition]int)
	for _, r := range o.rows[:o.at] {
		counts[r.partition]++
	}
	full, last := o.more || o.at < len(o.rows), -1
	if len(o.rows) > 0 {
		last = o.rows[min(o.at, len(o.rows)-1)].partition.Number
	}
	for _, p := range parts {
		n := counts[p]
		if n > 0 {
			g.succeeded(j, p)
		}
		if p.singly = max(0, p.singly-n); n == 0 {
			p.singly = 0 // the rows are gone
		}
		if p.search = false; p.singly == 0 {
			j.healed = append(j.healed, p)
		}
		// it may have more, if it was not read to its end
		if p.due = p.watched || full && p.Number >= last; p.due {
			p.expect = max(p.expect, n)
		} else {
			p.expect = max(1, n)
		}
	}
}

// tookTooLong notes that a batch took longer than its timeout. Its partitions are slow until they
// succeed, and the job ends, so that the worker is free for others. If it is known which row took
// so long, that is charged with a failed attempt at once. Otherwise, or if rows of its key come
// before it that were rolled back, the rows are handled one by one.
func (g *group) tookTooLong(j *job, parts []*partition, o outcome) {
	if len(o.rows) == 1 {
		o.at = 0
	}
	suspects := o.rows
	if o.at >= 0 {
		r := o.rows[o.at]
		removed := o.at > 0 && g.handler.calls == atLeastOnce
		if removed {
			g.took(j, parts, o)
		}
		sameKey := func(before row) bool { return before.partition == r.partition && before.key == r.key }
		if removed || !slices.ContainsFunc(o.rows[:o.at], sameKey) {
			j.fell(r.partition, worker.TimedOut)
			g.charge(j, r, o.err, false)
			return
		}
		suspects = slices.DeleteFunc(slices.Clone(o.rows[:o.at+1]), func(before row) bool { return before.partition != r.partition })
	}
	for _, r := range suspects {
		r.partition.singly++
		r.partition.due = true
		j.fell(r.partition, worker.TimedOut)
	}
}

// workOnBlocked handles or skips a blocked row, and reports whether it was handled, skipped or
// charged.
func (g *group) workOnBlocked(j *job) (settled bool) {
	if j.retry.skip {
		j.handled = g.skip(j)
		return j.handled
	}
	p, suspect := j.partitions[0], j.retry.suspect
	if suspect || p.watched {
		statement, args := g.sql.NoteRow, []any{g.name, p.Number, j.retry.id, p.Epoch}
		if suspect {
			statement, args = g.sql.Suspect, append(args, worker.PauseAfter(1, g.options.backoff).Milliseconds())
		}
		err := g.guarded(j.partitions, func(ctx context.Context, tx *handlers.Transaction, _ string) error {
			_, err := tx.Exec(ctx, statement, args...)
			return err
		})
		if err != nil {
			g.trouble(j, j.partitions, outcome{err: err})
			return false
		}
	}
	o := g.attempt(j.partitions, 1, j.retry, false)
	switch o.verdict {
	case handled:
		settled = true
		g.succeeded(j, p)
		p.due = true // rows of the key wait
	case unavailable:
		g.pause(j, p, o.err)
	case troubled:
		g.trouble(j, j.partitions, o)
	case failed, ended:
		settled = g.charge(j, o.rows[0], o.err, o.verdict == ended)
	}
	if suspect && !settled { // without a guard: another owner may have counted its own attempt since
		_ = g.inTime(func(ctx context.Context) error {
			return g.write(ctx, g.sql.TakeBack, g.name, p.Number, j.retry.id, p.Epoch)
		})
	}
	return settled
}

// putOff lets other blocked rows of the partition come before the job's.
func (g *group) putOff(j *job) {
	if p := j.partitions[0]; !p.lost {
		_ = g.inTime(func(ctx context.Context) error {
			return g.write(ctx, g.sql.PutOff, g.name, p.Number, j.retry.id)
		})
	}
}

// attempt reads rows, handles them, and removes those that were handled, in order.
func (g *group) attempt(parts []*partition, limit int, retry *blockedRow, slow bool) (o outcome) {
	j := parts[0].job
	j.attempt.Reset(g.attemptLimit())
	ctx, cancel := g.handlerContext(parts)
	defer cancel()
	if ctx.Err() != nil {
		return lostOf(parts)
	}
	if g.handler.calls != atLeastOnce { // the handler may need the pool once more
		if err := g.inTime(g.places.Take); err != nil {
			return outcome{verdict: troubled, at: -1, err: err}
		}
	}
	give := sync.OnceFunc(func() {
		if g.handler.calls != atLeastOnce {
			g.places.Give()
		}
	})
	defer give()
	conn, giveBack, err := g.acquire()
	if err != nil {
		giveBack()
		return outcome{verdict: troubled, at: -1, err: err}
	}
	raw := conn.Conn() // conn itself belongs to release and late, which another goroutine calls
	var once sync.Once
	var left *pgx.Conn
	release := func() {
		if once.Do(giveBack); left != nil {
			_ = g.inTime(left.Close)
		}
	}
	defer release()
	late := func() {
		give()
		once.Do(func() { left = conn.Hijack() }) // so that the pool replaces it: the handler may go on using it
		g.post(func() { g.giveSlotBack(j) })
	}
	tx, xact, o := g.read(ctx, raw, parts, limit, retry, slow, late)
	defer g.rollback(tx) // before the connection is released
	if o.verdict != handled || len(o.rows) == 0 && retry == nil {
		return o
	}
	if g.handler.calls == atLeastOnce {
		if err := g.inTime(func(ctx context.Context) error { return tx.CommitAfter(ctx, new(pgx.Batch)) }); err != nil {
			return outcome{verdict: troubled, rows: o.rows, at: -1, err: err}
		}
		release()
		if g.lease.TrustDeadline().IsZero() { // the process was frozen, and ctx may end late
			return outcome{verdict: troubled, at: -1, err: pgleases.ErrTrustLost}
		}
		o = g.call(ctx, parts, nil, o, late)
		if o.verdict == refused {
			return lostOf(parts)
		}
		return g.removeSame(parts, o, retry)
	}
	calling, gone := context.WithCancelCause(ctx)
	watched := worker.WatchTx(calling, g.pool, xact, g.times.look, func() { gone(errGone) })
	o = g.call(calling, parts, tx, o, late)
	watched()
	server := tx.Conn().PgConn()
	switch {
	case o.verdict == failed && decided(o.err):
		return o
	case server.IsClosed() && context.Cause(calling) == errGone:
		return g.cutOff(o, errGone)
	case o.verdict == refused:
		return lostOf(parts)
	case server.IsClosed() && (o.verdict == handled || o.verdict == troubled), o.verdict == failed && server.IsClosed() && !o.slow && !known(o.err).deadline:
		return g.cutOff(o, o.err)
	case o.verdict != handled:
		return o
	}
	batch, removed := new(pgx.Batch), int64(0)
	batch.Queue(g.sql.Ours)
	g.queueRemoval(batch, o.rows[:o.at], xact, retry, parts[0], &removed)
	if err := g.inTimeOf(max(g.times.answer, g.options.timeout), func(ctx context.Context) error { return tx.CommitAfter(ctx, batch) }); err != nil {
		if server.IsClosed() {
			return g.cutOff(o, err)
		}
		o.verdict, o.at, o.err = verdictOf(err), -1, hinted(err)
		return o
	}
	g.counts.rows.Add(removed)
	return o
}

// errGone is the cause of a handler's context if the server no longer has its transaction, although
// the connection has not said so.
var errGone = errors.New("consumer: the server no longer has the transaction: the connection is lost")

// cutOff returns the outcome of an attempt that lost its connection. If a call took so long that
// the server ended the idle transaction, its row is at fault.
func (g *group) cutOff(o outcome, err error) outcome {
	o.verdict, o.at, o.err = troubled, -1, err
	if o.longest >= g.options.idle {
		o.verdict, o.slow = failed, true
		o.at = o.longestAt
		o.err = fmt.Errorf("the connection was lost, probably because the transaction was idle for longer than %v: see WithIdleTimeout", g.options.idle)
	}
	return o
}

// ownedOf returns the partitions that are not known to be lost.
func ownedOf(parts []*partition) []*partition {
	return slices.DeleteFunc(slices.Clone(parts), func(p *partition) bool { return p.lost })
}

// lostOf notes which partitions are lost, and returns the outcome of an attempt that was refused.
func lostOf(parts []*partition) outcome {
	for _, p := range parts {
		p.lost = p.lost || p.Context().Err() != nil
	}
	return outcome{verdict: refused, at: -1}
}

// queueRemoval queues the removal of handled rows, or of a blocked row that is gone or handled.
// After AtLeastOnce, rows that were changed stay. removed becomes the number of rows that do not.
func (g *group) queueRemoval(batch *pgx.Batch, rows []row, xact string, retry *blockedRow, p *partition, removed *int64) {
	if len(rows) > 0 {
		numbers, ids := make([]int32, len(rows)), make([]int64, len(rows))
		for i, r := range rows {
			numbers[i], ids[i] = int32(r.partition.Number), r.id
		}
		if *removed = int64(len(rows)); g.handler.calls == atLeastOnce {
			versions := make([]string, len(rows))
			for i, r := range rows {
				versions[i] = fmt.Sprint(r.version)
			}
			batch.Queue(g.sql.RemoveSame, numbers, ids, versions, xact).QueryRow(func(row pgx.Row) error { return row.Scan(removed, nil) })
		} else {
			batch.Queue(g.sql.Remove, numbers, ids, xact)
		}
	}
	if retry != nil {
		batch.Queue(g.sql.Unblock, g.name, p.Number, retry.id)
	}
}

// A crashError is why a row is neither read nor handled again.
type crashError struct{ crashes int }

func (e crashError) Error() string {
	return fmt.Sprintf("%d processes crashed while they handled the row alone: see WithMaxCrashes", e.crashes)
}

// An inHand says which row the application's code works on, for the log.
type inHand struct{ partition, id atomic.Int64 }

func (h *inHand) set(partition int, id int64) {
	h.partition.Store(int64(partition))
	h.id.Store(id)
}

// read opens a transaction under guard of partitions, and reads their first rows, or a blocked row.
func (g *group) read(ctx context.Context, conn *pgx.Conn, parts []*partition, limit int, retry *blockedRow, slow bool, late func()) (tx *handlers.Transaction, xact string, o outcome) {
	high := int64(math.MaxInt64)
	if parts[0].watched { // then it is alone
		high = parts[0].noted
	}
	var inHand inHand
	defer handlers.Watch(ctx, g.times.overrun, func() {
		g.log.Warn("consumer: decoder still running after its context ended", slog.Int64("partition", inHand.partition.Load()),
			slog.Int64("id", inHand.id.Load()), slog.Any("cause", context.Cause(ctx)))
		late()
	})()
	at := byNumber(parts)
	var r row // as it is read
	var number int
	var attempts, crashes int                              // of a blocked row
	var same bool                                          // it is as it was when it failed
	var behind bool                                        // another row of its key comes first
	collect := func(further ...any) func(pgx.Rows) error { // destinations of the columns before those of the handler
		how := &reading{types: conn.TypeMap(), first: append([]any{&number, &r.id, &r.key, &r.version}, further...), limit: g.options.bytes}
		how.begin = func() error {
			inHand.set(number, r.id)
			if same && crashes > g.options.crashes { // this attempt is counted already
				return crashError{crashes - 1}
			}
			return nil
		}
		how.add = func(value any, unreadable error) {
			r.partition, r.value, r.err = at[number], value, unreadable
			o.rows = append(o.rows, r)
		}
		return func(rows pgx.Rows) error {
			n, bytes, err := g.handler.collect(rows, how)
			g.counts.read(n, bytes)
			o.more = n == limit || n > len(o.rows)
			return err
		}
	}
	wait := readWait
	if parts[0].search || slow {
		wait = searchWait
	}
	tx, xact, err := g.beginGuarded(conn, parts, wait, func(batch *pgx.Batch) {
		if g.handler.calls == atLeastOnce {
			batch.Queue("SET LOCAL synchronous_commit = on") // what is published must not be lost
		}
		if retry != nil {
			batch.Queue(g.sql.ReadBlocked, parts[0].Number, retry.id, g.name).Query(collect(&attempts, &crashes, &same, &behind))
		} else {
			numbers, _ := keysOf(parts)
			batch.Queue(g.sql.Read, numbers, high, g.name, limit, parts[0].rows.leaveOut()).Query(collect())
		}
		batch.Queue(g.sql.Theirs)
	})
	switch p := parts[0]; {
	case errors.Is(err, pgleases.ErrNotOwner), behind:
		return tx, xact, outcome{verdict: refused, at: -1}
	case err != nil:
		return tx, xact, outcome{verdict: troubled, at: -1, err: err}
	case len(o.rows) == 0 && retry == nil:
		o.more, p.rows.tried = len(p.rows.tried) > 0, nil // all keys again
	case len(o.rows) == 0:
	case errors.As(o.rows[0].err, new(crashError)):
		o.rows[0].attempts = g.options.attempts
	case same:
		o.rows[0].attempts = attempts
	}
	o.at = len(o.rows)
	return tx, xact, o
}

// removeSame removes handled rows that were not changed, after a handler outside of a transaction.
func (g *group) removeSame(parts []*partition, o outcome, retry *blockedRow) outcome {
	if o.at == 0 && (retry == nil || o.verdict != handled) || o.at < 0 {
		return o
	}
	removed := int64(0)
	err := g.guarded(parts, func(ctx context.Context, tx *handlers.Transaction, xact string) error {
		rows := slices.DeleteFunc(slices.Clone(o.rows[:o.at]), func(r row) bool { return r.partition.lost })
		batch := new(pgx.Batch)
		g.queueRemoval(batch, rows, xact, retry, parts[0], &removed)
		return tx.CommitAfter(ctx, batch)
	})
	switch {
	case errors.Is(err, pgleases.ErrNotOwner):
		return outcome{verdict: refused, at: -1}
	case err != nil:
		return outcome{verdict: verdictOf(err), rows: o.rows, at: -1, err: hinted(err)}
	}
	g.counts.rows.Add(removed)
	return o
}

// verdictOf returns the verdict on an error of the removal or the commit. A row is at fault if a
// constraint, a trigger or what the handler did to the transaction refuses the commit, because that
// would happen again. PC001 and PC002 are from consumer_expect; 25P02: a statement of the handler
// failed; 25006: the handler made the transaction read-only; 0A: a rule; 22, 23, P0: a value, a
// constraint, or the code of a trigger.
func verdictOf(err error) verdict {
	code := store.Code(err)
	switch {
	case code == "PC002":
		return ended
	case slices.Contains([]string{"PC001", "25P02", "25006"}, code):
		return failed
	case len(code) == 5 && slices.Contains([]string{"0A", "22", "23", "P0"}, code[:2]) && worker.Whose(err) == worker.Refused:
		return failed
	}
	return troubled
}

// hinted adds the hint to an error of the server, for the log and for the blocked row.
func hinted(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Hint != "" {
		return fmt.Errorf("%w; %s", err, refused.Hint)
	}
	return err
}

// call calls the handler, for all rows or for one after the other, and returns how far it came.
func (g *group) call(ctx context.Context, parts []*partition, tx *handlers.Transaction, o outcome, late func()) outcome {
	rows := o.rows
	began := time.Now()
	defer func() { g.counts.handler(time.Since(began), o) }()
	if i := slices.IndexFunc(rows, func(r row) bool { return r.err != nil }); i > 0 && g.handler.calls != each {
		rows = rows[:i] // before the first that cannot be read
	}
	o.rows, o.at = rows, 0
	var ofHandler pgx.Tx
	if tx != nil {
		ofHandler = tx.ForHandler()
	}
	step := len(rows)
	if g.handler.calls == each {
		step = 1
	}
	var inHand inHand
	defer handlers.Watch(ctx, g.times.overrun, func() {
		g.log.Warn("consumer: handler still running after its context ended", slog.Int64("partition", inHand.partition.Load()),
			slog.Int64("id", inHand.id.Load()), slog.Any("cause", context.Cause(ctx)))
		late()
	})()
	err := handlers.Call(func() error { // one goroutine for all rows: one for each would cost more than a quick handler
		for ; o.at < len(rows); o.at += step {
			if o.at > 0 && (g.halting(parts) || time.Since(began) > g.options.timeout/2) {
				return nil // the rows so far are committed
			}
			batch := rows[o.at : o.at+step]
			inHand.set(batch[0].partition.Number, batch[0].id)
			if err := batch[0].err; err != nil {
				o.verdict, o.err = failed, err
				return nil
			}
			switch err := g.callOnce(ctx, ofHandler, batch, &o); {
			case err != nil:
				return err
			case tx == nil:
				continue
			}
			switch server := tx.Conn().PgConn(); {
			case server.IsClosed():
				return nil
			case server.IsBusy():
				return errors.New("the handler returned nil while rows or a batch of its transaction were open: close them first")
			case server.TxStatus() == 'E':
				return errors.New("the handler returned nil after a failed statement, so its transaction cannot be committed")
			case server.TxStatus() == 'I':
				o.verdict, o.err = ended, errEnded
				return nil
			}
		}
		return nil
	})
	if err == nil {
		return o
	}
	o.verdict, o.err, o.slow = failed, err, context.Cause(ctx) == ErrTimeout
	of := known(o.err)
	if g.handler.calls != each {
		if o.at = max(of.index, -1); o.at >= step {
			o.at = -1
		}
	}
	cause := context.Cause(ctx)
	switch {
	case ctx.Err() != nil && !o.slow && cause != errGone:
		o.verdict = refused
	case of.fault == worker.Away:
		o.verdict = unavailable
	case decided(o.err):
	case o.slow:
		o.err = fmt.Errorf("%w: %v", ErrTimeout, strings.TrimPrefix(o.err.Error(), ErrTimeout.Error()+": "))
	case cause == errGone: // if the connection still works, a statement of the handler has failed
	case of.transient():
		o.verdict = troubled
	}
	return o
}

var errNotCalled = errors.New("the function of WithAround returned nil without a call of next, so the handler was not called")

var errEnded = errors.New("the handler ended its transaction: what it wrote may be committed")

// halting reports whether the process has to hand over one of the partitions, or to end.
func (g *group) halting(parts []*partition) bool {
	return g.life.Err() != nil || slices.ContainsFunc(parts, func(p *partition) bool { return p.halting.Load() })
}

// callOnce calls the handler once, and notes the longest call.
func (g *group) callOnce(ctx context.Context, tx pgx.Tx, rows []row, o *outcome) error {
	called := time.Now()
	defer func() {
		if took := time.Since(called); took > o.longest {
			o.longest, o.longestAt = took, o.at
			if len(rows) > 1 {
				o.longestAt = -1
			}
		}
	}()
	if g.options.around == nil {
		return safe(g.handler.call(ctx, tx, rows))
	}
	result := errNotCalled
	err := g.options.around(ctx, Info{g.name, rows[0].partition.Number, len(rows), rows[0].attempts + 1}, func(ctx context.Context) error {
		result = g.handler.call(ctx, tx, rows)
		return result
	})
	if err == nil {
		err = result
	}
	return safe(err)
}

// handlerContext returns the context of a handler. It ends with the timeout, and with the first of
// the ownerships.
func (g *group) handlerContext(parts []*partition) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(g.life))
	timer := time.AfterFunc(g.options.timeout, func() { cancel(ErrTimeout) })
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

func (g *group) acquire() (conn *pgxpool.Conn, release func(), err error) {
	return g.acquireAnd(func(context.Context, *pgxpool.Conn) error { return nil })
}

// acquireAnd returns a connection on which f has begun something. If the connection is not nil, the
// error is of f.
func (g *group) acquireAnd(f func(context.Context, *pgxpool.Conn) error) (conn *pgxpool.Conn, release func(), err error) {
	conn, release, err = worker.Acquire(context.WithoutCancel(g.life), g.line(), g.pool, g.times.answer, f)
	if final := worker.EndsRun(err); final != nil {
		g.stop(final)
	}
	return conn, release, err
}

func (g *group) line() *worker.Line { return &bridge.Engine(g.client).Line }

// inTime limits the time of statements besides those of handlers. They go on when the Run has
// ended, for what is in hand.
func (g *group) inTime(f func(context.Context) error) error { return g.inTimeOf(g.times.answer, f) }

func (g *group) inTimeOf(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.life), d)
	defer cancel()
	return store.Advised(f(ctx))
}

// beginGuarded begins a transaction under guard of partitions, with the further statements that
// queue adds, in one round trip, of which each waits that long for a lock at most. If a partition
// is not owned, it is marked as lost, and the error is ErrNotOwner. The transaction is not nil;
// xact identifies it.
func (g *group) beginGuarded(conn *pgx.Conn, parts []*partition, wait time.Duration, queue func(*pgx.Batch)) (tx *handlers.Transaction, xact string, err error) {
	numbers, epochs := keysOf(parts)
	open := func(batch *pgx.Batch) error {
		batch.Queue(g.sql.Open, g.lease.Name(), numbers, epochs, fmt.Sprint(g.options.idle.Milliseconds()), fmt.Sprint(wait.Milliseconds())).QueryRow(func(row pgx.Row) error {
			var lost []int32
			err := row.Scan(nil, &lost, &xact)
			for _, p := range parts {
				p.lost = p.lost || slices.Contains(lost, int32(p.Number))
			}
			return err
		})
		queue(batch)
		return nil
	}
	err = g.inTime(func(ctx context.Context) (err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(g.line().Life(), cancel)() // the connection's server may have gone
		tx, err = handlers.Begin(ctx, conn, open)
		if worker.Whose(err) == worker.Standby {
			_ = conn.Close(ctx) // otherwise the pool would go on giving it out, because it looks healthy
		}
		return err
	})
	if err == nil && slices.ContainsFunc(parts, func(p *partition) bool { return p.lost }) {
		err = pgleases.ErrNotOwner
	}
	return tx, xact, err
}

// guarded runs f in a transaction under guard of those of the partitions that are owned, and
// commits it if f did not. If none is owned, the error is ErrNotOwner.
func (g *group) guarded(parts []*partition, f func(ctx context.Context, tx *handlers.Transaction, xact string) error) error {
	for {
		owned := ownedOf(parts)
		if len(owned) == 0 {
			return pgleases.ErrNotOwner
		}
		if err := g.guardedOnce(owned, f); !errors.Is(err, pgleases.ErrNotOwner) { // of some: the others remain
			return err
		}
	}
}

func (g *group) guardedOnce(owned []*partition, f func(ctx context.Context, tx *handlers.Transaction, xact string) error) error {
	var tx *handlers.Transaction
	var xact string
	conn, release, err := g.acquireAnd(func(_ context.Context, conn *pgxpool.Conn) (err error) {
		tx, xact, err = g.beginGuarded(conn.Conn(), owned, lockWait, func(*pgx.Batch) {})
		return err
	})
	if conn == nil {
		return err
	}
	defer release()
	defer g.rollback(tx)
	if err == nil {
		err = g.inTime(func(ctx context.Context) error { return f(ctx, tx, xact) })
	}
	if err == nil && !tx.Ended() {
		err = g.inTime(func(ctx context.Context) error { return tx.CommitAfter(ctx, new(pgx.Batch)) })
	}
	return err
}

// write sends a statement in a transaction of its own, without a guard.
func (g *group) write(ctx context.Context, statement string, args ...any) error {
	return worker.InTx(ctx, g.line(), g.pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, statement, args...)
		return err
	})
}

// rollback rolls a transaction back, unless it was committed.
func (g *group) rollback(tx *handlers.Transaction) {
	if !tx.Ended() {
		_ = g.inTime(tx.Rollback)
	}
}

// hung reports whether a statement was not answered.
func hung(err error) bool { return errors.Is(err, errGone) || errors.Is(err, context.DeadlineExceeded) }

// trouble puts partitions off after an error that no row is charged with; after a blocked row, only
// their blocked rows. The tenth in a row is charged to the first row.
func (g *group) trouble(j *job, parts []*partition, o outcome) {
	g.counts.troubles.Add(1)
	if errors.Is(o.err, pgleases.ErrNotOwner) {
		return
	}
	if s := j.standing(parts[0]); len(o.rows) > 0 && s.troubles >= maxTroubles-1 {
		s.troubles = 0
		g.charge(j, o.rows[max(0, o.at)], o.err, false)
		return
	}
	for _, p := range parts {
		s := j.standing(p)
		if len(o.rows) > 0 || s.troubles < maxTroubles-3 { // without rows no row is charged
			s.troubles++
		}
		s.notBefore = time.Now().Add(min(troubleWait, 10*time.Millisecond<<min(s.troubles, 10)))
		switch locked := store.LockTimeout(o.err); {
		case locked && j.retry != nil:
			s.notBefore = time.Now().Add(troubleWait)
		case locked:
			j.fell(p, worker.Locked)
		case j.retry == nil && hung(o.err):
			j.fell(p, worker.Hung)
		}
		p.due = p.due || j.retry == nil
	}
	g.mu.Lock()
	log := time.Since(g.brokenOff) > time.Second // once for all partitions
	g.last = fmt.Sprint(o.err)
	if log {
		g.brokenOff = time.Now()
	}
	g.mu.Unlock()
	if log {
		g.log.Warn("consumer: batch broken off, repeated", slog.Int("partition", parts[0].Number), slog.Int("partitions", len(parts)), slog.Any("error", o.err))
	}
}
