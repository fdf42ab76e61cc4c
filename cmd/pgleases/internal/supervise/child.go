//go:build unix

package supervise

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pgleases/pgleases"
)

// A supervisor starts keepers, one for each program that runs, and sends them the time until which
// their partition is owned.
type supervisor struct {
	runner *runner
	hurry  chan struct{} // closed: kill at once

	mu    sync.Mutex   // held while a process is started and while orphans are killed: it guards known
	known map[int]bool // children that are not orphans: keepers, and children of a shell that executed this process
}

func newSupervisor(r *runner) (*supervisor, error) {
	s := &supervisor{runner: r, hurry: make(chan struct{}), known: make(map[int]bool)}
	if err := searchChildren(func(pid int) { s.known[pid] = true }); err != nil {
		return nil, err
	}
	return s, adoptOrphans() // the orphans of a killed keeper
}

// run runs the program for a partition until it ends or must end. It returns its exit code, NotOwned
// if the keeper ended it, or Failed if it cannot be started. No process of the program is left then.
func (s *supervisor) run(ctx context.Context, lease *pgleases.Lease, p pgleases.Partition, log *slog.Logger) int {
	var group string
	if s.runner.Cgroup {
		group = newGroup()
		defer removeGroup(group) // a killed keeper leaves it
	}
	keeper, w, err := s.start(p, group)
	if err != nil {
		log.Error("program cannot be started", slog.Any("error", err))
		return Failed
	}
	defer w.Close()
	s.supervise(ctx, lease, p, keeper, w)
	s.mu.Lock()
	delete(s.known, keeper.Process.Pid)
	s.mu.Unlock()
	s.killOrphans(p.Context(), group)
	if status := keeper.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return NotOwned
	}
	return keeper.ProcessState.ExitCode()
}

// supervise sends a keeper the trust deadline and orders until it has ended. It kills a keeper that
// does not kill in time.
func (s *supervisor) supervise(ctx context.Context, lease *pgleases.Lease, p pgleases.Partition, keeper *exec.Cmd, w *os.File) {
	ended := make(chan struct{})
	go func() {
		_ = keeper.Wait() // its result is in ProcessState
		close(ended)
	}()

	look := time.NewTicker(s.runner.killLead()) // a heartbeat may have extended the trust
	defer look.Stop()
	toEnd, lost, hurry := ctx.Done(), p.Context().Done(), s.hurry
	var trust time.Time                // the deadline that the keeper has
	var late, overdue <-chan time.Time // when a working keeper has killed all processes
	for running := true; running; {
		// The deadline is read before the context: it belongs to another ownership only if this one has
		// ended before.
		if sent, deadline := boottime(), lease.TrustDeadline(); p.Context().Err() == nil && !deadline.IsZero() && deadline != trust {
			trust = deadline
			late = time.After(time.Until(trust) - s.runner.killLead()/2)
			s.send(keeper, w, sent+time.Until(deadline))
		}
		select {
		case <-ended:
			running = false
		case <-look.C:
		case <-toEnd:
			toEnd = nil
			s.send(keeper, w, orderEnd)
			overdue = time.After(s.runner.Grace + s.runner.killLead())
		case <-lost:
			lost = nil
			w.Close() // the order to kill
		case <-hurry:
			hurry = nil
			w.Close()
			overdue = time.After(s.runner.killLead())
		case <-late: // the keeper is stopped, or cannot kill
			s.kill(keeper, ended, p)
		case <-overdue:
			s.kill(keeper, ended, p)
		}
	}
}

// kill kills a keeper that did not kill in time. killOrphans then kills the processes that it
// leaves. If this process was stopped itself, the keeper has ended meanwhile, and that is only about
// to be known.
func (s *supervisor) kill(keeper *exec.Cmd, ended <-chan struct{}, p pgleases.Partition) {
	select {
	case <-ended:
		return
	case <-time.After(s.runner.killLead() / 4):
	}
	_ = keeper.Process.Kill()
	s.runner.Log.Warn("keeper did not kill in time, and was killed", slog.String("lease", s.runner.Lease), slog.Int("partition", p.Number))
}

// start starts the keeper, which starts the program. The keeper reads orders from w. Closing w is
// the order to kill.
func (s *supervisor) start(p pgleases.Partition, group string) (keeper *exec.Cmd, w *os.File, err error) {
	r := s.runner
	self, err := executable()
	if err != nil {
		return nil, nil, err
	}
	orders, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer orders.Close()
	args := []string{KeepVerb, "--grace", r.Grace.String(), "--kill-lead", s.runner.killLead().String(), "--end-lead", r.endLead().String(), "--group", group, "--"}
	cmd := exec.Command(self, append(args, r.Program...)...)
	cmd.Args[0] = "pgleases"
	cmd.Env = append(os.Environ(), "PGLEASES_LEASE="+r.Lease, "PGLEASES_PARTITION="+strconv.Itoa(p.Number),
		"PGLEASES_PARTITIONS="+strconv.Itoa(r.Partitions), "PGLEASES_EPOCH="+strconv.FormatInt(p.Epoch, 10))
	if r.Status != "" {
		cmd.Env = append(cmd.Env, "PGLEASES_STATUS_SOCKET="+r.Status)
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if r.Stdin {
		cmd.Stdin = os.Stdin
	}
	cmd.ExtraFiles = []*os.File{orders}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal does not send it Ctrl-C and Ctrl-Z
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, nil, fmt.Errorf("start the keeper: %w", err)
	}
	s.known[cmd.Process.Pid] = true
	return cmd, w, nil
}

// killOrphans kills the processes that a keeper left, and returns when all are gone. Only a killed
// keeper leaves processes. After owned has ended, another client may have started a successor.
func (s *supervisor) killOrphans(owned context.Context, group string) {
	logged := false
	for again := killAgain; ; again = min(2*again, lookAtLeast) {
		if owned.Err() != nil {
			again = killAgain
		}
		killGroup(group)
		left, err := s.killOrphansOnce()
		switch {
		case err != nil && !logged:
			logged = true
			s.runner.Log.Error("cannot see what is left of the program, so the partition waits", slog.Any("error", err))
		case err == nil && !left:
			return
		}
		time.Sleep(again)
	}
}

func (s *supervisor) killOrphansOnce() (left bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kill := func(pid int) {
		if s.known[pid] {
			return
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // it is a child, so its ID is not reused
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		left = true // even if it is gone now: its children may have become children of this process since the search
	}
	if eachChild(kill); left {
		return left, nil // a search takes long
	}
	return left, searchChildren(kill)
}

// orderEnd is the order to end the program with SIGTERM. Any other order is the deadline, by
// boottime. The end of the pipe is the order to kill.
const orderEnd time.Duration = 0

// send sends the keeper an order, unless it was ordered to kill. It kills a keeper that has not
// read thousands of orders, because that keeper is stopped.
func (s *supervisor) send(keeper *exec.Cmd, w *os.File, order time.Duration) {
	_ = w.SetWriteDeadline(time.Now().Add(s.runner.killLead() / 2))
	if _, err := w.Write(binary.BigEndian.AppendUint64(nil, uint64(order))); err != nil && !errors.Is(err, os.ErrClosed) {
		_ = keeper.Process.Kill() // or it has ended
	}
}
