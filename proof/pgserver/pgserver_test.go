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

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
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
	os.Exit(m.Run())
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	config := testkit.Must(pgx.ParseConfig(url))(t)
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // PgBouncer may be in front of the server
	conn := testkit.Must(pgx.ConnectConfig(t.Context(), config))(t)
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

func TestAStandbyFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	primary := Private(t, WithSettings(map[string]string{"max_connections": "250"}))
	conn := connect(t, primary.URL())
	standby := testkit.Must(primary.Standby(t.Context()))(t)
	defer standby.Stop()
	run(t, conn, "CREATE TABLE since AS SELECT 1 AS n")
	read := connect(t, standby.URL())
	is := func(condition string) bool {
		t.Helper()
		return value(t, read, condition) == "true"
	}
	eventually(t, "the standby has what was written since", func() bool {
		return is("to_regclass('since') IS NOT NULL")
	})
	if !is("pg_is_in_recovery()") || !is("current_setting('max_connections') = '250'") {
		t.Error("it is no standby with the primary's settings")
	}
	testkit.OK(t, standby.Promote(t.Context()))
	run(t, read, "CREATE TABLE after AS SELECT 1 AS n")
	run(t, conn, "CREATE TABLE apart AS SELECT 1 AS n") // the old primary continues
	if value(t, read, timeline) != "00000002" || !is("to_regclass('apart') IS NULL") {
		t.Error("the new primary is not on a timeline of its own")
	}
}

// timeline is that of a server, in hexadecimal.
const timeline = "left(pg_walfile_name(pg_current_wal_lsn()), 8)"

func TestEachCopyHasTablesAndIdentity(t *testing.T) {
	t.Parallel()
	const cluster = "SELECT system_identifier FROM pg_control_system()"
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
			t.Errorf("%s: system identifier %s, of the other %s; timeline %s",
				kind, got, identity, value(t, conn, timeline))
		}
	}
	copied, err := s.Restored(t.Context(), "kept")
	check("restored", copied, err, false)
	if _, err := s.Copy(t.Context()); err == nil {
		t.Error("the files of a server that is up were copied")
	}
	testkit.OK(t, s.Down(t.Context(), Fast))
	copied, err = s.Copy(t.Context())
	check("copied", copied, err, true)
	copied, err = s.Upgrade(t.Context())
	check("upgraded", copied, err, false)
	testkit.OK(t, s.Up(t.Context()))
	check("the first", s, nil, true)
}

// The tests of clocks in package proof check that it is stepped and slewed.
func TestClockDoesNotAllocateOrLock(t *testing.T) {
	t.Parallel()
	s := Private(t)
	_, err := s.Clock(t.Context())
	Required(t, err)
	// A statement timeout reads the clock in a signal handler, so the library must not allocate or
	// lock.
	library := testkit.Must(elf.Open(s.folder.file("clock.so")))(t)
	defer library.Close()
	calls := testkit.Must(library.ImportedSymbols())(t)
	harmless := []string{"syscall", "getenv", "open", "mmap", "close", "abort", "__cxa_finalize", "__stack_chk_fail"}
	for _, call := range calls {
		if !slices.Contains(harmless, call.Name) {
			t.Errorf("the clock calls %s", call.Name)
		}
	}
}

func TestPgBouncerPoolsTransactionsAndRestartsOnItsPort(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyDatabase(t)
	bouncer, err := PgBouncer(t.Context(), url, WithPoolSize(1))
	Required(t, err)
	defer func() {
		if err := bouncer.Stop(); err != nil {
			t.Error(err)
		}
	}()
	through := testkit.Must(bouncer.Through(url))(t)
	one, two := connect(t, through), connect(t, through)
	const process, database = "pg_backend_pid()", "current_database()"
	if a, b := value(t, one, process), value(t, two, process); a != b {
		t.Errorf("two clients have server processes %s and %s", a, b)
	}
	if a, b := value(t, one, database), value(t, connect(t, url), database); a != b {
		t.Errorf("the pooler leads to the database %s, not to %s", a, b)
	}
	testkit.OK(t, bouncer.Restart(t.Context()))
	if one.Ping(t.Context()) == nil {
		t.Error("a connection survived")
	}
	value(t, connect(t, through), "1")
}

// Otherwise each run would leave a server behind, and about 40 MB in memory.
func TestStartRemovesAbandonedFolders(t *testing.T) {
	victim := exec.Command(os.Args[0])
	victim.Env = append(os.Environ(), "PGSERVER_TEST_VICTIM=1")
	output := testkit.Must(victim.StdoutPipe())(t)
	testkit.OK(t, victim.Start())
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
	testkit.OK(t, os.Chtimes(f.path, old, old))
	mine := &Private(t).folder.path
	testkit.OK(t, os.Chtimes(*mine, old, old))
	sweep(filepath.Dir(f.path))
	if _, err := os.Stat(f.path); !os.IsNotExist(err) {
		t.Errorf("it is there still: %v", err)
	}
	if _, err := os.Stat(*mine); err != nil {
		t.Errorf("a folder in use was removed: %v", err)
	}
}

func TestAFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	dir := testkit.Must(os.MkdirTemp("/tmp", "pgserver-test-"))(t) // a directory that any user can enter
	defer os.RemoveAll(dir)
	testkit.OK(t, os.Chmod(dir, 0o755))
	_, err := Start(t.Context(), WithDir(dir), WithSettings(map[string]string{"no_such_setting": "1"}))
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("error %v does not show the server's log", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestMissingProgramsNameThePackage(t *testing.T) {
	t.Setenv("PGLEASES_TEST_POSTGRES_BIN", "/nowhere")
	_, postgres := Start(t.Context())
	_, bouncer := findBouncer("/nowhere", nil)
	_, compiler := findCompiler("linux", "/nowhere")
	_, clock := findCompiler("darwin", "")
	for err, words := range map[error]string{
		postgres: "apt-get install postgresql",
		bouncer:  "apt-get install pgbouncer",
		compiler: "apt-get install gcc",
		clock:    "linux",
	} {
		var lacks NotInstalled
		if !errors.As(err, &lacks) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v does not say %q", err, words)
		}
	}
}
