package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The numbers count runs under way, waiting items, each outcome, lateness, polls and the clock.
func TestStatsCountRuns(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(1))
	w.Times().Sweep = 50 * time.Millisecond // what is edited is due since long
	outcome, began := make(chan error), make(chan struct{}, 10)
	handle := func(ctx context.Context, _ schedule.Run[args]) error {
		began <- struct{}{}
		select {
		case err := <-outcome:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	books := schedule.InTx(w.Scheduler, "books", inside(handle), tries(2, time.Minute))
	mail := schedule.AtLeastOnce(w.Scheduler, "mail", handle)
	pay := schedule.AtMostOnce(w.Scheduler, "pay", handle)
	testkit.OK(t, books.Put(t.Context(), "close", args{}, hourly))
	s := w.Stats()
	if s.Polls != 0 || s.SinceLastPoll != 0 || s.OldestRun != 0 || s.ClockOffset != 0 {
		t.Errorf("before Run they are %+v", s)
	}
	if len(s.Kinds) != 3 || s.Kinds["books"].Begun != 0 || len(bridge.Lateness(w.Scheduler)) != 3 {
		t.Errorf("before Run the kinds are %+v", s.Kinds)
	}
	w.run()
	testkit.Until(t, "it owns all", func() bool { return w.Stats().Partitions == 4 })
	numbers := func(kind string) string {
		k := w.Stats().Kinds[kind]
		return fmt.Sprintf("%d run, %d begun, %d retried, %d snoozed, %d succeeded, "+
			"%d failed, %d unknown, %d missed, %d skipped",
			k.Running, k.Begun, k.Retried, k.Snoozed, k.Succeeded, k.Failed, k.Unknown, k.Missed, k.Skipped)
	}
	become := func(kind, want string) {
		t.Helper()
		defer func() {
			if got := numbers(kind); t.Failed() {
				t.Logf("%s: %s, not %s", kind, got, want)
			}
		}()
		testkit.Until(t, kind+" are counted", func() bool { return numbers(kind) == want })
	}
	ends := func(err error) {
		t.Helper()
		select {
		case outcome <- err:
		case <-time.After(testkit.Patience):
			t.Fatal("no handler runs")
		}
	}

	db.setClock(midnight.Add(3*time.Hour + 20*time.Minute))
	testkit.Receive(t, "it runs", began)
	testkit.OK(t, books.Put(t.Context(), "other", args{}, schedule.Every(time.Minute)))
	db.setClock(midnight.Add(3*time.Hour + 22*time.Minute))
	testkit.Until(t, "one runs and one waits", func() bool {
		s := w.Stats()
		return s.Running == 1 && s.Waiting == 1 && s.OldestRun > 0
	})
	become("books", "1 run, 1 begun, 0 retried, 0 snoozed, 0 succeeded, 0 failed, 0 unknown, 0 missed, 0 skipped")
	late := bridge.Lateness(w.Scheduler)["books"]
	for i, bound := range bridge.DelayBounds {
		if want := bound >= 20*time.Minute; (late.Within[i] == 1) != want {
			t.Errorf("%d of the runs, of which one was 20 minutes late, were no later than %v", late.Within[i], bound)
		}
	}
	total := w.Stats().Kinds["books"].TotalLateness
	if late.Count != 1 || total < 20*time.Minute || total > 21*time.Minute {
		t.Errorf("a run that was 20 minutes late counts as %v, %+v", total, late)
	}
	ends(nil)
	testkit.Receive(t, "the other runs", began)
	become("books", "1 run, 2 begun, 0 retried, 0 snoozed, 1 succeeded, 0 failed, 0 unknown, 2 missed, 0 skipped")
	testkit.Until(t, "nothing waits", func() bool { return w.Stats().Waiting == 0 })
	ends(errors.New("no paper"))
	become("books", "0 run, 2 begun, 1 retried, 0 snoozed, 1 succeeded, 0 failed, 0 unknown, 3 missed, 0 skipped")
	db.setClock(midnight.Add(3*time.Hour + 23*time.Minute + 30*time.Second))
	testkit.Receive(t, "it is tried again", began)
	ends(schedule.Snooze(10 * time.Minute))
	become("books", "0 run, 3 begun, 1 retried, 1 snoozed, 1 succeeded, 0 failed, 0 unknown, 3 missed, 0 skipped")
	db.setClock(midnight.Add(3*time.Hour + 33*time.Minute + 40*time.Second))
	testkit.Receive(t, "it is tried again", began)
	before := w.Stats().Kinds["books"]
	// 20 minutes, one or two ticks, and seconds of those that were tried again.
	if before.Begun != 4 || before.TotalLateness > 23*time.Minute {
		t.Errorf("what is tried again was late by %+v", before)
	}
	ends(errors.New("no paper")) // for the second time
	become("books", "0 run, 4 begun, 1 retried, 1 snoozed, 1 succeeded, 1 failed, 0 unknown, 3 missed, 11 skipped")
	db.setClock(midnight.Add(3*time.Hour + 34*time.Minute + 10*time.Second))
	testkit.Receive(t, "the next tick runs", began)
	ends(nil)
	become("books", "0 run, 5 begun, 1 retried, 1 snoozed, 2 succeeded, 1 failed, 0 unknown, 3 missed, 11 skipped")
	testkit.OK(t, w.Delete(t.Context(), "other"))

	testkit.Must(mail.Enqueue(t.Context(), args{}, schedule.WithTime(midnight)))(t)
	testkit.Receive(t, "it is called", began)
	ends(nil)
	become("mail", "0 run, 1 begun, 0 retried, 0 snoozed, 1 succeeded, 0 failed, 0 unknown, 0 missed, 0 skipped")
	if late := w.Stats().Kinds["mail"].TotalLateness; late > time.Minute {
		t.Errorf("a job that was put for an instant that had passed is %v late", late)
	}
	testkit.OK(t, pay.Put(t.Context(), "pay", args{}, hourly, missedAll))
	db.exec(`UPDATE pgleases.schedules SET
			due = '2026-03-02 04:00 UTC', tick = '2026-03-02 04:00 UTC', tick_local = '2026-03-02 04:00',
		began = '2026-03-02 04:00 UTC', crashes = 1, call = 'another', call_epoch = 7 WHERE name = 'pay'`)
	db.setClock(midnight.Add(4*time.Hour - time.Second))
	testkit.Until(t, "the crash suspect is counted", func() bool { return w.Stats().CrashSuspects == 1 })
	testkit.OK(t, w.Delete(t.Context(), "close"))
	db.setClock(midnight.Add(4 * time.Hour))
	become("pay", "0 run, 0 begun, 0 retried, 0 snoozed, 0 succeeded, 0 failed, 1 unknown, 0 missed, 0 skipped")

	s = w.Stats()
	if ahead := time.Until(midnight.Add(4 * time.Hour)); (s.ClockOffset-ahead).Abs() > time.Minute || s.ClockUnstable {
		t.Errorf("the database's clock is %v ahead, doubted: %v; it is %v", s.ClockOffset, s.ClockUnstable, ahead)
	}
	if s.Polls < 3 || s.PollErrors != 0 || s.PollTime <= 0 || s.PollTime > time.Hour {
		t.Errorf("the polls are %+v", s)
	}
	if s.SinceLastPoll <= 0 || s.SinceLastPoll > time.Minute {
		t.Errorf("the last poll was %v ago", s.SinceLastPoll)
	}
	w.crash()
	testkit.Until(t, "a poll fails", func() bool { return w.Stats().PollErrors > 0 })
	w.close()
	if s := w.Stats(); s.SinceLastPoll != 0 || s.Partitions != 0 || s.Waiting != 0 || s.Kinds["books"].Succeeded != 2 {
		t.Errorf("after Run they are %+v", s)
	}
}
