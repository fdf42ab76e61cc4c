//go:build linux

package supervise

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// A silent command is a pgleases whose stderr belongs to the test.
type silent struct {
	*exec.Cmd
	ended chan struct{}
}

// runSilent starts pgleases with the program and that stderr.
func runSilent(t *testing.T, dir string, env []string, stderr *os.File, args ...string) silent {
	t.Helper()
	c := exec.Command(command.Built, append(append([]string{"run"}, args...), "--", os.Args[0])...)
	c.Env = append(append(os.Environ(), envDir+"="+dir, envMode+"="), env...)
	c.Stderr = stderr
	return startSilent(t, c)
}

// startSilent starts a command, which is killed when the test ends.
func startSilent(t *testing.T, cmd *exec.Cmd) silent {
	t.Helper()
	c := silent{cmd, make(chan struct{})}
	testkit.OK(t, c.Start())
	go func() {
		defer close(c.ended)
		_ = c.Wait() // its result is in ProcessState
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-c.ended
	})
	return c
}

// exitCode waits for the end of the command, and returns its exit code.
func (c silent) exitCode(t *testing.T) int {
	t.Helper()
	select {
	case <-c.ended:
		return c.ProcessState.ExitCode()
	case <-time.After(testkit.Patience):
		t.Error("pgleases does not end")
		return -2
	}
}

// fullPipe returns a pipe that takes no more bytes.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	for _, size := range []int{4096, 1} {
		for err = nil; err == nil; {
			testkit.OK(t, w.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
			_, err = w.Write(make([]byte, size))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	return r, w
}

func TestStderrThatNobodyReadsStopsNothing(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
	_, w := fullPipe(t)
	c := runSilent(t, dir, env, w, "unread", "--ttl", "5m", "--grace", "1h")
	first := awaitRecord(t, dir, 0, "begins", nil)
	testkit.OK(t, syscall.Kill(first.pid, syscall.SIGKILL))
	second := awaitRecord(t, dir, 0, "begins", func(r record) bool { return r.pid != first.pid })
	testkit.OK(t, c.Process.Signal(syscall.SIGTERM))
	awaitRecord(t, dir, 0, "ends", func(r record) bool { return r.pid == second.pid })
	if code := c.exitCode(t); code != 128+15 {
		t.Errorf("exit code %d, want 143", code)
	}
}

// A log collector that has ended must not end the command, which would leave the partition to the
// next client only after the TTL.
func TestStderrWithoutAReaderEndsNothing(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	c := runSilent(t, dir, env, w, "gone", "--ttl", "5m", "--grace", "1h")
	testkit.OK(t, w.Close())
	first := awaitRecord(t, dir, 0, "begins", nil)
	testkit.OK(t, r.Close())
	testkit.OK(t, syscall.Kill(first.pid, syscall.SIGKILL)) // which is logged
	awaitRecord(t, dir, 0, "begins", func(r record) bool { return r.pid != first.pid })
	testkit.OK(t, c.Process.Signal(syscall.SIGTERM))
	awaitRecord(t, dir, 0, "ends", nil)
	if code := c.exitCode(t); code != 128+15 {
		t.Errorf("exit code %d, want 143", code)
	}
	next := runProgram(t, dir, "", env, "gone", "--ttl", "5m")
	awaitRecord(t, dir, 0, "begins", func(r record) bool { return parentOf(parentOf(r.pid)) == next.Process.Pid })
}

// The program has the signal as usual: only the command itself outlives its log.
func TestProgramEndsBySIGPIPEAsUsual(t *testing.T) {
	t.Parallel()
	env := command.Database(pgtest.MigratedDatabase(t))
	c := runShell(t, env, "pipe --once", "kill -PIPE $$; echo survived")
	if code := c.ExitCode(); code != 128+13 || strings.Contains(c.Printed(), "survived") {
		t.Errorf("exit code %d, want 141; output %q", code, c.Printed())
	}
}
