//go:build linux

package supervise

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
	"github.com/pgleases/pgleases/internal/timeguard"
)

func TestMain(m *testing.M) {
	if os.Getenv(envDir) != "" {
		program()
		return
	}
	command.Main(m)
}

// The program that the tests run under leases is the test binary. It writes its observations to a folder.
const (
	envDir  = "PGLEASES_RUN_TEST_DIR"
	envMode = "PGLEASES_RUN_TEST_MODE"

	modeSlow     = "slow"     // takes slowEnd from SIGTERM to its end
	modeStubborn = "stubborn" // ignores SIGTERM
	modeFamily   = "family"   // ignores SIGTERM, and has an orphan of another session
	modeChain    = "chain"    // the same, and what it left forks a successor each 8 ms, and ends

	slowEnd = 6 * time.Second
)

// program holds an exclusive lock on a file for its partition. The kernel releases the lock when the program and all processes that
// inherited it are gone. So if another program has the lock, the two ran at the same time. It also writes when it ran.
func program() {
	partition := os.Getenv("PGLEASES_PARTITION")
	log, err := os.OpenFile(filepath.Join(os.Getenv(envDir), "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(err)
	epoch := os.Getenv("PGLEASES_EPOCH")
	write := func(what string) {
		_, err := fmt.Fprintf(log, "%s %d %s %s %d\n", partition, os.Getpid(), epoch, what, boottime())
		check(err)
	}
	lock, err := os.OpenFile(lockFile(os.Getenv(envDir), partition), os.O_CREATE|os.O_RDWR, 0o600)
	check(err)
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		write("overlaps")
		os.Exit(1)
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	mode := os.Getenv(envMode)
	if mode == modeFamily || mode == modeChain {
		script := "setsid sleep 1000 &" // the shell ends, so the sleep is an orphan
		if mode == modeChain {
			script += " setsid sh -c 'next() { sleep 0.008; next & }; next' &"
		}
		shell := exec.Command("sh", "-c", script)
		shell.ExtraFiles = []*os.File{lock}
		check(shell.Run())
	}
	write("begins")
	alive := time.NewTicker(10 * time.Millisecond)
	var end <-chan time.Time
	for {
		select {
		case <-alive.C:
			write("lives")
		case <-terminated:
			write("terminated")
			switch mode {
			case modeSlow:
				end = time.After(slowEnd)
			case modeStubborn, modeFamily, modeChain:
			default:
				write("ends")
				return
			}
		case <-end:
			write("ends")
			return
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "program:", err)
		os.Exit(99)
	}
}

func lockFile(dir, partition string) string { return filepath.Join(dir, "lock-"+partition) }

// A record is a line of the programs' log.
type record struct {
	partition, pid int
	epoch          int64
	what           string
	at             time.Duration // boottime
}

// records returns the lines of the programs.
func records(t testing.TB, dir string) (all []record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text[:bytes.LastIndexByte(text, '\n')+1]))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 5 {
			t.Fatalf("%q is no record", lines.Text())
		}
		number := func(i int) int64 {
			n, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			return n
		}
		all = append(all, record{int(number(0)), int(number(1)), number(2), fields[3], time.Duration(number(4))})
	}
	return all
}

// awaitRecord waits for a record after that time, and returns it.
func awaitRecord(t testing.TB, dir string, after time.Duration, what string, of func(record) bool) (found record) {
	t.Helper()
	testkit.Until(t, what, func() bool {
		for _, r := range records(t, dir) {
			if r.at > after && r.what == what && (of == nil || of(r)) {
				found = r
				return true
			}
		}
		return false
	})
	return found
}

// isFree reports whether all processes of the program of a partition are gone.
func isFree(t testing.TB, dir string, partition int) bool {
	t.Helper()
	lock := testkit.Must(os.OpenFile(lockFile(dir, strconv.Itoa(partition)), os.O_RDWR, 0))(t)
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// runProgram starts pgleases with the program.
func runProgram(t testing.TB, dir, mode string, env []string, args ...string) *command.Command {
	t.Helper()
	env = append([]string{envDir + "=" + dir, envMode + "=" + mode}, env...)
	return command.Run(t, env, append(append([]string{"run"}, args...), "--", os.Args[0])...)
}

// runShell starts pgleases run with arguments, and with a script for the shell as the program.
func runShell(t testing.TB, env []string, args, script string) *command.Command {
	t.Helper()
	all := slices.Concat([]string{"run"}, strings.Fields(args), []string{"--", "sh", "-c", script})
	return command.Run(t, env, all...)
}

// askAgain sends the second request to end. Signals shortly after the first belong to that one.
func askAgain(t testing.TB, c *command.Command) {
	t.Helper()
	testkit.Until(t, "it was asked again", func() bool {
		_ = c.Process.Signal(syscall.SIGTERM) // an error is that it has ended
		return strings.Contains(c.Printed(), "asked again")
	})
}

// childrenOf returns the live children of a process: from the list of the kernel, or among all processes if it has no list.
func childrenOf(pid int) (children []int) {
	var names []string
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		names = append(names, strings.Fields(string(text))...)
	}
	if len(lists) == 0 {
		names, _ = filepath.Glob("/proc/[0-9]*")
	}
	for _, name := range names {
		child, _ := strconv.Atoi(filepath.Base(name))
		if parentOf(child) == pid {
			children = append(children, child)
		}
	}
	return children
}

// parentOf returns the parent of a live process, 0 if it is not live.
func parentOf(pid int) (parent int) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if fields[0] != "Z" {
		parent, _ = strconv.Atoi(fields[1])
	}
	return parent
}

// keptTrust fails the try if a client lost its trust while nothing kept it from the database, which takes
// a machine that did not keep time.
func keptTrust(t *timeguard.Try, c *command.Command, since time.Time, ttl time.Duration) {
	t.Helper()
	if printed := c.Printed(); strings.Contains(printed, "trust lost") || strings.Contains(printed, "does not answer") {
		t.Missed(since, ttl, "a client lost its trust without a cause: %s", printed)
	}
}

// usual is the time in which a machine that keeps time starts a program, kills it, and sees it end.
const usual = 30 * time.Millisecond

// probePrograms starts and kills a program again and again beside a try, as keepers do, because a
// machine may be late with that alone: a killed process may need seconds to end, since it waits for
// locks of the files that it has mapped, such as libc, which all others have mapped too.
func probePrograms(t *timeguard.Try) {
	r := timeguard.NewRecord("a program")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer r.End()
		for pause := time.NewTicker(100 * time.Millisecond); t.Context().Err() == nil; {
			began := timeguard.Now()
			sleeper := exec.Command("sleep", "60")
			if err := sleeper.Start(); err != nil {
				t.Errorf("start a program: %v", err)
				return
			}
			_ = sleeper.Process.Kill()
			_ = sleeper.Wait() // it was killed
			var late []timeguard.Spell
			if now := timeguard.Now(); now.Sub(began) > usual {
				late = append(late, timeguard.Spell{What: "gone", From: began + timeguard.Instant(usual), To: now})
			}
			r.Add(timeguard.Now(), late)
			select {
			case <-pause.C:
			case <-t.Context().Done():
			}
		}
	}()
	t.Cleanup(func() { <-ended })
}
