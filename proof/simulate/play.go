package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// histories is the test that plays them.
const histories = "TestNoTwoClientsEverShowAPartition"

// A simulation counts what was played.
type simulation struct {
	binary  string
	ttl     time.Duration // of most clients
	every   time.Duration // the mean time between two steps of trouble
	played  int
	clients time.Duration // the time of all clients together
	core    time.Duration // processor time
	sent    int           // statements that the database executed
	checks  int           // how often the oracle compared what clients show
	right   time.Duration // the longest time until all was right again after the faults
	bound   time.Duration // the longest that it may take, of the same history
	faults  map[string]int
}

// A history is what the test reports of one. Its fields are those of the test.
type history struct {
	Seed       uint64
	Steps      int
	Clients    time.Duration
	Statements int
	Checks     int
	Faults     map[string]int
	Right      time.Duration
	Bound      time.Duration
	Failed     string
	trace      string
}

// play plays a round of histories, and returns the first that failed.
func (s *simulation) play(ctx context.Context, seed uint64, n int) (failed *history, err error) {
	played, err := s.start(ctx, seed, n, math.MaxInt)
	for _, h := range played {
		s.played++
		s.clients += h.Clients
		s.sent += h.Statements
		s.checks += h.Checks
		if h.Right > s.right {
			s.right, s.bound = h.Right, h.Bound
		}
		for kind, n := range h.Faults {
			s.faults[kind] += n
		}
		if h.Failed != "" && failed == nil {
			failed = &h
		}
	}
	return failed, err
}

// start runs the test on one core. Its heap is so small that the collector would take a tenth of the
// time if it were not told to run less often.
func (s *simulation) start(ctx context.Context, seed uint64, n, steps int) ([]history, error) {
	cmd := exec.CommandContext(ctx, s.binary,
		"-test.run=^"+histories+"$", "-test.v", "-test.parallel=1", "-test.timeout=1h",
		fmt.Sprintf("-first-seed=%d", seed), fmt.Sprintf("-seeds=%d", n), fmt.Sprintf("-steps=%d", steps),
		fmt.Sprintf("-ttl=%v", s.ttl), fmt.Sprintf("-every=%v", s.every))
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400")
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil { // it was not started
		return nil, err
	}
	s.core += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	all, decoded := reported(text)
	if decoded != nil {
		return nil, decoded
	}
	if len(all) == 0 || err != nil && !slices.ContainsFunc(all, func(h history) bool { return h.Failed != "" }) {
		return nil, fmt.Errorf("play histories from seed %d on: %w\n%s", seed, err, text[max(0, len(text)-10_000):])
	}
	return all, nil
}

// reported reads the histories from the output of the test, in which each is an attribute. What a
// failed one has printed comes before it.
func reported(text []byte) (all []history, err error) {
	trace := &strings.Builder{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Text()
		_, value, is := strings.Cut(line, " history {")
		if !is || !strings.HasPrefix(line, "=== ATTR") {
			fmt.Fprintln(trace, line)
			continue
		}
		h := history{}
		if err := json.Unmarshal([]byte("{"+value), &h); err != nil {
			return nil, fmt.Errorf("read the report of a history: %w: %s", err, line)
		}
		if h.Failed != "" {
			h.trace = trace.String()
		}
		trace.Reset()
		all = append(all, h)
	}
	return all, lines.Err()
}

func (s *simulation) sum() (n int) {
	for _, hits := range s.faults {
		n += hits
	}
	return n
}

func (s *simulation) String() string {
	return fmt.Sprintf("%d histories, %.3f client-years, %d faults, in %v of one core",
		s.played, s.clients.Hours()/year.Hours(), s.sum(), s.core.Round(time.Second))
}

// report returns the figures, and the faults by kind.
func (s *simulation) report() string {
	var b strings.Builder
	hours := s.core.Hours()
	fmt.Fprintf(&b, "%v\n", s)
	years := s.clients.Hours() / year.Hours()
	fmt.Fprintf(&b, "in an hour of one core: %.2f client-years, %.0f faults\n", years/hours, float64(s.sum())/hours)
	fmt.Fprintf(&b, "the database executed %d statements, ", s.sent)
	fmt.Fprintf(&b, "and the oracle compared what all clients show %d times\n", s.checks)
	fmt.Fprintf(&b, "after the last fault, everything was owned again within %v at most, ", s.right)
	fmt.Fprintf(&b, "where the bound is %v\n\n", s.bound)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FAULT\tHITS")
	for _, kind := range slices.Sorted(maps.Keys(s.faults)) {
		fmt.Fprintf(table, "%s\t%d\n", kind, s.faults[kind])
	}
	_ = table.Flush() // a builder takes all
	return b.String()
}
