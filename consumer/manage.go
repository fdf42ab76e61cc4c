package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer/sql"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// Test for these errors with errors.Is. A method of Manager wraps one of them in an error that
// names the values.
var (
	// ErrNotFound is returned by the methods of Manager if there is no such consumer, and by Retry,
	// Skip and Return if there is no such blocked row or dead letter.
	ErrNotFound = errors.New("consumer: not found")

	// ErrExists is returned by Return and ReturnAll if the queue table has a row with the ID.
	ErrExists = errors.New("consumer: a row with this ID exists")

	// ErrInUse is returned by Delete if a process runs the consumer.
	ErrInUse = errors.New("consumer: a process runs it")

	// ErrUnknown is returned by the methods of Manager if the connection failed after the change was
	// sent. The change may be made, or not.
	ErrUnknown = errors.New("consumer: the change may have been made or not")
)

// A Manager changes a consumer for operators and tools. Its methods are safe for concurrent use.
// Each change is recorded in the table events, in its transaction, with its reason, its actor, and
// the role that connects.
type Manager struct {
	pool    *pgxpool.Pool
	name    string
	schema  string
	reason  string
	actor   string
	granted string // the statement of granted.sql
}

// WithReason gives the reason for the changes of a Manager, 1 to 4,000 bytes, and the person who
// makes them, 0 to 255 bytes. It is an option of Manage, and does nothing elsewhere.
func WithReason(reason, actor string) Option {
	return func(o *options) { o.reason, o.actor = reason, actor }
}

// Manage returns a Manager of the consumer with this name. It needs no client, and the rights that
// pgleases grants ROLE --for=consumer-operators prints. Of the options only WithSchema and
// WithReason count; without a reason, Manage returns an error. It creates no tables: if they are
// missing or too old, it returns pgleases.ErrSchema. ctx covers this call only.
func Manage(ctx context.Context, pool *pgxpool.Pool, name string, opts ...Option) (*Manager, error) {
	o, err := newOptions(opts)
	switch {
	case err != nil:
		return nil, err
	case pool == nil:
		return nil, errors.New("consumer: manage: pool is nil")
	case o.reason == "":
		return nil, fmt.Errorf("consumer: manage %q: the reason is empty: give one with WithReason", name)
	}
	if err := withConn(ctx, pool, "manage", o.schema, schemaPart.Fits); err != nil {
		return nil, err
	}
	granted := store.Texts(sql.Files, o.schema)("granted")
	return &Manager{pool: pool, name: name, schema: o.schema, reason: o.reason, actor: o.actor, granted: granted}, nil
}

// Pause pauses the consumer until Resume: its processes finish the batches in hand, and take no
// rows. It reports whether the consumer was not paused before.
func (m *Manager) Pause(ctx context.Context) (changed bool, err error) {
	err = m.change(ctx, "pause", "pause consumer %q", nil, &changed)
	return changed, err
}

// Resume ends a pause. It reports whether the consumer was paused.
func (m *Manager) Resume(ctx context.Context) (changed bool, err error) {
	err = m.change(ctx, "resume", "resume consumer %q", nil, &changed)
	return changed, err
}

// Retry makes a blocked row due now, with all its attempts. A row that is being skipped is no
// longer skipped. It returns ErrNotFound if no blocked row has this ID.
func (m *Manager) Retry(ctx context.Context, id int64) error {
	return m.change(ctx, "retry", "retry row %d of consumer %q", &id, nil)
}

// RetryAll is Retry for all blocked rows. It returns how many there are.
func (m *Manager) RetryAll(ctx context.Context) (rows int, err error) {
	err = m.change(ctx, "retry_all", "retry the rows of consumer %q", nil, &rows)
	return rows, err
}

// Skip takes a blocked row out of the queue: the owner of its partition moves it to the dead
// letters, once the consumer is not paused. It returns ErrNotFound if no blocked row has this ID.
func (m *Manager) Skip(ctx context.Context, id int64) error {
	return m.change(ctx, "skip", "skip row %d of consumer %q", &id, nil)
}

// Return puts a dead letter back into the queue table, with its ID. It is handled before other rows
// of its key. The role needs SELECT and INSERT on the table. Return returns ErrNotFound if no dead
// letter has this ID, and ErrExists if a row of the table has it.
func (m *Manager) Return(ctx context.Context, id int64) error {
	return m.change(ctx, "return", "return row %d to consumer %q", &id, nil)
}

// ReturnAll is Return for all dead letters, or for none if it returns an error. It returns how many
// there are.
func (m *Manager) ReturnAll(ctx context.Context) (rows int, err error) {
	err = m.change(ctx, "return_all", "return the dead letters of consumer %q", nil, &rows)
	return rows, err
}

// Delete deletes the consumer, with its blocked rows. Then its queue table may have another
// consumer. The table and the dead letters stay. It returns ErrInUse if a process runs the
// consumer.
func (m *Manager) Delete(ctx context.Context) error {
	return m.change(ctx, "delete", "delete consumer %q", nil, nil)
}

// change calls the SQL function of a verb, for a row if id is given, and stores its result.
func (m *Manager) change(ctx context.Context, verb, doing string, id *int64, result any) error {
	of, args := fmt.Sprintf(doing, m.name), []any{m.name, m.actor, m.reason}
	parameters := "$1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text"
	if id != nil {
		of, args = fmt.Sprintf(doing, *id, m.name), append(args, *id)
		parameters = "$1::pg_catalog.text, $4::bigint, $2::pg_catalog.text, $3::pg_catalog.text"
	}
	call := fmt.Sprintf("SELECT %s.consumer_%s(%s)", pgx.Identifier{m.schema}.Sanitize(), verb, parameters)
	err := worker.Change(ctx, m.pool, ErrUnknown, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, call, args...).Scan(result)
	})
	if err != nil {
		return wrap.Errorf("consumer: %s: %w", of, m.explained(ctx, err))
	}
	return nil
}

// explained adds to the error of a change what it means, and the remedy.
func (m *Manager) explained(ctx context.Context, err error) error {
	if worker.Whose(err) == worker.Standby {
		return wrap.Errorf("%w\n%s", err, store.NoWrites)
	}
	var told *pgconn.PgError
	if !errors.As(err, &told) {
		return store.Advised(store.Caused(ctx, err))
	}
	switch told.Code {
	case "42704":
		return wrap.Errorf("%w: %w", ErrNotFound, refusal{told})
	case "23505":
		return wrap.Errorf("%w: %w", ErrExists, refusal{told})
	case "55006":
		return wrap.Errorf("%w: %w", ErrInUse, refusal{told})
	case "22023":
		return refusal{told}
	case "42501":
		return fmt.Errorf("%w\n%s", err, m.missing(ctx))
	}
	return store.Advised(store.Caused(ctx, err))
}

// Rights that a role lacks.
const (
	onQueue   = "as the table's owner: GRANT SELECT, INSERT ON %s TO your role, and USAGE on its schema"
	onLibrary = "give the role what pgleases grants ROLE --for=consumer-operators prints for schema %q"
)

// missing says which rights to give to a role that may not make a change.
func (m *Manager) missing(ctx context.Context) string {
	var queue string
	var executes, uses bool
	err := worker.Read(ctx, nil, m.pool, func(ctx context.Context, conn *pgxpool.Conn) error {
		return conn.QueryRow(ctx, m.granted, m.name).Scan(&queue, &executes, &uses)
	})
	if err == nil && executes && !uses {
		return fmt.Sprintf(onQueue, queue)
	}
	return fmt.Sprintf(onLibrary, m.schema)
}

// A refusal is a refused change, in the words of the server, with its hint on a line of its own.
type refusal struct{ told *pgconn.PgError }

func (r refusal) Unwrap() error { return r.told }

func (r refusal) Error() string {
	if r.told.Hint == "" {
		return r.told.Message
	}
	return r.told.Message + "\n" + r.told.Hint
}
