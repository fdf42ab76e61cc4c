package pgserver

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// ErrNotInstalled is returned, wrapped with where it looked and what to install, by everything that needs a program
// which this machine does not have.
var ErrNotInstalled = errors.New("not installed")

// postgresDirs is where distributions and installers put the server programs, which are often not on PATH.
var postgresDirs = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // PGDG's RPMs
	"/usr/libexec/postgresql*",  // Alpine
	"/opt/homebrew/opt/postgresql@*/bin",
	"/opt/homebrew/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql/bin",
	"/opt/local/lib/postgresql*/bin", // MacPorts
	"/usr/local/pgsql/bin",
	"/usr/local/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	`C:\Program Files\PostgreSQL\*\bin`,
}

// findPostgres returns the directory that holds postgres and initdb. forced, if not empty, is the only one it tries;
// else it tries those of path (a list as in PATH), then globs, the newest version of each first.
func findPostgres(forced, path string, globs []string) (string, error) {
	var dirs []string
	if forced != "" {
		dirs = []string{forced}
	} else {
		dirs = filepath.SplitList(path)
		for _, glob := range globs {
			found, _ := filepath.Glob(glob) // errs only on a malformed pattern
			slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
			dirs = append(dirs, found...)
		}
	}
	for _, dir := range dirs {
		// A directory on PATH often has a symlink to postgres alone; where that leads, the rest stands beside it.
		postgres, err := filepath.EvalSymlinks(filepath.Join(dir, exe("postgres")))
		if err != nil {
			continue
		}
		dir = filepath.Dir(postgres)
		if isProgram(postgres) && isProgram(filepath.Join(dir, exe("initdb"))) {
			return dir, nil
		}
	}
	if forced != "" {
		return "", fmt.Errorf("PostgreSQL server programs %w: %s=%s has no postgres and initdb; correct it, or unset it to have them looked for", ErrNotInstalled, EnvPostgresBin, forced)
	}
	return "", fmt.Errorf("PostgreSQL server programs %w: set %s to a server's URL, or install them "+
		"(Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server; "+
		"Alpine: apk add postgresql; macOS: brew install postgresql@17), or set %s to their directory; looked in PATH and %s",
		ErrNotInstalled, EnvDatabaseURL, EnvPostgresBin, strings.Join(globs, ", "))
}

// findBouncer returns the path of the program pgbouncer, looked for in path (a list as in PATH), then in dirs.
func findBouncer(path string, dirs []string) (string, error) {
	for _, dir := range append(filepath.SplitList(path), dirs...) {
		if program := filepath.Join(dir, exe("pgbouncer")); isProgram(program) {
			return program, nil
		}
	}
	return "", fmt.Errorf("PgBouncer %w: install it (Debian, Ubuntu: apt-get install pgbouncer; "+
		"Fedora: dnf install pgbouncer; Alpine: apk add pgbouncer; macOS: brew install pgbouncer); looked in PATH and %s",
		ErrNotInstalled, strings.Join(dirs, ", "))
}

var lastNumber = regexp.MustCompile(`\d+(\.\d+)?`)

// version is the last number in a directory's name, such as 16 in /usr/pgsql-16/bin; -1 when it has none.
func version(dir string) float64 {
	numbers := lastNumber.FindAllString(dir, -1)
	if len(numbers) == 0 {
		return -1
	}
	v, _ := strconv.ParseFloat(numbers[len(numbers)-1], 64)
	return v
}

func exe(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".exe"
	}
	return name
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && (runtime.GOOS == "windows" || info.Mode()&0o111 != 0)
}
