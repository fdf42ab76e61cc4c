package admin

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pgleases/pgleases/internal/ranges"
)

// A Range is the first and the last of consecutive partitions.
type Range [2]int

// Ranges is a set of partitions: ranges in ascending order with gaps between them. In JSON they are
// pairs, [[0,4],[7,7]].
type Ranges []Range

// Count returns the number of partitions.
func (rs Ranges) Count() (n int) {
	for _, r := range rs {
		n += r[1] - r[0] + 1
	}
	return n
}

// Contains reports whether a partition is in the ranges.
func (rs Ranges) Contains(partition int) bool {
	return slices.ContainsFunc(rs, func(r Range) bool { return r[0] <= partition && partition <= r[1] })
}

// String returns the ranges as text: "0-4,7", or "-" if there is no partition.
func (rs Ranges) String() string {
	var b strings.Builder
	for _, r := range rs {
		ranges.Write(&b, r[0], r[1])
	}
	return cmp.Or(b.String(), "-")
}

func (rs Ranges) merged() Ranges { return ranges.Merged(rs) }

// common returns the partitions that are in both.
func (rs Ranges) common(others Ranges) (both Ranges) {
	for _, r := range rs {
		for _, o := range others {
			first, last := max(r[0], o[0]), min(r[1], o[1])
			if first <= last {
				both = append(both, Range{first, last})
			}
		}
	}
	return both.merged()
}
