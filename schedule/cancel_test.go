package schedule_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The context of a run whose job is canceled, or whose schedule is deleted, ends at once, and nothing
// of the run is committed. Its place is free again.
func TestCancelEndsARun(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(1))
	w.Times().Poll, w.Times().Silence = rarely, rarely // only a notification tells
	// heard lets the next change notify, also within the fifth of a second.
	heard := func() { db.exec("SELECT setval('pgleases.notified', 1)") }
	began, causes := make(chan struct{}), make(chan error, 1)
	wait := func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil // it claims success
	}
	write := func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if err := leave(ctx, tx, "inside", r); err != nil {
			return err
		}
		return wait(ctx)
	}
	inTx := schedule.InTx(w.Scheduler, "in a transaction", write, schedule.WithTimeout(time.Hour))
	outside := func(ctx context.Context, _ schedule.Run[args]) error { return wait(ctx) }
	least := schedule.AtLeastOnce(w.Scheduler, "at least once", outside, schedule.WithTimeout(time.Hour))
	most := schedule.AtMostOnce(w.Scheduler, "at most once", outside, schedule.WithTimeout(time.Hour))
	busy := schedule.InTx(w.Scheduler, "busy", func(ctx context.Context, tx pgx.Tx, _ schedule.Run[args]) error {
		began <- struct{}{}
		_, err := tx.Exec(ctx, "SELECT pg_sleep(600)")
		causes <- context.Cause(ctx)
		return err
	}, schedule.WithTimeout(time.Hour))
	manager := testkit.Must(schedule.Manage(t.Context(), db.Pool, group))(t) // another process
	w.run()
	kinds := map[string]*schedule.Kind[args]{
		"InTx": inTx, "AtLeastOnce": least, "AtMostOnce": most, "a statement": busy,
	}
	for what, k := range kinds {
		heard()
		id := testkit.Must(k.Enqueue(t.Context(), args{}))(t)
		testkit.Receive(t, what+" begins", began)
		heard()
		testkit.OK(t, manager.Cancel(t.Context(), id))
		wraps(t, "cause of "+what, testkit.Receive(t, what+" ends", causes), schedule.ErrCanceled)
		expect(t, w.outcome(id).Outcome, schedule.OutcomeCanceled, what)
	}
	testkit.OK(t, inTx.Put(t.Context(), "deleted", args{}, hourly))
	db.setClock(midnight.Add(time.Hour))
	heard()
	db.exec("SELECT pgleases.notify('schedule/" + group + "')") // polls are rare here
	testkit.Receive(t, "the schedule's run begins", began)
	heard()
	testkit.OK(t, manager.Delete(t.Context(), "deleted"))
	wraps(t, "cause of the schedule's run", testkit.Receive(t, "the schedule's run ends", causes), schedule.ErrCanceled)
	w.end()
	expect(t, len(db.effects()), 0, "effects of canceled runs")
	expect(t, db.count("pgleases.history WHERE outcome <> 'canceled'"), 0, "other outcomes")
}
