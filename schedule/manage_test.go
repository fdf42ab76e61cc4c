package schedule_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/sql"
)

// An operator is a role that has the rights of an operator and no more.
type operator struct {
	db   *database
	role string
	pool *pgxpool.Pool
}

func newOperator(db *database) *operator {
	db.t.Helper()
	role := strings.ToLower("operator_" + rand.Text())
	grants := testkit.Must(sql.Files.ReadFile("grants/operator.sql"))(db.t)
	rights := strings.ReplaceAll(string(grants), "pgleases_operator", role)
	db.exec("CREATE ROLE " + role + "; " + withdrawn + rights)
	db.t.Cleanup(func() { db.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	// Behind a pooler, others would get the connections with the role.
	direct, _ := pgtest.DirectURL(pgtest.OwnerURL(db.url))
	config := testkit.Must(pgtest.ParseConfig(direct))(db.t)
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SET ROLE "+role)
		return err
	}
	pool := testkit.Must(pgxpool.NewWithConfig(context.Background(), config))(db.t)
	db.t.Cleanup(pool.Close)
	return &operator{db, role, pool}
}

// manage is what the operator changes things with, for a reason.
func (o *operator) manage(reason, actor string) *schedule.Scheduler {
	o.db.t.Helper()
	why := schedule.WithReason(reason, actor)
	return testkit.Must(schedule.Manage(context.Background(), o.pool, group, why))(o.db.t)
}

// verbs returns what operators have done.
func (db *database) verbs() string {
	db.t.Helper()
	return one[string](db, "SELECT string_agg(cause, ', ' ORDER BY id) FROM pgleases.events WHERE actor IS NOT NULL")
}

// user is the role that connects to the database, as the events of operators name it.
func (db *database) user() string {
	db.t.Helper()
	return one[string](db, "SELECT session_user::text")
}

// An operator runs every verb with the rights of grants/operator.sql alone, and each is written down, with the role that connected.
func TestOperatorRunsEachVerb(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	bad := schedule.InTx(w.Scheduler, "mail", failing[args]("no paper"))
	testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly, missedAll))
	testkit.OK(t, bad.Put(t.Context(), "broken", args{}, hourly))
	planned := testkit.Must(k.Enqueue(t.Context(), args{}, schedule.WithDelay(1000*time.Hour)))(t)
	failed := testkit.Must(bad.Enqueue(t.Context(), args{}))(t)
	w.run()
	expect(t, w.outcome(failed).Outcome, schedule.OutcomeFailed, "outcome of the job")
	closing, broken := newLedger(db, "close"), newLedger(db, "broken")
	db.setClock(midnight.Add(time.Hour))
	closing.settled(w.Scheduler)
	broken.settled(w.Scheduler)

	m := newOperator(db).manage("why", "ann")
	testkit.OK(t, m.Pause(t.Context(), "close"))
	testkit.OK(t, m.Pause(t.Context(), "close")) // it is paused already
	ann := "ann (" + db.user() + "): why"
	db.shows("schedules_status", "close", "state, why", "paused | by "+ann)
	db.setClock(midnight.Add(2 * time.Hour))
	db.polled()
	testkit.OK(t, m.Resume(t.Context(), "close", schedule.ResumeCatchUp))
	closing.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2})
	testkit.OK(t, m.Pause(t.Context(), "close"))
	db.setClock(midnight.Add(4 * time.Hour))
	testkit.OK(t, m.Resume(t.Context(), "close", schedule.ResumeFromNow))
	testkit.OK(t, m.Resume(t.Context(), "close", schedule.ResumeFromNow)) // it is not paused any more
	closing.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2, schedule.OutcomeCanceled: 2})
	expect(t, closing.entries[0].Error, "resumed by "+ann, "why they were canceled")
	triggered := testkit.Must(m.Trigger(t.Context(), "close"))(t)
	expect(t, w.outcome(triggered).Trigger, "", "trigger of what has ended")
	ids := testkit.Must(m.Backfill(t.Context(), "close", midnight.Add(-time.Hour), midnight.Add(time.Hour)))(t)
	expect(t, len(ids), 2, "jobs of a backfill")
	none := testkit.Must(m.Backfill(t.Context(), "close", midnight.Add(time.Minute), midnight.Add(2*time.Minute)))(t)
	expect(t, len(none), 0, "jobs of a backfill without ticks")
	for _, id := range ids {
		expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome of a backfill")
	}
	testkit.OK(t, m.Cancel(t.Context(), planned))
	expect(t, w.outcome(planned).Error, ann, "why it was canceled")
	retried := testkit.Must(m.Retry(t.Context(), planned))(t)
	tick := testkit.Must(m.RetryTick(t.Context(), "broken", midnight.Add(time.Hour)))(t)
	w.outcome(tick)
	// The job was replaced while it failed, and only Retry repeats it.
	db.exec(fmt.Sprintf(`INSERT INTO pgleases.history OVERRIDING SYSTEM VALUE
			SELECT (jsonb_populate_record(h, '{"id": -1}')).* FROM pgleases.history AS h WHERE job = %[1]d;
		UPDATE pgleases.history SET outcome = 'unknown' WHERE job = %[1]d AND id > 0`, failed))
	again, refused, err := m.RetryFailed(t.Context(), "mail", midnight)
	testkit.OK(t, err)
	expect(t, fmt.Sprint(len(again), refused), "3 1", "what is retried of a kind: the job of a retry, and two ticks")
	s := testkit.Must(m.Get(t.Context(), "close"))(t)
	another := bridge.DeleteSchedule(t.Context(), m, "close", s.ID+1)
	wraps(t, "to delete another of the name", another, schedule.ErrNotFound)
	testkit.OK(t, bridge.DeleteSchedule(t.Context(), m, "close", s.ID))
	testkit.OK(t, m.Delete(t.Context(), "broken"))
	wraps(t, "to delete it again", m.Delete(t.Context(), "broken"), schedule.ErrNotFound)
	for _, foreign := range []*schedule.Kind[args]{k, bad} { // jobs that only have its name as a unique key
		id := testkit.Must(foreign.Enqueue(t.Context(), args{}, rejecting("close")))(t)
		w.outcome(id)
	}
	expect(t, len(all(t, m.History(t.Context(), "close", 0))), 6, "entries of what was deleted")
	for _, j := range all(t, m.Jobs(t.Context(), schedule.JobFilter{Kind: "books"})) {
		expect(t, j.ID, retried, "the job that lives")
	}
	events := one[string](db, `SELECT string_agg(concat_ws(' ', cause, nullif(name, ''),
			CASE WHEN row_id IS NOT NULL THEN 'job' END, rows, args - '{tick,after,since,retry_of}'::text[]), ', ' ORDER BY id)
		FROM pgleases.events
		WHERE actor = concat('ann (', session_user, ')') AND reason = 'why' AND lease = 'schedule/tests'`)
	expect(t, events, strings.Join([]string{
		"schedule paused close",
		`schedule resumed close {"catch_up": true}`,
		"schedule paused close",
		`schedule resumed close {"catch_up": false}`,
		"schedule triggered close job 1",
		`schedule backfilled close 2 {"until": "2026-03-02T01:00:00+00:00"}`,
		"job canceled job 1",
		"job retried job 1 {}",
		"tick retried broken job 1 {}",
		`jobs retried 3 {"kind": "mail", "refused": 1}`,
		"schedule deleted close",
		"schedule deleted broken",
	}, ", "), "what is written down")
}

// Each verb, as one calls it in SQL, leaves exactly one event, with the actor and the reason. A verb
// that changes nothing leaves none.
func TestVerbsInSQLAreEvents(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	k := schedule.InTx(newWorker(db).Scheduler, "books", effect)
	testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly))
	job := testkit.Must(k.Enqueue(t.Context(), args{}, rejecting("inv-7")))(t)
	db.exec(`UPDATE pgleases.schedules SET cursor = '2026-03-02T01:00Z';
		INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, outcome, ended_at)
		SELECT id, group_name, name, kind, t, t, 1, 'failed', t FROM pgleases.schedules, unnest('{2026-03-01 22:00Z,2026-03-01 23:00Z}'::timestamptz[]) AS t`)
	db.setClock(midnight.Add(time.Hour))
	o := newOperator(db)
	const backfill = "schedule_backfill('tests', 'close', '2026-03-02 00:00Z', '2026-03-02 01:00Z', " +
		"'{2026-03-02 00:00Z}', '{2026-03-02 01:00Z}'"
	const retryFailed = "schedule_retry_failed('tests', 'books', '2026-03-01 00:00Z'"
	const until = "'2026-03-02 01:00Z', '2026-03-02 01:00Z', 0"
	const hour = `{"after": "2026-03-02T00:00:00+00:00", "until": "2026-03-02T01:00:00+00:00"}`
	seen := int64(0)
	for _, verb := range []struct{ call, event string }{
		{"schedule_lock('tests', 'close'", ""},
		{"schedule_catch_up('tests', 'close'", ""},
		{"schedule_resume('tests', 'close', " + until, ""},
		{"schedule_pause('tests', 'close'", "schedule paused close"},
		{"schedule_pause('tests', 'close'", ""},
		{"schedule_catch_up('tests', 'close'", `schedule resumed close {"catch_up": true}`},
		{"schedule_pause('tests', 'close'", "schedule paused close"},
		{"schedule_resume('tests', 'close', " + until, `schedule resumed close {"catch_up": false}`},
		{"schedule_resume('tests', 'close', " + until, ""},
		{"schedule_trigger('tests', 'close'", "schedule triggered close job 1"},
		{backfill, "schedule backfilled close job 1 " + hour},
		{backfill, ""}, // the job of the earlier backfill has not ended
		{fmt.Sprintf("schedule_cancel_job('tests', %d", job), "job canceled inv-7 job 1"},
		{
			fmt.Sprintf("schedule_retry_job('tests', %d", job),
			fmt.Sprintf(`job retried inv-7 job 1 {"retry_of": %d}`, job),
		},
		{
			"schedule_retry_tick('tests', 'close', '2026-03-01 22:00Z'",
			`tick retried close job 1 {"tick": "2026-03-01T22:00:00+00:00"}`,
		},
		{retryFailed, `jobs retried job 1 {"kind": "books", "since": "2026-03-01T00:00:00+00:00", "refused": 0}`},
		{retryFailed, ""}, // all were retried
		{"schedule_delete('tests', 'close', " + until, "schedule deleted close"},
	} {
		call := "SELECT pgleases." + verb.call + ", 'ann', 'because')"
		_, err := o.pool.Exec(t.Context(), call, pgx.QueryExecModeSimpleProtocol)
		testkit.OK(t, err)
		got := one[string](db, `SELECT coalesce(string_agg(concat_ws(' ', cause, nullif(name, ''),
				CASE WHEN row_id IS NOT NULL THEN 'job' END, rows, args), '; '), '')
			FROM pgleases.events WHERE id > $1
				AND concat_ws('|', lease, actor, reason) = concat('schedule/tests|ann (', session_user, ')|because')`, seen)
		expect(t, got, verb.event, "events of "+verb.call)
		seen = one[int64](db, "SELECT coalesce(max(id), 0) FROM pgleases.events")
	}
}

// The functions of schedules refuse an operator, who needs a reason, and writes no history beyond what a verb writes.
func TestOperatorCannotForgeHistory(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	k := schedule.InTx(newWorker(db).Scheduler, "books", effect)
	testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly))
	o := newOperator(db)
	for _, statement := range []string{
		"SELECT pgleases.schedule_do_pause('tests', 'close')",
		"SELECT pgleases.schedule_do_retry_job('tests', 1)",
		"SELECT pgleases.schedule_do_cancel_job('tests', 1, 'why')",
		"SELECT pgleases.schedule_do_lock('tests', 'close')",
		"SELECT pgleases.schedule_changed('schedule paused', 'tests', 'close', NULL, NULL, 'ann', 'why')",
		`INSERT INTO pgleases.events (lease, cause, actor, reason, name)
			VALUES ('schedule/tests', 'schedule paused', 'ann', 'why', 'close')`,
		"SELECT pgleases.schedule_enqueue('tests', 1, '[{}]')",
		"SELECT pgleases.schedule_forget_tick(1)",
	} {
		if _, err := o.pool.Exec(t.Context(), statement); store.Code(err) != "42501" {
			t.Errorf("%s: %v", statement, err)
		}
	}
	m := testkit.Must(schedule.Manage(t.Context(), o.pool, group))(t)
	if err := m.Pause(t.Context(), "close"); store.Code(err) != "42501" {
		t.Errorf("a pause without a reason: %v", err)
	}
	db.setClock(midnight.Add(90 * time.Minute))
	change := func(call string) string { // as Manage does not send it
		_, err := o.pool.Exec(t.Context(), "SELECT pgleases."+call, pgx.QueryExecModeSimpleProtocol)
		return fmt.Sprint(err)
	}
	const deletion = "schedule_delete('tests', 'close', "
	const backfill = "schedule_backfill('tests', 'close', now(), now(), '{2026-03-02 00:00Z}', "
	for says, calls := range map[string][]string{
		"pause needs a reason": {
			"schedule_pause('tests', 'close', '', '')",
			"schedule_pause('tests', 'close', '', NULL)",
		},
		"lock needs a reason":       {"schedule_lock('tests', 'close', '', '')"},
		"the reason has 4001 bytes": {"schedule_pause('tests', 'close', '', repeat('x', 4001))"},
		"the actor 256":             {"schedule_pause('tests', 'close', repeat('x', 256), 'why')"},
		"has no job <NULL>":         {"schedule_cancel_job('tests', NULL, '', 'why')"},
		`has no schedule "<NULL>"`:  {"schedule_pause('tests', NULL, '', 'why')"},
		"cannot be canceled": {
			deletion + "'2026-03-02 01:31Z', '2026-03-02 01:31Z', 1, '', 'why')",
			deletion + "'2026-03-01 23:59Z', '2026-03-02 00:00Z', 1, '', 'why')",
			deletion + "'2026-03-02 01:30Z', '2026-03-02 01:30Z', -1, '', 'why')",
			deletion + "'2026-03-02 01:30Z', '2026-03-02 01:31Z', 1, '', 'why')",
			deletion + "NULL, '2026-03-02 01:30Z', 1, '', 'why')",
			deletion + "'2026-03-02 01:30Z', NULL, 1, '', 'why')",
			deletion + "'2026-03-02 01:30Z', '2026-03-02 01:30Z', NULL, '', 'why')",
		},
		"not all past": {
			backfill + "'{2026-03-02 01:00Z}', '', 'why')",
			backfill + "'{NULL}', '', 'why')",
		},
	} {
		for _, call := range calls {
			if err := change(call); !strings.Contains(err, says) {
				t.Errorf("%s: %s, want %q", call, err, says)
			}
		}
	}
	db.exec("UPDATE pgleases.schedules SET cursor = '2026-03-02T01:00:00Z'")
	many := "array_fill('2026-03-02 01:00Z'::timestamptz, '{1001}')"
	err := change("schedule_backfill('tests', 'close', now(), now(), " + many + ", " + many + ", '', 'why')")
	if !strings.Contains(err, "more than 1000") {
		t.Error(err)
	}
	for _, rows := range []string{"history", "events WHERE actor IS NOT NULL", "jobs"} {
		expect(t, db.count("pgleases."+rows), 0, "rows of "+rows)
	}
	tx := testkit.Must(o.pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.Background()) }() // an error: it has ended
	testkit.Must(tx.Exec(t.Context(), "SELECT pgleases.schedule_pause('tests', 'close', '', 'why')"))(t)
	var bounds string
	testkit.OK(t, tx.QueryRow(t.Context(), `SELECT concat(current_setting('idle_in_transaction_session_timeout'), ' ',
		current_setting('statement_timeout'))`).Scan(&bounds))
	expect(t, bounds, "4s 10s", "how long a transaction may idle after a verb, and a statement take")
}

// What cannot be done is refused, in plain words. Nothing of it is written down.
func TestManageRefusals(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	mail := schedule.InTx(w.Scheduler, "mail", note)
	testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly))
	done := testkit.Must(mail.Enqueue(t.Context(), "done"))(t)
	w.run()
	w.outcome(done)
	living := testkit.Must(mail.Enqueue(t.Context(), "later", schedule.WithDelay(1000*time.Hour)))(t)
	db.setClock(midnight.Add(time.Hour))
	counts(db, "a tick is done", 1, "pgleases.history WHERE name = 'close'")
	// As of Trigger:
	extra := one[time.Time](db, "UPDATE pgleases.history SET name = 'extra' WHERE job IS NOT NULL RETURNING until")
	m, ctx := newOperator(db).manage("why", ""), t.Context()
	backfill := func(name string, from, to time.Time) error { return second(m.Backfill(ctx, name, from, to)) }
	tick, lastYear := midnight.Add(time.Hour), midnight.AddDate(-1, 0, 0)
	retry := func(name string, tick time.Time) error { return second(m.RetryTick(ctx, name, tick)) }
	ended := fmt.Sprintf("has no job %d, or it has ended: pgleases jobs list tests", done)
	_, _, kindErr := m.RetryFailed(ctx, "", midnight)
	for says, err := range map[string]error{
		`has no schedule "shut": pgleases schedules list tests`:  m.Pause(ctx, "shut"),
		`resume schedule "gone" of group "tests"`:                m.Resume(ctx, "gone", schedule.ResumeFromNow),
		`delete schedule "gone" of group "tests"`:                m.Delete(ctx, "gone"),
		`trigger schedule "gone" of group "tests"`:               second(m.Trigger(ctx, "gone")),
		`backfill schedule "gone" of group "tests"`:              backfill("gone", midnight, tick),
		`of schedule "shut" of group "tests"`:                    retry("shut", midnight),
		"is not in the history of group":                         retry("close", midnight.Add(time.Minute)),
		fmt.Sprintf("was no tick, but job %d: retry that", done): retry("extra", extra),
		"job 1000000 is not in the history":                      second(m.Retry(ctx, 1000000)),
		`has no job 1000000, or it has ended`:                    m.Cancel(ctx, 1000000),
		ended:                                                    m.Cancel(ctx, done),
		"can be retried. Enqueue it again.":                      second(m.Retry(ctx, done)),
		"is still running or waiting: pgleases jobs show ":       second(m.Retry(ctx, living)),
		"the range after":                                        backfill("close", tick, tick),
		"are not all past: its cursor is at":                     backfill("close", midnight, tick.Add(time.Hour)),
		"the range has more than 1000 ticks":                     backfill("close", lastYear, midnight),
		`retry failed runs of kind "" of group "tests"`:          kindErr,
		`01:00:00+00 of schedule "close" has outcome succeeded`:  retry("close", tick),
	} {
		contains(t, err, says)
		expect(t, errors.Is(err, schedule.ErrUnknown), false, "whether it is unknown that "+says)
	}
	expect(t, db.count("pgleases.events WHERE actor IS NOT NULL"), 0, "what is written down")
	expect(t, db.count("pgleases.jobs"), 1, "jobs")
}

// The answer to the commit is lost: the result is ErrUnknown. Before the commit it is not.
func TestManageUnknownOutcome(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Put(t.Context(), "close", args{}, hourly))
	m := testkit.Must(schedule.Manage(t.Context(), w.pool, group, schedule.WithReason("why", "")))(t)
	for _, lost := range []struct {
		text  string
		after bool
		known bool
		jobs  int64
	}{
		{"schedule_trigger", false, true, 0},
		{"schedule_trigger", true, true, 0},
		{"commit\x00", true, false, 1},
		{"commit\x00", false, false, 1},
	} {
		w.wire.Lose(1, lost.text, lost.after)
		_, err := m.Trigger(t.Context(), "close")
		if err == nil || errors.Is(err, schedule.ErrUnknown) == lost.known {
			t.Errorf("%+v: %v", lost, err)
		}
		counts(db, fmt.Sprintf("%+v is over", lost), lost.jobs, "pgleases.jobs")
	}
}

// Where writes are stopped by default_transaction_read_only, operators change nothing, and the
// application's code goes on.
func TestManageObeysReadOnlyDefault(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	books := schedule.InTx(w.Scheduler, "books", effect)
	testkit.OK(t, books.Put(t.Context(), "close", args{}, hourly))
	job := testkit.Must(books.Enqueue(t.Context(), args{}, schedule.WithDelay(time.Hour)))(t)
	direct, _ := pgtest.DirectURL(db.url)
	reads := testkit.Pool(t, direct, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	for _, opts := range [][]schedule.Option{nil, {schedule.WithReason("why", "")}} {
		m := testkit.Must(schedule.Manage(t.Context(), reads, group, opts...))(t)
		_, triggered := m.Trigger(t.Context(), "close")
		for verb, err := range map[string]error{
			"cancel": m.Cancel(t.Context(), job), "pause": m.Pause(t.Context(), "close"), "trigger": triggered,
		} {
			expect(t, store.Code(err), "25006", "SQLSTATE of "+verb)
		}
	}
	expect(t, db.count("pgleases.jobs"), 1, "jobs")
	enqueuer := testkit.Must(schedule.NewEnqueuer(reads, group))(t)
	testkit.Must(schedule.JobsOf[args](enqueuer, "books").Enqueue(t.Context(), args{}))(t)
	expect(t, db.count("pgleases.jobs"), 2, "jobs, with that of the application")
}

// This host does not know the rule's zone, so the passed ticks are not known, and the change is
// refused.
func TestManageWithoutZone(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	testkit.OK(t, schedule.InTx(newWorker(db).Scheduler, "books", effect).Put(t.Context(), "close", args{}, hourly))
	db.exec("UPDATE pgleases.schedules SET rule = 'CRON_TZ=Mars/Olympus 0 * * * *'")
	db.setClock(midnight.Add(time.Hour))
	m := newOperator(db).manage("why", "")
	testkit.OK(t, m.Pause(t.Context(), "close"))
	for _, err := range []error{
		m.Resume(t.Context(), "close", schedule.ResumeFromNow),
		m.Delete(t.Context(), "close"),
		second(m.Backfill(t.Context(), "close", midnight.Add(-time.Hour), midnight)),
	} {
		contains(t, err, "Mars/Olympus")
	}
	testkit.OK(t, m.Resume(t.Context(), "close", schedule.ResumeCatchUp)) // it needs no rule
	expect(t, db.verbs(), "schedule paused, schedule resumed", "what is written down")
}

// What failed is run once more, once, with the same arguments.
func TestRetry(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	w := newWorker(db)
	var fixed atomic.Bool
	type call struct{ trigger, name, key, at, from string }
	calls := make(chan call, 100)
	mail := schedule.InTx(w.Scheduler, "mail", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		if !fixed.Load() && r.Args != "fine" {
			return errors.New("no paper")
		}
		calls <- call{string(r.Trigger), r.Name, r.Key, r.At.UTC().Format("15:04"), r.From.Format("2006")}
		return note(ctx, tx, r)
	})
	testkit.OK(t, mail.Put(t.Context(), "close", "tick", hourly, schedule.WithKey("books")))
	first := func(id int64, err error) int64 { t.Helper(); testkit.OK(t, err); return id }
	plain := first(mail.Enqueue(t.Context(), "plain", schedule.WithJobKey("ada"), schedule.WithPriority(3)))
	unique := first(mail.Enqueue(t.Context(), "unique", rejecting("inv-7")))
	w.run()
	expect(t, w.outcome(plain).Outcome, schedule.OutcomeFailed, "outcome")
	expect(t, w.outcome(unique).Outcome, schedule.OutcomeFailed, "outcome")
	db.setClock(midnight.Add(time.Hour))
	counts(db, "a tick has failed", 1, "pgleases.history WHERE name = 'close'")
	testkit.OK(t, w.Pause(t.Context(), "close"))
	again := first(w.Retry(t.Context(), plain)) // and it fails again
	expect(t, w.outcome(again).Outcome, schedule.OutcomeFailed, "outcome of what is still broken")
	w.close()
	fixed.Store(true)
	w = newWorker(db)
	schedule.InTx(w.Scheduler, "mail", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		calls <- call{string(r.Trigger), r.Name, r.Key, r.At.UTC().Format("15:04"), r.From.Format("2006")}
		return note(ctx, tx, r)
	})
	w.run()
	o := newOperator(db)
	m := o.manage("there is paper", "")
	for _, err := range []error{second(w.Retry(t.Context(), plain)), second(m.Retry(t.Context(), plain))} {
		contains(t, err, fmt.Sprintf("was retried, as job %d", again))
	}
	w.outcome(first(w.Retry(t.Context(), again)))
	expect(t, testkit.Receive(t, "it runs", calls), call{"retry", "", "ada", "00:00", "0001"}, "call")

	other := first(mail.Enqueue(t.Context(), "fine", schedule.WithDelay(time.Hour), rejecting("inv-7")))
	wraps(t, "to retry beside a living job of the key", second(w.Retry(t.Context(), unique)), schedule.ErrExists)
	testkit.OK(t, o.manage("not this one", "maria").Cancel(t.Context(), other))
	if j := w.outcome(other); j.Outcome != schedule.OutcomeCanceled || j.Kind != "mail" {
		t.Errorf("the job that was canceled is %+v", j)
	}
	expect(t, w.outcome(other).Error, "maria ("+db.user()+"): not this one", "why it was canceled")
	w.outcome(first(m.Retry(t.Context(), unique)))
	expect(t, testkit.Receive(t, "it runs", calls), call{"retry", "inv-7", "inv-7", "00:00", "0001"}, "call")

	w.outcome(first(w.RetryTick(t.Context(), "close", midnight.Add(time.Hour))))
	expect(t, testkit.Receive(t, "it runs", calls), call{"retry", "close", "books", "01:00", "0001"}, "call")
	contains(t, second(m.RetryTick(t.Context(), "close", midnight.Add(time.Hour))), "was retried")
	_, noTick := w.RetryTick(t.Context(), "close", midnight)
	_, noJob := w.Retry(t.Context(), 1<<40)
	for _, err := range []error{noTick, noJob} {
		wraps(t, "to retry what is not there", err, schedule.ErrNotFound)
	}
	testkit.OK(t, w.Delete(t.Context(), "close"))
	db.exec("UPDATE pgleases.history SET retried = NULL")
	_, deleted := w.RetryTick(t.Context(), "close", midnight.Add(time.Hour))
	wraps(t, "to retry a tick of what was deleted", deleted, schedule.ErrNotFound)
	got := db.effects()
	slices.Sort(got)
	expect(t, fmt.Sprint(got), "[plain tick unique]", "effects")
	asked := one[string](db, `SELECT string_agg(concat_ws(': ', cause, name, reason), ', ' ORDER BY id)
		FROM pgleases.events WHERE actor IS NOT NULL`)
	expect(t, asked, "job canceled: inv-7: not this one, job retried: inv-7: there is paper", "what was asked")
}

func second[T any](_ T, err error) error { return err }

// Of many who retry one job at once, one does.
func TestRetryAtOnce(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	mail := schedule.InTx(w.Scheduler, "mail", note)
	id := testkit.Must(mail.Enqueue(t.Context(), "later", schedule.WithDelay(time.Hour)))(t)
	testkit.OK(t, w.Cancel(t.Context(), id))
	const callers = 8
	retried := make(chan error, callers)
	for range callers {
		go func() { retried <- second(w.Retry(t.Context(), id)) }()
	}
	n := 0
	for range callers {
		if err := testkit.Receive(t, "it returns", retried); err == nil {
			n++
		}
	}
	expect(t, n, 1, "that it is retried")
	expect(t, db.count("pgleases.jobs"), 1, "jobs")
}

// The jobs that live, by kind, prefix and state; and what a canceled one had behind it.
func TestJobsAreListed(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	mail := schedule.InTx(w.Scheduler, "mail", failing[string]("no paper"), tries(2, time.Hour))
	letters := schedule.InTx(w.Scheduler, "letters", note)
	testkit.Must(letters.EnqueueMany(t.Context(), make([]string, 600), schedule.WithDelay(time.Hour)))(t)
	failing := testkit.Must(mail.Enqueue(t.Context(), "x", rejecting("inv-7")))(t)
	testkit.Must(mail.Enqueue(t.Context(), "y", schedule.WithDelay(time.Hour), rejecting("inv-8")))(t)
	w.run()
	testkit.Until(t, "an attempt has failed", func() bool {
		j := testkit.Must(w.Job(t.Context(), failing))(t)
		return j.Attempts == 1
	})
	count := func(f schedule.JobFilter) (n int, last schedule.Job) {
		t.Helper()
		for _, j := range all(t, w.Jobs(t.Context(), f)) {
			if j.ID <= last.ID {
				t.Fatalf("job %d comes after job %d", j.ID, last.ID)
			}
			n, last = n+1, j
		}
		return n, last
	}
	for _, c := range []struct {
		filter schedule.JobFilter
		want   int
	}{
		{schedule.JobFilter{}, 602},
		{schedule.JobFilter{Kind: "letters"}, 600},
		{schedule.JobFilter{Prefix: "inv-"}, 2},
		{schedule.JobFilter{Prefix: "inv-8"}, 1},
		{schedule.JobFilter{State: schedule.StateRetrying}, 1},
		{schedule.JobFilter{State: schedule.StatePlanned}, 601},
		{schedule.JobFilter{Kind: "mail", State: schedule.StateBlocked}, 0},
	} {
		n, _ := count(c.filter)
		expect(t, n, c.want, fmt.Sprintf("jobs of %+v", c.filter))
	}
	_, j := count(schedule.JobFilter{State: schedule.StateRetrying})
	is := fmt.Sprintf("%s %s %s %d %s", j.Kind, j.Name, j.Trigger, j.Attempts, j.Error)
	expect(t, is, "mail inv-7 job 1 no paper", "the job that is tried again")
	if j.ID != failing || !j.Due.After(midnight) {
		t.Errorf("the job is %+v", j)
	}
	for range w.Jobs(t.Context(), schedule.JobFilter{}) {
		break // no error
	}
	for _, err := range w.Jobs(t.Context(), schedule.JobFilter{State: "asleep"}) {
		contains(t, err, `"asleep" is not the state of a job`)
	}
	for _, err := range w.List(t.Context(), schedule.ScheduleFilter{Only: "dead"}) {
		const dead = `the filter Only is "dead": use late, blocked, paused, failing or empty`
		contains(t, err, `schedule: list schedules of group "tests": `+dead)
	}
	testkit.OK(t, w.Cancel(t.Context(), failing))
	if j := w.outcome(failing); j.Attempts != 1 || j.Error != "no paper" {
		t.Errorf("the job that was canceled is %+v", j)
	}
}
