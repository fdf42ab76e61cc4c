//go:build linux

package supervise

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// envFaults is the number of faults, by default one of half of the kinds, which are next to each
// other in the table, from a random one on. 200 faults take about 10 minutes.
const envFaults = "PGLEASES_RUN_TEST_FAULTS"

const (
	attackTTL        = 2 * time.Second // no less: a machine that stalls for longer than there is to kill in would break the promise, not the code
	attackPartitions = 4
	attackMembers    = 3

	// Longer than a program may be missing after a fault has ended: the TTL, the start of a killed client, and some seconds for
	// a busy machine.
	attackPatience = attackTTL + 5*time.Second

	startsWithin = 50 * time.Millisecond // a program; on a machine that has nothing else to do it takes 10 ms
)

// A member is a pgleases process under attack, with its own proxy to the database.
type member struct {
	*command.Command
	way *command.Proxy
}

// A fault breaks a member, and returns a function that repairs it.
type fault struct {
	name string
	do   func(t *testing.T, m *member, restart func()) (mend func())
}

var faults = []fault{
	{"kill -9 of the supervisor", func(t *testing.T, m *member, restart func()) func() {
		m.Signal(syscall.SIGKILL)
		return restart
	}},
	{"the supervisor stops, and goes on", func(t *testing.T, m *member, _ func()) func() {
		m.Signal(syscall.SIGSTOP)
		return func() { m.Signal(syscall.SIGCONT) }
	}},
	{"a keeper is killed", func(t *testing.T, m *member, _ func()) func() {
		if keepers := childrenOf(m.Process.Pid); len(keepers) > 0 {
			_ = syscall.Kill(keepers[0], syscall.SIGKILL)
		}
		return func() {}
	}},
	{"the keepers stop while the database does not answer", func(t *testing.T, m *member, _ func()) func() {
		keepers := childrenOf(m.Process.Pid)
		for _, keeper := range keepers {
			_ = syscall.Kill(keeper, syscall.SIGSTOP)
		}
		m.way.Set(false, true)
		return func() { m.way.Set(false, false) }
	}},
	{"the database does not answer", func(t *testing.T, m *member, _ func()) func() {
		m.way.Set(false, true)
		return func() { m.way.Set(false, false) }
	}},
	{"connections are cut", func(t *testing.T, m *member, _ func()) func() {
		m.way.Set(false, false)
		return func() {}
	}},
	{"the database is away", func(t *testing.T, m *member, _ func()) func() {
		m.way.Set(true, false)
		return func() { m.way.Set(false, false) }
	}},
	{"asked to end, and started again", func(t *testing.T, m *member, restart func()) func() {
		m.Signal(syscall.SIGTERM)
		return restart
	}},
}

// Each fault lasts longer than the TTL, so that others take over from the member. The programs ignore SIGTERM and have orphans.
func TestFaultsNeverRunTwoProgramsOfAPartition(t *testing.T) {
	t.Parallel()
	number := 2 * testkit.Rounds(len(faults)/4)
	if text := os.Getenv(envFaults); text != "" {
		var err error
		if number, err = strconv.Atoi(text); err != nil || number < 1 {
			t.Fatalf("%s=%q: give a number of faults", envFaults, text)
		}
	}
	dir, url := t.TempDir(), pgtest.MigratedDatabase(t)
	members := make([]*member, attackMembers)
	start := func(i int) {
		way := command.NewProxy(t, url)
		members[i] = &member{runProgram(t, dir, modeFamily, command.Database(way.URL), "attacked", "-n", strconv.Itoa(attackPartitions),
			"--ttl", attackTTL.String(), "--grace", "200ms", "--id", fmt.Sprintf("member-%d", i), fmt.Sprintf("--cgroup=%v", i > 0)), way}
	}
	// settled waits until each partition has a program that runs after that time, and each member has a keeper.
	settled := func(after time.Duration) {
		t.Helper()
		testkit.Until(t, "a program for each partition and a keeper for each member", func() bool {
			for _, m := range members {
				if len(childrenOf(m.Process.Pid)) == 0 {
					return false
				}
			}
			living := make(map[int]bool)
			for _, r := range records(t, dir) {
				if r.what == "lives" && r.at > after {
					living[r.partition] = true
				}
			}
			return len(living) == attackPartitions
		})
	}
	for i := range members {
		start(i)
	}
	settled(0)
	slow := slowed(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	first := random.IntN(len(faults))
	type away struct{ from, to time.Duration } // faults, during which programs may be missing
	var faulty []away
	made := make(map[string]int)
	for n := 0; n < number; {
		begin := boottime()
		var mends []func()
		broken := random.Perm(attackMembers)[:min(2, number-n)]
		for _, i := range broken {
			f := faults[(first+n)%len(faults)]
			n++
			made[f.name]++
			mends = append(mends, f.do(t, members[i], func() { members[i].ExitCode(); start(i) }))
		}
		time.Sleep(attackTTL + attackTTL/4) // a fault's length, not a wait for something
		for _, mend := range mends {
			mend()
		}
		mended := boottime()
		t.Logf("%d faults: mended, members %v", n, broken)
		settled(mended)
		faulty = append(faulty, away{begin, mended})
	}
	took := boottime() - faulty[0].from

	// The locks of the kernel showed each program whether another one ran. The clock must show the same.
	type life struct {
		record
		last time.Duration
	}
	var lives []*life
	latest := make(map[int]*life)
	seen := make(map[int]time.Duration)
	var worst time.Duration
	for _, r := range records(t, dir) {
		if r.what == "overlaps" {
			t.Errorf("partition %d: program %d began at %v, while another one was there", r.partition, r.pid, r.at)
			continue
		}
		l := latest[r.partition]
		if l == nil || l.pid != r.pid {
			if l != nil && (r.at <= l.last || r.epoch < l.epoch) {
				t.Errorf("partition %d: program %d of epoch %d began at %v; program %d of epoch %d lived until %v",
					r.partition, r.pid, r.epoch, r.at, l.pid, l.epoch, l.last)
			}
			l = &life{record: r}
			latest[r.partition] = l
			lives = append(lives, l)
		}
		l.last = r.at
		if before := seen[r.partition]; before > 0 {
			if times := slow(before, r.at); r.at-before > time.Duration(times*float64(attackPatience)) {
				t.Errorf("partition %d: no program for %v until %v; the machine took %.1f times as long as it may for a start", r.partition, r.at-before, r.at, times)
			}
		}
		worst = max(worst, r.at-max(seen[r.partition], faulty[0].from))
		seen[r.partition] = r.at
	}
	t.Logf("%d faults in %v: %v", number, took, made)
	t.Logf("%d programs ran; the longest time that a partition was without one: %v", len(lives), worst)
	if len(lives) < attackPartitions+number/4 {
		t.Errorf("%d programs ran: the faults did not take hold", len(lives))
	}
}

// slowed starts programs, as keepers do, until the test ends. The function that it returns gives the factor, 1 or more, by which
// starts exceeded startsWithin between two times.
func slowed(t *testing.T) func(from, to time.Duration) float64 {
	type start struct{ begun, ended time.Duration }
	var mu sync.Mutex // guards starts
	var starts []start
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for t.Context().Err() == nil {
			begun := boottime()
			_ = exec.CommandContext(t.Context(), command.Built, "--version").Run() // an error is that the test has ended
			mu.Lock()
			starts = append(starts, start{begun, boottime()})
			mu.Unlock()
			select {
			case <-time.After(10 * startsWithin):
			case <-t.Context().Done():
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	return func(from, to time.Duration) float64 {
		mu.Lock()
		defer mu.Unlock()
		var took, n time.Duration
		for _, s := range starts {
			if s.ended > from && s.begun < to {
				took += s.ended - s.begun
				n++
			}
		}
		return max(1, float64(took)/float64(max(1, n)*startsWithin))
	}
}
