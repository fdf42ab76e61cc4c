package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgleases/pgleases/proof/tally"
)

// module is the path of the module whose tests are attacks, each with a row of its own. The tests
// of another package share a row.
const (
	module  = "github.com/pgleases/pgleases/proof"
	library = "github.com/pgleases/pgleases/"
)

// An event is a line of go test -json.
type event struct {
	Time                    time.Time
	Action, Package, Test   string
	Key, Value              string // of an attribute
	Output                  string
	Elapsed                 float64
	ImportPath, FailedBuild string
}

// A row is what is known of an attack, or of the tests of another package.
type row struct {
	name            string
	passed, failed  int // tests that ran
	took            time.Duration
	faults, checked map[string]int
	violations      int
	repeated        int      // tries that did not count, because the machine was late
	skipped         []string // why
}

// A verdict collects the rows.
type verdict struct {
	progress io.Writer
	when     time.Time     // the first event
	took     time.Duration // from the first event to the last, of all inputs
	commit   string
	server   string
	rows     map[string]*row
	output   map[string][]string  // of the tests that run now
	begun    map[string]time.Time // when they began, or went on after they had waited for others
}

func newVerdict(progress io.Writer) *verdict {
	return &verdict{
		progress: progress,
		rows:     make(map[string]*row),
		output:   make(map[string][]string),
		begun:    make(map[string]time.Time),
	}
}

// row returns the row of an event.
func (v *verdict) row(e event) *row {
	name := strings.TrimPrefix(e.Package, library)
	if e.Package == module && e.Test != "" {
		name, _, _ = strings.Cut(e.Test, "/")
	}
	r := v.rows[name]
	if r == nil {
		r = &row{name: name, faults: make(map[string]int), checked: make(map[string]int)}
		v.rows[name] = r
	}
	return r
}

// read reads events until the end.
func (v *verdict) read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<24)
	var first, last time.Time
	defer func() { v.took += last.Sub(first) }()
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("no event of go test -json: %q: %w", lines.Text(), err)
		}
		if first.IsZero() {
			first = e.Time
		}
		last = e.Time
		if v.when.IsZero() {
			v.when = e.Time
		}
		if err := v.add(e); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (v *verdict) add(e event) error {
	test := e.Package + " " + e.Test
	switch e.Action {
	case "run", "cont":
		v.begun[test] = e.Time
	case "output":
		v.output[test] = append(v.output[test], e.Output)
		v.notice(e)
	case "build-output":
		v.output[e.ImportPath] = append(v.output[e.ImportPath], e.Output)
	case "attr":
		return v.attribute(e)
	case "pass", "fail", "skip":
		v.end(e)
		delete(v.output, test)
	}
	return nil
}

var (
	repeated = regexp.MustCompile(`^\s+\S+\.go:\d+: repeated: `)
	reason   = regexp.MustCompile(`^\s+\S+\.go:\d+: (?:skipped: )?(.*)`)
	server   = regexp.MustCompile(`PostgreSQL \d[^ ]*`)
)

// notice looks for what tests print.
func (v *verdict) notice(e event) {
	if repeated.MatchString(e.Output) {
		v.row(e).repeated++
	}
	if strings.HasPrefix(e.Output, "pgtest: ") && e.Package == module {
		v.server = server.FindString(e.Output)
	}
}

// attribute adds a count of package tally.
func (v *verdict) attribute(e event) error {
	count, name, _ := strings.Cut(e.Value, " ")
	n, err := strconv.Atoi(count)
	r := v.row(e)
	switch e.Key {
	case tally.FaultKey:
		r.faults[name] += n
	case tally.CheckedKey:
		r.checked[name] += n
	case tally.ViolationKey:
		r.violations += n
	default:
		return nil // of another author
	}
	if err != nil {
		return fmt.Errorf("attribute %s of %s: %w", e.Key, e.Test, err)
	}
	return nil
}

// end records the end of a test or of a package.
func (v *verdict) end(e event) {
	if e.Test == "" {
		v.endPackage(e)
		return
	}
	r := v.row(e)
	top := !strings.Contains(e.Test, "/")
	if top && e.Package == module {
		r.took += e.Time.Sub(v.begun[e.Package+" "+e.Test]) // Elapsed lacks parallel subtests
	}
	switch e.Action {
	case "skip":
		why := v.why(e)
		if !slices.Contains(r.skipped, why) {
			r.skipped = append(r.skipped, why)
		}
	case "fail":
		if top {
			r.failed++
		}
		fmt.Fprint(v.progress, strings.Join(v.output[e.Package+" "+e.Test], ""))
	case "pass":
		if top {
			r.passed++
		}
	}
	if top && e.Package == module {
		fmt.Fprintf(v.progress, "%-6s %6.1f s  %s\n", e.Action, e.Elapsed, e.Test)
	}
}

// endPackage records the end of a package. If it failed for another reason than a test, it has a
// row that says so.
func (v *verdict) endPackage(e event) {
	if e.Package != module {
		v.row(e).took += time.Duration(e.Elapsed * float64(time.Second))
		name := strings.TrimPrefix(e.Package, library)
		fmt.Fprintf(v.progress, "%-6s %6.1f s  package %s\n", e.Action, e.Elapsed, name)
	}
	if e.Action != "fail" {
		return
	}
	failed := v.row(e).failed
	if e.Package == module {
		failed = 0
		for _, r := range v.rows {
			failed += r.failed
		}
	}
	if failed == 0 {
		v.row(e).failed++
		fmt.Fprint(v.progress, strings.Join(append(v.output[e.FailedBuild], v.output[e.Package+" "]...), ""))
	}
}

// why returns why a test was skipped: the last thing that it logged.
func (v *verdict) why(e event) string {
	for _, line := range slices.Backward(v.output[e.Package+" "+e.Test]) {
		if found := reason.FindStringSubmatch(line); found != nil {
			return found[1]
		}
	}
	return "without a reason"
}

// attacks returns the rows that ran or were skipped, by name, the attacks before the packages.
func (v *verdict) attacks() []*row {
	rows := slices.Collect(maps.Values(v.rows))
	rows = slices.DeleteFunc(rows, func(r *row) bool { return r.passed+r.failed+len(r.skipped) == 0 })
	of := func(r *row) int {
		if strings.HasPrefix(r.name, "Test") {
			return 0
		}
		return 1
	}
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Or(cmp.Compare(of(a), of(b)), cmp.Compare(a.name, b.name)) })
	return rows
}

// err says what is wrong.
func (v *verdict) err() error {
	all := v.sum()
	switch {
	case all.violations > 0 || all.failed > 0:
		return fmt.Errorf("%d violations; %d tests failed", all.violations, all.failed)
	case all.passed == 0:
		return fmt.Errorf("no test ran")
	}
	return nil
}

// sum returns all rows as one.
func (v *verdict) sum() row {
	all := row{faults: make(map[string]int), checked: make(map[string]int)}
	for _, r := range v.rows {
		all.passed += r.passed
		all.failed += r.failed
		all.took += r.took
		all.violations += r.violations
		all.repeated += r.repeated
		for kind, n := range r.faults {
			all.faults[kind] += n
		}
		for thing, n := range r.checked {
			all.checked[thing] += n
		}
	}
	return all
}
