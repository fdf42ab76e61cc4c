package pgleases_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
)

// A cache has the customers of the partitions that this process owns.
type cache struct{ customers map[int]int }

// keep loads and drops partitions. Two processes may have one of them for a moment, which is
// harmless for a cache. For work that must not happen twice, use Run or Hold, with Guard.
func (c *cache) keep(ctx context.Context, pool *pgxpool.Pool, partitions []int) error {
	loaded := make(map[int]int)
	for _, p := range partitions {
		n, known := c.customers[p]
		if !known {
			const count = "SELECT count(DISTINCT customer) FROM orders WHERE partition = $1"
			if err := pool.QueryRow(ctx, count, p).Scan(&n); err != nil {
				return err
			}
		}
		loaded[p] = n
	}
	c.customers = loaded
	return nil
}

// Values returns in nanoseconds what this process owns now. It is right for work that may overlap
// for a moment: caches, prefetching, probes of other systems.
func ExampleLease_Values() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, exampleURL())
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	lease, err := client.Lease(ctx, "customers", 128)
	if err != nil {
		log.Fatal(err)
	}
	var c cache
	for len(c.customers) < 128 { // a real cache goes on
		changed := lease.Changed() // before Values: a change after this line closes the channel
		if err := c.keep(ctx, pool, lease.Values()); err != nil {
			log.Print(err)
		}
		if len(c.customers) < 128 {
			select {
			case <-changed:
			case <-time.After(time.Second): // after an error
			}
		}
	}
	fmt.Println("partitions in the cache:", len(c.customers))
	if err := client.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: partitions in the cache: 128
}
