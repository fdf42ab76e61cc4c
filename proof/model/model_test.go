package model

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/notes"
	"github.com/pgleases/pgleases/proof/tally"
)

//go:embed lease.pml
var lease string

//go:embed lock.pml
var lock string

// small is shared by most configurations: two processes, one partition, and a margin shorter than a
// tick. The states that it leaves out have clocks with more values, not other orders of events.
const small = "N=2 P=1 TTL=2 TRUST=2 REREGISTERS=0 MAXEPOCH=2 "

// large has three processes, two partitions, and a promotion. A TTL is one tick, so everything
// expires at the same instant. Spin keeps 64 bits of each state, so it may confuse two states: any
// two of 150 million with a probability of 1 in 1,600.
const large = "N=3 P=2 TTL=1 TRUST=1 REREGISTERS=0 MAXEPOCH=1 PROMOTIONS=1 SYMMETRIC HC4 "

// patient has partitions that wait before they move.
const patient = "COMPLETENESS REREGISTERS=1 MAXEPOCH=1 CRASHES=1 DELAY=2 GRACE=2 "

var visit = flag.String("visit", "few", "configurations to visit: few, most, or all")

type configuration struct {
	name, defines string
	short, long   bool
}

// The configurations that must hold.
var configurations = []configuration{
	{name: "handoffs and evictions", defines: small + "SAME_ID", short: true},
	{name: "margin of a tick", defines: "N=2 P=1 TTL=3 REREGISTERS=0 MAXEPOCH=2"},
	{name: "new sessions", defines: small + "REREGISTERS=1"},
	{name: "database crash", defines: small + "RESTARTS=1"},
	{name: "pending work", defines: small + "MAXEPOCH=3 PINS"},
	{name: "guards", defines: small + "GUARDS ENDED_BEFORE"},
	{name: "late releases", defines: small + "MAXEPOCH=3 LATE"},
	{name: "overtaken plans", defines: small + "APART"},
	{name: "two partitions", defines: small + "P=2 MAXEPOCH=1"},
	{name: "promotion", defines: small + "MAXEPOCH=1 PROMOTIONS=1"},
	{name: "completeness, a crash", defines: small + "COMPLETENESS REREGISTERS=1 MAXEPOCH=1 CRASHES=1"},
	{name: "completeness, a crash, a rebalance delay and a restart grace", defines: small + patient},
	{name: "completeness, late releases", defines: small + "COMPLETENESS REREGISTERS=1 MAXEPOCH=1 LATE", long: true},
	{name: "promotion after a handoff", defines: small + "PROMOTIONS=1", long: true},
	{name: "promotion with pending work", defines: small + "PROMOTIONS=1 PINS", long: true},
	{name: "guards over three ownerships", defines: small + "MAXEPOCH=3 GUARDS ENDED_BEFORE", long: true},
	{name: "late releases over four ownerships", defines: small + "MAXEPOCH=4 LATE", long: true},
	{name: "three processes", defines: small + "N=3 MAXEPOCH=1 SYMMETRIC"},
	{name: "three processes over two ownerships", defines: small + "N=3 SYMMETRIC", long: true},
	{name: "three processes, two partitions", defines: small + "N=3 P=2 MAXEPOCH=1 SYMMETRIC", long: true},
	{name: "three processes, two partitions, a promotion", defines: large + "OPERATIONS=2", long: true},
}

// The text of a violation of each promise.
const (
	exclusive = `^assertion violated \( !\(\(\(pr\[me\]\.trust>0`                // serve
	wrongful  = `^assertion violated  ?!\(\(\(pr\[\(\(1-1\)/2\)\]|turn\)\+1\)==` // evict
	repeats   = `epoch>highest`                                                  // change_owner, accept_server
	fenced    = `workEpoch>=`                                                    // commit
	before    = `guardedBefore|workEpoch<`                                       // serve
	complete  = `bounds\|\|`                                                     // World
)

type mutant struct {
	name, defines, breaks string
	short                 bool
}

// The mutants, each with the promise that it must break.
var mutants = []mutant{
	{"NO_TRUST_DEADLINE", small, wrongful, true},
	{"TRUST_AT_ANSWER", small, wrongful, true},
	{"EVICT_WITHOUT_WATCH", small + "RESTARTS=1", wrongful, false},
	{"EVICT_SHORT_WATCH", small + "RESTARTS=1", wrongful, false},
	{"EVICT_WITHOUT_MARK", small + "RESTARTS=1", wrongful, false},
	{"ASYNC_OWNERSHIP", small + "MAXEPOCH=1 RESTARTS=1", repeats, false},
	{"RELEASE_BEFORE_END", small + "PINS", exclusive, false},
	{"RELEASE_WITHOUT_EPOCH", small + "MAXEPOCH=4 LATE", exclusive, false},
	{"SHOWN_AGAIN", small + "MAXEPOCH=4 LATE", exclusive, false},
	{"CLAIM_WITHOUT_RECHECK", small + "MAXEPOCH=3 APART", exclusive, false},
	{"ANNOUNCE_FORGOTTEN", small + "COMPLETENESS REREGISTERS=1 MAXEPOCH=1 CRASHES=1", complete, false},
	{"GRACE_WITHOUT_END", small + patient, complete, false},
	{"GUARD_WITHOUT_LOCK", small + "GUARDS", fenced, true},
	{"TAKEOVER_WITHOUT_FOR_UPDATE", small + "GUARDS", fenced, false},
	{"GUARD_CURRENT_EPOCH", small + "MAXEPOCH=3 GUARDS", fenced, false},
	{"FENCE_FORGOTTEN", small + "MAXEPOCH=3 GUARDS ENDED_BEFORE", before, false},
	{"RELEASE_NOT_RETRIED", small + "COMPLETENESS REREGISTERS=1 MAXEPOCH=1 LATE", complete, false},
	{"ORPHANS_OF_UNMOVED_TARGETS", small + "COMPLETENESS REREGISTERS=1 MAXEPOCH=1 CRASHES=1", complete, false},
	{"EPOCH_WITHOUT_GENERATION", small + "PROMOTIONS=1", repeats, false},
	{"GAIN_UNACCEPTED", small + "PROMOTIONS=1", exclusive, false},
	{"ACCEPT_WITHOUT_WATCH", small + "PROMOTIONS=1", exclusive, false},
	{"TRUST_BEFORE_REREAD", small + "PROMOTIONS=1", exclusive, false},
	{"DRAINING_NOT_CONFIRMED", small + "PROMOTIONS=1 PINS", exclusive, false},

	{"NO_TRUST_DEADLINE", large, wrongful, false},
	{"TRUST_AT_ANSWER", large, wrongful, false},
	{"ACCEPT_WITHOUT_WATCH", large + "N=2 P=1", exclusive, false},
	{"GAIN_UNACCEPTED", large + "N=2 P=1 MAXEPOCH=2", exclusive, false},
}

// oneLock is shared by the configurations of locks.
const oneLock = "MAXTOKEN=2 REREGISTERS=0 "

// The configurations of named locks.
var lockConfigurations = []configuration{
	{name: "locks", defines: oneLock, short: true},
	{name: "locks, new sessions", defines: "MAXTOKEN=1"},
	{name: "shared locks", defines: oneLock + "MAXTOKEN=3 SHARED"},
	{name: "guards of locks", defines: oneLock + "GUARDS"},
	{name: "locks, database crash", defines: oneLock + "RESTARTS=1"},
	{name: "locks, promotion", defines: oneLock + "MAXTOKEN=1 PROMOTIONS=1"},
}

const (
	onlyOne = `^assertion violated \(\( !\(\(\(pr\[me\]\.stage==` // hold
	rises   = `token>highest`                                     // draw
	inOrder = `workToken>=`                                       // commit
	known   = `stage!=\d+\)\|\| !\(db\.alive`                     // acquire
)

var lockMutants = []mutant{
	{"NO_TRUST_DEADLINE", oneLock, onlyOne, true},
	{"ARRIVES_AT_ANY_TIME", oneLock, known, true},
	{"RELEASE_BY_NAME", oneLock, onlyOne, false},
	{"TAKEN_BY_EXPIRY", oneLock + "RESTARTS=1", onlyOne, false},
	{"GUARD_WITHOUT_LOCK", oneLock + "GUARDS", inOrder, false},
	{"TOKEN_WITHOUT_GENERATION", oneLock + "PROMOTIONS=1", rises, false},
	{"GRANT_UNACCEPTED", oneLock + "MAXTOKEN=1 PROMOTIONS=1", rises, false},
	{"TRUST_BEFORE_CONFIRMED", oneLock + "MAXTOKEN=1 PROMOTIONS=1", onlyOne, false},
	{"GRANT_OF_BEFORE", oneLock + "MAXTOKEN=1 PROMOTIONS=1", onlyOne, false},
}

func TestProtocolHolds(t *testing.T)        { hold(t, lease, configurations) }
func TestProtocolOfLocksHolds(t *testing.T) { hold(t, lock, lockConfigurations) }

func hold(t *testing.T, model string, configurations []configuration) {
	need(t)
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			beside(t)
			if !c.short && *visit == "few" || c.long && *visit != "all" {
				t.Skip("a larger configuration")
			}
			r := explore(t, model, c.defines)
			tally.Checked(t, "states of the model", r.states)
			tally.Violations(t, "model", r.errors)
			if r.errors != 0 {
				t.Errorf("%s is violated: %s", c.defines, r.violation)
			}
		})
	}
}

func TestMutantsAreCaught(t *testing.T)        { catch(t, lease, mutants) }
func TestMutantsOfLocksAreCaught(t *testing.T) { catch(t, lock, lockMutants) }

func catch(t *testing.T, model string, mutants []mutant) {
	need(t)
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			beside(t)
			if !m.short && *visit == "few" {
				t.Skip("a larger configuration")
			}
			r := explore(t, model, m.defines+" "+m.name)
			if r.errors == 0 {
				t.Fatal("it violates no promise")
			}
			if !regexp.MustCompile(m.breaks).MatchString(r.violation) {
				t.Errorf("it breaks another promise than %s: %s", m.breaks, r.violation)
			}
			tally.Checked(t, "mutants of the model", 1)
		})
	}
}

// beside runs the small configurations in parallel. A large one may take 8 GB.
func beside(t *testing.T) {
	if *visit == "few" {
		t.Parallel()
	}
}

// need ends the test if a tool is not installed: see notes.Lacks.
func need(t *testing.T) {
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			notes.Lacks(t, tool, fmt.Sprintf("%s is needed to check the model "+
				"(Debian, Ubuntu: apt-get install spin gcc libc6-dev): %v", tool, err))
		}
	}
}

type result struct {
	states    int
	errors    int
	violation string // the assertion that failed
}

var (
	errorsFound = regexp.MustCompile(`errors: (\d+)`)
	states      = regexp.MustCompile(`(\d+) states, stored\n`)
	depth       = regexp.MustCompile(`depth reached (\d+)`)
	memory      = regexp.MustCompile(`([\d.]+)\s+total actual memory`)
	violated    = regexp.MustCompile(`(?m)^pan:1: (.*)$`)
)

// explore visits every state of the model with these definitions, up to the first violation. A
// later definition of a name overrides an earlier one.
func explore(t *testing.T, model, defines string) result {
	dir := t.TempDir()
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "model.pml"), []byte(model), 0o600))
	values := make(map[string]string)
	for _, d := range strings.Fields(defines) {
		name, _, _ := strings.Cut(d, "=")
		values[name] = "-D" + d
	}
	args := []string{"-a"}
	store := "-DCOLLAPSE" // every state in full
	for name, d := range values {
		if name == "HC4" {
			store = d
		} else {
			args = append(args, d)
		}
	}
	command(t, dir, "spin", append(args, "model.pml")...)
	command(t, dir, "gcc", "-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-DNOFAIR", store, "-DMEMLIM=8000",
		"-o", "pan", "pan.c")
	begun := time.Now()
	out := command(t, dir, "./pan", "-E", "-m100000", "-w24")

	number := func(re *regexp.Regexp) string {
		m := re.FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("no %s in:\n%s", re, out)
		}
		return m[1]
	}
	// An incomplete search is no result.
	for _, sign := range []string{"Search not completed", "max search depth too small", "out of memory"} {
		if strings.Contains(out, sign) && !violated.MatchString(out) {
			t.Fatalf("the search is not exhaustive:\n%s", out)
		}
	}
	r := result{}
	r.errors, _ = strconv.Atoi(number(errorsFound))
	r.states, _ = strconv.Atoi(number(states))
	if r.errors > 0 {
		r.violation = number(violated)
	}
	t.Logf("%s states, depth %s, %s MB, %v: %s", number(states), number(depth), number(memory),
		time.Since(begun).Round(10*time.Millisecond), defines)
	return r
}

func command(t *testing.T, dir, name string, args ...string) string {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (name != "./pan" || !errors.As(err, &exit) || exit.ExitCode() < 0) {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
