// Package ranges writes partition numbers, and numbers of things, as people read them.
package ranges

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Format writes runs of numbers as ranges, "0-4,7", and an empty list as "-". The numbers may be in
// any order; Format does not change the slice.
func Format(numbers []int) string {
	numbers = slices.Sorted(slices.Values(numbers))
	var b strings.Builder
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] <= numbers[j]+1 {
			j++
		}
		Write(&b, numbers[i], numbers[j])
		i = j + 1
	}
	return cmp.Or(b.String(), "-")
}

// Write appends the range from one number to another to the ranges that were written before.
func Write(b *strings.Builder, first, last int) {
	if b.Len() > 0 {
		b.WriteByte(',')
	}
	fmt.Fprint(b, first)
	if last > first {
		fmt.Fprintf(b, "-%d", last)
	}
}

// Logged is Format for the field of a log line. The brackets show that "[3]" is number 3, and not a
// count. Of numbers that need 20 ranges or more it writes only how many they are.
func Logged(numbers []int) string {
	const most = 20
	text := Format(numbers)
	if strings.Count(text, ",") >= most-1 {
		return fmt.Sprintf("[%d in all]", len(numbers))
	}
	return "[" + text + "]"
}

// Short is Format for a message: a long text is cut, and ends with the count of all numbers.
func Short(numbers []int) string {
	const most = 200
	text := Format(numbers)
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s,... (%d in all)", text[:strings.LastIndexByte(text[:most], ',')], len(numbers))
}

// Merged returns pairs of first and last numbers, of any order, in ascending order with gaps
// between them. It sorts the slice.
func Merged[R ~[2]int](rs []R) (all []R) {
	slices.SortFunc(rs, func(a, b R) int { return a[0] - b[0] })
	for _, r := range rs {
		last := len(all) - 1
		if last >= 0 && r[0] <= all[last][1]+1 {
			all[last][1] = max(all[last][1], r[1])
		} else {
			all = append(all, r)
		}
	}
	return all
}

// Many returns a number with a noun: "1 partition", "2 partitions".
func Many(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
