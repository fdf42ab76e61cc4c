// Package when compares the times at which things are due. It is for whoever owns several timers
// and sleeps until the first of them.
package when

import (
	"iter"
	"time"
)

// Two due times. The zero time has always passed.
var (
	AtOnce time.Time
	Never  = time.Unix(1<<40, 0)
)

// AtOnceIf returns the due time of what depends only on a condition.
func AtOnceIf(condition bool) time.Time {
	if condition {
		return AtOnce
	}
	return Never
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Soonest returns the element that is due first, and when. If no element is due, it returns Never.
func Soonest[T any](all iter.Seq[T], at func(T) time.Time) (first T, due time.Time) {
	due = Never
	for x := range all {
		t := at(x)
		if t.Before(due) {
			first, due = x, t
		}
	}
	return first, due
}
