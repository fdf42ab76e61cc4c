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

// startFrozen starts a candidate that a test freezes. prints waits for the lines that begin so, and
// returns the rest of each.
func startFrozen(t testing.TB, url string, env ...string) (frozen *exec.Cmd, prints func(beginnings ...string) map[string]string) {
	t.Helper()
	frozen = exec.Command(os.Args[0])
	frozen.Env = append(append(os.Environ(), frozenURL+"="+url), env...)
	out := testkit.Must(frozen.StdoutPipe())(t)
	testkit.OK(t, frozen.Start())
	t.Cleanup(func() {
		_ = frozen.Process.Kill()
		_ = frozen.Wait() // it was killed
	})
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return frozen, func(beginnings ...string) map[string]string { // in any order: several goroutines print
		t.Helper()
		rest := make(map[string]string)
		for len(rest) < len(beginnings) {
			line, known := testkit.Receive(t, fmt.Sprint("it prints ", beginnings), lines), false
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
	frozen, prints := startFrozen(t, url)
	prints("started ", "new leader frozen")
	next := stand(t, client(t, testkit.Pool(t, url), "next"))
	next.says(t, "new leader frozen")
	testkit.OK(t, frozen.Process.Signal(syscall.SIGSTOP))
	next.says(t, "started", "new leader next")
	leads := time.Now().UnixNano()
	testkit.OK(t, frozen.Process.Signal(syscall.SIGCONT))
	led := testkit.Must(strconv.ParseInt(prints("led until ", "stopped", "new leader next")["led until "], 10, 64))(t)
	if led >= leads {
		t.Errorf("it led in a call that began %v after the next leader", time.Duration(led-leads))
	}
	next.stop()
	close(next.finish)
	next.says(t, "stopped")
	epoch := testkit.Must(strconv.ParseInt(prints("started ", "new leader frozen")["started "], 10, 64))(t)
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
	frozen, prints := startFrozen(t, url, hangs+"=1")
	prints("started")
	next := stand(t, client(t, testkit.Pool(t, url), "next"))
	defer close(next.finish)
	next.says(t, "new leader frozen")
	if asked {
		testkit.OK(t, frozen.Process.Signal(syscall.SIGTERM))
		prints("asked to stop")
		clients.Beats(t, next.client, 3)
		if next.IsLeader() {
			t.Error("another process leads before the work has returned")
		}
	}
	testkit.OK(t, frozen.Process.Signal(syscall.SIGSTOP))
	next.says(t, "started", "new leader next")
	testkit.OK(t, frozen.Process.Signal(syscall.SIGCONT))
	ended := make(chan error, 1)
	go func() { ended <- frozen.Wait() }()
	if testkit.Receive(t, "the process ends", ended); frozen.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended with %v", frozen.ProcessState)
	}
}
