package pgleases

import (
	"strings"
	"testing"
)

// What is measured in the process alone. The others are beside the tests of what they measure: BenchmarkValues, BenchmarkOwns and
// BenchmarkTimeSince in values_test.go, BenchmarkPlan in rebalance_test.go. With a database, beside lower bounds and
// competitors: cd proof && go run ./bench.

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
