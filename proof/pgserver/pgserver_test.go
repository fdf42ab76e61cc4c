//go:build unix

package pgserver

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// With an environment variable, a process of this binary starts a server and waits to be killed.
func TestMain(m *testing.M) {
	if os.Getenv("PGSERVER_TEST_VICTIM") != "" {
		s, err := Start(context.Background())
		if err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString(s.folder.path + "\n")
		select {}
	}
	os.Exit(Main(m))
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // PgBouncer may be in front of the server
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func value(t *testing.T, conn *pgx.Conn, query string) (v string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT ("+query+")::text").Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func run(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(20 * time.Second); !holds(); time.Sleep(pollInterval) {
		if time.Now().After(late) {
			t.Fatalf("not true within 20 s: %s", what)
		}
	}
}

func alive(pids []int) bool {
	return slices.ContainsFunc(pids, func(pid int) bool { _, here := processTable()[pid]; return here })
}

func TestServerRestartsWithPortAndData(t *testing.T) {
	t.Parallel()
	s := Private(t, WithSettings(map[string]string{"application_name": `it's a \ test`}))
	conn := connect(t, s.URL())
	run(t, conn, "CREATE TABLE kept AS SELECT 'yes' AS answer")
	if got := value(t, conn, "current_setting('application_name')"); got != `it's a \ test` {
		t.Errorf("a setting became %q", got)
	}
	for name, end := range map[string]func() error{
		"fast":      func() error { return s.Restart(t.Context(), Fast) },
		"immediate": func() error { return s.Restart(t.Context(), Immediate) },
		"kill":      func() error { return errors.Join(s.Kill(), s.Up(t.Context())) },
		"postmaster killed": func() error {
			err := s.Signal(s.pids()[0], syscall.SIGKILL)
			<-s.process.done
			return errors.Join(err, s.Up(t.Context()))
		},
	} {
		before, conn := s.pids(), connect(t, s.URL())
		if os.Geteuid() == 0 && len(before) == 0 {
			t.Fatal("no process is known")
		}
		if err := end(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if conn.Ping(t.Context()) == nil || alive(before) {
			t.Errorf("%s: a session or a process survived", name)
		}
		if got := value(t, connect(t, s.URL()), "SELECT answer FROM kept"); got != "yes" {
			t.Errorf("%s: kept %q", name, got)
		}
	}
	if s.Restart(t.Context(), "smart") == nil || s.Signal(os.Getpid(), 0) == nil {
		t.Error("an unknown mode, or a process of another server, was accepted")
	}
}

func TestAPausedServerAnswersWhenItIsResumed(t *testing.T) {
	t.Parallel()
	s := Private(t)
	conn := connect(t, s.URL())
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- conn.Ping(t.Context()) }()
	select {
	case err := <-answered:
		t.Fatalf("a frozen server answered: %v", err)
	case <-time.After(200 * time.Millisecond): // this wait is for something that must not happen
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatalf("the session did not survive: %v", err)
	}
}

func TestAStandbyFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	primary := Private(t, WithSettings(map[string]string{"max_connections": "250"}))
	conn := connect(t, primary.URL())
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Stop()
	run(t, conn, "CREATE TABLE since AS SELECT 1 AS n")
	read := connect(t, standby.URL())
	eventually(t, "the standby has what was written since", func() bool { return value(t, read, "to_regclass('since') IS NOT NULL") == "true" })
	if value(t, read, "pg_is_in_recovery()") != "true" || value(t, read, "current_setting('max_connections')") != "250" {
		t.Error("it is no standby with the primary's settings")
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, read, "CREATE TABLE after AS SELECT 1 AS n")
	run(t, conn, "CREATE TABLE apart AS SELECT 1 AS n") // the old primary continues
	if value(t, read, "left(pg_walfile_name(pg_current_wal_lsn()), 8)") != "00000002" || value(t, read, "to_regclass('apart') IS NULL") != "true" {
		t.Error("the new primary is not on a timeline of its own")
	}
}

// A checkpoint removes log that no running standby requests.
func TestAStandbyThatWasDownCatchesUp(t *testing.T) {
	t.Parallel()
	primary := Private(t)
	conn := connect(t, primary.URL())
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Stop()
	if err := standby.Down(t.Context(), Fast); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		run(t, conn, "CREATE TABLE IF NOT EXISTS since AS SELECT 1 AS n")
		run(t, conn, "SELECT pg_switch_wal()")
		run(t, conn, "CHECKPOINT")
	}
	if err := standby.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	read := connect(t, standby.URL())
	eventually(t, "the standby has what was written since", func() bool { return value(t, read, "to_regclass('since') IS NOT NULL") == "true" })
}

func TestAStandbyMayFollowAStandby(t *testing.T) {
	t.Parallel()
	primary := Private(t)
	conn := connect(t, primary.URL())
	last := primary
	for range 2 {
		next, err := last.Standby(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer next.Stop()
		last = next
	}
	run(t, conn, "CREATE TABLE since AS SELECT 1 AS n")
	read := connect(t, last.URL())
	eventually(t, "the last one has what was written since", func() bool { return value(t, read, "to_regclass('since') IS NOT NULL") == "true" })
}

func TestEachCopyHasTablesAndIdentity(t *testing.T) {
	t.Parallel()
	const timeline, cluster = "left(pg_walfile_name(pg_current_wal_lsn()), 8)", "SELECT system_identifier FROM pg_control_system()"
	s := Private(t, WithSettings(map[string]string{"max_connections": "250"}))
	conn := connect(t, s.URL())
	run(t, conn, "CREATE SCHEMA kept; CREATE TABLE kept.answers AS SELECT 'yes' AS answer")
	identity := value(t, conn, cluster)
	check := func(kind string, copied *Server, err error, same bool) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		defer copied.Stop()
		conn := connect(t, copied.URL())
		if got := value(t, conn, "SELECT answer FROM kept.answers"); got != "yes" {
			t.Errorf("%s: kept %q", kind, got)
		}
		if got := value(t, conn, cluster); (got == identity) != same || value(t, conn, timeline) != "00000001" {
			t.Errorf("%s: system identifier %s, of the other %s; timeline %s", kind, got, identity, value(t, conn, timeline))
		}
	}
	copied, err := s.Restored(t.Context(), "kept")
	check("restored", copied, err, false)
	if _, err := s.Copy(t.Context()); err == nil {
		t.Error("the files of a server that is up were copied")
	}
	if err := s.Down(t.Context(), Fast); err != nil {
		t.Fatal(err)
	}
	copied, err = s.Copy(t.Context())
	check("copied", copied, err, true)
	copied, err = s.Upgrade(t.Context())
	check("upgraded", copied, err, false)
	if err := s.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("the first", s, nil, true)
}

func TestAClockIsSteppedAndSlewed(t *testing.T) {
	t.Parallel()
	s := Private(t)
	clock, err := s.Clock(t.Context())
	if errors.Is(err, ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, s.URL())
	ahead := func() time.Duration {
		var now time.Time
		if err := conn.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now); err != nil {
			t.Fatal(err)
		}
		return time.Until(now)
	}
	for _, offset := range []time.Duration{time.Hour, -time.Minute, 0} {
		clock.Set(offset)
		if wrong := ahead() - offset; wrong.Abs() > 5*time.Second || clock.Offset() != offset {
			t.Errorf("it is %v off %v", wrong, offset)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	clock.Slew(ctx, 2)
	if clock.Offset() < 200*time.Millisecond {
		t.Errorf("a clock of twice the rate is %v ahead after 300 ms", clock.Offset())
	}

	// A statement timeout reads the clock in a signal handler, so the library must not allocate or
	// lock.
	library, err := elf.Open(s.folder.file("clock.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	calls, err := library.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	harmless := []string{"syscall", "getenv", "open", "mmap", "close", "abort", "__cxa_finalize", "__stack_chk_fail"}
	for _, call := range calls {
		if !slices.Contains(harmless, call.Name) {
			t.Errorf("the clock calls %s", call.Name)
		}
	}
}

func TestPgBouncerPoolsTransactionsAndRestartsOnItsPort(t *testing.T) {
	t.Parallel()
	url := EmptyDatabase(t)
	bouncer, err := PgBouncer(t.Context(), url, WithPoolSize(1))
	if errors.Is(err, ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := bouncer.Stop(); err != nil {
			t.Error(err)
		}
	}()
	through, err := bouncer.Through(url)
	if err != nil {
		t.Fatal(err)
	}
	one, two := connect(t, through), connect(t, through)
	if a, b := value(t, one, "pg_backend_pid()"), value(t, two, "pg_backend_pid()"); a != b || value(t, one, "current_database()") != value(t, connect(t, url), "current_database()") {
		t.Errorf("two clients have server processes %s and %s", a, b)
	}
	if err := bouncer.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if one.Ping(t.Context()) == nil {
		t.Error("a connection survived")
	}
	value(t, connect(t, through), "1")
}

// Otherwise each run would leave a server behind, and about 40 MB in memory.
func TestStartRemovesAbandonedFolders(t *testing.T) {
	victim := exec.Command(os.Args[0])
	victim.Env = append(os.Environ(), "PGSERVER_TEST_VICTIM=1")
	output, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	path := make([]byte, 1000)
	n, _ := output.Read(path)
	_ = victim.Process.Kill()
	_ = victim.Wait()
	f := &folder{path: strings.TrimSpace(string(path[:n]))}
	if _, err := os.Stat(f.path); err != nil || !strings.Contains(f.path, folderPrefix) {
		t.Fatalf("it had no folder %q: %v", f.path, err)
	}
	eventually(t, "its server ends with it", func() bool { return len(f.processes()) == 0 })
	sweep(filepath.Dir(f.path))
	if _, err := os.Stat(f.path); err != nil {
		t.Errorf("a new folder was removed: it may not be locked yet: %v", err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(f.path, old, old); err != nil {
		t.Fatal(err)
	}
	mine := &Private(t).folder.path
	if err := os.Chtimes(*mine, old, old); err != nil {
		t.Fatal(err)
	}
	sweep(filepath.Dir(f.path))
	if _, err := os.Stat(f.path); !os.IsNotExist(err) {
		t.Errorf("it is there still: %v", err)
	}
	if _, err := os.Stat(*mine); err != nil {
		t.Errorf("a folder in use was removed: %v", err)
	}
}

func TestAFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "pgserver-test-") // a directory that any user can enter
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), WithDir(dir), WithSettings(map[string]string{"no_such_setting": "1"}))
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("error %v does not show the server's log", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestMissingProgramsNameThePackage(t *testing.T) {
	_, postgres := findPostgres("", "/nowhere", nil)
	_, forced := findPostgres("/nowhere", os.Getenv("PATH"), postgresDirs)
	_, bouncer := findBouncer("/nowhere", nil)
	_, compiler := findCompiler("linux", "/nowhere")
	_, clock := findCompiler("darwin", "")
	for err, words := range map[error]string{
		postgres: "apt-get install postgresql", forced: EnvPostgresBin + "=/nowhere", bouncer: "apt-get install pgbouncer", compiler: "apt-get install gcc", clock: "Linux",
	} {
		if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v does not say %q", err, words)
		}
	}
}

func TestDatabasesAreDroppedWithTheirTests(t *testing.T) {
	var url string
	t.Run("use", func(t *testing.T) {
		url = EmptyDatabase(t)
		run(t, connect(t, url), "CREATE TABLE mine ()") // the connection stays open
	})
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		_ = conn.Close(t.Context())
		t.Error("a database outlived its test")
	}
}
