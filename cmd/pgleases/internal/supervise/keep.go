//go:build unix && !aix

package supervise

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// KeepVerb is the verb of the command that calls [Keep].
const KeepVerb = "keep-program"

const (
	ordersFile  = 3
	reportsFile = 4

	// The time from the first SIGKILL until a keeper, or a supervisor, names the processes that are
	// left.
	nameLeft = time.Second

	// The longest time between two readings of the clock: while a machine sleeps, the clock goes on,
	// but no timer.
	lookAtLeast = 250 * time.Millisecond
	// The time between the first two searches for processes that remain after a kill. It doubles
	// while the partition is owned, because some processes cannot be killed.
	killAgain = 5 * time.Millisecond
)

// A report is what a keeper tells its supervisor, as a line of JSON. It writes a few short ones,
// so that it never waits for a supervisor that is stopped. It writes nothing to stderr, which
// nobody may read.
type report struct {
	Kind string
	Text string `json:",omitempty"`
}

const (
	reportGone   = "gone"   // no process of the program is left
	reportLeft   = "left"   // these processes are left although they were killed
	reportFailed = "failed" // the program was not started, and a repetition would fail too
	reportBusy   = "busy"   // the program was not started, because the system lacks something now
)

// boottime returns the time of a clock that is the same for all processes of the machine.
func boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(bootClock, &ts); err != nil {
		panic(err) // every unix has it
	}
	return time.Duration(ts.Nano())
}

// A keeper runs the program once. It is the ancestor of all processes of the program, and alone
// decides when they end, so it works even if the supervisor is stopped or crashed. It exits when
// no process is left.
type keeper struct {
	grace             time.Duration
	killLead, endLead time.Duration // before the deadline
	group             string        // the program's control group; "": no group

	orders   chan time.Duration // closed: kill
	deadline time.Duration      // by boottime; 0: not known yet

	pid      int // 0: the program was not started
	ended    bool
	code     int           // once it has ended
	toEnd    bool          // the program must end
	toKill   bool          // all processes must be killed
	killAt   time.Duration // by boottime, the end of the grace; 0: no SIGTERM was sent
	killed   time.Duration // by boottime, the first SIGKILL; 0: none was sent
	again    time.Duration // from this SIGKILL to the next
	toldLeft bool          // the supervisor knows which processes are left
	unowned  bool          // the keeper ended the program
	children chan os.Signal
	reports  *json.Encoder
}

// Keep runs a keeper. The command calls it for KeepVerb with the arguments after that verb.
func Keep(args []string) error {
	debug.SetGCPercent(20) // its heap stays at 1 MB, and would grow to 4 MB before the first collection
	k := &keeper{orders: make(chan time.Duration), children: make(chan os.Signal, 1)}
	syscall.CloseOnExec(ordersFile)
	syscall.CloseOnExec(reportsFile)
	k.reports = json.NewEncoder(os.NewFile(reportsFile, "reports"))
	flags := flag.NewFlagSet(KeepVerb, flag.ContinueOnError)
	flags.DurationVar(&k.grace, "grace", 0, "from SIGTERM to SIGKILL")
	flags.DurationVar(&k.killLead, "kill-lead", 0, "from SIGKILL to the deadline")
	flags.DurationVar(&k.endLead, "end-lead", 0, "from SIGTERM to the deadline")
	flags.StringVar(&k.group, "group", "", "control group of the program")
	if err := flags.Parse(args); err != nil {
		return err
	}
	code, err := k.keep(flags.Args())
	if err != nil {
		k.tell(reportFailed, err.Error())
	}
	return Exit{Code: code}
}

func (k *keeper) tell(kind, text string) {
	_ = k.reports.Encode(report{kind, text}) // an error is that the supervisor has ended
}

// keep returns an error if another start of the program would fail too.
func (k *keeper) keep(program []string) (int, error) {
	defer removeGroup(k.group)
	// The kernel kills the program when the thread that started it ends.
	runtime.LockOSThread()
	if err := adoptOrphans(); err != nil {
		return Failed, err
	}
	// A service manager may send these signals to all processes. The keeper catches them: if it
	// ignored them, the program would inherit that. Signals that are ignored already stay ignored.
	notifyUnlessIgnored(make(chan os.Signal, 1))
	signal.Notify(k.children, syscall.SIGCHLD)
	go k.readOrders(os.NewFile(ordersFile, "orders"))
	for {
		now := boottime()
		if k.pid == 0 {
			switch {
			case k.toEnd || k.toKill || k.deadline > 0 && now >= k.deadline-k.killLead:
				k.tell(reportGone, "")
				return NotOwned, nil
			case now >= k.deadline-k.endLead: // not known yet, or not long enough
				k.await(lookAtLeast)
				continue
			}
			var err error
			k.pid, err = start(program, k.group)
			if err != nil {
				return k.notStarted(program[0], err)
			}
			continue // with the current time
		}
		left, err := k.reap()
		if err != nil {
			return Failed, err
		}
		if !left && treeGone(k.pid) {
			k.tell(reportGone, "")
			break
		}
		k.await(min(k.act(now), lookAtLeast))
	}
	if k.unowned {
		return NotOwned, nil
	}
	return k.code, nil
}

// notStarted returns the exit code for a program that could not be started, and the error if
// another start would fail too.
func (k *keeper) notStarted(program string, cause error) (int, error) {
	k.tell(reportGone, "")
	err := fmt.Errorf("start program %q: %w", program, cause)
	switch {
	case passes(cause):
		k.tell(reportBusy, err.Error())
		return CannotRun, nil
	case errors.Is(cause, os.ErrNotExist):
		return NotFound, err
	}
	return CannotRun, err
}

// passing are errors of a start that may pass without a change of the program.
var passing = []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ETXTBSY, syscall.EINTR}

func passes(cause error) bool {
	return slices.ContainsFunc(passing, func(passing error) bool { return errors.Is(cause, passing) })
}

// act sends the signals that are due, and returns the time until the next one.
func (k *keeper) act(now time.Duration) (wait time.Duration) {
	end, kill := k.deadline-k.endLead, k.deadline-k.killLead
	k.toEnd = k.toEnd || now >= end
	k.toKill = k.toKill || now >= kill || k.toEnd && k.killAt != 0 && now >= k.killAt
	k.unowned = k.unowned || !k.ended && (k.toEnd || k.toKill)
	switch {
	case k.toKill || k.ended: // also processes that the program left running
		k.again = min(max(2*k.again, killAgain), lookAtLeast)
		if now >= k.deadline { // another client may have started a successor
			k.again = killAgain
		}
		if k.killed == 0 {
			k.killed = now
		}
		if now >= k.killed+nameLeft && !k.toldLeft {
			k.toldLeft = true
			k.tell(reportLeft, named(childrenNow()))
		}
		k.kill()
		return max(k.again, boottime()-now) // a search takes long
	case !k.toEnd:
		return end - now
	case k.killAt == 0:
		k.killAt = now + k.grace
		_ = syscall.Kill(-k.pid, syscall.SIGTERM)
		_ = syscall.Kill(-k.pid, syscall.SIGCONT) // a stopped process handles no SIGTERM
	}
	return min(kill, k.killAt) - now
}

// kill kills the program's groups, and the keeper's children. A process that left the group or
// lost its parent is a child of the keeper, or becomes one when its parent ends. The process IDs
// are not reused meanwhile, because only reap frees them. The next call finds processes that this
// one misses.
func (k *keeper) kill() {
	killGroup(k.group)
	if !k.ended {
		_ = syscall.Kill(-k.pid, syscall.SIGKILL)
	}
	sigkill := func(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }
	if !eachChild(sigkill) {
		_ = searchChildren(sigkill)
	}
}

// reap collects processes that ended, and reports whether any are left.
func (k *keeper) reap() (left bool, err error) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err == syscall.ECHILD:
			return false, nil
		case err != nil:
			return false, fmt.Errorf("wait for the program: %w", err)
		case pid == 0:
			return true, nil
		case pid == k.pid:
			k.ended = true
			k.code = status.ExitStatus()
			if status.Signaled() {
				k.code = Signaled + int(status.Signal())
			}
		}
	}
}

// await waits for an order or for the end of a child, for at most d.
func (k *keeper) await(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case order, ok := <-k.orders:
		switch {
		case !ok:
			k.orders = nil
			k.toKill = true
		case order == orderEnd:
			k.toEnd = true
		default:
			k.deadline = order
		}
	case <-k.children:
	case <-timer.C:
	}
}

func (k *keeper) readOrders(from io.Reader) {
	var order [8]byte
	for {
		if _, err := io.ReadFull(from, order[:]); err != nil {
			close(k.orders)
			return
		}
		k.orders <- time.Duration(binary.BigEndian.Uint64(order[:]))
	}
}

// start starts the program, in its own process group, and in the control group if possible.
func start(program []string, group string) (pid int, err error) {
	attr, file := ownGroup(group)
	defer file.Close()
	process := &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: attr}
	pid, err = syscall.ForkExec(program[0], program, process)
	if err != nil && file != nil { // the system may refuse the control group
		process.Sys, _ = ownGroup("")
		pid, err = syscall.ForkExec(program[0], program, process)
	}
	return pid, err
}
