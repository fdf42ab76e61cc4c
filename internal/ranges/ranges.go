// Package ranges writes partition numbers as people read them.
package ranges

import (
	"fmt"
	"slices"
	"strings"
)

// Format writes runs of numbers as ranges, "0-4,7"; no numbers as "-". The numbers may come in any order; the slice is
// not changed.
func Format(numbers []int) string {
	if len(numbers) == 0 {
		return "-"
	}
	numbers = slices.Sorted(slices.Values(numbers))
	var b strings.Builder
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] <= numbers[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, numbers[i])
		if numbers[j] > numbers[i] {
			fmt.Fprintf(&b, "-%d", numbers[j])
		}
		i = j + 1
	}
	return b.String()
}

// Short is Format for a line of a log: of a long text the beginning, and the count of all numbers.
func Short(numbers []int) string {
	const most = 200
	text := Format(numbers)
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s,... (%d in all)", text[:strings.LastIndexByte(text[:most], ',')], len(numbers))
}
