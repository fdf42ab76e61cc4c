package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The lines of a page between which the report is.
const (
	Begin = "<!-- written by go run ./verdict -report -->"
	End   = "<!-- end of the report -->"
)

// table returns the rows and what they add up to. It writes counts as list does.
func (v *verdict) table(list func(map[string]int) string) string {
	var b strings.Builder
	b.WriteString("| attack | time | faults that hit | checked | violations | result |\n|---|---|---|---|---|---|\n")
	for _, r := range v.attacks() {
		fmt.Fprintf(&b, "| %s | %v | %s | %s | %s | %s |\n",
			r.name, r.took.Round(time.Second), list(r.faults), list(r.checked), r.found(), r.result())
	}
	all := v.sum()
	fmt.Fprintf(&b, "\n%s faults of %d kinds hit. ", grouped(total(all.faults)), len(all.faults))
	fmt.Fprintf(&b, "Checked: %s. ", list(all.checked))
	fmt.Fprintf(&b, "Violations: %d. Tests failed: %d. ", all.violations, all.failed)
	fmt.Fprintf(&b, "Repeated, because the machine was late: %d.\n", all.repeated)
	return b.String()
}

// page returns the verdict for a reader who was not there.
func (v *verdict) page() string {
	all := v.sum()
	var b strings.Builder
	day, server := v.when.UTC().Format("2006-01-02"), cmp.Or(v.server, "PostgreSQL")
	fmt.Fprintf(&b, "Last run on %s, at commit `%s`, against %s. ", day, v.commit, server)
	fmt.Fprintf(&b, "It took %.1f hours.\n\n", v.took.Hours())
	fmt.Fprintf(&b, "| | |\n|---|---|\n")
	fmt.Fprintf(&b, "| tests passed, failed | %s, %s |\n", grouped(all.passed), grouped(all.failed))
	fmt.Fprintf(&b, "| violations found | %s |\n", grouped(all.violations))
	fmt.Fprintf(&b, "| tries repeated, because the machine was late | %s |\n", grouped(all.repeated))
	fmt.Fprintf(&b, "| faults that hit | %s |\n", grouped(total(all.faults)))
	b.WriteString(folded("What was checked", "checked | how many", all.checked))
	b.WriteString(folded("The faults by kind", "fault | how often it hit", all.faults))
	fmt.Fprintf(&b, "\n<details><summary>Each attack</summary>\n\n%s\n</details>\n", v.table(quoted))
	return b.String()
}

// folded returns a table of counts that a reader unfolds.
func folded(title, columns string, counts map[string]int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n<details><summary>%s</summary>\n\n| %s |\n|---|---|\n", title, columns)
	for _, name := range sorted(counts) {
		fmt.Fprintf(&b, "| %s | %s |\n", name, grouped(counts[name]))
	}
	return b.String() + "\n</details>\n"
}

// found returns the number of violations, or nothing for tests without an oracle.
func (r *row) found() string {
	if len(r.checked) == 0 && r.violations == 0 {
		return ""
	}
	return grouped(r.violations)
}

// result says how an attack ended.
func (r *row) result() string {
	var parts []string
	switch {
	case r.failed > 0:
		parts = append(parts, fmt.Sprintf("FAILED: %d of %d", r.failed, r.failed+r.passed))
	case r.passed == 1:
		parts = append(parts, "passed")
	case r.passed > 1:
		parts = append(parts, fmt.Sprintf("%d passed", r.passed))
	}
	for _, why := range r.skipped {
		if r.passed+r.failed == 0 {
			parts = append(parts, "skipped: "+why)
		} else {
			parts = append(parts, "a part skipped: "+why)
		}
	}
	if r.repeated > 0 {
		parts = append(parts, fmt.Sprintf("repeated %d times", r.repeated))
	}
	return strings.ReplaceAll(strings.Join(parts, "; "), "|", "\\|")
}

// sorted returns the names, the one with the largest count first.
func sorted(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}

// quoted is listed for a page, which has each count as code.
func quoted(counts map[string]int) string {
	if len(counts) == 0 {
		return ""
	}
	return "`" + strings.ReplaceAll(listed(counts), ", ", "`, `") + "`"
}

// listed returns counts by name, the largest first.
func listed(counts map[string]int) string {
	names := sorted(counts)
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = grouped(counts[name]) + " " + name
	}
	return strings.Join(parts, ", ")
}

func total(counts map[string]int) (sum int) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

// grouped formats a number with commas between thousands.
func grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}
