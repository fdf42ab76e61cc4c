package logqueue_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/logqueue"
)

// Each beginning that is logged has one end, and each end a beginning.
func TestConditionBeginsAndEndsInPairs(t *testing.T) {
	t.Parallel()
	began := time.Now()
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	for name, c := range map[string]struct {
		holds func(c *logqueue.Condition, now time.Time) bool
		in    []int // the seconds in which it holds, and in the others it is over
		until int
		want  []string
	}{
		"never":    {begins, nil, 9, nil},
		"once":     {begins, []int{2, 3, 4}, 9, []string{"2 holds", "5 over, after 3s"}},
		"twice":    {begins, []int{2, 4, 5}, 9, []string{"2 holds", "3 over, after 1s", "4 holds", "6 over, after 2s"}},
		"for long": {lasts, []int{2, 3, 4, 5, 6, 7}, 9, []string{"2 holds", "5 holds", "8 over, after 6s"}},
		"again": {
			lasts, []int{1, 3, 5, 6, 7}, 9,
			[]string{"1 holds", "2 over, after 1s", "5 holds", "8 over, after 3s"},
		},
		"soon": {lasts, []int{1, 3}, 9, []string{"1 holds", "2 over, after 1s"}},
		"late": {lasts, []int{1, 3, 4}, 9, []string{"1 holds", "2 over, after 1s", "4 holds", "5 over, after 2s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var condition logqueue.Condition
			var lines []string
			for second := range c.until + 1 {
				if slices.Contains(c.in, second) {
					if c.holds(&condition, at(second)) {
						lines = append(lines, fmt.Sprint(second, " holds"))
					}
					continue
				}
				lasted, log := condition.End(at(second))
				if log {
					lines = append(lines, fmt.Sprint(second, " over, after ", lasted))
				}
			}
			if !slices.Equal(lines, c.want) {
				t.Errorf("the lines are %q, not %q", lines, c.want)
			}
		})
	}
}

func begins(c *logqueue.Condition, now time.Time) bool { return c.Begin(now) }

func lasts(c *logqueue.Condition, now time.Time) bool { return c.Last(3*time.Second, now) }
