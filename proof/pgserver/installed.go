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
	"strconv"
	"strings"
)

// NotInstalled is the error that this machine does not have a program.
type NotInstalled struct {
	Program string // as in notes.SkipVariable
	Remedy  string // what to install, and where the program was looked for
	Err     error  // the cause, or nil
}

func (e NotInstalled) Error() string {
	text := fmt.Sprintf("%s is not installed: %s", e.Program, e.Remedy)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e NotInstalled) Unwrap() error { return e.Err }

// Remedies.
const (
	installPostgres = "install it (Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql@17)"
	installBouncer  = "install it (Debian, Ubuntu: apt-get install pgbouncer; macOS: brew install pgbouncer)"
	installCompiler = "install a C compiler (Debian, Ubuntu: apt-get install gcc libc6-dev), or set CC to it"
)

var bouncerDirs = []string{"/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"}

// findBouncer returns the path of the program pgbouncer. It tries path (a list as in PATH), then
// dirs.
func findBouncer(path string, dirs []string) (string, error) {
	for _, dir := range append(filepath.SplitList(path), dirs...) {
		program := filepath.Join(dir, "pgbouncer")
		if isProgram(program) {
			return program, nil
		}
	}
	remedy := installBouncer + "; it was looked for in PATH and " + strings.Join(dirs, ", ")
	return "", NotInstalled{Program: "pgbouncer", Remedy: remedy}
}

// findCompiler returns the C compiler: forced if it is not empty, else cc.
func findCompiler(system, forced string) (string, error) {
	if system != "linux" {
		return "", NotInstalled{Program: "linux", Remedy: "a clock of its own for a server needs it"}
	}
	name := cmp.Or(forced, "cc")
	path, err := exec.LookPath(name)
	if err != nil {
		return "", NotInstalled{Program: "cc", Remedy: installCompiler, Err: err}
	}
	return path, nil
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

var number = regexp.MustCompile(`\d+(\.\d+|devel|beta\d+|rc\d+)*`)

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
		err = listen(port)
		if !errors.Is(err, errPortTaken) {
			return port, err
		}
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 in 100 attempts: %w", err)
}
