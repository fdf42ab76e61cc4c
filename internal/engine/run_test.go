package engine_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	. "github.com/pgleases/pgleases"
)

// A callback may end its goroutine, as a failing test does, or return an error that panics when it
// is inspected. Its partition moves as if it had returned, and Run returns.
func TestRunOfCallbacksThatMisbehave(t *testing.T) {
	for name, callback := range map[string]func(context.Context) error{
		"ends its goroutine":               func(context.Context) error { runtime.Goexit(); return nil },
		"ends its goroutine when asked to": func(ctx context.Context) error { <-ctx.Done(); runtime.Goexit(); return nil },
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
				go func() { ended <- l.Run(ctx, func(ctx context.Context, _ Partition) error { return callback(ctx) }) }()
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
