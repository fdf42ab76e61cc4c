//go:build unix && !aix

package supervise

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgleases/pgleases"
)

// signalName returns a name such as SIGTERM.
func signalName(sig syscall.Signal) string { return unix.SignalName(sig) }

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

// A kept program is a keeper, and what connects it with the supervisor.
type kept struct {
	keeper  *exec.Cmd
	orders  *os.File      // closed: the order to kill
	ended   chan struct{} // closed when the keeper has ended
	left    chan string   // processes that it could not kill
	reports map[string]string
}

// run runs the program for a partition until it ends or must end. It returns the program's exit
// code, NotOwned if the keeper ended it, or Failed if no keeper can be started. The error says
// that another start would fail too. No process of the program is left then.
func (s *supervisor) run(
	ctx context.Context, lease *pgleases.Lease, p pgleases.Partition, log *slog.Logger,
) (int, error) {
	var group string
	if s.runner.Cgroup {
		group = newGroup()
		defer removeGroup(group) // a killed keeper leaves it
	}
	k, err := s.start(p, group)
	if err != nil && !passes(err) {
		return Failed, Exit{Failed, err}
	}
	if err != nil {
		log.Error("program cannot be started", slog.Any("error", err))
		return Failed, nil
	}
	defer k.orders.Close()
	defer s.runner.canKill(p.Number)
	s.supervise(ctx, lease, p, k)
	s.mu.Lock()
	delete(s.known, k.keeper.Process.Pid)
	s.mu.Unlock()
	_, gone := k.reports[reportGone]
	text, failed := k.reports[reportFailed]
	busy, isBusy := k.reports[reportBusy]
	if isBusy {
		log.Error("program cannot be started", slog.String("error", busy))
	}
	if !gone { // the keeper was killed
		s.killOrphans(p.Context(), group, func() { s.runner.cannotKill(p.Number, named(s.orphans())) })
	}
	code := k.keeper.ProcessState.ExitCode()
	status := k.keeper.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		code = NotOwned
	}
	if failed {
		return code, Exit{code, errors.New(text)}
	}
	return code, nil
}

// supervise sends a keeper the trust deadline and orders until it has ended. It kills a keeper
// that does not kill in time.
func (s *supervisor) supervise(ctx context.Context, lease *pgleases.Lease, p pgleases.Partition, k *kept) {
	look := time.NewTicker(s.runner.killLead()) // a heartbeat may have extended the trust
	defer look.Stop()
	toEnd, lost := ctx.Done(), p.Context().Done()
	hurry := s.hurry
	var trust time.Time                // the deadline that the keeper has
	var late, overdue <-chan time.Time // when a working keeper has killed all processes
	for running := true; running; {
		// The deadline is read before the context: it belongs to another ownership only if this one has
		// ended before.
		read, deadline := boottime(), lease.TrustDeadline()
		owned := p.Context().Err() == nil && !deadline.IsZero()
		if owned && deadline != trust {
			trust = deadline
			late = time.After(time.Until(trust) - s.runner.killLead()/2)
			s.send(k, read+time.Until(deadline))
		}
		select {
		case <-k.ended:
			running = false
		case <-look.C:
		case left := <-k.left:
			s.runner.cannotKill(p.Number, left)
			if toEnd == nil { // the grace is for processes that were not killed yet
				overdue = time.After(s.runner.killLead())
			}
		case <-toEnd:
			toEnd = nil
			s.send(k, orderEnd)
			overdue = time.After(s.runner.Grace + s.runner.killLead())
		case <-lost:
			lost = nil
			k.orders.Close() // the order to kill
		case <-hurry:
			hurry = nil
			k.orders.Close()
			overdue = time.After(s.runner.killLead())
		case <-late: // the keeper is stopped, or cannot kill
			s.kill(k, p)
		case <-overdue:
			s.kill(k, p)
		}
	}
}

// kill kills a keeper that did not kill in time. killOrphans then kills the processes that it
// leaves. If this process was stopped itself, the keeper has ended meanwhile, and that is only
// about to be known.
func (s *supervisor) kill(k *kept, p pgleases.Partition) {
	select {
	case <-k.ended:
		return
	case <-time.After(s.runner.killLead() / 4):
	}
	_ = k.keeper.Process.Kill()
	s.runner.Log.Warn("keeper did not kill in time, and was killed",
		slog.String("lease", s.runner.Lease), slog.Int("partition", p.Number))
}

// start starts the keeper, which starts the program.
func (s *supervisor) start(p pgleases.Partition, group string) (*kept, error) {
	r := s.runner
	self, err := executable()
	if err != nil {
		return nil, err
	}
	orders, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer orders.Close()
	reports, out, err := os.Pipe()
	if err != nil {
		w.Close()
		return nil, err
	}
	defer out.Close()
	args := []string{
		KeepVerb,
		"--grace", r.Grace.String(),
		"--kill-lead", r.killLead().String(),
		"--end-lead", r.endLead().String(),
		"--group", group,
		"--",
	}
	cmd := exec.Command(self, append(args, r.Program...)...)
	cmd.Args[0] = "pgleases"
	cmd.Env = r.environment(p)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if r.Stdin {
		cmd.Stdin = os.Stdin
	}
	cmd.ExtraFiles = []*os.File{orders, out}
	cmd.SysProcAttr = keeperAttributes()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		w.Close()
		reports.Close()
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	s.known[cmd.Process.Pid] = true
	k := &kept{
		keeper:  cmd,
		orders:  w,
		ended:   make(chan struct{}),
		left:    make(chan string, 1),
		reports: make(map[string]string),
	}
	go k.await(reports)
	return k, nil
}

// environment returns the environment of the program. The status socket of another run, of which
// this command is the program, is not its own.
func (c Config) environment(p pgleases.Partition) []string {
	env := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "PGLEASES_STATUS_SOCKET=")
	})
	env = append(env,
		"PGLEASES_LEASE="+c.Lease,
		"PGLEASES_PARTITION="+strconv.Itoa(p.Number),
		"PGLEASES_PARTITIONS="+strconv.Itoa(c.Partitions),
		"PGLEASES_EPOCH="+strconv.FormatInt(p.Epoch, 10))
	if c.Status != "" {
		env = append(env, "PGLEASES_STATUS_SOCKET="+c.Status)
	}
	return env
}

// await reads the reports until the keeper has ended.
func (k *kept) await(reports *os.File) {
	defer close(k.ended)
	defer reports.Close()
	decoder := json.NewDecoder(reports)
	for {
		var r report
		if err := decoder.Decode(&r); err != nil {
			break // the keeper has ended
		}
		k.reports[r.Kind] = r.Text
		if r.Kind == reportLeft {
			k.left <- r.Text // the keeper sends one
		}
	}
	_ = k.keeper.Wait() // its result is in ProcessState
}

// killOrphans kills the processes that killed keepers left, and returns when all are gone. After
// owned has ended, another client may have started a successor. After nameLeft it calls late
// once.
func (s *supervisor) killOrphans(owned context.Context, group string, late func()) {
	logged, isLate := false, false
	began := time.Now()
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
		if time.Since(began) >= nameLeft && !isLate {
			isLate = true
			late()
		}
		time.Sleep(again)
	}
}

// orphans returns the processes that killed keepers left.
func (s *supervisor) orphans() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(childrenNow(), func(pid int) bool { return s.known[pid] })
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
	eachChild(kill)
	if left {
		return left, nil // a search takes long
	}
	return left, searchChildren(kill)
}

// orderEnd is the order to end the program with SIGTERM. Any other order is the deadline, by
// boottime. The end of the pipe is the order to kill.
const orderEnd time.Duration = 0

// send sends the keeper an order, unless it was ordered to kill. It kills a keeper that has not
// read thousands of orders, because that keeper is stopped.
func (s *supervisor) send(k *kept, order time.Duration) {
	_ = k.orders.SetWriteDeadline(time.Now().Add(s.runner.killLead() / 2))
	_, err := k.orders.Write(binary.BigEndian.AppendUint64(nil, uint64(order)))
	if err != nil && !errors.Is(err, os.ErrClosed) {
		_ = k.keeper.Process.Kill() // or it has ended
	}
}
