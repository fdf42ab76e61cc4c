package pgleases_test

import (
	"context"
	"fmt"
	"log"
	"runtime"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
)

// joinAs joins the lease from another process of the same application.
func joinAs(ctx context.Context, pool *pgxpool.Pool, id string, weight int) (*pgleases.Client, *pgleases.Lease) {
	client, err := pgleases.NewClient(ctx, pool, pgleases.WithClientID(id))
	if err != nil {
		log.Fatal(err)
	}
	lease, err := client.Lease(ctx, "orders", 120, pgleases.WithWeight(weight))
	if err != nil {
		log.Fatal(err)
	}
	return client, lease
}

// Larger machines take larger shares. A real process passes runtime.GOMAXPROCS(0) as its weight.
func ExampleWithWeight() {
	_ = runtime.GOMAXPROCS(0)
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, exampleURL())
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	small, one := joinAs(ctx, pool, "small", 1)
	large, two := joinAs(ctx, pool, "large", 2)
	for len(one.Values()) != 40 || len(two.Values()) != 80 {
		select {
		case <-one.Changed():
		case <-two.Changed():
		}
	}
	fmt.Println("small", len(one.Values()), "large", len(two.Values()))
	fmt.Println(small.Close(ctx), large.Close(ctx))
	// Output:
	// small 40 large 80
	// <nil> <nil>
}
