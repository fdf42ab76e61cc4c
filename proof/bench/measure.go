package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A sample holds the values of one measurement, one per round.
type sample struct {
	name   string
	values []float64
	unit   unit
}

// A unit formats a value.
type unit func(float64) string

func nanoseconds(ns float64) string { return duration(time.Duration(ns)) }
func fraction(ns float64) string    { return significant(ns) + " ns" } // for a few nanoseconds
func perSecond(x float64) string    { return significant(x) + "/s" }
func bytes(x float64) string        { return significant(x) + " bytes" }

// String returns the median.
func (s sample) String() string { return s.unit(median(s.values)) }

// ratios returns the ratio of each round, because a slow round slows both sides. Samples of different
// rounds have only the ratio of their medians.
func (s sample) ratios(by sample) []float64 {
	if len(s.values) != len(by.values) {
		return []float64{median(s.values) / median(by.values)}
	}
	ratios := make([]float64, len(s.values))
	for i := range ratios {
		ratios[i] = s.values[i] / by.values[i]
	}
	return ratios
}

// over returns the median of the ratios.
func (s sample) over(by sample) float64 { return median(s.ratios(by)) }

// ratio formats the median of the ratios and how well it is known. One ratio says nothing about that.
func (s sample) ratio(by sample) string {
	ratios := s.ratios(by)
	text := significant(median(ratios)) + "x"
	if len(ratios) > 1 {
		text += fmt.Sprintf(" ± %.0f %%", math.Ceil(100*uncertainty(ratios)))
	}
	return text
}

// uncertainty says how well a median is known: half the width of its confidence interval of 95 %, as a
// share of it. The interval lies between two of the sorted values, whatever their distribution is.
// Fewer than six values are too few for it, so their interval holds all of them.
func uncertainty(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	n := float64(len(sorted))
	low := max(0, int((n-1.96*math.Sqrt(n))/2))
	return (sorted[len(sorted)-1-low] - sorted[low]) / 2 / median(of)
}

// quantile returns the smallest value such that at least the share q of all values are not greater.
func quantile[T cmp.Ordered](of []T, q float64) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func median[T cmp.Ordered](of []T) T { return quantile(of, 0.5) }

// A side is one of several things that are measured in turns.
type side struct {
	name    string
	unit    unit
	measure func() float64
}

// A pair names two sides, by their numbers, whose ratio is wanted.
type pair struct{ own, beside int }

// A ratio is known well enough if its uncertainty is below wanted. If it is still above that after the
// time limit, no more rounds begin.
const (
	wanted    = 0.05
	timeLimit = 15 * time.Second
)

// alternate measures the first side beside each of the others.
func (l *lab) alternate(least int, sides ...side) []sample {
	var pairs []pair
	for i := range sides[1:] {
		pairs = append(pairs, pair{0, i + 1})
	}
	return l.alternatePairs(least, pairs, sides...)
}

// alternatePairs measures all sides in each round, one after the other, for a least number of
// rounds, and then until the ratio of each pair is known well enough. The first round of a full run
// warms up and does not count.
func (l *lab) alternatePairs(least int, pairs []pair, sides ...side) []sample {
	first := -1
	if l.quick {
		first = 0
		least = 1
		pairs = nil
	}
	samples := make([]sample, len(sides))
	began, next := time.Now(), least
	for round := first; ; round++ {
		if round >= next {
			if time.Since(began) > timeLimit || known(samples, pairs) {
				return samples
			}
			next += 1 + next/10 // sorting all values in each round would take longer than measuring
		}
		for i, s := range sides {
			samples[i].name, samples[i].unit = s.name, s.unit
			value := s.measure()
			if round >= 0 {
				samples[i].values = append(samples[i].values, value)
			}
		}
	}
}

// known says whether the ratios of all pairs are known well enough.
func known(samples []sample, pairs []pair) bool {
	return !slices.ContainsFunc(pairs, func(p pair) bool {
		return uncertainty(samples[p.own].ratios(samples[p.beside])) > wanted
	})
}

// timed returns a side that measures the duration of do.
func timed(name string, do func()) side {
	return side{name, nanoseconds, func() float64 {
		began := time.Now()
		do()
		return float64(time.Since(began))
	}}
}

// A failure ends a part: check panics with it, so that deferred calls end what the part started.
type failure struct{ error }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// attempt returns the error of a failure in do.
func attempt(do func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	do()
	return nil
}

// together runs n goroutines and waits for all of them.
func together(n int, do func(i int)) {
	errs := make(chan error, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() { errs <- attempt(func() { do(i) }) })
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		check(err)
	}
}

// A part is one part of the page: a table and its notes.
type part struct {
	name, title string
	rows        []*row
	notes       []string
}

// A row is a figure beside lower bounds, or competitors.
type row struct {
	what, figure string
	times        float64 // how many times what stands first beside it, if samples are compared
	beside       []string
	verdict      string // and the goal
}

// compare adds a row that compares a sample with others.
func (p *part) compare(what string, own sample, others ...sample) *row {
	r := p.figure(what, own.String())
	r.times = own.over(others[0])
	for _, o := range others {
		r.than(o.name, o.String(), own.ratio(o))
	}
	return r
}

// figure adds a row with a figure that is formatted already.
func (p *part) figure(what, figure string) *row {
	r := &row{what: what, figure: figure}
	p.rows = append(p.rows, r)
	return r
}

// than adds a comparison to the row.
func (r *row) than(name, figure, ratio string) *row {
	r.beside = append(r.beside, strings.TrimSuffix(name+": "+figure+", "+ratio, ", "))
	return r
}

func (r *row) goal(text string, met bool) {
	r.verdict = "**missed**: " + text
	if met {
		r.verdict = "met: " + text
	}
}

// atLeast and atMost set a goal for the ratio to what stands first beside the figure.
func (r *row) atLeast(times float64) { r.goal(fmt.Sprintf(">= %vx", times), r.times >= times) }
func (r *row) atMost(times float64)  { r.goal(fmt.Sprintf("<= %vx", times), r.times <= times) }

const notMeasured = "not measured"

// skip adds a row that says why something could not be measured on this machine.
func (p *part) skip(what, why string) { p.figure(what, why).verdict = notMeasured }

func (p *part) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// String returns the part in Markdown.
func (p *part) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n| `%s` | measured | beside | goal |\n|---|---|---|---|\n", p.title, p.name)
	for _, r := range p.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.what, r.figure, strings.Join(r.beside, "<br>"), r.verdict)
	}
	for _, note := range p.notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	return b.String()
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + " %" }

// significant formats a number with three significant digits, and with commas between groups of
// thousands.
func significant(x float64) string {
	if math.Abs(x) >= 999.5 {
		return grouped(int(math.Round(x)))
	}
	if x == math.Trunc(x) {
		return strconv.Itoa(int(x))
	}
	return strconv.FormatFloat(x, 'f', max(0, 2-int(math.Floor(math.Log10(math.Abs(x))))), 64)
}

// grouped formats a whole number with commas between groups of thousands.
func grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// duration formats a time with three significant digits.
func duration(d time.Duration) string {
	for _, u := range []struct {
		name string
		of   time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"µs", time.Microsecond}} {
		if d.Abs() >= u.of {
			return significant(float64(d)/float64(u.of)) + " " + u.name
		}
	}
	return significant(float64(d)) + " ns"
}

func share(of, by time.Duration) float64 { return float64(of) / float64(by) }
