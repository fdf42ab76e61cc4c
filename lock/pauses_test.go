package lock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/locks"
	"github.com/pgleases/pgleases/internal/owned"
)

// With fast failover, a process that was stopped does not know whether its session lives. A lock
// that is checked then is refused, and not lost.
func TestLockOfStoppedProcessNeedsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		validity := owned.ValidWhileAllowed(time.Now(), time.Hour)
		validity.Allow(time.Now().Add(time.Minute))
		h := newHeld(t.Context(), &Locks{}, &locks.Acquisition{Name: "x", Validity: validity}, false, 1)
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
		time.Sleep(time.Minute)
		says("stopped", pgleases.ErrTrustLost)
		if errors.Is(context.Cause(h.Context()), ErrLost) {
			t.Error("it is lost")
		}
		validity.Allow(time.Now().Add(time.Minute))
		if err := errors.Join(h.Context().Err(), before.Err()); err != nil {
			t.Errorf("the server has answered, and its context has ended: %v", err)
		}
		validity.End()
		says("past the deadline", ErrLost, pgleases.ErrTrustLost)
		says("afterwards", ErrLost)
		if before.Err() == nil {
			t.Error("a context of before goes on")
		}
	})
}
