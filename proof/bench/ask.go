package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ask returns the one row of a query: a struct by position, else a single value.
func ask[T any](ctx context.Context, pool *pgxpool.Pool, query string, args ...any) (T, error) {
	rows, err := pool.Query(ctx, query, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
}

// one returns the one value of a query.
func one[T any](ctx context.Context, pool *pgxpool.Pool, query string, args ...any) (T, error) {
	var v T
	err := pool.QueryRow(ctx, query, args...).Scan(&v)
	return v, err
}

// untilTrue waits until a query says true. It tells nobody when its answer changes, so it is asked again and again.
func untilTrue(ctx context.Context, pool *pgxpool.Pool, what, query string, args ...any) error {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		holds, err := one[bool](ctx, pool, query, args...)
		if err != nil || holds {
			return err
		}
		select {
		case <-again.C:
		case <-late.C:
			return fmt.Errorf("%w: %s, within %v", errLate, what, patience)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// atRest waits until a lease has nothing to plan and nothing to hand over.
func atRest(ctx context.Context, pool *pgxpool.Pool, lease string) error {
	return untilTrue(ctx, pool, "lease at rest", `SELECT l.next_check_at = 'infinity' AND NOT EXISTS (
    SELECT FROM pgleases.partitions AS p WHERE p.lease = l.name AND p.owner IS DISTINCT FROM p.target)
FROM pgleases.leases AS l WHERE l.name = $1`, lease)
}

// untilPlannedLongAgo waits until the last plan of a lease is more than a second old: the next join is planned at once then, not as
// one of many.
func untilPlannedLongAgo(ctx context.Context, pool *pgxpool.Pool, lease string) error {
	return untilTrue(ctx, pool, "a second since the last plan",
		"SELECT planned_at < clock_timestamp() - interval '1010 milliseconds' FROM pgleases.leases WHERE name = $1", lease)
}
