package pgleasestest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/pgleasestest"
)

func TestTheClientTakesLocksWithoutAPool(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		locks := lock.New(lease.Client(), nil)
		first := testkit.Must(locks.TryAcquire(t.Context(), "report"))(t)
		if _, err := locks.TryAcquire(t.Context(), "report"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("a lock that is held: %v", err)
		}
		if ran, err := locks.TryDo(t.Context(), "report", func(context.Context) error { return nil }); ran || err != nil {
			t.Errorf("TryDo of a lock that is held: %v, %v", ran, err)
		}
		if err := first.Guard(t.Context(), nil); err != nil {
			t.Errorf("guard: %v", err)
		}
		next := make(chan *lock.Held)
		go func() {
			h, err := locks.Acquire(t.Context(), "report")
			if err != nil {
				t.Error(err)
			}
			next <- h
		}()
		synctest.Wait()
		began := time.Now()
		if err := first.Release(t.Context()); err != nil {
			t.Error(err)
		}
		second := <-next
		if took := time.Since(began); took != 0 {
			t.Errorf("it was canceled after %v", took)
		}
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
		if err := first.Guard(t.Context(), nil); !errors.Is(err, lock.ErrLost) {
			t.Errorf("guard after the release: %v", err)
		}
		if err := second.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestExpireEndsLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		locks := lock.New(lease.Client(), nil)
		held := testkit.Must(locks.Acquire(t.Context(), "report"))(t)
		lease.Expire()
		if cause := context.Cause(held.Context()); !errors.Is(cause, lock.ErrLost) || !errors.Is(cause, pgleases.ErrTrustLost) {
			t.Errorf("it ended with %v", cause)
		}
		if err := held.Guard(t.Context(), nil); !errors.Is(err, lock.ErrLost) {
			t.Errorf("guard: %v", err)
		}
		again := testkit.Must(locks.Acquire(t.Context(), "report"))(t)
		if err := held.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("release: %v", err)
		}
		if err := again.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
