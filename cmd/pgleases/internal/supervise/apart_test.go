//go:build linux

package supervise

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// others is a helper that the shell has started before it executes pgleases. It leaves a process
// that loses its parent, and short ones that nobody reaps but the process that gets them.
const others = `helper() {
	until [ -e "$D/log" ]; do sleep 0.05; done
	sh -c 'sleep 1001 >/dev/null 2>&1 & exit 0'
	for i in 1 2 3 4 5 6 7 8 9 10; do sh -c 'sleep 0.01 & exit 0'; done
	: >"$D/left"
	sleep 1000
}
helper &
exec "$PGLEASES" run apart --ttl 5m --grace 1h --cgroup=false -- "$PROGRAM"`

// zombies returns the number of children of a process that have ended and are not reaped.
func zombies(t *testing.T, pid int) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	testkit.OK(t, err)
	for _, name := range all {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it is gone
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if fields[0] == "Z" && fields[1] == strconv.Itoa(pid) {
			n++
		}
	}
	return n
}

// processesOf returns the live processes of a test with that command.
func processesOf(t *testing.T, dir string, arguments ...string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	testkit.OK(t, err)
	for _, name := range all {
		environment, _ := os.ReadFile(name + "/environ") // an error is that it is gone, or another user's
		line, _ := os.ReadFile(name + "/cmdline")
		isOfTest := bytes.Contains(environment, []byte("D="+dir+"\x00"))
		if isOfTest && string(line) == strings.Join(arguments, "\x00")+"\x00" {
			pids = append(pids, testkit.Must(strconv.Atoi(filepath.Base(name)))(t))
		}
	}
	return pids
}

// What others have left to the first process of a container, or to a process that a shell has
// executed, is reaped, and is not killed with the program.
func TestProcessesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	container := []string{"unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"}
	for name, prefix := range map[string][]string{
		"a shell has started others":       nil,
		"the first process of a container": container,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if prefix != nil {
				if out, err := exec.Command(prefix[0], append(prefix[1:], "true")...).CombinedOutput(); err != nil {
					t.Skipf("this machine allows no container: %v: %s", err, out)
				}
			}
			dir, database := t.TempDir(), pgtest.MigratedDatabase(t)
			arguments := append(slices.Clone(prefix), "sh", "-c", others)
			cmd := exec.Command(arguments[0], arguments[1:]...)
			cmd.Env = slices.Concat(os.Environ(), command.Database(database), []string{
				"D=" + dir,
				"PGLEASES=" + command.Built,
				"PROGRAM=" + os.Args[0],
				envDir + "=" + dir,
				envMode + "=" + modeFamily,
			})
			c := startSilent(t, cmd)
			t.Cleanup(func() {
				for _, arguments := range [][]string{{"sleep", "1001"}, {"sleep", "1000"}, {"sh", "-c", others}} {
					for _, pid := range processesOf(t, dir, arguments...) {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				}
			})
			awaitRecord(t, dir, 0, "begins", nil)
			testkit.Until(t, "others have left processes", func() bool {
				_, err := os.Stat(filepath.Join(dir, "left"))
				return err == nil
			})
			one := c.Process.Pid
			if prefix != nil {
				one = childrenOf(one)[0]
			}
			testkit.Until(t, "what has ended is reaped", func() bool { return zombies(t, one) == 0 })

			daemons, programs := processesOf(t, dir, "sleep", "1001"), processesOf(t, dir, os.Args[0])
			if len(daemons) != 1 || len(programs) != 1 {
				t.Fatalf("processes %v of others, programs %v: want one of each", daemons, programs)
			}
			killed := boottime()
			testkit.OK(t, syscall.Kill(programs[0], syscall.SIGKILL))
			awaitRecord(t, dir, killed, "begins", nil)
			if left := processesOf(t, dir, "sleep", "1001"); !slices.Equal(left, daemons) {
				t.Errorf("processes %v of others are left, want %v", left, daemons)
			}
			testkit.OK(t, syscall.Kill(one, syscall.SIGTERM))
			awaitRecord(t, dir, killed, "terminated", nil)
			testkit.Until(t, "a second request kills the program, which ignores the first", func() bool {
				_ = syscall.Kill(one, syscall.SIGTERM) // shortly after the first one, it does not count
				return len(processesOf(t, dir, os.Args[0])) == 0
			})
			if code := c.exitCode(t); code != 128+15 {
				t.Errorf("exit code %d, want 143", code)
			}
			if prefix != nil {
				return // the end of a container kills all
			}
			if left := processesOf(t, dir, "sleep", "1001"); !slices.Equal(left, daemons) {
				t.Errorf("processes %v of others are left at the end, want %v", left, daemons)
			}
		})
	}
}
