package admin

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/pgleases/pgleases/internal/ranges"
)

// A Range is the partitions from First to Last.
type Range struct{ First, Last int }

// Ranges are partitions: ranges in order, none of which meets the next. In JSON they are pairs,
// [[0,4],[7,7]].
type Ranges []Range

// Count is how many partitions they are.
func (rs Ranges) Count() (n int) {
	for _, r := range rs {
		n += r.Last - r.First + 1
	}
	return n
}

// Contains reports whether a partition is one of them.
func (rs Ranges) Contains(partition int) bool {
	return slices.ContainsFunc(rs, func(r Range) bool { return r.First <= partition && partition <= r.Last })
}

// String writes them as people read them, "0-4,7"; none as "-".
func (rs Ranges) String() string {
	var b strings.Builder
	for _, r := range rs {
		ranges.Write(&b, r.First, r.Last)
	}
	return cmp.Or(b.String(), "-")
}

// MarshalJSON never fails.
func (rs Ranges) MarshalJSON() ([]byte, error) {
	pairs := make([][2]int, len(rs))
	for i, r := range rs {
		pairs[i] = [2]int{r.First, r.Last}
	}
	return json.Marshal(pairs)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (rs *Ranges) UnmarshalJSON(text []byte) error {
	var pairs [][2]int
	err := json.Unmarshal(text, &pairs)
	*rs = make(Ranges, len(pairs))
	for i, pair := range pairs {
		(*rs)[i] = Range{pair[0], pair[1]}
	}
	return err
}

// merged returns ranges of any order as Ranges are to be.
func (rs Ranges) merged() (all Ranges) {
	slices.SortFunc(rs, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	for _, r := range rs {
		if last := len(all) - 1; last >= 0 && r.First <= all[last].Last+1 {
			all[last].Last = max(all[last].Last, r.Last)
		} else {
			all = append(all, r)
		}
	}
	return all
}

// common returns the partitions that are in both.
func (rs Ranges) common(others Ranges) (both Ranges) {
	for _, r := range rs {
		for _, o := range others {
			if first, last := max(r.First, o.First), min(r.Last, o.Last); first <= last {
				both = append(both, Range{first, last})
			}
		}
	}
	return both.merged()
}
