package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Guards, of partitions and of locks, in transactions of the application.

// A Query runs a statement in a transaction of the application.
type Query func(statement string, args ...any) error

var errNoTransaction = errors.New("transaction is nil")

// InTx runs statements in a transaction of pgx.
func InTx(ctx context.Context, tx pgx.Tx) Query {
	return func(statement string, args ...any) error {
		if tx == nil {
			return errNoTransaction
		}
		_, err := tx.Exec(ctx, statement, args...)
		return Advised(err)
	}
}

// InSQLTx runs statements in a transaction of database/sql.
func InSQLTx(ctx context.Context, tx *sql.Tx) Query {
	return func(statement string, args ...any) error {
		if tx == nil {
			return errNoTransaction
		}
		_, err := tx.ExecContext(ctx, statement, args...)
		return Advised(err)
	}
}

// Refused reports whether a guard refused, with any driver.
func Refused(err error) bool { return Raised(err, CodeNotOwner) }

// Raised reports whether the database raised an error of that SQLSTATE, with any driver.
func Raised(err error, code string) bool {
	var coded interface{ SQLState() string } // drivers have only this method in common
	return errors.As(err, &coded) && coded.SQLState() == code
}
