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
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/sql"
)

// An operator is a role that has the rights of an operator and no more.
type operator struct {
	db   *database
	role string
}

func newOperator(db *database) *operator {
	db.t.Helper()
	role := strings.ToLower("operator_" + rand.Text())
	text, err := sql.Files.ReadFile("grants.sql")
	ok(db.t, err)
	_, grants, found := strings.Cut(string(text), "-- A role that steers schedules")
	expect(db.t, found, true, "that grants.sql has the rights of operators")
	var statements []string
	for line := range strings.SplitSeq(grants, "\n") {
		if statement, is := strings.CutPrefix(line, "--   "); is {
			statements = append(statements, strings.ReplaceAll(statement, "TO operator;", "TO "+role+";"))
		}
	}
	db.exec("CREATE ROLE " + role + "; " + strings.Join(statements, "\n"))
	db.t.Cleanup(func() { db.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	return &operator{db, role}
}

// does calls a function as the operator, and returns its result as text.
func (o *operator) does(call string) (result string, err error) {
	err = pgx.BeginFunc(context.Background(), o.db.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(context.Background(), "SET LOCAL ROLE "+o.role); err != nil {
			return err
		}
		var told *string
		err := tx.QueryRow(context.Background(), "SELECT (pgleases."+call+")::text").Scan(&told)
		if told != nil {
			result = *told
		}
		return err
	})
	return result, err
}

func (o *operator) must(call string) string {
	o.db.t.Helper()
	result, err := o.does(call)
	if err != nil {
		o.db.t.Fatalf("%s: %v", call, err)
	}
	return result
}

func (o *operator) job(call string) (id int64) {
	o.db.t.Helper()
	result := o.must(call)
	_, err := fmt.Sscan(result, &id)
	ok(o.db.t, err)
	return id
}

// answered waits until all that was asked has an answer, and returns the last.
func (db *database) answered() string {
	db.t.Helper()
	until(db.t, "what was asked has an answer", func() bool {
		return one[int64](db, "SELECT count(*) FROM pgleases.schedule_requests WHERE answered IS NULL") == 0
	})
	return one[string](db, "SELECT answer FROM pgleases.schedule_requests ORDER BY id DESC LIMIT 1")
}

// What an operator does in SQL leaves the same as what a program does with the methods: also where a process has to do it.
func TestVerbsOfOperatorsDoWhatTheMethodsDo(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	names := []string{"method", "verb"}
	var ledgers []*ledger
	for _, name := range names {
		ledgers = append(ledgers, newLedger(db, name))
		ok(t, k.Put(t.Context(), name, args{}, hourly, schedule.MissedAll))
	}
	w.run()
	o := newOperator(db)
	now := midnight
	same := func(step string) {
		t.Helper()
		until(t, "both are the same after "+step, func() bool {
			return one[int64](db, `SELECT count(DISTINCT to_jsonb(s) - 'id' - 'nonce' - 'name' - 'key' - 'partition' - 'ran_from' - 'ran_until') FROM pgleases.schedules AS s`) == 1
		})
	}
	hour := func() {
		t.Helper()
		now = now.Add(time.Hour)
		db.setClock(now)
	}
	settled := func() {
		t.Helper()
		for _, l := range ledgers {
			l.settled(w.Scheduler)
		}
	}
	hour()
	settled()
	ok(t, w.Pause(t.Context(), "method"))
	expect(t, o.must("pause_schedule('tests', 'verb', 'a fire', 'maria')"), "true", "that it was not paused")
	expect(t, o.must("pause_schedule('tests', 'verb', 'a fire')"), "false", "that it was not paused, again")
	same("pause")
	db.shows("schedules_status", "verb", "state, why", fmt.Sprintf("paused | maria (%s): a fire", one[string](db, "SELECT session_user::text")))
	hour()
	db.looked()
	ok(t, w.Resume(t.Context(), "method", schedule.CatchUp))
	expect(t, o.must("resume_schedule('tests', 'verb', 'it is out', catch_up => true)"), "true", "that it was paused")
	expect(t, o.must("resume_schedule('tests', 'verb', 'it is out')"), "false", "that it was paused, again")
	settled()
	same("resume")
	ok(t, w.Pause(t.Context(), "method"))
	o.must("pause_schedule('tests', 'verb', 'a flood')")
	hour()
	ok(t, w.Resume(t.Context(), "method", schedule.FromNow))
	expect(t, o.must("resume_schedule('tests', 'verb', 'it has ebbed')"), "true", "that it was paused")
	expect(t, db.answered(), "done", "answer")
	settled()
	same("resume from now")
	hour()
	settled()
	same("a tick")
	for _, l := range ledgers {
		l.expectFates(fates{schedule.FateDone: 3, schedule.FateCancelled: 1})
	}

	// Jobs.
	at := fmt.Sprintf("'%s', '%s'", midnight.Add(-time.Hour).Format(time.RFC3339), midnight.Add(time.Hour).Format(time.RFC3339))
	ids, err := w.Backfill(t.Context(), "method", midnight.Add(-time.Hour), midnight.Add(time.Hour))
	ok(t, err)
	o.must("backfill_schedule('tests', 'verb', " + at + ", 'the numbers were wrong')")
	expect(t, db.answered(), "done: put 2 jobs", "answer")
	id, err := w.Trigger(t.Context(), "method")
	ok(t, err)
	for _, id := range append(ids, id, o.job("trigger_schedule('tests', 'verb', 'to see')")) {
		w.fate(id)
	}
	until(t, "no job is left", func() bool { return one[int64](db, "SELECT count(*) FROM pgleases.jobs") == 0 })
	for _, name := range names {
		expect(t, one[string](db, `SELECT string_agg(extract(epoch FROM at - '`+midnight.Format(time.RFC3339)+`')::int / 3600 || '', ' ' ORDER BY at, n) FROM public.effects WHERE name = $1`, name), "0 1 1 2 4 4", "hours of the effects of "+name)
	}
	expect(t, one[string](db, "SELECT string_agg(concat_ws(' ', verb, name, reason), ', ' ORDER BY id) FROM pgleases.schedule_requests"),
		"pause verb a fire, resume verb it is out, pause verb a flood, resume verb it has ebbed, backfill verb the numbers were wrong, trigger verb to see", "what was asked")
}

// A pause after a resumption that nobody has carried out yet is what holds.
func TestAPauseTakesAResumptionBack(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	ok(t, schedule.InTx(w.Scheduler, "books", effect).Put(t.Context(), "close", args{}, hourly))
	o := newOperator(db)
	o.must("pause_schedule('tests', 'close', 'a fire')")
	expect(t, o.must("resume_schedule('tests', 'close', 'it is out')"), "true", "that it is asked")
	expect(t, o.must("resume_schedule('tests', 'close', 'it is out')"), "false", "that it is asked, again")
	expect(t, o.must("pause_schedule('tests', 'close', 'it is not')"), "true", "that it is paused again")
	w.staysPaused("it is not", "pause done, resume taken back, pause done")
}

// staysPaused runs the worker until what was asked would have been carried out: "close" is paused still, and why.
func (w *worker) staysPaused(why, answers string) {
	w.t.Helper()
	w.run()
	other, err := w.Trigger(w.t.Context(), "close")
	ok(w.t, err)
	w.fate(other)
	w.db.shows("schedules_status", "close", "state, why LIKE '%: "+why+"'", "paused | t")
	expect(w.t, one[string](w.db, "SELECT string_agg(concat_ws(' ', verb, answer), ', ' ORDER BY id) FROM pgleases.schedule_requests"), answers, "answers")
}

// So it is with a pause by a program, which leaves the first pause as it is.
func TestAPauseOfAProgramTakesAResumptionBack(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	ok(t, schedule.InTx(w.Scheduler, "books", effect).Put(t.Context(), "close", args{}, hourly))
	o := newOperator(db)
	o.must("pause_schedule('tests', 'close', 'a fire')")
	o.must("resume_schedule('tests', 'close', 'it is out')")
	ok(t, w.Pause(t.Context(), "close"))
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.jobs"), 0, "requests that are to be carried out")
	w.staysPaused("a fire", "pause done, resume taken back")
}

// The schedule has another rule by now, whose zone nobody knows yet: what was asked waits, and is not refused.
func TestARequestWaitsForWhoeverKnowsTheNewRule(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	ok(t, schedule.InTx(w.Scheduler, "books", effect).Put(t.Context(), "close", args{}, hourly))
	w.run()
	db.setClock(midnight.Add(time.Hour))
	until(t, "a tick is done", func() bool { return one[int64](db, "SELECT count(*) FROM pgleases.history WHERE name = 'close'") == 1 })
	w.close()
	newOperator(db).must("backfill_schedule('tests', 'close', '2026-03-02 00:00Z', '2026-03-02 01:00Z', 'the numbers were wrong')")
	db.exec("UPDATE pgleases.schedules SET rule = 'CRON_TZ=Mars/Olympus 0 * * * *'")
	w = newWorker(db)
	schedule.InTx(w.Scheduler, "books", effect)
	w.run()
	until(t, "it is put off", func() bool {
		return one[bool](db, "SELECT (SELECT trying FROM pgleases.jobs) IS NOT NULL OR EXISTS (SELECT FROM pgleases.schedule_requests WHERE answered IS NOT NULL)")
	})
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.schedule_requests WHERE answered IS NULL"), 1, "requests without an answer")
	db.exec("UPDATE pgleases.schedules SET rule = 'CRON_TZ=UTC 0 * * * *'")
	db.setClock(midnight.Add(time.Hour + 2*time.Minute))
	expect(t, db.answered(), "done: put 1 jobs", "answer")
}

// Whatever statement is lost, and whoever dies: what was asked is done once.
func TestRequestsAreCarriedOutOnceWhateverIsLost(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	start := func() *worker {
		w := newWorker(db)
		schedule.InTx(w.Scheduler, "books", effect)
		return w.run()
	}
	w := start()
	ok(t, schedule.InTx(newWorker(db).Scheduler, "books", effect).Put(t.Context(), "close", args{}, hourly))
	o := newOperator(db)
	now, rounds := midnight, int64(0)
	round := func() {
		t.Helper()
		o.must("pause_schedule('tests', 'close', 'a fire')")
		now = now.Add(2 * time.Hour)
		db.setClock(now)
		o.must("resume_schedule('tests', 'close', 'it is out')")
		expect(t, db.answered(), "done", "answer")
		o.must(fmt.Sprintf("backfill_schedule('tests', 'close', '%s', '%s', 'the numbers were wrong')", now.Add(-2*time.Hour).Format(time.RFC3339), now.Format(time.RFC3339)))
		rounds++
		expect(t, db.answered(), "done: put 2 jobs", "answer")
	}
	for _, text := range []string{"schedule_put", "schedule_answer", "schedule_close_job", "commit"} {
		for _, after := range []bool{false, true} {
			w.wire.lose(text, after)
			round()
		}
	}
	for _, text := range []string{"schedule_enqueue", "commit"} { // the owner is gone in the middle of it
		next := start()
		w.wire.mute(text)
		until(t, "both own some", func() bool {
			return one[int64](db, "SELECT count(DISTINCT owner) FROM pgleases.partitions WHERE owner IS NOT NULL") == 2
		})
		dead := w
		hit := make(chan struct{})
		go func() {
			defer close(hit)
			for dead.wire.armed() {
				select {
				case <-t.Context().Done():
					return
				case <-time.After(time.Millisecond):
				}
			}
			dead.die()
		}()
		for dead.wire.armed() { // until the one that dies carries one out
			round()
		}
		receive(t, "it died", hit)
		w = next
	}
	until(t, "no job is left", func() bool { return one[int64](db, "SELECT count(*) FROM pgleases.jobs") == 0 })
	expect(t, one[string](db, "SELECT concat(count(*), ' of ', sum(ticks), ' ticks') FROM pgleases.history WHERE fate = 'cancelled'"), fmt.Sprintf("%d of %d ticks", rounds, 2*rounds), "entries of resumptions")
	expect(t, one[int64](db, "SELECT count(*) FROM public.effects"), 2*rounds, "effects of backfills")
}

// A schedule that is deleted in SQL is deleted by a process of the group, as Delete does it: each tick up to then has its fate. Until that is done it can be taken back.
func TestAnOperatorDeletesASchedule(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	maker := newWorker(db) // which runs nothing
	k := schedule.InTx(maker.Scheduler, "books", effect)
	names := []string{"method", "verb", "kept", "again"}
	for _, name := range names {
		ok(t, k.Put(t.Context(), name, args{}, hourly, schedule.MissedAll))
	}
	ok(t, k.Put(t.Context(), "paused", args{}, hourly))
	ok(t, maker.Pause(t.Context(), "paused"))
	db.setClock(midnight.Add(3 * time.Hour))
	o := newOperator(db)
	ok(t, maker.Delete(t.Context(), "method"))
	o.job("delete_schedule('tests', 'verb', 'the ledger is closed', 'maria')")
	expect(t, o.must("delete_schedule('tests', 'verb', 'the ledger is closed')"), "", "the job of what was asked before")
	o.job("delete_schedule('tests', 'paused', 'nobody needs it')")
	o.must(fmt.Sprintf("cancel_job(%d, 'a mistake')", o.job("delete_schedule('tests', 'kept', 'the ledger is closed')")))
	o.job("delete_schedule('tests', 'again', 'it is made anew')")
	ok(t, maker.Delete(t.Context(), "again"))
	ok(t, k.Put(t.Context(), "again", args{}, hourly))
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.schedules WHERE name = 'verb'"), 1, "schedules that no process has deleted yet")
	maker.close()

	w := newWorker(db)
	schedule.InTx(w.Scheduler, "books", effect)
	w.run()
	db.answered()
	until(t, "the requests have ended", func() bool { return one[int64](db, "SELECT count(*) FROM pgleases.jobs") == 0 })
	expect(t, one[string](db, "SELECT string_agg(name, ' ' ORDER BY name) FROM pgleases.schedules"), "again kept", "schedules")
	const fatesOf = "SELECT coalesce(string_agg(concat(ticks, ' ', fate), ', ' ORDER BY id), '') FROM pgleases.history WHERE job IS NULL AND name = $1 AND fate = 'cancelled'"
	expect(t, one[string](db, fatesOf, "method"), "3 cancelled", "fates by the method")
	expect(t, one[string](db, "SELECT sum(ticks)::text FROM pgleases.history WHERE job IS NULL AND name = 'verb'"), "3", "ticks with a fate, by the verb")
	expect(t, one[string](db, fatesOf, "paused"), "3 cancelled", "fates of what was paused")
	expect(t, one[string](db, "SELECT string_agg(concat(name, ': ', answer), ', ' ORDER BY id) FROM pgleases.schedule_requests WHERE verb = 'delete'"),
		"verb: done, paused: done, kept: taken back, again: refused: the schedule was deleted", "answers")
}

// Between the request and its turn the schedule is deleted, and one of its name is made in the same transaction: to delete that one nobody has asked.
func TestWhatIsMadeAnewIsNotDeletedForWhatItReplaced(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	ok(t, k.Put(t.Context(), "close", args{1}, hourly))
	o := newOperator(db)
	replaced := db.begin()
	_, err := replaced.Exec(t.Context(), "DELETE FROM pgleases.schedules")
	ok(t, err)
	ok(t, k.PutTx(t.Context(), replaced, "close", args{2}, hourly))
	o.job("delete_schedule('tests', 'close', 'the ledger is closed')")
	w.run()
	until(t, "it waits for the transaction", func() bool {
		return one[bool](db, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%schedule_get%')")
	})
	ok(t, replaced.Commit(t.Context()))
	db.answered()
	expect(t, one[string](db, "SELECT answer FROM pgleases.schedule_requests"), "refused: the schedule was deleted", "answer")
	expect(t, one[int](db, "SELECT count(*) FROM pgleases.schedules WHERE name = 'close'"), 1, "schedules that were made anew")
}

// What cannot be is refused, in plain words, with a hint; nothing of it is written. Nobody but operators may.
func TestWhatOperatorsAskWrongly(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	mail := schedule.InTx(w.Scheduler, "mail", note)
	ok(t, k.Put(t.Context(), "close", args{}, hourly))
	done, err := mail.Enqueue(t.Context(), "done")
	ok(t, err)
	w.run()
	w.fate(done)
	living, err := mail.Enqueue(t.Context(), "later", schedule.In(1000*time.Hour))
	ok(t, err)
	db.setClock(midnight.Add(time.Hour))
	until(t, "a tick is done", func() bool { return one[int64](db, "SELECT count(*) FROM pgleases.history WHERE name = 'close'") == 1 })
	o := newOperator(db)
	for call, says := range map[string]string{
		"pause_schedule('tests', 'close', '')":                                               "pause_schedule needs a reason|why",
		"retry_dead('tests', 'mail', now(), '')":                                             "retry_dead needs a reason|why",
		"retry_dead('tests', 'mail', NULL, 'x')":                                             "not null|-infinity",
		"retry_dead('tests', NULL, now(), 'x')":                                              "not null|-infinity",
		"trigger_schedule('tests', 'close', repeat('x', 4001))":                              "the reason has 4001 bytes|4,000",
		"pause_schedule('tests', 'close', 'x', repeat('x', 256))":                            "the actor 256|255",
		"cancel_job(7, NULL)":                                                                "cancel_job needs a reason|why",
		"delete_schedule('tests', 'shut', 'x')":                                              `group "tests" has no schedule "shut"|schedules_status`,
		"delete_schedule('tests', 'close', '')":                                              "delete_schedule needs a reason|why",
		"pause_schedule('tests', 'shut', 'x')":                                               `group "tests" has no schedule "shut"|schedules_status`,
		"resume_schedule('others', 'close', 'x')":                                            `group "others" has no schedule "close"|schedules_status`,
		"resume_schedule('tests', 'close', 'x', catch_up => NULL)":                           `not null|cancelled`,
		"trigger_schedule('tests', NULL, 'x')":                                               `has no schedule|schedules_status`,
		"retry_tick('tests', 'shut', now(), 'x')":                                            `group "tests" has no schedule "shut"|schedules_status`,
		"retry_tick('tests', 'close', '2026-03-02 00:30Z', 'x')":                             `is not in the history of group "tests"|instant`,
		"retry_tick('tests', 'close', '2026-03-02 01:00Z', 'x')":                             `is done|backfilled`,
		"retry_job(1000000, 'x')":                                                            "there is no job 1000000|forgotten",
		"retry_job(NULL, 'x')":                                                               "there is no job null|forgotten",
		fmt.Sprintf("retry_job(%d, 'x')", done):                                              "is done|dead, lost or cancelled",
		fmt.Sprintf("retry_job(%d, 'x')", living):                                            "has not ended|jobs_status",
		fmt.Sprintf("cancel_job(%d, 'x')", done):                                             "has ended: it is done|stands",
		"cancel_job(1000000, 'x')":                                                           "there is no job 1000000|jobs_status",
		"backfill_schedule('tests', 'close', '2026-03-02 01:00Z', '2026-03-02 01:00Z', 'x')": "there is nothing after|one tick",
		"backfill_schedule('tests', 'close', NULL, '2026-03-02 01:00Z', 'x')":                "there is nothing after null|one tick",
		"backfill_schedule('tests', 'close', '2026-03-02 00:00Z', '2026-03-02 02:00Z', 'x')": "not all past|trigger",
		"backfill_schedule('tests', 'close', '-infinity', '2026-03-02 01:00Z', 'x')":         "too long ago|1,000",
	} {
		_, err := o.does(call)
		var told *pgconn.PgError
		message, hint, _ := strings.Cut(says, "|")
		if !errors.As(err, &told) || !strings.Contains(told.Message, message) || !strings.Contains(told.Hint, hint) {
			t.Errorf("%s: %v", call, err)
			if told != nil {
				t.Logf("hint: %s", told.Hint)
			}
		}
	}
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.schedule_requests"), 0, "requests")
	tx, err := db.Pool.Begin(t.Context())
	ok(t, err)
	var bounds string
	ok(t, tx.QueryRow(t.Context(), `SELECT concat(current_setting('idle_in_transaction_session_timeout'), ' ', current_setting('statement_timeout'))
		FROM (SELECT pgleases.pause_schedule('tests', 'close', 'x') OFFSET 0) AS verb (paused) WHERE paused`).Scan(&bounds))
	ok(t, tx.Rollback(t.Context()))
	expect(t, bounds, "500ms 10s", "how long a transaction may idle after a verb, and a statement take")
	o.must("backfill_schedule('tests', 'close', '2025-03-02 00:00Z', '2026-03-02 01:00Z', 'too much')")
	if answer := db.answered(); !strings.HasPrefix(answer, "refused: ") || !strings.Contains(answer, "more than 1000 ticks") {
		t.Errorf("the answer is %q", answer)
	}
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.jobs"), 1, "jobs")
	db.exec("CREATE ROLE nobody_" + o.role)
	t.Cleanup(func() { db.exec("DROP OWNED BY nobody_" + o.role + "; DROP ROLE nobody_" + o.role) })
	nobody := &operator{db, "nobody_" + o.role}
	db.exec("GRANT USAGE ON SCHEMA pgleases TO " + nobody.role)
	for _, call := range []string{
		"pause_schedule('tests', 'close', 'x')", "resume_schedule('tests', 'close', 'x')", "delete_schedule('tests', 'close', 'x')", "trigger_schedule('tests', 'close', 'x')",
		"backfill_schedule('tests', 'close', now(), now(), 'x')", "cancel_job(1, 'x')", "retry_job(1, 'x')", "retry_dead('tests', 'mail', now(), 'x')", "retry_tick('tests', 'close', now(), 'x')",
	} {
		if _, err := nobody.does(call); code(err) != "42501" {
			t.Errorf("%s: %v", call, err)
		}
	}
	for _, call := range []string{"schedule_cancel('tests', 1, 'x')", "schedule_retry('tests', NULL, NULL, 1)"} {
		if _, err := o.does(call); code(err) != "42501" {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func code(err error) string {
	var told *pgconn.PgError
	if errors.As(err, &told) {
		return told.Code
	}
	return ""
}

// What is dead is run once more, once, with what it had.
func TestRetry(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	var mended atomic.Bool
	type call struct{ trigger, name, key, at, from string }
	calls := make(chan call, 100)
	mail := schedule.InTx(w.Scheduler, "mail", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		if !mended.Load() && r.Args != "fine" {
			return errors.New("no paper")
		}
		calls <- call{string(r.Trigger), r.Name, r.Key, r.At.UTC().Format("15:04"), r.From.UTC().Format("15:04")}
		return note(ctx, tx, r)
	})
	ok(t, mail.Put(t.Context(), "close", "tick", hourly, schedule.Key("books")))
	first := func(id int64, err error) int64 { t.Helper(); ok(t, err); return id }
	plain := first(mail.Enqueue(t.Context(), "plain", schedule.Key("ada"), schedule.Priority(3)))
	unique := first(mail.Enqueue(t.Context(), "unique", schedule.Unique("inv-7", schedule.Raise)))
	w.run()
	expect(t, w.fate(plain).Fate, schedule.FateDead, "fate")
	expect(t, w.fate(unique).Fate, schedule.FateDead, "fate")
	db.setClock(midnight.Add(time.Hour))
	until(t, "a tick is dead", func() bool { return one[int64](db, "SELECT count(*) FROM pgleases.history WHERE name = 'close'") == 1 })
	ok(t, w.Pause(t.Context(), "close"))
	again := first(w.Retry(t.Context(), plain)) // and is dead again
	expect(t, w.fate(again).Fate, schedule.FateDead, "fate of what is still broken")
	w.close()
	mended.Store(true)
	w = newWorker(db)
	schedule.InTx(w.Scheduler, "mail", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		calls <- call{string(r.Trigger), r.Name, r.Key, r.At.UTC().Format("15:04"), r.From.UTC().Format("15:04")}
		return note(ctx, tx, r)
	})
	w.run()
	o := newOperator(db)
	for _, err := range []error{second(w.Retry(t.Context(), plain)), second(o.does(fmt.Sprintf("retry_job(%d, 'again')", plain)))} {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("was retried, as job %d", again)) {
			t.Errorf("to retry what was: %v", err)
		}
	}
	w.fate(first(w.Retry(t.Context(), again)))
	expect(t, receive(t, "it runs", calls), call{"retry", "", "ada", "00:00", "00:00"}, "call")

	other := first(mail.Enqueue(t.Context(), "fine", schedule.In(time.Hour), schedule.Unique("inv-7", schedule.Raise)))
	wraps(t, "to retry beside a living job of the key", second(w.Retry(t.Context(), unique)), schedule.ErrExists)
	o.must(fmt.Sprintf("cancel_job(%d, 'not this one', 'maria')", other))
	if j := w.fate(other); j.Fate != schedule.FateCancelled || j.Error != fmt.Sprintf("maria (%s): not this one", one[string](db, "SELECT session_user::text")) || j.Kind != "mail" {
		t.Errorf("the job that was cancelled is %+v", j)
	}
	w.fate(o.job(fmt.Sprintf("retry_job(%d, 'there is paper')", unique)))
	expect(t, receive(t, "it runs", calls), call{"retry", "inv-7", "inv-7", "00:00", "00:00"}, "call")

	w.fate(first(w.RetryTick(t.Context(), "close", midnight.Add(time.Hour))))
	expect(t, receive(t, "it runs", calls), call{"retry", "close", "books", "01:00", "00:00"}, "call")
	if _, err := o.does("retry_tick('tests', 'close', '2026-03-02 01:00Z', 'again')"); err == nil || !strings.Contains(err.Error(), "was retried") {
		t.Errorf("to retry a tick again: %v", err)
	}
	for _, err := range []error{second(w.RetryTick(t.Context(), "close", midnight)), second(w.Retry(t.Context(), 1<<40))} {
		wraps(t, "to retry what is not there", err, schedule.ErrNotFound)
	}
	ok(t, w.Delete(t.Context(), "close"))
	db.exec("UPDATE pgleases.history SET retried = NULL")
	wraps(t, "to retry a tick of what was deleted", second(w.RetryTick(t.Context(), "close", midnight.Add(time.Hour))), schedule.ErrNotFound)
	got := db.effects()
	slices.Sort(got)
	expect(t, fmt.Sprint(got), "[plain tick unique]", "effects")
	expect(t, one[string](db, "SELECT string_agg(concat_ws(' ', verb, reason), ', ' ORDER BY id) FROM pgleases.schedule_requests"), "cancel not this one, retry there is paper", "what was asked")
}

func second[T any](_ T, err error) error { return err }

// Of many who retry one job at once, one does.
func TestRetryAtOnce(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	mail := schedule.InTx(w.Scheduler, "mail", note)
	id, err := mail.Enqueue(t.Context(), "later", schedule.In(time.Hour))
	ok(t, err)
	ok(t, w.Cancel(t.Context(), id))
	const callers = 8
	retried := make(chan error, callers)
	for range callers {
		go func() { retried <- second(w.Retry(t.Context(), id)) }()
	}
	n := 0
	for range callers {
		if err := receive(t, "it returns", retried); err == nil {
			n++
		}
	}
	expect(t, n, 1, "that it is retried")
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.jobs"), 1, "jobs")
}

// The jobs that live, by kind, prefix and state; and what a cancelled one had behind it.
func TestJobsAreListed(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	mail := schedule.InTx(w.Scheduler, "mail", func(context.Context, pgx.Tx, schedule.Run[string]) error { return errors.New("no paper") },
		schedule.Retry(2, schedule.Backoff(time.Hour, time.Hour)))
	letters := schedule.InTx(w.Scheduler, "letters", note)
	_, err := letters.EnqueueMany(t.Context(), make([]string, 600), schedule.In(time.Hour))
	ok(t, err)
	failing, err := mail.Enqueue(t.Context(), "x", schedule.Unique("inv-7", schedule.Raise))
	ok(t, err)
	_, err = mail.Enqueue(t.Context(), "y", schedule.In(time.Hour), schedule.Unique("inv-8", schedule.Raise))
	ok(t, err)
	w.run()
	until(t, "an attempt has failed", func() bool {
		j, err := w.Job(t.Context(), failing)
		ok(t, err)
		return j.Attempts == 1
	})
	count := func(f schedule.JobFilter) (n int, last schedule.Job) {
		t.Helper()
		for j, err := range w.Jobs(t.Context(), f) {
			ok(t, err)
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
		{schedule.JobFilter{}, 602}, {schedule.JobFilter{Kind: "letters"}, 600}, {schedule.JobFilter{Prefix: "inv-"}, 2}, {schedule.JobFilter{Prefix: "inv-8"}, 1},
		{schedule.JobFilter{State: schedule.StateRetries}, 1}, {schedule.JobFilter{State: schedule.StatePlanned}, 601}, {schedule.JobFilter{Kind: "mail", State: schedule.StateWaits}, 0},
	} {
		n, _ := count(c.filter)
		expect(t, n, c.want, fmt.Sprintf("jobs of %+v", c.filter))
	}
	_, j := count(schedule.JobFilter{State: schedule.StateRetries})
	if j.ID != failing || j.Kind != "mail" || j.Name != "inv-7" || j.Trigger != schedule.TriggerJob || j.Attempts != 1 || j.Error != "no paper" || !j.Due.After(midnight) {
		t.Errorf("the job is %+v", j)
	}
	for range w.Jobs(t.Context(), schedule.JobFilter{}) {
		break // no error
	}
	for _, err := range w.Jobs(t.Context(), schedule.JobFilter{State: "asleep"}) {
		if err == nil || !strings.Contains(err.Error(), `"asleep" is none of the states`) {
			t.Errorf("an unknown state: %v", err)
		}
	}
	ok(t, w.Cancel(t.Context(), failing))
	if j := w.fate(failing); j.Attempts != 1 || j.Error != "no paper" {
		t.Errorf("the job that was cancelled is %+v", j)
	}
}
