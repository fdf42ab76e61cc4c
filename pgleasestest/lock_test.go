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
		ran, err := locks.TryDo(t.Context(), "report", func(context.Context) error { return nil })
		if ran || err != nil {
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

// A lock is not reentrant. A call that waits for its own caller would wait forever.
func TestNestedLockNamesItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		locks := lock.New(lease.Client(), nil)
		never := func(context.Context) error { t.Error("the inner function runs"); return nil }
		testkit.OK(t, locks.Do(t.Context(), "report", func(ctx context.Context) error {
			testkit.OK(t, locks.Do(ctx, "other", func(ctx context.Context) error {
				err := locks.Do(ctx, "report", never)
				want := `pgleases: acquire lock "report": lock is held: by the caller itself, ` +
					"whose context comes from this lock; a lock is not reentrant"
				if !errors.Is(err, lock.ErrHeld) || err.Error() != want {
					t.Errorf("nested: %v", err)
				}
				return nil
			}))
			ran, err := locks.TryDo(ctx, "report", never)
			if ran || err != nil {
				t.Errorf("TryDo: %v, %v", ran, err)
			}
			return nil
		}))
		held := testkit.Must(locks.AcquireShared(t.Context(), "report"))(t)
		if _, err := locks.Acquire(held.Context(), "report"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("under the context of a shared lock: %v", err)
		}
		again := testkit.Must(locks.AcquireShared(held.Context(), "report"))(t)
		testkit.OK(t, again.Release(t.Context()))
		testkit.OK(t, held.Release(t.Context()))
		after := context.WithoutCancel(held.Context())
		testkit.OK(t, testkit.Must(locks.Acquire(after, "report"))(t).Release(after))
	})
}

func TestExpireEndsLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		locks := lock.New(lease.Client(), nil)
		held := testkit.Must(locks.Acquire(t.Context(), "report"))(t)
		lease.Expire()
		cause := context.Cause(held.Context())
		if !errors.Is(cause, lock.ErrLost) || !errors.Is(cause, pgleases.ErrTrustLost) {
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
