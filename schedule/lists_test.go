package schedule_test

import (
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// all collects what is listed.
func all[T any](t testing.TB, seq iter.Seq2[T, error]) (some []T) {
	t.Helper()
	for one, err := range seq {
		testkit.OK(t, err)
		some = append(some, one)
	}
	return some
}

// Late and due schedules are found with 65,536 partitions too, without a look-up of each.
func TestManySchedulesAndJobsAreListed(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, partitions := range []int{16, 65_536} {
		db := newFreshDatabase(t) // see BlocksRead
		db.exec(testkit.ManySchedules)
		db.exec(fmt.Sprintf("UPDATE pgleases.schedule_groups SET partitions = %d WHERE name = 'billing'", partitions))
		db.exec("ANALYZE pgleases.schedules, pgleases.jobs")
		db.setClock(one[time.Time](db, "SELECT now()"))
		s := testkit.Must(schedule.Manage(t.Context(), db.Pool, "billing"))(t)
		const late = schedule.OnlyLate
		type filter = schedule.ScheduleFilter
		for _, c := range []struct {
			filter filter
			want   int
			first  string
		}{
			{filter{}, 3000, "s0000"},
			{filter{Prefix: "s01"}, 100, "s0100"},
			{filter{Prefix: "s01", After: "s0197"}, 2, "s0198"},
			{filter{Only: schedule.OnlyPaused}, 30, "s0001"},
			{filter{Only: schedule.OnlyBlocked}, 30, "s0002"},
			{filter{Only: schedule.OnlyFailing, Prefix: "s1"}, 10, "s1003"},
			{filter{Only: late, After: "s0004"}, 29, "s0104"},
			{filter{Only: late, Prefix: "s2"}, 10, "s2004"},
			{filter{Prefix: "x"}, 0, ""},
		} {
			some := all(t, s.List(t.Context(), c.filter))
			if len(some) != c.want || c.want > 0 && some[0].Name != c.first {
				first := some[:min(1, len(some))]
				t.Errorf("%d partitions, %+v: %d, the first %+v", partitions, c.filter, len(some), first)
			}
			for i := range some[:max(1, len(some))-1] {
				if some[i].Name >= some[i+1].Name {
					t.Errorf("%q comes after %q", some[i+1].Name, some[i].Name)
				}
			}
		}
		firstLate := func() schedule.Schedule { return all(t, s.List(t.Context(), filter{Only: late}))[0] }
		is := firstLate()
		if is.Late < 5*time.Minute || is.State != schedule.StateDue || is.Rule != "@every 1h" {
			t.Errorf("what is late: %+v", is)
		}
		expect(t, is.Why, "its partition has no owner", "why it is late")
		paused := testkit.Must(s.Get(t.Context(), "s0001"))(t)
		if paused.State != schedule.StatePaused || paused.Late != 0 || !paused.Due.IsZero() {
			t.Errorf("what is paused: %+v", paused)
		}
		jobs := all(t, s.Jobs(t.Context(), schedule.JobFilter{}))
		if len(jobs) != 1200 || jobs[0].Late != 0 || !jobs[0].Due.IsZero() || jobs[0].State != schedule.StatePlanned {
			t.Errorf("%d jobs, the first %+v", len(jobs), jobs[0])
		}
		due := all(t, s.Jobs(t.Context(), schedule.JobFilter{State: schedule.StateDue}))
		if len(due) != 50 || due[0].Priority != 2 || due[0].State != schedule.StateDue {
			t.Errorf("%d jobs are due, the first %+v", len(due), due[0])
		}
		after := schedule.JobFilter{State: schedule.StateDue, After: due[9].ID}
		expect(t, len(all(t, s.Jobs(t.Context(), after))), 40, "jobs that are due after the tenth")
		history := all(t, s.History(t.Context(), "s0001", 0))
		if len(history) != 2 || history[0].Outcome != schedule.OutcomeMissed || history[0].Ticks != 4 {
			t.Fatalf("history %+v", history)
		}
		expect(t, history[0].Kind, "reports", "kind of an entry")
		expect(t, len(all(t, s.History(t.Context(), "s0001", history[0].ID))), 1, "entries before the first")
		failed := all(t, s.FailedJobs(t.Context(), 0))
		if len(failed) != 1 || failed[0].Job != 99999 || failed[0].Error != "no route" {
			t.Errorf("failed jobs %+v", failed)
		}
		db.exec(`INSERT INTO pgleases.clients
			SELECT n, 'c' || n, 1, now() + interval '1 hour', '1 hour', 'host', 7, now()
			FROM generate_series(1, 200) AS n`)
		db.exec(fmt.Sprintf(`INSERT INTO pgleases.partitions
				(lease, partition, owner, target, epoch, owner_id, owned_since)
			SELECT 'schedule/billing', n, 1 + n %% 201, 1, 3, 'c', now()
			FROM generate_series(0, %d) AS n`, partitions-1))
		db.exec("ANALYZE pgleases.partitions, pgleases.clients")
		expect(t, firstLate().Why, ownerIsBusy, "why something is late although its owner lives")
		for statement, args := range map[string][]any{
			"SELECT * FROM pgleases.schedule_list($1, $2, $3, $4, $5)":     {"billing", "late", "", "", 50},
			"SELECT * FROM pgleases.schedule_jobs($1, $2, $3, $4, $5, $6)": {"billing", "", "", "due", 0, 50},
		} {
			if blocks := testkit.BlocksRead(t, db.Pool, statement, args...); blocks > 5000 {
				t.Errorf("%s reads %d blocks", statement, blocks)
			}
		}
	}
}

// The 1,000 that are returned at most are chosen from those that match.
func TestFiltersSearchAllThatIsDueOrLate(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.setClock(one[time.Time](db, "SELECT now()"))
	db.exec(`INSERT INTO pgleases.schedule_groups VALUES ('g', 4);
		INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due, blocked_reason, blocked_since)
			SELECT 'g', 'k' || n, n % 4, CASE n WHEN 3003 THEN 'rare' ELSE 'often' END, CASE n WHEN 3003 THEN 'last' ELSE '' END, 'job', '{}', n % 4, now(), CASE WHEN b THEN 'infinity' ELSE now() - interval '1 hour' END,
				CASE WHEN b THEN 'no handler' END, CASE WHEN b THEN now() END FROM generate_series(1, 3003) AS n CROSS JOIN (VALUES (false), (true)) AS v (b);
		INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, failures, revision, registered)
			SELECT 'g', CASE n WHEN 3003 THEN 'x' ELSE 's' || n END, 'k' || n, n % 4, 'k', '{}', '@every 1h', now(), false, now() - interval '1 hour', now() - interval '1 hour', 0, 1, now() FROM generate_series(1, 3003) AS n`)
	s := testkit.Must(schedule.Manage(t.Context(), db.Pool, "g"))(t)
	for _, filter := range []schedule.JobFilter{
		{State: schedule.StateDue, Kind: "rare"},
		{State: schedule.StateDue, Prefix: "la"},
		{State: schedule.StateBlocked, Kind: "rare"},
		{State: schedule.StateBlocked, Prefix: "last"},
	} {
		expect(t, len(all(t, s.Jobs(t.Context(), filter))), 1, fmt.Sprintf("jobs of %+v", filter))
	}
	late := schedule.ScheduleFilter{Only: schedule.OnlyLate, Prefix: "x"}
	expect(t, len(all(t, s.List(t.Context(), late))), 1, "late schedules with a prefix")
	tx := testkit.Must(db.Begin(t.Context()))(t) // as a run in a transaction does
	defer tx.Rollback(t.Context())
	testkit.Must(tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock_shared(hashint8extended(j.id, j.tableoid::bigint))
		FROM pgleases.jobs AS j WHERE j.kind = 'rare' AND j.blocked_reason IS NULL`))(t)
	running := all(t, s.Jobs(t.Context(), schedule.JobFilter{State: schedule.StateRunning}))
	if len(running) != 1 || running[0].Kind != "rare" {
		t.Errorf("running: %+v", running)
	}
}
