// Package command runs the command pgleases for tests, as users run it.
package command

import (
	"bytes"
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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// Built is the command's file, after Main has built it.
var Built string

// Main builds the command, and runs the tests of a package for its TestMain.
func Main(m *testing.M) {
	flag.Parse()
	f := flag.Lookup("test.parallel")
	if f.Value.String() == f.DefValue { // they wait most of the time
		_ = flag.Set(f.Name, "16")
	}
	dir, err := os.MkdirTemp("", "pgleases-run-")
	code := 1
	if err == nil {
		Built = filepath.Join(dir, "pgleases")
		// go run keeps what it has linked for the next package, and go build does not.
		build := exec.Command("go", "run", "-exec", "cp", "github.com/pgleases/pgleases/cmd/pgleases", Built)
		var out []byte
		out, err = build.CombinedOutput()
		if err == nil {
			end := pgtest.Keep()
			code = m.Run()
			err = end()
		}
		err = errors.Join(err, os.RemoveAll(dir))
		if len(out) > 0 {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// Database returns the environment for a command that uses a database. On a busy machine a server may
// need longer to answer than the 5 s that the command allows by itself.
func Database(url string) []string {
	return []string{"DATABASE_URL=" + url, fmt.Sprintf("PGCONNECT_TIMEOUT=%.0f", testkit.Patience.Seconds())}
}

// A Command is a running pgleases.
type Command struct {
	*exec.Cmd
	t       testing.TB
	printed buffer
	ended   chan struct{}
	mayEnd  atomic.Bool // the test does not need it any more
}

type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer // not embedded: io.Copy would use its ReadFrom, which does not lock the mutex
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// Run starts pgleases. It is killed, with what it runs, when the test ends. If it ends before that,
// and the test has neither sent it a signal nor asked for its exit code, the waits of the test fail.
func Run(t testing.TB, env []string, args ...string) *Command {
	t.Helper()
	c := &Command{Cmd: exec.Command(Built, args...), t: t, ended: make(chan struct{})}
	c.Env = append(os.Environ(), env...)
	c.SysProcAttr = ownSession()
	r, w, err := os.Pipe() // of our own, because Wait then does not wait for other processes that have it
	testkit.OK(t, err)
	c.Stdout, c.Stderr = w, w
	testkit.OK(t, c.Start())
	w.Close()
	go func() {
		_, _ = io.Copy(&c.printed, r)
		r.Close()
		_ = c.Wait()
		close(c.ended)
	}()
	testkit.Need(t, c.failure)
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGKILL)
		c.ExitCode()
		if t.Failed() {
			t.Logf("pgleases %s:\n%s", strings.Join(args, " "), c.Printed())
		}
	})
	return c
}

// Printed returns the command's output so far.
func (c *Command) Printed() string {
	c.printed.mu.Lock()
	defer c.printed.mu.Unlock()
	return c.printed.text.String()
}

// MayEnd says that the command may end from now on, without a signal of the test.
func (c *Command) MayEnd() { c.mayEnd.Store(true) }

// failure returns how the command ended, if it has ended and may not.
func (c *Command) failure() error {
	select {
	case <-c.ended:
	default:
		return nil
	}
	if c.mayEnd.Load() {
		return nil
	}
	return fmt.Errorf("pgleases %s has ended with exit code %d: %s",
		strings.Join(c.Args[1:], " "), c.ProcessState.ExitCode(), c.Printed())
}

// ExitCode waits for the end of the command, and of all processes with its output, and returns its
// exit code; -1 after a signal.
func (c *Command) ExitCode() int {
	c.t.Helper()
	c.MayEnd()
	select {
	case <-c.ended:
	case <-time.After(testkit.Patience):
		c.t.Errorf("pgleases does not end: %s", c.Printed())
		return -2
	}
	return c.ProcessState.ExitCode()
}

// Signal sends a signal to it.
func (c *Command) Signal(sig syscall.Signal) {
	c.t.Helper()
	c.MayEnd()
	testkit.OK(c.t, c.Process.Signal(sig))
}

// A Proxy is a connection to the database that can be cut.
type Proxy struct {
	URL      string
	upstream string
	listener net.Listener

	mu     sync.Mutex // guards the rest
	conns  map[net.Conn]bool
	away   bool // no connection succeeds
	frozen bool // bytes are lost without an error
}

// NewProxy returns a proxy before a database, which ends with the test.
func NewProxy(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	u := testkit.Must(url.Parse(databaseURL))(t)
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := &Proxy{upstream: u.Host, conns: make(map[net.Conn]bool), listener: listener}
	u.Host = p.listener.Addr().String()
	p.URL = u.String()
	go p.serve()
	t.Cleanup(func() {
		p.listener.Close()
		p.Set(true, false)
	})
	return p
}

func (p *Proxy) serve() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.upstream)
			if err != nil || !p.keep(conn, server) {
				return
			}
			go p.copy(conn, server)
			p.copy(server, conn)
		}()
	}
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		if p.away {
			conn.Close()
			continue
		}
		p.conns[conn] = true
	}
	return !p.away
}

func (p *Proxy) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if frozen {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Set makes the database unreachable, or freezes the connections. All connections break, unless
// they are to be frozen.
func (p *Proxy) Set(away, frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away, p.frozen = away, frozen
	if !frozen {
		for conn := range p.conns {
			conn.Close()
		}
		clear(p.conns)
	}
}
