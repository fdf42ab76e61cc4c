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
	query := fmt.Sprintf(`SELECT concat_ws(' | ', %s) FROM pgleases.%s
		WHERE $1 IN (name, args #>> '{}')`, columns, view)
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
	shows := func(of, columns, want string) {
		t.Helper()
		db.shows("schedules_status", of, columns, want)
	}
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
	again := schedule.InTx(w.Scheduler, "again", failing[string]("no ink"), tries(2, time.Hour))
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
	db.setClock(midnight.Add(61 * time.Minute))
	shows("does", "state, why, lateness, owner", "due | its partition has no owner | 00:01:00")
	db.setClock(midnight)
	w.run()
	db.polled()
	shows("planned", "kind, key, rule, state, why, lateness", "books | planned | CRON_TZ=UTC 0 3 * * * | planned")
	shows("planned", "failures, attempts, error, extract(epoch FROM due)::bigint, owner IS NOT NULL",
		fmt.Sprintf("0 | 0 | %d | t", midnight.Add(3*time.Hour).Unix()))
	db.setClock(midnight.Add(61 * time.Minute))
	testkit.Receive(t, "a handler runs in a transaction", in)
	testkit.Receive(t, "a handler runs outside", out)
	shows("runs", "state, lateness, backend IS NULL, started_at IS NULL, last_outcome", "running | 00:01:00 | f | f")
	session := one[string](db, `SELECT a.state FROM pgleases.schedules_status AS s
		JOIN pg_stat_activity AS a ON a.pid = s.backend WHERE s.name = 'runs'`)
	expect(t, session, "idle in transaction", "what the run's session does")
	shows("outside", "state, backend IS NULL, started_at = pgleases.schedule_clock()", "running | t | t")
	shows("does", "state, last_outcome, succeeded IS NOT NULL, failures, error", "planned | succeeded | t | 0")
	shows("fails", "state, last_outcome, failures, error", "planned | failed | 1 | no paper")
	shows("stops", "state, why", "paused | 1 consecutive ticks failed")
	shows("paused", "state, why, lateness, due", "paused | infinity")
	shows("waits", `state, split_part(why, ';', 1)`, `blocked | kind "unknown" is not registered`)
	shows("retries", "state, attempts, failures, error, lateness", "retrying | 1 | 0 | no ink | 00:01:00")
	shows("retries", whyRetried, "t")
	db.exec("UPDATE pgleases.schedules SET outages = 1, attempts = 0 WHERE name = 'retries'")
	shows("retries", "state, "+whyPaused, "retrying | t")
	db.ownerDies("schedules", "name = 'planned'")
}

const (
	// Conditions that the reason is that of what is tried again, because it failed or because something is away.
	whyRetried = `why ~ '^attempt 2 is at 2026-03-\d\dT\d\d:\d\d:\d\dZ$'`
	whyPaused  = `why ~ '^its kind is paused, because something that the handler needs is away: attempt 1 is at 2026-'`
)

const ownerIsBusy = "its owner is busy, or it waits for a run of its key or for the limit of its kind"

// ownerDies makes a row of a table due, and expects the reason to be that its owner is not live, and not that the owner
// is busy.
func (db *database) ownerDies(table, row string) {
	t := db.t
	t.Helper()
	tx := testkit.Must(db.Pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(t.Context()) }()
	due := fmt.Sprintf(`UPDATE pgleases.%s SET due = pgleases.schedule_clock() - interval '1 hour'
		WHERE %s`, table, row)
	why := fmt.Sprintf("SELECT why FROM pgleases.%s_status WHERE %s", table, row)
	for expiry, want := range map[string]string{"infinity": ownerIsBusy, "-infinity": "its owner is not live"} {
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
	runs := func(r schedule.Run[string]) bool { return r.Args == "runs" }
	in, end, handler := halting(runs, failing[string]("no ink"))
	mail := schedule.InTx(w.Scheduler, "mail", handler, tries(2, time.Hour))
	shows := func(of, columns, want string) {
		t.Helper()
		db.shows("jobs_status", of, columns, want)
	}
	defer close(end)
	put := func(what string, opts ...schedule.JobOption) {
		t.Helper()
		testkit.Must(mail.Enqueue(t.Context(), what, opts...))(t)
	}
	put("runs")
	put("retries")
	key, prio := schedule.WithJobKey("ada"), schedule.WithPriority(2)
	put("planned", schedule.WithDelay(time.Hour), rejecting("inv-7"), key, prio)
	testkit.Must(schedule.InTx(newWorker(db).Scheduler, "unknown", note).Enqueue(t.Context(), "waits"))(t)
	db.setClock(midnight.Add(time.Minute))
	shows("runs", "state, why, lateness, owner", "due | its partition has no owner | 00:01:00")
	w.run()
	testkit.Receive(t, "one runs", in)
	shows("runs", "state, lateness, backend IS NULL, owner IS NULL", "running | 00:01:00 | f | f")
	shows("retries", "state, attempts, error, lateness", "retrying | 1 | no ink | 00:01:00")
	shows("retries", whyRetried, "t")
	db.exec(`UPDATE pgleases.jobs SET outages = 1, attempts = 0 WHERE args = '"retries"'`)
	shows("retries", "state, "+whyPaused, "retrying | t")
	shows("waits", `state, split_part(why, ';', 1)`, `blocked | kind "unknown" is not registered`)
	shows("planned", "state, why, lateness, kind, name, trigger", "planned | mail | inv-7 | job")
	shows("planned", "key, priority, unique_key, attempts, crashes", "ada | 2 | inv-7 | 0 | 0")
	db.ownerDies("jobs", "unique_key = 'inv-7'")
}
