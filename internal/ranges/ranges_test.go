package ranges_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/ranges"
)

func TestNumbersAreWrittenAsPeopleReadThem(t *testing.T) {
	for want, numbers := range map[string][]int{
		"-": nil, "7": {7}, "0-4,7": {7, 4, 0, 2, 1, 3}, "1-2": {1, 2}, "0,2,4-6": {0, 2, 4, 5, 6}, "3-4": {4, 3, 3, 4},
	} {
		before := slices.Clone(numbers)
		if got := ranges.Format(numbers); got != want {
			t.Errorf("%v is written as %q, not %q", numbers, got, want)
		}
		if !slices.Equal(numbers, before) {
			t.Errorf("writing changed %v to %v", before, numbers)
		}
	}
}

func TestManyWritesTheSingularForOne(t *testing.T) {
	for n, want := range []string{"0 partitions", "1 partition", "2 partitions"} {
		if got := ranges.Many(n, "partition"); got != want {
			t.Errorf("%d is written as %q, not %q", n, got, want)
		}
	}
}

func TestALongListIsCutBetweenNumbers(t *testing.T) {
	var even []int
	for n := range 1000 {
		even = append(even, 2*n)
	}
	got := ranges.Short(even)
	if !strings.HasPrefix(got, "0,2,4,") || !strings.HasSuffix(got, ",... (1000 in all)") || len(got) > 220 {
		t.Errorf("got %q", got)
	}
	if got := ranges.Short(even[:3]); got != "0,2,4" {
		t.Errorf("a short list is written as %q", got)
	}
}

func TestLoggedWritesOnlyTheCountOfManyRanges(t *testing.T) {
	var even []int
	for n := range 19 {
		even = append(even, 2*n)
	}
	if got := ranges.Logged(even); !strings.HasPrefix(got, "[0,2,") || !strings.HasSuffix(got, ",34,36]") {
		t.Errorf("19 ranges are written as %q", got)
	}
	if got := ranges.Logged(append(even, 38, 39)); got != "[21 in all]" {
		t.Errorf("20 ranges are written as %q", got)
	}
}
