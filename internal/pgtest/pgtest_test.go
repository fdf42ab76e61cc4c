package pgtest

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

const testerVariable = "PGTEST_TESTER"

func TestMain(m *testing.M) {
	if os.Getenv(testerVariable) != "" {
		os.Exit(tester())
	}
	_ = flag.Set("test.parallel", "3") // starts and ends of servers, which mostly wait
	goleak.VerifyTestMain(m)           // a server must not have cost this process a goroutine
}

// tester is a process that uses a database until it is killed, or its input ends.
func tester() int {
	databaseURL, _, err := NewDatabase(context.Background())
	fmt.Println(databaseURL, err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func connect(t *testing.T, databaseURL string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func value[T any](t *testing.T, conn *pgx.Conn, query string) (v T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// A server that another user runs ends idle sessions.
func TestDatabaseIsCreatedAfterLostConnection(t *testing.T) {
	conn := connect(t, EmptyDatabase(t))
	if !value[bool](t, conn, fmt.Sprint("SELECT pg_terminate_backend(", toServer.conn.PgConn().PID(), ", 60000)")) {
		t.Fatal("the shared connection's session did not end")
	}
	connect(t, EmptyDatabase(t))
}

func TestDatabaseIsEmptyAndGoneAfterItsTest(t *testing.T) {
	names := make(chan string, 4)
	t.Run("several at once", func(t *testing.T) {
		for range cap(names) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				conn := connect(t, EmptyDatabase(t)) // still connected when the database is dropped
				const relations = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
				if n := value[int](t, conn, relations); n != 0 {
					t.Errorf("%d relations", n)
				}
				if encoding := value[string](t, conn, "SELECT current_setting('server_encoding')"); encoding != "UTF8" {
					t.Error("encoding", encoding)
				}
				names <- value[string](t, conn, "SELECT current_database()")
			})
		}
	})
	close(names)
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, s.url)
	for name := range names {
		if value[bool](t, conn, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = '"+name+"')") {
			t.Error(name, "is there still")
		}
	}
}

func TestMigratedDatabaseIsNotShared(t *testing.T) {
	for range 2 {
		owner := connect(t, OwnerURL(MigratedDatabase(t)))
		if n := value[int](t, owner, "SELECT count(*) FROM pgleases.leases"); n != 0 {
			t.Errorf("%d leases in a new database", n)
		}
		_, err := owner.Exec(t.Context(), `
			INSERT INTO pgleases.leases
				(name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
			VALUES ('l', 1, 1, 1, 0, now(), now())`)
		if err != nil {
			t.Error(err)
		}
	}
}

// apart returns the environment of processes that share a server only with each other, and the
// server's folder.
func apart(t *testing.T) (folder string, environ []string) {
	t.Helper()
	environ = append(os.Environ(), "DATABASE_URL=", "PGLEASES_TEST_APART="+t.Name())
	folder, err := sharedFolder(environ)
	if err != nil {
		t.Fatal(err)
	}
	return folder, environ
}

// A process is a running tester.
type process struct {
	*exec.Cmd
	output *bufio.Reader
	input  io.Closer // open for as long as it is referenced
}

func startTester(t *testing.T, environ []string) process {
	t.Helper()
	p := process{Cmd: exec.Command(os.Args[0])}
	// a setting of another server, as a developer may have
	p.Env = append(slices.Clone(environ), testerVariable+"=1", "PGSERVICE=of another server")
	input, err := p.StdinPipe()
	output, err2 := p.StdoutPipe()
	if err := errors.Join(err, err2, p.Start()); err != nil {
		t.Fatal(err)
	}
	p.output, p.input = bufio.NewReader(output), input
	t.Cleanup(p.kill)
	return p
}

func (p process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// server returns the host and port that the process works on.
func (p process) server(t *testing.T) string {
	t.Helper()
	line, err := p.output.ReadString('\n')
	databaseURL, failure, _ := strings.Cut(strings.TrimSpace(line), " ")
	u, err2 := url.Parse(databaseURL)
	if err := errors.Join(err, err2); err != nil || u.Host == "" {
		t.Fatal("a process got no database:", failure, err)
	}
	return u.Host
}

// gone waits until a server and its folder are gone.
func gone(t *testing.T, folder string, servers ...string) {
	t.Helper()
	left := func() []string {
		found, _ := filepath.Glob(folder + "*")
		for _, server := range servers {
			if conn, err := net.Dial("tcp", server); err == nil {
				conn.Close()
				found = append(found, server)
			}
		}
		return found
	}
	for late := time.Now().Add(2 * time.Minute); len(left()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("left: %q", left())
		}
	}
}

func TestServerEndsWithTheLastProcess(t *testing.T) {
	t.Parallel()
	folder, environ := apart(t)
	first, second := startTester(t, environ), startTester(t, environ)
	server := first.server(t)
	if s := second.server(t); s != server {
		t.Fatalf("one works on %s, the other on %s", server, s)
	}
	first.kill()
	third := startTester(t, environ)
	if s := third.server(t); s != server {
		t.Fatalf("a third works on %s, the others on %s", s, server)
	}
	second.kill()
	third.input.Close()
	fourth := startTester(t, environ) // while the server ends
	last := fourth.server(t)
	fourth.kill()
	gone(t, folder, server, last)
}

func TestAProcessThatIsKilledInAStartLeavesNothing(t *testing.T) {
	t.Parallel()
	folder, environ := apart(t)
	p := startTester(t, environ)
	for { // until it starts a server
		if _, err := os.Stat(filepath.Join(folder, keeperFile)); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	p.kill()
	gone(t, folder)
}

func TestWhatAKilledKeeperLeftIsReplaced(t *testing.T) {
	t.Parallel()
	folder, environ := apart(t)
	if err := makeFolder(folder); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{keeperFile, serverFile} {
		left := []byte("postgres://127.0.0.1:1/postgres\nleft")
		if err := os.WriteFile(filepath.Join(folder, name), left, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := startTester(t, environ)
	server := p.server(t)
	p.kill()
	gone(t, folder, server)
}

func TestMissingServerErrorSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv(wayVariable, "")
	t.Setenv(binVariable, "")
	t.Setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
	t.Setenv("XDG_CACHE_HOME", os.DevNull)
	defer func(folders []string) { programFolders = folders }(programFolders)
	programFolders = []string{"/nowhere/*"}
	_, _, err := start(t.TempDir())
	for _, part := range []string{"set DATABASE_URL", "apt-get install postgresql", "docker: ", "/nowhere/docker.sock",
		"programs: ", "/nowhere/*", "embedded: ", os.DevNull} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not contain %q: %v", part, err)
		}
	}
}

func TestAWrongVariableIsNamedWithWhatWouldBeRight(t *testing.T) {
	for _, c := range []struct {
		variable, value, right string
		do                     func(value string) error
	}{
		{wayVariable, "podman", "docker, programs or embedded", func(string) error {
			_, err := allowedWay()
			return err
		}},
		{binVariable, "/nowhere", "initdb", func(string) error {
			_, err := FindPrograms()
			return err
		}},
		{roleVariable, "alice", app, func(role string) error {
			_, err := forApp(t.Context(), "", role, "")
			return err
		}},
		{"DATABASE_URL", "host=localhost", "postgres://", func(url string) error {
			_, err := describe(url, "")
			return err
		}},
	} {
		t.Setenv(c.variable, c.value)
		text := fmt.Sprint(c.do(c.value))
		if !strings.Contains(text, c.variable) || !strings.Contains(text, c.right) {
			t.Errorf("%s=%s: %s", c.variable, c.value, text)
		}
	}
}

func TestTheNewestProgramsAreTaken(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv(binVariable, "")
	root := t.TempDir()
	defer func(folders []string) { programFolders = folders }(programFolders)
	programFolders = []string{filepath.Join(root, "*/bin")}
	for _, file := range []string{"14/bin/initdb", "14/bin/pg_ctl", "17/bin/initdb", "17/bin/pg_ctl", "18/bin/initdb"} {
		file = filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if bin, err := FindPrograms(); bin != filepath.Join(root, "17/bin") {
		t.Error(bin, err) // 18 is not complete
	}
}

func TestTheRoleHasTheRightsOfGrantsAndNoMore(t *testing.T) {
	t.Setenv(roleVariable, app)
	databaseURL := Database(t)
	direct, _ := DirectURL(databaseURL)
	conn := connect(t, direct)
	if user := value[string](t, conn, "SELECT current_user"); user != app {
		t.Fatal("the user is", user)
	}
	for statement, allowed := range map[string]bool{
		"SELECT FROM pgleases.status":   true,
		"CREATE TABLE mine (i int)":     true,
		"CREATE SCHEMA another":         true,
		"DROP TABLE pgleases.clients":   false,
		"DELETE FROM pgleases.leases":   false,
		"CREATE TABLE public.t (i int)": false,
	} {
		if _, err := conn.Exec(t.Context(), statement); (err == nil) != allowed {
			t.Errorf("%s: %v", statement, err)
		}
	}
	owner := connect(t, OwnerURL(direct))
	if value[string](t, owner, "SELECT current_database()") != conn.Config().Database ||
		!value[bool](t, owner, "SELECT has_table_privilege('pgleases.clients', 'TRUNCATE')") {
		t.Error("OwnerURL is not an owner's of the same database:", owner.Config().User, owner.Config().Database)
	}
}

func TestDirectURLLeadsPastThePooler(t *testing.T) {
	const pooled = "postgres://me:secret@localhost:6432/some?sslmode=disable"
	t.Setenv("DATABASE_URL", pooled)
	t.Setenv("PGLEASES_TEST_DIRECT_URL", "")
	if u, ok := DirectURL(pooled); u != pooled || ok {
		t.Error("without a pooler:", u, ok)
	}
	t.Setenv("PGLEASES_TEST_DIRECT_URL", "postgres://postgres@localhost:5432/postgres?connect_timeout=9")
	const pooledApp = "postgres://pgleases_app:pw@localhost:6432/some"
	for from, want := range map[string]string{
		pooled:    "postgres://postgres@localhost:5432/some?connect_timeout=9",
		pooledApp: "postgres://pgleases_app:pw@localhost:5432/some?connect_timeout=9",
	} {
		if u, ok := DirectURL(from); u != want || !ok {
			t.Errorf("%s: %s, %v", from, u, ok)
		}
	}
}
