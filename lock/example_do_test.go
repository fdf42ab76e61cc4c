package lock_test

import (
	"context"
	"log"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/lock"
)

// A migration at start-up: every process runs it under one lock, each in its turn; the first does the
// work, and the others find it done.
func ExampleLocks_Do() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, exampleURL("CREATE TABLE versions (version int NOT NULL)"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	var pods sync.WaitGroup
	for range 3 { // in a real program, one in each process
		pods.Go(func() {
			client, err := pgleases.NewClient(ctx, pool)
			if err != nil {
				log.Fatal(err)
			}
			if err := upgrade(ctx, lock.New(client, pool), pool); err != nil {
				log.Fatal(err)
			}
			if err := client.Close(ctx); err != nil {
				log.Fatal(err)
			}
		})
	}
	pods.Wait()
	// Output:
	// upgraded
	// version 7
	// version 7
}
