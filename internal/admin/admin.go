// Package admin reads the leases of a schema from outside, for the command and the dashboard. It
// shows owners, live clients, waits, events and faults:
//
//	a, err := admin.New(pool)
//	for lock, err := range a.Locks(ctx, "election/") { ... } // who holds what
//
// It needs no client, and joins no lease. Only Apply writes. It makes an operator's change to
// clients or leases, and DryRun shows its effect in advance. Changes to schedules, jobs and
// consumers are in schedule.Manage and consumer.Manage.
//
// Applications do not import it. A program that looks from outside reads the views, such as
// locks_status, and calls the verbs in SQL. To know what it owns itself, it uses its own Lease.
package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/admin/sql"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

const (
	defaultSchema  = "pgleases"
	maxSchemaBytes = 63

	// answers is the time limit of the server for one statement. A snapshot of 65,536 partitions takes
	// less than a second.
	answers = 10 * time.Second
)

// An Admin reads and changes one schema. All methods are safe for concurrent use.
type Admin struct {
	pool      *pgxpool.Pool
	schema    string
	locks     *store.Locks
	pastLimit time.Duration
}

// An Option configures an Admin.
type Option func(*Admin)

// WithSchema sets the schema of the tables, as pgleases.WithSchema does for clients; default
// "pgleases".
func WithSchema(name string) Option { return func(a *Admin) { a.schema = name } }

// WithPastLimit sets how long the server may take for one question of the past; default 5 s, for a
// program that one person waits for.
func WithPastLimit(d time.Duration) Option { return func(a *Admin) { a.pastLimit = d } }

// New returns an Admin on a pool, which it borrows and never closes. It does not connect, so it
// returns an error only for a bad option. Reading needs the rights that Grants returns for
// ForReader.
func New(pool *pgxpool.Pool, opts ...Option) (*Admin, error) {
	a := &Admin{pool: pool, schema: defaultSchema, pastLimit: defaultPastLimit}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("pgleases: option is nil")
		}
		opt(a)
	}
	if pool == nil {
		return nil, errors.New("pgleases: pool is nil")
	}
	if err := checkSchema(a.schema); err != nil {
		return nil, err
	}
	a.locks = &store.Locks{Statements: store.StatementsFor(a.schema)}
	return a, nil
}

// Database returns the pool and the schema that New was given, for example for schedule.Manage.
func (a *Admin) Database() (pool *pgxpool.Pool, schema string) { return a.pool, a.schema }

func checkSchema(name string) error {
	if name == "" || len(name) > maxSchemaBytes || !utf8.ValidString(name) || strings.Contains(name, "\x00") {
		return fmt.Errorf("pgleases: schema name %q is out of range: an identifier of 1 to %d bytes of UTF-8",
			name, maxSchemaBytes)
	}
	return nil
}

// settings are those of a transaction that reads: it waits 1 s for a locked table, and uses no
// function or operator of another user in place of the system's. JSON can hold all times of UTC.
var settings = fmt.Sprintf(`
	SET LOCAL search_path = pg_catalog, pg_temp;
	SET LOCAL timezone = UTC;
	SET LOCAL jit = off;
	SET LOCAL lock_timeout = 1000;
	SET LOCAL statement_timeout = %d;
`, answers.Milliseconds())

// begin makes a message of the simple protocol, which is one transaction, read-only and of one
// snapshot.
const begin = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; "

// statement returns the text of a file in admin/sql.
func (a *Admin) statement(name string) string { return store.Texts(sql.Files, a.schema)(name) }

// collect reads the rows of a statement in admin/sql, in a read-only transaction. The statements
// need few rows of large tables, so it turns sequential scans off.
func collect[T any](ctx context.Context, a *Admin, on interface {
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
}, name string, one pgx.RowToFunc[T], args ...any) (all []T, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, on, options, func(tx pgx.Tx) error {
		if _, err := tx.Conn().PgConn().Exec(ctx, settings+"SET LOCAL enable_seqscan = off").ReadAll(); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, a.statement(name), args...) // CollectRows returns its error
		all, err = pgx.CollectRows(rows, one)
		return err
	})
	return all, err
}

// Remedies.
const (
	full = "no connection is left: see pg_stat_activity, as a superuser, for whom some are reserved; " +
		"end idle ones, or raise the limit"
	missing = "schema %q is missing in this database, or too old: name it with --schema, or run pgleases migrate"
	locked  = "nothing was done: another transaction has locked what this needs. Try again; " +
		"if that fails again, pgleases doctor names the transaction"
)

// failure adds a remedy to an error.
func (a *Admin) failure(doing string, err error) error {
	remedy := ""
	switch code := store.Code(err); {
	case err == nil:
		return nil
	case store.Undefined(err):
		remedy = fmt.Sprintf(missing, a.schema)
	case store.Denied(err):
		remedy = fmt.Sprintf("give the role what pgleases grants ROLE --for=reader prints for schema %q", a.schema)
	case worker.Whose(err) == worker.Standby:
		remedy = store.NoWrites
	case store.Full(err):
		remedy = full
	case store.Unprepared(err):
		remedy = store.PrepareNothing
	case store.LockTimeout(err):
		remedy = locked
	case code == "57014":
		remedy = "the server took too long: run pgleases doctor"
	default:
		return wrap.Errorf("pgleases: %s: %w", doing, err)
	}
	return wrap.Errorf("pgleases: %s: %w\n%s", doing, err, remedy)
}
