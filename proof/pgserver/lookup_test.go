package pgserver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func programs(t *testing.T, dir string, names ...string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, exe(name)), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFindPostgres(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(root, "lib")
	v9 := programs(t, filepath.Join(lib, "9.6", "bin"), "postgres", "initdb")
	v17 := programs(t, filepath.Join(lib, "17", "bin"), "postgres", "initdb")
	programs(t, filepath.Join(lib, "18", "bin"), "psql") // a client only
	onPath := programs(t, filepath.Join(root, "path"), "postgres", "initdb")
	half := programs(t, filepath.Join(root, "half"), "postgres")
	linked := programs(t, filepath.Join(root, "linked"))
	if err := os.Symlink(filepath.Join(v9, exe("postgres")), filepath.Join(linked, exe("postgres"))); err != nil {
		t.Skip(err)
	}
	globs := []string{filepath.Join(lib, "*", "bin")}
	list := func(dirs ...string) string { return strings.Join(dirs, string(os.PathListSeparator)) }

	for name, test := range map[string]struct{ forced, path, want string }{
		"newest by number":     {"", "", v17},
		"PATH first":           {"", list("/nowhere", onPath), onPath},
		"incomplete":           {"", half, v17},
		"symlink to the whole": {"", linked, v9},
		"forced":               {v9, onPath, v9},
	} {
		if got, err := findPostgres(test.forced, test.path, globs); err != nil || got != test.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, test.want)
		}
	}
}

func TestNothingFoundSaysWhatToDo(t *testing.T) {
	_, err := findPostgres("", "/nowhere", []string{"/no/postgresql/*/bin"})
	wantError(t, err, EnvDatabaseURL, "apt-get install postgresql", "brew install", "/no/postgresql/*/bin")
	_, err = findPostgres("/forced", os.Getenv("PATH"), postgresDirs)
	wantError(t, err, EnvPostgresBin, "/forced")
	_, err = findBouncer("/nowhere", []string{"/no/sbin"})
	wantError(t, err, "apt-get install pgbouncer", "/no/sbin")
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if !errors.Is(err, ErrNotInstalled) {
		t.Fatalf("error %v", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
}

func TestWithDatabase(t *testing.T) {
	for _, connString := range []string{
		"postgres://u:p%40ss@h:5433/old?sslmode=disable",
		"postgresql://u:p%40ss@h:5433?dbname=old",
		"host=h port=5433 user=u password=p@ss dbname=old",
	} {
		for _, name := range []string{"new", `it's "new" \ 100%?&=/`} {
			got, err := withDatabase(connString, name)
			if err != nil {
				t.Fatal(err)
			}
			config, err := pgx.ParseConfig(got)
			if err != nil {
				t.Fatal(err)
			}
			if config.Database != name || config.Host != "h" || config.Port != 5433 || config.User != "u" || config.Password != "p@ss" {
				t.Errorf("%q with %q is %q", connString, name, got)
			}
		}
	}
}

func TestBelongs(t *testing.T) {
	const path = "/tmp/pgleases-pgtest-0-1"
	for command, want := range map[string]bool{
		"/usr/bin/postgres -D /tmp/pgleases-pgtest-0-1/data -p 1":    true,
		"postgres: pgleases-pgtest-0-1: walwriter ":                  true,
		"/usr/sbin/pgbouncer /tmp/pgleases-pgtest-0-1/pgbouncer.ini": true,
		"/usr/bin/postgres -D /tmp/pgleases-pgtest-0-12/data":        false,
		"postgres: pgleases-pgtest-0-12: walwriter":                  false,
		"tail -f /tmp/pgleases-pgtest-0-1/log":                       false,
		"postgres: other: user pgleases-pgtest-0-1: idle":            false,
	} {
		if belongs(command, path) != want {
			t.Errorf("belongs(%q) = %v", command, !want)
		}
	}
}

func TestReachable(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "pgtest-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	if reachable(dir) {
		t.Error("a folder with mode 0700 is reachable")
	}
	below := programs(t, filepath.Join(dir, "below"))
	if reachable(below) {
		t.Error("a folder below one with mode 0700 is reachable")
	}
}
