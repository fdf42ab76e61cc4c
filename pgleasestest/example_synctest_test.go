package pgleasestest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/pgleasestest"
)

// bill is what is tested: it bills the customers of each partition that its lease owns, once an
// hour.
func bill(ctx context.Context, lease *pgleases.Lease, billed chan<- int) error {
	return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		for {
			select {
			case <-time.After(time.Hour):
				billed <- p.Number
			case <-ctx.Done():
				return nil
			}
		}
	})
}

// In your package, it is TestBillsEachHour.
func testBillsEachHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a bubble, in which an hour passes in microseconds
		// All is made in the bubble, also the channels: a channel from outside would stop its time.
		lease := pgleasestest.NewLease("customers", 8)
		billed := make(chan int, 100)
		go bill(t.Context(), lease.Lease, billed)

		lease.Gain(3)
		time.Sleep(3*time.Hour + time.Minute)
		handedOver := lease.Lose(3)
		<-handedOver
		time.Sleep(3 * time.Hour)
		lease.Close() // before the bubble ends
		close(billed)
		var got []int
		for p := range billed {
			got = append(got, p)
		}
		if want := []int{3, 3, 3}; !slices.Equal(got, want) {
			t.Errorf("billed %v, want %v", got, want)
		}
	})
}

// A test in a bubble of package testing/synctest.
func Example_synctest() {
	tests := []testing.InternalTest{{Name: "TestBillsEachHour", F: testBillsEachHour}}
	fmt.Println("tests:", len(tests))
	// Output: tests: 1
}
