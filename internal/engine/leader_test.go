package engine_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases/leader"
)

// elect makes a process a candidate until the returned function is called. It returns the end of
// Run, too. A candidate without work of its own leads until its context ends.
func (p *proc) elect(callbacks leader.Callbacks) (e *leader.Elector, stop context.CancelFunc, ended chan error) {
	if callbacks.OnStartedLeading == nil {
		callbacks.OnStartedLeading = func(ctx context.Context) { <-ctx.Done() }
	}
	ctx, stop := context.WithCancel(context.Background())
	e, ended = leader.New(p.c, "only"), make(chan error, 1)
	go func() { ended <- e.Run(ctx, callbacks) }()
	return e, stop, ended
}

// A callback that only informs keeps no other process from leading.
func TestNewLeaderThatBlocksKeepsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		blocks := make(chan struct{})
		a, stop, ended := w.start("a").elect(leader.Callbacks{OnNewLeader: func(string) { <-blocks }})
		w.within(5*time.Second, "a leads", a.IsLeader)
		b, stopB, _ := w.start("b").elect(leader.Callbacks{})
		c, _, _ := w.start("c").elect(leader.Callbacks{OnNewLeader: func(string) { <-blocks }})
		w.within(5*time.Second, "c has heard of a", func() bool { return c.Leader() == "a" })
		stop()
		w.within(time.Second, "b leads", b.IsLeader)
		w.within(2*time.Second, "Run has returned", func() bool { return len(ended) == 1 })
		w.within(5*time.Second, "c has heard of b, beside its callback", func() bool { return c.Leader() == "b" })
		stopB()
		w.within(time.Second, "c leads", c.IsLeader)
		close(blocks)
	})
}

// OnStoppedLeading follows the leadership, also if OnStartedLeading ends its goroutine.
func TestGoexitInOnStartedLeadingLeadsOn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var stopped atomic.Int64
		a, stop, ended := w.start("a").elect(leader.Callbacks{
			OnStartedLeading: func(context.Context) { runtime.Goexit() },
			OnStoppedLeading: func() { stopped.Add(1) },
		})
		w.within(5*time.Second, "a leads", a.IsLeader)
		time.Sleep(time.Minute)
		if stopped.Load() != 0 || !a.IsLeader() {
			t.Errorf("OnStoppedLeading was called %d times, and it leads: %v", stopped.Load(), a.IsLeader())
		}
		stop()
		w.within(time.Second, "Run has returned", func() bool { return len(ended) == 1 })
		if stopped.Load() != 1 {
			t.Errorf("OnStoppedLeading was called %d times", stopped.Load())
		}
	})
}

// Users of client-go end the process there, so some close the client first.
func TestCloseInLeaderCallbackReturns(t *testing.T) {
	for _, in := range []string{"OnStartedLeading", "OnStoppedLeading"} {
		t.Run(in, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				p := w.start("a")
				closed := make(chan error, 1)
				call := func(name string) {
					if name == in {
						closed <- p.c.Close(context.Background())
					}
				}
				a, stop, ended := p.elect(leader.Callbacks{
					OnStartedLeading: func(context.Context) { call("OnStartedLeading") },
					OnStoppedLeading: func() { call("OnStoppedLeading") },
				})
				if in == "OnStoppedLeading" {
					w.within(5*time.Second, "a leads", a.IsLeader)
					stop()
				}
				w.within(5*time.Second, "Close has returned", func() bool { return len(closed) == 1 })
				b, _, _ := w.start("b").elect(leader.Callbacks{})
				if err := <-closed; err == nil || !strings.Contains(err.Error(), "in a callback of leader \"only\"") {
					t.Errorf("Close returned %v", err)
				}
				w.within(2*time.Second, "the client has ended", func() bool { return p.c.Err() != nil })
				w.within(2*time.Second, "Run has returned", func() bool { return len(ended) == 1 })
				w.within(2*time.Second, "b leads", b.IsLeader)
			})
		})
	}
}
