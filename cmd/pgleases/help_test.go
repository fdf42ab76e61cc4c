//go:build linux

package main

import (
	"bufio"
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
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/pgleases/pgleases/internal/pgtest"
	"time"

	"github.com/pgleases/pgleases/internal/tests"
)

// built is the command as users have it.
var built string

func TestMain(m *testing.M) {
	if os.Getenv(envDir) != "" {
		program()
		return
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue { // they wait most of the time
		_ = flag.Set(f.Name, "16")
	}
	dir, err := os.MkdirTemp("", "pgleases-run-")
	code := 1
	if err == nil {
		built = filepath.Join(dir, "pgleases")
		var out []byte
		if out, err = exec.Command("go", "build", "-o", built, ".").CombinedOutput(); err == nil {
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

// The program that the tests run under leases is this test's own binary. It writes to a folder what it sees.
const (
	envDir  = "PGLEASES_RUN_TEST_DIR"
	envMode = "PGLEASES_RUN_TEST_MODE"

	modeSlow     = "slow"     // takes slowEnd from SIGTERM to its end
	modeStubborn = "stubborn" // ignores SIGTERM
	modeFamily   = "family"   // ignores SIGTERM, and has an orphan of another session
	modeChain    = "chain"    // the same, and what it left forks a successor each 8 ms, and ends

	slowEnd = 6 * time.Second
)

// program holds an exclusive lock on a file for its partition, which the kernel releases when it, and all who inherited it, are gone. So
// that another one of the partition has it tells exactly that the two ran at once. It also writes when it was alive.
func program() {
	partition := os.Getenv("PGLEASES_PARTITION")
	log, err := os.OpenFile(filepath.Join(os.Getenv(envDir), "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(err)
	write := func(what string) {
		_, err := fmt.Fprintf(log, "%s %d %s %s %d\n", partition, os.Getpid(), os.Getenv("PGLEASES_EPOCH"), what, boottime())
		check(err)
	}
	lock, err := os.OpenFile(lockFile(os.Getenv(envDir), partition), os.O_CREATE|os.O_RDWR, 0o600)
	check(err)
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		write("overlaps")
		os.Exit(1)
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	mode := os.Getenv(envMode)
	if mode == modeFamily || mode == modeChain {
		script := "setsid sleep 1000 &" // the shell ends, so the sleep is an orphan
		if mode == modeChain {
			script += " setsid sh -c 'next() { sleep 0.008; next & }; next' &"
		}
		shell := exec.Command("sh", "-c", script)
		shell.ExtraFiles = []*os.File{lock}
		check(shell.Run())
	}
	write("begins")
	alive := time.NewTicker(10 * time.Millisecond)
	var end <-chan time.Time
	for {
		select {
		case <-alive.C:
			write("lives")
		case <-terminated:
			write("terminated")
			switch mode {
			case modeSlow:
				end = time.After(slowEnd)
			case modeStubborn, modeFamily, modeChain:
			default:
				write("ends")
				return
			}
		case <-end:
			write("ends")
			return
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "program:", err)
		os.Exit(99)
	}
}

func lockFile(dir, partition string) string { return filepath.Join(dir, "lock-"+partition) }

// A record is a line of the programs' log.
type record struct {
	partition, pid int
	epoch          int64
	what           string
	at             time.Duration // boottime
}

// records returns what the programs wrote.
func records(t *testing.T, dir string) (all []record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text[:bytes.LastIndexByte(text, '\n')+1]))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 5 {
			t.Fatalf("%q is no record", lines.Text())
		}
		number := func(i int) int64 {
			n, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			return n
		}
		all = append(all, record{int(number(0)), int(number(1)), number(2), fields[3], time.Duration(number(4))})
	}
	return all
}

// awaitRecord waits for a record after that time, and returns it.
func awaitRecord(t *testing.T, dir string, after time.Duration, what string, of func(record) bool) (found record) {
	t.Helper()
	tests.Until(t, what, func() bool {
		for _, r := range records(t, dir) {
			if r.at > after && r.what == what && (of == nil || of(r)) {
				found = r
				return true
			}
		}
		return false
	})
	return found
}

// isFree reports whether nothing is left of the program of a partition.
func isFree(t *testing.T, dir string, partition int) bool {
	t.Helper()
	lock := tests.Must(os.OpenFile(lockFile(dir, strconv.Itoa(partition)), os.O_RDWR, 0))(t)
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// A command is a pgleases that runs.
type command struct {
	*exec.Cmd
	t      *testing.T
	output *buffer
	ended  chan struct{}
}

type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer // not embedded: its ReadFrom, which io.Copy would find, knows no mutex
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// run starts pgleases. It is killed, with what it runs, when the test ends.
func run(t *testing.T, env []string, args ...string) *command {
	t.Helper()
	c := &command{Cmd: exec.Command(built, args...), t: t, output: new(buffer), ended: make(chan struct{})}
	c.Env = append(os.Environ(), env...)
	r, w, err := os.Pipe() // of our own: Wait waits not for others who have it
	tests.OK(t, err)
	c.Stdout, c.Stderr = w, w
	tests.OK(t, c.Start())
	w.Close()
	go func() {
		_, _ = io.Copy(c.output, r)
		r.Close()
		_ = c.Wait()
		close(c.ended)
	}()
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGKILL)
		c.wait()
		if t.Failed() {
			t.Logf("pgleases %s:\n%s", strings.Join(args, " "), c.output.String())
		}
	})
	return c
}

// runProgram starts pgleases with this test's program.
func runProgram(t *testing.T, dir, mode string, env []string, args ...string) *command {
	t.Helper()
	env = append([]string{envDir + "=" + dir, envMode + "=" + mode}, env...)
	return run(t, env, append(append([]string{"run"}, args...), "--", os.Args[0])...)
}

// wait waits for its end, and of all that has its output, and returns its exit code, -1 after a signal.
func (c *command) wait() int {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(tests.Patience):
		c.t.Errorf("pgleases does not end: %s", c.output.String())
		return -2
	}
	return c.ProcessState.ExitCode()
}

func (c *command) signal(sig syscall.Signal) {
	c.t.Helper()
	tests.OK(c.t, c.Process.Signal(sig))
}

// childrenOf returns the living children of a process: of those that the kernel lists, or of all if it has no list.
func childrenOf(pid int) (children []int) {
	var names []string
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		names = append(names, strings.Fields(string(text))...)
	}
	if len(lists) == 0 {
		names, _ = filepath.Glob("/proc/[0-9]*")
	}
	for _, name := range names {
		child, _ := strconv.Atoi(filepath.Base(name))
		if parentOf(child) == pid {
			children = append(children, child)
		}
	}
	return children
}

// parentOf returns the parent of a living process, 0 where it is not alive.
func parentOf(pid int) (parent int) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if fields[0] != "Z" {
		parent, _ = strconv.Atoi(fields[1])
	}
	return parent
}

// A proxy is a way to the database that can be cut.
type proxy struct {
	url, upstream string
	listener      net.Listener

	mu     sync.Mutex // guards the rest
	conns  map[net.Conn]bool
	away   bool // nobody gets through
	frozen bool // bytes are lost, and nobody is told
}

func newProxy(t *testing.T, databaseURL string) *proxy {
	t.Helper()
	u := tests.Must(url.Parse(databaseURL))(t)
	p := &proxy{upstream: u.Host, conns: make(map[net.Conn]bool), listener: tests.Must(net.Listen("tcp", "127.0.0.1:0"))(t)}
	u.Host = p.listener.Addr().String()
	p.url = u.String()
	go p.serve()
	t.Cleanup(func() {
		p.listener.Close()
		p.set(true, false)
	})
	return p
}

func (p *proxy) serve() {
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

func (p *proxy) keep(conns ...net.Conn) bool {
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

func (p *proxy) copy(to, from net.Conn) {
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

// set makes the database be away, or the connections frozen. All connections break, unless they are to be frozen.
func (p *proxy) set(away, frozen bool) {
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

// lateness measures how late this process is woken, in sum, until the function that it returns is called. Wakes that are late by less
// than 2 ms do not count. A deadline is asserted only beyond that.
func lateness() func() time.Duration {
	const step, usual = 10 * time.Millisecond, 2 * time.Millisecond
	stop, sum := make(chan struct{}), make(chan time.Duration)
	go func() {
		var late time.Duration
		for {
			began := time.Now()
			select {
			case <-time.After(step):
				if l := time.Since(began) - step; l > usual {
					late += l
				}
			case <-stop:
				sum <- late
				return
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-sum
	}
}
