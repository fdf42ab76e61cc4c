//go:build unix

package pgserver_test

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/pgserver"
)

func TestStartsSoonAndSaysWhatItIs(t *testing.T) {
	begin := time.Now()
	s := pgserver.Private(t)
	took := time.Since(begin)
	t.Log(s.Describe(), "started in", took)
	if took > 15*time.Second {
		t.Errorf("start took %v", took)
	}
	if !s.Owned() {
		t.Error("a private server is not owned")
	}
	conn := connect(t, s.URL())
	version, _, _ := strings.Cut(query(t, conn, "SHOW server_version"), " ")
	if want := "PostgreSQL " + version + " from "; !strings.HasPrefix(s.Describe(), want) {
		t.Errorf("Describe() = %q, want %q...", s.Describe(), want)
	}
	if sockets := query(t, conn, "SHOW unix_socket_directories"); sockets != "" {
		t.Errorf("it listens on a socket in %q", sockets)
	}
	if address := query(t, conn, "SHOW listen_addresses"); address != "127.0.0.1" {
		t.Errorf("it listens on %q", address)
	}
}

func TestNeverRunsAsRoot(t *testing.T) {
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("not root, or no /proc")
	}
	s := pgserver.Private(t)
	for _, pid := range s.Pids() {
		info, err := os.Stat("/proc/" + strconv.Itoa(pid))
		if err != nil {
			continue
		}
		if info.Sys().(*syscall.Stat_t).Uid == 0 {
			t.Errorf("process %d runs as root", pid)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		opts []pgserver.Option
		want map[string]string
	}{
		{"default", nil, map[string]string{"max_connections": "200", "fsync": "off", "restart_after_crash": "on"}},
		{"changed", []pgserver.Option{
			pgserver.WithSettings(map[string]string{"max_connections": "17", "application_name": `it's a \ test`}), pgserver.WithDurable(),
		}, map[string]string{"max_connections": "17", "application_name": `it's a \ test`, "fsync": "on"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgserver.Private(t, test.opts...).URL())
			for name, want := range test.want {
				if got := query(t, conn, "SHOW "+name); got != want {
					t.Errorf("%s = %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	dir := reachableTempDir(t)
	t.Setenv("TMPDIR", dir)
	_, err := pgserver.Start(testContext(t), pgserver.WithPrivate(), pgserver.WithSettings(map[string]string{"no_such_setting": "1"}))
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("error %v does not show the server's log", err)
	}
	wantEmpty(t, dir)
}

func TestStartEndsWithItsContext(t *testing.T) {
	dir := reachableTempDir(t)
	t.Setenv("TMPDIR", dir)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if s, err := pgserver.Start(ctx, pgserver.WithPrivate()); err == nil {
		s.Stop()
		t.Skip("the machine is faster than the test")
	} else if !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v to give up", took)
	}
	wantEmpty(t, dir)
}

func TestTwoServersInParallel(t *testing.T) {
	servers := make([]*pgserver.Server, 3)
	var group sync.WaitGroup
	for i := range servers {
		group.Go(func() { servers[i] = pgserver.Private(t) })
	}
	group.Wait()
	seen := make(map[string]bool)
	for _, s := range servers {
		if s == nil {
			t.Fatal("one did not start")
		}
		seen[query(t, connect(t, s.URL()), "SELECT system_identifier::text FROM pg_control_system()")] = true
	}
	if len(seen) != len(servers) {
		t.Errorf("%d clusters for %d servers", len(seen), len(servers))
	}
	if err := servers[0].Stop(); err != nil {
		t.Fatal(err)
	}
	connect(t, servers[1].URL())
}

func TestRestartKeepsPortAndData(t *testing.T) {
	s := pgserver.Private(t)
	ctx := testContext(t)
	exec1(t, connect(t, s.URL()), "CREATE TABLE kept AS SELECT 'yes' AS answer")
	url := s.URL()
	for name, restart := range map[string]func() error{
		"fast":      func() error { return s.Restart(ctx, pgserver.Fast) },
		"immediate": func() error { return s.Restart(ctx, pgserver.Immediate) },
		"kill": func() error {
			if err := s.Kill(); err != nil {
				return err
			}
			return s.Up(ctx)
		},
		"postmaster killed": func() error {
			if err := s.Signal(s.Pids()[0], syscall.SIGKILL); err != nil {
				return err
			}
			if err := s.Down(ctx, pgserver.Fast); err != nil {
				return err
			}
			return s.Up(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, url)
			before := s.Pids()
			if err := restart(); err != nil {
				t.Fatal(err)
			}
			if err := conn.Ping(testContext(t)); err == nil {
				t.Error("a session survived")
			}
			if anyAlive(before) {
				t.Errorf("some of %v survived", before)
			}
			if s.URL() != url {
				t.Errorf("it was at %s, and is at %s", url, s.URL())
			}
			if got := query(t, connect(t, url), "SELECT answer FROM kept"); got != "yes" {
				t.Errorf("kept %q", got)
			}
		})
	}
}

func TestDownAndUpTwice(t *testing.T) {
	s := pgserver.Private(t)
	ctx := testContext(t)
	for range 2 {
		if err := s.Down(ctx, pgserver.Fast); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tryConnect(ctx, s.URL()); err == nil {
		t.Error("connected to a server that is down")
	}
	for range 2 {
		if err := s.Up(ctx); err != nil {
			t.Fatal(err)
		}
	}
	connect(t, s.URL())
	if err := s.Down(ctx, "smart"); err == nil {
		t.Error("no error for a mode that does not exist")
	}
}

func TestPauseFreezesAndResumeContinues(t *testing.T) {
	s := pgserver.Private(t)
	conn := connect(t, s.URL())
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- conn.Ping(testContext(t)) }()
	select {
	case err := <-answered:
		t.Fatalf("a frozen server answered: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatalf("the session did not survive: %v", err)
	}
}

func TestSignalOnlyReachesTheServersOwnProcesses(t *testing.T) {
	s := pgserver.Private(t)
	if err := s.Signal(os.Getpid(), syscall.SIGKILL); err == nil {
		t.Error("no error for the pid of another process")
	}
	// The server survives the crash of a backend, and ends all other sessions.
	other, conn := connect(t, s.URL()), connect(t, s.URL())
	if err := s.Signal(int(conn.PgConn().PID()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the other session ends", func() bool { return other.Ping(t.Context()) != nil })
	eventually(t, 10*time.Second, "new sessions", func() bool {
		conn, err := tryConnect(t.Context(), s.URL())
		if err == nil {
			conn.Close(t.Context())
		}
		return err == nil
	})
}

func TestForeignServerIsObeyedAndLeftAlone(t *testing.T) {
	foreign := pgserver.Private(t)
	for _, variable := range []string{pgserver.EnvDatabaseURL, pgserver.EnvFallbackURL} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(pgserver.EnvDatabaseURL, "")
			t.Setenv(pgserver.EnvFallbackURL, "postgres://nobody.invalid/")
			t.Setenv(variable, foreign.URL())
			ctx := testContext(t)
			s, err := pgserver.Start(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if s.Owned() || s.URL() != foreign.URL() || !strings.HasSuffix(s.Describe(), " at "+variable) {
				t.Errorf("Start gave %s at %s", s.Describe(), s.URL())
			}
			if err := s.Restart(ctx, pgserver.Fast); err == nil {
				t.Error("restarted a foreign server")
			}
			if err := s.Kill(); err == nil {
				t.Error("killed a foreign server")
			}
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			connect(t, s.URL())
			if private := pgserver.Private(t); !private.Owned() {
				t.Error("Private gave a foreign server")
			}
		})
	}
}

func TestForeignServerThatIsNotThereIsAnError(t *testing.T) {
	t.Setenv(pgserver.EnvDatabaseURL, "postgres://me:secret@127.0.0.1:1/x?sslmode=disable")
	_, err := pgserver.Start(testContext(t))
	if err == nil || !strings.Contains(err.Error(), pgserver.EnvDatabaseURL) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}

func TestWaitFuncIsTheGoroutineThatLives(t *testing.T) {
	pgserver.Private(t)
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if !strings.Contains(string(stacks), pgserver.WaitFunc+"(") {
		t.Errorf("no goroutine in %s", pgserver.WaitFunc)
	}
}

var _ pgserver.TB = (testing.TB)(nil)
