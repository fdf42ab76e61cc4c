package pgleases

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

// What is measured in the process alone. The others are beside the tests of what they measure: BenchmarkValues, BenchmarkOwns and
// BenchmarkTimeSince in values_test.go, BenchmarkPlan in rebalance_test.go. With a database, and beside floors and
// rivals: cd proof && go run ./bench.

func BenchmarkPartitionFor(b *testing.B) {
	l := &Lease{partitions: 128}
	for name, key := range map[string]string{"short": "customer-42", "long": strings.Repeat("customer-42/", 20)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.PartitionFor(key)
			}
		})
	}
}

// BenchmarkRWMutex is what Values is measured beside: a slice under a read-write lock, without a look at the clock.
func BenchmarkRWMutex(b *testing.B) {
	var mu sync.RWMutex
	values := slices.Repeat([]int{1}, 64)
	read := func() int {
		mu.RLock()
		defer mu.RUnlock()
		return len(values)
	}
	b.Run("serial", func(b *testing.B) {
		for b.Loop() {
			read()
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				read()
			}
		})
	})
}
