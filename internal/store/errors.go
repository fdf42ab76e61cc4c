package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/wrap"
)

// CodeNotOwner is the SQLSTATE that the SQL function guard raises.
const CodeNotOwner = "PL001"

// Code returns the SQLSTATE of an error that the server reported; empty for any other error.
func Code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr != nil { // an application's error may be a nil pointer of this type
		return pgErr.Code
	}
	return ""
}

const (
	codeLockTimeout = "55P03"
	codeDeadlock    = "40P01"
	codeMigrated    = "PL002" // raised by Migrate itself
)

// LockTimeout reports whether the statement waited for a lock until its lock timeout.
func LockTimeout(err error) bool { return Code(err) == codeLockTimeout }

// Full reports whether the server, the database or the role has no connection left.
func Full(err error) bool { return Code(err) == "53300" }

// LoginRemedy returns the remedy if the server refuses the login; empty for any other error.
func LoginRemedy(err error) string {
	const in = " in --database, DATABASE_URL or the PG* variables"
	switch Code(err) {
	case "28P01", "28000":
		return "the server answers, but refuses the login: correct the user or the password" + in +
			", or the server's pg_hba.conf"
	case "3D000":
		return "the server answers, but has no such database: correct its name" + in + ", or create it"
	}
	if !Unconnected(err) { // a statement may fail with these too
		return ""
	}
	switch Code(err) {
	case "42501":
		return "the server answers, but the role may not connect to the database: " +
			"GRANT CONNECT ON DATABASE ... TO it, or correct the user or the database" + in
	case "55000":
		return "the server answers, but the database allows no connections: " +
			"ALTER DATABASE ... ALLOW_CONNECTIONS true, or correct its name" + in
	case "08P01":
		return "a pooler answers, but refuses the connection: correct the database or the user" + in +
			", or see the pooler's log"
	}
	return ""
}

// Unconnected reports whether no connection could be opened.
func Unconnected(err error) bool { return errors.As(err, new(*pgconn.ConnectError)) }

// Denied reports whether the role lacks a right in a database to which it may connect.
func Denied(err error) bool { return Code(err) == "42501" && !Unconnected(err) }

// Undefined reports whether a schema, table, function or column does not exist.
func Undefined(err error) bool {
	return slices.Contains([]string{"3F000", "42P01", "42883", "42703"}, Code(err))
}

// Unprepared reports whether a connection has another prepared statement of a name, or does not
// have it, because a pooler is in between.
func Unprepared(err error) bool { return Code(err) == "42P05" || Code(err) == "26000" }

// Caused adds the cause of ctx, if that has ended, to an error that does not have it.
func Caused(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err != nil && cause != nil && !errors.Is(err, cause) {
		return wrap.Errorf("%w: %w", cause, err)
	}
	return err
}

// PrepareNothing is the remedy for an error that Unprepared reports.
const PrepareNothing = "behind a connection pooler, set default_query_exec_mode=exec in the pool's URL, " +
	"or make the pooler keep prepared statements"

// NoWrites is the remedy for a change that the server refused as read-only.
const NoWrites = "the server takes no writes, because it is a standby, or because of " +
	"default_transaction_read_only: give the address of the primary"

// Advised adds the remedy to an error of a connection of the application.
func Advised(err error) error {
	if Unprepared(err) {
		return fmt.Errorf("%w; %s", err, PrepareNothing)
	}
	return err
}
