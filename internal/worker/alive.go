package worker

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
)

// status asks what became of a transaction. A standby does not know those that have written
// nothing yet.
const status = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN 'in progress' " +
	"ELSE pg_catalog.pg_xact_status($1::pg_catalog.text::pg_catalog.xid8) END"

// future is the SQLSTATE for a transaction ID that the server has not given yet, for example
// because it was promoted meanwhile.
const future = "22023"

// ErrGone is the cause of a context of WatchTx if the server no longer has the transaction, though
// the connection has not said so.
var ErrGone = errors.New("the server no longer has the transaction: the connection is lost")

// WatchTx returns a context that ends with ErrGone if a transaction no longer exists on the server.
// It asks each so often, over a connection of the pool, until ctx ends or the caller calls stop. A
// statement whose server has vanished without a word would otherwise keep its handler waiting until
// the timeout, and that would look like a failure of the handler.
func WatchTx(
	ctx context.Context, pool *pgxpool.Pool, id string, every time.Duration,
) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(every, func() {
		for watched.Err() == nil {
			if Aborted(watched, pool, id, every) {
				cancel(ErrGone)
				return
			}
			select {
			case <-time.After(every):
			case <-watched.Done():
			}
		}
	})
	return watched, func() {
		timer.Stop()
		cancel(nil)
	}
}

// Aborted reports whether a transaction is known to have ended without a commit. It is false if the
// server does not answer within the limit.
func Aborted(ctx context.Context, pool *pgxpool.Pool, id string, limit time.Duration) (aborted bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var now *string
	err := handlers.Call(func() error {
		return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
			return conn.QueryRow(ctx, status, pgx.QueryExecModeExec, id).Scan(&now)
		})
	})
	if err != nil {
		return store.Code(err) == future
	}
	return now != nil && *now == "aborted"
}
