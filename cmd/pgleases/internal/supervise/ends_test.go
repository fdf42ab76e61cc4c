//go:build linux

package supervise

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
	"github.com/pgleases/pgleases/internal/timeguard"
)

// A machine whose program cannot be executed must leave the partition to one that can.
func TestProgramThatCannotStartFreesPartition(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken")
	testkit.OK(t, os.WriteFile(broken, []byte("\x7fELF, but no more than that"), 0o700))
	noInterpreter := filepath.Join(t.TempDir(), "script")
	testkit.OK(t, os.WriteFile(noInterpreter, []byte("#!/no/such/interpreter\n"), 0o700))
	for program, want := range map[string]int{broken: CannotRun, noInterpreter: NotFound} {
		t.Run(filepath.Base(program), func(t *testing.T) {
			t.Parallel()
			env := command.Database(pgtest.MigratedDatabase(t))
			c := command.Run(t, env, "run", "broken", "-n", "3", "--ttl", "5m", "--", program)
			code := c.ExitCode()
			if code != want || !strings.Contains(c.Printed(), "pgleases: start program \""+program+"\": ") {
				t.Errorf("exit code %d, want %d; output %q", code, want, c.Printed())
			}
			next := runShell(t, env, "broken -n 3 --ttl 5m --wait 1m", "echo ran; sleep 1000")
			testkit.Until(t, "the next machine runs its program", func() bool {
				return strings.Contains(next.Printed(), "ran")
			})
		})
	}
}

// Also if the keeper cannot be started: its arguments are longer than those of the command.
func TestKeeperThatCannotStartFreesPartition(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	env := command.Database(pgtest.MigratedDatabase(t))
	run := []string{"run", "long", "--ttl", "5m", "--", "true"}
	fits := func(size int) bool {
		c := exec.Command(command.Built, append(run[:len(run):len(run)], long(size)...)...)
		c.Args[1] = "???" // fails at once
		c.Env = append(os.Environ(), env...)
		err := c.Start()
		if err == nil {
			_ = c.Wait()
		}
		return err == nil
	}
	longest := sort.Search(16<<20, func(size int) bool { return !fits(size) }) - 1
	c := command.Run(t, env, append(run, long(longest)...)...)
	if code := c.ExitCode(); code != Failed || !strings.Contains(c.Printed(), "start the keeper: ") {
		t.Errorf("exit code %d, want 125; output %q", code, c.Printed())
	}
	next := command.Run(t, env, "run", "long", "--ttl", "5m", "--once", "--", "echo", "ran")
	if next.ExitCode(); !strings.Contains(next.Printed(), "ran") {
		t.Errorf("the next machine printed %q", next.Printed())
	}
}

// long returns arguments that take that many bytes.
func long(size int) (args []string) {
	const each = 100_000 // one argument has a limit of its own
	for ; size > 0; size -= each + 9 {
		args = append(args, strings.Repeat("x", min(size, each)))
	}
	return args
}

// With an ID that outlives the process, a second run from cron must not end the first one.
func TestRunWithTheSameIDWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
	first := runProgram(t, dir, "", env, "nightly", "--once", "--ttl", "1m", "--id", "web1-nightly")
	awaitRecord(t, dir, 0, "begins", nil)
	again := func(flags ...string) *command.Command {
		return command.Run(t, env, slices.Concat([]string{"run", "nightly"}, flags,
			[]string{"--once", "--ttl", "1m", "--id", "web1-nightly", "--", "echo", "ran"})...)
	}
	for flag, why := range map[string]string{
		"--try":        `lease "nightly": a live client has the ID "web1-nightly": host `,
		"--wait=300ms": "no partition was owned in 300ms: a live client has the ID",
	} {
		c := again(flag)
		code := c.ExitCode()
		if code != 75 || !strings.Contains(c.Printed(), why) || strings.Contains(c.Printed(), "ran\n") {
			t.Errorf("%s: exit code %d, want 75; output %q", flag, code, c.Printed())
		}
	}
	second := again()
	const standsBy = `msg="standing by: a live client has the ID" lease=nightly ` +
		`reason="a live client has the ID \"web1-nightly\": host `
	testkit.Until(t, "it says that it stands by", func() bool {
		return strings.Contains(second.Printed(), standsBy)
	})
	for _, r := range records(t, dir) {
		if r.what == "terminated" {
			t.Fatal("the first run was interrupted")
		}
	}
	first.Signal(syscall.SIGTERM)
	if code := second.ExitCode(); code != 0 || !strings.Contains(second.Printed(), "ran\n") {
		t.Errorf("after the first had ended: exit code %d, want 0; output %q", code, second.Printed())
	}
}

// A command may have a keeper for each of many partitions.
func TestKeeperTakesLittleMemory(t *testing.T) {
	t.Parallel()
	env := command.Database(pgtest.MigratedDatabase(t))
	c := runShell(t, env, "small --ttl 5m", "echo ran; sleep 1000")
	testkit.Until(t, "the program runs", func() bool { return strings.Contains(c.Printed(), "ran") })
	for _, keeper := range childrenOf(c.Process.Pid) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", keeper))
		testkit.OK(t, err)
		m := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(status)
		if m == nil {
			t.Skip("this kernel does not report RssAnon")
		}
		if kB := testkit.Must(strconv.Atoi(string(m[1])))(t); kB > 5000 {
			t.Errorf("a keeper has %d kB of its own", kB)
		}
	}
}

// Two runs from cron with one ID, in the same instant, both find no client that has it.
func TestRunsWithTheSameIDAtOnceRunOne(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	pool := testkit.Pool(t, database)
	tx := testkit.Must(pool.Begin(t.Context()))(t)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	testkit.Must(tx.Exec(t.Context(), "LOCK TABLE pgleases.clients"))(t)
	end := filepath.Join(t.TempDir(), "end")
	env := append(command.Database(database), "END="+end)
	const once = `echo ran; until [ -e "$END" ]; do sleep 0.1; done`
	var both [2]*command.Command
	for i := range both {
		both[i] = runShell(t, env, "nightly --try --once --ttl 1m --id web1-nightly", once)
		both[i].MayEnd() // one of them, before the other waits
	}
	const waits = `
		SELECT count(*)::int FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`
	refused := func() bool {
		return strings.Contains(both[0].Printed()+both[1].Printed(), `has the ID "web1-nightly"`)
	}
	testkit.Until(t, "both have looked for a client", func() bool {
		waiting := testkit.Value[int](t, pool, waits)
		return waiting == 2 || waiting == 1 && refused()
	})
	testkit.OK(t, tx.Rollback(t.Context()))
	testkit.Until(t, "one is refused while the other runs", refused)
	testkit.OK(t, os.WriteFile(end, nil, 0o600))
	codes, printed := map[int]int{}, ""
	for _, c := range both {
		codes[c.ExitCode()]++
		printed += c.Printed()
	}
	if codes[0] != 1 || codes[75] != 1 || strings.Count(printed, "ran\n") != 1 {
		t.Errorf("exit codes %v, want one 0 and one 75, with one run; output %q", codes, printed)
	}
}

// Images of containers name SIGQUIT as their signal to end.
func TestSIGQUITEndsTheCommandAsSIGTERMDoes(t *testing.T) {
	t.Parallel()
	dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
	c := runProgram(t, dir, "", env, "quit", "--ttl", "5m", "--grace", "1h")
	awaitRecord(t, dir, 0, "begins", nil)
	c.Signal(syscall.SIGQUIT)
	awaitRecord(t, dir, 0, "ends", nil) // it was asked to
	if code := c.ExitCode(); code != 128+3 {
		t.Errorf("exit code %d, want 131", code)
	}
}

// Without a database nothing can be handed over, and the trust of the last heartbeat would be a
// long wait.
func TestSignalWithoutDatabaseEndsSoon(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, frozen := range []bool{false, true} {
		dir, way := t.TempDir(), command.NewProxy(t, pgtest.MigratedDatabase(t))
		c := runProgram(t, dir, "", command.Database(way.URL), "away", "--ttl", "10m", "--grace", "1h")
		awaitRecord(t, dir, 0, "begins", nil)
		way.Set(!frozen, frozen)
		began := time.Now()
		c.Signal(syscall.SIGTERM)
		if code := c.ExitCode(); code != 128+15 { // ExitCode waits for less than the TTL
			t.Errorf("exit code %d, want 143", code)
		}
		t.Logf("frozen %v: it took %v", frozen, time.Since(began))
	}
}

// What timeout(1) does: it sends one request to the command and to its group. The program keeps its
// time to end.
func TestSignalsAtOnceAreOneRequest(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		env := command.Database(pgtest.MigratedDatabase(t))
		script := `trap 'sleep 1; echo in order; exit' TERM; echo begun; while :; do sleep 0.1; done`
		c := command.Run(t, env, "run", "once-asked", "--ttl", "5m", "--grace", "1h", "--", "sh", "-c", script)
		testkit.Until(t, "it begins", func() bool { return strings.Contains(c.Printed(), "begun") })
		at := time.Now()
		for time.Since(at) < 50*time.Millisecond { // signals that have not arrived yet are one
			_ = c.Process.Signal(syscall.SIGTERM) // an error is that it has ended
		}
		took := time.Since(at)
		if c.ExitCode(); !strings.Contains(c.Printed(), "in order") {
			t.Missed(at, sameRequest, "after signals in %v, the program was killed", took)
		}
	})
}

// The second signal ends the wait for the end of the program and for the database.
func TestSecondSignalWithoutDatabase(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, frozen := range []bool{false, true} {
		timeguard.Run(t, func(t *timeguard.Try) {
			dir, way := t.TempDir(), command.NewProxy(t, pgtest.MigratedDatabase(t))
			c := runProgram(t, dir, modeStubborn, command.Database(way.URL), "away", "--ttl", "10m", "--grace", "1h")
			began := awaitRecord(t, dir, 0, "begins", nil)
			way.Set(!frozen, frozen)
			c.Signal(syscall.SIGTERM)
			awaitRecord(t, dir, 0, "terminated", nil)
			askAgain(t, c)
			at := time.Now()
			if code := c.ExitCode(); code != 128+15 {
				t.Errorf("exit code %d, want 143", code)
			}
			took, last := time.Since(at), records(t, dir)
			if limit := 2*time.Second + 500*time.Millisecond; took > limit {
				t.Missed(at, limit, "frozen %v: it ended after %v", frozen, took)
			}
			if !isFree(t, dir, 0) || last[len(last)-1].pid != began.pid {
				t.Errorf("the program is still there, or another one ran")
			}
		})
	}
}

// A program must not take the socket of another run, which has started this run, for its own.
func TestInnerRunHidesTheOuterSocket(t *testing.T) {
	t.Parallel()
	env := command.Database(pgtest.MigratedDatabase(t))
	outer := append(env, "PGLEASES_STATUS_SOCKET=/outer")
	c := runShell(t, outer, "inner --once", `echo "socket <$PGLEASES_STATUS_SOCKET>"`)
	if c.ExitCode(); !strings.Contains(c.Printed(), "socket <>") {
		t.Errorf("output %q", c.Printed())
	}
}

// A keeper that was stopped when its parent was killed goes on, and kills the program.
func TestStoppedKeeperOfAKilledParentKills(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
	c := runProgram(t, dir, modeStubborn, env, "stopped", "--ttl", "5m")
	began := awaitRecord(t, dir, 0, "begins", nil)
	keeper := parentOf(began.pid)
	testkit.OK(t, syscall.Kill(keeper, syscall.SIGSTOP))
	c.Signal(syscall.SIGKILL)
	testkit.Until(t, "the program is gone", func() bool { return isFree(t, dir, 0) })
}

// The partition stays with the command while a process of its program lives that it may not kill.
// The log names the process, and the command can be ended all the same.
func TestProcessThatCannotBeKilledIsNamed(t *testing.T) {
	t.Parallel()
	setpriv, err := exec.LookPath("setpriv")
	if os.Getuid() != 0 || err != nil {
		t.Skip("it takes root and setpriv to start a process that others may not kill")
	}
	database := pgtest.MigratedDatabase(t)
	dir := t.TempDir()
	testkit.OK(t, os.Chmod(filepath.Dir(dir), 0o755))
	rooted, binary := filepath.Join(dir, "rooted"), filepath.Join(dir, "pgleases")
	testkit.OK(t, os.WriteFile(rooted, testkit.Must(os.ReadFile(setpriv))(t), 0o755))
	testkit.OK(t, os.Chmod(rooted, 0o755|os.ModeSetuid))
	testkit.OK(t, os.WriteFile(binary, testkit.Must(os.ReadFile(command.Built))(t), 0o755))
	// The program ends once its child belongs to root.
	script := rooted + ` --reuid 0 --regid 0 --clear-groups sh -c 'touch "$D/up"; exec sleep 1003' &
		until [ -e "$D/up" ]; do sleep 0.05; done`
	stderr := testkit.Must(os.Create(filepath.Join(dir, "stderr")))(t)
	defer stderr.Close()
	cmd := exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
		binary, "run", "unkillable", "--ttl", "5m", "--grace", "1h", "--", "sh", "-c", script)
	cmd.Env, cmd.Stderr = append(append(os.Environ(), command.Database(database)...), "D="+dir), stderr
	c := startSilent(t, cmd)
	t.Cleanup(func() {
		for _, pid := range processesOf(t, dir, "sleep", "1003") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	const still = `level=ERROR msg="processes of the program were killed and are still there, ` +
		`so the partition waits for them" lease=unkillable partition=0 processes="`
	says := func(text string) bool {
		return strings.Contains(string(testkit.Must(os.ReadFile(stderr.Name()))(t)), text)
	}
	testkit.Until(t, "it names the process", func() bool {
		return says(still) && says("sleep, user 0, state S")
	})
	testkit.OK(t, c.Process.Signal(syscall.SIGTERM))
	testkit.Until(t, "it was asked to end", func() bool { return says("asked to end") })
	testkit.Until(t, "it was asked again", func() bool {
		_ = c.Process.Signal(syscall.SIGTERM) // an error is that it has ended
		return says("asked again")
	})
	if code := c.exitCode(t); code != 128+15 || !says("not all partitions were handed over") {
		t.Errorf("exit code %d, want 143", code)
	}
	testkit.Becomes(t, testkit.Pool(t, database), "the partition has its owner", true,
		"SELECT bool_and(owner IS NOT NULL) FROM pgleases.status")
}
