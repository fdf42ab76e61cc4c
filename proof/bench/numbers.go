package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// quantile returns the smallest of the values that at least the share q of them do not exceed.
func quantile[T cmp.Ordered](of []T, q float64) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func median[T cmp.Ordered](of []T) T { return quantile(of, 0.5) }

// ratios divides round by round, so that what slowed a round down slowed both.
func ratios(of, by []float64) []float64 {
	all := make([]float64, len(of))
	for i := range of {
		all[i] = of[i] / by[i]
	}
	return all
}

// times writes a ratio.
func times(x float64) string { return significant(x) + " x" }

// percent writes a share.
func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + " %" }

// significant writes a number with three digits that count, and groups of thousands.
func significant(x float64) string {
	if math.Abs(x) < 999.5 {
		if x == math.Trunc(x) {
			return strconv.Itoa(int(x))
		}
		return strconv.FormatFloat(x, 'f', max(0, 2-int(math.Floor(math.Log10(math.Abs(x))))), 64)
	}
	return grouped(int(math.Round(x)))
}

// grouped writes a whole number with groups of thousands.
func grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// duration writes a time with three digits that count.
func duration(d time.Duration) string {
	switch abs := d.Abs(); {
	case abs < time.Microsecond:
		return significant(float64(d)) + " ns"
	case abs < time.Millisecond:
		return significant(float64(d)/1e3) + " µs"
	case abs < time.Second:
		return significant(float64(d)/1e6) + " ms"
	}
	return significant(d.Seconds()) + " s"
}

func nanoseconds(ns float64) string { return significant(ns) + " ns" }
