package store

import (
	"context"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
)

// Access to the package's internals for its tests, which are outside of it.

type (
	Numbers = numbers
	Flags   = flags
)

// Raw returns the connection of the statements.
func (c *Conn) Raw() *pgx.Conn { return c.Pgx }

// Exec runs any statement as those of the protocol are run.
func (c *Conn) Exec(ctx context.Context, statement string, args ...any) error {
	return c.exec(ctx, statement, args...)
}

// Rewrite changes the texts of the statements.
func (cr *Connector) Rewrite(change func(string) string) {
	all := reflect.ValueOf(&cr.statements).Elem()
	for i := range all.NumField() {
		all.Field(i).SetString(change(all.Field(i).String()))
	}
}

// ToldBefore makes the last answer with leases older by the given time.
func (c *Conn) ToldBefore(d time.Duration) { c.lastLeases.at = c.lastLeases.at.Add(-d) }

// SetChannel changes the channel to notify.
func (c *Conn) SetChannel(name string) { c.notices.channel = name }

// Fits checks whether this code can run on the schema.
func Fits(ctx context.Context, conn *pgx.Conn, schema string) error {
	return Engine.Fits(ctx, conn, schema)
}
