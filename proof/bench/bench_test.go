package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func init() { workIfAsked() }

// What it prints has a figure and a floor in every row, and the page and the plot are there.
func TestEveryRowHasAFigureAndAFloor(t *testing.T) {
	var out, progress strings.Builder
	file := t.TempDir() + "/figures.md"
	if err := run(t.Context(), []string{"-quick", "-run", ".", "-o", file}, &out, &progress); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Logf("%s\n%s", progress.String(), out.String())
	for _, p := range parts {
		if !strings.Contains(out.String(), "## "+p.title) {
			t.Errorf("nothing about %s", p.name)
		}
	}
	rows := 0
	for line := range strings.Lines(out.String()) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| what") {
			continue
		}
		rows++
		if strings.Contains(line, string(unknown)) {
			t.Logf("not measured on this machine: %s", line)
			continue
		}
		if len(cells) != 6 || !hasNumber.MatchString(cells[1]) || !hasNumber.MatchString(cells[2]) {
			t.Errorf("a row without a figure or a floor: %s", line)
		}
	}
	if rows < 20 {
		t.Errorf("%d rows", rows)
	}
	page, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(page), plotFile) {
		t.Errorf("the page: %v", err)
	}
	if plot, err := os.ReadFile(beside(file, plotFile)); err != nil || !strings.Contains(string(plot), "<polyline") {
		t.Errorf("the plot: %v", err)
	}
}

func TestThePageNamesACommandThatAShellTakes(t *testing.T) {
	got := commandLine([]string{"-run", "plan|crowd", "-o", "../docs/figures.md"})
	if want := "go run ./bench -run 'plan|crowd' -o ../docs/figures.md"; got != want {
		t.Errorf("it names %s, not %s", got, want)
	}
}

func TestPartsThatDoNotExistAreRefused(t *testing.T) {
	var out, progress strings.Builder
	if err := run(t.Context(), []string{"-run", "plans"}, &out, &progress); err == nil || !strings.Contains(err.Error(), "values, heartbeat") {
		t.Errorf("the error is %v", err)
	}
}

var hasNumber = regexp.MustCompile(`\d`)

func TestQuantile(t *testing.T) {
	for _, test := range []struct {
		of   []int
		q    float64
		want int
	}{
		{[]int{7}, 0.5, 7}, {[]int{3, 1, 2}, 0.5, 2}, {[]int{4, 3, 2, 1}, 0.5, 2},
		{[]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.95, 10}, {[]int{2, 1}, 0, 1},
	} {
		if got := quantile(test.of, test.q); got != test.want {
			t.Errorf("quantile(%v, %v) = %v, not %v", test.of, test.q, got, test.want)
		}
	}
}

func TestNumbersAreWrittenWithThreeDigits(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 7: "7", 1.5: "1.50", 0.01234: "0.0123", 12.345: "12.3", 999.4: "999", 1234567: "1,234,567", 1000.4: "1,000",
	} {
		if got := significant(x); got != want {
			t.Errorf("%v is written %q, not %q", x, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		38: "38 ns", 1500: "1.50 µs", 12345678: "12.3 ms", 2 * time.Second: "2 s", -1500: "-1.50 µs",
	} {
		if got := duration(d); got != want {
			t.Errorf("%d ns is written %q, not %q", d, got, want)
		}
	}
}
