package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
)

func init() { workIfAsked() }

var hasDigit = regexp.MustCompile(`\d`)

// Each part measures something, and each row has a figure and what it is compared with.
func TestQuickRunOfAllParts(t *testing.T) {
	l := &lab{quick: true, clients: 20, partitions: 200, leases: 1, ttl: time.Second}
	t.Cleanup(func() { _ = l.close() })
	testkit.OK(t, attempt(func() { l.start(t.Context()) }))
	for _, each := range parts {
		t.Run(each.name, func(t *testing.T) {
			t.Parallel()
			p := &part{name: each.name, title: each.title}
			if err := attempt(func() { each.measure(t.Context(), l, p) }); err != nil {
				t.Fatalf("%v\n%s", err, p)
			}
			t.Logf("\n%s", p)
			for _, r := range p.rows {
				if r.verdict != notMeasured && (!hasDigit.MatchString(r.figure) || len(r.beside) == 0 || !hasDigit.MatchString(r.beside[0])) {
					t.Errorf("a row without a figure, or without what it is beside: %+v", r)
				}
			}
			if len(p.rows) == 0 {
				t.Error("no rows")
			}
		})
	}
}

func TestSummaryIsOnThePage(t *testing.T) {
	page := testkit.Must(os.ReadFile("../../docs/figures.md"))(t)
	_, tables, _ := strings.Cut(string(page), "\n## ")
	if got := summary(tables); strings.Count(got, "\n") != len(highlights)+1 || !strings.Contains(string(page), got) {
		t.Errorf("the page lacks the summary of its tables:\n%s", got)
	}
	if !strings.HasSuffix(string(page), capacity) {
		t.Error("the page does not end with capacity.md")
	}
}
