package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// measureValues compares reading what is owned with two alternatives. The first is reading the
// clock, which any implementation of a lease has to do. The second is a slice under a read-write
// lock, a common implementation that does not read the clock.
func measureValues(ctx context.Context, l *lab, out *part) {
	g := l.newGroup(ctx, l.fast, 1, 64, 0, nil)
	defer g.end()
	lease, now := g.members[0].Lease, time.Now()
	var mu sync.RWMutex // guards values
	values := slices.Clone(lease.Values())
	locked := func() []int {
		mu.RLock()
		defer mu.RUnlock()
		return values
	}
	// Each has a loop of its own, so that the compiler can inline the call as in an application.
	loops := []struct {
		name string
		loop func(n int) (sum int)
	}{
		{"`Values()`", func(n int) (sum int) {
			for range n {
				sum += len(lease.Values())
			}
			return sum
		}},
		{"`time.Since`", func(n int) (sum int) {
			for range n {
				sum += int(time.Since(now))
			}
			return sum
		}},
		{"slice under RWMutex", func(n int) (sum int) {
			for range n {
				sum += len(locked())
			}
			return sum
		}},
	}
	var sink atomic.Int64 // receives the sums, so that no call is optimized away
	calls := l.pick(2000, 20_000)
	for _, goroutines := range slices.Compact([]int{1, runtime.GOMAXPROCS(0)}) {
		var sides []side
		for _, r := range loops {
			sides = append(sides, side{r.name, fraction, func() float64 {
				began := time.Now()
				together(goroutines, func(int) { sink.Add(int64(r.loop(calls))) })
				return float64(time.Since(began)) / float64(calls)
			}})
		}
		took := l.alternate(101, sides...)
		out.compare(fmt.Sprintf("%s, goroutines: %d", took[0].name, goroutines), took[0], took[1:]...).
			goal("<= 1.2 clock reads", took[0].over(took[1]) <= 1.2)
	}
}
