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

// ErrNotInstalled means that this machine does not have a program. Errors that wrap it say where
// the program was looked for, and what to install.
var ErrNotInstalled = errors.New("not installed")

var (
	// postgresDirs are the directories where distributions install the server programs, often not
	// on PATH.
	postgresDirs = []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/pgsql-*/bin",          // PGDG's RPMs
		"/usr/libexec/postgresql*",  // Alpine
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
	}
	bouncerDirs = []string{"/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"}
)

// findPostgres returns the directory that has postgres and initdb. If forced is not empty, it tries
// only forced. Otherwise it tries the directories of path (a list as in PATH), and then the matches
// of globs, in descending order of version for each glob.
func findPostgres(forced, path string, globs []string) (string, error) {
	dirs := []string{forced}
	if forced == "" {
		dirs = filepath.SplitList(path)
		for _, glob := range globs {
			found, _ := filepath.Glob(glob) // an error means a malformed pattern
			slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
			dirs = append(dirs, found...)
		}
	}
	for _, dir := range dirs {
		// A directory on PATH often has only a symlink to postgres. The other programs are beside
		// the symlink's target.
		postgres, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err == nil && isProgram(postgres) && isProgram(filepath.Join(filepath.Dir(postgres), "initdb")) {
			return filepath.Dir(postgres), nil
		}
	}
	if forced != "" {
		return "", fmt.Errorf("PostgreSQL server programs %w: %s=%s has no postgres and initdb; correct it, or unset it to search PATH and the usual directories", ErrNotInstalled, EnvPostgresBin, forced)
	}
	return "", fmt.Errorf("PostgreSQL server programs %w: install them (Debian, Ubuntu: apt-get install postgresql; "+
		"macOS: brew install postgresql@17), or set %s to their directory; looked in PATH and %s",
		ErrNotInstalled, EnvPostgresBin, strings.Join(globs, ", "))
}

// findBouncer returns the path of the program pgbouncer. It tries path (a list as in PATH), then
// dirs.
func findBouncer(path string, dirs []string) (string, error) {
	for _, dir := range append(filepath.SplitList(path), dirs...) {
		if program := filepath.Join(dir, "pgbouncer"); isProgram(program) {
			return program, nil
		}
	}
	return "", fmt.Errorf("PgBouncer %w: install it (Debian, Ubuntu: apt-get install pgbouncer; macOS: brew install pgbouncer); "+
		"looked in PATH and %s", ErrNotInstalled, strings.Join(dirs, ", "))
}

// findCompiler returns the C compiler: forced if it is not empty, else cc.
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

// version returns the last number in a directory's name, for example 16 for /usr/pgsql-16/bin; -1
// without a number.
func version(dir string) float64 {
	numbers := number.FindAllString(dir, -1)
	if len(numbers) == 0 {
		return -1
	}
	v, _ := strconv.ParseFloat(numbers[len(numbers)-1], 64)
	return v
}

// programVersion returns a program's version.
func programVersion(program string) string {
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		return "of unknown version"
	}
	return number.FindString(string(out))
}

// errPortTaken means that another program took the port after it was found free, before the server
// started.
var errPortTaken = errors.New("port taken")

// onFreePort calls listen with a port of 127.0.0.1 that was free a moment ago, and returns the
// port. The port is below the range for outgoing connections: such a connection could take the port
// while a server restarts on it.
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
