package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
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
	err := recovered(logged(func(context.Context, pgleases.Partition) error { panic("out of range") }))(t.Context(), pgleases.Partition{})
	if err == nil || !strings.Contains(err.Error(), "out of range") || !strings.Contains(err.Error(), "example_middleware_test.go") {
		t.Errorf("a panic became %v", err)
	}
	failure := errors.New("no disk")
	err = recovered(logged(func(context.Context, pgleases.Partition) error { return failure }))(t.Context(), pgleases.Partition{})
	if !errors.Is(err, failure) {
		t.Errorf("an error became %v", err)
	}
}
