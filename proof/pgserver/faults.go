package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// ErrNotOwned is returned by what only works on a server that this process started and has not stopped yet.
var ErrNotOwned = errors.New("pgtest: not an own, running server")

// Mode is how a server is taken down.
type Mode string

// The modes of Down and Restart.
const (
	Fast      Mode = "fast"      // ends all sessions and writes a checkpoint
	Immediate Mode = "immediate" // as in a crash: the next start recovers from the log
)

// Restart takes the server down and up again, on the same port and with the same data. See Down and Up.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	return s.locked("restart", func() error {
		if err := s.down(ctx, mode); err != nil {
			return err
		}
		return s.up(ctx)
	})
}

// Down takes the server down and returns when all of its processes are gone. Does nothing when it is down. ctx covers
// the wait; when that ends first the server goes down nevertheless, and Down may be called again.
func (s *Server) Down(ctx context.Context, mode Mode) error {
	return s.locked("take down", func() error { return s.down(ctx, mode) })
}

// Up starts the server again after Down or Kill, on the same port and with the same data, and returns when it accepts
// connections. Does nothing when it is up. ctx covers the wait, which is at most a minute; when it ends first the
// server is down.
func (s *Server) Up(ctx context.Context) error {
	return s.locked("start", func() error { return s.up(ctx) })
}

// Kill kills all of the server's processes at once, with SIGKILL, and returns when they are gone. Up starts it again.
func (s *Server) Kill() error {
	return s.locked("kill", func() error {
		s.folder.evacuate()
		removeSegment(s.folder.segment())
		// The file would name the pid that is gone, which another process may get: then the server would not start.
		if err := os.Remove(s.folder.file(dataName + "/postmaster.pid")); err != nil && !os.IsNotExist(err) {
			return err
		}
		if s.process != nil {
			<-s.process.done
			s.process = nil
		}
		return nil
	})
}

// Pause freezes the server: connections stay open, nothing answers. It returns when all of its processes got the
// signal. Not on Windows.
func (s *Server) Pause() error {
	return s.locked("pause", func() error {
		// Until there is none that the round before did not see: the postmaster was just forking.
		for seen := []int(nil); ; {
			pids := s.pids()
			if err := s.signalAll(sigPause); err != nil {
				return err
			}
			if slices.Equal(pids, seen) {
				return nil
			}
			seen = pids
		}
	})
}

// Resume ends Pause.
func (s *Server) Resume() error {
	return s.locked("resume", func() error { return s.signalAll(sigResume) })
}

// Signal sends a signal to one process of the server, such as SIGKILL to a backend (pg_backend_pid), which makes the
// server restart all others. An error when the process is not one of this server's.
func (s *Server) Signal(pid int, sig syscall.Signal) error {
	return s.locked("signal", func() error {
		if !slices.Contains(s.pids(), pid) {
			return fmt.Errorf("no process of this server: %d", pid)
		}
		return signal(pid, sig)
	})
}

// Pids returns the ids of all living processes of an owned server, the postmaster's first; none of a foreign one.
func (s *Server) Pids() []int {
	var pids []int
	_ = s.locked("list", func() error { pids = s.pids(); return nil })
	return pids
}

// locked runs fn, which changes the life of an own server, while nobody else does.
func (s *Server) locked(operation string, fn func() error) error {
	if !s.Owned() {
		return fmt.Errorf("%w: cannot %s %s", ErrNotOwned, operation, s.describe)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("%w: cannot %s a stopped server", ErrNotOwned, operation)
	}
	if err := fn(); err != nil {
		return fmt.Errorf("pgtest: %s PostgreSQL: %w", operation, err)
	}
	return nil
}

func (s *Server) down(ctx context.Context, mode Mode) error {
	if mode != Fast && mode != Immediate {
		return fmt.Errorf("no such mode: %q", mode)
	}
	if s.process == nil {
		return nil
	}
	return s.shutdown(ctx, mode)
}

func (s *Server) up(ctx context.Context) error {
	if s.process != nil {
		if !s.process.ended() {
			return nil
		}
		s.folder.evacuate() // the postmaster ended by itself; its children may live on for a moment
		s.process = nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	retry := time.NewTicker(20 * pollInterval)
	defer retry.Stop()
	for {
		err := s.launch(ctx)
		if !errors.Is(err, errPortTaken) {
			if err != nil {
				err = s.withLog(err)
			}
			return err
		}
		// The port has to stay the same: whoever took it meanwhile may give it back.
		select {
		case <-retry.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d: %w", errPortTaken, s.port, context.Cause(ctx))
		}
	}
}
