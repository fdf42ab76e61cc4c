package fakestore

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/store"
)

// The named locks. The SQL file of the same name, and the functions that it calls, describe what
// each statement does, and why.

// A Lock is a row of table locks; Token 0: it waits. The rows of a name are in the order of their
// tickets.
type Lock struct {
	Ticket, Session, Nonce, Token, Since int64
	Shared                               bool
}

// turn grants a lock to the sessions whose turn it is, and notifies them.
func (db *Database) turn(name string, clock int64) {
	t := &db.tables
	t.Locks[name] = slices.DeleteFunc(t.Locks[name], func(l Lock) bool { return t.Clients[l.Session].Session == 0 })
	rows := t.Locks[name]
	if len(rows) == 0 {
		delete(t.Locks, name)
	}
	if t.Server.AcceptedTimeline != db.run.Timeline {
		return
	}
	for i := range rows {
		l := &rows[i]
		if l.Token == 0 {
			if i > 0 && !l.Shared {
				return
			}
			l.Token, l.Since = db.token(), clock
			for c := range db.conns {
				if c.locks == l.Session {
					c.granted = append(c.granted, l.Nonce)
					c.wake()
				}
			}
		}
		if !l.Shared {
			return
		}
	}
}

// token draws the next token.
func (db *Database) token() int64 {
	db.tokens++
	return db.tables.Server.Generation<<32 + db.tokens
}

// place returns the index of a session's row for a nonce; -1: there is no row.
func (t *Tables) place(name string, session, nonce int64) int {
	return slices.IndexFunc(t.Locks[name], func(l Lock) bool { return l.Session == session && l.Nonce == nonce })
}

// holdsLocks reports whether a session holds or awaits locks.
func (t *Tables) holdsLocks(session int64) bool {
	for _, rows := range t.Locks {
		for _, l := range rows {
			if l.Session == session {
				return true
			}
		}
	}
	return false
}

// acquire is lockacquire.sql.
func (db *Database) acquire(r store.LockRequest, clock int64) store.LockAnswer {
	t := &db.tables
	client, alive := t.Clients[r.Session]
	switch {
	case !db.on(r.Server):
		return store.LockAnswer{Outcome: store.LockElsewhere}
	case t.Server.AcceptedTimeline != r.Server.Timeline:
		return store.LockAnswer{Outcome: store.LockUnaccepted}
	case clock > r.Latest:
		return store.LockAnswer{Outcome: store.LockLate}
	case !alive || t.Identities[client.ID].Incarnation > client.Incarnation:
		return store.LockAnswer{Outcome: store.LockGone}
	}
	if t.Locks == nil {
		t.Locks = make(map[string][]Lock)
	}
	db.turn(r.Name, clock)
	rows := t.Locks[r.Name]
	own := t.place(r.Name, r.Session, r.Nonce)
	if own >= 0 {
		return answerOf(rows[own])
	}
	l := Lock{Ticket: 1, Session: r.Session, Nonce: r.Nonce, Shared: r.Shared, Since: clock}
	if len(rows) > 0 {
		l.Ticket = rows[len(rows)-1].Ticket + 1
	}
	answer, blocked := t.inTheWay(rows, r, clock)
	if blocked && !r.Waits {
		return answer
	}
	if !blocked {
		l.Token = db.token()
	}
	t.Locks[r.Name] = append(rows, l)
	of := answerOf(l)
	answer.Outcome, answer.Token = of.Outcome, of.Token
	return answer
}

// inTheWay returns the first live client that a lock waits for, or if all have expired the first of
// these.
func (t *Tables) inTheWay(rows []Lock, r store.LockRequest, clock int64) (answer store.LockAnswer, blocked bool) {
	blocks := func(l Lock) bool { return l.Token == 0 || !l.Shared || !r.Shared }
	isLive := func(l Lock) bool { return blocks(l) && t.Clients[l.Session].ExpiresAt > clock }
	outcome, first := store.LockHeld, slices.IndexFunc(rows, isLive)
	if first < 0 {
		outcome, first = store.LockExpired, slices.IndexFunc(rows, blocks)
	}
	if first < 0 {
		return answer, false
	}
	client := t.Clients[rows[first].Session]
	return store.LockAnswer{
		Outcome:    outcome,
		Holder:     client.ID,
		Host:       client.Process.Host,
		PID:        client.Process.PID,
		Since:      time.UnixMicro(rows[first].Since),
		LivesUntil: time.UnixMicro(client.ExpiresAt),
	}, true
}

// answerOf returns the answer about a row.
func answerOf(l Lock) store.LockAnswer {
	if l.Token == 0 {
		return store.LockAnswer{Outcome: store.LockWaits}
	}
	return store.LockAnswer{Outcome: store.LockGranted, Token: l.Token}
}

// release is lockrelease.sql.
func (db *Database) release(session int64, r store.LockRelease, run store.Incarnation, clock int64) store.LockOutcome {
	t := &db.tables
	if !db.on(run) {
		return store.LockElsewhere
	}
	i := t.place(r.Name, session, r.Nonce)
	if i >= 0 {
		t.Locks[r.Name] = slices.Delete(t.Locks[r.Name], i, i+1)
		db.turn(r.Name, clock)
		return store.LockReleased
	}
	for name := range t.Locks {
		if t.place(name, session, r.Nonce) >= 0 {
			return store.LockBusy
		}
	}
	if clock <= r.Latest {
		return store.LockBusy
	}
	return store.LockAbsent
}

// ReleaseLocks is lockreleases.sql.
func (c *Conn) ReleaseLocks(
	ctx context.Context, session int64, releases []store.LockRelease, run store.Incarnation,
) (store.LocksReleased, error) {
	return execute(ctx, c, "", true, func(db *Database, _ *Tables, clock int64) (store.LocksReleased, bool) {
		answer := store.LocksReleased{SameRun: true}
		for _, r := range releases {
			switch db.release(session, r, run, clock) {
			case store.LockReleased:
				answer.Released = append(answer.Released, r.Nonce)
			case store.LockAbsent:
				answer.Absent = append(answer.Absent, r.Nonce)
			case store.LockElsewhere:
				answer.SameRun = false
			}
		}
		return answer, len(answer.Released) > 0
	})
}

// LookAtLocks is locklook.sql.
func (c *Conn) LookAtLocks(
	ctx context.Context, session int64, nonces []int64, everything bool,
) ([]store.FoundLock, store.Incarnation, error) {
	found, err := execute(ctx, c, "", true, func(db *Database, t *Tables, clock int64) ([]store.FoundLock, bool) {
		var found []store.FoundLock
		for _, name := range slices.Sorted(maps.Keys(t.Locks)) {
			for _, nonce := range nonces {
				if t.place(name, session, nonce) >= 0 {
					db.turn(name, clock)
				}
			}
			for _, l := range t.Locks[name] {
				if l.Session == session && (everything || slices.Contains(nonces, l.Nonce)) {
					found = append(found, store.FoundLock{Name: name, Nonce: l.Nonce, Token: l.Token})
				}
			}
		}
		return found, true
	})
	run := c.db.Run()
	return found, store.Incarnation{Timeline: run.Timeline, Started: run.Started}, err
}

// SweepLocks is locksweep.sql.
func (c *Conn) SweepLocks(ctx context.Context) (bool, error) {
	return execute(ctx, c, "", true, func(db *Database, t *Tables, clock int64) (bool, bool) {
		names := slices.Sorted(maps.Keys(t.Locks))
		for _, name := range names {
			db.turn(name, clock)
		}
		return true, len(names) > 0
	})
}

// ListenToLocks makes notifications arrive about grants to a session.
func (c *Conn) ListenToLocks(ctx context.Context, session int64) error {
	_, err := execute(ctx, c, "", false, func(*Database, *Tables, int64) (struct{}, bool) {
		c.locks = session
		return struct{}{}, false
	})
	return err
}

// GrantedLocks returns the nonces that notifications named since it was last called.
func (c *Conn) GrantedLocks() []int64 {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	granted := c.granted
	c.granted = nil
	return granted
}

// LockTable is the locks of this database, for package lock.
type LockTable struct{ db *Database }

// LockTable returns the locks of the database.
func (db *Database) LockTable() LockTable { return LockTable{db} }

// locked runs a statement of the application.
func locked[T any](ctx context.Context, db *Database, statement func(clock int64) T) (answer T, sent bool, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	switch {
	case db.down:
		return answer, false, ErrEnded
	case ctx.Err() != nil:
		return answer, false, context.Cause(ctx)
	}
	answer = statement(db.clock())
	db.wrote(true)
	return answer, true, nil
}

// Acquire is lockacquire.sql.
func (l LockTable) Acquire(
	ctx context.Context, r store.LockRequest, _ func(store.LockAnswer, error),
) (store.LockAnswer, bool, error) {
	return locked(ctx, l.db, func(clock int64) store.LockAnswer { return l.db.acquire(r, clock) })
}

// Release is lockrelease.sql.
func (l LockTable) Release(
	ctx context.Context, _ time.Duration, session int64, r store.LockRelease, run store.Incarnation,
) (store.LockOutcome, bool, error) {
	return locked(ctx, l.db, func(clock int64) store.LockOutcome { return l.db.release(session, r, run, clock) })
}

// List is locklist.sql.
func (l LockTable) List(ctx context.Context, prefix, after string, most int) ([]store.LockRow, error) {
	rows, _, err := locked(ctx, l.db, func(clock int64) []store.LockRow {
		t := &l.db.tables
		rows := []store.LockRow{}
		for _, name := range slices.Sorted(maps.Keys(t.Locks)) {
			if !strings.HasPrefix(name, prefix) || name <= after || len(rows) == most {
				continue
			}
			row := store.LockRow{Name: name, IDs: []string{}}
			for _, held := range t.Locks[name] {
				if held.Token == 0 {
					row.Waiting++
					continue
				}
				c := t.Clients[held.Session]
				row.Shared = row.Shared || held.Shared
				row.IDs = append(row.IDs, c.ID)
				row.Hosts = append(row.Hosts, c.Process.Host)
				row.PIDs = append(row.PIDs, c.Process.PID)
				row.Tokens = append(row.Tokens, held.Token)
				row.Since = append(row.Since, held.Since)
				row.Lost = append(row.Lost, slices.Contains(strings.Split(c.LostLocks, "\x00"), name))
				row.Silent = append(row.Silent, clock-c.ExpiresAt+c.TTL.Microseconds())
				row.Lives = append(row.Lives, c.ExpiresAt-clock)
			}
			rows = append(rows, row)
		}
		return rows
	})
	return rows, err
}

// Guard is the SQL function guard_lock, in a transaction that ends at once.
func (l LockTable) Guard(ctx context.Context, _ store.Query, name string, token, _ int64) error {
	passes, _, err := locked(ctx, l.db, func(int64) bool {
		t := &l.db.tables
		return slices.ContainsFunc(t.Locks[name], func(held Lock) bool {
			return held.Token == token && t.Clients[held.Session].Session != 0
		})
	})
	if err == nil && !passes {
		err = &pgconn.PgError{Code: store.CodeNotOwner, Message: "lock is not held"}
	}
	return err
}
