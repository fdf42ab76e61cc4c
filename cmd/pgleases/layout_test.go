package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// podNames are IDs of clients as Kubernetes and Docker make them, which begin and end alike.
func podNames() (names []string) {
	for _, id := range []string{"x7k2p", "x7k2q", "b9d4m", "x7k2r", "b9d4n"} {
		names = append(names, "orders-worker-deployment-7f9c6d5b8-"+id+".orders-production.svc.cluster.local")
	}
	return names
}

// clientRows are what pgleases clients shows of them.
func clientRows() [][]string {
	rows := [][]string{strings.Split("CLIENT,STATE,HEARTBEAT,TTL,LEASES,OWNED,HOST,PID,UP,FAST", ",")}
	for i, name := range podNames() {
		cells := []string{name, "superseded", "1.2s", "6s", "12", fmt.Sprint(1000 + i), name, "1234567", "13h", "no"}
		rows = append(rows, cells)
	}
	return rows
}

func fields(text string) (all [][]string) {
	for line := range strings.Lines(text) {
		all = append(all, regexp.MustCompile(`  +`).Split(strings.TrimRight(line, "\n"), -1))
	}
	return all
}

func TestNarrowTablesKeepRowsDifferent(t *testing.T) {
	t.Parallel()
	for _, width := range []int{60, 80, 100, 140} {
		text := layout(clientRows(), width, false)
		seen := make(map[string]bool)
		for _, row := range fields(text)[1:] {
			if seen[row[0]] {
				t.Errorf("at %d columns two clients are %q:\n%s", width, row[0], text)
			}
			seen[row[0]] = true
		}
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > width {
				t.Errorf("at %d columns a line has %d:\n%s", width, n, text)
			}
		}
	}
}

func TestNarrowTablesCutNoNumberOrHeading(t *testing.T) {
	t.Parallel()
	for _, width := range []int{40, 60, 80, 100} {
		all := fields(layout(clientRows(), width, false))
		for i, heading := range all[0] {
			at := slices.Index(clientRows()[0], heading)
			if at < 0 {
				t.Errorf("at %d columns there is a heading %q", width, heading)
			} else if heading != "CLIENT" && heading != "HOST" && all[1][i] != clientRows()[1][at] {
				t.Errorf("at %d columns %s is %q", width, heading, all[1][i])
			}
		}
	}
}

func TestNarrowTablesLeaveOutColumnsInOrder(t *testing.T) {
	t.Parallel()
	before := clientRows()[0]
	for width := 200; width > 30; width-- {
		headings := clientRows()[0]
		now := fields(layout(clientRows(), width, false))[0]
		gone := slices.DeleteFunc(slices.Clone(headings), func(h string) bool { return slices.Contains(now, h) })
		all := slices.DeleteFunc(slices.Clone(leftOut), func(h string) bool { return !slices.Contains(headings, h) })
		want := all[:len(gone)]
		if slices.Sort(gone); !slices.Equal(gone, slices.Sorted(slices.Values(want))) || len(now) > len(before) {
			t.Fatalf("at %d columns %v are left out, want %v", width, gone, want)
		}
		before = now
	}
}

func TestNarrowTablesDropTheDateOfToday(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"AT", "LEASE"}, {"2026-11-29 13:04:05", "2026-11-29 is a name"}, {"2026-11-28 03:04:05", "a"}}
	got := withoutDate(rows, "2026-11-29")
	want := [][]string{{"AT", "LEASE"}, {"13:04:05", "2026-11-29 is a name"}, {"2026-11-28 03:04:05", "a"}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("it is %q, want %q", got, want)
	}
	today := time.Now().UTC().Format(time.DateTime)
	rows[1] = []string{today, strings.Repeat("name", 20)}
	text := layout(rows, 60, false)
	isStillToday := today[:10] == time.Now().UTC().Format(time.DateOnly)
	if strings.Contains(text, today) && isStillToday {
		t.Errorf("it is not without today's date:\n%s", text)
	}
}

func TestNarrowTablesContinueALongState(t *testing.T) {
	t.Parallel()
	why := "paused 3m ago by maria: the server of our mail provider is away until tonight"
	all := fields(layout([][]string{{"CONSUMER", "WAITING", "STATE"}, {"orders", "1000000", why}}, 60, false))
	var text []string
	for _, row := range all[1:] {
		text = append(text, row[len(row)-1])
	}
	if got := strings.Join(text, " "); got != why || len(all) < 3 {
		t.Errorf("the state is %q in %d lines, want %q", got, len(all)-1, why)
	}
}

func TestHelpNamesTheColumnsThatAreLeftOut(t *testing.T) {
	t.Parallel()
	words := strings.Join(strings.Fields(helpTexts), " ")
	if want := "in this order: " + strings.Join(leftOut, ", ") + "."; !strings.Contains(words, want) {
		t.Errorf("the help does not say %q", want)
	}
}

func TestNarrowTablesCutRangesBetweenNumbers(t *testing.T) {
	t.Parallel()
	cell := "0-100,102,104-110,113-1200,1300"
	for width := 10; width < len(cell); width++ {
		got := cutRanges(cell, width)
		head, found := strings.CutSuffix(got, ",…")
		if !found || !strings.HasPrefix(cell, head+",") || utf8.RuneCountInString(got) > width {
			t.Errorf("at %d columns the ranges are %q", width, got)
		}
	}
}

// longNames are those of leases, groups, consumers and tables that differ in the middle, at the end, or where
// they begin.
var longNames = []string{
	"warehouse/europe-central/stock-reservations/retry",
	"warehouse/europe-central/stock-reservations/first",
	"warehouse/europe-west/stock-reservations/retry",
	"shop-a/warehouse/europe-central/stock-reservations",
	"shop-b/warehouse/europe-central/stock-reservations",
}

// At 80 columns the rows of each of these verbs still name different things.
func TestRowsStayDifferentAt80Columns(t *testing.T) {
	t.Parallel()
	pods := podNames()
	const why = "the operator of the night has written a long reason here, so that it needs several lines"
	const groups = "GROUP,SCHEDULES,LATE,BLOCKED,PAUSED,FAILING,JOBS,BLOCKED JOBS"
	const consumers = "CONSUMER,QUEUE,OWNED,WAITING,OLDEST,BLOCKED KEYS,FOR,DEAD LETTERS,UNHANDLED,STATE"
	for verb, table := range map[string]struct {
		heading string
		names   int // columns that name the row
		most    int // columns of a line if more than 80, because numbers are not cut
		row     func(i int) []string
	}{
		"events": {"AT,CAUSE,LEASE,FROM,TO,PARTITIONS,BY,REASON", 5, 140, func(i int) []string {
			const partitions, by = "0-100,102,104-110,113-1200", "maria.gonzales@example.com (postgres)"
			next := pods[(i+1)%5]
			return []string{"2026-11-28 13:04:05", "consumer resumed", longNames[i], pods[i], next, partitions, by, why}
		}},
		"schedules": {"GROUP,SCHEDULE,SINCE,SUCCEEDED,STATE", 2, 0, func(i int) []string {
			return []string{longNames[0], longNames[i], "119m ago", "47h ago", "failing, 1000 ticks: " + why}
		}},
		"schedules list": {"SCHEDULE,KIND,RULE,OWNER,NEXT,SUCCEEDED,STATE", 1, 0, func(i int) []string {
			const rule = "CRON_TZ=Europe/Berlin */5 8-18 * * MON-FRI"
			return []string{longNames[i], "reservations", rule, pods[i], "in 119m", "47h ago", "retrying: " + why}
		}},
		"schedules groups": {groups, 1, 85, func(i int) []string {
			return []string{longNames[i], "1000+", "1000+", "1000+", "1000+", "1000+", "1000+", "1000+"}
		}},
		"consumers": {consumers, 1, 89, func(i int) []string {
			state := "paused 3m ago by maria: " + why
			return []string{longNames[i], longNames[i], "1024/1024", "1000+", "119m", "1000", "47h", "0", "0", state}
		}},
		"status": {"SUBJECT,STATE", 1, 0, func(i int) []string {
			return []string{"  " + longNames[i], "1 without an owner: 17"}
		}},
	} {
		rows := [][]string{strings.Split(table.heading, ",")}
		for i := range longNames {
			rows = append(rows, table.row(i))
		}
		text := layout(rows, 80, false)
		seen := make(map[string]bool)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "     ") || strings.HasPrefix(line, rows[0][0]) { // it continues a text
				continue
			}
			row := fields(strings.TrimSpace(line))[0]
			name := strings.Join(row[:min(table.names, len(row))], " ")
			if seen[name] {
				t.Errorf("%s: two rows are %q:\n%s", verb, name, text)
			}
			seen[name] = true
		}
		if len(seen) < len(longNames) {
			t.Errorf("%s: %d rows:\n%s", verb, len(seen), text)
		}
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > max(80, table.most) {
				t.Errorf("%s: a line has %d columns:\n%s", verb, n, text)
				break
			}
		}
	}
}
