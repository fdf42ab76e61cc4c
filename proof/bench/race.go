package main

import (
	"sync"
	"time"
)

// A runner is something of which many calls are timed.
type runner struct {
	name  string
	calls func(n int)
}

// race times the runners in turns, so that whatever else the machine does slows all of them down. It returns, by runner and
// round, the nanoseconds of one call. With several goroutines that is the time one of them takes, while all call.
func race(rounds, calls, goroutines int, runners []runner) [][]float64 {
	took := make([][]float64, len(runners))
	for range rounds {
		for i, r := range runners {
			var wg sync.WaitGroup
			began := time.Now()
			for range goroutines {
				wg.Go(func() { r.calls(calls) })
			}
			wg.Wait()
			took[i] = append(took[i], float64(time.Since(began))/float64(calls))
		}
	}
	return took
}
