package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/seam"
)

// With fast fail-over, a process that was stopped does not know whether it lives. A lock that is looked at then is refused, and not lost.
func TestALockOfAStoppedProcessIsRefusedUntilTheServerHasAnswered(t *testing.T) {
	left, over := time.Second, false
	h := newHeld(t.Context(), &Locks{}, &seam.Acquisition{
		Name: "x", Left: func() time.Duration { return left }, Over: func() bool { return over },
	}, false, 1)
	says := func(what string, wanted ...error) {
		t.Helper()
		cause := context.Cause(h.Context())
		guard := h.guard(t.Context(), func(string, ...any) error { t.Errorf("%s: it asks the database", what); return nil })
		for _, want := range wanted {
			if !errors.Is(cause, want) || !errors.Is(guard, want) {
				t.Errorf("%s: its context ended with %v, its guard is %v, not %v", what, cause, guard, want)
			}
		}
	}
	before := h.Context()
	if err := before.Err(); err != nil {
		t.Errorf("it is held, and its context has ended: %v", err)
	}
	left = 0
	says("stopped", pgleases.ErrTrustLost)
	if errors.Is(context.Cause(h.Context()), ErrLost) {
		t.Error("it is lost")
	}
	left = time.Second
	if err := errors.Join(h.Context().Err(), before.Err()); err != nil {
		t.Errorf("the server has answered, and its context has ended: %v", err)
	}
	left, over = 0, true
	says("past the deadline", ErrLost, pgleases.ErrTrustLost)
	left, over = time.Second, false
	says("afterwards", ErrLost)
	if before.Err() == nil {
		t.Error("a context of before goes on")
	}
}
