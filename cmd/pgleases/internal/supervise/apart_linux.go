package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

// A process without a parent becomes a child of the process with the ID 1 of its container, or of
// an ancestor that asked for it. So a process that is the first one of a container, or that a
// shell has executed after it had started others, gets children that are not the program's: what
// an exec session of the container leaves, for example. It must reap them, and must not kill
// them.
//
// runApart runs this command again as a child if this process may get such children, and returns
// its exit code. All descendants of the child are its own. This process passes signals on, and
// reaps.
func runApart() (code int, apart bool, err error) {
	others := os.Getpid() == 1
	err = searchChildren(func(int) { others = true })
	if err != nil || !others {
		return 0, false, err
	}
	runtime.LockOSThread() // the kernel kills the child when this thread ends
	self, err := executable()
	if err != nil {
		return Failed, true, err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	asked := make(chan os.Signal, 8)
	notifyUnlessIgnored(asked)
	child := exec.Command(self, os.Args[1:]...)
	child.Args[0] = os.Args[0]
	child.Stdin = os.Stdin
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	// In a group of its own, it gets no signal of a terminal twice.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := child.Start(); err != nil {
		return Failed, true, fmt.Errorf("start the process that runs the program: %w", err)
	}
	for {
		select {
		case sig := <-asked:
			// It is not reaped yet, so its ID is its own.
			_ = syscall.Kill(child.Process.Pid, sig.(syscall.Signal))
		case <-ended:
			if code, done := reapAll(child.Process.Pid); done {
				return code, true, nil
			}
		}
	}
}

// reapAll reaps the processes that have ended, and returns the exit code of the awaited one if
// that is among them.
func reapAll(awaited int) (code int, done bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || pid == 0:
			return code, done
		case pid == awaited && status.Signaled():
			code, done = Signaled+int(status.Signal()), true
		case pid == awaited:
			code, done = status.ExitStatus(), true
		}
	}
}
