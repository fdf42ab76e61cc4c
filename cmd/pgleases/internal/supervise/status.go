//go:build unix && !aix

package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgleases/pgleases"
)

// readers is the number of connections that are served at a time. Each takes a file, and programs
// and the connection to the database need some too.
const readers = 64

// A status is a Unix socket that shows by HTTP what this process owns: GET / returns a State, GET
// /changes a line with a State at once and after each change.
type status struct {
	listener net.Listener
	path     string
	file     os.FileInfo
	server   http.Server
}

// A State is what the status socket shows. Epochs are text, because they have up to 63 bits.
type State struct {
	Lease      string      `json:"lease"`
	Client     string      `json:"client"`
	TrustMS    int64       `json:"trust_ms"` // until the trust deadline; 0: nothing is owned
	Partitions []Partition `json:"partitions"`
}

// A Partition is a partition that this process owns and does not hand over.
type Partition struct {
	Number int   `json:"partition"`
	Epoch  int64 `json:"epoch,string"`
}

// newStatus creates the socket, which only this user may open. It replaces the socket of a process
// that has ended. Requests wait until serve is called.
func newStatus(path string) (_ *status, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("--status-socket %s: %w", path, err)
		}
	}()
	// Two processes that start must not both find the socket of a third, and replace each other's.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close() // unlocks
	if err := lock(dir); err != nil {
		return nil, err
	}
	if err := removeUnserved(path); err != nil {
		return nil, err
	}
	defer unix.Umask(unix.Umask(0o177)) // no other user can open it in between
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EINVAL) {
		err = fmt.Errorf("%w: is the path longer than 100 bytes?", err)
	}
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // another process may have replaced it: see close
	file, err := os.Lstat(path)
	return &status{listener: &limited{l, make(chan struct{}, readers)}, path: path, file: file}, err
}

// lock waits at most 5 s for the lock of a directory: every process that may read the directory may
// hold it.
func lock(dir *os.File) error {
	late := time.Now().Add(5 * time.Second)
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		passes := errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.EWOULDBLOCK)
		if !passes || time.Now().After(late) {
			return fmt.Errorf("lock its directory: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// removeUnserved removes the socket of a process that has ended.
func removeUnserved(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil: // it does not exist, or the call that creates it returns the cause
		return nil
	case info.Mode().Type() != os.ModeSocket:
		return errors.New("the file exists, and is no socket: give another path")
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		conn.Close()
		return errors.New("another process serves it: give each process a path of its own")
	case !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist):
		return err
	}
	err = os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// serve answers requests.
func (s *status) serve(client *pgleases.Client, lease *pgleases.Lease) {
	if s == nil {
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(stateOf(client, lease)) // the reader has gone
	})
	mux.HandleFunc("GET /changes", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines, flush := json.NewEncoder(w), http.NewResponseController(w)
		for {
			changed := lease.Changed()
			if errors.Join(lines.Encode(stateOf(client, lease)), flush.Flush()) != nil || lease.Err() != nil {
				return
			}
			select {
			case <-changed:
			case <-r.Context().Done():
				return
			}
		}
	})
	s.server.Handler = mux
	s.server.ReadHeaderTimeout, s.server.IdleTimeout = 10*time.Second, 10*time.Second
	go func() { _ = s.server.Serve(s.listener) }() // until close
}

// close removes the socket, and ends the requests.
func (s *status) close() {
	file, err := os.Lstat(s.path)
	if err == nil && os.SameFile(file, s.file) {
		_ = os.Remove(s.path)
	}
	_ = s.listener.Close()
	_ = s.server.Close()
}

// stateOf reads the partitions one by one with Partition: after Values, a handoff would wait for
// readers. It reads again if they changed meanwhile.
func stateOf(client *pgleases.Client, lease *pgleases.Lease) State {
	for {
		changed := lease.Changed()
		s := State{Lease: lease.Name(), Client: client.ID(), Partitions: []Partition{}}
		for n := range lease.NumPartitions() {
			if p, owned := lease.Partition(n); owned {
				s.Partitions = append(s.Partitions, Partition{p.Number, p.Epoch})
			}
		}
		if len(s.Partitions) > 0 {
			s.TrustMS = max(0, time.Until(lease.TrustDeadline()).Milliseconds())
		}
		select {
		case <-changed:
			if lease.Err() == nil { // afterwards the channel stays closed
				continue
			}
		default:
		}
		return s
	}
}

// A limited listener accepts a connection when fewer than readers are open.
type limited struct {
	net.Listener
	open chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	l.open <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.open
		return nil, err
	}
	return &limitedConn{conn.(*net.UnixConn), sync.OnceFunc(func() { <-l.open })}, nil
}

type limitedConn struct {
	*net.UnixConn
	closed func()
}

func (c *limitedConn) Close() error {
	defer c.closed()
	return c.UnixConn.Close()
}
