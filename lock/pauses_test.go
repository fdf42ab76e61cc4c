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
	"github.com/pgleases/pgleases/internal/store"
)

// With fast failover, a process that was stopped does not know whether its session lives. A lock
// that is checked then is refused, and not lost. A guard asks the database.
func TestLockOfStoppedProcessNeedsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		validity := owned.ValidWhileAllowed(time.Now(), time.Hour)
		validity.Allow(time.Now().Add(time.Minute))
		table := &guardTable{}
		h := newHeld(t.Context(), &Locks{table: table}, &locks.Acquisition{Name: "x", Validity: validity}, false, 1)
		says := func(what string, wanted ...error) {
			t.Helper()
			cause := context.Cause(h.Context())
			guard := h.guard(t.Context(), nil)
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
		cause, guard := context.Cause(h.Context()), h.guard(t.Context(), nil)
		if !errors.Is(cause, locks.ErrPaused) || errors.Is(cause, ErrLost) || guard != nil || table.guards != 1 {
			t.Errorf("stopped: its context ended with %v, and its guard, of %d that asked, is %v",
				cause, table.guards, guard)
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
		if table.guards != 1 {
			t.Errorf("the database was asked %d times", table.guards)
		}
	})
}

// A guardTable is a table of locks that counts guards, which pass.
type guardTable struct {
	locks.Table
	guards int
}

func (g *guardTable) Guard(context.Context, store.Query, string, int64, int64) error {
	g.guards++
	return nil
}
