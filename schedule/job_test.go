package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// outcome waits until a job has ended.
func (w *worker) outcome(id int64) (j schedule.Job) {
	w.t.Helper()
	testkit.Until(w.t, fmt.Sprintf("job %d has its outcome", id), func() bool {
		j = testkit.Must(w.Job(w.t.Context(), id))(w.t)
		return j.Outcome != ""
	})
	return j
}

// effects returns the names of the effects in their order.
func (db *database) effects() []string {
	db.t.Helper()
	rows, _ := db.Query(context.Background(), "SELECT name FROM public.effects ORDER BY n")
	return testkit.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(db.t)
}

// note is a handler that inserts its argument.
func note(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
	return leave(ctx, tx, r.Args, r)
}

// A job runs once, at its time by the database's clock, even if a process without a scheduler
// enqueued it. A job that was rolled back does not run.
func TestAJobRunsOnceAtItsTime(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	mail := schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	db.polled()
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group))(t)
	others := schedule.JobsOf[string](enqueuer, "mail")
	put := func(id int64, err error) int64 { t.Helper(); testkit.OK(t, err); return id }
	now := put(mail.Enqueue(t.Context(), "now"))
	past := put(others.Enqueue(t.Context(), "past", schedule.WithTime(midnight.Add(-time.Hour))))
	in := put(others.Enqueue(t.Context(), "in", schedule.WithDelay(2*time.Hour)))
	at := put(mail.Enqueue(t.Context(), "at", schedule.WithTime(midnight.Add(time.Hour))))
	many := testkit.Must(others.EnqueueMany(t.Context(), []string{"a", "b", "c"}, schedule.WithDelay(3*time.Hour)))(t)
	stop := errors.New("stop")
	wraps(t, "the transaction", pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		put(mail.EnqueueTx(t.Context(), tx, "never"))
		return stop
	}), stop)
	for _, id := range []int64{now, past} {
		j := w.outcome(id)
		expect(t, fmt.Sprint(j.Outcome, j.Attempts), "succeeded1", "outcome and attempts")
	}
	db.polled()
	expect(t, len(db.effects()), 2, "effects before the time of the others")
	waits := testkit.Must(w.Job(t.Context(), in))(t)
	expect(t, fmt.Sprint(waits.Kind, string(waits.Args), waits.Outcome), `mail"in"`, "kind, arguments and outcome")
	expect(t, waits.Due.UTC(), midnight.Add(2*time.Hour), "when it is due")
	db.setClock(midnight.Add(time.Hour))
	w.outcome(at)
	db.setClock(midnight.Add(3 * time.Hour))
	for _, id := range append(many, in) {
		w.outcome(id)
	}
	got := db.effects()
	slices.Sort(got)
	expect(t, fmt.Sprint(got), "[a at b c in now past]", "effects")
	expect(t, db.count("pgleases.jobs"), 0, "living jobs")
	_, err := w.Job(t.Context(), 1<<40)
	wraps(t, "to get a job that never was", err, schedule.ErrNotFound)
}

// Each statement in turn is lost: one effect, one outcome.
func TestJobRunsOnceIfStatementsAreLost(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	schedule.InTx(w.Scheduler, "mail", note, schedule.WithIdleTimeout(time.Second))
	w.run()
	db.polled()
	var want []string
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group))(t) // its connections lose nothing
	mail := schedule.JobsOf[string](enqueuer, "mail")
	texts := []string{"begin", "schedule_open", "public.effects", "schedule_end_job", "commit", "schedule_poll"}
	for _, text := range texts {
		for _, after := range []bool{false, true} {
			want = append(want, fmt.Sprint(text, after))
			w.wire.Lose(1, text, after)
			id := testkit.Must(mail.Enqueue(t.Context(), fmt.Sprint(text, after)))(t)
			expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, fmt.Sprint("outcome with ", text, after))
		}
	}
	expect(t, fmt.Sprint(db.effects()), fmt.Sprint(want), "effects")
	expect(t, db.count("pgleases.history"), int64(len(want)), "outcomes")
}

// Jobs fail, are retried, and are discarded, as ticks are.
func TestJobsAreTriedAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	mail := schedule.InTx(w.Scheduler, "mail", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		if err := note(ctx, tx, r); err != nil {
			return err
		}
		switch {
		case r.Job == 0:
			return errors.New("the job's ID is missing")
		case r.Args == "second" && r.Attempt == 1, r.Args == "never":
			return fmt.Errorf("no paper, %d", r.Attempt)
		case r.Args == "discard":
			return schedule.Discard(errors.New("wrong address"))
		}
		return nil
	}, tries(2, time.Hour))
	w.run()
	want := map[string]string{
		"first":   "succeeded 1 ",
		"second":  "succeeded 2 ",
		"never":   "failed 2 no paper, 2",
		"discard": "failed 1 wrong address",
	}
	ids := make(map[string]int64)
	for name := range want {
		ids[name] = testkit.Must(mail.Enqueue(t.Context(), name))(t)
	}
	for _, name := range []string{"second", "never"} {
		testkit.Until(t, "an attempt has failed", func() bool {
			j := testkit.Must(w.Job(t.Context(), ids[name]))(t)
			return j.Attempts == 1 && j.Error == "no paper, 1"
		})
	}
	db.setClock(midnight.Add(2 * time.Hour))
	for name, want := range want {
		j := w.outcome(ids[name])
		expect(t, fmt.Sprint(string(j.Outcome), " ", j.Attempts, " ", j.Error), want, name)
	}
	got := db.effects()
	slices.Sort(got)
	expect(t, fmt.Sprint(got), "[first second]", "effects")
}

// At most one live job has a unique key.
func TestUniqueJobs(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	mail := schedule.InTx(w.Scheduler, "mail", note)
	hour := schedule.WithDelay(time.Hour)
	id := testkit.Must(mail.Enqueue(t.Context(), "first", hour, rejecting("inv-7")))(t)
	testkit.OK(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		_, err := mail.EnqueueTx(t.Context(), tx, "second", hour, rejecting("inv-7"))
		wraps(t, "to put it again", err, schedule.ErrExists)
		_, err = tx.Exec(t.Context(), "SELECT 1") // the transaction goes on
		return err
	}))
	ignored := schedule.WithUnique("inv-7", schedule.OnConflictIgnore)
	again := testkit.Must(mail.Enqueue(t.Context(), "third", ignored))(t)
	expect(t, again, id, "id of the one that is there")
	again = testkit.Must(mail.Enqueue(t.Context(), "fourth", hour, replacing("inv-7")))(t)
	expect(t, again, id, "id of the one that is replaced")
	letters := schedule.InTx(w.Scheduler, "letters", note)
	other := testkit.Must(letters.Enqueue(t.Context(), "another kind", hour, rejecting("inv-7")))(t)
	w.run()
	db.setClock(midnight.Add(time.Hour))
	w.outcome(id)
	w.outcome(other)
	counts(db, "all have ended", 0, "pgleases.jobs")
	got := db.effects()
	slices.Sort(got)
	expect(t, fmt.Sprint(got), "[another kind fourth]", "effects")
	testkit.Must(mail.Enqueue(t.Context(), "fifth", rejecting("inv-7")))(t) // the key is free
}

// Changes of a job during its run.
func TestJobsThatAreReplacedAndCanceledWhileTheyRun(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	var mail *schedule.Kind[string]
	mail = schedule.InTx(w.Scheduler, "mail", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		switch r.Args {
		case "replace", "replace and fail":
			_, err := mail.Enqueue(ctx, "replaced", replacing(r.Name), schedule.WithDelay(time.Hour))
			if err != nil || r.Args != "replace" {
				return errors.Join(err, errors.New("no paper"))
			}
		case "cancel":
			if err := w.Cancel(ctx, r.Job); err != nil {
				return err
			}
		}
		return note(ctx, tx, r)
	})
	w.run()
	id := testkit.Must(mail.Enqueue(t.Context(), "replace", rejecting("inv-7")))(t)
	canceled := testkit.Must(mail.Enqueue(t.Context(), "cancel"))(t)
	expect(t, w.outcome(canceled).Outcome, schedule.OutcomeCanceled, "outcome")
	failed := testkit.Must(mail.Enqueue(t.Context(), "replace and fail", rejecting("inv-8")))(t)
	became := func(job int64) string {
		return one[string](db, `SELECT
				coalesce(string_agg(format('%s %s %s', outcome, until - $2, args), ', ' ORDER BY id), '')
			FROM pgleases.history WHERE job = $1`, job, midnight)
	}
	testkit.Until(t, "both have run", func() bool { return became(id) != "" && became(failed) != "" })
	const before = `succeeded 00:00:00 ; failed 00:00:00 "replace and fail"`
	expect(t, became(id)+"; "+became(failed), before, "what the history says of the runs before")
	db.setClock(midnight.Add(time.Hour))
	testkit.Until(t, "what replaced them has run", func() bool {
		return became(id) == "succeeded 00:00:00 , succeeded 01:00:00 "
	})
	counts(db, "and the other", 1, "pgleases.history WHERE job = $1 AND outcome = 'succeeded'", failed)
	expect(t, fmt.Sprint(db.effects()), "[replace replaced replaced]", "effects")
	wraps(t, "to cancel it again", w.Cancel(t.Context(), canceled), schedule.ErrNotFound)
}

// What a retry needs stays with an outcome, so operators see whose job has failed. Success needs no
// retry. JSON nulls in arguments stay.
func TestAJobThatCanBeRetriedShowsItsArguments(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	type to struct {
		To    string
		Reply *string
	}
	mail := schedule.InTx(w.Scheduler, "mail", func(_ context.Context, _ pgx.Tx, r schedule.Run[to]) error {
		if r.Args.To == "ada" {
			return errors.New("no such mailbox")
		}
		return nil
	})
	w.run()
	seven, eight := schedule.WithJobKey("customer-7"), schedule.WithJobKey("customer-8")
	failed := testkit.Must(mail.Enqueue(t.Context(), to{To: "ada"}, seven, schedule.WithPriority(2)))(t)
	succeeded := testkit.Must(mail.Enqueue(t.Context(), to{To: "bob"}))(t)
	canceled := testkit.Must(mail.Enqueue(t.Context(), to{To: "eve"}, eight, schedule.WithDelay(time.Hour)))(t)
	testkit.OK(t, w.Cancel(t.Context(), canceled))
	for id, want := range map[int64]string{
		failed:    `failed {"To": "ada", "Reply": null} customer-7 2`,
		canceled:  `canceled {"To": "eve", "Reply": null} customer-8 1`,
		succeeded: "succeeded   0",
	} {
		j := w.outcome(id)
		expect(t, fmt.Sprintf("%s %s %s %d", j.Outcome, j.Args, j.Key, j.Priority), want, "job")
	}
	entries := all(t, w.FailedJobs(t.Context(), 0))
	if len(entries) != 1 || entries[0].Job != failed || string(entries[0].Args) != `{"To": "ada", "Reply": null}` {
		t.Errorf("failed jobs %+v", entries)
	}
}

// Of the jobs that are due, the highest priority begins first, even if one poll does not find all
// of another priority.
func TestJobsOfAHigherPriorityBeginFirst(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(1), schedule.WithPartitions(1))
	began, end, handler := halting(func(r schedule.Run[string]) bool { return r.Args == "first" }, note)
	mail := schedule.InTx(w.Scheduler, "mail", handler)
	w.run()
	testkit.Must(mail.Enqueue(t.Context(), "first"))(t)
	testkit.Receive(t, "it runs", began)
	bulk := make([]string, 120)
	for i := range bulk {
		bulk[i] = "bulk"
	}
	testkit.Must(mail.EnqueueMany(t.Context(), bulk, schedule.WithPriority(0)))(t)
	testkit.Must(mail.Enqueue(t.Context(), "normal"))(t)
	testkit.Must(mail.Enqueue(t.Context(), "urgent", schedule.WithPriority(3)))(t)
	db.polled()
	close(end)
	counts(db, "all have run", 123, "public.effects")
	expect(t, fmt.Sprint(db.effects()[:4]), "[first urgent normal bulk]", "the first effects")
}

// Jobs of one key begin in the order of EnqueueMany, also if there are more than one poll finds. A
// job that waits for another attempt is overtaken.
func TestOrderOfJobsOfOneKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	mail := schedule.InTx(w.Scheduler, "mail", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		if r.Args == "007" && r.Attempt == 1 {
			return errors.New("no paper")
		}
		return note(ctx, tx, r)
	}, tries(2, time.Hour))
	w.run()
	db.polled()
	var all []string
	for n := range 250 {
		all = append(all, fmt.Sprintf("%03d", n))
	}
	testkit.Must(mail.EnqueueMany(t.Context(), all, schedule.WithJobKey("k")))(t)
	counts(db, "all others have run", 249, "public.effects")
	db.setClock(midnight.Add(2 * time.Hour))
	counts(db, "all have run", 250, "public.effects")
	want := append(slices.Delete(slices.Clone(all), 7, 8), "007")
	expect(t, fmt.Sprint(db.effects()), fmt.Sprint(want), "effects")
}

// Each of many jobs is in the partition of its key, has a nonce of its own, and has the ID that was
// returned for its arguments.
func TestManyJobsAreInThePartitionsOfTheirKeys(t *testing.T) {
	t.Parallel()
	const n = 100
	db := newDatabase(t)
	e := testkit.Must(schedule.NewEnqueuer(db.Pool, group, schedule.WithPartitions(7)))(t)
	numbers := schedule.JobsOf[int](e, "numbers")
	args := make([]int, n)
	for i := range args {
		args[i] = i
	}
	for keys, opts := range map[int64][]schedule.JobOption{n: nil, 1: {schedule.WithJobKey("Stra\u00dfe")}} {
		ids := testkit.Must(numbers.EnqueueMany(t.Context(), args, opts...))(t)
		counts := func(what string) int64 {
			return one[int64](db, fmt.Sprintf(`SELECT count(%s)
				FROM unnest($1::bigint[]) WITH ORDINALITY AS i (id, n) JOIN pgleases.jobs AS j USING (id)`, what), ids)
		}
		expect(t, counts("DISTINCT j.key"), keys, "keys")
		expect(t, counts("DISTINCT j.nonce"), n, "nonces")
		const itsPartition = "CASE WHEN j.partition = pgleases.partition_for(j.key, 7) THEN 1 END"
		expect(t, counts(itsPartition), n, "jobs in the partition of their key")
		expect(t, counts("CASE WHEN j.args = to_jsonb(i.n - 1) THEN 1 END"), n, "jobs with the arguments of their ID")
	}
}

// Invalid options return an error with the value, and no job is enqueued.
func TestWrongJobsAreRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	e := testkit.Must(schedule.NewEnqueuer(db.Pool, group))(t)
	mail := schedule.JobsOf[any](e, "mail")
	nowhere := testkit.Must(schedule.NewEnqueuer(db.Pool, group, schedule.WithSchema("nowhere")))(t)
	enqueue := func(args any, opts ...schedule.JobOption) error {
		return second(mail.Enqueue(t.Context(), args, opts...))
	}
	for says, err := range map[string]error{
		"priority 4":                       enqueue(1, schedule.WithPriority(4)),
		"priority -1":                      enqueue(1, schedule.WithPriority(-1)),
		"-1s is negative":                  enqueue(1, schedule.WithDelay(-time.Second)),
		"exclude each other":               enqueue(1, schedule.WithDelay(1), schedule.WithTime(midnight)),
		"the time 0001":                    enqueue(1, schedule.WithTime(time.Time{})),
		"OnConflict(3)":                    enqueue(1, schedule.WithUnique("a", 3)),
		"unique key":                       enqueue(1, rejecting("")),
		"Unique is for one":                second(mail.EnqueueMany(t.Context(), []any{1, 2}, rejecting("a"))),
		"arguments":                        enqueue(func() {}),
		`\\\u0000b" has a`:                 enqueue("a\\\x00b"),
		"option is nil":                    enqueue(1, nil),
		"run pgleases migrate --schedules": second(schedule.JobsOf[any](nowhere, "mail").Enqueue(t.Context(), 1)),
		"transaction is nil":               second(mail.EnqueueTx(t.Context(), nil, 1)),
		"kind":                             second(schedule.JobsOf[any](e, "").Enqueue(t.Context(), 1)),
		"WithDrainTimeout means not":       second(schedule.NewEnqueuer(db.Pool, group, schedule.WithDrainTimeout(0))),
		"pool is nil":                      second(schedule.NewEnqueuer(nil, group)),
	} {
		contains(t, err, says)
	}
	expect(t, db.count("pgleases.jobs"), 0, "jobs")
}

// Trigger and Backfill run a schedule besides its ticks, with its arguments and key. Its ticks keep
// their outcomes.
func TestSchedulesRunBesidesTheirTicks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	type call struct{ trigger, at, from, name, key string }
	calls := make(chan call, 100)
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if r.Args.N != 7 {
			t.Errorf("the arguments are %+v", r.Args)
		}
		c := call{string(r.Trigger), r.At.UTC().Format("15:04"), r.From.Format("15:04"), r.Name, r.Key}
		if err := leave(ctx, tx, map[bool]string{true: r.Name, false: "besides"}[r.Job == 0], r); err != nil {
			return err
		}
		calls <- c
		return nil
	})
	l := w.runs(k.Put(t.Context(), "close", args{7}, hourly, schedule.WithKey("books"), missedAll))
	db.setClock(midnight.Add(3*time.Hour + 10*time.Minute))
	l.settled(w.Scheduler)
	testkit.OK(t, w.Pause(t.Context(), "close"))
	for range 3 {
		expect(t, testkit.Receive(t, "a tick", calls).trigger, "tick", "trigger")
	}
	id := testkit.Must(w.Trigger(t.Context(), "close"))(t)
	expect(t, testkit.Receive(t, "it is triggered", calls), call{"manual", "03:10", "00:00", "close", "books"}, "call")
	j := w.outcome(id)
	expect(t, fmt.Sprint(j.Outcome, j.Name), "succeededclose", "outcome and name")
	ids := testkit.Must(w.Backfill(t.Context(), "close", midnight.Add(-30*time.Minute), midnight.Add(2*time.Hour)))(t)
	// Some of those are perhaps still live.
	again := testkit.Must(w.Backfill(t.Context(), "close", midnight, midnight.Add(3*time.Hour)))(t)
	for _, id := range append(ids, again...) {
		expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
	}
	expect(t, len(ids), 3, "ticks")
	for i, want := range []call{
		{"backfill", "00:00", "23:30", "close", "books"},
		{"backfill", "01:00", "00:00", "close", "books"},
		{"backfill", "02:00", "01:00", "close", "books"},
	} {
		expect(t, testkit.Receive(t, "a tick", calls), want, fmt.Sprint("call ", i))
	}
	testkit.OK(t, w.Resume(t.Context(), "close", schedule.ResumeCatchUp))
	db.setClock(midnight.Add(4 * time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 4})
	_, err := w.Trigger(t.Context(), "nothing")
	wraps(t, "to trigger what is not there", err, schedule.ErrNotFound)
}

// A job that waits for room is replaced with a later time: it runs then.
func TestAJobThatIsReplacedByALaterOneIsNotEarly(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(1), schedule.WithPartitions(1))
	w.Times().Poll = testkit.Patience // until something is put here, what was found stays
	began, end, handler := halting(func(r schedule.Run[string]) bool { return r.Args == "first" }, note)
	mail := schedule.InTx(w.Scheduler, "mail", handler)
	testkit.Must(mail.Enqueue(t.Context(), "first", schedule.WithPriority(3)))(t)
	id := testkit.Must(mail.Enqueue(t.Context(), "early", rejecting("inv-7")))(t)
	w.run()
	testkit.Receive(t, "the first runs", began)
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group))(t)
	others := schedule.JobsOf[string](enqueuer, "mail")
	testkit.Must(others.Enqueue(t.Context(), "later", schedule.WithDelay(time.Hour), replacing("inv-7")))(t)
	close(end)
	next := testkit.Must(mail.Enqueue(t.Context(), "next"))(t)
	w.outcome(next)
	expect(t, fmt.Sprint(db.effects()), "[first next]", "effects")
	db.setClock(midnight.Add(time.Hour))
	next = testkit.Must(mail.Enqueue(t.Context(), "last", schedule.WithPriority(0)))(t)
	w.outcome(next)
	expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
	expect(t, fmt.Sprint(db.effects()), "[first next later last]", "effects")
}

// A transaction that takes long and finds an existing job does not delay its run.
func TestAJobThatIsThereIsNotLocked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	began, end, handler := halting(nil, note)
	mail := schedule.InTx(w.Scheduler, "mail", handler)
	id := testkit.Must(mail.Enqueue(t.Context(), "first", rejecting("inv-7")))(t)
	w.run()
	testkit.Receive(t, "it runs", began)
	tx := db.begin()
	ignored := schedule.WithUnique("inv-7", schedule.OnConflictIgnore)
	there := testkit.Must(mail.EnqueueTx(t.Context(), tx, "second", ignored))(t)
	expect(t, there, id, "id of the one that is there")
	_, err := mail.EnqueueTx(t.Context(), tx, "third", rejecting("inv-7"))
	wraps(t, "to put it again", err, schedule.ErrExists)
	close(end)
	expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
	testkit.Must(mail.EnqueueTx(t.Context(), tx, "fourth", rejecting("inv-7")))(t) // the key is free
	testkit.OK(t, tx.Commit(t.Context()))
	testkit.Until(t, "both have run", func() bool { return fmt.Sprint(db.effects()) == "[first fourth]" })
}

// The session has a zone whose clocks once had unusual offsets. Jobs of such times, and of times
// far ahead, are read like others.
func TestJobsOfTimesLongAgoAndFarAhead(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.set("timezone", "Europe/Berlin")
	w := newWorker(db)
	mail := schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	for _, at := range []time.Time{
		time.Date(1, 1, 1, 12, 0, 0, 0, time.UTC),
		time.Date(1850, 1, 1, 0, 0, 0, 0, time.UTC),
		midnight.In(time.FixedZone("", 25*60*60)),
	} {
		id := testkit.Must(mail.Enqueue(t.Context(), at.String(), schedule.WithTime(at)))(t)
		if j := w.outcome(id); !j.At.Equal(at) || j.Outcome != schedule.OutcomeSucceeded {
			t.Errorf("the job of %v is %+v", at, j)
		}
	}
	ahead := time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	id := testkit.Must(mail.Enqueue(t.Context(), `ahead, and no NUL: \u0000`, schedule.WithTime(ahead.Add(999))))(t)
	if j, err := w.Job(t.Context(), id); err != nil || !j.At.Equal(ahead) || !j.Due.Equal(ahead) {
		t.Errorf("the job that waits is %+v, %v", j, err)
	}
}

// Of many due jobs a poll finds few, and the next poll is sent when those have begun, not at each
// end of a run. A poll for more begins where the last one ended, because ended jobs may be dead
// entries in the index. It leaves out no job of the same instant.
func TestPollForMoreContinues(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	db.notePolls("since_us bigint", "since_us")
	w := newWorker(db, schedule.WithPartitions(1))
	w.Times().Poll = 100 * time.Second // the next sweep is far away
	w.Times().PollPause = time.Second  // meanwhile all that was found has ended
	mail := schedule.InTx(w.Scheduler, "mail", note)
	at := midnight.Add(time.Hour)
	for i := range 2 {
		due := schedule.WithTime(at.Add(time.Duration(i) * time.Second))
		testkit.Must(mail.EnqueueMany(t.Context(), make([]string, 300), due))(t)
	}
	db.setClock(at.Add(time.Minute))
	w.run()
	counts(db, "all have run", 0, "pgleases.jobs")
	if last := time.UnixMicro(one[int64](db, "SELECT max(since_us) FROM public.polls")); !last.After(at) {
		t.Errorf("the last poll began at %v, when no job due at %v was left", last, at)
	}
	if n := one[int](db, "SELECT count(*) FROM public.polls"); n > 30 { // one for each hundred, and some more
		t.Errorf("%d polls for 600 jobs", n)
	}
}

// The number of partitions changes while schedules exist, and while an open transaction puts jobs
// and another schedule.
func TestPutDuringChangeOfPartitions(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, test := range []struct{ from, to int }{{16, 3}, {3, 16}} {
		t.Run(fmt.Sprintf("from %d to %d", test.from, test.to), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			start := func(n int) (*worker, *schedule.Kind[args]) {
				w := newWorker(db, schedule.WithPartitions(n))
				w.Times().Trim = 20 * time.Millisecond
				check := func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
					var its int
					err := tx.QueryRow(ctx, "SELECT pgleases.partition_for($1, $2)", r.Key, n).Scan(&its)
					if err == nil && its != r.Partition {
						t.Errorf("%q runs in partition %d, and may overlap with others in %d", r.Key, r.Partition, its)
					}
					return err
				}
				k := schedule.InTx(w.Scheduler, "books", check)
				return w.run(), k
			}
			w, k := start(test.from)
			counts(db, "it has joined", 1, "pgleases.schedule_groups")
			for n := range 20 {
				testkit.OK(t, k.Put(t.Context(), fmt.Sprint("before ", n), args{}, schedule.Every(time.Second)))
			}
			tx := db.begin()
			for n := range 20 {
				testkit.Must(k.EnqueueTx(t.Context(), tx, args{n}, schedule.WithJobKey(fmt.Sprint("key ", n))))(t)
			}
			testkit.OK(t, k.PutTx(t.Context(), tx, "close", args{}, schedule.Every(time.Second)))
			w.close()
			const drop = "SELECT pgleases.drop_lease('schedule/tests', 'another number', partitions => %d)"
			db.exec(fmt.Sprintf(drop, test.to))
			start(test.to)
			becomes(db, "the number has changed", test.to, "SELECT partitions FROM pgleases.schedule_groups")
			testkit.OK(t, tx.Commit(t.Context()))
			counts(db, "all jobs are done", 20, "pgleases.history WHERE outcome = 'succeeded' AND job IS NOT NULL")
			db.setClock(midnight.Add(time.Minute))
			becomes(db, "all schedules have run", 21, `SELECT count(DISTINCT name) FROM pgleases.history
				WHERE outcome = 'succeeded' AND job IS NULL`)
		})
	}
}
