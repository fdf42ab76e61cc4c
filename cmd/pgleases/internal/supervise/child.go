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

// A supervisor starts keepers, one for each program that runs, and tells them until when their
// partition is owned.
type supervisor struct {
	runner *runner
	lead   time.Duration // before the end of trust all is to be killed
	hurry  chan struct{} // closed: kill, do not wait

	mu    sync.Mutex   // held where a process is started or others are killed, so that each knows which is which
	known map[int]bool // children that are no orphans: keepers, and those that a shell had when it was replaced by this process
}

func newSupervisor(r *runner) (*supervisor, error) {
	s := &supervisor{runner: r, lead: max(r.TTL/20, 100*time.Millisecond), hurry: make(chan struct{}), known: make(map[int]bool)}
	if err := searchChildren(func(pid int) { s.known[pid] = true }); err != nil {
		return nil, err
	}
	return s, adoptOrphans() // those of a keeper that was killed
}

// run runs the program for a partition until it ends or is to end, and returns its exit code, or
// NotOwned where it was made to end. Nothing that came of the program is left then.
func (s *supervisor) run(ctx context.Context, lease *pgleases.Lease, p pgleases.Partition) (int, error) {
	var group string
	if s.runner.Cgroup {
		group = newGroup()
		defer removeGroup(group) // of a keeper that was killed
	}
	keeper, w, err := s.start(p, group)
	if err != nil {
		return 0, err
	}
	defer w.Close()
	s.supervise(ctx, lease, p, keeper, w)
	s.mu.Lock()
	delete(s.known, keeper.Process.Pid)
	s.mu.Unlock()
	s.killOrphans(p.Context(), group)
	if status := keeper.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return NotOwned, nil
	}
	return keeper.ProcessState.ExitCode(), nil
}

// supervise tells a keeper until when it is trusted, and what it is to do, until it has ended. It
// kills a keeper that does not kill in time.
func (s *supervisor) supervise(ctx context.Context, lease *pgleases.Lease, p pgleases.Partition, keeper *exec.Cmd, w *os.File) {
	ended := make(chan struct{})
	go func() {
		_ = keeper.Wait() // what it returns is in ProcessState
		close(ended)
	}()

	look := time.NewTicker(s.lead) // for a heartbeat that prolonged the trust
	defer look.Stop()
	toEnd, lost, hurry := ctx.Done(), p.Context().Done(), s.hurry
	var trust time.Time                // as the keeper knows it
	var late, overdue <-chan time.Time // when the keeper, if it is well, has killed all
	for running := true; running; {
		// The deadline is read before the context: it may be another ownership's only if this one has
		// ended before.
		if sent, deadline := boottime(), lease.TrustDeadline(); p.Context().Err() == nil && !deadline.IsZero() && deadline != trust {
			trust = deadline
			late = time.After(time.Until(trust) - s.lead/2)
			s.tell(keeper, w, sent+time.Until(deadline))
		}
		select {
		case <-ended:
			running = false
		case <-look.C:
		case <-toEnd:
			toEnd = nil
			s.tell(keeper, w, orderEnd)
			overdue = time.After(s.runner.Grace + s.lead)
		case <-lost:
			lost = nil
			w.Close() // the order to kill
		case <-hurry:
			hurry = nil
			w.Close()
			overdue = time.After(s.lead)
		case <-late: // the keeper is stopped, or cannot kill
			late = nil
			s.kill(keeper, p)
		case <-overdue:
			overdue = nil
			s.kill(keeper, p)
		}
	}
}

// kill kills a keeper that did not kill in time. What it leaves is killed then.
func (s *supervisor) kill(keeper *exec.Cmd, p pgleases.Partition) {
	_ = keeper.Process.Kill()
	s.runner.Log.Warn("keeper did not kill in time, and was killed", slog.String("lease", s.runner.Lease), slog.Int("partition", p.Number))
}

// start starts the keeper, which starts the program. It takes orders from w, whose end is the order
// to kill.
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
	args := []string{KeepVerb, "--grace", r.Grace.String(), "--kill-lead", s.lead.String(), "--end-lead", (s.lead + min(r.TTL/10, r.Grace)).String(), "--group", group, "--"}
	cmd := exec.Command(self, append(args, r.Program...)...)
	cmd.Args[0] = "pgleases"
	cmd.Env = append(os.Environ(), "PGLEASES_LEASE="+r.Lease, "PGLEASES_PARTITION="+strconv.Itoa(p.Number),
		"PGLEASES_PARTITIONS="+strconv.Itoa(r.Partitions), "PGLEASES_EPOCH="+strconv.FormatInt(p.Epoch, 10))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if r.Stdin {
		cmd.Stdin = os.Stdin
	}
	cmd.ExtraFiles = []*os.File{orders}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C and Ctrl-Z are not for it
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, nil, fmt.Errorf("start the keeper: %w", err)
	}
	s.known[cmd.Process.Pid] = true
	return cmd, w, nil
}

// killOrphans kills what a keeper left, and returns when nothing of it is there. Where the keeper
// ended in order nothing is. Once owned has ended others may have started a successor.
func (s *supervisor) killOrphans(owned context.Context, group string) {
	told := false
	for again := killAgain; ; again = min(2*again, lookAtLeast) {
		if owned.Err() != nil {
			again = killAgain
		}
		killGroup(group)
		left, err := s.killOrphansOnce()
		switch {
		case err != nil && !told:
			told = true
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
		_ = syscall.Kill(pid, syscall.SIGKILL) // it is a child, so the number is nobody else's
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		left = true // also where it is gone now: its children may have become this process's after they were looked at
	}
	if eachChild(kill); left {
		return left, nil // the search takes long
	}
	return left, searchChildren(kill)
}

// orderEnd has the keeper end the program in order; any other order is the deadline, by boottime.
// The end of the pipe is the order to kill.
const orderEnd time.Duration = 0

// tell gives the keeper an order, unless it has been ordered to kill. One that has not read
// thousands is stopped, and is killed.
func (s *supervisor) tell(keeper *exec.Cmd, w *os.File, order time.Duration) {
	_ = w.SetWriteDeadline(time.Now().Add(s.lead / 2))
	if _, err := w.Write(binary.BigEndian.AppendUint64(nil, uint64(order))); err != nil && !errors.Is(err, os.ErrClosed) {
		_ = keeper.Process.Kill() // or it has ended
	}
}
