package lock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/lock"
)

// An election with Await and Resign is a lock. docs/moving.md shows these lines.
func ExampleLocks_Acquire_election() {
	x := begin()
	defer x.end()
	ctx := x.ctx
	operators, err := admin.New(x.pool)
	x.Check(err)
	lead := func(ctx context.Context, token int64) { fmt.Println("it leads:", ctx.Err() == nil && token > 0) }

	candidate := func(locks *lock.Locks) error {
		term, err := locks.Acquire(ctx, "election/reports") // Await
		if err != nil {
			return err
		}
		lead(term.Context(), term.Token()) // the context ends when the leadership is lost
		x.Check(leaders(ctx, operators))
		return term.Release(context.WithoutCancel(ctx)) // Resign: the next one leads at once
	}

	for range 2 {
		if err := candidate(x.locks()); err != nil {
			log.Print(err)
		}
	}
	x.Check(leaders(ctx, operators))
	// Output:
	// it leads: true
	// election/reports has a leader: true
	// it leads: true
	// election/reports has a leader: true
}

// leaders shows who leads in each election.
func leaders(ctx context.Context, operators *admin.Admin) error {
	show := func(election, client, host string, token int64) {
		fmt.Println(election, "has a leader:", client != "" && host != "" && token > 0)
	}
	for election, err := range operators.Locks(ctx, "election/") {
		if err != nil {
			return err
		}
		for _, holder := range election.Holders {
			show(election.Name, holder.Client, holder.Host, holder.Token)
		}
	}
	return nil
}
