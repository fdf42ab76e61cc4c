package show

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Crew is the processes of a story: this program, started again with other variables in its
// environment.
type Crew struct {
	Env  func(id string) []string // what a process gets besides this one's environment
	Fail func(error)              // called if a worker ends without having been asked to

	mu      sync.Mutex // guards workers
	workers []*Worker
}

// A Worker is one of them.
type Worker struct {
	ID    string
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
	Working = "working"
	Frozen  = "frozen"
	Closing = "closing"
	Closed  = "closed"
	Killed  = "killed"
)

// Start starts a worker process.
func (c *Crew) Start(id string) (*Worker, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &Worker{ID: id, state: Working, done: make(chan struct{})}
	w.cmd = exec.Command(program, os.Args[1:]...)
	w.cmd.Env = append(os.Environ(), c.Env(id)...)
	w.cmd.Stderr = &w.log
	w.cmd.SysProcAttr = attributes()
	w.stdin, err = w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		// The kernel kills the worker when the thread that started it ends. Go ends threads as it likes,
		// unless a goroutine is locked to them.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := w.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		w.err = w.cmd.Wait()
		close(w.done)
		state := w.State()
		if state == Working || state == Frozen {
			w.Set("ended")
			c.Fail(fmt.Errorf("%s ended by itself (%v); the last that it logged:\n%s",
				id, w.cmd.ProcessState, w.log.String()))
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.workers = append(c.workers, w)
	return w, nil
}

// State is what the display says of it.
func (w *Worker) State() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// Set sets its state, before what is to happen to it does.
func (w *Worker) Set(state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = state
}

// All returns the workers that were ever started.
func (c *Crew) All() []*Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.workers[:len(c.workers):len(c.workers)]
}

// Living returns the workers that work.
func (c *Crew) Living() (workers []*Worker) {
	for _, w := range c.All() {
		if w.State() == Working {
			workers = append(workers, w)
		}
	}
	return workers
}

// CloseAll asks the workers to end, and waits for each, so long at most. It calls failed for each
// that ends with an error.
func (c *Crew) CloseAll(ctx context.Context, atMost time.Duration, failed func(w *Worker, failure string)) error {
	living := c.Living()
	for _, w := range living {
		w.Set(Closing)
		if err := w.AskToEnd(); err != nil {
			return fmt.Errorf("end %s: %w", w.ID, err)
		}
	}
	for _, w := range living {
		if err := w.Wait(ctx, atMost); err != nil {
			failed(w, fmt.Sprintf("%s did not end well: %v", w.ID, err))
		}
	}
	return ctx.Err()
}

// Kill ends the process without asking it, frozen or not.
func (w *Worker) Kill() {
	w.Set(Killed)
	_ = w.cmd.Process.Kill() // an error only tells that it has ended
	<-w.done
}

// Wait waits for the end of a process that was asked to end, but not forever.
func (w *Worker) Wait(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-w.done:
		w.Set(Closed)
		return w.err
	case <-ctx.Done():
		w.Kill()
		return fmt.Errorf("it was still there: %w", context.Cause(ctx))
	}
}

// KillAll leaves no process behind.
func (c *Crew) KillAll() {
	for _, w := range c.All() {
		select {
		case <-w.done:
		default:
			w.Kill()
		}
	}
}

// PrintLogs prints what each worker logged last.
func (c *Crew) PrintLogs(out io.Writer) {
	for _, w := range c.All() {
		fmt.Fprintf(out, "\nThe last that %s logged:\n%s", w.ID, w.log.String())
	}
}

// A tail keeps what a process logs.
type tail struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String returns the last 30 lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.SplitAfter(t.text.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-31):], "")
}

// Told returns a context for a worker process: it ends when the process is asked to end, or the
// program that started it has ended.
func Told() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	go func() {
		// The program holds the other end, and writes nothing. The end of the file is the end of the
		// program, or its request.
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return ctx, stop
}
