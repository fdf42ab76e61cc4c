package lock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/lock"
)

// An election with Await and Resign is a lock. docs/moving.md shows these lines.
func ExampleLocks_Acquire_election() {
	x := begin()
	defer x.end()
	ctx := x.ctx
	lead := func(ctx context.Context, token int64) { fmt.Println("it leads:", ctx.Err() == nil && token > 0) }

	candidate := func(locks *lock.Locks) error {
		term, err := locks.Acquire(ctx, "election/reports") // Await
		if err != nil {
			return err
		}
		lead(term.Context(), term.Token()) // the context ends when the leadership is lost
		x.Check(leaders(ctx, x.pool))
		return term.Release(context.WithoutCancel(ctx)) // Resign: the next one leads at once
	}

	for range 2 {
		if err := candidate(x.locks()); err != nil {
			log.Print(err)
		}
	}
	x.Check(leaders(ctx, x.pool))
	// Output:
	// it leads: true
	// election/reports has a leader: true
	// it leads: true
	// election/reports has a leader: true
}

// leaders shows who leads in each election.
func leaders(ctx context.Context, pool *pgxpool.Pool) error {
	show := func(election, client, host string, token int64) {
		fmt.Println(election, "has a leader:", client != "" && host != "" && token > 0)
	}
	rows, err := pool.Query(ctx, `SELECT name, client, host, token FROM pgleases.locks_status
		WHERE starts_with(name, 'election/') AND state = 'holds' AND client IS NOT NULL`)
	if err != nil {
		return err
	}
	var election, client, host string
	var token int64
	_, err = pgx.ForEachRow(rows, []any{&election, &client, &host, &token}, func() error {
		show(election, client, host, token)
		return nil
	})
	return err
}
