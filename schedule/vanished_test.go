package schedule_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// If the server has vanished during a statement of the handler, and the connection does not say so,
// that is found out long before the timeout, and is no attempt.
func TestVanishedServerIsNoAttempt(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	w.Times().Look = 50 * time.Millisecond
	var calls atomic.Int64
	k := schedule.InTx(w.Scheduler, "k", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if calls.Add(1) > 1 {
			return leave(ctx, tx, "done", r)
		}
		var pid int // not the connection's, which a pooler gives
		if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			return err
		}
		deliver := w.wire.Delay("the statement that hangs") // also the end of the connection
		defer context.AfterFunc(ctx, deliver)()
		go func() { _, _ = db.Exec(context.WithoutCancel(ctx), "SELECT pg_terminate_backend($1)", pid) }()
		_, err := tx.Exec(ctx, "SELECT /* the statement that hangs */")
		return errors.Join(errors.New("it was answered"), err)
	}, schedule.WithTimeout(time.Hour))
	w.run()
	j := w.outcome(testkit.Must(k.Enqueue(t.Context(), args{}))(t))
	expect(t, j.Outcome, schedule.OutcomeSucceeded, "outcome")
	expect(t, j.Attempts, 1, "attempts")
	expect(t, len(db.effects()), 1, "effects")
}

// A timeout that passes while another server takes over is no attempt either.
func TestTimeoutDuringFailoverIsNoAttempt(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	db.exec(`CREATE TABLE public.servers (started timestamptz);
		INSERT INTO public.servers VALUES ('2026-01-01Z');
		GRANT SELECT ON public.servers TO PUBLIC;
		DO $$ BEGIN EXECUTE replace(pg_get_functiondef('pgleases.schedule_open'::regproc), 'pg_catalog.pg_postmaster_start_time()', '(SELECT started FROM public.servers)'); END $$`)
	w := newWorker(db)
	w.Times().Look = time.Hour
	var calls atomic.Int64
	k := schedule.InTx(w.Scheduler, "k", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if calls.Add(1) > 1 {
			return leave(ctx, tx, "done", r)
		}
		db.exec("UPDATE public.servers SET started = '2026-01-02Z'")
		_, err := tx.Exec(ctx, "SELECT pg_sleep(600)")
		return err
	}, schedule.WithTimeout(time.Second))
	w.run()
	j := w.outcome(testkit.Must(k.Enqueue(t.Context(), args{}))(t))
	expect(t, j.Outcome, schedule.OutcomeSucceeded, "outcome")
	expect(t, j.Attempts, 1, "attempts")
}
