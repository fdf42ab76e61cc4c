package schedule_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The database refuses to record an outcome. The handler is called again less and less often, which
// counts no attempt, and the log names the remedy.
func TestUnrecordedOutcomeSlowsItsRunDown(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	w, log := newLogged(db)
	var called atomic.Int64
	out := schedule.AtLeastOnce(w.Scheduler, "out", func(context.Context, schedule.Run[args]) error {
		called.Add(1)
		return nil
	}, tries(1, time.Second))
	db.exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
		CREATE TRIGGER refuse BEFORE INSERT ON pgleases.history FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	since := time.Now()
	id := testkit.Must(out.Enqueue(t.Context(), args{}))(t)
	w.run()
	testkit.Until(t, "it is called", func() bool { return called.Load() > 0 })
	for range 8 {
		db.polled()
	}
	calls, most := called.Load(), 1+int64(time.Since(since)/time.Second)
	if calls > most {
		t.Errorf("a handler was called %d times, not %d at most", calls, most)
	}
	const remedy = "such as a trigger on the table history"
	testkit.Until(t, "the remedy is named", func() bool { return log.count(remedy) > 0 })
	db.exec("DROP TRIGGER refuse ON pgleases.history")
	j := w.outcome(id)
	expect(t, j.Outcome, schedule.OutcomeSucceeded, "outcome")
	expect(t, j.Attempts, 1, "attempts")
}

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
