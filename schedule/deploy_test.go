package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// A version of an application declares schedules.
type version map[string]schedule.Rule

// deploy starts a process of a version, and then ends the process before.
func (v version) deploy(db *database, before *worker) *worker {
	db.t.Helper()
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	for name, rule := range v {
		testkit.OK(db.t, k.Add(name, args{}, rule, missedAll))
	}
	w.run()
	for name := range v {
		w.has(name)
	}
	if before != nil {
		before.close()
	}
	return w
}

// A deploy every 10 s: no process runs for as long as an interval of the schedules. The test covers
// one instant of each minute of the clock.
func TestDeploysInCloseSuccessionLoseNoTick(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	both := version{"close": hourly, "poll": schedule.Every(time.Hour)}
	w := both.deploy(db, nil)
	ledgers := []*ledger{newLedger(db, "close"), newLedger(db, "poll")}
	now := midnight.Add(59*time.Minute + 45*time.Second)
	for range 3 {
		for range 3 {
			db.setClock(now)
			w = both.deploy(db, w)
			now = now.Add(10 * time.Second)
		}
		for _, l := range ledgers {
			l.settled(w.Scheduler)
		}
		now = now.Add(time.Hour - 30*time.Second)
	}
	for _, l := range ledgers {
		l.expectOutcomes(outcomes{schedule.OutcomeSucceeded: 3})
	}
}

// Two versions are deployed in turn, and run side by side. One has a schedule that the other lacks,
// and they have different rules for a third. Only ticks run, once each, and a schedule that only
// one version declares is blocked while the other runs alone.
func TestTwoVersionsInTurn(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	// No run is under way when the clock is set: the ticks that pass then would be skipped.
	at := func(now time.Time) {
		db.polled()
		counts(db, "nothing is due but what waits", 0, `pgleases.schedules
			WHERE due <= (SELECT now FROM public.test_clock)`)
		db.setClock(now)
		db.polled()
	}
	versions := []version{
		{"close": hourly, "old name": hourly, "changing": hourly},
		{"close": hourly, "new name": hourly, "changing": halfPast},
	}
	w := versions[0].deploy(db, nil)
	ledgers := []*ledger{newLedger(db, "close"), newLedger(db, "old name")}
	var made *ledger
	var last *worker
	now := midnight
	for n := range 4 {
		now = now.Add(20 * time.Minute) // no tick of either rule
		at(now)
		next := versions[(n+1)%2].deploy(db, nil)
		if n == 0 {
			made = newLedger(db, "new name")
		}
		db.polled()
		expect(t, db.count("public.effects WHERE extract(minute FROM at) NOT IN (0, 30)"), 0, "runs of no tick")
		last, w = w, next
		now = now.Add(50 * time.Minute) // a tick of each, with both
		at(now)
		ledgers[0].settled(w.Scheduler)
		last.close()
		db.polled()
	}
	w = versions[0].deploy(db, w)
	expect(t, db.count(ranTwice), 0, "ticks that ran twice")
	ledgers[0].expectOutcomes(outcomes{schedule.OutcomeSucceeded: 4})
	ledgers[1].settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 4}) // what waited was not late
	w = versions[1].deploy(db, w)
	made.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 4})
}

// A schedule is renamed, and the deploy rolled back. The new name begins at the deploy. The old
// schedule continues from its cursor, by its policy.
func TestARenameIsRolledBack(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, test := range []struct {
		missed schedule.Missed
		want   outcomes
	}{
		{schedule.MissedLatest, outcomes{schedule.OutcomeSucceeded: 3, schedule.OutcomeMissed: 1}},
		{schedule.MissedAll, outcomes{schedule.OutcomeSucceeded: 4}},
	} {
		t.Run(fmt.Sprint(test.missed), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			deploy := func(name string, before *worker) *worker {
				w := newWorker(db)
				k := schedule.InTx(w.Scheduler, "books", effect)
				missed, grace := schedule.WithMissed(test.missed), schedule.WithGrace(30*time.Minute)
				testkit.OK(t, k.Add(name, args{}, hourly, missed, grace))
				w.run().has(name)
				if before != nil {
					before.close()
				}
				return w
			}
			w := deploy("close", nil)
			old := newLedger(db, "close")
			db.setClock(midnight.Add(70 * time.Minute))
			old.settled(w.Scheduler)
			w = deploy("closing", w)
			renamed := newLedger(db, "closing")
			db.polled()
			expect(t, db.count("public.effects WHERE name = 'closing'"), 0, "runs because of a new name")
			for hour := 2; hour <= 3; hour++ {
				db.setClock(midnight.Add(time.Duration(hour)*time.Hour + 10*time.Minute))
				renamed.settled(w.Scheduler)
				w.waits("close", "")
			}
			expect(t, db.count("pgleases.history WHERE name = 'close'"), 1, "outcomes of what no code declares")
			w = deploy("close", w)
			old.settled(w.Scheduler)
			db.setClock(midnight.Add(4*time.Hour + 10*time.Minute))
			old.settled(w.Scheduler).expectOutcomes(test.want)
			expect(t, db.count("public.effects WHERE name = 'closing'"), 2, "runs of the new name")
		})
	}
}
