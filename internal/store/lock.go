package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/connect"
	"github.com/pgleases/pgleases/internal/handlers"
)

// Named locks. They are acquired and released on connections of the application. Statements about
// all of a client's locks run on the client's own connection.

// CodeIsolation is the SQLSTATE of a transaction that cannot change locks, because it is not READ
// COMMITTED.
const CodeIsolation = "PL003"

// LockChannel returns the channel of notifications for a session that waits for locks. Each
// notification names the nonce of a granted acquisition.
func LockChannel(session int64) string { return fmt.Sprintf("pgleases_lock_%d", session) }

// A LockOutcome is the outcome of an acquisition, or of a release, as lockacquire.sql and
// lockrelease.sql name it.
type LockOutcome string

// The outcomes of acquisitions, and of releases.
const (
	LockGranted    LockOutcome = "granted"
	LockWaits      LockOutcome = "waits"
	LockHeld       LockOutcome = "held"
	LockExpired    LockOutcome = "expired"
	LockUnaccepted LockOutcome = "unaccepted"
	LockLate       LockOutcome = "late"
	LockGone       LockOutcome = "gone"

	LockElsewhere LockOutcome = "elsewhere" // of both

	LockReleased LockOutcome = "released"
	LockAbsent   LockOutcome = "absent"
	LockBusy     LockOutcome = "busy"
)

// A LockRequest is an acquisition.
type LockRequest struct {
	Name    string
	Session int64
	Nonce   int64
	Shared  bool
	Waits   bool
	Latest  int64       // the last time when it may be executed, by the database's clock, microseconds since 1970
	Server  Incarnation // of the last heartbeat
}

// A LockAnswer is the answer to an acquisition.
type LockAnswer struct {
	Outcome LockOutcome
	Token   int64 // if granted
	// If it is held or awaited by others: the client ID of the first in the way. It is empty if that
	// was evicted, or is not known.
	Holder     string
	Host       string    // the host of its process
	PID        int       // of that process
	Since      time.Time // when it acquired the lock, or began to wait
	LivesUntil time.Time // without another heartbeat
}

// A LockRelease is a lock, or a place in its queue, to release.
type LockRelease struct {
	Name   string
	Nonce  int64
	Latest int64 // until when the acquisition may still arrive, as in the request; 0: it was answered
}

// A LocksReleased is the answer to several releases. Nonces in neither list are held by an open
// guarded transaction, or may still arrive.
type LocksReleased struct {
	SameRun  bool
	Released numbers // there was a row
	Absent   numbers // there is no row, and there will be none
}

// A FoundLock is an acquisition that the database has.
type FoundLock struct {
	Name  string
	Nonce int64
	Token int64 // 0: it waits
}

// A LockRow is a lock that is held or awaited.
type LockRow struct {
	Name    string
	Shared  bool
	Waiting int
	IDs     []string // of the holders; empty: expired
	Hosts   []string
	PIDs    []int
	Tokens  []int64
	Since   []int64 // microseconds since 1970
	Silent  []int64 // microseconds since the last heartbeat
	Lives   []int64 // microseconds until the session expires
	Lost    []bool  // the client has lost the lock, and has not released it
}

// LookAtLocks returns which of these acquisitions of a session the database has; everything: all of
// the session's. The Incarnation is that of the server that answered, without the boot marker. See
// locklook.sql.
func (c *Conn) LookAtLocks(
	ctx context.Context, session int64, nonces []int64, everything bool,
) ([]FoundLock, Incarnation, error) {
	type row struct {
		Timeline, Started int64
		Names             []string
		Nonces, Tokens    numbers
	}
	got, err := notifying[row](ctx, c, c.statements.LockLook, session, nonces, everything, c.lockWait)
	if err != nil {
		return nil, Incarnation{}, err
	}
	found := make([]FoundLock, len(got.Names))
	for i, name := range got.Names {
		found[i] = FoundLock{name, got.Nonces[i], got.Tokens[i]}
	}
	return found, Incarnation{Timeline: got.Timeline, Started: got.Started}, nil
}

// ReleaseLocks gives up locks of a session on the client's own connection. See lockreleases.sql.
func (c *Conn) ReleaseLocks(
	ctx context.Context, session int64, releases []LockRelease, run Incarnation,
) (LocksReleased, error) {
	names := column(releases, func(r LockRelease) string { return r.Name })
	nonces := column(releases, func(r LockRelease) int64 { return r.Nonce })
	latest := column(releases, func(r LockRelease) int64 { return r.Latest })
	return notifying[LocksReleased](ctx, c, c.statements.LockReleases,
		session, names, nonces, latest, run.Timeline, run.Started, run.Marker, c.lockWait)
}

// sweepMost is the maximum number of rows of expired sessions that one sweep checks.
const sweepMost = 1000

// SweepLocks removes the rows of expired sessions, and reports whether all of them are gone. See
// locksweep.sql.
func (c *Conn) SweepLocks(ctx context.Context) (bool, error) {
	got, err := notifying[struct{ Done bool }](ctx, c, c.statements.LockSweep, sweepMost, c.lockWait)
	return got.Done, err
}

// ListenToLocks makes notifications arrive about grants to a session. Wait returns nil for them
// too.
func (c *Conn) ListenToLocks(ctx context.Context, session int64) error {
	if c.notices.locks != "" {
		if err := c.exec(ctx, "UNLISTEN "+c.notices.locks); err != nil {
			return err
		}
	}
	c.notices.locks = LockChannel(session)
	return c.exec(ctx, "LISTEN "+c.notices.locks)
}

// GrantedLocks returns the nonces in notifications since the last call, at most grantsAtOnce.
func (c *Conn) GrantedLocks() []int64 {
	granted := c.notices.granted
	c.notices.granted = nil
	return granted
}

// Locks are the statements on connections of the application. They must not be copied after their
// first use.
type Locks struct {
	Statements Statements
	LockWait   int // how long a statement waits for another's mutex, milliseconds
	// OnConn waits for a connection, until ctx ends. The context of use is working, and also ends
	// when no answer is to be expected any more.
	OnConn func(ctx, working context.Context, use func(context.Context, *pgx.Conn) error) error

	notCommitted atomic.Bool // the default of the application's transactions is not READ COMMITTED
}

// Acquire acquires a lock, or a place in its queue. Sent reports whether the database may have
// received the request. If ctx ends before the answer, Acquire returns ErrUnanswered, and late
// gets the answer. See lockacquire.sql.
func (l *Locks) Acquire(
	ctx context.Context, r LockRequest, late func(LockAnswer, error),
) (answer LockAnswer, sent bool, err error) {
	words, sent, err := ask(ctx, ctx, l, func(words []string, err error) { late(lockAnswer(words, err)) },
		l.Statements.LockAcquire, r.Name, r.Session, r.Nonce, r.Shared, r.Waits, r.Latest,
		r.Server.Timeline, r.Server.Started, r.Server.Marker)
	answer, err = lockAnswer(words, err)
	return answer, sent, err
}

// lockAnswer reads the words of an answer, unless there is an error.
func lockAnswer(words []string, err error) (answer LockAnswer, _ error) {
	if err != nil {
		return answer, err
	}
	answer = LockAnswer{Outcome: LockOutcome(words[0])}
	n := func(i int) (n int64) {
		if err == nil {
			n, err = strconv.ParseInt(words[i], 10, 64)
		}
		return n
	}
	switch answer.Outcome {
	case LockGranted:
		answer.Token = n(1)
	case LockWaits, LockHeld, LockExpired:
		if len(words) == 1 { // repeated after a lost answer
			break
		}
		answer.Holder = words[1]
		answer.Host, answer.PID = words[2], int(n(3))
		answer.Since, answer.LivesUntil = time.UnixMicro(n(4)), time.UnixMicro(n(5))
	}
	return answer, err
}

// Release releases a lock of a session. It waits at most for the given time for a connection. If
// ctx ends before the answer, it returns ErrUnanswered. See lockrelease.sql.
func (l *Locks) Release(
	ctx context.Context, wait time.Duration, session int64, r LockRelease, run Incarnation,
) (became LockOutcome, sent bool, err error) {
	soon, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return ask(ctx, soon, l, func(LockOutcome, error) {}, l.Statements.LockRelease,
		r.Name, session, r.Nonce, r.Latest, run.Timeline, run.Started, run.Marker)
}

// Guard fences a transaction, and limits its idle time to the given milliseconds. query runs a
// statement in the transaction. See lockguard.sql.
func (l *Locks) Guard(_ context.Context, query Query, name string, token, trust int64) error {
	return query(l.Statements.LockGuard, name, token, trust)
}

// List returns at most most locks whose names have the prefix and are after the name after. See
// locklist.sql.
func (l *Locks) List(ctx context.Context, conn *pgx.Conn, prefix, after string, most int) ([]LockRow, error) {
	rows, _ := conn.Query(ctx, l.Statements.LockList, prefix, after, most) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowToStructByPos[LockRow])
}

// patience is how much longer than its caller a statement waits for its answer. A context that ends
// during a statement would close the connection, and a new one costs more than the answer.
const patience = time.Second

// answersIn is how long a statement may take. It waits for two other statements at most.
func (l *Locks) answersIn() time.Duration {
	return 2*time.Duration(l.LockWait)*time.Millisecond + patience
}

// Whether ask has sent its statement. It is decided once.
const (
	unsent    int32 = iota
	begun           // the database may have received it
	abandoned       // its caller has returned before: it is never sent
)

var errAbandoned = errors.New("the caller has given the statement up")

// ErrUnanswered is the error of a statement that was sent, if its caller has given up since.
var ErrUnanswered = errors.New("the caller has not waited for the answer")

// ask sends a statement after OnConn has provided a connection, within soon. Functions of the
// application run in it, of the pool and of its tracer. If they panic or end their goroutine, that
// becomes an error. So the statement has a goroutine of its own, and ask returns at once when ctx
// ends. If the statement was not sent by then, it never is. If it was, late gets the answer, or why
// there is no answer. If code of the application hangs, it keeps the connection, and is left
// behind.
func ask[T any](
	ctx, soon context.Context, l *Locks, late func(T, error), statement string, args ...any,
) (answer T, sent bool, err error) {
	var got T
	var state atomic.Int32
	working, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	var silent *time.Timer // of a statement, until its connection is given back
	send := func(alive context.Context, conn *pgx.Conn) (err error) {
		state.CompareAndSwap(unsent, begun) // OnConn may call it again on another connection
		if state.Load() == abandoned {
			return errAbandoned
		}
		silent = time.AfterFunc(l.answersIn(), func() { giveUp(context.DeadlineExceeded) })
		got, err = tolerant(func(notify bool) (T, error) {
			return value[T](alive, l, conn, statement, append(slices.Clone(args), l.LockWait, notify)...)
		})
		if Code(err) != "" { // it has no effect, and OnConn may wait for another connection
			silent.Stop()
		}
		return err
	}
	ended := handlers.Called(func() error {
		defer func() {
			if silent != nil {
				silent.Stop()
			}
		}()
		return l.OnConn(soon, working, send)
	})
	select {
	case err := <-ended:
		return got, state.Load() == begun, Advised(err)
	case <-working.Done():
	case <-soon.Done():
		if state.CompareAndSwap(unsent, abandoned) {
			return answer, false, context.Cause(soon)
		}
	}
	type result struct {
		answer T
		err    error
	}
	rest := make(chan result, 1)
	go func() {
		err := handlers.Await(working, patience, ended)
		if errors.Is(err, handlers.ErrHangs) { // it may still write got
			rest <- result{err: err}
			return
		}
		rest <- result{got, Advised(err)}
	}()
	select {
	case r := <-rest:
		return r.answer, true, r.err
	case <-ctx.Done():
		time.AfterFunc(patience, func() { giveUp(context.Cause(ctx)) })
		go func() { r := <-rest; late(r.answer, r.err) }()
		return answer, true, ErrUnanswered
	}
}

// value sends a statement that returns one value, in the protocol that is the connection's default,
// because the application knows what its pooler accepts. If the default of transactions is not READ
// COMMITTED, the server refuses the statement. From then on the message begins with ReadCommitted.
func value[T any](ctx context.Context, l *Locks, conn *pgx.Conn, statement string, args ...any) (T, error) {
	collect := theOne(pgx.RowTo[T])
	if !l.notCommitted.Load() {
		got, err := send(ctx, conn, nil, collect, statement, args...)
		if Code(err) != CodeIsolation {
			return got, err
		}
		l.notCommitted.Store(true)
	}
	return send(ctx, conn, []string{connect.ReadCommitted}, collect, statement, args...)
}
