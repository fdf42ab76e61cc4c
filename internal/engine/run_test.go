package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A callback may end its goroutine, as a failing test does, or return an error that panics when it
// is inspected. Its partition moves as if it had returned, and Run returns.
func TestRunOfCallbacksThatMisbehave(t *testing.T) {
	for name, callback := range map[string]func(context.Context) error{
		"ends its goroutine": func(context.Context) error { runtime.Goexit(); return nil },
		"ends its goroutine when asked to": func(ctx context.Context) error {
			<-ctx.Done()
			runtime.Goexit()
			return nil
		},
		"returns an error that panics": func(ctx context.Context) error {
			<-ctx.Done()
			var err *net.DNSError
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				l := w.start("a").mustJoin("x", 2)
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan error, 1)
				go func() {
					ended <- l.Run(ctx, func(ctx context.Context, _ pgleases.Partition) error { return callback(ctx) })
				}()
				w.within(5*time.Second, "a owns both", func() bool { return shows(l) == "0-1" })
				other := w.start("b").mustJoin("x", 2)
				w.within(10*time.Second, "b owns one", func() bool { return len(shown(other)) == 1 })
				cancel()
				w.within(5*time.Second, "Run has returned", func() bool { return len(ended) == 1 })
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		})
	}
}

// A misbehavingError misbehaves when it is inspected.
type misbehavingError struct{ text, is func() }

func (e misbehavingError) Error() string { e.text(); return "no paper" }
func (e misbehavingError) Is(error) bool { e.is(); return false }

// The methods of an error that a callback returns may do what they like. The callback has failed, and
// is called again. Run returns when its context ends.
func TestRunOutlivesTheMethodsOfErrors(t *testing.T) {
	for _, way := range testkit.Misbehaves {
		for _, method := range []string{"Error", "Is"} {
			t.Run(method+" "+way, func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					hang := make(chan struct{})
					defer close(hang)
					misbehave, good := func() { testkit.Misbehave(way, hang) }, func() {}
					failure := misbehavingError{text: good, is: misbehave}
					if method == "Error" {
						failure = misbehavingError{text: misbehave, is: good}
					}
					l := w.start("a").mustJoin("x", 1)
					ctx, cancel := context.WithCancel(context.Background())
					var calls atomic.Int64
					ended := make(chan error, 1)
					go func() {
						ended <- l.Run(ctx, func(context.Context, pgleases.Partition) error {
							calls.Add(1)
							return failure
						})
					}()
					w.within(10*time.Second, "it is called again", func() bool { return calls.Load() >= 2 })
					cancel()
					w.within(5*time.Second, "Run has returned", func() bool { return len(ended) == 1 })
				})
			})
		}
	}
}

// Callbacks of many partitions that fail for one reason get one line, and no error is left out.
func TestFailuresOfManyCallbacksAreOneLine(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		l := w.start("a").owning("x", 300)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- l.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
				switch {
				case p.Number == 7:
					return errors.New("no paper")
				case p.Number == 8:
					<-ctx.Done()
					return errors.New("no ink")
				}
				return fmt.Errorf("guard partition %d: %w", p.Number, pgleases.ErrNotOwner)
			})
		}()
		time.Sleep(1100 * time.Millisecond)
		cancel()
		<-done
		w.mu.Lock()
		defer w.mu.Unlock()
		errors := slices.DeleteFunc(w.events, func(line string) bool {
			return !strings.Contains(line, "ERROR pgleases: callback failed lease=x ")
		})
		const notOwner = `guard partition \d+: pgleases: not the owner`
		for _, want := range []string{
			`partitions=\[0-6,9-299\] count=\d{3,4} error=` + notOwner + ` asked_to_end=false`,
			`partitions=\[7\] count=\d error=no paper asked_to_end=false`,
			`partitions=\[8\] count=1 error=no ink asked_to_end=true`,
		} {
			if !slices.ContainsFunc(errors, regexp.MustCompile(want+"$").MatchString) {
				t.Errorf("none of %q is %s", errors, want)
			}
		}
		if len(errors) > 5 { // two errors may have a line in each of two seconds
			t.Errorf("%d lines: %q", len(errors), errors)
		}
	})
}

// After a freeze, a callback may see its loss before the client does, and return an error that is
// no new fault.
func TestErrorAfterLossIsAWarning(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.mustJoin("x", 2)
		go func() {
			_ = l.Run(context.Background(), func(_ context.Context, p pgleases.Partition) error {
				for a.c.Stats().Trust > 0 {
					time.Sleep(time.Millisecond)
				}
				if p.Number == 1 {
					return (*net.DNSError)(nil) // its methods panic
				}
				return errors.New("terminating connection (SQLSTATE 25P03)")
			})
		}()
		w.within(5*time.Second, "a owns both", func() bool { return shows(l) == "0-1" })
		a.engine().Freeze(10 * time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		nilPointer := "the callback returned a *net.DNSError whose methods cannot be called: panic: " +
			"runtime error: invalid memory address or nil pointer dereference"
		for _, want := range []string{
			"[0] count=1 error=terminating connection (SQLSTATE 25P03)",
			"[1] count=1 error=" + nilPointer,
		} {
			want = failedAfter + want + " cause=" + wrap.Text(pgleases.ErrTrustLost)
			if all := strings.Join(w.events, "\n"); !strings.Contains(all, want) || strings.Contains(all, "ERROR") {
				t.Errorf("there is an error, or no %s in\n%s", want, all)
			}
		}
	})
}

// Of callbacks that fail alike within a second, each line names the cause of its own losses.
func TestEachLossKeepsItsCause(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.mustJoin("x", 2, pgleases.WithDrainTimeout(time.Second))
		lost, finish := make(chan int, 2), make(chan struct{})
		go func() {
			_ = l.Run(context.Background(), func(_ context.Context, p pgleases.Partition) error {
				<-p.Context().Done()
				lost <- p.Number
				<-finish
				return errors.New("conn closed")
			})
		}()
		w.within(5*time.Second, "a owns both", func() bool { return shows(l) == "0-1" })
		w.start("b").mustJoin("x", 2)
		timedOut := <-lost
		a.cutOff(true)
		cutOff := <-lost
		close(finish)
		time.Sleep(2 * time.Second) // of simulated time: the lines are logged within one
		w.mu.Lock()
		defer w.mu.Unlock()
		for partition, cause := range map[int]error{timedOut: pgleases.ErrDrainTimeout, cutOff: pgleases.ErrTrustLost} {
			want := fmt.Sprintf("%s[%d] count=1 error=conn closed cause=%s", failedAfter, partition, wrap.Text(cause))
			if all := strings.Join(w.events, "\n"); !strings.Contains(all, want) {
				t.Errorf("there is no %s in\n%s", want, all)
			}
		}
	})
}
