package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Lag runs a query of the application's that returns two columns, a partition's number and how much waits there, a whole number, as
//
//	SELECT partition, count(*) FROM orders WHERE NOT shipped GROUP BY partition
//
// It runs in a transaction that can write nothing, and the server ends it after limit, which is above 0. Several rows of one partition are added up.
func (a *Admin) Lag(ctx context.Context, query string, limit time.Duration) (map[int]int64, error) {
	if limit < time.Millisecond {
		return nil, fmt.Errorf("admin: limit %v of the lag query is out of range: 1ms or more", limit)
	}
	lag := make(map[int]int64)
	err := pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", limit.Milliseconds())); err != nil {
			return err
		}
		// As a part of another one it can be but a query; with an argument it is sent in the extended protocol, as one statement alone.
		inner := strings.TrimRight(strings.TrimSpace(query), ";")
		rows, err := tx.Query(ctx, "SELECT q.partition::int, q.lag::bigint FROM (\n"+inner+"\n) AS q (partition, lag) WHERE $1", pgx.QueryExecModeExec, true)
		if err != nil {
			return err
		}
		var partition *int
		var n *int64
		_, err = pgx.ForEachRow(rows, []any{&partition, &n}, func() error {
			if partition == nil || n == nil {
				return errors.New("it returned a NULL")
			}
			lag[*partition] += *n
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf(
			"admin: lag query: %w\ngive a query of two columns, a partition's number and a count, that reads only and ends within %v", err,
			limit,
		)
	}
	return lag, nil
}
