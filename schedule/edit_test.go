package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/when"
	"github.com/pgleases/pgleases/schedule"
)

// halfPast ticks between the ticks of hourly.
var halfPast = schedule.Cron("30 * * * *", "UTC")

// Edits, pauses and resumptions run no tick, and make no tick missed.
func TestPausesAndEditsAreNoMiss(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	w.run()
	for _, name := range []string{"from now", "catch up", "all", "edited", "deleted"} {
		opts := []schedule.ScheduleOption{}
		if name == "all" {
			opts = append(opts, missedAll)
		}
		testkit.OK(t, k.Put(t.Context(), name, args{1}, hourly, opts...))
		testkit.OK(t, w.Pause(t.Context(), name))
		testkit.OK(t, w.Pause(t.Context(), name))
	}
	ledgers := make(map[string]*ledger)
	for _, name := range []string{"from now", "catch up", "all", "edited", "deleted"} {
		ledgers[name] = newLedger(db, name)
	}
	ledgers["edited"].should = func(after, until time.Time) []time.Time {
		change := midnight.Add(190 * time.Minute)
		ticks := hours(after, when.Earlier(until, change))
		for t := change.Truncate(time.Hour).Add(30 * time.Minute); !t.After(until); t = t.Add(time.Hour) {
			if t.After(after) && t.After(change) {
				ticks = append(ticks, t)
			}
		}
		return ticks
	}
	db.setClock(midnight.Add(190 * time.Minute))
	db.polled()
	expect(t, db.count("pgleases.history"), 0, "outcomes of what is paused")
	testkit.OK(t, w.Resume(t.Context(), "from now", schedule.ResumeFromNow))
	testkit.OK(t, w.Resume(t.Context(), "from now", schedule.ResumeCatchUp)) // it is not paused any more
	testkit.OK(t, w.Resume(t.Context(), "catch up", schedule.ResumeCatchUp))
	testkit.OK(t, w.Resume(t.Context(), "all", schedule.ResumeCatchUp))
	testkit.OK(t, k.Put(t.Context(), "edited", args{1}, halfPast))
	testkit.OK(t, w.Resume(t.Context(), "edited", schedule.ResumeCatchUp)) // from the edit on
	testkit.OK(t, w.Delete(t.Context(), "deleted"))
	wraps(t, "to delete it again", w.Delete(t.Context(), "deleted"), schedule.ErrNotFound)
	want := map[string]outcomes{
		"from now": {schedule.OutcomeCanceled: 3},
		"catch up": {schedule.OutcomeMissed: 2, schedule.OutcomeSucceeded: 1},
		"all":      {schedule.OutcomeSucceeded: 3},
		"edited":   {schedule.OutcomeCanceled: 3},
		"deleted":  {schedule.OutcomeCanceled: 3},
	}
	for name, l := range ledgers {
		l.settled(w.Scheduler).expectOutcomes(want[name])
	}
	db.setClock(midnight.Add(250 * time.Minute))
	for name, l := range ledgers {
		if name != "deleted" {
			want[name][schedule.OutcomeSucceeded]++
			l.settled(w.Scheduler).expectOutcomes(want[name])
		}
	}
}

// A schedule that catches up is due at once, and then at ticks that passed long ago, even if its
// process polls between two of its runs.
func TestPollBetweenRunsLosesNoTick(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	w.Times().Poll = 1 // before anything else
	k := schedule.InTx(w.Scheduler, "books", effect)
	testkit.OK(t, k.Put(t.Context(), "all", args{}, hourly, missedAll))
	testkit.OK(t, w.Pause(t.Context(), "all"))
	l := newLedger(db, "all")
	w.run()
	db.setClock(midnight.Add(190 * time.Minute))
	db.polled()
	testkit.OK(t, w.Resume(t.Context(), "all", schedule.ResumeCatchUp))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 3})
}

// Changes of a schedule during its run.
func TestEditsWhileItRuns(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(1))
	var k *schedule.Kind[args]
	latest := func() outcomes { return outcomes{schedule.OutcomeMissed: 2, schedule.OutcomeSucceeded: 1} }
	edits := map[string]struct {
		edit func(ctx context.Context, tx pgx.Tx, name string) error
		want outcomes // of the three ticks until then, of which the last runs
		next bool     // whether the next full hour runs
	}{
		"new arguments": {func(ctx context.Context, _ pgx.Tx, name string) error {
			return k.Put(ctx, name, args{2}, hourly)
		}, latest(), true},
		"less jitter": {func(ctx context.Context, _ pgx.Tx, name string) error {
			return k.Put(ctx, name, args{}, hourly)
		}, latest(), true},
		"another rule": {func(ctx context.Context, _ pgx.Tx, name string) error {
			return k.Put(ctx, name, args{}, halfPast)
		}, latest(), false},
		"another rule, in the run's transaction": {func(ctx context.Context, tx pgx.Tx, name string) error {
			return k.PutTx(ctx, tx, name, args{}, halfPast)
		}, latest(), false},
		"another rule, twice": {func(ctx context.Context, _ pgx.Tx, name string) error {
			return errors.Join(k.Put(ctx, name, args{}, halfPast), k.Put(ctx, name, args{}, hourly))
		}, latest(), true},
		"a pause": {func(ctx context.Context, _ pgx.Tx, name string) error {
			return w.Pause(ctx, name)
		}, latest(), false},
		"a pause and on from now": {func(ctx context.Context, _ pgx.Tx, name string) error {
			return errors.Join(w.Pause(ctx, name), w.Resume(ctx, name, schedule.ResumeFromNow))
		}, latest(), true},
		"a deletion": {func(ctx context.Context, _ pgx.Tx, name string) error {
			return w.Delete(ctx, name)
		}, outcomes{schedule.OutcomeCanceled: 3}, false},
	}
	k = schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if r.At.Equal(midnight.Add(3 * time.Hour)) {
			if err := edits[r.Name].edit(ctx, tx, r.Name); err != nil {
				t.Errorf("%s: %v", r.Name, err)
			}
		}
		return effect(ctx, tx, r)
	})
	var ledgers []*ledger
	for name := range edits {
		var opts []schedule.ScheduleOption
		if name == "less jitter" {
			opts = append(opts, schedule.WithJitter(9*time.Minute))
		}
		testkit.OK(t, k.Put(t.Context(), name, args{}, hourly, opts...))
		ledgers = append(ledgers, newLedger(db, name))
	}
	db.setClock(midnight.Add(190 * time.Minute))
	w.run()
	for _, l := range ledgers {
		succeeded := edits[l.name].want[schedule.OutcomeSucceeded] // until then the ticks are canceled in the end
		counts(db, "the run of "+l.name+" has ended", succeeded,
			"pgleases.history WHERE name = $1 AND outcome = 'succeeded'", l.name)
		l.settled(w.Scheduler).expectOutcomes(edits[l.name].want)
	}
	db.setClock(midnight.Add(4 * time.Hour)) // where it ticks at half past, that was at 3:30
	for _, l := range ledgers {
		if edits[l.name].next {
			edits[l.name].want[schedule.OutcomeSucceeded]++
			l.settled(w.Scheduler).expectOutcomes(edits[l.name].want)
		}
	}
}

// A schedule that was put in a transaction that is rolled back does not exist, and a Put without a
// change writes no row.
func TestPutIsOfItsTransaction(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	stop := errors.New("stop")
	wraps(t, "the transaction", pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		testkit.OK(t, k.PutTx(t.Context(), tx, "close", args{1}, hourly))
		return stop
	}), stop)
	_, err := w.Get(t.Context(), "close")
	wraps(t, "to get it", err, schedule.ErrNotFound)
	for range 3 {
		testkit.OK(t, k.Put(t.Context(), "close", args{1}, hourly, schedule.WithKey("k")))
	}
	expect(t, one[int64](db, "SELECT revision FROM pgleases.schedules"), 1, "revision")
	testkit.OK(t, k.Put(t.Context(), "close", args{1}, hourly))
	expect(t, one[int64](db, "SELECT revision FROM pgleases.schedules"), 2, "revision")
	s := testkit.Must(w.Get(t.Context(), "close"))(t)
	shown := fmt.Sprint(s.Name, s.Key, s.Kind, string(s.Args), s.Rule, s.Due.UTC())
	want := fmt.Sprint("close", "close", "books", `{"N": 1}`, hourly.String(), midnight.Add(time.Hour))
	expect(t, shown, want, "the schedule")
}

// The edit cancels more ticks than the one that runs.
func TestAnEditCancelsTheTicksThatDoNotRun(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	var k *schedule.Kind[args]
	k = schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if r.At.Equal(midnight.Add(time.Hour)) {
			db.setClock(midnight.Add(170 * time.Minute))
			if err := k.Put(ctx, "close", args{}, schedule.Every(40*time.Minute), missedAll); err != nil {
				return err
			}
		}
		return effect(ctx, tx, r)
	})
	l := newLedger(db, "close")
	l.should = func(after, until time.Time) []time.Time {
		change := midnight.Add(170 * time.Minute)
		ticks := hours(after, when.Earlier(until, change))
		for t := change.Add(40 * time.Minute); !t.After(until); t = t.Add(40 * time.Minute) {
			if t.After(after) {
				ticks = append(ticks, t)
			}
		}
		return ticks
	}
	testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly))
	w.run()
	db.setClock(midnight.Add(time.Hour))
	counts(db, "the run has ended", 1, "pgleases.history WHERE outcome = 'succeeded'")
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1, schedule.OutcomeCanceled: 1})
	db.setClock(midnight.Add(5 * time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 4, schedule.OutcomeCanceled: 1})
}

// Arguments may be null in JSON: no arguments, and nil maps, slices and pointers.
func TestArgumentsThatAreNull(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	type rates = map[string]int
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[rates]) error {
		if r.Args != nil {
			t.Errorf("the arguments are %v, not nil", r.Args)
		}
		return leave(ctx, tx, r.Name, r)
	})
	l := newLedger(db, "close")
	for range 2 {
		testkit.OK(t, k.Put(t.Context(), "close", nil, hourly))
	}
	expect(t, one[int64](db, "SELECT revision FROM pgleases.schedules"), 1, "revision")
	w.run()
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}

// The database writes numbers in its own format. Equal arguments are no edit.
func TestArgumentNumbersCompareByValue(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "raw", nothing[json.RawMessage])
	put := func(text string) int64 {
		t.Helper()
		testkit.OK(t, k.Put(t.Context(), "close", json.RawMessage(text), hourly))
		return one[int64](db, "SELECT revision FROM pgleases.schedules")
	}
	revision := int64(0)
	for _, ways := range [][]string{
		{"1e-7", "0.0000001", "1E-7", "0.10e-6"},
		{"1e21", "1e+21", "1000000000000000000000"},
		{"-1.5e3", "-1500", "-1500.0"},
		{"0", "-0", "0.0", "0e5"},
		{"12", "1.2e1"},
		{"9007199254740993"}, {"9007199254740992"}, {"120"}, {"-12"}, {"12.000000000000000000001"},
		{`{"a": [1e-7, {"b": 1e21}]}`, `{"a": [0.0000001, {"b": 1000000000000000000000}]}`},
		{`{"a": [1e-7, {"b": 1e22}]}`},
		{`"1e-7"`},
		{`"0.0000001"`},
	} {
		revision++
		for range 2 {
			for _, way := range ways {
				expect(t, put(way), revision, "the revision after "+way)
			}
		}
	}
}

// A process that starts locks few of its schedules at a time, so other starts and runs do not wait
// for all of them.
func TestAStartLocksFewSchedulesAtATime(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	maker := newWorker(db)
	k := schedule.InTx(maker.Scheduler, "books", effect)
	w := newWorker(db)
	books := schedule.InTx(w.Scheduler, "books", effect)
	for i := range 50 {
		name := fmt.Sprintf("close %02d", i)
		testkit.OK(t, k.Put(t.Context(), name, args{}, hourly))
		testkit.OK(t, books.Add(name, args{}, hourly))
	}
	l := newLedger(db, "close 49")
	edit := db.begin()
	testkit.OK(t, k.PutTx(t.Context(), edit, "close 49", args{2}, hourly))
	w.run()
	db.blocked("the start waits for the edit of the last", "schedule_get")
	for _, free := range []string{
		"SELECT FROM pgleases.schedule_groups FOR UPDATE NOWAIT",
		"SELECT FROM pgleases.schedules WHERE name < 'close 40' FOR UPDATE NOWAIT",
	} {
		if _, err := db.Exec(t.Context(), free); err != nil {
			t.Errorf("%s: %v", free, err)
		}
	}
	testkit.OK(t, edit.Rollback(t.Context()))
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}
