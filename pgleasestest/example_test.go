package pgleasestest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/pgleasestest"
)

// ship is what is tested: it works on the partitions that its lease owns, until ctx ends.
func ship(ctx context.Context, lease *pgleases.Lease, report func(string, pgleases.Partition)) error {
	return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		report("begins with", p)
		<-ctx.Done() // an application would ship orders meanwhile, each under Guard
		switch {
		case errors.Is(context.Cause(ctx), pgleases.ErrHandoff):
			report("hands over", p)
		case errors.Is(context.Cause(ctx), pgleases.ErrTrustLost):
			report("drops", p)
		}
		return nil
	})
}

func Example() {
	lease := pgleasestest.NewLease("orders", 8)
	defer lease.Close()

	events := make(chan string)
	go ship(context.Background(), lease.Lease, func(what string, p pgleases.Partition) {
		events <- fmt.Sprint(what, " ", p.Number)
	})

	lease.Gain(3)
	fmt.Println(<-events)
	handedOver := lease.Lose(3)
	fmt.Println(<-events)
	<-handedOver
	lease.Gain(5)
	fmt.Println(<-events)
	lease.Expire()
	fmt.Println(<-events)

	// Output:
	// begins with 3
	// hands over 3
	// begins with 5
	// drops 5
}
