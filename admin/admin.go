// Package admin looks at the leases of a schema from outside: who owns what, who is alive, what
// waits, what happened, and what is wrong. It needs no client and takes part in nothing. Apply
// alone writes: what an operator wants of clients and leases; DryRun shows before what would come
// of it. The command pgleases is made of it.
//
// All that is the business of operators: an application that wants to know what it owns asks its
// own Lease.
package admin

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/admin/sql"
	"github.com/pgleases/pgleases/internal/store"
)

const (
	defaultSchema  = "pgleases"
	maxSchemaBytes = 63

	// answers is how long the server may take for one statement. A snapshot of 65,536 partitions takes
	// a fraction of a second.
	answers = 10 * time.Second
)

// An Admin looks at one schema. All methods are safe for concurrent use.
type Admin struct {
	pool   *pgxpool.Pool
	schema string
	locks  *store.Locks
}

// An Option changes where an Admin looks.
type Option func(*Admin)

// WithSchema sets the schema of the tables, as pgleases.WithSchema does for clients; default
// "pgleases".
func WithSchema(name string) Option { return func(a *Admin) { a.schema = name } }

// New returns an Admin on a pool, which it borrows and never closes. It connects to nothing, so
// only a bad option is an error. What it reads needs the rights that Grants gives to readers.
func New(pool *pgxpool.Pool, opts ...Option) (*Admin, error) {
	a := &Admin{pool: pool, schema: defaultSchema}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("admin: option is nil")
		}
		opt(a)
	}
	if pool == nil {
		return nil, errors.New("admin: pool is nil")
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
	if name == "" || len(name) > maxSchemaBytes || !utf8.ValidString(name) {
		return fmt.Errorf("admin: schema name %q is out of range: an identifier of 1 to %d bytes of UTF-8", name, maxSchemaBytes)
	}
	return nil
}

// settings are those of a transaction that reads: it waits a second for a locked table, and calls
// no function or operator that a stranger has put before those of the system. The zone is one of
// which JSON holds all times.
var settings = fmt.Sprintf("SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL timezone = UTC; SET LOCAL jit = off; "+
	"SET LOCAL lock_timeout = 1000; SET LOCAL statement_timeout = %d; ", answers.Milliseconds())

// begin has a message of the simple protocol, which is one transaction, read one snapshot and write
// nothing.
const begin = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; "

// statement returns the text of a file in admin/sql.
func (a *Admin) statement(name string) string { return store.Texts(sql.Files, a.schema)(name) }

// collect reads the rows of a statement in admin/sql, in a transaction that writes nothing. However
// many there are, few are read: where the server takes all of a table for what it looks for, it
// would read all of it.
func collect[T any](ctx context.Context, a *Admin, on interface {
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
}, name string, one pgx.RowToFunc[T], args ...any) (all []T, err error) {
	err = pgx.BeginTxFunc(ctx, on, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Conn().PgConn().Exec(ctx, settings+"SET LOCAL enable_seqscan = off").ReadAll(); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, a.statement(name), args...) // CollectRows returns its error
		all, err = pgx.CollectRows(rows, one)
		return err
	})
	return all, err
}

// full is what to do where no connection is left.
const full = "no connection is left: see in pg_stat_activity who has them, as a superuser, for whom some are reserved; end idle ones, or raise the limit"

// failure says what to do about an error.
func (a *Admin) failure(doing string, err error) error {
	remedy := ""
	switch code := store.Code(err); {
	case err == nil:
		return nil
	case store.Undefined(err):
		remedy = fmt.Sprintf("schema %q is missing in this database, or too old: name it with --schema, or run pgleases migrate", a.schema)
	case store.Denied(err):
		remedy = fmt.Sprintf("give the role what pgleases grants ROLE --for=reader prints for schema %q", a.schema)
	case code == "0A000":
		remedy = "the server is a standby, which lacks a part of the tables: look at the primary"
	case code == "25006":
		remedy = "the server takes no writes, being a standby, or by default_transaction_read_only: give the address of the primary"
	case store.Full(err):
		remedy = full
	case store.Unprepared(err):
		remedy = store.PrepareNothing
	case store.LockTimeout(err):
		remedy = "nothing was done: another transaction has locked what this needs. Try again; where that does not help, pgleases doctor tells which"
	case code == "57014":
		remedy = "the server took too long: run pgleases doctor"
	case code == "25P03":
		remedy = fmt.Sprintf(
			"nothing was done: this program took longer than %v between what it read and the commit, for which clients wait. Try again where it is less busy, or nearer to the database, or do it without a fingerprint",
			stopped,
		)
	}
	if remedy == "" {
		return fmt.Errorf("admin: %s: %w", doing, err)
	}
	return fmt.Errorf("admin: %s: %w\n%s", doing, err, remedy)
}
