package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	dataName = "data"
	logName  = "log"

	// startTimeout bounds what waits for a server, besides the caller's ctx.
	startTimeout = time.Minute
	// pollInterval is how often something is looked at that tells nobody when it changes.
	pollInterval = 5 * time.Millisecond
)

// Server is a PostgreSQL server: one whose processes this process started (owned), one in a container, or one that the
// environment points to (foreign). All methods are safe for concurrent use; those that start, stop and signal the server
// wait for each other.
type Server struct {
	url      string
	describe string

	// remove ends a server in a container; nil of others. It may be called more than once. Constant after Start.
	remove func() error

	// Of an owned server; nil and empty for others. Constant after Start.
	folder  *folder
	account *account
	bin     string
	port    int

	mu      sync.Mutex // guards the life of the server: postmaster, stopped
	process *process   // the postmaster; nil while the server is down
	stopped bool
}

// Start provides a server: the foreign one that the environment points to, unless WithPrivate is given; else one of the
// first way that works (see the package's doc), from the machine's programs in about half a second. ctx covers the start
// only, which takes at most a minute, and two more where something is downloaded; the server lives until Stop, or until
// this process ends. The error wraps ErrNotInstalled when there is nothing to start.
func Start(ctx context.Context, opts ...Option) (*Server, error) {
	o := newOptions(opts)
	if connString, variable := environmentURL(); connString != "" && !o.private {
		return useForeign(ctx, connString, variable)
	}
	ways, err := chooseWays(forcedWay(), o.private)
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	return provide(ctx, ways, o, os.Stderr)
}

func useForeign(ctx context.Context, connString, variable string) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &Server{url: connString}
	err := s.maintain(ctx, func(conn *pgx.Conn) error {
		s.describe = fmt.Sprintf("PostgreSQL %s at %s", conn.PgConn().ParameterStatus("server_version"), variable)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pgtest: the server that %s points to: %w; correct %[1]s, or unset it to have a server started", variable, err)
	}
	return s, nil
}

func startOwned(ctx context.Context, bin string, o options) (_ *Server, err error) {
	account, err := unprivileged()
	if err != nil {
		return nil, err
	}
	folder, err := newFolder(account, o.dir, o.settings["fsync"] == "off")
	if err != nil {
		return nil, err
	}
	s := &Server{folder: folder, account: account, bin: bin}
	defer func() {
		if err != nil {
			err = errors.Join(s.withLog(err), s.Stop())
		}
	}()
	if err := s.initialise(ctx, o.settings); err != nil {
		return nil, err
	}
	for range 10 {
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = s.launch(ctx); !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	s.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	return s, nil
}

// URL returns the connection string of a maintenance database, as its superuser in an owned server.
func (s *Server) URL() string { return s.url }

// Describe says in one line which server this is, without any password.
func (s *Server) Describe() string { return s.describe }

// Owned reports whether this process started the server's processes, so that it may be restarted, killed and paused.
func (s *Server) Owned() bool { return s.folder != nil }

// Log returns the last lines of an owned server's log; "" of another one or after Stop.
func (s *Server) Log() string {
	if !s.Owned() {
		return ""
	}
	return s.folder.logTail()
}

// Stop ends an owned server or one in a container, without saving anything, and removes all that it left. It is
// idempotent, takes at most some seconds, whatever state the server is in, and leaves a foreign server alone.
func (s *Server) Stop() error {
	if s.remove != nil {
		return s.remove()
	}
	if !s.Owned() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	s.signalAll(sigResume) // a paused server sees no other signal
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

func (s *Server) program(name string) string { return filepath.Join(s.bin, exe(name)) }

var versionNumber = regexp.MustCompile(`\d+(\.\d+|devel|beta\d+|rc\d+)*`)

// programVersion asks a program for its version.
func programVersion(program string) string {
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		return "of unknown version"
	}
	return versionNumber.FindString(strings.TrimSpace(string(out)))
}
