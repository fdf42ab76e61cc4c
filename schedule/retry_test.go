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
	"github.com/pgleases/pgleases/internal/when"
	"github.com/pgleases/pgleases/schedule"
)

// waitsForRetry waits until n attempts at a tick have failed.
func waitsForRetry(w *worker, name string, attempts int) (s schedule.Schedule) {
	w.t.Helper()
	testkit.Until(w.t, fmt.Sprintf("%d attempts at a tick of %q have failed", attempts, name), func() (holds bool) {
		s = testkit.Must(w.Get(w.t.Context(), name))(w.t)
		return s.Attempts == attempts
	})
	return s
}

// A run that fails is retried after its pauses, by the database's clock. Meanwhile its tick has no
// outcome, and counts as under way for the next ticks. At the end each tick has exactly one
// outcome.
func TestARunThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	first := midnight.Add(time.Hour)
	calls := make(chan int, 100)
	kind := func(name string, fails int) *schedule.Kind[args] {
		return schedule.InTx(w.Scheduler, name, func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			if err := effect(ctx, tx, r); err != nil || !r.At.Equal(first) {
				return err
			}
			calls <- r.Attempt
			if r.Attempt <= fails {
				return fmt.Errorf("no paper, %d", r.Attempt)
			}
			return nil
		}, schedule.WithMaxAttempts(3, schedule.Backoff(50*time.Minute, 80*time.Minute)))
	}
	twice, thrice := kind("twice", 2), kind("thrice", 3)
	testkit.OK(t, twice.Put(t.Context(), "skip", args{}, hourly))
	testkit.OK(t, twice.Put(t.Context(), "buffer", args{}, hourly, buffered, missedAll))
	testkit.OK(t, thrice.Put(t.Context(), "failing", args{}, hourly))
	names := []string{"skip", "buffer", "failing"}
	ledgers := make(map[string]*ledger)
	for _, name := range names {
		ledgers[name] = newLedger(db, name)
	}
	w.run()
	now := first
	for attempt := 1; attempt <= 3; attempt++ {
		db.setClock(now)
		for range names {
			expect(t, testkit.Receive(t, "a call", calls), attempt, "attempt")
		}
		if attempt == 3 {
			break
		}
		soonest, latest := now.Add(1000*time.Hour), now
		for _, name := range names {
			s := waitsForRetry(w, name, attempt)
			expect(t, s.Error, fmt.Sprintf("no paper, %d", attempt), "error of "+name)
			pause := []time.Duration{50 * time.Minute, 80 * time.Minute}[attempt-1]
			latestStart := now.Add(pause/10*11 + time.Minute) // a run takes its time too
			if s.Due.Before(now.Add(pause)) || s.Due.After(latestStart) {
				t.Fatalf("%s is tried again at %v, %v after its run", name, s.Due, s.Due.Sub(now))
			}
			soonest = when.Earlier(soonest, s.Due)
			if s.Due.After(latest) {
				latest = s.Due
			}
		}
		db.setClock(soonest.Add(-3 * time.Second))
		db.polled()
		expect(t, len(calls), 0, "calls before it is time")
		expect(t, db.count("pgleases.history"), 0, "outcomes until then")
		now = latest
	}
	for _, name := range names {
		what := "the tick of " + name + " has its outcome"
		counts(db, what, 1, "pgleases.history WHERE name = $1 AND attempts = 3", name)
	}
	db.setClock(now.Truncate(time.Hour).Add(time.Hour))
	under := int64(len(hours(first, now))) // ticks that came while the first was under way
	for name, want := range map[string]outcomes{
		"skip":    {schedule.OutcomeSucceeded: 2, schedule.OutcomeSkipped: under},
		"buffer":  {schedule.OutcomeSucceeded: 2 + under},
		"failing": {schedule.OutcomeFailed: 1, schedule.OutcomeSucceeded: 1, schedule.OutcomeSkipped: under},
	} {
		ledgers[name].settled(w.Scheduler).expectOutcomes(want)
	}
	expect(t, len(calls), 0, "further calls")
}

// A retry is made by the current owner, with the right attempt number. A lost answer is not counted
// twice.
func TestRetriesAreCountedOverProcessesAndLostAnswers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	calls := make(chan int, 100)
	start := func() *worker {
		w := newWorker(db)
		k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			if err := effect(ctx, tx, r); err != nil {
				return err
			}
			if r.At.Equal(midnight.Add(time.Hour)) {
				calls <- r.Attempt
				return errors.New("no paper")
			}
			if r.Attempt != 1 {
				t.Errorf("the tick of %v gets attempt %d", r.At, r.Attempt)
			}
			return nil
		}, tries(4, time.Minute))
		testkit.OK(t, k.Add("close", args{}, hourly, missedAll))
		return w.run().has("close")
	}
	l := newLedger(db, "close")
	w := start()
	for attempt := 1; attempt <= 4; attempt++ {
		db.polled()
		w.wire.Lose(1, []string{"schedule_close", "commit"}[attempt%2], true)
		db.setClock(midnight.Add(time.Hour + time.Duration(2*(attempt-1))*time.Minute))
		expect(t, testkit.Receive(t, "a call", calls), attempt, "attempt")
		if attempt < 4 {
			waitsForRetry(w, "close", attempt)
			testkit.Until(t, "the answer was lost", func() bool { return w.wire.Left() == 0 })
			w.close()
			w = start()
		}
	}
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeFailed: 1})
	expect(t, l.entries[0].Attempts, 4, "attempts in the history")
	w.wire.Lose(1, "commit", true) // of a run that succeeded: the next tick gets attempt 1
	db.setClock(midnight.Add(3 * time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeFailed: 1, schedule.OutcomeSucceeded: 2})
	expect(t, len(calls), 0, "further calls")
}

// Handlers return Discard and Snooze.
func TestHandlersDiscardAndSnooze(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	calls := make(chan int, 100)
	snooze := true
	retry := tries(10, time.Minute)
	sleepy := schedule.InTx(w.Scheduler, "sleepy", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		calls <- r.Attempt
		if snooze {
			snooze = false
			return errors.Join(effect(ctx, tx, r), schedule.Snooze(30*time.Minute))
		}
		return effect(ctx, tx, r)
	}, retry)
	discarded := make(chan struct{}, 100)
	discard := func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		discarded <- struct{}{}
		_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$") // which would be tried again
		return schedule.Discard(fmt.Errorf("wrong address: %w", err))
	}
	discards := schedule.InTx(w.Scheduler, "discards", discard, retry)
	testkit.OK(t, sleepy.Put(t.Context(), "sleepy", args{}, hourly))
	testkit.OK(t, discards.Put(t.Context(), "discards", args{}, hourly))
	a, b := newLedger(db, "sleepy"), newLedger(db, "discards")
	w.run()
	db.setClock(midnight.Add(time.Hour))
	b.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeFailed: 1})
	expect(t, len(discarded), 1, "calls of what was discarded")
	if !strings.Contains(b.entries[0].Error, "wrong address") {
		t.Errorf("error %q of what was discarded", b.entries[0].Error)
	}
	expect(t, testkit.Receive(t, "a call", calls), 1, "attempt")
	var due time.Time
	testkit.Until(t, "it is snoozed", func() bool {
		s := testkit.Must(w.Get(t.Context(), "sleepy"))(t)
		due = s.Due
		return due.After(midnight.Add(89*time.Minute)) && due.Before(midnight.Add(92*time.Minute))
	})
	db.setClock(due.Add(-3 * time.Second))
	db.polled()
	expect(t, len(calls), 0, "calls while it snoozes")
	db.setClock(due)
	a.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
	expect(t, testkit.Receive(t, "a call", calls), 1, "attempt")
	expect(t, a.entries[0].Attempts, 1, "attempts in the history")
}

// After n consecutive failed ticks the schedule is paused, until Resume. A tick that succeeds
// resets the count.
func TestConsecutiveFailuresPauseASchedule(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if err := effect(ctx, tx, r); err != nil || r.At.Hour() == 2 {
			return err
		}
		return errors.New("no paper")
	})
	l := w.runs(k.Put(t.Context(), "close", args{}, hourly, schedule.WithPauseAfter(2), missedAll))
	db.setClock(midnight.Add(6 * time.Hour))
	paused := func() bool {
		s := testkit.Must(w.Get(t.Context(), "close"))(t)
		return !s.PausedAt.IsZero() && s.Failures == 2
	}
	testkit.Until(t, "it is paused", paused)
	db.polled()
	// They failed, succeeded, failed and failed.
	expect(t, db.count("pgleases.history"), 4, "outcomes of what is paused")
	testkit.OK(t, w.Resume(t.Context(), "close", schedule.ResumeCatchUp))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeFailed: 5, schedule.OutcomeSucceeded: 1})
	testkit.Until(t, "it is paused again", paused)
}

// Edits while a tick waits for its retry: another rule, a resumption from now and a deletion cancel it, and other edits do not.
func TestEditsWhileATickWaitsForItsRetry(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if err := effect(ctx, tx, r); err != nil || r.Args.N == 1 {
			return err
		}
		return errors.New("no paper")
	}, tries(2, 30*time.Minute))
	resumed := func(from schedule.ResumeMode) func(context.Context, string) error {
		return func(ctx context.Context, name string) error {
			return errors.Join(w.Pause(ctx, name), w.Resume(ctx, name, from))
		}
	}
	edits := map[string]struct {
		edit func(ctx context.Context, name string) error
		want outcomes
	}{
		"new arguments": {func(ctx context.Context, name string) error {
			return k.Put(ctx, name, args{1}, hourly)
		}, outcomes{schedule.OutcomeSucceeded: 1}},
		"another rule": {func(ctx context.Context, name string) error {
			return k.Put(ctx, name, args{1}, schedule.Cron("0 0-22 * * *", "UTC"))
		}, outcomes{schedule.OutcomeCanceled: 1}},
		"a pause":    {resumed(schedule.ResumeCatchUp), outcomes{schedule.OutcomeFailed: 1}},
		"from now":   {resumed(schedule.ResumeFromNow), outcomes{schedule.OutcomeCanceled: 1}},
		"a deletion": {w.Delete, outcomes{schedule.OutcomeCanceled: 1}},
	}
	ledgers := make(map[string]*ledger)
	for name := range edits {
		testkit.OK(t, k.Put(t.Context(), name, args{}, hourly))
		ledgers[name] = newLedger(db, name)
	}
	w.run()
	db.setClock(midnight.Add(time.Hour))
	for name, e := range edits {
		waitsForRetry(w, name, 1)
		testkit.OK(t, e.edit(t.Context(), name))
	}
	db.polled()
	expect(t, db.count("pgleases.history WHERE outcome <> 'canceled'"), 0, "runs before it is time")
	db.setClock(midnight.Add(110 * time.Minute))
	for name, l := range ledgers {
		l.settled(w.Scheduler).expectOutcomes(edits[name].want)
	}
}

// Texts of errors that the encoding of the database cannot store are stored in ASCII.
func TestErrorsInLettersThatTheDatabaseDoesNotHave(t *testing.T) {
	t.Parallel()
	db := newEncodedDatabase(t, "LATIN1")
	w := newWorker(db)
	fail := failing[args]("нет бумаги")
	testkit.OK(t, schedule.InTx(w.Scheduler, "failing", fail).Add("failing", args{}, hourly))
	again := schedule.InTx(w.Scheduler, "again", fail, tries(2, time.Hour))
	testkit.OK(t, again.Add("again", args{}, hourly))
	l := newLedger(db, "failing")
	w.run().has("failing")
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeFailed: 1})
	expect(t, l.entries[0].Error, `"\u043d\u0435\u0442 \u0431\u0443\u043c\u0430\u0433\u0438"`, "error")
	expect(t, waitsForRetry(w, "again", 1).Error, l.entries[0].Error, "error")
}

// An edit locks the row of the schedule for longer than the end of a run waits: the tick gets its
// outcome afterwards.
func TestEndlessEditFailsNoTick(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w, log := newLogged(db)
	w.wire.Count("schedule_locked")
	k := schedule.InTx(w.Scheduler, "books", effect)
	l := w.runs(k.Put(t.Context(), "close", args{}, hourly))
	db.polled()
	edit := db.begin()
	testkit.OK(t, k.PutTx(t.Context(), edit, "close", args{2}, hourly))
	db.setClock(midnight.Add(time.Hour))
	testkit.Until(t, "its row was found locked, three times", func() bool { return w.wire.Counted() >= 3 })
	expect(t, log.count("locked by an edit"), 1, "runs that were not committed")
	testkit.OK(t, edit.Rollback(t.Context()))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}

// The database fails for a while when a process starts: the process starts anyway.
func TestAStartSurvivesAFaultThatPasses(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, text := range []string{"schedule_join", "schedule_get", "schedule_put"} {
		for _, after := range []bool{false, true} {
			w := newWorker(db)
			name := fmt.Sprint(text, after)
			testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Add(name, args{}, hourly))
			w.wire.Lose(1, text, after)
			w.run().has(name)
			expect(t, w.wire.Left(), 0, "messages to lose")
			w.close()
		}
	}
}
