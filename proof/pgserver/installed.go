//go:build unix

package pgserver

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrNotInstalled is returned, wrapped with where it looked and what to install, by everything that needs a program
// which this machine does not have.
var ErrNotInstalled = errors.New("not installed")

var (
	// postgresDirs is where distributions put the server programs, which are often not on PATH.
	postgresDirs = []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/pgsql-*/bin",          // PGDG's RPMs
		"/usr/libexec/postgresql*",  // Alpine
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
	}
	bouncerDirs = []string{"/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"}
)

// findPostgres returns the directory that holds postgres and initdb. forced, if not empty, is the only one it tries;
// else it tries those of path (a list as in PATH), then globs, the newest version of each first.
func findPostgres(forced, path string, globs []string) (string, error) {
	dirs := []string{forced}
	if forced == "" {
		dirs = filepath.SplitList(path)
		for _, glob := range globs {
			found, _ := filepath.Glob(glob) // errs only on a malformed pattern
			slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
			dirs = append(dirs, found...)
		}
	}
	for _, dir := range dirs {
		// A directory on PATH often has a symlink to postgres alone; where that leads, the rest stands beside it.
		postgres, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err == nil && isProgram(postgres) && isProgram(filepath.Join(filepath.Dir(postgres), "initdb")) {
			return filepath.Dir(postgres), nil
		}
	}
	if forced != "" {
		return "", fmt.Errorf("PostgreSQL server programs %w: %s=%s has no postgres and initdb; correct it, or unset it to have them looked for", ErrNotInstalled, EnvPostgresBin, forced)
	}
	return "", fmt.Errorf("PostgreSQL server programs %w: install them (Debian, Ubuntu: apt-get install postgresql; "+
		"macOS: brew install postgresql@17), or set %s to their directory; looked in PATH and %s",
		ErrNotInstalled, EnvPostgresBin, strings.Join(globs, ", "))
}

// findBouncer returns the path of the program pgbouncer, looked for in path (a list as in PATH), then in dirs.
func findBouncer(path string, dirs []string) (string, error) {
	for _, dir := range append(filepath.SplitList(path), dirs...) {
		if program := filepath.Join(dir, "pgbouncer"); isProgram(program) {
			return program, nil
		}
	}
	return "", fmt.Errorf("PgBouncer %w: install it (Debian, Ubuntu: apt-get install pgbouncer; macOS: brew install pgbouncer); "+
		"looked in PATH and %s", ErrNotInstalled, strings.Join(dirs, ", "))
}

// findCompiler returns the C compiler: cc, or forced, if not empty.
func findCompiler(system, forced string) (string, error) {
	if system != "linux" {
		return "", fmt.Errorf("a clock of its own for a server %w: it needs Linux", ErrNotInstalled)
	}
	name := cmp.Or(forced, "cc")
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("the C compiler %s %w: install it (Debian, Ubuntu: apt-get install gcc libc6-dev), or set CC to it", name, ErrNotInstalled)
	}
	return path, nil
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

var number = regexp.MustCompile(`\d+(\.\d+|devel|beta\d+|rc\d+)*`)

// version is the last number in a directory's name, such as 16 in /usr/pgsql-16/bin; -1 when it has none.
func version(dir string) float64 {
	numbers := number.FindAllString(dir, -1)
	if len(numbers) == 0 {
		return -1
	}
	v, _ := strconv.ParseFloat(numbers[len(numbers)-1], 64)
	return v
}

// programVersion asks a program for its version.
func programVersion(program string) string {
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		return "of unknown version"
	}
	return number.FindString(string(out))
}

// errPortTaken says that another program took the port between the time it was found free and the server's start.
var errPortTaken = errors.New("port taken")

// onFreePort has something listen on a port of 127.0.0.1 that was free a moment ago, and returns that. It lies below the range
// from which systems take the ports of outgoing connections: such a connection could get the port while a server restarts on it.
func onFreePort(listen func(port int) error) (int, error) {
	err := errPortTaken
	for range 100 {
		port := 20000 + rand.IntN(12000)
		l, taken := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if taken != nil {
			continue
		}
		l.Close()
		if err = listen(port); !errors.Is(err, errPortTaken) {
			return port, err
		}
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 in 100 attempts: %w", err)
}
