//go:build linux

package supervise

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
	"github.com/pgleases/pgleases/internal/timeguard"
)

// envFaults is the number of faults, by default one of half of the kinds, which are next to each
// other in the table, from a random one on. 200 faults take about 10 minutes.
const envFaults = "PGLEASES_RUN_TEST_FAULTS"

const (
	// No less: if a machine stalled for longer than there is to kill in, it would break the promise, not
	// the code.
	attackTTL        = 2 * time.Second
	attackPartitions = 4
	attackMembers    = 3

	// Longer than a program may be missing after a fault has ended: the TTL, the start of a killed client, and some seconds for
	// a busy machine.
	attackPatience = attackTTL + 5*time.Second
)

// A member is a pgleases process under attack, with its own proxy to the database.
type member struct {
	*command.Command
	way *command.Proxy
}

// A fault breaks a member, and returns a function that repairs it.
type fault struct {
	name string
	do   func(t testing.TB, m *member, restart func()) (mend func())
}

var faults = []fault{
	{"kill -9 of the supervisor", func(t testing.TB, m *member, restart func()) func() {
		m.Signal(syscall.SIGKILL)
		return restart
	}},
	{"the supervisor stops, and goes on", func(t testing.TB, m *member, _ func()) func() {
		m.Signal(syscall.SIGSTOP)
		return func() { m.Signal(syscall.SIGCONT) }
	}},
	{"a keeper is killed", func(t testing.TB, m *member, _ func()) func() {
		if keepers := childrenOf(m.Process.Pid); len(keepers) > 0 {
			_ = syscall.Kill(keepers[0], syscall.SIGKILL)
		}
		return func() {}
	}},
	{"the keepers stop while the database does not answer", func(t testing.TB, m *member, _ func()) func() {
		keepers := childrenOf(m.Process.Pid)
		for _, keeper := range keepers {
			_ = syscall.Kill(keeper, syscall.SIGSTOP)
		}
		m.way.Set(false, true)
		return func() { m.way.Set(false, false) }
	}},
	{"the database does not answer", func(t testing.TB, m *member, _ func()) func() {
		m.way.Set(false, true)
		return func() { m.way.Set(false, false) }
	}},
	{"connections are cut", func(t testing.TB, m *member, _ func()) func() {
		m.way.Set(false, false)
		return func() {}
	}},
	{"the database is away", func(t testing.TB, m *member, _ func()) func() {
		m.way.Set(true, false)
		return func() { m.way.Set(false, false) }
	}},
	{"asked to end, and started again", func(t testing.TB, m *member, restart func()) func() {
		m.Signal(syscall.SIGTERM)
		return restart
	}},
}

// Each fault lasts longer than the TTL, so that others take over from the member. The programs ignore SIGTERM and have orphans.
func TestFaultsNeverRunTwoProgramsOfAPartition(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	number := len(faults) / 2
	if text := os.Getenv(envFaults); text != "" {
		var err error
		if number, err = strconv.Atoi(text); err != nil || number < 1 {
			t.Fatalf("%s=%q: give a number of faults", envFaults, text)
		}
	}
	timeguard.Run(t, func(t *timeguard.Try) { attack(t, number) })
}

// attack breaks members of a fleet as often as number says, and judges what the programs wrote.
func attack(t *timeguard.Try, number int) {
	probePrograms(t)
	dir, url := t.TempDir(), pgtest.MigratedDatabase(t)
	members := make([]*member, attackMembers)
	start := func(i int) {
		way := command.NewProxy(t, url)
		program := runProgram(t, dir, modeFamily, command.Database(way.URL), "attacked",
			"-n", strconv.Itoa(attackPartitions), "--ttl", attackTTL.String(), "--grace", "200ms",
			"--id", fmt.Sprintf("member-%d", i), fmt.Sprintf("--cgroup=%v", i > 0))
		members[i] = &member{program, way}
	}
	for i := range members {
		start(i)
	}
	untilSettled(t, dir, members, 0)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	first := random.IntN(len(faults))
	began := boottime()
	made := make(map[string]int)
	for n := 0; n < number; {
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
		untilSettled(t, dir, members, mended)
	}
	t.Logf("%d faults in %v: %v", number, boottime()-began, made)
	judge(t, records(t, dir), began, number)
}

// untilSettled waits until each partition has a program that runs after that time, and each member
// has a keeper.
func untilSettled(t testing.TB, dir string, members []*member, after time.Duration) {
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

// A life is what a program wrote.
type life struct {
	record
	last time.Duration
}

// judge checks that no two programs of a partition ran at the same time, and that none was missing
// for long. Both need a machine that keeps time: a keeper that is not woken kills late. The locks of
// the kernel showed each program whether another one ran. The clock must show the same.
func judge(t *timeguard.Try, all []record, began time.Duration, number int) {
	t.Helper()
	missed := func(from, to, within time.Duration, format string, args ...any) {
		t.Helper()
		at := func(boot time.Duration) timeguard.Instant {
			return timeguard.Now() - timeguard.Instant(boottime()-boot)
		}
		t.MissedAt(at(from), at(to), within, format, args...)
	}
	latest := make(map[int]*life)
	lives, worst := 0, time.Duration(0)
	for _, r := range all {
		if r.what == "overlaps" {
			missed(r.at-attackTTL, r.at, attackTTL, "partition %d: program %d began at %v, while another one was there",
				r.partition, r.pid, r.at)
		}
		before := latest[r.partition]
		if before == nil || before.pid != r.pid {
			if before != nil && (r.at <= before.last || r.epoch < before.epoch) {
				missed(r.at-attackTTL, before.last, attackTTL, "partition %d: program %d of epoch %d began at %v; "+
					"program %d of epoch %d lived until %v",
					r.partition, r.pid, r.epoch, r.at, before.pid, before.epoch, before.last)
			}
			latest[r.partition] = &life{r, r.at}
			lives++
		}
		if before == nil {
			continue
		}
		if gap := r.at - before.last; gap > attackPatience {
			missed(before.last, r.at, attackPatience, "partition %d: no program for %v until %v",
				r.partition, gap, r.at)
		}
		worst = max(worst, r.at-max(before.last, began))
		latest[r.partition].last = r.at
	}
	t.Logf("%d programs ran; the longest time that a partition was without one: %v", lives, worst)
	if lives < attackPartitions+number/4 {
		t.Errorf("%d programs ran: the faults did not take hold", lives)
	}
}
