// Package store sends the SQL of the protocol on a client's connection, with one method for each
// statement. It makes no decisions: the engine decides what to send, and when. Guards run in the
// transactions of others, which send their text themselves.
//
//   - statements.go: the texts of the files in sql/, for one schema.
//   - store.go: how a statement is sent on a connection of package connect. notify.go:
//     notifications.
//   - session.go, lease.go, plan.go, lock.go, liveness.go: the methods, with the types that they
//     take and return. arrays.go: how large answers are read.
//   - migrate.go: the schema's version. errors.go: what an error of the server means.
package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/connect"
)

// A Conn is a connection for the statements. One goroutine uses it at a time.
type Conn struct {
	*connect.Conn
	statements Statements
	notices    *notices
	lockWait   int // how long a statement waits for a lock, milliseconds
	schema     string
	lastLeases lastLeases
}

// A Connector opens the connections of one client, for the statements on one schema.
type Connector struct {
	*connect.Connector
	schema     string
	statements Statements
}

// NewConnector returns a connector for a schema.
func NewConnector(
	config *pgx.ConnConfig, before connect.BeforeConnect, schema string, heartbeat time.Duration,
) *Connector {
	return &Connector{connect.NewConnector(config, before, heartbeat), schema, StatementsFor(schema)}
}

// Connect opens a connection. See connect.Connector.
func (cr *Connector) Connect(ctx context.Context, perHost time.Duration) (*Conn, error) {
	notices := &notices{channel: cr.schema}
	conn, err := cr.Connector.Connect(ctx, perHost, notices.heard)
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: conn, statements: cr.statements, notices: notices, schema: cr.schema,
		lockWait: max(1, int(cr.Heartbeat.Milliseconds()/4))}, nil
}

// Pause returns after that time, or when ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// query sends a statement as one message of the simple protocol: a pooler cannot split it over two
// server connections, and the server holds no lock while it waits for a second message. The message
// is one transaction, and sets the search_path: otherwise a schema on the role's path could have
// operators that replace those in the statement. On a direct connection all settings were made
// once, which saves two statements in each message, about 40 us of the server's processor time.
func query[T any](
	ctx context.Context, c *Conn, collect func(pgx.Rows) (T, error), statement string, args ...any,
) (T, error) {
	return send(ctx, c.Pgx, c.Settings, collect, statement, args...)
}

// send sends a statement as one message, which is one transaction, after its settings. If there is
// an error it returns no result, because rows may have arrived before the commit failed.
func send[T any](
	ctx context.Context, conn *pgx.Conn, settings []string,
	collect func(pgx.Rows) (T, error), statement string, args ...any,
) (result T, err error) {
	if len(settings) == 0 {
		rows, _ := conn.Query(ctx, statement, args...) // collect returns its error
		result, err = collect(rows)
	} else {
		batch := new(pgx.Batch)
		for _, setting := range settings {
			batch.Queue(setting)
		}
		batch.Queue(statement, args...).Query(func(rows pgx.Rows) (err error) {
			result, err = collect(rows)
			return err
		})
		err = conn.SendBatch(ctx, batch).Close()
	}
	if err != nil {
		return *new(T), err
	}
	return result, nil
}

// one returns the row of a statement that always has exactly one.
func one[T any](ctx context.Context, c *Conn, statement string, args ...any) (T, error) {
	return query(ctx, c, theOne(pgx.RowToStructByPos[T]), statement, args...)
}

func theOne[T any](read pgx.RowToFunc[T]) func(pgx.Rows) (T, error) {
	return func(rows pgx.Rows) (T, error) { return pgx.CollectExactlyOneRow(rows, read) }
}

// call returns the one value of a heartbeat, which calls a function with literals only. The
// function names everything with its schema. If the default of transactions fits too, the message
// is only that statement. call writes the message and reads its answer itself, because pgx's
// handling of parameters and rows costs the client as much processor time as a part of the
// statement costs the server. If the connection is traced, it uses pgx, so that the tracer sees the
// statement.
func (c *Conn) call(ctx context.Context, statement string, values ...string) (answer string, err error) {
	first := strings.LastIndex(statement, "($1::") // the schema's name may contain the text too
	text, rest := statement[:first], statement[first:]
	for i, value := range values {
		before, after, _ := strings.Cut(rest, "$"+strconv.Itoa(i+1))
		text, rest = text+before+Literal(value), after
	}
	text += rest
	if !c.Plain || c.Traced {
		return query(ctx, c, theOne(pgx.RowTo[string]), text)
	}
	results := c.Pgx.PgConn().Exec(ctx, text)
	rows := 0
	for results.NextResult() {
		for result := results.ResultReader(); result.NextRow(); rows++ {
			answer = string(result.Values()[0])
		}
	}
	err = results.Close()
	if err == nil && rows != 1 {
		err = fmt.Errorf("statement returned %d rows, not 1", rows)
	}
	return answer, err
}

// Literal writes a string as the server reads it, with any standard_conforming_strings.
func Literal(s string) string {
	s = "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(s, `\`, `\\`)
	}
	return s
}

// column returns one value of each row, as a parameter of a statement.
func column[R, V any](rows []R, value func(R) V) []V {
	values := make([]V, len(rows))
	for i, row := range rows {
		values[i] = value(row)
	}
	return values
}

// exec runs a statement for its effect.
func (c *Conn) exec(ctx context.Context, statement string, args ...any) error {
	_, err := query(ctx, c, func(rows pgx.Rows) (none struct{}, err error) {
		rows.Close()
		return none, rows.Err()
	}, statement, args...)
	return err
}

// notifying runs a statement whose last parameter is the channel to notify; empty: do not notify.
// See tolerant.
func notifying[T any](ctx context.Context, c *Conn, statement string, args ...any) (T, error) {
	return tolerant(func(notify bool) (T, error) {
		channel := ""
		if notify {
			channel = c.notices.channel
		}
		return one[T](ctx, c, statement, append(slices.Clone(args), channel)...)
	})
}

// tolerant runs a statement again without notifications if those fail, because they only make it
// faster.
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
