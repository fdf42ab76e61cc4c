package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// shows waits until a view says of a row what is wanted. The row is named by what stands in its first column but the group.
func (db *database) shows(view, of, columns, want string) {
	db.t.Helper()
	got := ""
	query := fmt.Sprintf("SELECT concat_ws(' | ', %s) FROM pgleases.%s WHERE $1 IN (name, args #>> '{}')", columns, view)
	testkit.Until(db.t, fmt.Sprintf("%s of %s in %s are %q", columns, of, view, want), func() bool {
		rows, _ := db.Query(context.Background(), query, of)
		all := testkit.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(db.t)
		if now := strings.Join(all, "; "); now != got {
			db.t.Logf("%s: %s", of, now)
			got = now
		}
		return got == want
	})
}

// The view shows the state of each schedule, with its reason.
func TestViewOfSchedules(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	in, out, end := make(chan struct{}, 10), make(chan struct{}, 10), make(chan struct{})
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		switch {
		case r.Args == "runs":
			in <- struct{}{}
			released(ctx, end)
		case r.Args == "fails", r.Args == "stops":
			return errors.New("no paper")
		}
		return leave(ctx, tx, r.Name, r)
	})
	again := schedule.InTx(w.Scheduler, "again", func(context.Context, pgx.Tx, schedule.Run[string]) error { return errors.New("no ink") },
		schedule.WithMaxAttempts(2, schedule.Backoff(time.Hour, time.Hour)))
	outside := schedule.AtLeastOnce(w.Scheduler, "outside", func(ctx context.Context, r schedule.Run[string]) error {
		out <- struct{}{}
		released(ctx, end)
		return nil
	})
	defer close(end)
	rule := schedule.Cron("0 1 * * *", "UTC")
	for _, name := range []string{"runs", "does", "paused", "fails"} {
		testkit.OK(t, k.Put(t.Context(), name, name, rule))
	}
	testkit.OK(t, k.Put(t.Context(), "stops", "stops", rule, schedule.WithPauseAfter(1)))
	testkit.OK(t, k.Put(t.Context(), "planned", "planned", schedule.Cron("0 3 * * *", "UTC")))
	testkit.OK(t, again.Put(t.Context(), "retries", "retries", rule))
	testkit.OK(t, outside.Put(t.Context(), "outside", "outside", rule))
	testkit.OK(t, schedule.InTx(newWorker(db).Scheduler, "unknown", effect).Put(t.Context(), "waits", args{}, rule))
	testkit.OK(t, w.Pause(t.Context(), "paused"))
	const what = "state, why"
	db.setClock(midnight.Add(61 * time.Minute))
	db.shows("schedules_status", "does", "state, why, lateness, owner", "due | its partition has no owner | 00:01:00")
	db.setClock(midnight)
	w.run()
	db.polled()
	db.shows("schedules_status", "planned", "kind, key, rule, state, why, lateness, failures, attempts, error, extract(epoch FROM due)::bigint, owner IS NOT NULL",
		fmt.Sprintf("books | planned | CRON_TZ=UTC 0 3 * * * | planned | 0 | 0 | %d | t", midnight.Add(3*time.Hour).Unix()))
	db.setClock(midnight.Add(61 * time.Minute))
	testkit.Receive(t, "a handler runs in a transaction", in)
	testkit.Receive(t, "a handler runs outside", out)
	db.shows("schedules_status", "runs", "state, lateness, backend IS NULL, started_at IS NULL, last_outcome", "running | 00:01:00 | f | f")
	expect(t, one[string](db, "SELECT a.state FROM pgleases.schedules_status AS s JOIN pg_stat_activity AS a ON a.pid = s.backend WHERE s.name = 'runs'"), "idle in transaction", "what the run's session does")
	db.shows("schedules_status", "outside", "state, backend IS NULL, started_at = pgleases.schedule_clock()", "running | t | t")
	db.shows("schedules_status", "does", "state, last_outcome, succeeded IS NOT NULL, failures, error", "planned | succeeded | t | 0")
	db.shows("schedules_status", "fails", "state, last_outcome, failures, error", "planned | failed | 1 | no paper")
	db.shows("schedules_status", "stops", what, "paused | 1 consecutive ticks failed")
	db.shows("schedules_status", "paused", "state, why, lateness, due", "paused | infinity")
	db.shows("schedules_status", "waits", `state, split_part(why, ';', 1)`, `blocked | kind "unknown" is not registered`)
	db.shows("schedules_status", "retries", "state, why ~ '^attempt 2 is at 2026-03-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ$', attempts, failures, error, lateness", "retrying | t | 1 | 0 | no ink | 00:01:00")
	db.exec("UPDATE pgleases.schedules SET outages = 1, attempts = 0 WHERE name = 'retries'")
	db.shows("schedules_status", "retries", "state, why ~ '^its kind is paused, because something that the handler needs is away: attempt 1 is at 2026-'", "retrying | t")
	db.ownerDies("UPDATE pgleases.schedules SET due = pgleases.schedule_clock() - interval '1 hour' WHERE name = 'planned'", "SELECT why FROM pgleases.schedules_status WHERE name = 'planned'")
}

// ownerDies expects the reason of what is due to be that its owner is not live, and not that the owner is busy.
func (db *database) ownerDies(due, why string) {
	t := db.t
	t.Helper()
	tx := testkit.Must(db.Pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(t.Context()) }()
	for expiry, want := range map[string]string{"infinity": "its owner is busy, or it waits for a run of its key or for the limit of its kind", "-infinity": "its owner is not live"} {
		testkit.Must(tx.Exec(t.Context(), "UPDATE pgleases.clients SET expires_at = $1::timestamptz", expiry))(t)
		testkit.Must(tx.Exec(t.Context(), due))(t)
		var got string
		testkit.OK(t, tx.QueryRow(t.Context(), why).Scan(&got))
		expect(t, got, want, "why it is due if its owner expires at "+expiry)
	}
}

// The view shows the state of each job, with its reason.
func TestViewOfJobs(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	in, end, handler := halting(func(r schedule.Run[string]) bool { return r.Args == "runs" }, func(context.Context, pgx.Tx, schedule.Run[string]) error { return errors.New("no ink") })
	mail := schedule.InTx(w.Scheduler, "mail", handler, schedule.WithMaxAttempts(2, schedule.Backoff(time.Hour, time.Hour)))
	defer close(end)
	put := func(what string, opts ...schedule.JobOption) {
		t.Helper()
		testkit.Must(mail.Enqueue(t.Context(), what, opts...))(t)
	}
	put("runs")
	put("retries")
	put("planned", schedule.WithDelay(time.Hour), schedule.WithUnique("inv-7", schedule.OnConflictReject), schedule.WithJobKey("ada"), schedule.WithPriority(2))
	testkit.Must(schedule.InTx(newWorker(db).Scheduler, "unknown", note).Enqueue(t.Context(), "waits"))(t)
	db.setClock(midnight.Add(time.Minute))
	db.shows("jobs_status", "runs", "state, why, lateness, owner", "due | its partition has no owner | 00:01:00")
	w.run()
	testkit.Receive(t, "one runs", in)
	db.shows("jobs_status", "runs", "state, lateness, backend IS NULL, owner IS NULL", "running | 00:01:00 | f | f")
	db.shows("jobs_status", "retries", "state, why ~ '^attempt 2 is at 2026-03-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ$', attempts, error, lateness", "retrying | t | 1 | no ink | 00:01:00")
	db.exec("UPDATE pgleases.jobs SET outages = 1, attempts = 0 WHERE args = '\"retries\"'")
	db.shows("jobs_status", "retries", "state, why ~ '^its kind is paused, because something that the handler needs is away: attempt 1 is at 2026-'", "retrying | t")
	db.shows("jobs_status", "waits", `state, split_part(why, ';', 1)`, `blocked | kind "unknown" is not registered`)
	db.shows("jobs_status", "planned", "state, why, lateness, kind, name, trigger, key, priority, unique_key, attempts, crashes", "planned | mail | inv-7 | job | ada | 2 | inv-7 | 0 | 0")
	db.ownerDies("UPDATE pgleases.jobs SET due = pgleases.schedule_clock() - interval '1 hour' WHERE unique_key = 'inv-7'", "SELECT why FROM pgleases.jobs_status WHERE unique_key = 'inv-7'")
}
