package main

import (
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

// colors are those of cells in the columns LEVEL, STATE and OUTCOME, by their first word.
var colors = map[string]string{
	"fault": red, "expired": red, "failed": red, "failing": red, "blocked": red, "unknown": red,
	"warning": yellow, "evicted": yellow, "superseded": yellow, "retrying": yellow, "missed": yellow,
	"ok": green, "live": green, "succeeded": green,
}

const (
	leastName = 9  // columns that a longer name keeps at least
	leastText = 20 // columns that a longer text keeps at least

	// mostSplit is the maximum number of names for which all ways to cut them are tried. For thousands,
	// that would take seconds.
	mostSplit = 100
)

var (
	// leftOut are the columns that a table loses on a narrow terminal, in this order. The help names
	// them.
	leftOut = []string{
		"FAST", "UP", "METADATA", "TTL", "TOKEN", "MODE", "PLANNED", "QUEUE", "RULE", "PID", "HOST", "KIND",
	}

	// words are the columns with words of the command, which are not cut, but for what follows them.
	words = []string{"STATE", "OUTCOME", "LEVEL", "CAUSE", "CHECK", "CHANGE"}

	// texts are columns with sentences. If one is the last, it continues on the next lines.
	texts = []string{"REASON", "ERROR", "ERROR (ARGUMENTS)", "FOUND", "STATE"}

	// number is a number, a time or a duration, which are never cut either.
	number = regexp.MustCompile(`^(?:in )?[-+]?[0-9][0-9.:hmdsµnTZ -]*(?:ago)?$`)

	// several are ranges of partitions, of which the last may be left out.
	several = regexp.MustCompile(`^[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)+`)
)

// layout aligns the columns of rows, whose first row is the heading. If width is above 0, a row
// fits into it: times of today lose their date, the columns leftOut are left out one after the
// other, then those that are empty in each row, names are cut so that they stay different, and a text in the last column continues on
// the next lines. A table that is still wider stays so.
func layout(rows [][]string, width int, color bool) string {
	if width > 0 && wide(rows) > width {
		rows = withoutDate(rows, time.Now().UTC().Format(time.DateOnly))
		rows = withoutColumns(rows, width)
		rows = withCutNames(rows, width)
	}
	last := len(rows[0]) - 1
	widths := mapped(columnsOf(rows), widest)
	if width > 0 && isText(columnsOf(rows)[last]) {
		widths[last] = max(leastOf(rows)[last], min(widths[last], width-wide(rows)+widths[last]))
	}
	var b strings.Builder
	for n, row := range rows {
		for l, text := range wrapped(row[last], widths[last]) {
			for i, cell := range append(slices.Clone(row[:last]), cut(text, widths[last])) {
				if l > 0 && i < last {
					cell = ""
				}
				gap := strings.Repeat(" ", max(0, widths[i]+2-utf8.RuneCountInString(cell)))
				if i == last {
					gap = "\n"
				}
				style := styleOf(rows[0][i], row[i], n == 0)
				if color && l == 0 && style != "" {
					cell = style + cell + plain
				}
				b.WriteString(cell + gap)
			}
		}
	}
	return b.String()
}

// columnsOf returns the cells of rows by columns.
func columnsOf(rows [][]string) [][]string {
	columns := make([][]string, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			columns[i] = append(columns[i], cell)
		}
	}
	return columns
}

// widest returns the width of the widest cell of a column.
func widest(column []string) (width int) {
	for _, cell := range column {
		width = max(width, utf8.RuneCountInString(cell))
	}
	return width
}

// wide returns the width of rows with 2 spaces between columns.
func wide(rows [][]string) int {
	width := 2 * (len(rows[0]) - 1)
	for _, column := range columnsOf(rows) {
		width += widest(column)
	}
	return width
}

// withoutDate returns rows in which times of a day have no date.
func withoutDate(rows [][]string, today string) (all [][]string) {
	for _, row := range rows {
		all = append(all, mapped(row, func(cell string) string {
			if number.MatchString(cell) {
				return strings.TrimPrefix(cell, today+" ")
			}
			return cell
		}))
	}
	return all
}

// withoutColumns leaves columns out until the others fit with cut names.
func withoutColumns(rows [][]string, width int) [][]string {
	leasts, needs := leastOf(rows), 0
	for _, one := range leasts {
		needs += one + 2
	}
	for _, heading := range leftOut {
		i := slices.Index(rows[0], heading)
		if needs-2 <= width || i <= 0 {
			continue
		}
		needs -= leasts[i] + 2
		leasts = slices.Delete(leasts, i, i+1)
		for n := range rows {
			rows[n] = slices.Delete(slices.Clone(rows[n]), i, i+1)
		}
	}
	for i := len(rows[0]) - 1; i > 0 && needs-2 > width; i-- {
		if !isEmpty(columnsOf(rows)[i]) {
			continue
		}
		needs -= leasts[i] + 2
		for n := range rows {
			rows[n] = slices.Delete(slices.Clone(rows[n]), i, i+1)
		}
	}
	return rows
}

// isEmpty reports whether no row has a value in a column.
func isEmpty(column []string) bool {
	return !slices.ContainsFunc(column[1:], func(cell string) bool { return cell != dash && cell != "0" })
}

// leastOf returns the least widths of the columns of rows.
func leastOf(rows [][]string) (leasts []int) {
	columns := columnsOf(rows)
	for i, column := range columns {
		leasts = append(leasts, least(column, i == len(columns)-1 && isText(column)))
	}
	return leasts
}

func isText(column []string) bool { return slices.Contains(texts, column[0]) }

// least returns the width that a column keeps when its names are cut.
func least(column []string, wraps bool) (width int) {
	if wraps || slices.Contains(words, column[0]) {
		return max(utf8.RuneCountInString(column[0]), min(widest(column), leastText))
	}
	var names []string
	width = utf8.RuneCountInString(column[0])
	for _, cell := range column[1:] {
		if number.MatchString(cell) {
			width = max(width, utf8.RuneCountInString(cell))
		} else {
			names = append(names, cell)
		}
	}
	width = max(width, min(widest(names), leastName))
	slices.Sort(names)
	names = slices.Compact(names)
	for ; ; width++ {
		if _, different := cutAll(names, width); different {
			return width
		}
	}
}

// withCutNames makes the widest columns narrower until rows fit, and cuts the names in them.
func withCutNames(rows [][]string, width int) [][]string {
	columns := columnsOf(rows)
	widths, leasts := mapped(columns, widest), leastOf(rows)
	for over := wide(rows) - width; over > 0; over-- {
		at := -1
		for i := range widths {
			if widths[i] > leasts[i] && (at < 0 || widths[i] > widths[at]) {
				at = i
			}
		}
		if at < 0 {
			break
		}
		widths[at]--
	}
	all := make([][]string, len(rows))
	for i, column := range columns {
		cells := column[1:]
		if i < len(columns)-1 || !isText(column) {
			cells, _ = cutAll(cells, widths[i])
		}
		all[0] = append(all[0], column[0])
		for n, cell := range cells {
			all[n+1] = append(all[n+1], cell)
		}
	}
	return all
}

// cutAll cuts those names to a width that are longer. It tries several ways, returns the names as
// the first one that keeps different names different cuts them, and reports whether there is one.
func cutAll(names []string, width int) (all []string, different bool) {
	prefix := commonPrefix(names, width)
	ways := []func(name string) string{
		func(name string) string { return cut(name, width) },
		func(name string) string { return cutStart(name, width) },
		func(name string) string { return cutPrefix(name, prefix, width) },
	}
	splits := width / 2
	if len(slices.Compact(slices.Sorted(slices.Values(names)))) > mostSplit {
		splits = 0
	}
	for off := 1; off < splits; off++ { // names may differ at two places
		ways = append(ways,
			func(name string) string { return cutBehind(name, width/2+off, width) },
			func(name string) string { return cutBehind(name, width/2-off, width) })
	}
	for _, way := range ways {
		all = mapped(names, func(name string) string {
			if several.MatchString(name) {
				return cutRanges(name, width)
			}
			return way(name)
		})
		if stayDifferent(names, all) {
			return all, true
		}
	}
	return all, false
}

// stayDifferent reports whether names that differ do so after the cut. Ranges may become the same.
func stayDifferent(names, cut []string) bool {
	of := make(map[string]string)
	for i, name := range names {
		before, known := of[cut[i]]
		if known && before != name && !several.MatchString(name) {
			return false
		}
		of[cut[i]] = name
	}
	return true
}

// commonPrefix returns how many characters at the start are the same in all names that are longer
// than width.
func commonPrefix(names []string, width int) int {
	var first []rune
	same := 0
	for _, name := range names {
		runes := []rune(name)
		if len(runes) <= width {
			continue
		}
		if first == nil {
			first, same = runes, len(runes)
		}
		n := 0
		for n < min(same, len(runes)) && runes[n] == first[n] {
			n++
		}
		same = n
	}
	return same
}

// cut returns a name in at most width characters, without its middle if it is longer.
func cut(name string, width int) string { return cutBehind(name, width/2, width) }

// cutBehind returns a name in at most width characters, without those behind the first ones if it is
// longer.
func cutBehind(name string, first, width int) string {
	runes := []rune(name)
	if len(runes) <= width || width < 1 {
		return name
	}
	return string(runes[:first]) + "…" + string(runes[len(runes)-(width-1-first):])
}

// cutStart returns a name in at most width characters, without its start if it is longer.
func cutStart(name string, width int) string {
	runes := []rune(name)
	if len(runes) <= width {
		return name
	}
	return "…" + string(runes[len(runes)-width+1:])
}

// cutPrefix returns a name in at most width characters, without its first ones if it is longer, and
// then also without its middle.
func cutPrefix(name string, prefix, width int) string {
	runes := []rune(name)
	if len(runes) <= width {
		return name
	}
	return "…" + cut(string(runes[min(prefix, len(runes)):]), width-1)
}

// cutRanges returns those of the first ranges that fit.
func cutRanges(text string, width int) string {
	for utf8.RuneCountInString(text) > width {
		text = strings.TrimSuffix(text, ",…")
		i := strings.LastIndex(text, ",")
		if i < 0 {
			return text
		}
		text = text[:i] + ",…"
	}
	return text
}

// styleOf returns the escape sequence before a cell of a column, or of its heading.
func styleOf(column, cell string, heading bool) string {
	word, _, _ := strings.Cut(strings.NewReplacer(":", " ", ",", " ").Replace(cell), " ")
	switch {
	case heading:
		return bold
	case column == "LEVEL" || column == "STATE" || column == "OUTCOME":
		return colors[word]
	}
	return ""
}

// wrapped returns a text as lines of at most width characters, except for longer words.
func wrapped(text string, width int) []string {
	if utf8.RuneCountInString(text) <= width {
		return []string{text}
	}
	all := []string{""}
	for word := range strings.FieldsSeq(text) {
		last := &all[len(all)-1]
		if *last == "" || utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) <= width {
			*last = strings.TrimSpace(*last + " " + word)
		} else {
			all = append(all, word)
		}
	}
	return all
}
