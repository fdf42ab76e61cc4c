package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
)

// Code around a handler may call it in a goroutine, and not wait for it. The caller ends the
// transaction of the handler when Around returns, so nothing may run then.
func TestAroundWaitsForTheHandler(t *testing.T) {
	t.Parallel()
	own := errors.New("no trace")
	for name, c := range map[string]struct {
		end func() error
		is  error // nil: some error
	}{
		"returns nil":      {end: func() error { return nil }},
		"returns an error": {end: func() error { return own }, is: own},
		"panics":           {end: func() error { panic("on fire") }},
		"ends":             {end: func() error { runtime.Goexit(); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				returned := false
				err := handlers.Call(func() error {
					return handlers.Around(func(next func(context.Context) error) error {
						go func() { _ = next(t.Context()) }()
						synctest.Wait()
						return c.end()
					}, func(context.Context) error {
						time.Sleep(time.Minute)
						returned = true
						return nil
					})
				})
				if err == nil || c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("the run ends with %v", err)
				}
				if !returned {
					t.Error("the handler still runs")
				}
			})
		})
	}
}

// A call of next that comes too late would run beside what follows.
func TestAroundCallsNoHandlerAfterwards(t *testing.T) {
	t.Parallel()
	called := false
	var late func(context.Context) error
	err := handlers.Around(func(next func(context.Context) error) error {
		late = next
		return nil
	}, func(context.Context) error {
		called = true
		return nil
	})
	lateErr := late(t.Context())
	if err == nil || lateErr == nil || called {
		t.Errorf("Around returned %v, and next %v afterwards; the handler was called: %v", err, lateErr, called)
	}
}

// Work is reported twice if it is late, and else not at all: when it is late, and when it has ended.
func TestWatchReportsTheEndOfWhatIsLate(t *testing.T) {
	t.Parallel()
	watches := map[string]func(ctx context.Context, late func(), after func(time.Duration)) (ended func()){
		"its context": func(ctx context.Context, late func(), after func(time.Duration)) func() {
			return handlers.Watch(ctx, time.Second, late, after)
		},
		"a limit": func(_ context.Context, late func(), after func(time.Duration)) func() {
			return handlers.WatchFor(time.Second, late, after)
		},
	}
	for name, watch := range watches {
		reports := map[time.Duration]string{999 * time.Millisecond: "", 5 * time.Second: "late after 5s "}
		for takes, want := range reports {
			t.Run(fmt.Sprint(name, ", ", takes), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					said := ""
					after := func(lasted time.Duration) { said += fmt.Sprint("after ", lasted, " ") }
					ended := watch(ctx, func() { said += "late " }, after)
					time.Sleep(takes)
					ended()
					time.Sleep(time.Minute)
					if said != want {
						t.Errorf("it reports %q, not %q", said, want)
					}
				})
			})
		}
	}
}

// The end is reported after what late reports, however long that takes.
func TestEndOfWatchWaitsForLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		said := ""
		ended := handlers.WatchFor(time.Second, func() {
			time.Sleep(time.Second)
			said += "late "
		}, func(time.Duration) { said += "after" })
		time.Sleep(1500 * time.Millisecond)
		ended()
		if said != "late after" {
			t.Errorf("it reports %q", said)
		}
	})
}

func TestWithinWaitsForItsGraceAfterTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		after := func(took time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return handlers.Within(ctx, time.Second, func() error { time.Sleep(took); return errLate })
		}
		began := time.Now()
		if err := after(1900 * time.Millisecond); err != errLate {
			t.Errorf("within the grace: %v", err)
		}
		if err := after(time.Minute); err != handlers.ErrHangs || time.Since(began) != 3900*time.Millisecond {
			t.Errorf("past it, %v later: %v", time.Since(began), err)
		}
		time.Sleep(time.Minute) // what was left behind ends
	})
}

var errLate = errors.New("late")
