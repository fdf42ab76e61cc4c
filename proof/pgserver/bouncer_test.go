//go:build unix

package pgserver_test

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/proof/pgserver"
)

// needsBouncer skips a test where PgBouncer is not installed, which pgtest itself does not require.
func needsBouncer(t *testing.T) {
	t.Helper()
	b, err := pgserver.PgBouncer(testContext(t), "postgres://127.0.0.1/x")
	if errors.Is(err, pgserver.ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
}

func startBouncer(t *testing.T, upstream string, opts ...pgserver.BouncerOption) *pgserver.Bouncer {
	t.Helper()
	needsBouncer(t)
	b, err := pgserver.PgBouncer(testContext(t), upstream, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestBouncerPoolsTransactions(t *testing.T) {
	s := pgserver.Private(t)
	b := startBouncer(t, s.URL(), pgserver.WithPoolSize(1))
	t.Log(b.Describe())
	first, second := connect(t, b.URL()), connect(t, b.URL())
	const backend = "SELECT pg_backend_pid()::text"
	if a, b := query(t, first, backend), query(t, second, backend); a != b {
		t.Errorf("two clients have backends %s and %s, in a pool of one", a, b)
	}
	if query(t, first, "SELECT current_user::text") != "postgres" {
		t.Error("not the upstream's user")
	}
}

func TestBouncerRestartKeepsItsPort(t *testing.T) {
	s := pgserver.Private(t)
	b := startBouncer(t, s.URL())
	conn, url := connect(t, b.URL()), b.URL()
	if err := b.Restart(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ping(testContext(t)); err == nil {
		t.Error("a session survived")
	}
	if b.URL() != url {
		t.Errorf("it was at %s, and is at %s", url, b.URL())
	}
	connect(t, url)
	for range 2 {
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tryConnect(testContext(t), url); err == nil {
		t.Error("connected to a stopped pooler")
	}
	if err := b.Restart(testContext(t)); !errors.Is(err, pgserver.ErrNotOwned) {
		t.Errorf("restart of a stopped pooler: %v", err)
	}
}

// Everything that Database does works when the environment points to a pooler.
func TestDatabasesThroughTheBouncer(t *testing.T) {
	upstream := pgserver.Private(t)
	b := startBouncer(t, upstream.URL())
	t.Setenv(pgserver.EnvDatabaseURL, b.URL())
	t.Setenv(pgserver.EnvDirectURL, upstream.URL())
	if url, pooled := pgserver.DirectURL(upstream.URL()); pooled || url != upstream.URL() {
		t.Errorf("DirectURL of a server's own URL is %s, %v", url, pooled)
	}
	s, err := pgserver.Start(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 6 {
		group.Go(func() {
			url, drop, err := s.CreateDatabase(testContext(t), "pooled")
			if err != nil {
				t.Error(err)
				return
			}
			conn, err := tryConnect(testContext(t), url)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := conn.Exec(testContext(t), "CREATE TABLE mine AS SELECT 'here' AS answer"); err != nil {
				t.Error(err)
			}
			direct, pooled := pgserver.DirectURL(url)
			if !pooled {
				t.Error("DirectURL does not see the pooler")
			}
			past, err := pgx.Connect(testContext(t), direct)
			if err != nil {
				t.Error(err)
				return
			}
			var answer string
			if err := past.QueryRow(testContext(t), "SELECT answer FROM mine").Scan(&answer); err != nil {
				t.Error(err)
			}
			// With both sessions open.
			if err := drop(); err != nil {
				t.Error(err)
			}
			// Not conn: the pooler keeps its client waiting for a database that may come back.
			if past.Ping(testContext(t)) == nil {
				t.Error("a session survived the drop")
			}
			conn.Close(testContext(t))
		})
	}
	group.Wait()
	left := query(t, connect(t, upstream.URL()), "SELECT count(*)::text FROM pg_database WHERE datname LIKE 'pooled%'")
	if left != "0" {
		t.Errorf("%s databases left", left)
	}
}

func TestBouncerInFrontOfAPassword(t *testing.T) {
	s := pgserver.Private(t)
	exec1(t, connect(t, s.URL()), `CREATE ROLE "it's me" LOGIN SUPERUSER PASSWORD 'pass''word #;'`)
	upstream := strings.Replace(s.URL(), "postgres@", "it%27s%20me:pass%27word%20%23;@", 1)
	b := startBouncer(t, upstream)
	if got := query(t, connect(t, b.URL()), "SELECT current_user::text"); got != "it's me" {
		t.Errorf("connected as %q", got)
	}
	if strings.Contains(b.URL(), "word") {
		t.Error("the password is in the pooler's URL")
	}
}

func TestCommandRunsWithADatabase(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	dir := reachableTempDir(t)
	program := dir + "/pgtest"
	if out, err := exec.Command("go", "build", "-o", program, "./cmd/pgtest").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, test := range []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"status", []string{"--", "sh", "-c", "exit 7"}, 7, "PostgreSQL"},
		{"killed", []string{"--", "sh", "-c", "kill -9 $$"}, 137, "PostgreSQL"},
		{"forwards", []string{"--", "sh", "-c", "trap 'echo caught; exit 3' TERM; kill $PPID; while :; do sleep 0.1; done"}, 3, "caught"},
		{"not found", []string{"--", "/no/such/program"}, 2, "/no/such/program"},
		{"url", []string{"--", "sh", "-c", `echo "url=$PGLEASES_TEST_DATABASE_URL"`}, 0, "url=postgres://"},
		{"bouncer", []string{"-bouncer", "--", "sh", "-c", `test "$PGLEASES_TEST_DATABASE_URL" != "$PGLEASES_TEST_DIRECT_URL"; echo "direct=$PGLEASES_TEST_DIRECT_URL"`}, 0, "direct=postgres://"},
		{"app", []string{"-bouncer", "-app", "--", "sh", "-c", `echo "role=$PGLEASES_TEST_ROLE direct=$PGLEASES_TEST_DIRECT_URL"`}, 0, "role=pgleases_app direct=postgres://"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if slices.Contains(test.args, "-bouncer") {
				needsBouncer(t)
			}
			temp := reachableTempDir(t)
			cmd := exec.Command(program, test.args...)
			cmd.Env = append(os.Environ(), "TMPDIR="+temp)
			out, _ := cmd.CombinedOutput()
			if status := cmd.ProcessState.ExitCode(); status != test.status || !strings.Contains(string(out), test.want) {
				t.Errorf("status %d, want %d, and %q in the output:\n%s", status, test.status, test.want, out)
			}
			wantEmpty(t, temp)
		})
	}
}
