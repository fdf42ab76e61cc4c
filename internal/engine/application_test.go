package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
)

// Functions of the application that the client calls: handlers of the log, tracers of statements.

// A hook is a handler of the log that is a function.
type hook func(message string)

func (hook) Enabled(context.Context, slog.Level) bool { return true }
func (h hook) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h hook) WithGroup(string) slog.Handler          { return h }

func (h hook) Handle(_ context.Context, r slog.Record) error {
	h(r.Message)
	return nil
}

// A handler that blocks must not delay what its client promises.
func TestLogThatBlocksDelaysNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var blocks atomic.Bool
		a := w.start("a", pgleases.WithTTL(2*time.Second), pgleases.WithLogger(slog.New(hook(func(string) {
			for blocks.Load() {
				time.Sleep(time.Second)
			}
		}))))
		l := a.owning("x", 2)
		ended := make(chan time.Time, 3)
		go func() {
			_ = l.Run(context.Background(), func(ctx context.Context, p pgleases.Partition) error {
				if p.Epoch > 1 {
					<-ctx.Done()
					return nil
				}
				<-p.Context().Done()
				ended <- time.Now()
				return nil
			})
		}()
		hold := l.Hold(context.Background())
		defer hold.Release()
		context.AfterFunc(hold.Context(), func() { ended <- time.Now() })
		blocks.Store(true)
		a.mustJoin("y", 1) // which is logged
		time.Sleep(time.Second)
		cut := time.Now()
		a.cutOff(true)
		for range 3 {
			if after := (<-ended).Sub(cut); after > 2*time.Second {
				t.Errorf("a context ended %v after the cut, with a TTL of 2s", after)
			}
		}
		hold.Release()
		a.cutOff(false)
		w.within(time.Minute, "a owns both again", func() bool { return len(shown(l)) == 2 })
		began := time.Now()
		w.ok(a.c.Close(context.Background()))
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Close took %v", took)
		}
		blocks.Store(false)
	})
}

// A handler may call each method that asks the client's goroutine for something.
func TestLogHandlerMayCallTheClient(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *pgleases.Client, l *pgleases.Lease) error{
		"Close": func(ctx context.Context, c *pgleases.Client, _ *pgleases.Lease) error { return c.Close(ctx) },
		"Leave": func(ctx context.Context, _ *pgleases.Client, l *pgleases.Lease) error { return l.Leave(ctx) },
		"SetWeight": func(ctx context.Context, _ *pgleases.Client, l *pgleases.Lease) error {
			return l.SetWeight(ctx, 2)
		},
		"Owners": func(ctx context.Context, _ *pgleases.Client, l *pgleases.Lease) error {
			_, err := l.Owners(ctx)
			return err
		},
		"Owner": func(ctx context.Context, c *pgleases.Client, _ *pgleases.Lease) error {
			_, _, err := c.Owner(ctx, "x", 0)
			return err
		},
		"Lease": func(ctx context.Context, c *pgleases.Client, _ *pgleases.Lease) error {
			_, err := c.Lease(ctx, "other", 1)
			return err
		},
		"Wait": func(ctx context.Context, _ *pgleases.Client, l *pgleases.Lease) error { return l.Wait(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(_ *testing.T, w *world) {
				var c *pgleases.Client
				var l *pgleases.Lease
				var armed atomic.Bool
				returned := make(chan error, 1)
				a := w.start("a", pgleases.WithLogger(slog.New(hook(func(string) {
					if armed.CompareAndSwap(true, false) {
						returned <- call(context.Background(), c, l)
					}
				}))))
				c, l = a.c, a.owning("x", 2)
				armed.Store(true)
				a.mustJoin("y", 1) // which is logged
				w.within(5*time.Second, name+" has returned in the handler", func() bool { return len(returned) == 1 })
				w.ok(<-returned)
			})
		})
	}
}

// A client whose goroutine does not answer keeps no caller for long after the end of the caller's ctx.
func TestCallsEndWithoutAnAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 2)
		go a.engine().Freeze(time.Minute)
		time.Sleep(time.Millisecond)
		for name, call := range map[string]func(context.Context) error{
			"Leave":     l.Leave,
			"SetWeight": func(ctx context.Context) error { return l.SetWeight(ctx, 2) },
			"Owners":    func(ctx context.Context) error { _, err := l.Owners(ctx); return err },
			"Owner":     func(ctx context.Context) error { _, _, err := a.c.Owner(ctx, "x", 0); return err },
			"Lease":     func(ctx context.Context) error { _, err := a.c.Lease(ctx, "y", 1); return err },
			"Close":     func(ctx context.Context) error { return a.c.Close(ctx) },
		} {
			for _, lasts := range []time.Duration{0, time.Second} {
				ctx, cancel := context.WithTimeout(context.Background(), lasts)
				began := time.Now()
				err := call(ctx)
				cancel()
				took := time.Since(began) - lasts
				if !errors.Is(err, context.DeadlineExceeded) || took > 7*time.Second {
					t.Errorf("%s: %v, %v after the end of ctx", name, err, took)
				}
			}
		}
		time.Sleep(2 * time.Minute)
	})
}

// A tracer, or another function in a statement, may panic, or end its goroutine. The client gives its
// connection up, and goes on.
func TestFunctionsInStatementsMayNotReturn(t *testing.T) {
	var missing *proc
	for name, does := range map[string]func(){
		"panic":                        func() { missing.late = true },
		"Goexit":                       runtime.Goexit,
		"panic that cannot be printed": func() { panic((*net.DNSError)(nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var mu sync.Mutex
				seen, opening := make(map[string]int), true // what calls NewClient sees a panic itself when it connects
				w.inject(func(client, op string) (fault, bool) {
					mu.Lock()
					defer mu.Unlock()
					if opening && op == "connect" {
						return fault{}, false
					}
					seen[op]++
					return fault{does: does}, seen[op] <= 2
				})
				a, b := w.start("a"), w.start("b")
				mu.Lock()
				opening = false
				mu.Unlock()
				l, m := a.mustJoin("x", 4), b.mustJoin("x", 4)
				w.within(time.Minute, "both own", func() bool { return len(shown(l)) == 2 && len(shown(m)) == 2 })
				w.ok(a.c.Close(context.Background()))
				w.within(time.Minute, "b owns all", func() bool { return len(shown(m)) == 4 })
				mu.Lock()
				defer mu.Unlock()
				for _, op := range []string{
					"connect", "register", "heartbeat", "listen", "join", "snapshot", "apply", "read", "release", "end",
				} {
					if seen[op] < 2 {
						t.Errorf("the function ran in %d statements %q, of %v", seen[op], op, seen)
					}
				}
			})
		})
	}
}

// A tracer of statements, or another function in a statement, may not return.
func TestStatementThatNeverEndsDelaysNoEnd(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithTTL(2*time.Second))
		l := a.owning("x", 2)
		hold := l.Hold(context.Background())
		defer hold.Release()
		ended := make(chan time.Time, 1)
		context.AfterFunc(hold.Context(), func() { ended <- time.Now() })
		w.inject(func(client, _ string) (fault, bool) { return fault{deaf: time.Minute}, client == a.name })
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := a.c.Close(ctx); err == nil || time.Since(began) > 8*time.Second {
			t.Errorf("Close returned %v after %v", err, time.Since(began))
		}
		if after := (<-ended).Sub(began); after > 2*time.Second {
			t.Errorf("the context of a hold ended after %v, with a TTL of 2s", after)
		}
	})
}
