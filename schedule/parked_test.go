package schedule_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The database refuses to record outcomes. The handlers are called again less and less often, which
// counts no attempt, and the log names the remedy. Then each job succeeds once.
func TestUnrecordedOutcomeSlowsItsRunDown(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	w, log := newLogged(db)
	var called [2]atomic.Int64
	out := schedule.AtLeastOnce(w.Scheduler, "out", func(context.Context, schedule.Run[args]) error {
		called[0].Add(1)
		return nil
	}, schedule.WithMaxAttempts(1, schedule.Backoff(time.Second, time.Second)))
	in := schedule.InTx(w.Scheduler, "in", func(context.Context, pgx.Tx, schedule.Run[args]) error {
		called[1].Add(1)
		return nil
	}, schedule.WithMaxAttempts(3, schedule.Backoff(time.Millisecond, time.Millisecond)))
	db.exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
		CREATE TRIGGER refuse BEFORE INSERT ON pgleases.history FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	since := time.Now()
	jobs := []int64{testkit.Must(out.Enqueue(t.Context(), args{}))(t), testkit.Must(in.Enqueue(t.Context(), args{}))(t)}
	w.run()
	testkit.Until(t, "both are called", func() bool { return called[0].Load() > 0 && called[1].Load() > 0 })
	for range 8 {
		db.polled()
	}
	calls, most := max(called[0].Load(), called[1].Load()), 1+int64(time.Since(since)/time.Second)
	if calls > most {
		t.Errorf("a handler was called %d times, not %d at most", calls, most)
	}
	testkit.Until(t, "the remedy is named", func() bool { return log.count("such as a trigger on the table history") > 0 })
	db.exec("DROP TRIGGER refuse ON pgleases.history")
	for _, id := range jobs {
		expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
	}
	// That of the other may have failed to commit before, and be recorded as failed after.
	expect(t, w.outcome(jobs[0]).Attempts, 1, "attempts of the call outside of a transaction")
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
