//go:build unix

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

// Mode is how a server shuts down.
type Mode string

// The modes of Restart and Down.
const (
	Fast      Mode = "fast"      // ends all sessions and writes a checkpoint
	Immediate Mode = "immediate" // like a crash: the next start recovers from the log
)

// Restart stops the server and starts it again, on the same port and with the same data. ctx bounds
// the wait. If ctx ends first, the server is down.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	return s.locked("restart", func() error {
		if s.process != nil {
			if err := s.shutdown(ctx, mode); err != nil {
				return err
			}
		}
		return s.up(ctx)
	})
}

// Down stops the server, and returns when all of its processes have ended. It has no effect if the
// server is down. ctx bounds the wait.
func (s *Server) Down(ctx context.Context, mode Mode) error {
	return s.locked("take down", func() error {
		if s.process == nil {
			return nil
		}
		return s.shutdown(ctx, mode)
	})
}

// Up starts the server after Down or Kill, or after it ended on its own, on the same port and with
// the same data. It returns when the server accepts connections. It has no effect if the server is
// up. ctx bounds the wait, which is at most a minute.
func (s *Server) Up(ctx context.Context) error {
	return s.locked("start", func() error { return s.up(ctx) })
}

// Kill kills all of the server's processes at once with SIGKILL, and returns when they have ended.
// Up starts the server again.
func (s *Server) Kill() error {
	return s.locked("kill", func() error {
		s.folder.evacuate()
		removeSegment(s.folder.segment())
		// Otherwise the server would not start if another process got the pid in this file.
		err := os.Remove(s.folder.file(dataName + "/postmaster.pid"))
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		if s.process != nil {
			<-s.process.done
			s.process = nil
		}
		return nil
	})
}

// Pause freezes the server: connections stay open, but get no answers. It returns when all of its
// processes got the signal.
func (s *Server) Pause() error {
	return s.locked("pause", func() error {
		// Repeated until a round finds no new process, because the postmaster may be forking.
		for seen := []int(nil); ; {
			pids := s.pids()
			if err := s.signalAll(syscall.SIGSTOP); err != nil {
				return err
			}
			if slices.Equal(pids, seen) {
				return nil
			}
			seen = pids
		}
	})
}

// Resume continues the server after Pause.
func (s *Server) Resume() error {
	return s.locked("resume", func() error { return s.signalAll(syscall.SIGCONT) })
}

// Signal sends a signal to one process of the server. For example, SIGKILL to a backend
// (pg_backend_pid) makes the server restart all backends. It returns an error if the process does
// not belong to this server.
func (s *Server) Signal(pid int, sig syscall.Signal) error {
	return s.locked("signal", func() error {
		if !slices.Contains(s.pids(), pid) {
			return fmt.Errorf("no process of this server: %d", pid)
		}
		return signal(pid, sig)
	})
}

// locked runs fn, which starts, stops or signals the server, while no other such operation runs.
func (s *Server) locked(operation string, fn func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errors.New("it was stopped")
	if !s.stopped {
		err = fn()
	}
	if err != nil {
		return fmt.Errorf("pgserver: %s PostgreSQL: %w", operation, err)
	}
	return nil
}

// shutdown stops the postmaster in the given mode, and waits for its end. s.process must not be
// nil.
func (s *Server) shutdown(ctx context.Context, mode Mode) error {
	sig, known := map[Mode]syscall.Signal{Fast: syscall.SIGINT, Immediate: syscall.SIGQUIT}[mode]
	if !known {
		return fmt.Errorf("no such mode: %q", mode)
	}
	if !s.process.ended() {
		if err := signal(s.process.pid(), sig); err != nil {
			return err
		}
	}
	select {
	case <-s.process.done:
	case <-ctx.Done():
		return fmt.Errorf("the server has not stopped yet: %w", context.Cause(ctx))
	}
	s.folder.evacuate() // if it was killed, its children may live for a moment longer
	s.process = nil
	return nil
}

func (s *Server) up(ctx context.Context) error {
	if s.process != nil {
		if !s.process.ended() {
			return nil
		}
		// The postmaster ended on its own; its children may live for a moment longer.
		s.folder.evacuate()
		s.process = nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	retry := time.NewTicker(20 * pollInterval)
	defer retry.Stop()
	for {
		err := s.launch(ctx)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errPortTaken) {
			return s.withLog(err)
		}
		// The port must stay the same: the program that took it may release it.
		select {
		case <-retry.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d: %w", errPortTaken, s.port, context.Cause(ctx))
		}
	}
}

// signalAll sends a signal to all of the server's processes. The postmaster is first, so that it
// starts no others.
func (s *Server) signalAll(sig syscall.Signal) error {
	var errs []error
	for _, pid := range s.pids() {
		errs = append(errs, signal(pid, sig))
	}
	return errors.Join(errs...)
}

// pids returns the ids of all live processes of the server, the postmaster's first.
func (s *Server) pids() []int {
	pids := s.folder.processes()
	if s.process != nil {
		i := slices.Index(pids, s.process.pid())
		if i > 0 {
			pids = slices.Insert(slices.Delete(pids, i, i+1), 0, s.process.pid())
		}
	}
	return pids
}

// removeSegment removes the shared memory that a killed server left, about 56 bytes. An error does
// not matter.
func removeSegment(id string) {
	if id != "" {
		_ = command("ipcrm", "-m", id).Run()
	}
}
