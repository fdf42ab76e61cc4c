//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
)

const (
	dataName = "data"
	logName  = "log"

	// startTimeout bounds each wait for a server, in addition to the caller's ctx. On a very busy
	// machine pg_upgrade alone has taken a minute.
	startTimeout = 3 * time.Minute
	// pollInterval is the interval between checks of a state that has no notification.
	pollInterval = 5 * time.Millisecond
)

// Option changes how a server is started.
type Option func(*options)

type options struct {
	dir      string
	settings map[string]string
}

// WithSettings adds server settings (postgresql.conf), or replaces the defaults. The listen
// address, the port and cluster_name cannot be changed.
func WithSettings(settings map[string]string) Option {
	return func(o *options) { maps.Copy(o.settings, settings) }
}

// WithDurable keeps fsync on, and the data on disk rather than in memory, so commits wait for the
// disk.
func WithDurable() Option { return func(o *options) { o.settings["fsync"] = "on" } }

// WithDir sets the parent directory of the server's folder. Any user must be able to enter it.
func WithDir(dir string) Option { return func(o *options) { o.dir = dir } }

// Server is a PostgreSQL server that this process started. All methods are safe for concurrent use.
// Methods that start, stop or signal the server wait for each other.
type Server struct {
	url      string
	describe string
	folder   *folder
	port     int

	mu      sync.Mutex // guards the rest
	bin     string     // the directory of its programs
	process *process   // the postmaster; nil while the server is down
	stopped bool
}

// Start starts a server, in about half a second. ctx bounds only the start, which takes at most a
// minute. The server runs until Stop, or until this process ends. The error is NotInstalled if the
// server programs are not installed.
func Start(ctx context.Context, opts ...Option) (*Server, error) {
	bin, err := pgtest.FindPrograms()
	if err != nil {
		return nil, NotInstalled{Program: "postgresql", Remedy: installPostgres, Err: err}
	}
	return start(ctx, bin, newOptions(opts), initialize)
}

// newOptions returns the options of a new cluster.
func newOptions(opts []Option) options {
	o := options{settings: map[string]string{
		"max_connections": "400",
		"shared_buffers":  "64MB",
		"log_line_prefix": "%m [%p] %d ",
		"log_timezone":    "UTC",
		"timezone":        "UTC",
		// The data need not survive a crash of the machine. A crash of the server alone loses no
		// data with this setting.
		"fsync": "off",
		// A killed server leaves such memory in its folder, not in /dev/shm.
		"dynamic_shared_memory_type": "mmap",
		// A standby reads the log from the time of its copy on, and no slot keeps that log.
		"wal_keep_size": "256MB",
	}}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// A filler fills the data folder of a server that starts, which is empty at first.
type filler func(ctx context.Context, s *Server, data string) error

// start starts a server after its data folder is filled.
func start(ctx context.Context, bin string, o options, fill filler) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &Server{bin: bin}
	s.folder, err = newFolder(o.dir, o.settings["fsync"] != "on")
	if err != nil {
		return nil, fmt.Errorf("pgserver: start PostgreSQL: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("pgserver: start PostgreSQL from %s: %w", bin, errors.Join(s.withLog(err), s.Stop()))
		}
	}()
	data := s.folder.file(dataName)
	if err := errors.Join(os.Mkdir(data, 0o700), s.folder.account.own(data)); err != nil {
		return nil, err
	}
	if err := fill(ctx, s, data); err != nil {
		return nil, err
	}
	if err := appendSettings(filepath.Join(data, "postgresql.conf"), o.settings); err != nil {
		return nil, err
	}
	s.port, err = onFreePort(func(port int) error {
		s.port = port
		return s.launch(ctx)
	})
	if err != nil {
		return nil, err
	}
	s.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	version := programVersion(s.program("postgres"))
	s.describe = fmt.Sprintf("PostgreSQL %s from %s on 127.0.0.1:%d", version, s.bin, s.port)
	return s, nil
}

// URL returns the connection string of the database postgres, as a superuser.
func (s *Server) URL() string { return s.url }

// Bin returns the directory of the server's programs.
func (s *Server) Bin() string { return s.bin }

// Describe returns one line with the version, directory and address of the server.
func (s *Server) Describe() string { return s.describe }

// Log returns the last lines of the server's log; "" after Stop.
func (s *Server) Log() string { return s.folder.logTail() }

// Stop ends the server without saving anything, and removes its files. It is idempotent, and takes
// at most a few seconds in any state of the server.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	_ = s.signalAll(syscall.SIGCONT) // a paused server receives no other signal
	if s.process != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		// An immediate shutdown rather than a kill, because it removes the shared memory. Remaining
		// processes are killed.
		_ = s.shutdown(ctx, Immediate)
	}
	s.folder.evacuate()
	removeSegment(s.folder.segment())
	return s.folder.remove()
}

// withLog appends the end of the server's log to an error.
func (s *Server) withLog(err error) error {
	tail := s.folder.logTail()
	if tail != "" {
		return fmt.Errorf("%w\nthe end of its log:\n%s", err, tail)
	}
	return err
}

func (s *Server) program(name string) string { return filepath.Join(s.bin, name) }

// initialize is a filler that creates a new cluster.
func initialize(ctx context.Context, s *Server, data string) error {
	return s.run(ctx, s.folder.path, "initdb", "--pgdata="+data, "--username=postgres",
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
}

// run runs one of the server's programs to its end, in a directory of the folder.
func (s *Server) run(ctx context.Context, dir, program string, args ...string) error {
	p, err := s.folder.launchIn(dir, syscall.SIGKILL, s.program(program), args...)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		err = p.err
	case <-ctx.Done():
		_ = signal(p.pid(), syscall.SIGKILL)
		<-p.done
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}

func appendSettings(file string, settings map[string]string) error {
	quote := strings.NewReplacer(`\`, `\\`, `'`, `''`)
	text := "\n"
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		text += fmt.Sprintf("%s = '%s'\n", name, quote.Replace(settings[name]))
	}
	conf, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = conf.WriteString(text)
	return errors.Join(err, conf.Close())
}

// launch starts the postmaster on the server's port, and waits until it accepts connections. The
// error is errPortTaken if another program has the port.
func (s *Server) launch(ctx context.Context) error {
	before := len(s.folder.log())
	postmaster, err := s.folder.launch(syscall.SIGQUIT, s.program("postgres"),
		"-D", s.folder.file(dataName),
		"-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=",
		// Begins the titles of its processes: see belongs.
		"-c", "cluster_name="+filepath.Base(s.folder.path),
	)
	if err != nil {
		return err
	}
	err = s.folder.await(ctx, postmaster, func() bool { return s.ready(postmaster) })
	log := s.folder.log()
	taken := len(log) > before && strings.Contains(log[before:], "could not bind")
	if err != nil && taken {
		return errPortTaken
	}
	if err == nil {
		s.process = postmaster
	}
	return err
}

// ready reports whether the postmaster accepts connections. It reads the state from the
// postmaster's file, because a connection might reach another server.
func (s *Server) ready(postmaster *process) bool {
	lines := s.folder.postmasterFile()
	return len(lines) >= 8 && lines[0] == strconv.Itoa(postmaster.pid()) && strings.TrimSpace(lines[7]) == "ready"
}
