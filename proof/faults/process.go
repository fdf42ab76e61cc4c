//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/oracle"
)

// A Process is a worker in a process of its own. All methods are safe for concurrent use.
type Process struct {
	Config Config

	cmd    *exec.Cmd
	input  io.WriteCloser
	joined chan struct{} // closed when its clients have joined
	done   chan struct{} // closed when the process is gone
	ended  Event         // its last event; read it after done
	err    error         // how the process ended; read it after done
	stderr strings.Builder
	probe  *timeguard.Record
}

// Start starts a worker: this program again, whose main function or an init function calls Main. The
// worker ends with this process.
func Start(config Config) (*Process, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{Config: config, cmd: exec.Command(program), joined: make(chan struct{}), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), envWorker+"="+string(text)), config.Env...)
	p.cmd.Stderr = &p.stderr
	// A process group of its own. The worker notices this process's end through its input. If the
	// worker is stopped at that moment, its group becomes an orphan, and the kernel continues it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.input, err = p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.probe = timeguard.NewRecord(fmt.Sprintf("worker %s, process %d,", config.ID, p.PID()))
	go p.listen(output)
	return p, nil
}

func (p *Process) listen(output io.Reader) {
	events := json.NewDecoder(output)
	for {
		var e Event
		if events.Decode(&e) != nil {
			break
		}
		switch e.Kind {
		case "joined":
			close(p.joined)
		case "ended":
			p.ended = e
		case "probe":
			p.probe.Add(e.Until, e.Spells)
		}
	}
	p.probe.End()
	p.err = p.cmd.Wait()
	close(p.done)
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Joined waits until the worker's clients have joined.
func (p *Process) Joined(ctx context.Context) error {
	select {
	case <-p.joined:
		return nil
	case <-p.done:
		return fmt.Errorf("faults: worker %s ended before it joined: %v %s", p.Config.ID, p.err, p.stderr.String())
	case <-ctx.Done():
		return fmt.Errorf("faults: worker %s did not join: %w", p.Config.ID, context.Cause(ctx))
	}
}

// Done returns a channel that is closed when the process is gone.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended waits for the process to end on its own, and returns the event that its client ended with.
// It returns an error if the process failed.
func (p *Process) Ended(ctx context.Context) (Event, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return Event{}, fmt.Errorf("faults: worker %s did not end: %w", p.Config.ID, context.Cause(ctx))
	}
	if p.err != nil || p.ended.Kind == "" {
		return p.ended, fmt.Errorf("faults: worker %s: %v %s", p.Config.ID, p.err, p.stderr.String())
	}
	return p.ended, nil
}

// Close closes the worker's clients, and waits for its end.
func (p *Process) Close(ctx context.Context) (Event, error) {
	_, _ = io.WriteString(p.input, "close\n") // if it has ended already, Ended returns how
	return p.Ended(ctx)
}

// killedItself reports whether the process handled a row that killed it. A fault that kills removes
// the member first.
func (p *Process) killedItself() bool {
	var exit *exec.ExitError
	select {
	case <-p.done:
	default:
		return false
	}
	if !errors.As(p.err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signal() == syscall.SIGKILL && p.Config.Queue != nil
}

// Kill kills the process and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // an error means that it has ended
	<-p.done
}

// Pause stops the process with SIGSTOP.
func (p *Process) Pause() error {
	p.probe.Stop()
	return p.cmd.Process.Signal(syscall.SIGSTOP)
}

// Resume continues the process, unless it was killed meanwhile.
func (p *Process) Resume() error {
	defer p.probe.Continue()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Starve stops and continues the process in turns from now on, so that it runs for a tenth of the
// time. Unlike under a limit by the kernel, it also stands still when it is idle.
func (p *Process) Starve() {
	const runs, stands = 10 * time.Millisecond, 90 * time.Millisecond
	go func() {
		for {
			_ = p.Pause() // an error means that it has ended
			select {
			case <-time.After(stands):
			case <-p.done:
				return
			}
			_ = p.Resume()
			select {
			case <-time.After(runs):
			case <-p.done:
				return
			}
		}
	}()
}

// Watched returns the oracle's log up to now.
func (p *Process) Watched() (oracle.Log, error) { return oracle.Read(p.Config.Log) }

// Output returns what the clients logged.
func (p *Process) Output() string {
	text, err := os.ReadFile(p.Config.Log + ".txt")
	if err != nil {
		return err.Error()
	}
	return string(text)
}
