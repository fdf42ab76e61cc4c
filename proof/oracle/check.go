package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Report is the result of comparing the logs.
type Report struct {
	// Violations describe, in one line each, two intervals that overlap, epochs that repeat or
	// fall, and clients that showed partitions past their trust deadline, or lost partitions
	// without ending their contexts. The promise is that the list is empty.
	Violations []string

	Overlaps  int
	Clients   int
	Intervals int
	Reads     int64
	Gaps      []Gap // sorted by partition, then by time
}

// A Gap is a time when no client was seen to hold a partition.
type Gap struct {
	Before, After Interval
}

// Length returns how long the gap lasted.
func (g Gap) Length() time.Duration { return g.After.First.Sub(g.Before.Last) }

func (r Report) String() string {
	return fmt.Sprintf("%d overlaps, %d violations in all, %d clients, %d intervals, %d reads",
		r.Overlaps, len(r.Violations), r.Clients, r.Intervals, r.Reads)
}

// Check compares the logs of all clients of one lease, or of all clients that took the same locks.
// Shared holds of a lock may overlap.
func Check(logs []Log) Report {
	r := Report{Clients: len(logs)}
	partitions := make(map[int][]Interval)
	for _, log := range logs {
		r.Reads += log.Reads
		r.Intervals += len(log.Intervals)
		if log.Stale > 0 {
			r.violate("%s showed partitions past its trust deadline in %d reads", log.Client, log.Stale)
		}
		if log.Untold > 0 {
			r.violate("%s lost partitions %d times without ending their contexts", log.Client, log.Untold)
		}
		for _, i := range log.Intervals {
			partitions[i.Partition] = append(partitions[i.Partition], i)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(partitions)) {
		intervals := partitions[n]
		r.overlaps(intervals)
		r.epochs(intervals)
		r.gaps(intervals)
	}
	slices.Sort(r.Violations)
	return r
}

func (r *Report) violate(format string, args ...any) {
	r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
}

// overlaps finds the pairs of intervals of one partition that certainly overlap, but must not.
func (r *Report) overlaps(intervals []Interval) {
	slices.SortFunc(intervals, func(a, b Interval) int { return cmp.Compare(a.First, b.First) })
	var before []Interval // intervals that may overlap the following ones
	for _, i := range intervals {
		before = slices.DeleteFunc(before, func(b Interval) bool { return b.Last < i.First })
		for _, b := range before {
			if b.Client != i.Client && i.Last >= b.First && !(b.Shared && i.Shared) {
				r.Overlaps++
				r.violate("overlap of %v: %v; %v, %v after the other began",
					min(b.Last, i.Last).Sub(i.First), b, i, i.First.Sub(b.First))
			}
		}
		before = append(before, i)
	}
}

// epochs finds certain violations of this rule: each ownership of a partition has an epoch of its
// own, higher than all epochs before. Holders that share a lock are an exception, because the first
// one to get it may see it last.
func (r *Report) epochs(intervals []Interval) {
	byEpoch := slices.DeleteFunc(slices.Clone(intervals), func(i Interval) bool { return i.Epoch == 0 })
	slices.SortStableFunc(byEpoch, func(a, b Interval) int { return cmp.Compare(b.Epoch, a.Epoch) })
	// Of the intervals with higher epochs, the one with the earliest First: exclusive, and shared.
	var higher [2]*Interval
	for n := 0; n < len(byEpoch); {
		group := n
		for ; n < len(byEpoch) && byEpoch[n].Epoch == byEpoch[group].Epoch; n++ {
			i := byEpoch[n]
			if n > group {
				r.violate("epoch repeats: %v; %v, %v after the other", byEpoch[n-1], i, i.First.Sub(byEpoch[n-1].Last))
			}
			for _, h := range higher {
				if h != nil && h.First <= i.Last && !(h.Shared && i.Shared) {
					r.violate("epoch falls: %v; then %v", *h, i)
				}
			}
		}
		for i := range byEpoch[group:n] {
			i := &byEpoch[group+i]
			h := &higher[0]
			if i.Shared {
				h = &higher[1]
			}
			if *h == nil || i.First < (*h).First {
				*h = i
			}
		}
	}
}

// gaps appends the gaps between the intervals, which are sorted by First.
func (r *Report) gaps(intervals []Interval) {
	latest := intervals[0]
	for _, i := range intervals[1:] {
		g := Gap{latest, i}
		if g.Length() > 0 {
			r.Gaps = append(r.Gaps, g)
		}
		if i.Last > latest.Last {
			latest = i
		}
	}
}

// Err returns the violations as one error, the first 20 in full. It returns nil without violations.
func (r Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	text := strings.Join(r.Violations[:min(20, len(r.Violations))], "\n")
	return fmt.Errorf("oracle: %d violations:\n%s", len(r.Violations), text)
}
