package schedule_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// hourly ticks at each full hour of UTC. hours returns what should run, without any rule.
var hourly = schedule.Cron("0 * * * *", "UTC")

// hours returns the full hours after an instant, up to another.
func hours(after, until time.Time) (ticks []time.Time) {
	for t := after.Truncate(time.Hour).Add(time.Hour); !t.After(until); t = t.Add(time.Hour) {
		ticks = append(ticks, t)
	}
	return ticks
}

// A ledger has what should have run, the history, and the effects.
type ledger struct {
	db      *database
	name    string
	should  func(after, until time.Time) []time.Time
	begins  time.Time // when the schedule was made
	calls   string    // how often its handler is called, where its effects are outside: "at least once", "at most once"
	entries []schedule.HistoryEntry
}

// settled waits until every tick up to now has its outcome, and reads and checks the ledger.
func (l *ledger) settled(s *schedule.Scheduler) *ledger {
	t := l.db.t
	t.Helper()
	now := one[time.Time](l.db, "SELECT now FROM public.test_clock")
	should := l.should(l.begins, now)
	what := fmt.Sprintf("all %d ticks of %q until %v have their outcome", len(should), l.name, now)
	becomes(l.db, what, true, `SELECT coalesce(sum(ticks), 0) >= $2 FROM pgleases.history
		WHERE name = $1 AND job IS NULL`, l.name, len(should))
	l.entries = nil
	for _, e := range all(t, s.History(t.Context(), l.name, 0)) {
		if e.Job == 0 {
			l.entries = append(l.entries, e)
		}
	}
	l.check(now)
	return l
}

// check compares the history with what should have run and with the effects.
func (l *ledger) check(now time.Time) {
	t := l.db.t
	t.Helper()
	entries := slices.Clone(l.entries)
	slices.SortFunc(entries, func(a, b schedule.HistoryEntry) int { return a.Until.Compare(b.Until) })
	var sum int64
	var done, lost []string
	reached := l.begins
	for _, e := range entries {
		if e.Since.Before(reached) || len(l.should(reached, e.Since)) > 0 { // an edit begins anew at its instant
			t.Errorf("%q: an entry begins at %v, and the one before ends at %v: %+v", l.name, e.Since, reached, e)
		}
		reached = e.Until
		if ticks := l.should(e.Since, e.Until); int64(len(ticks)) != e.Ticks {
			t.Errorf("%q: an entry has %d ticks instead of %d: %+v", l.name, e.Ticks, len(ticks), e)
		} else if last := ticks[len(ticks)-1]; !last.Equal(e.Until) {
			t.Errorf("%q: the last tick of an entry is %v: %+v", l.name, last, e)
		}
		ran := slices.Contains([]schedule.Outcome{
			schedule.OutcomeSucceeded, schedule.OutcomeFailed, schedule.OutcomeUnknown,
		}, e.Outcome)
		if ran && e.Ticks != 1 || ran != (e.Epoch > 0) {
			t.Errorf("%q: a run of %d ticks: %+v", l.name, e.Ticks, e)
		}
		if e.Outcome == schedule.OutcomeSucceeded {
			done = append(done, e.Until.UTC().Format(time.RFC3339))
		}
		if e.Outcome == schedule.OutcomeUnknown {
			lost = append(lost, e.Until.UTC().Format(time.RFC3339))
		}
		sum += e.Ticks
	}
	if should := l.should(l.begins, now); int64(len(should)) != sum {
		t.Errorf("%q: %d ticks until %v, and %d outcomes", l.name, len(should), now, sum)
	}
	rows, _ := l.db.Query(context.Background(), `SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
		FROM public.effects WHERE name = $1 ORDER BY at`, l.name)
	effects := testkit.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	switch l.calls {
	case "at least once":
		effects = slices.Compact(effects)
	case "at most once": // what is lost has one, or none
		for _, at := range lost {
			if i := slices.Index(effects, at); i >= 0 {
				effects = slices.Delete(effects, i, i+1)
			}
		}
	}
	if !slices.Equal(effects, done) {
		t.Errorf("%q: effects of %v, and the history has as done %v", l.name, effects, done)
	}
	if t.Failed() {
		for _, e := range entries {
			t.Logf("%+v", e)
		}
		t.FailNow()
	}
}

// outcomes counts the ticks of each outcome.
func (l *ledger) outcomes() map[schedule.Outcome]int64 {
	n := make(map[schedule.Outcome]int64)
	for _, e := range l.entries {
		n[e.Outcome] += e.Ticks
	}
	return n
}

// expectOutcomes expects all ticks to have these outcomes.
func (l *ledger) expectOutcomes(want map[schedule.Outcome]int64) {
	l.db.t.Helper()
	expect(l.db.t, fmt.Sprint(l.outcomes()), fmt.Sprint(want), fmt.Sprintf("outcomes of %q", l.name))
}

func newLedger(db *database, name string) *ledger {
	return &ledger{db: db, name: name, should: hours, begins: one[time.Time](db, "SELECT now FROM public.test_clock")}
}

// runs begins Run of a process for which the schedule "close" was put or added, waits until there is one, and returns its ledger.
func (w *worker) runs(err error) *ledger {
	w.t.Helper()
	testkit.OK(w.t, err)
	l := newLedger(w.db, "close")
	w.run().has("close")
	return l
}

// A run is committed, and the answer is lost with the connection. It has succeeded, also if a poll
// tells first that its job does not exist any more, as after a cancel: nothing is logged as
// canceled, and the statistics count it.
func TestLostAnswerOfCommitCountsSuccess(t *testing.T) {
	t.Parallel()
	for _, told := range []string{"by an attempt", "by a poll", "schedule"} {
		t.Run(told, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			w, log := newLogged(db)
			w.Times().Poll = 100 * time.Millisecond
			books := schedule.InTx(w.Scheduler, "books", effect)
			if told == "schedule" {
				l := w.runs(books.Add("close", args{}, hourly, missedAll))
				w.wire.Lose(1, "schedule_end_tick", true)
				db.setClock(midnight.Add(3 * time.Hour))
				l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 3})
				testkit.Until(t, "all are counted", func() bool { return w.Stats().Kinds["books"].Succeeded == 3 })
				return
			}
			lose := w.wire.LoseLate("schedule_end_job")
			if told == "by an attempt" {
				lose()
			}
			w.run()
			id := testkit.Must(books.Enqueue(t.Context(), args{}))(t)
			expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
			if told == "by a poll" {
				w.wire.Count("schedule_poll")
				testkit.Until(t, "the answer of a poll was used", func() bool { return w.wire.Counted() > 2 })
				lose()
			}
			testkit.Until(t, "it is counted", func() bool { return w.Stats().Kinds["books"].Succeeded == 1 })
			w.end()
			expect(t, log.count("run canceled"), 0, "lines of canceled runs")
			expect(t, len(db.effects()), 1, "effects")
		})
	}
}

// Each statement in turn is lost, or its answer is, with the connection.
func TestLostStatementKeepsOutcomesExact(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	books := schedule.InTx(w.Scheduler, "books", effect)
	l := w.runs(books.Add("close", args{1}, hourly, missedAll))
	now := midnight
	texts := []string{
		"begin", "schedule_open", "public.effects", "schedule_end_tick", "commit", "schedule_poll", "rollback",
	}
	for _, text := range texts {
		for _, after := range []bool{false, true} {
			w.wire.Lose(1, text, after)
			now = now.Add(3 * time.Hour)
			db.setClock(now)
			l.settled(w.Scheduler)
			if text != "rollback" { // sent only after another fault
				testkit.Until(t, "the message was lost: "+text, func() bool { return w.wire.Left() == 0 })
			}
		}
	}
	l.expectOutcomes(map[schedule.Outcome]int64{schedule.OutcomeSucceeded: int64(now.Sub(midnight) / time.Hour)})
}
