//go:build unix

package pgserver_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/pgserver"
)

// envRequired lists the ways that have to work, separated by commas: where they do not, their tests fail, and are not
// skipped.
const envRequired = "PGTEST_REQUIRED"

// startBy starts a server that tests share, in one way, and skips the test where that does not work.
func startBy(t *testing.T, way string, opts ...pgserver.Option) *pgserver.Server {
	t.Helper()
	required := slices.Contains(strings.Split(os.Getenv(envRequired), ","), way)
	if way == "embedded" && !required {
		t.Skip("may download")
	}
	t.Setenv(pgserver.EnvDatabaseURL, "")
	t.Setenv(pgserver.EnvFallbackURL, "")
	t.Setenv(pgserver.EnvPostgres, way)
	begin := time.Now()
	s, err := pgserver.Start(t.Context(), opts...)
	if errors.Is(err, pgserver.ErrNotInstalled) && !required {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Log(s.Describe(), "started in", time.Since(begin))
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestDocker(t *testing.T) {
	s := startBy(t, "docker", pgserver.WithSettings(map[string]string{"max_connections": "17", "application_name": `it's a "test"`}))
	conn := connect(t, s.URL())
	version, _, _ := strings.Cut(query(t, conn, "SHOW server_version"), " ")
	if want := "PostgreSQL " + version + " in Docker ("; !strings.HasPrefix(s.Describe(), want) {
		t.Errorf("Describe() = %q, want %q...", s.Describe(), want)
	}
	for name, want := range map[string]string{
		"max_connections": "17", "application_name": `it's a "test"`, "fsync": "off", "TimeZone": "UTC",
	} {
		if got := query(t, conn, "SHOW "+name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := query(t, conn, "SELECT datcollate || pg_encoding_to_char(encoding) FROM pg_database WHERE datname = 'template0'"); got != "CUTF8" {
		t.Errorf("locale and encoding %q, not those of an owned server", got)
	}
	if s.Owned() {
		t.Error("it is owned")
	}
	if err := s.Kill(); !errors.Is(err, pgserver.ErrNotOwned) {
		t.Errorf("kill: %v", err)
	}
	_, drop, err := s.CreateDatabase(testContext(t), "docker")
	if err != nil {
		t.Fatal(err)
	}
	if err := drop(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tryConnect(testContext(t), s.URL()); err == nil {
		t.Error("connected to a removed container")
	}
	_, err = pgserver.Start(t.Context(), pgserver.WithSettings(map[string]string{"no_such_setting": "1"}))
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v does not say in one line why a server did not start", err)
	}
}

func TestNoContainerOutlivesItsProcessForLong(t *testing.T) {
	dir := reachableTempDir(t)
	t.Setenv("TMPDIR", dir)
	living := startBy(t, "docker")
	short, err := pgserver.StartContainer(t.Context(), os.Getenv(pgserver.EnvPostgresImage), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	killed, left, _ := startHelper(t, "shared", dir)
	if err := killed.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	connect(t, left[0])
	startBy(t, "docker")
	if _, err := tryConnect(testContext(t), left[0]); err == nil {
		t.Error("the next start did not remove the container of a killed process")
	}
	connect(t, living.URL())
	eventually(t, 30*time.Second, "the engine ends a container", func() bool {
		conn, err := tryConnect(t.Context(), short.URL())
		if err == nil {
			conn.Close(t.Context())
		}
		return err != nil
	})
	if err := short.Stop(); err != nil {
		t.Errorf("stop, when the container is gone: %v", err)
	}
}

func TestEmbedded(t *testing.T) {
	s := startBy(t, "embedded")
	conn := connect(t, s.URL())
	version, _, _ := strings.Cut(query(t, conn, "SHOW server_version"), " ")
	if want := "PostgreSQL " + version + " from embedded-postgres in "; !strings.HasPrefix(s.Describe(), want) {
		t.Errorf("Describe() = %q, want %q...", s.Describe(), want)
	}
	if err := s.Restart(testContext(t), pgserver.Immediate); err != nil {
		t.Error(err)
	}
	if private := pgserver.Private(t); !strings.Contains(private.Describe(), "embedded-postgres") {
		t.Errorf("Private gave %s", private.Describe())
	}
}
