//go:build unix

package proof_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// built returns the path of the command.
func built(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pgleases")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "..", "-o", path, "./cmd/pgleases")
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// The command's own tests kill and stop the command, and cut its connections. Here the server is
// down for longer than programs may continue. A kernel lock shows each program whether another
// program of its partition, or a descendant of one, still runs.
func TestProgramsNeverOverlapDuringRestarts(t *testing.T) {
	t.Parallel()
	dir, command := t.TempDir(), built(t)
	log := filepath.Join(dir, "log")
	server := pgserver.Private(t)
	const program = `trap '' TERM
exec 9>"lock-$PGLEASES_PARTITION"
flock -n 9 || { echo overlap >>log; exit 1; }
(setsid sleep 1000 &)
while :; do echo "$PGLEASES_PARTITION $PGLEASES_EPOCH $$" >>log; sleep 0.02; done`
	for range 2 {
		cmd := exec.Command(command, "run", "programs", "-n", "2", "--ttl", "1s", "--", "sh", "-c", program)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "DATABASE_URL="+server.URL())
		testkit.OK(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGKILL)
			_ = cmd.Wait()
		})
	}
	text := func() string {
		b, err := os.ReadFile(log)
		if !os.IsNotExist(err) {
			testkit.OK(t, err)
		}
		return string(b)
	}
	programs := make(map[string]bool)
	bothRun := func() { // both partitions, from now on
		t.Helper()
		before := len(text())
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for late := time.After(time.Minute); ; {
			run := make(map[string]bool)
			for line := range strings.Lines(text()[before:]) {
				if fields := strings.Fields(line); len(fields) == 3 {
					run[fields[0]], programs[fields[2]] = true, true
				}
			}
			if len(run) == 2 {
				return
			}
			select {
			case <-look.C:
			case <-late:
				t.Fatalf("of two partitions, these run: %v", run)
			}
		}
	}
	bothRun()
	const times = 6
	for n := range times {
		var err error
		switch n % 3 {
		case 0:
			err = server.Down(t.Context(), pgserver.Fast)
		case 1:
			err = server.Down(t.Context(), pgserver.Immediate)
		case 2:
			err = server.Kill()
		}
		testkit.OK(t, err)
		tally.Fault(t, "outage of 1.5 s")
		time.Sleep(1500 * time.Millisecond) // the length of the outage, not a wait for a condition
		testkit.OK(t, server.Up(t.Context()))
		bothRun()
	}
	n := strings.Count(text(), "overlap")
	tally.Checked(t, "programs", len(programs))
	tally.Violations(t, "programs", n)
	if n > 0 {
		t.Errorf("%d programs started while another program of their partition ran", n)
	}
	if len(programs) < 2*(times+1) {
		t.Errorf("%d programs ran, want two after each of %d outages", len(programs), times)
	}
}
