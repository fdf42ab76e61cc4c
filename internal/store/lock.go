package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/connect"
)

// Named locks. They are taken and released on connections of the application's; what has to be done
// for all of a client's locks is done on its own.

// CodeIsolation is the SQLSTATE of a transaction that cannot change locks, as it is not READ
// COMMITTED.
const CodeIsolation = "PL003"

// LockChannel is the channel of notifications for a session that waits for locks. Each names the
// nonce of what was granted.
func LockChannel(session int64) string { return fmt.Sprintf("pgleases_lock_%d", session) }

// A LockOutcome is what has become of an acquisition, or of a release, as lockacquire.sql and
// lockrelease.sql name it.
type LockOutcome string

// The outcomes of acquisitions, and of releases.
const (
	LockGranted    LockOutcome = "granted"
	LockWaits      LockOutcome = "waits"
	LockHeld       LockOutcome = "held"
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
	Latest  int64       // the last instant at which it may be carried out, by the database's clock, microseconds since 1970
	Server  Incarnation // of the server that the last heartbeat told
}

// A LockAnswer is the answer to one.
type LockAnswer struct {
	Outcome    LockOutcome
	Token      int64     // where it was granted
	Holder     string    // where somebody holds it, as all that follows: the client's ID; empty: it has expired
	Host       string    // on which the holder's process runs
	PID        int       // of that process
	Since      time.Time // it holds the lock
	LivesUntil time.Time // if it falls silent
}

// A LockRelease is a lock, or a place in its queue, to be given up.
type LockRelease struct {
	Name   string
	Nonce  int64
	Latest int64 // until when the acquisition may still arrive, as in the request; 0: it was answered
}

// A LocksReleased is the answer to several releases. Nonces that are in neither are held by a
// guarded transaction that is open, or may still arrive.
type LocksReleased struct {
	SameRun  bool
	Released numbers // there was a row
	Absent   numbers // there is none, and there will be none
}

// A FoundLock is an acquisition that the database has.
type FoundLock struct {
	Name  string
	Nonce int64
	Token int64 // 0: it waits
}

// A LockRow is what is known of a lock that somebody holds or awaits.
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
}

// LookAtLocks returns which of these acquisitions of a session the database has; everything: all of
// the session's. Run is the server's that answered, without the boot marker. See locklook.sql.
func (c *Conn) LookAtLocks(ctx context.Context, session int64, nonces []int64, everything bool) ([]FoundLock, Incarnation, error) {
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
func (c *Conn) ReleaseLocks(ctx context.Context, session int64, releases []LockRelease, run Incarnation) (LocksReleased, error) {
	names, nonces, latest := make([]string, len(releases)), make([]int64, len(releases)), make([]int64, len(releases))
	for i, r := range releases {
		names[i], nonces[i], latest[i] = r.Name, r.Nonce, r.Latest
	}
	return notifying[LocksReleased](ctx, c, c.statements.LockReleases, session, names, nonces, latest, run.Timeline, run.Started, run.Marker, c.lockWait)
}

// sweepMost is the most rows of expired sessions that one sweep looks at.
const sweepMost = 1000

// SweepLocks removes what expired sessions hold or await, and reports whether nothing is left of
// it. See locksweep.sql.
func (c *Conn) SweepLocks(ctx context.Context) (bool, error) {
	got, err := notifying[struct{ Done bool }](ctx, c, c.statements.LockSweep, sweepMost, c.lockWait)
	return got.Done, err
}

// ListenToLocks has notifications arrive of what is granted to a session. Wait returns nil for them
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

// GrantedLocks returns the nonces that notifications named since it was last called, at most as
// many as are worth to be told.
func (c *Conn) GrantedLocks() []int64 {
	granted := c.notices.granted
	c.notices.granted = nil
	return granted
}

// Locks are the statements on connections of the application's. They are not copied after their
// first use.
type Locks struct {
	Statements Statements
	LockWait   int                                                        // how long one waits for another's mutex, milliseconds
	OnConn     func(ctx context.Context, use func(*pgx.Conn) error) error // waits for a connection, until ctx ends

	notCommitted atomic.Bool // the application's transactions are not READ COMMITTED, unless they say so
}

// Acquire takes a lock, or a place in its queue. Sent tells whether the database may have been
// asked. See lockacquire.sql.
func (l *Locks) Acquire(ctx context.Context, r LockRequest) (answer LockAnswer, sent bool, err error) {
	words, sent, err := ask[[]string](ctx, ctx, l, l.Statements.LockAcquire, r.Name, r.Session, r.Nonce, r.Shared, r.Waits, r.Latest,
		r.Server.Timeline, r.Server.Started, r.Server.Marker)
	if err != nil {
		return answer, sent, err
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
	case LockHeld:
		answer.Holder, answer.Host, answer.PID = words[1], words[2], int(n(3))
		answer.Since, answer.LivesUntil = time.UnixMicro(n(4)), time.UnixMicro(n(5))
	}
	return answer, sent, err
}

// Release gives up a lock of a session. It waits for a connection so long at most. See
// lockrelease.sql.
func (l *Locks) Release(
	ctx context.Context, wait time.Duration, session int64, r LockRelease, run Incarnation,
) (became LockOutcome, sent bool, err error) {
	soon, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return ask[LockOutcome](ctx, soon, l, l.Statements.LockRelease, r.Name, session, r.Nonce, r.Latest, run.Timeline, run.Started, run.Marker)
}

// Guard fences a transaction, in which query runs a statement, for so many milliseconds of idling
// at most. See lockguard.sql.
func (l *Locks) Guard(_ context.Context, query Query, name string, token, trust int64) error {
	return query(l.Statements.LockGuard, name, token, trust)
}

// List returns the locks whose names have a prefix, from the name after one, at most that many. See
// locklist.sql.
func (l *Locks) List(ctx context.Context, conn *pgx.Conn, prefix, after string, most int) ([]LockRow, error) {
	rows, _ := conn.Query(ctx, l.Statements.LockList, prefix, after, most) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowToStructByPos[LockRow])
}

// ask sends a statement once soon gave a connection.
func ask[T any](ctx, soon context.Context, l *Locks, statement string, args ...any) (answer T, sent bool, err error) {
	err = l.OnConn(soon, func(conn *pgx.Conn) (err error) {
		sent = true
		answer, err = tolerant(func(notify bool) (T, error) {
			return value[T](ctx, l, conn, statement, append(slices.Clone(args), l.LockWait, notify)...)
		})
		return err
	})
	return answer, sent, Advised(err)
}

// value sends a statement that returns one value, in the protocol that is the connection's default:
// the application knows what its pooler takes. Where the default of transactions is not READ
// COMMITTED, the server refuses it, and the message begins with that from then on.
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
