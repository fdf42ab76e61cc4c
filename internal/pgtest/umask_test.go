//go:build unix

package pgtest

import (
	"os"
	"syscall"
	"testing"
)

const strictVariable = "PGTEST_STRICT" // makes a tester close its files to other users

func init() {
	if os.Getenv(strictVariable) != "" {
		syscall.Umask(0o077)
	}
}

// If the umask closes files to other users, the user that runs the server opens those of root all the same.
func TestServerStartsWithAStrictUmask(t *testing.T) {
	t.Parallel()
	folder, environ := apart(t)
	p := startTester(t, append(environ, strictVariable+"=1"))
	server := p.server(t)
	p.kill()
	gone(t, folder, server)
}
