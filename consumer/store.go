package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

const (
	answerTime = 10 * time.Second // the most that a statement of a job takes
	lockWait   = time.Second      // the most that it waits for a lock
	// readWait is the most that the read of a batch waits for a lock, and searchWait the most if
	// it is known that a lock is kept there.
	readWait   = 100 * time.Millisecond
	searchWait = 10 * time.Millisecond
)

// A db sends the statements of a Run. Most of them have a method each. Those of a poll are sent by
// ask, and an attempt queues the few that only it needs. It is safe for concurrent use.
type db struct {
	pool  *pgxpool.Pool
	line  *worker.Line // of the client
	name  string       // of the consumer
	lease string       // its name
	sql   *statements
	times *timings
	idle  time.Duration // see WithIdleTimeout
	hooks bool          // the pool has hooks, which see each transaction
	// life is the context of the Run. Statements for what is in hand go on after its end.
	life context.Context
	stop context.CancelCauseFunc // ends the Run
}

func (c *Consumer) newDB(life context.Context, stop context.CancelCauseFunc) *db {
	of := c.pool.Config()
	return &db{
		pool: c.pool, line: &bridge.Engine(c.client).Line, name: c.name, lease: leaseOf + c.name, sql: &c.sql,
		times: &c.times, idle: c.options.idle, life: life, stop: stop,
		//lint:ignore SA1019 an application may still use BeforeAcquire
		hooks: of.BeforeAcquire != nil || of.PrepareConn != nil || of.AfterRelease != nil,
	}
}

// inTime limits the time of statements besides those of handlers.
func (d *db) inTime(f func(context.Context) error) error { return d.inTimeOf(d.times.answer, f) }

func (d *db) inTimeOf(limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.life), limit)
	defer cancel()
	return store.Advised(f(ctx))
}

// acquire returns a connection on which f has begun something. If the connection is not nil, the
// error is of f.
func (d *db) acquire(
	f func(context.Context, *pgxpool.Conn) error,
) (conn *pgxpool.Conn, release func(), err error) {
	conn, release, err = worker.Acquire(context.WithoutCancel(d.life), d.line, d.pool, d.times.answer, f)
	if final := worker.EndsRun(err); final != nil {
		d.stop(final)
	}
	return conn, release, err
}

// queueGuard queues the guard of partitions, the first statement of a transaction. Each statement
// waits at most wait for a lock. If a partition is not owned, it is marked as lost, and the error
// is ErrNotOwner. xact becomes what identifies the transaction.
func (d *db) queueGuard(batch *pgx.Batch, parts []*part, wait time.Duration, xact *string) {
	numbers, epochs := keysOf(parts)
	limits := []any{d.lease, numbers, epochs, fmt.Sprint(d.idle.Milliseconds()), fmt.Sprint(wait.Milliseconds())}
	batch.Queue(d.sql.Open, limits...).QueryRow(func(row pgx.Row) error {
		var lost []int32
		err := row.Scan(nil, &lost, xact)
		for _, p := range parts {
			p.lost = p.lost || slices.Contains(lost, int32(p.Number))
		}
		if len(lost) > 0 {
			return pgleases.ErrNotOwner
		}
		return err
	})
}

// open begins a transaction, which is not nil, with the statements that queue adds, in one round
// trip.
func (d *db) open(conn *pgx.Conn, queue func(*pgx.Batch)) (tx *handlers.Transaction, err error) {
	err = d.inTime(func(ctx context.Context) (err error) {
		ctx, stop := d.line.Until(ctx)
		defer stop()
		tx, err = handlers.Begin(ctx, conn, func(batch *pgx.Batch) error {
			queue(batch)
			return nil
		})
		if worker.Whose(err) == worker.Standby {
			_ = conn.Close(ctx) // otherwise the pool would go on giving it out, because it looks healthy
		}
		return err
	})
	return tx, err
}

// A guardedFunc works in a transaction under guard, which xact identifies.
type guardedFunc func(ctx context.Context, tx *handlers.Transaction, xact string) error

// guarded runs f in a transaction under guard of those of the partitions that are owned, and
// commits it if f did not. If none is owned, the error is ErrNotOwner.
func (d *db) guarded(parts []*part, f guardedFunc) error {
	for {
		owned := ownedOf(parts)
		if len(owned) == 0 {
			return pgleases.ErrNotOwner
		}
		err := d.guardedOnce(owned, f)
		if !errors.Is(err, pgleases.ErrNotOwner) { // of some: the others remain
			return err
		}
	}
}

func (d *db) guardedOnce(owned []*part, f guardedFunc) error {
	var tx *handlers.Transaction
	var xact string
	conn, release, err := d.acquire(func(_ context.Context, conn *pgxpool.Conn) (err error) {
		tx, err = d.open(conn.Conn(), func(batch *pgx.Batch) { d.queueGuard(batch, owned, lockWait, &xact) })
		return err
	})
	if conn == nil {
		return err
	}
	defer release()
	defer d.rollback(tx)
	if err == nil {
		err = d.inTime(func(ctx context.Context) error { return f(ctx, tx, xact) })
	}
	if err == nil && !tx.Ended() {
		err = d.commit(tx)
	}
	return err
}

func (d *db) commit(tx *handlers.Transaction) error {
	return d.inTime(func(ctx context.Context) error { return tx.CommitAfter(ctx, new(pgx.Batch)) })
}

// rollback rolls a transaction back, unless it was committed.
func (d *db) rollback(tx *handlers.Transaction) {
	if !tx.Ended() {
		_ = d.inTime(tx.Rollback)
	}
}

// write sends a statement in a transaction of its own, without a guard.
func (d *db) write(ctx context.Context, statement string, args ...any) error {
	return worker.InTx(ctx, d.line, d.pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, statement, args...)
		return err
	})
}

// writeSoon is write within the time limit.
func (d *db) writeSoon(statement string, args ...any) error {
	return d.inTime(func(ctx context.Context) error { return d.write(ctx, statement, args...) })
}

// A beginning is what the begin of an ownership found out about the owner before.
type beginning struct {
	number      int
	crashed     bool
	epoch       *int64 // of the owner before, if it crashed
	watched     bool
	first, last *int64 // of its batch, if it noted one
}

// begin records the begin of ownerships.
func (d *db) begin(ctx context.Context, tx pgx.Tx, owned []*part) (all []beginning, err error) {
	numbers, epochs := keysOf(owned)
	rows, err := tx.Query(ctx, d.sql.Begin, d.name, numbers, epochs)
	if err != nil {
		return nil, err
	}
	var b beginning
	_, err = pgx.ForEachRow(rows, []any{&b.number, &b.crashed, &b.epoch, &b.watched, &b.first, &b.last}, func() error {
		all = append(all, b)
		return nil
	})
	return all, err
}

// noteCrash queues that the rows which an owner had in hand are suspect. It sets whether the
// partition is watched.
func (d *db) noteCrash(batch *pgx.Batch, b beginning, watched *bool) {
	queued := batch.Queue(d.sql.Crash, d.name, b.number, b.epoch, b.first, b.last)
	queued.QueryRow(func(row pgx.Row) error { return row.Scan(watched) })
}

// end records the end of ownerships.
func (d *db) end(ctx context.Context, numbers []int32, epochs []int64) error {
	return d.write(ctx, d.sql.End, d.name, numbers, epochs)
}

// note notes which rows of a partition are handled next. found is false if there are none.
func (d *db) note(ctx context.Context, tx pgx.Tx, p *part, limit int) (found bool, err error) {
	var first, last *int64
	row := tx.QueryRow(ctx, d.sql.Note, d.name, p.Number, p.Epoch, limit, p.rows.leaveOut())
	err = row.Scan(&first, &last, &p.watched)
	if err == nil && first != nil {
		p.noted, found = *last, true
	}
	return found, err
}

// noteRow notes that a blocked row is handled next.
func (d *db) noteRow(ctx context.Context, tx pgx.Tx, p *part, id int64) error {
	_, err := tx.Exec(ctx, d.sql.NoteRow, d.name, p.Number, id, p.Epoch)
	return err
}

// countCrash counts a crash of a suspect before its attempt, and notes the row.
func (d *db) countCrash(ctx context.Context, tx pgx.Tx, p *part, id int64, pause, most time.Duration) error {
	_, err := tx.Exec(ctx, d.sql.Suspect, d.name, p.Number, id, p.Epoch, pause.Milliseconds(), most.Milliseconds())
	return err
}

// takeBack takes a counted crash back. It has no guard, because another owner may have counted its
// own attempt since.
func (d *db) takeBack(p *part, id int64) {
	_ = d.writeSoon(d.sql.TakeBack, d.name, p.Number, id, p.Epoch)
}

// putOff lets other blocked rows of the partition come before one.
func (d *db) putOff(p *part, id int64) { _ = d.writeSoon(d.sql.PutOff, d.name, p.Number, id) }

// queueRead queues the read of the first rows of partitions, up to an ID.
func (d *db) queueRead(batch *pgx.Batch, parts []*part, high int64, limit int, read func(pgx.Rows) error) {
	numbers, _ := keysOf(parts)
	statement, of := d.sql.Read, any(numbers)
	if len(parts) == 1 {
		statement, of = d.sql.ReadOne, numbers[0]
	}
	batch.Queue(statement, of, high, d.name, limit, parts[0].rows.leaveOut()).Query(read)
}

// queueReadBlocked queues the read of a blocked row.
func (d *db) queueReadBlocked(batch *pgx.Batch, p *part, id int64, read func(pgx.Rows) error) {
	batch.Queue(d.sql.ReadBlocked, p.Number, id, d.name).Query(read)
}

// queueRemove queues the removal of rows in the transaction in which they were handled.
func (d *db) queueRemove(batch *pgx.Batch, rows []row, xact string) {
	numbers, ids := placesOf(rows)
	if len(rows) == 1 {
		batch.Queue(d.sql.RemoveOne, numbers[0], ids[0], xact)
		return
	}
	batch.Queue(d.sql.Remove, numbers, ids, xact)
}

// queueRemoveSame queues the removal of those rows that were not changed since they were read.
// removed becomes their number.
func (d *db) queueRemoveSame(batch *pgx.Batch, rows []row, xact string, removed *int64) {
	numbers, ids := placesOf(rows)
	versions := make([]string, len(rows))
	for i, r := range rows {
		versions[i] = fmt.Sprint(r.version)
	}
	queued := batch.Queue(d.sql.RemoveSame, numbers, ids, versions, xact)
	queued.QueryRow(func(row pgx.Row) error { return row.Scan(removed, nil) })
}

// queueUnblock queues that a row no longer blocks its key.
func (d *db) queueUnblock(batch *pgx.Batch, p *part, id int64) {
	batch.Queue(d.sql.Unblock, d.name, p.Number, id)
}

// block records an attempt that did not succeed. The row blocks its key.
func (d *db) block(ctx context.Context, tx pgx.Tx, r row, e ending) error {
	var wait *int64
	if e.again {
		ms := max(1, e.wait.Milliseconds())
		wait = &ms
	}
	p := r.partition
	_, err := tx.Exec(ctx, d.sql.Block, d.name, p.Number, r.id, fmt.Sprint(r.version), e.attempts, e.text, wait)
	return err
}

// kill moves a row to the dead letters, unless it was changed since its last attempt.
func (d *db) kill(ctx context.Context, tx pgx.Tx, r row, e ending, xact string) error {
	p, version := r.partition, fmt.Sprint(r.version)
	return tx.QueryRow(ctx, d.sql.Kill, d.name, p.Number, r.id, version, e.attempts, e.text, xact).Scan(nil)
}

// killSkipped moves a blocked row that an operator skips to the dead letters, even if it was
// changed since it failed. text is why; it is empty if the operator has taken it back.
func (d *db) killSkipped(ctx context.Context, tx pgx.Tx, p *part, id int64, xact string) (text string, err error) {
	attempts := 0
	err = tx.QueryRow(ctx, d.sql.Skipped, d.name, p.Number, id).Scan(&attempts, &text)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err == nil {
		err = tx.QueryRow(ctx, d.sql.Kill, d.name, p.Number, id, nil, attempts, text, xact).Scan(nil)
	}
	return text, err
}

// why returns what is known about blocked rows; empty if there are none. The goroutine of loop
// calls it and waits up to lockWait. No job is at work then, but the end of an ownership waits too.
func (d *db) why() (reason string, err error) {
	answer := make(chan string, 1)
	err = handlers.InTime(d.life, lockWait, d.times.overrun, func(ctx context.Context) error {
		var text string
		err := worker.Read(ctx, d.line, d.pool, func(ctx context.Context, conn *pgxpool.Conn) error {
			return conn.QueryRow(ctx, d.sql.Why, d.name).Scan(&text)
		})
		answer <- text
		return err
	})
	if err != nil {
		return "", err
	}
	return <-answer, nil
}

// keysOf returns the numbers and the epochs of partitions.
func keysOf(parts []*part) (numbers []int32, epochs []int64) {
	for _, p := range parts {
		numbers, epochs = append(numbers, int32(p.Number)), append(epochs, p.Epoch)
	}
	return numbers, epochs
}

// placesOf returns for each row its partition and its ID.
func placesOf(rows []row) (numbers []int32, ids []int64) {
	for _, r := range rows {
		numbers, ids = append(numbers, int32(r.partition.Number)), append(ids, r.id)
	}
	return numbers, ids
}
