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
)

const (
	dataName = "data"
	logName  = "log"

	// startTimeout bounds what waits for a server, besides the caller's ctx.
	startTimeout = time.Minute
	// pollInterval is how often something is looked at that tells nobody when it changes.
	pollInterval = 5 * time.Millisecond
)

// Option changes how a server is started.
type Option func(*options)

type options struct {
	dir      string
	settings map[string]string
}

// WithSettings adds server settings (postgresql.conf) to the defaults, or replaces them. Where the server listens, and its
// cluster_name, cannot be changed.
func WithSettings(settings map[string]string) Option {
	return func(o *options) { maps.Copy(o.settings, settings) }
}

// WithDurable keeps fsync on, and the data on disk rather than in memory: commits then wait for the disk.
func WithDurable() Option { return func(o *options) { o.settings["fsync"] = "on" } }

// WithDir has the server keep everything in that directory, which any user must be able to enter.
func WithDir(dir string) Option { return func(o *options) { o.dir = dir } }

// Server is a PostgreSQL server that this process started. All methods are safe for concurrent use; those that start, stop
// and signal the server wait for each other.
type Server struct {
	url      string
	describe string
	folder   *folder
	port     int

	mu      sync.Mutex // guards the rest
	bin     string     // where its programs are
	process *process   // the postmaster; nil while the server is down
	stopped bool
}

// Start starts a server, in about half a second. ctx covers the start only, which takes at most a minute; the server
// lives until Stop, or until this process ends. The error wraps ErrNotInstalled where there are no programs.
func Start(ctx context.Context, opts ...Option) (*Server, error) {
	bin, err := findPostgres(os.Getenv(EnvPostgresBin), os.Getenv("PATH"), postgresDirs)
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	return start(ctx, bin, newOptions(opts), func(ctx context.Context, s *Server, data string) error { return s.initialize(ctx, data) })
}

// newOptions returns the options of a new cluster.
func newOptions(opts []Option) options {
	o := options{settings: map[string]string{
		"max_connections": "400",
		"shared_buffers":  "64MB",
		"log_line_prefix": "%m [%p] %d ",
		"log_timezone":    "UTC",
		"timezone":        "UTC",
		// Nothing here has to survive a crash of the machine; a crash of the server alone loses nothing by it.
		"fsync": "off",
		// Whatever remains of it is in the folder, not in /dev/shm, when the server was killed.
		"dynamic_shared_memory_type": "mmap",
		// A standby reads what was written since it was copied, and there is no slot that keeps it.
		"wal_keep_size": "256MB",
	}}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// start starts a server whose data folder, empty at first, is filled by fill.
func start(ctx context.Context, bin string, o options, fill func(ctx context.Context, s *Server, data string) error) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &Server{bin: bin}
	if s.folder, err = newFolder(o.dir, o.settings["fsync"] != "on"); err != nil {
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
	if s.port, err = onFreePort(func(port int) error { s.port = port; return s.launch(ctx) }); err != nil {
		return nil, err
	}
	s.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	s.describe = fmt.Sprintf("PostgreSQL %s from %s on 127.0.0.1:%d", programVersion(s.program("postgres")), s.bin, s.port)
	return s, nil
}

// URL returns the connection string of the database postgres, as a superuser.
func (s *Server) URL() string { return s.url }

// Describe says in one line which server this is.
func (s *Server) Describe() string { return s.describe }

// Log returns the last lines of the server's log; "" after Stop.
func (s *Server) Log() string { return s.folder.logTail() }

// Stop ends the server without saving anything, and removes all that it left. It is idempotent, and takes at most some
// seconds, whatever state the server is in.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	_ = s.signalAll(syscall.SIGCONT) // a paused server sees no other signal
	if s.process != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		// An immediate shutdown rather than a kill: it removes the shared memory. What it leaves gets killed.
		_ = s.shutdown(ctx, Immediate)
	}
	s.folder.evacuate()
	removeSegment(s.folder.segment())
	return s.folder.remove()
}

// withLog adds the end of the server's log to an error.
func (s *Server) withLog(err error) error {
	if tail := s.folder.logTail(); tail != "" {
		return fmt.Errorf("%w\nthe end of its log:\n%s", err, tail)
	}
	return err
}

func (s *Server) program(name string) string { return filepath.Join(s.bin, name) }

// initialize makes a new cluster in the data folder.
func (s *Server) initialize(ctx context.Context, data string) error {
	return s.run(ctx, s.folder.path, "initdb", "--pgdata="+data, "--username=postgres",
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
}

// run runs one of the server's programs to its end, in a directory in the folder.
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

// launch starts the postmaster on the server's port and waits until it accepts connections. The error is errPortTaken
// when another program has the port.
func (s *Server) launch(ctx context.Context) error {
	before := len(s.folder.log())
	postmaster, err := s.folder.launch(syscall.SIGQUIT, s.program("postgres"),
		"-D", s.folder.file(dataName),
		"-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=",
		"-c", "cluster_name="+filepath.Base(s.folder.path), // heads the titles of its processes: see belongs
	)
	if err != nil {
		return err
	}
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for !s.ready(postmaster) {
		select {
		case <-poll.C:
		case <-postmaster.done:
			if log := s.folder.log(); len(log) > before && strings.Contains(log[before:], "could not bind") {
				return errPortTaken
			}
			return fmt.Errorf("the server ended before it was ready: %v", postmaster.err)
		case <-ctx.Done():
			s.folder.evacuate()
			<-postmaster.done
			return fmt.Errorf("the server was not ready in time: %w", context.Cause(ctx))
		}
	}
	s.process = postmaster
	return nil
}

// ready reports whether the postmaster accepts connections, by what it tells in its file: an attempt to connect might
// reach another server.
func (s *Server) ready(postmaster *process) bool {
	lines := s.folder.postmasterFile()
	return len(lines) >= 8 && lines[0] == strconv.Itoa(postmaster.pid()) && strings.TrimSpace(lines[7]) == "ready"
}
