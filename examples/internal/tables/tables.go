// Package tables makes the tables of an example, of which several processes may start at the same
// time.
package tables

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Create has create make a table, and whatever belongs to it, in one transaction, unless the table
// exists.
func Create(ctx context.Context, pool *pgxpool.Pool, schema, table string, create func(pgx.Tx) error) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// CREATE ... IF NOT EXISTS fails when it races itself. The number means nothing, but has to be
		// the same everywhere.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(5318008371)"); err != nil {
			return err
		}
		var exists bool
		// Not to_regclass: it may still say what was true before the wait.
		err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = $2)", schema, table).Scan(&exists)
		if err != nil || exists {
			return err
		}
		return create(tx)
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "42501" { // insufficient_privilege
		return fmt.Errorf("the user that connects must be allowed to make schemas in this database (GRANT CREATE ON DATABASE): %w", err)
	}
	return err
}
