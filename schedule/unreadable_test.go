package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// illRows are what a row may have that no process can read, by the table.
var illRows = map[string][]string{
	"schedules": {
		`tick = 'infinity', began = now()`, `began = '294276-01-01'`,
		`retry_at = 'infinity'`, `tick_local = '294276-01-01'`,
		`call_ends = '4713-01-01 BC'`, `missed = 'what'`, `overlap = ''`, `grace = '300 years'`, `jitter = '-1 s'`,
		`cursor = 'infinity'`, `cursor = '294276-01-01'`, `cursor = '4713-01-01 BC'`, `anchor = 'infinity'`,
	},
	"jobs": {
		`began = 'infinity'`, `retry_at = '294276-01-01'`, `call_began = '4713-01-01 BC'`,
		`at = 'infinity'`, `at = '294276-01-01'`, `at = '4713-01-01 BC'`,
	},
}

// Rows that cannot be read are blocked, and named as such. All others run, are listed, and start.
func TestRowsThatCannotBeRead(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	declare := func(w *worker) *schedule.Kind[args] {
		k := schedule.InTx(w.Scheduler, "k", effect)
		for n := range illRows["schedules"] {
			testkit.OK(t, k.Add(fmt.Sprintf("ill %d", n), args{}, hourly))
		}
		testkit.OK(t, k.Add("well", args{}, hourly))
		return k
	}
	first := newWorker(db)
	k := declare(first)
	first.run()
	first.has("well")
	var jobs []int64
	for range illRows["jobs"] {
		jobs = append(jobs, testkit.Must(k.Enqueue(t.Context(), args{}, schedule.WithDelay(time.Minute)))(t))
	}
	first.end()
	// as of a newer version, whose tables allow it
	db.exec("ALTER TABLE pgleases.jobs DROP CONSTRAINT jobs_times")
	for n, set := range illRows["schedules"] {
		db.exec(fmt.Sprintf("UPDATE pgleases.schedules SET %s WHERE name = 'ill %d'", set, n))
	}
	for n, set := range illRows["jobs"] {
		db.exec(fmt.Sprintf("UPDATE pgleases.jobs SET %s WHERE id = %d", set, jobs[n]))
	}
	db.setClock(midnight.Add(time.Hour))
	w := newWorker(db)
	declare(w)
	w.run()
	testkit.Until(t, "the readable schedule runs", func() bool { return slices.Contains(db.effects(), "well") })
	const blockedSchedule = "pgleases.schedules WHERE blocked_reason <> '' AND name = $1"
	for n, set := range illRows["schedules"] {
		counts(db, "blocked with "+set, 1, blockedSchedule, fmt.Sprintf("ill %d", n))
	}
	for n, set := range illRows["jobs"] {
		counts(db, "blocked with "+set, 1, "pgleases.jobs WHERE blocked_reason <> '' AND id = $1", jobs[n])
	}
	blocked := 0
	for s, err := range w.List(t.Context(), schedule.ScheduleFilter{}) {
		testkit.OK(t, err)
		ill := strings.HasPrefix(s.Name, "ill ") && strings.Contains(s.Why, "its row cannot be read")
		if ill && s.State == schedule.StateBlocked {
			blocked++
		}
	}
	expect(t, blocked, len(illRows["schedules"]), "schedules that are listed as blocked")
	blocked = 0
	for j, err := range w.Jobs(t.Context(), schedule.JobFilter{}) {
		testkit.OK(t, err)
		if j.State == schedule.StateBlocked && strings.Contains(j.Why, "its row cannot be read") {
			blocked++
		}
	}
	expect(t, blocked, len(illRows["jobs"]), "jobs that are listed as blocked")
	expect(t, slices.Compact(db.effects())[0], "well", "effects")
}

// While somebody corrects a row that cannot be read, and has locked it, it is tried as any locked row
// is: it does not take the places of others.
func TestLockedRowThatCannotBeReadTakesNoPlace(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "k", effect)
	testkit.OK(t, k.Put(t.Context(), "ill", args{}, hourly))
	db.exec("UPDATE pgleases.schedules SET missed = 'what'")
	edit := db.begin("SELECT FROM pgleases.schedules FOR UPDATE")
	db.setClock(midnight.Add(time.Hour))
	w.run()
	testkit.Until(t, "it is slow", func() bool { return w.Stats().SlowByLock == 1 })
	testkit.OK(t, edit.Rollback(t.Context()))
	w.waits("ill", "its row cannot be read")
}
