//go:build unix

package leader_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/leader"
)

// frozenURL makes the test binary a candidate, hangs one whose work ignores its context.
const (
	frozenURL = "PGLEASES_LEADER_TEST_URL"
	hangs     = "PGLEASES_LEADER_TEST_HANGS"
)

// frozenTTL is short, because the test waits for it.
const frozenTTL = 2 * time.Second

func init() {
	url := os.Getenv(frozenURL)
	if url == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := runCandidate(ctx, url); err != nil {
		fmt.Println("failed:", err)
	}
	os.Exit(0)
}

// runCandidate prints its callbacks, and when the last call of IsLeader began that returned true,
// once one returns false.
func runCandidate(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	client, err := pgleases.NewClient(ctx, pool, pgleases.WithClientID("frozen"), pgleases.WithTTL(frozenTTL))
	if err != nil {
		return err
	}
	e := leader.New(client, "leader")
	if os.Getenv(hangs) != "" {
		return runHanging(ctx, e)
	}
	go func() {
		for led := (time.Time{}); ; {
			began := time.Now()
			if e.IsLeader() {
				led = began
			} else if !led.IsZero() {
				fmt.Println("led until", led.UnixNano())
				led = time.Time{}
			}
		}
	}()
	return e.Run(ctx, leader.Callbacks{
		OnStartedLeading: func(ctx context.Context) { fmt.Println("started", leader.Epoch(ctx)) },
		OnStoppedLeading: func() { fmt.Println("stopped") },
		OnNewLeader:      func(id string) { fmt.Println("new leader", id) },
	})
}

// runHanging prints when its work is asked to stop, and works on.
func runHanging(ctx context.Context, e *leader.Elector) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	return e.Run(ctx, leader.Callbacks{
		OnStartedLeading: func(ctx context.Context) {
			leadOrExit(ctx, func(ctx context.Context) {
				fmt.Println("started")
				<-ctx.Done()
				fmt.Println("asked to stop")
				select {}
			})
		},
		OnStoppedLeading: func() { fmt.Println("stopped") },
	})
}

// A frozenOne is a candidate in a process of its own, which a test freezes.
type frozenOne struct {
	*exec.Cmd
	lines chan string   // what it prints
	ended chan struct{} // closed when it has ended
	ends  atomic.Bool   // the test waits for its end
}

// startFrozen starts a candidate. If it ends before the test waits for that, the test fails.
func startFrozen(t testing.TB, url string, env ...string) *frozenOne {
	t.Helper()
	c := &frozenOne{Cmd: exec.Command(os.Args[0]), lines: make(chan string, 1000), ended: make(chan struct{})}
	c.Env = append(append(os.Environ(), frozenURL+"="+url), env...)
	c.Stderr = os.Stderr
	out := testkit.Must(c.StdoutPipe())(t)
	testkit.OK(t, c.Start())
	go func() {
		defer close(c.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
		_ = c.Wait() // the test looks at its ProcessState
	}()
	testkit.Need(t, func() error {
		select {
		case <-c.ended:
		default:
			return nil
		}
		if c.ends.Load() {
			return nil
		}
		return fmt.Errorf("the candidate has ended: %v", c.ProcessState)
	})
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-c.ended
	})
	return c
}

// exits waits for the end of the candidate, and returns its exit code.
func (c *frozenOne) exits(t testing.TB) int {
	t.Helper()
	c.ends.Store(true)
	testkit.Receive(t, "the process ends", c.ended)
	return c.ProcessState.ExitCode()
}

// prints waits for the lines that begin so, in any order, because several goroutines print. It
// returns the rest of each.
func (c *frozenOne) prints(t testing.TB, beginnings ...string) map[string]string {
	t.Helper()
	rest := make(map[string]string)
	for len(rest) < len(beginnings) {
		line, known := testkit.Receive(t, fmt.Sprint("it prints ", beginnings), c.lines), false
		for _, b := range beginnings {
			if after, is := strings.CutPrefix(line, b); is {
				rest[b], known = after, true
			}
		}
		if !known {
			t.Fatalf("it prints %q, none of %q", line, beginnings)
		}
	}
	return rest
}

// The first call of IsLeader after a freeze returns false, then the callbacks end. The process
// leads again under a higher epoch.
func TestFrozenLeaderIsNoLeader(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, frozenLeaderIsNoLeader)
}

func frozenLeaderIsNoLeader(t *timeguard.Try) {
	t.Brief(frozenTTL)
	url := pgtest.MigratedDatabase(t)
	frozen := startFrozen(t, url)
	frozen.prints(t, "started ", "new leader frozen")
	next := stand(t, client(t, testkit.Pool(t, url), "next"))
	next.says(t, "new leader frozen")
	testkit.OK(t, frozen.Process.Signal(syscall.SIGSTOP))
	next.says(t, "started", "new leader next")
	leads := time.Now().UnixNano()
	testkit.OK(t, frozen.Process.Signal(syscall.SIGCONT))
	until := frozen.prints(t, "led until ", "stopped", "new leader next")["led until "]
	led := testkit.Must(strconv.ParseInt(until, 10, 64))(t)
	if led >= leads {
		t.Errorf("it led in a call that began %v after the next leader", time.Duration(led-leads))
	}
	next.stop()
	close(next.finish)
	next.says(t, "stopped")
	epoch := testkit.Must(strconv.ParseInt(frozen.prints(t, "started ", "new leader frozen")["started "], 10, 64))(t)
	if epoch <= leader.Epoch(next.ctx) {
		t.Errorf("epoch %d after %d", epoch, leader.Epoch(next.ctx))
	}
}

// A process whose work hangs beside the next leader ends, also if it was asked to stop before.
func TestProcessExitsWhenHangingWorkLosesTheLeadership(t *testing.T) {
	t.Parallel()
	for name, asked := range map[string]bool{"while it leads": false, "after SIGTERM": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) { hangingWorkLoses(t, asked) })
		})
	}
}

func hangingWorkLoses(t *timeguard.Try, asked bool) {
	t.Brief(frozenTTL)
	url := pgtest.MigratedDatabase(t)
	frozen := startFrozen(t, url, hangs+"=1")
	frozen.prints(t, "started")
	next := stand(t, client(t, testkit.Pool(t, url), "next"))
	defer close(next.finish)
	next.says(t, "new leader frozen")
	if asked {
		testkit.OK(t, frozen.Process.Signal(syscall.SIGTERM))
		frozen.prints(t, "asked to stop")
		clients.Beats(t, next.client, 3)
		if next.IsLeader() {
			t.Error("another process leads before the work has returned")
		}
	}
	testkit.OK(t, frozen.Process.Signal(syscall.SIGSTOP))
	next.says(t, "started", "new leader next")
	testkit.OK(t, frozen.Process.Signal(syscall.SIGCONT))
	if code := frozen.exits(t); code != 1 {
		t.Errorf("it ended with %d, want 1", code)
	}
}
