package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
)

// docs/handlers.md shows these functions.

// A worker works on one partition until ctx ends.
type worker func(ctx context.Context, p pgleases.Partition) error

// recovered makes an error of a panic. Run logs it, and calls again after a pause.
func recovered(work worker) worker {
	return func(ctx context.Context, p pgleases.Partition) (err error) {
		defer func() {
			if fault := recover(); fault != nil {
				err = fmt.Errorf("panic: %v\n%s", fault, debug.Stack())
			}
		}()
		return work(ctx, p)
	}
}

// logged logs each call. Begin and end a span here, or count.
func logged(work worker) worker {
	return func(ctx context.Context, p pgleases.Partition) error {
		began := time.Now()
		err := work(ctx, p)
		slog.InfoContext(ctx, "worked", "partition", p.Number, "epoch", p.Epoch, "for", time.Since(began), "error", err)
		return err
	}
}

// The page wraps the function of Run as here.
var _ = func(ctx context.Context, lease *pgleases.Lease, work worker) error {
	return lease.Run(ctx, recovered(logged(work)))
}

func TestRecoveredPanicIsError(t *testing.T) {
	t.Parallel()
	ends := func(work worker) error { return recovered(logged(work))(t.Context(), pgleases.Partition{}) }
	err := ends(func(context.Context, pgleases.Partition) error { panic("out of range") })
	refused(t, "a panic", err, "out of range", "example_middleware_test.go")
	failure := errors.New("no disk")
	err = ends(func(context.Context, pgleases.Partition) error { return failure })
	if !errors.Is(err, failure) {
		t.Errorf("an error became %v", err)
	}
}
