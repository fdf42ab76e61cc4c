package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// A worker is a process of the fleet.
type worker struct {
	id    string
	cmd   *exec.Cmd
	stdin io.Closer
	log   tail
	done  chan struct{} // closed when the process ended
	err   error         // how; read it after done

	mu    sync.Mutex // guards state
	state string
}

// What the display says of a worker. One that is working or frozen is not meant to end.
const (
	working = "working"
	frozen  = "frozen"
	closing = "closing"
	closed  = "closed"
	killed  = "killed"
)

// start starts a worker process.
func (f *fleet) start(id string) (*worker, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{id: id, state: working, done: make(chan struct{})}
	w.log.line = func(line string) { f.screen.verbose(id + ": " + line) }
	w.cmd = exec.Command(program, os.Args[1:]...)
	w.cmd.Env = append(os.Environ(), envWorker+"="+id, envURL+"="+f.url)
	w.cmd.Stderr = &w.log
	w.cmd.SysProcAttr = attributes()
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		// The kernel kills the worker when the thread that started it ends. Go ends threads as it likes, unless a goroutine
		// is locked to them.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := w.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		w.err = w.cmd.Wait()
		close(w.done)
		if state := w.is(); state == working || state == frozen {
			w.set("ended")
			f.fail(fmt.Errorf("%s ended by itself (%v); the last that it logged:\n%s", id, w.cmd.ProcessState, w.log.String()))
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", id, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workers = append(f.workers, w)
	return w, nil
}

func (w *worker) is() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

func (w *worker) set(state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = state
}

// all returns the workers that were ever started.
func (f *fleet) all() []*worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.workers[:len(f.workers):len(f.workers)]
}

// living returns the workers that work.
func (f *fleet) living() (workers []*worker) {
	for _, w := range f.all() {
		if w.is() == working {
			workers = append(workers, w)
		}
	}
	return workers
}

// kill ends the process without asking it, frozen or not.
func (w *worker) kill() {
	w.set(killed)
	_ = w.cmd.Process.Kill() // an error only tells that it has ended
	<-w.done
}

// wait waits for the end of a process that was asked to end, but not for ever.
func (w *worker) wait(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-w.done:
		w.set(closed)
		return w.err
	case <-ctx.Done():
		w.kill()
		return fmt.Errorf("it was still there: %w", context.Cause(ctx))
	}
}

// killAll leaves no process behind.
func (f *fleet) killAll() {
	for _, w := range f.all() {
		select {
		case <-w.done:
		default:
			w.kill()
		}
	}
}

func (f *fleet) printLogs(out io.Writer) {
	for _, w := range f.all() {
		fmt.Fprintf(out, "\nThe last that %s logged:\n%s", w.id, w.log.String())
	}
}

// A tail keeps the last lines written to it.
type tail struct {
	line func(string) // told of each line

	mu    sync.Mutex // guards lines and rest
	lines [][]byte
	rest  []byte // of a line that has not ended
}

const tailLines = 30

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest = append(t.rest, p...)
	for {
		line, rest, found := bytes.Cut(t.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		t.rest = rest
		t.lines = append(t.lines, bytes.Clone(line))
		t.lines = t.lines[max(0, len(t.lines)-tailLines):]
		t.line(string(line))
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var text bytes.Buffer
	for _, line := range t.lines {
		fmt.Fprintf(&text, "  %s\n", line)
	}
	return text.String()
}
