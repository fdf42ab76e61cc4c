package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Named locks. They are taken and released on connections of the application's; what has to be done for all of a client's locks is done
// on its own.

// CodeIsolation is the SQLSTATE of a transaction that cannot change locks, as it is not READ COMMITTED.
const CodeIsolation = "PL003"

// LockChannel is the channel of notifications for a session that waits for locks. Each names the nonce of what was granted.
func LockChannel(session int64) string { return fmt.Sprintf("pgleases_lock_%d", session) }

// A LockOutcome is what has become of an acquisition, as lockacquire.sql names it.
type LockOutcome string

// The outcomes.
const (
	LockGranted   LockOutcome = "granted"
	LockWaits     LockOutcome = "waits"
	LockHeld      LockOutcome = "held"
	LockElsewhere LockOutcome = "elsewhere"
	LockUnsettled LockOutcome = "unsettled"
	LockLate      LockOutcome = "late"
	LockGone      LockOutcome = "gone"
)

// A LockRequest is an acquisition.
type LockRequest struct {
	Name    string
	Session int64
	Nonce   int64
	Shared  bool
	Waits   bool
	Latest  int64 // the last instant at which it may be carried out, by the database's clock, microseconds since 1970
	Run     Run   // of the server that the last heartbeat told
}

// A LockAnswer is the answer to one.
type LockAnswer struct {
	Outcome    LockOutcome
	Token      int64     // where it was granted
	Holder     string    // where somebody holds it, as all that follows: the client's ID; empty: it has died
	Host       string    // on which the holder's process runs
	PID        int       // of that process
	Since      time.Time // it holds the lock
	LivesUntil time.Time // if it falls silent
	Run        Run       // of the server that answered, where that is not the one of the request
}

// A LockRelease is a lock, or a place in its queue, to be given up.
type LockRelease struct {
	Name   string
	Nonce  int64
	Latest int64 // until when the acquisition may still arrive, as in the request; 0: it was answered
}

// A LockReleased is the answer to a release. Nonces that are in neither are held by a guarded transaction that is open, or may still
// arrive.
type LockReleased struct {
	SameRun  bool
	Released []int64 // there was a row
	Absent   []int64 // there is none, and there will be none
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
	IDs     []string // of the holders; empty: dead
	Hosts   []string
	PIDs    []int
	Tokens  []int64
	Since   []int64 // microseconds since 1970
	Silent  []int64 // microseconds since the last heartbeat
	Lives   []int64 // microseconds until the session expires
}

// LookAtLocks returns which of these acquisitions of a session the database has; everything: all of the session's. Run is the
// server's that answered, without the mark. See locklook.sql.
func (c *Conn) LookAtLocks(ctx context.Context, session int64, nonces []int64, everything bool) ([]FoundLock, Run, error) {
	type row struct {
		Timeline, Started int64
		Names             []string
		Nonces, Tokens    numbers
	}
	got, err := tolerant(func(notify bool) (row, error) {
		return one[row](ctx, c, c.statements.LockLook, session, nonces, everything, c.lockWait, notify)
	})
	if err != nil {
		return nil, Run{}, err
	}
	found := make([]FoundLock, len(got.Names))
	for i, name := range got.Names {
		found[i] = FoundLock{name, got.Nonces[i], got.Tokens[i]}
	}
	return found, Run{Timeline: got.Timeline, Started: got.Started}, nil
}

// ReleaseLocks gives up locks of a session on the client's own connection. See lockrelease.sql.
func (c *Conn) ReleaseLocks(ctx context.Context, session int64, releases []LockRelease, run Run) (LockReleased, error) {
	type row struct {
		SameRun          bool
		Released, Absent numbers
	}
	names, nonces, latest := lockColumns(releases)
	got, err := tolerant(func(notify bool) (row, error) {
		return one[row](ctx, c, c.statements.LockRelease, session, names, nonces, latest, run.Timeline, run.Started, run.Mark, c.lockWait, notify)
	})
	return LockReleased{got.SameRun, got.Released, got.Absent}, err
}

// sweepMost is the most rows of the dead that one sweep looks at.
const sweepMost = 1000

// SweepLocks removes what dead sessions hold or await, and reports whether nothing is left of it. See locksweep.sql.
func (c *Conn) SweepLocks(ctx context.Context) (bool, error) {
	got, err := tolerant(func(notify bool) (struct{ Done bool }, error) {
		return one[struct{ Done bool }](ctx, c, c.statements.LockSweep, sweepMost, c.lockWait, notify)
	})
	return got.Done, err
}

// ListenToLocks has notifications arrive of what is granted to a session. Wait returns nil for them too.
func (c *Conn) ListenToLocks(ctx context.Context, session int64) error {
	if c.notices.locks != "" {
		if err := c.exec(ctx, "UNLISTEN "+c.notices.locks); err != nil {
			return err
		}
	}
	c.notices.locks = LockChannel(session)
	return c.exec(ctx, "LISTEN "+c.notices.locks)
}

// GrantedLocks returns the nonces that notifications named since it was last called, at most as many as are worth to be told.
func (c *Conn) GrantedLocks() []int64 {
	granted := c.notices.granted
	c.notices.granted = nil
	return granted
}

func lockColumns(releases []LockRelease) (names []string, nonces, latest []int64) {
	names, nonces, latest = make([]string, len(releases)), make([]int64, len(releases)), make([]int64, len(releases))
	for i, r := range releases {
		names[i], nonces[i], latest[i] = r.Name, r.Nonce, r.Latest
	}
	return names, nonces, latest
}

// tolerant runs a statement once more without notifications where those fail: they only make things faster.
func tolerant[T any](statement func(notify bool) (T, error)) (T, error) {
	got, err := statement(true)
	if unnotified(err) {
		return statement(false)
	}
	return got, err
}

// Locks are the statements on connections of the application's. LockWait is how long one waits for another's mutex, milliseconds.
type Locks struct {
	Statements Statements
	LockWait   int
}

// Acquire takes a lock, or a place in its queue. See lockacquire.sql.
func (l Locks) Acquire(ctx context.Context, conn *pgx.Conn, r LockRequest) (LockAnswer, error) {
	row, err := tolerant(func(notify bool) ([]string, error) {
		return ask(ctx, conn.PgConn(), l.Statements.LockAcquire, r.Name, r.Session, r.Nonce, r.Shared, r.Waits, r.Latest,
			r.Run.Timeline, r.Run.Started, r.Run.Mark, l.LockWait, notify)
	})
	if err != nil {
		return LockAnswer{}, err
	}
	answer := LockAnswer{Outcome: LockOutcome(row[0]), Holder: row[2], Host: row[3]}
	var pid, since, until int64
	err = errors.Join(number(row[1], &answer.Token), number(row[4], &pid), number(row[5], &since), number(row[6], &until))
	answer.PID = int(pid)
	if answer.Outcome == LockElsewhere {
		answer.Run, answer.Token = Run{Timeline: since, Started: until, Mark: answer.Token}, 0
	} else {
		answer.Since, answer.LivesUntil = time.UnixMicro(since), time.UnixMicro(until)
	}
	return answer, err
}

// Release gives up locks of a session. See lockrelease.sql.
func (l Locks) Release(ctx context.Context, conn *pgx.Conn, session int64, releases []LockRelease, run Run) (LockReleased, error) {
	names, nonces, latest := lockColumns(releases)
	row, err := tolerant(func(notify bool) ([]string, error) {
		return ask(ctx, conn.PgConn(), l.Statements.LockRelease, session, names, nonces, latest, run.Timeline, run.Started, run.Mark, l.LockWait, notify)
	})
	if err != nil {
		return LockReleased{}, err
	}
	var released, absent numbers
	err = errors.Join(released.Scan(row[1]), absent.Scan(row[2]))
	return LockReleased{row[0] == "t", released, absent}, err
}

// List returns the locks whose names have a prefix, from the name after one, at most that many. See locklist.sql.
func (l Locks) List(ctx context.Context, conn *pgx.Conn, prefix, after string, most int) ([]LockRow, error) {
	rows, _ := conn.Query(ctx, l.Statements.LockList, pgx.QueryExecModeSimpleProtocol, prefix, after, most) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowToStructByPos[LockRow])
}

// ask sends a statement that returns one row, on a connection whose default protocol and isolation may be any: one message of the simple
// protocol, which is one transaction. pgx has that only for all that a connection sends.
func ask(ctx context.Context, conn *pgconn.PgConn, statement string, args ...any) ([]string, error) {
	text, err := inserted(conn, statement, args)
	if err != nil {
		return nil, err
	}
	results, err := conn.Exec(ctx, readCommitted+"; "+text).ReadAll()
	if err != nil {
		return nil, err
	}
	last := results[len(results)-1]
	if len(last.Rows) != 1 {
		return nil, fmt.Errorf("statement returned %d rows, not 1", len(last.Rows))
	}
	row := make([]string, len(last.Rows[0]))
	for i, value := range last.Rows[0] {
		row[i] = string(value)
	}
	return row, nil
}

// parameter is one, or a quoted identifier, which may look like one: the schema's name.
var parameter = regexp.MustCompile(`"[^"]*"|\$[0-9]+`)

// inserted puts the values of parameters into a statement.
func inserted(conn *pgconn.PgConn, statement string, args []any) (text string, err error) {
	literals := make([]string, len(args))
	for i, arg := range args {
		var value string
		switch arg := arg.(type) {
		case string:
			value = arg
		case []string:
			value = "{" + strings.Join(quotedElements(arg), ",") + "}"
		case []int64:
			value = strings.NewReplacer("[", "{", "]", "}", " ", ",").Replace(fmt.Sprint(arg))
		default: // numbers and booleans
			value = fmt.Sprint(arg)
		}
		if value, err = conn.EscapeString(value); err != nil {
			return "", err
		}
		literals[i] = "'" + value + "'"
	}
	return parameter.ReplaceAllStringFunc(statement, func(name string) string {
		n, err := strconv.Atoi(name[1:])
		if err != nil {
			return name
		}
		return literals[n-1]
	}), nil
}

// quotedElements are the elements of an array of text.
func quotedElements(words []string) []string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
	}
	return quoted
}

// number reads a number; a null is 0.
func number(text string, into *int64) (err error) {
	if text != "" {
		*into, err = strconv.ParseInt(text, 10, 64)
	}
	return err
}
