//go:build linux

package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// askStatus sends a request to a status socket. It returns nil if no process serves it.
func askStatus(t *testing.T, socket, path string) *json.Decoder {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dial}
	r := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://pgleases"+path, http.NoBody))(t)
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return nil
	}
	t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s", path, answer.Status)
	}
	return json.NewDecoder(answer.Body)
}

// sleeper runs a program that sleeps under the lease "shown", which has two partitions.
func sleeper(t *testing.T, env []string, args ...string) *command.Command {
	t.Helper()
	return command.Run(t, env, slices.Concat([]string{"run", "shown", "-n", "2", "--ttl", "5m"}, args,
		[]string{"--", "sleep", "1000"})...)
}

// shown returns what a status socket shows; false if no process serves it.
func shown(t *testing.T, socket string) (s State, served bool) {
	t.Helper()
	lines := askStatus(t, socket, "/")
	if lines != nil {
		testkit.OK(t, lines.Decode(&s))
	}
	return s, lines != nil
}

func untilShown(t *testing.T, socket string, partitions int) (s State) {
	t.Helper()
	testkit.Until(t, "the partitions are shown", func() bool {
		s, _ = shown(t, socket)
		return len(s.Partitions) == partitions
	})
	return s
}

func TestStatusSocketShowsOwnedPartitions(t *testing.T) {
	t.Parallel()
	socket, database := filepath.Join(t.TempDir(), "s"), pgtest.MigratedDatabase(t)
	env, pool := command.Database(database), testkit.Pool(t, database)
	one := sleeper(t, env, "--id", "one", "--status-socket", socket)
	s := untilShown(t, socket, 2)
	var epochs, want []int64
	for _, p := range s.Partitions {
		epochs = append(epochs, p.Epoch)
	}
	want = testkit.Value[[]int64](t, pool,
		"SELECT array_agg(epoch ORDER BY partition) FROM pgleases.partitions WHERE lease = 'shown'")
	if s.Lease != "shown" || s.Client != "one" || s.TrustMS <= 0 || s.TrustMS > 285_000 {
		t.Errorf("it shows %+v", s)
	}
	if s.Partitions[0].Number != 0 || s.Partitions[1].Number != 1 || !slices.Equal(epochs, want) {
		t.Errorf("it shows %+v; epochs are %d", s, want)
	}
	if info := testkit.Must(os.Stat(socket))(t); info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v", info.Mode())
	}

	changes := askStatus(t, socket, "/changes")
	var before, after State
	if testkit.OK(t, changes.Decode(&before)); len(before.Partitions) != 2 {
		t.Errorf("the first line is %+v", before)
	}
	second := sleeper(t, env, "--status-socket", socket)
	if second.ExitCode() != Failed || !strings.Contains(second.Printed(), "another process serves it") {
		t.Errorf("a second process at the socket: %s", second.Printed())
	}
	two := sleeper(t, env, "--id", "two")
	for len(after.Partitions) != 1 {
		testkit.OK(t, changes.Decode(&after))
	}
	if p := after.Partitions[0]; p != before.Partitions[p.Number] {
		t.Errorf("after the handoff it shows %+v, before %+v", after, before)
	}

	one.Signal(syscall.SIGKILL)
	one.ExitCode()
	for err := error(nil); err == nil; err = changes.Decode(&after) { // the stream ends
	}
	if _, err := os.Lstat(socket); err != nil {
		t.Errorf("no socket is left to be replaced: %v", err)
	}
	// Instead of the wait for the end of its TTL.
	testkit.Execute(t, pool, `
		UPDATE pgleases.clients SET ttl = interval '1 second', expires_at = clock_timestamp() - interval '1 second'
		WHERE id = 'one';
		UPDATE pgleases.server SET next_check_at = clock_timestamp()`)
	three := sleeper(t, env, "--id", "one", "--status-socket", socket)
	untilShown(t, socket, 1)
	three.Signal(syscall.SIGTERM)
	three.ExitCode()
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	two.Signal(syscall.SIGTERM)
	two.ExitCode()
}

// The socket is read all the time, and a partition moves: if reads counted as those of a loop over
// Values, the handoff would wait for an hour.
func TestStatusReadsDelayNoHandoff(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	one, two := clients.New(t, pool), clients.New(t, pool)
	join := func(c *pgleases.Client) *pgleases.Lease {
		return testkit.Must(c.Lease(t.Context(), "shown", 2, pgleases.WithHandoffDelay(time.Hour)))(t)
	}
	lease := join(one)
	testkit.Until(t, "it owns both", func() bool { return len(stateOf(one, lease).Partitions) == 2 })
	other := join(two)
	testkit.Until(t, "one has moved", func() bool {
		ofTwo, ofOne := stateOf(two, other), stateOf(one, lease)
		return len(ofTwo.Partitions)+len(ofOne.Partitions) == 2 && len(ofTwo.Partitions) == 1
	})
}

// A process removes its own socket only, and waits for a locked directory for a while only.
func TestStatusSocketOfAnother(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	dir, env := t.TempDir(), command.Database(pgtest.MigratedDatabase(t))
	socket := filepath.Join(dir, "a status")
	run := func() *command.Command { return sleeper(t, env, "--status-socket", socket) }
	one := run()
	untilShown(t, socket, 2)
	testkit.OK(t, os.Remove(socket)) // as a cleaner of old files does
	two := run()
	untilShown(t, socket, 1)
	one.Signal(syscall.SIGTERM)
	one.ExitCode()
	untilShown(t, socket, 2)

	locked := testkit.Must(os.Open(dir))(t)
	defer locked.Close()
	testkit.OK(t, unix.Flock(int(locked.Fd()), unix.LOCK_EX))
	three := run()
	if three.ExitCode() != Failed || !strings.Contains(three.Printed(), "lock its directory") {
		t.Errorf("in a locked directory: %s", three.Printed())
	}
	two.Signal(syscall.SIGTERM)
	two.ExitCode()
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// Readers that stay, and do not read, take a limited number of files, and delay neither a handoff nor the end.
func TestStatusSocketLimitsReaders(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	socket, database := filepath.Join(t.TempDir(), "s"), pgtest.MigratedDatabase(t)
	env := command.Database(database)
	one := sleeper(t, env, "--status-socket", socket)
	untilShown(t, socket, 2)
	answered := make(chan net.Conn, 1000)
	keptOpen := []byte("GET / HTTP/1.1\r\nHost: pgleases\r\n\r\n")
	endless := []byte("GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 10<<20))
	for n := range cap(answered) {
		conn := testkit.Must(net.Dial("unix", socket))(t)
		defer conn.Close()
		go func() {
			request := []byte("GET /changes HTTP/1.0\r\n\r\n")
			switch n % 10 {
			case 0:
				request = keptOpen
			case 1:
				request = endless
			}
			_, _ = conn.Write(request)
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				answered <- conn
			}
		}()
	}
	for range readers / 2 {
		testkit.Receive(t, "it answers", answered)
	}
	sleeper(t, env, "--id", "two")
	testkit.Becomes(t, testkit.Pool(t, database), "one has moved", 1,
		"SELECT count(*)::int FROM pgleases.status WHERE owner = 'two'")
	if files := len(testkit.Must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", one.Process.Pid)))(t)); files > readers+50 {
		t.Errorf("it has %d files open", files)
	}
	one.Signal(syscall.SIGTERM)
	one.ExitCode()
}
