package lock_test

import "testing"

// An acquisition whose answer did not come is asked for once more. The first message may arrive after the lock was released.
func TestAnAcquisitionThatArrivesAfterItsReleaseLeavesNothing(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := newPool(t, url)
	a, b := newWorker(t, url), newWorker(t, url)
	deliver := a.app.strand("lock_acquire")
	defer deliver()
	h := a.held(a.TryAcquire, "x")
	expect(t, a.app.toLose(), 0, "messages that were lost")
	release(t, h)
	expect(t, count(t, db, rows), 0, "rows")
	deliver()
	release(t, b.held(b.Acquire, "x"))
	expect(t, count(t, db, rows), 0, "rows")
}
