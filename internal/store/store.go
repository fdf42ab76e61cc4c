// Package store is the only code that talks SQL: one method for each statement of the protocol, on one connection. It
// decides nothing: what to send, and when, is the engine's part.
//
//   - statements.go: the texts of the files in sql/, for one schema.
//   - connect.go: a client's own connection. store.go: how a statement is sent on it, and notifications.
//   - session.go, lease.go, plan.go: the methods, with the types that they take and return.
//   - migrate.go: the schema's version. errors.go: what an error of the server means.
package store

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Conn is a connection on which the statements run. One goroutine uses it at a time.
type Conn struct {
	conn       *pgx.Conn
	line       *line
	statements Statements
	lockWait   int    // how long a statement waits for a lock, milliseconds
	channel    string // of notifications: the schema's name
}

// Wait waits for a notification, and reports whether it names the session. The connection is still good when ctx has ended.
func (c *Conn) Wait(ctx context.Context, session int64) (bool, error) {
	n, err := c.conn.WaitForNotification(context.WithValue(ctx, waiting{}, true))
	if err != nil {
		return false, err
	}
	if n.Channel == c.channel && n.Payload == "all" {
		pause(ctx, rand.N(100*time.Millisecond)) // else all sessions would read at the same instant
		return true, nil
	}
	return n.Channel == c.channel &&
		slices.Contains(strings.Split(n.Payload, ","), strconv.FormatInt(session, 10)), nil
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
	_ = c.conn.Close(ctx) // the connection is closed whatever the error
	c.line.close()
}

// query sends a statement as one message of the simple protocol: a pooler cannot split it over two server connections, and
// the server holds no lock while it waits for a second message.
func query(ctx context.Context, c *Conn, statement string, args []any) (pgx.Rows, error) {
	return c.conn.Query(ctx, statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
}

// all returns every row.
func all[T any](ctx context.Context, c *Conn, statement string, args ...any) ([]T, error) {
	rows, err := query(ctx, c, statement, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// one returns the row of a statement that always has exactly one.
func one[T any](ctx context.Context, c *Conn, statement string, args ...any) (T, error) {
	rows, err := query(ctx, c, statement, args)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
}

// maybe returns the first row, or nil where there is none.
func maybe[T any](ctx context.Context, c *Conn, statement string, args ...any) (*T, error) {
	got, err := all[T](ctx, c, statement, args...)
	if err != nil || len(got) == 0 {
		return nil, err
	}
	return &got[0], nil
}

// exec runs a statement for its effect.
func (c *Conn) exec(ctx context.Context, statement string, args ...any) error {
	rows, err := query(ctx, c, statement, args)
	if err != nil {
		return err
	}
	rows.Close()
	return rows.Err()
}

// notifying runs a statement whose last parameter is the channel to notify. Where the notification fails, it runs the
// statement again without one: notifications only make things faster.
func notifying[T any](ctx context.Context, c *Conn, statement string, args ...any) (T, error) {
	got, err := one[T](ctx, c, statement, append(slices.Clone(args), c.channel)...)
	switch Code(err) {
	case "54000", "22023", "55000": // the queue is full, the payload is too long, the server has no notifications
		return one[T](ctx, c, statement, append(args, "")...)
	}
	return got, err
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
