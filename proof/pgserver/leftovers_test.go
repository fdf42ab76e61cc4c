//go:build unix

package pgserver_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/pgserver"
)

func TestStopLeavesNothing(t *testing.T) {
	for _, state := range []string{"running", "down", "killed", "paused", "postmaster killed"} {
		t.Run(state, func(t *testing.T) {
			dir := reachableTempDir(t)
			t.Setenv("TMPDIR", dir)
			s, err := pgserver.Start(testContext(t), pgserver.WithPrivate())
			if err != nil {
				t.Fatal(err)
			}
			connect(t, s.URL())
			pids := s.Pids()
			if len(pids) < 3 {
				t.Errorf("Pids() = %v", pids)
			}
			segments := sharedMemory(t, pids[0])
			switch state {
			case "down":
				err = s.Down(testContext(t), pgserver.Fast)
			case "killed":
				err = s.Kill()
			case "paused":
				err = s.Pause()
			case "postmaster killed":
				err = s.Signal(pids[0], syscall.SIGKILL)
			}
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			for range 2 { // idempotent
				if err := s.Stop(); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(begin); took > 4*time.Second { // it had to be killed
				t.Errorf("took %v to stop", took)
			}
			if anyAlive(pids) {
				t.Errorf("some of %v live", pids)
			}
			if left := sharedMemory(t, pids[0]); left > 0 {
				t.Errorf("%d of %d shared memory segments left", left, segments)
			}
			wantEmpty(t, dir)
			if err := s.Up(testContext(t)); err == nil {
				t.Error("a stopped server came up")
			}
		})
	}
}

// Each way in which a process can end without Stop.
func TestNoProcessOutlivesItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a death signal")
	}
	for _, how := range []string{"killed", "exit", "paused", "bouncer"} {
		t.Run(how, func(t *testing.T) {
			if how == "bouncer" {
				needsBouncer(t)
			}
			t.Parallel()
			dir := reachableTempDir(t)
			cmd, urls, pids := startHelper(t, how, dir)
			if how != "paused" && how != "exit" {
				for _, url := range urls {
					connect(t, url)
				}
			}
			if len(pids) == 0 {
				t.Fatal("no pids")
			}
			if how != "exit" {
				if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			// PostgreSQL itself waits five seconds before it kills children that do not stop, such as paused ones.
			eventually(t, 10*time.Second, "all processes gone", func() bool { return !anyAlive(pids) && !mentioned(dir) })
			if left := sharedMemory(t, pids[0]); left > 0 {
				t.Errorf("%d shared memory segments left", left)
			}
		})
	}
}

func TestNextStartRemovesWhatAKilledProcessLeft(t *testing.T) {
	dir := reachableTempDir(t)
	_, urls, _ := startHelper(t, "living", dir)
	killed, _, pids := startHelper(t, "paused", dir) // paused: its server is still there
	if n := len(entries(t, dir)); n != 2 {
		t.Fatalf("%d folders of two helpers", n)
	}
	_ = killed.Process.Kill()
	_ = killed.Wait()

	t.Setenv("TMPDIR", dir)
	pgserver.Private(t)
	if n := len(entries(t, dir)); n != 2 {
		t.Errorf("%d folders, want the living helper's and ours", n)
	}
	if anyAlive(pids) {
		t.Errorf("some of %v live", pids)
	}
	connect(t, urls[0]) // the living one was left alone
}

// reachableTempDir is a temporary folder that the user may enter whom the server runs as. (t.TempDir's is not.)
func reachableTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgtest-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	if left := entries(t, dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// mentioned reports whether the folder is in the command line of any process, its name in the title of any.
func mentioned(dir string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file)
		if strings.Contains(string(line), dir) {
			return true
		}
	}
	return false
}

// sharedMemory counts the System V segments that were made by that process; 0 where there is no /proc.
func sharedMemory(t *testing.T, creator int) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return 0
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == strconv.Itoa(creator) {
			n++
		}
	}
	return n
}
