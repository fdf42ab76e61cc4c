//go:build unix

package pgserver

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// process is a started program that is killed when this process ends, if the system supports that.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
	err  error         // how the program ended; read it after done
}

func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the program and waits for it on one OS thread. The kernel sends the death signal when
// the thread that forked ends, and Go ends threads at any time, unless a goroutine is locked to
// them.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.done)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends a signal. It returns no error if the process has ended already.
func signal(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// command prepares a program, with this process's environment except the variables that change how
// PostgreSQL starts.
func command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_") && !strings.HasPrefix(entry, "LANG") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC") // logs in English; initdb need not search for the time zone
	return cmd
}
