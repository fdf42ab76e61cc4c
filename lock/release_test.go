package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/lock"
)

// A deferred release often has the context of the work, which has ended by then.
func TestAReleaseWhoseContextHasEndedReleasesAllTheSame(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a := newWorker(t, url)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		h := a.held(a.TryAcquire, "x")
		if err := h.Release(ended); err != nil { // the client may be the faster one
			wraps(t, "release", err, context.Canceled)
		}
		testkit.Becomes(t, db, "the client has released it", 0, rows)
	}
}

// The first call gave up waiting, and the client continued to release the lock, which was never
// lost.
func TestRepeatedReleaseReturnsNil(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a := newWorker(t, url)
	h := a.held(a.TryAcquire, "x")
	tx := testkit.Must(db.Begin(t.Context()))(t)
	testkit.OK(t, h.Guard(t.Context(), tx)) // it has the release wait
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wraps(t, "the first call", h.Release(ctx), context.DeadlineExceeded)
	testkit.OK(t, tx.Commit(t.Context()))
	testkit.Becomes(t, db, "the client has released it", 0, rows)
	testkit.OK(t, h.Release(t.Context()))
}

// Do returns it to show that another client may have run before fn ended.
func TestAReleaseAfterTheClientHasEndedReturnsErrLost(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	a := newWorker(t, url)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	h := a.held(a.TryAcquire, "x")
	err := a.Do(t.Context(), "y", func(context.Context) error { _ = a.client.Close(ended); return nil })
	wraps(t, "Do", err, lock.ErrLost, pgleases.ErrClosed)
	wraps(t, "cause", context.Cause(h.Context()), pgleases.ErrClosed)
	wraps(t, "release", h.Release(t.Context()), lock.ErrLost, pgleases.ErrClosed)
}

// The database cannot be reached, so the release does not end in time; and another client may have
// run before fn ended.
func TestDoReturnsErrLostWhereTheReleaseCannotBeSent(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	timeguard.Run(t, doReturnsErrLostWhereTheReleaseCannotBeSent)
}

func doReturnsErrLostWhereTheReleaseCannotBeSent(t *timeguard.Try) {
	t.Brief(time.Second)
	url := newDatabase(t)
	a := newWorker(t, url, pgleases.WithTTL(time.Second), pgleases.WithHeartbeat(100*time.Millisecond))
	err := a.Do(t.Context(), "x", func(ctx context.Context) error {
		a.own.Cut()
		a.app.Cut()
		<-ctx.Done()
		return nil
	})
	wraps(t, "Do", err, lock.ErrLost, context.DeadlineExceeded)
}
