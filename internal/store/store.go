// Package store is the only code that talks SQL: one method for each statement of the protocol, on one connection. It
// decides nothing: what to send, and when, is the engine's part.
//
//   - statements.go: the texts of the files in sql/, for one schema.
//   - connect.go: a client's own connection. store.go: how a statement is sent on it. notify.go: notifications.
//   - failover.go: fast fail-over: how a connection ends, and the statements.
//   - session.go, lease.go, plan.go, lock.go: the methods, with the types that they take and return. arrays.go: how large answers are read.
//   - migrate.go: the schema's version. errors.go: what an error of the server means.
package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Conn is a connection on which the statements run. One goroutine uses it at a time.
type Conn struct {
	conn       *pgx.Conn
	line       *line
	statements Statements
	notices    *notices
	committed  bool   // the default of its transactions is READ COMMITTED
	lockWait   int    // how long a statement waits for a lock, milliseconds
	channel    string // of notifications: the schema's name
	told       told
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Closed reports whether the connection is closed: by Close, by the server, or after an error.
func (c *Conn) Closed() bool { return c.conn.IsClosed() }

// Close closes the connection. It waits up to 100 ms for the server to be told.
func (c *Conn) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	c.line.ends(c.line.own)
	_ = c.conn.Close(ctx) // the connection is closed whatever the error
	c.line.close()
}

// readCommitted begins every message but a heartbeat's, see call. The statements count on READ COMMITTED: one that waited for a
// lock goes on with what the other has written, where a higher level fails. The role or the database may have another default,
// and behind a pooler no setting of a session lasts.
const readCommitted = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

// query sends a statement as one message of the simple protocol: a pooler cannot split it over two server connections, and
// the server holds no lock while it waits for a second message. The message is one transaction, and sets the search_path: else a
// schema on the role's path could have operators that take the place of those in the statement.
func query[T any](ctx context.Context, c *Conn, row pgx.RowToFunc[T], statement string, args []any) (rows []T, err error) {
	settings := []string{readCommitted, "SET LOCAL search_path = pg_catalog, pg_temp"}
	batch := new(pgx.Batch)
	for _, setting := range settings {
		batch.Queue(setting)
	}
	batch.Queue(statement, args...)
	results := c.conn.SendBatch(ctx, batch)
	for range settings {
		if err == nil {
			_, err = results.Exec()
		}
	}
	if err == nil {
		answer, _ := results.Query() // CollectRows returns its error
		rows, err = pgx.CollectRows(answer, row)
	}
	if closing := results.Close(); err == nil {
		err = closing
	}
	return rows, err
}

// all returns every row.
func all[T any](ctx context.Context, c *Conn, statement string, args ...any) ([]T, error) {
	return query(ctx, c, pgx.RowToStructByPos[T], statement, args)
}

// one returns the row of a statement that always has exactly one.
func one[T any](ctx context.Context, c *Conn, statement string, args ...any) (T, error) {
	return oneOf(ctx, c, pgx.RowToStructByPos[T], statement, args)
}

// oneOf is one, where the row is read in another way.
func oneOf[T any](ctx context.Context, c *Conn, row pgx.RowToFunc[T], statement string, args []any) (answer T, err error) {
	rows, err := query(ctx, c, row, statement, args)
	switch {
	case err != nil:
		return answer, err
	case len(rows) != 1:
		return answer, fmt.Errorf("statement returned %d rows, not 1", len(rows))
	}
	return rows[0], nil
}

// maybe returns the first row, or nil where there is none.
func maybe[T any](ctx context.Context, c *Conn, statement string, args ...any) (*T, error) {
	got, err := all[T](ctx, c, statement, args...)
	if err != nil || len(got) == 0 {
		return nil, err
	}
	return &got[0], nil
}

// call is one for a heartbeat. The function that it calls has a search_path of its own; where the default of transactions fits too,
// the message is that statement alone.
func call[T any](ctx context.Context, c *Conn, row pgx.RowToFunc[T], statement string, args ...any) (T, error) {
	if !c.committed {
		return oneOf(ctx, c, row, statement, args)
	}
	rows, _ := c.conn.Query(ctx, statement, args...) // CollectExactlyOneRow returns its error
	return pgx.CollectExactlyOneRow(rows, row)
}

// exec runs a statement for its effect.
func (c *Conn) exec(ctx context.Context, statement string, args ...any) error {
	_, err := query(ctx, c, pgx.RowTo[any], statement, args)
	return err
}

// notifying runs a statement whose last parameter is the channel to notify; empty: none. See tolerant.
func notifying[T any](ctx context.Context, c *Conn, statement string, args ...any) (T, error) {
	return tolerant(func(notify bool) (T, error) {
		channel := ""
		if notify {
			channel = c.channel
		}
		return one[T](ctx, c, statement, append(slices.Clone(args), channel)...)
	})
}

// tolerant runs a statement once more without notifications where those fail: they only make things faster.
func tolerant[T any](statement func(notify bool) (T, error)) (T, error) {
	got, err := statement(true)
	if unnotified(err) {
		return statement(false)
	}
	return got, err
}

// unnotified reports whether a statement failed because it could not notify.
func unnotified(err error) bool {
	switch Code(err) {
	case "54000", "22023", "55000": // the queue is full, the payload is too long, the server has no notifications
		return true
	}
	return false
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
