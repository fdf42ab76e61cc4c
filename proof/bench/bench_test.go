package main

import (
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
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
				measured := hasDigit.MatchString(r.figure)
				compared := len(r.beside) > 0 && hasDigit.MatchString(r.beside[0])
				if r.verdict != notMeasured && !(measured && compared) {
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
	if !strings.HasSuffix(string(page), notes) {
		t.Error("the page does not end with notes.md")
	}
}

func TestAlternateMeasuresUntilTheRatioIsKnown(t *testing.T) {
	for _, c := range []struct {
		name       string
		own        func(round int) float64
		least, few int // rounds that count, at least and at most
	}{
		{"a steady side", func(int) float64 { return 2 }, 3, 3},
		{"a side that becomes steady", func(round int) float64 { return 2 + 1/float64(1+round*round) }, 4, 10},
		{"a side that never is steady", func(round int) float64 { return float64(1 + round%2) }, 14, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				round := -1
				own := side{"own", perSecond, func() float64 { round++; return c.own(round) }}
				beside := side{"beside", perSecond, func() float64 { time.Sleep(time.Second); return 1 }}
				took := (&lab{}).alternate(3, own, beside)
				if n := len(took[0].values); n < c.least || n > c.few || n != round {
					t.Errorf("%d rounds count, of %d and one that warms up; expected %d to %d",
						n, round, c.least, c.few)
				}
			})
		})
	}
}

// A median of values around 1 is off by less than its uncertainty in most of a thousand experiments,
// and by more than half of that in some of them.
func TestUncertaintyOfAMedian(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	within, withinHalf := 0, 0
	for range 1000 {
		values := make([]float64, 50)
		for i := range values {
			values[i] = math.Exp(random.NormFloat64() / 10)
		}
		off := math.Abs(median(values) - 1)
		if off <= uncertainty(values) {
			within++
		}
		if off <= uncertainty(values)/2 {
			withinHalf++
		}
	}
	if within < 920 || withinHalf > 800 {
		t.Errorf("of 1,000 medians, %d are off by at most their uncertainty, and %d by half of it", within, withinHalf)
	}
}
