package schedule_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// A run whose outcome cannot be written because of a lock gives its place up, and is recorded when
// the lock is free.
func TestLockedOutcomeGivesItsPlaceUp(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(1))
	w.Times().LockWait = 100 * time.Millisecond
	locked := make(chan struct{})
	calling := make(chan struct{}, 1)
	k := schedule.AtLeastOnce(w.Scheduler, "calls", func(ctx context.Context, r schedule.Run[string]) error {
		if r.Args == "first" {
			calling <- struct{}{}
			released(ctx, locked)
		}
		return nil
	})
	w.run()
	first := testkit.Must(k.Enqueue(t.Context(), "first"))(t)
	testkit.Receive(t, "the first is called", calling)
	lock := db.begin("SELECT FROM pgleases.jobs FOR UPDATE")
	close(locked)
	second := testkit.Must(k.Enqueue(t.Context(), "second"))(t)
	expect(t, w.outcome(second).Outcome, schedule.OutcomeSucceeded, "outcome of another in the only place")
	testkit.OK(t, lock.Rollback(t.Context()))
	e := w.outcome(first)
	expect(t, e.Outcome, schedule.OutcomeSucceeded, "outcome of what was locked")
	expect(t, e.Attempts, 1, "its attempts")
}
