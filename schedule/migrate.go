package schedule

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule/sql"
)

var part = store.PartOf("schedule", sql.Files)

// Migrate creates or updates the tables of package schedule, after those of the engine. It gives
// the same promises as pgleases.Migrate. The only option is WithSchema. Any other is an error.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	o, err := onlyOptions("Migrate", opts, "WithSchema")
	if err != nil {
		return err
	}
	if err := pgleases.Migrate(ctx, pool, pgleases.WithSchema(o.schema)); err != nil {
		return err
	}
	return withConn(ctx, pool, "migrate", o.schema, part.Migrate)
}

// Schema returns the DDL of Migrate, to run after that of pgleases.Schema, for goose, tern, Flyway
// and similar tools. The only option is WithSchema. Any other is an error.
func Schema(opts ...Option) (string, error) {
	o, err := onlyOptions("Schema", opts, "WithSchema")
	if err != nil {
		return "", err
	}
	return part.DDL(o.schema), nil
}

func withConn(
	ctx context.Context, pool *pgxpool.Pool, doing, schema string, f func(context.Context, *pgx.Conn, string) error,
) error {
	err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return f(ctx, c.Conn(), schema) })
	return bridge.OpenError(ctx, "schedule", doing, schema, err)
}
