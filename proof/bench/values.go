package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// measureValues compares reading what is owned with reading the clock, which it cannot do without, and with a slice under
// a read-write lock, which is how it is often done, without looking at the clock.
func measureValues(ctx context.Context, l *lab, out *part) error {
	url, drop, err := newDatabase(ctx, l.fast)
	if err != nil {
		return err
	}
	defer drop()
	m, err := join(ctx, member{url: url, id: "reader", lease: "work", partitions: 64})
	if err != nil {
		return err
	}
	defer m.close()
	if err := m.Wait(ctx); err != nil {
		return err
	}
	runners := readers(m)
	rounds, calls := l.pick(11, 101), l.pick(2000, 20_000)
	for _, goroutines := range slices.Compact([]int{1, runtime.GOMAXPROCS(0)}) {
		addReads(out, goroutines, runners, race(rounds, calls, goroutines, runners))
	}
	return nil
}

// readers are two ways to read and the two that they are measured beside. Each has a loop of its own, so that the compiler
// may inline the call as it would in an application.
func readers(m *member) []runner {
	lease, now, locked := m.Lease, time.Now(), &lockedSlice{values: slices.Clone(m.Values())}
	return []runner{
		{"`Values()`", func(n int) {
			sum := 0
			for range n {
				sum += len(lease.Values())
			}
			sink.Store(int64(sum))
		}},
		{"`Owns(42)`", func(n int) {
			sum := 0
			for range n {
				if lease.Owns(42) {
					sum++
				}
			}
			sink.Store(int64(sum))
		}},
		{"`time.Since`", func(n int) {
			sum := time.Duration(0)
			for range n {
				sum += time.Since(now)
			}
			sink.Store(int64(sum))
		}},
		{"slice under RWMutex", func(n int) {
			sum := 0
			for range n {
				sum += len(locked.read())
			}
			sink.Store(int64(sum))
		}},
	}
}

// sink takes results, so that no call is left out for having none.
var sink atomic.Int64

type lockedSlice struct {
	mu     sync.RWMutex // guards values
	values []int
}

func (s *lockedSlice) read() []int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.values
}

// addReads adds a row for each of the first two runners, beside the other two.
func addReads(out *part, goroutines int, runners []runner, took [][]float64) {
	for i := range 2 {
		calls := runners[i].calls
		what := fmt.Sprintf("%s, %d goroutine", runners[i].name, goroutines)
		if goroutines > 1 {
			what += "s at once"
		}
		r := row{
			what:   what,
			figure: fmt.Sprintf("%s, %v allocations", nanoseconds(median(took[i])), testing.AllocsPerRun(100, func() { calls(1) })),
		}
		for j := 2; j < 4; j++ {
			r.floors = append(r.floors, floor{runners[j].name, nanoseconds(median(took[j])), times(median(ratios(took[i], took[j])))})
		}
		if i == 0 {
			r.goal, r.met = "<= 1.2 clock reads", judge(median(ratios(took[i], took[2])) <= 1.2)
		}
		out.add(r)
	}
}
