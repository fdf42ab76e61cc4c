package pgserver

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// process is a started program that dies with this process, where the system can do that.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended
	err  error         // how it ended; read it after done
}

// launch starts the command as that account. On Linux it gets the death signal when this process ends.
func launch(cmd *exec.Cmd, a *account, death syscall.Signal) (*process, error) {
	cmd.SysProcAttr = attributes(a, death)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the program and waits for it on one OS thread: the kernel sends the death signal when the thread that
// forked ends, and Go ends threads as it likes, unless a goroutine is locked to them.
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

// newCommand prepares a program that works in dir and writes to log. Its environment is ours without what would
// change how PostgreSQL starts.
func newCommand(dir string, log *os.File, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = log, log // a file: with a pipe, Wait would wait for every grandchild
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_") && !strings.HasPrefix(entry, "LANG") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC") // logs in English; initdb need not search for the time zone
	return cmd
}
