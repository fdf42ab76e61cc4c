//go:build linux

package supervise

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/pgleasestest"
)

func TestRunOnceReturnsTheExitCodeOfTheProgram(t *testing.T) {
	t.Parallel()
	env := command.Database(pgtest.MigratedDatabase(t))
	c := runShell(t, env, "codes --once",
		`echo "$PGLEASES_LEASE/$PGLEASES_PARTITION/$PGLEASES_PARTITIONS/$PGLEASES_EPOCH"; exit 7`)
	if code := c.ExitCode(); code != 7 || !regexp.MustCompile(`(?m)^codes/0/1/[1-9][0-9]*$`).MatchString(c.Printed()) {
		t.Errorf("exit code %d, want 7; output %q", code, c.Printed())
	}
	for script, want := range map[string]int{"exit 0": 0, "kill -9 $$": 128 + 9, "exit 75": 75} {
		if code := runShell(t, env, "codes --once", script).ExitCode(); code != want {
			t.Errorf("%s: exit code %d, want %d", script, code, want)
		}
	}
}

func TestTryAndWaitEndIfAnotherOwnsIt(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	dir, database := t.TempDir(), pgtest.MigratedDatabase(t)
	env := command.Database(database)
	holder := runProgram(t, dir, "", env, "tried", "--ttl", "5m", "--id", "holder")
	awaitRecord(t, dir, 0, "begins", nil)
	starts := regexp.MustCompile(`level=INFO msg="program starts" lease=tried partition=0 epoch=\d+`)
	testkit.Until(t, "it says that the program starts", func() bool { return starts.MatchString(holder.Printed()) })
	// With that TTL they would wait for minutes.
	for flags, why := range map[string]string{
		"--try":        `client "holder" owns partition 0`,
		"--wait=300ms": "no partition was owned in 300ms",
	} {
		c := command.Run(t, env, "run", "tried", "--ttl", "5m", flags, "--once", "--", "echo", "ran")
		if code := c.ExitCode(); code != 75 || !strings.Contains(c.Printed(), `lease "tried": `+why) {
			t.Errorf("%s: exit code %d, want 75; output %q", flags, code, c.Printed())
		}
	}
	standby := command.Run(t, env, "run", "tried", "--ttl", "5m", "--", "true")
	const standsBy = `level=INFO msg="standing by: live clients own all partitions" lease=tried ` +
		`reason="client \"holder\" owns partition 0" command="pgleases explain tried/0"`
	testkit.Until(t, "it says that it stands by", func() bool {
		return strings.Contains(standby.Printed(), standsBy)
	})
	if strings.Contains(standby.Printed(), "program starts") || strings.Contains(standby.Printed(), "WARN") {
		t.Errorf("a healthy standby says %q", standby.Printed())
	}
	for _, c := range []*command.Command{standby, holder} {
		c.Signal(syscall.SIGTERM)
		if code := c.ExitCode(); code != 128+15 {
			t.Errorf("exit code %d after SIGTERM, want 143", code)
		}
	}
	pool := testkit.Pool(t, database)
	testkit.Execute(t, pool, "SELECT pgleases.pause('tried'::text, 'why'::text)")
	c := command.Run(t, env, "run", "tried", "--ttl", "5m", "--try", "--once", "--", "echo", "ran")
	if c.ExitCode() != 75 || !strings.Contains(c.Printed(), "an operator has paused it") {
		t.Errorf("--try on a paused lease: %q", c.Printed())
	}
	paused := command.Run(t, env, "run", "tried", "--ttl", "5m", "--", "true")
	const ownsNone = `level=WARN msg="no partition is owned" lease=tried reason="an operator has paused it" ` +
		`command="pgleases explain tried/0"`
	testkit.Until(t, "it warns of the pause", func() bool {
		return strings.Contains(paused.Printed(), ownsNone)
	})
	paused.Signal(syscall.SIGTERM)
	paused.ExitCode()
	testkit.Execute(t, pool, "SELECT pgleases.resume('tried'::text, 'why'::text)")
	for _, flags := range []string{"--try", "--wait=1m"} {
		c := command.Run(t, env, "run", "tried", "--ttl", "5m", flags, "--once", "--", "echo", "ran")
		if code := c.ExitCode(); code != 0 || !strings.Contains(c.Printed(), "ran") {
			t.Errorf("%s on a free lease: exit code %d, want 0; output %q", flags, code, c.Printed())
		}
	}
}

// A crashed client still owns the partition if no other client ran since, for example between two
// nights when cron starts all.
func TestTryTakesOverFromACrashedOwner(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		const ttl = time.Second
		dir, database := t.TempDir(), pgtest.MigratedDatabase(t)
		dead := runProgram(t, dir, "", command.Database(database), "nightly", "--ttl", ttl.String())
		awaitRecord(t, dir, 0, "begins", nil)
		dead.Signal(syscall.SIGKILL)
		testkit.Becomes(t, testkit.Pool(t, database), "the dead one has expired", true,
			"SELECT bool_and(expires_at < clock_timestamp()) FROM pgleases.clients")
		pooled, err := url.Parse(database)
		testkit.OK(t, err)
		settings := pooled.Query()
		settings.Set("pool_max_conns", "2") // as applications have in theirs
		pooled.RawQuery = settings.Encode()
		env, began := command.Database(pooled.String()), time.Now()
		var both [2]*command.Command
		for i := range both {
			both[i] = command.Run(t, env, "run", "nightly", "--ttl", ttl.String(),
				"--try", "--once", "--", "echo", "ran")
		}
		ran := 0
		for _, c := range both {
			switch code := c.ExitCode(); code {
			case 0:
				ran++
			case 75:
				keptTrust(t, c, began, ttl) // one that lost the partition may have kept the other from it
			default:
				t.Errorf("exit code %d, want 0 or 75", code)
			}
		}
		if ran == 0 {
			t.Missed(began, ttl, "both left it to a dead one")
		}
	})
}

func TestProgramRestartsWithBackoff(t *testing.T) {
	t.Parallel()
	dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
	log := filepath.Join(dir, "starts")
	command.Run(t, env, "run", "again", "--", "sh", "-c", `cut -d' ' -f1 /proc/uptime >>`+log)
	var starts []string
	testkit.Until(t, "five starts", func() bool {
		text, _ := os.ReadFile(log)
		starts = strings.Fields(string(text))
		return len(starts) >= 5
	})
	var at [5]float64
	for i := range at {
		_, err := fmt.Sscan(starts[i], &at[i])
		testkit.OK(t, err)
	}
	for i, least := range []float64{0.1, 0.2, 0.4, 0.8} {
		if pause := at[i+1] - at[i]; pause < least-0.01 { // uptime has hundredths
			t.Errorf("start %d came %.2f s after the one before, want %.1f s at least", i+1, pause, least)
		}
	}
}

var wantedEnd = regexp.MustCompile(
	`level=INFO msg="program was ended" .*cause="signal SIGTERM" exit_code=\d+ in_order=true`)

// The TTL is much longer than the test, so the next client owns the partition only by a handoff.
func TestHandoffWaitsForTheEndOfTheProgram(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, test := range []struct {
		mode  string
		ttl   time.Duration
		grace string
		last  string // what the program writes last
	}{
		{"", 5 * time.Minute, "1m", "ends"},
		{modeSlow, slowEnd - time.Second, "1m", "ends"}, // it stays the owner for longer than its TTL
		{modeStubborn, 5 * time.Minute, "200ms", "lives"},
		{modeFamily, 5 * time.Minute, "200ms", "lives"},
	} {
		t.Run("program "+test.mode, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
				started := time.Now()
				first := runProgram(t, dir, test.mode, env, "handed", "--ttl", test.ttl.String(), "--grace", test.grace)
				began := awaitRecord(t, dir, 0, "begins", nil)
				next := runProgram(t, dir, "", env, "handed", "--ttl", test.ttl.String())
				first.Signal(syscall.SIGTERM)
				awaitRecord(t, dir, began.at, "begins", nil)
				keptTrust(t, first, started, test.ttl)
				keptTrust(t, next, started, test.ttl)
				if code := first.ExitCode(); code != 128+15 {
					t.Errorf("exit code %d, want 143", code)
				}
				if out := first.Printed(); !wantedEnd.MatchString(out) {
					t.Errorf("the log does not say that the end is in order: %s", out)
				}
				handedOver(t, records(t, dir), began.pid, test.last)
			})
		})
	}
}

// handedOver checks that the first program was asked to end, and that its last word was the last
// before the next program began.
func handedOver(t testing.TB, all []record, first int, last string) {
	t.Helper()
	told := false
	for i, r := range all {
		told = told || r.what == "terminated"
		switch {
		case r.what == "overlaps":
			t.Errorf("the next program began while the first was there")
		case r.pid != first && all[i-1].pid == first && (all[i-1].what != last || !told):
			t.Errorf("the first program's last word was %q (SIGTERM before: %v), want %q", all[i-1].what, told, last)
		}
	}
}

func TestSecondSignalDoesNotWaitForTheGrace(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
	c := runProgram(t, dir, modeStubborn, env, "twice", "--grace", "1h", "--ttl", "5m")
	awaitRecord(t, dir, 0, "begins", nil)
	c.Signal(syscall.SIGTERM) // SIGINT is ignored, as it is to be, if a script runs the tests in the background
	awaitRecord(t, dir, 0, "terminated", nil)
	askAgain(t, c)
	if code := c.ExitCode(); code != 128+15 {
		t.Errorf("exit code %d, want 143", code)
	}
}

// The TTL is much longer than the test, so the program is killed because its keeper and
// supervisor die, not at a deadline.
func TestNothingOutlivesTheSupervisorAndKeeper(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, mode string
		kill       func(supervisor *command.Command, keeper, program int)
	}{
		{"the supervisor is killed", modeFamily, func(supervisor *command.Command, _, _ int) {
			supervisor.Signal(syscall.SIGKILL)
		}},
		{"the keeper is killed", modeFamily, func(_ *command.Command, keeper, _ int) {
			_ = syscall.Kill(keeper, syscall.SIGKILL)
		}},
		{"the supervisor is stopped and the keeper killed", modeStubborn,
			func(supervisor *command.Command, keeper, _ int) {
				supervisor.Signal(syscall.SIGSTOP)
				_ = syscall.Kill(keeper, syscall.SIGKILL)
			}},
		{"both are killed", modeStubborn, func(supervisor *command.Command, keeper, _ int) {
			_ = syscall.Kill(keeper, syscall.SIGSTOP)
			supervisor.Signal(syscall.SIGKILL)
			_ = syscall.Kill(keeper, syscall.SIGKILL)
		}},
		{"the program ends", modeFamily, func(_ *command.Command, _, program int) {
			_ = syscall.Kill(program, syscall.SIGKILL)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
			c := runProgram(t, dir, test.mode, env, "guarded", "--ttl", "5m", "--grace", "1h",
				fmt.Sprintf("--cgroup=%v", test.mode != modeFamily))
			began := awaitRecord(t, dir, 0, "begins", nil)
			keepers := childrenOf(c.Process.Pid)
			if len(keepers) != 1 || len(childrenOf(keepers[0])) == 0 || isFree(t, dir, 0) {
				t.Fatalf("keepers %v: want one that has the program", keepers)
			}
			killed := boottime()
			test.kill(c, keepers[0], began.pid)
			testkit.Until(t, "all is gone, or another one has begun", func() bool {
				for _, r := range records(t, dir) {
					if r.pid != began.pid {
						return true
					}
				}
				return isFree(t, dir, 0)
			})
			t.Logf("all is gone after %v", boottime()-killed)
			for _, r := range records(t, dir) {
				if r.what == "overlaps" {
					t.Error("another one began while something of the first was there")
				}
			}
		})
	}
}

// The program ends before the end of trust, even if only one of keeper and supervisor runs.
func TestProgramIsGoneWhenTrustEnds(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, test := range []struct {
		name string
		stop stopFunc
	}{
		{"the supervisor is stopped", stopSupervisor},
		{"the database does not answer", func(_ testing.TB, _ *command.Command, _ int, way *command.Proxy) {
			way.Set(false, true)
		}},
		{"the database is away", func(_ testing.TB, _ *command.Command, _ int, way *command.Proxy) {
			way.Set(true, false)
		}},
		{"the database does not answer and the keeper is stopped",
			func(_ testing.TB, _ *command.Command, keeper int, way *command.Proxy) {
				way.Set(false, true)
				_ = syscall.Kill(keeper, syscall.SIGSTOP)
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			expectGoneInTime(t, 1, modeFamily, "true", test.stop)
		})
	}
}

func TestForkChainIsGoneWhenTrustEnds(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	expectGoneInTime(t, 4, modeChain, "false", stopSupervisor)
}

// A stopFunc keeps a supervisor from its work.
type stopFunc func(t testing.TB, supervisor *command.Command, keeper int, way *command.Proxy)

func stopSupervisor(_ testing.TB, supervisor *command.Command, _ int, _ *command.Proxy) {
	supervisor.Signal(syscall.SIGSTOP)
}

func expectGoneInTime(t *testing.T, n int, mode, group string, stop stopFunc) {
	t.Helper()
	const ttl = 3 * time.Second
	timeguard.Run(t, func(t *timeguard.Try) {
		probePrograms(t)
		dir, url := t.TempDir(), pgtest.MigratedDatabase(t)
		way := command.NewProxy(t, url)
		c := runProgram(t, dir, mode, command.Database(way.URL), "trusted", "-n", strconv.Itoa(n),
			"--ttl", ttl.String(), "--grace", "1h", "--cgroup="+group)
		var began record
		for i := range n {
			began = awaitRecord(t, dir, 0, "begins", func(r record) bool { return r.partition == i })
		}
		var keepers []int
		testkit.Until(t, "it has a keeper", func() bool { // on a busy machine, the first may have ended
			keepers = childrenOf(c.Process.Pid)
			return len(keepers) > 0
		})
		stopped := time.Now()
		stop(t, c, keepers[0], way)
		for i := range n {
			testkit.Until(t, "all is gone", func() bool { return isFree(t, dir, i) })
		}
		gone := boottime()
		left := ttl - ttl/20 - time.Since(stopped)
		t.Logf("gone %v before the latest end of the trust", left)
		if left < 0 {
			t.Missed(stopped, ttl, "it was gone %v after the latest end of the trust", -left)
		}
		runProgram(t, dir, "", command.Database(url), "trusted", "-n", strconv.Itoa(n), "--ttl", ttl.String())
		awaitRecord(t, dir, gone, "begins", func(r record) bool { return r.pid != began.pid })
	})
}

func TestShortOutageKeepsTheProgram(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	const ttl = 5 * time.Second
	timeguard.Run(t, func(t *timeguard.Try) {
		dir, url := t.TempDir(), pgtest.MigratedDatabase(t)
		way := command.NewProxy(t, url)
		started := time.Now()
		runProgram(t, dir, "", command.Database(way.URL), "short", "--ttl", ttl.String())
		began := awaitRecord(t, dir, 0, "begins", nil)
		away := boottime()
		way.Set(true, false)
		time.Sleep(ttl / 5) // the outage's length, not a wait for something
		way.Set(false, false)
		awaitRecord(t, dir, away+ttl+ttl/4, "lives", nil)
		for _, r := range records(t, dir) {
			if r.pid != began.pid || r.what == "terminated" {
				t.Missed(started, ttl, "program %d %s: want only the life of program %d", r.pid, r.what, began.pid)
			}
		}
	})
}

// The supervisor still owns the partition when the keeper ends the program, so it must not start
// another for an instant.
func TestOutageEndsTheProgramOnce(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	const ttl = 3 * time.Second
	timeguard.Run(t, func(t *timeguard.Try) {
		dir, url := t.TempDir(), pgtest.MigratedDatabase(t)
		way := command.NewProxy(t, url)
		started := time.Now()
		c := runProgram(t, dir, "", command.Database(way.URL), "outage", "--ttl", ttl.String(), "--grace", "10s")
		began := awaitRecord(t, dir, 0, "begins", nil)
		way.Set(true, false)
		awaitRecord(t, dir, 0, "ends", nil)
		testkit.Until(t, "trust is lost", func() bool { return strings.Contains(c.Printed(), "trust lost") })
		way.Set(false, false)
		awaitRecord(t, dir, 0, "begins", func(r record) bool { return r.epoch > began.epoch })
		printed := c.Printed()
		for text, want := range map[string]int{
			"program was ended":            1,
			"the database does not answer": 1,
			"exit_code":                    0,
			"keeper did not kill":          0,
		} {
			if n := strings.Count(printed, text); n != want {
				t.Missed(started, ttl, "the log has %q %d times, want %d:\n%s", text, n, want, printed)
			}
		}
	})
}

func TestEachPartitionHasAProgram(t *testing.T) {
	t.Parallel()
	dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
	for range 2 {
		runProgram(t, dir, "", env, "many", "-n", "6", "--ttl", "5m")
	}
	testkit.Until(t, "three programs under each of two supervisors", func() bool {
		living := make(map[int]int)
		ended := make(map[int]bool)
		for _, r := range records(t, dir) {
			living[r.partition] = r.pid
			ended[r.pid] = r.what == "ends"
		}
		parents := make(map[int]int)
		for _, pid := range living {
			if !ended[pid] {
				parents[parentOf(parentOf(pid))]++
			}
		}
		return slices.Equal(slices.Collect(maps.Values(parents)), []int{3, 3})
	})
	for _, r := range records(t, dir) {
		if r.what == "overlaps" {
			t.Error("two programs of a partition ran at once")
		}
	}
}

func TestRunOnceReturnsTheExitCodeOfALostLease(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	timeguard.Run(t, func(t *timeguard.Try) {
		dir := t.TempDir()
		way := command.NewProxy(t, pgtest.MigratedDatabase(t))
		c := runProgram(t, dir, "", command.Database(way.URL), "lost", "--once", "--ttl", ttl.String())
		c.MayEnd()
		awaitRecord(t, dir, 0, "begins", nil)
		cut := time.Now()
		way.Set(true, false)
		if code := c.ExitCode(); code != 75 {
			t.Errorf("exit code %d, want 75", code)
		}
		if ends := func(r record) bool { return r.what == "ends" }; !slices.ContainsFunc(records(t, dir), ends) {
			t.Missed(cut, ttl, "the program was killed, not asked to end in time: %s", c.Printed())
		}
	})
}

// A process that a keeper leaves may die during the search, by the kernel's signal, and leave
// children.
func TestOrphansOfADyingProcessAreKilled(t *testing.T) {
	s, err := newSupervisor(&runner{Config: Config{TTL: time.Second}})
	testkit.OK(t, err)
	defer func() { check(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) }()
	for n := range 20 {
		began := time.Now()
		testkit.OK(t, searchChildren(func(int) {}))
		look := time.Since(began)
		parent := exec.Command("sh", "-c", "sleep 1000 & echo begun; exec sleep 1000")
		out, err := parent.StdoutPipe()
		testkit.OK(t, err)
		testkit.OK(t, parent.Start())
		_, err = out.Read(make([]byte, 1))
		testkit.OK(t, err)
		time.AfterFunc(rand.N(2*look), func() { _ = parent.Process.Kill() })
		s.killOrphans(t.Context(), "", func() {})
		out.Close()
		for _, pid := range childrenOf(os.Getpid()) {
			if !s.known[pid] {
				t.Fatalf("process %d is left, of the %dth parent that died", pid, n+1)
			}
		}
	}
}

func TestUnreadableProcessesCountAsAlive(t *testing.T) {
	child := exec.Command("sleep", "1000")
	testkit.OK(t, child.Start())
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	file, err := os.Open(os.DevNull)
	testkit.OK(t, err)
	free := uint64(file.Fd()) // the lowest one
	file.Close()
	var limit syscall.Rlimit
	check(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	// The folder of processes opens, and what is in it does not.
	check(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: free + 1, Max: limit.Max}))
	var children []int
	err = searchChildren(func(pid int) { children = append(children, pid) })
	check(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	if err == nil && !slices.Contains(children, child.Process.Pid) {
		t.Errorf("children %v, and no error: want %d among them, or an error", children, child.Process.Pid)
	}
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("error %v: the limit did not take hold", err)
	}
}

func TestProgramIgnoresSIGHUPUnderNohup(t *testing.T) {
	env := command.Database(pgtest.MigratedDatabase(t))
	signal.Ignore(syscall.SIGHUP)
	c := runShell(t, env, "nohup --once", "kill -HUP $$; echo survived")
	signal.Reset(syscall.SIGHUP)
	c.Signal(syscall.SIGHUP)
	if code := c.ExitCode(); code != 0 || !strings.Contains(c.Printed(), "survived") {
		t.Errorf("exit code %d, want 0; output %q", code, c.Printed())
	}
}

// The supervisor does not kill a keeper that kills: on other systems than Linux, the program
// would survive.
func TestKeeperThatKillsIsNotKilled(t *testing.T) {
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	defer r.Close()
	keeper := exec.Command("cat")
	in, err := keeper.StdinPipe()
	testkit.OK(t, err)
	testkit.OK(t, keeper.Start())
	w.Close()
	s := &supervisor{runner: &runner{Config: Config{TTL: 20 * time.Second}}}
	s.send(&kept{keeper: keeper, orders: w}, orderEnd)
	in.Close()
	if err := keeper.Wait(); err != nil {
		t.Errorf("it did not end in order: %v", err)
	}
}

// The poll that finds out why a client owns no partition takes a while. A program that ends
// meanwhile is no reason to warn.
func TestOwnerDoesNotAskWhyItOwnsNone(t *testing.T) {
	t.Parallel()
	lease, listener := pgleasestest.NewLease("x", 1), testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	lease.Gain(0)
	testkit.Until(t, "Stats counts it", func() bool { return lease.Stats().Owned == 1 })
	go func() {
		if conn, err := listener.Accept(); err == nil {
			lease.Close()
			_ = conn.Close()
		}
	}()
	var log strings.Builder
	r := runner{Config: Config{
		URL:    "postgres://" + listener.Addr().String() + "/?sslmode=disable",
		Schema: "pgleases",
		Lease:  "x",
		Log:    slog.New(slog.NewTextHandler(&log, nil)),
	}}
	if r.sayStanding(t.Context(), lease.Client(), lease.Lease); log.Len() > 0 {
		t.Errorf("an owner says %q", log.String())
	}
	lease.Close()
}
