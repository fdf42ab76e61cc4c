//go:build linux

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
)

// aSchedule returns a statement that creates a schedule of a group, with values of some columns.
func aSchedule(group, name, columns, values string) string {
	return fmt.Sprintf(`
		INSERT INTO pgleases.schedules (group_name, name, key, kind, args, rule, anchor, declared, revision, registered,
			partition, cursor, due%s)
		VALUES ('%s', '%s', 'k', 'close', '{}', '@every 1h', now(), false, 1, now(),
			0, now(), %s)`, columns, group, name, values)
}

// aPast returns a statement that gives a schedule outcomes, each with the hours since its tick.
func aPast(name string, outcomes ...string) string {
	var all []string
	for _, o := range outcomes {
		outcome, hours, _ := strings.Cut(o, " ")
		all = append(all, fmt.Sprintf("('%s', %s)", outcome, hours))
	}
	return fmt.Sprintf(`
		INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, outcome, error, ended_at)
		SELECT s.id, s.group_name, s.name, 'close', at, at, 1, v.outcome,
			CASE v.outcome WHEN 'failed' THEN 'no paper' END, at
		FROM pgleases.schedules AS s, (VALUES %s) AS v (outcome, ago),
			LATERAL (SELECT clock_timestamp() - v.ago * interval '1 hour' AS at) AS t
		WHERE s.name = '%s'`, strings.Join(all, ", "), name)
}

func TestSchedulesListsWhatIsIll(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t))
	fails(t, database, "schedules", "run pgleases migrate --schedules")
	output1(t, database, "migrate", "--schedules")
	const well = "All is well: no schedule is failing, blocked, late or paused, and none skips most of its ticks.\n"
	later := "now() + interval '1 hour'"
	execute(t, database, "INSERT INTO pgleases.schedule_groups VALUES ('reports', 1), ('large', 2000)",
		aSchedule("reports", "well", "", later), aPast("well", "failed 3", "succeeded 1"))
	if text := output1(t, database, "schedules"); text != well {
		t.Errorf("without an ill schedule: %s", text)
	}
	if all := decoded[[]admin.IllSchedule](t, database, "schedules"); len(all) != 0 {
		t.Errorf("without an ill schedule: %+v", all)
	}
	execute(t, database,
		aSchedule("reports", "failing", ", failures, succeeded", later+", 2, now() - interval '4 hours'"),
		aPast("failing", "failed 9", "succeeded 8", "failed 3", "unknown 2", "skipped 1"),
		aSchedule("reports", "old", ", failures", later+", 1000"),
		aPast("old", "failed 2"), `
		INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, outcome, ended_at)
		SELECT id, group_name, name, 'close', now(), now(), 1, 'failed', now()
		FROM pgleases.schedules, generate_series(1, 1000) WHERE name = 'old'`,
		aSchedule("reports", "late", "", "now() - interval '5 minutes'"),
		aSchedule("large", "late too", "", "now() - interval '5 minutes'"),
		aSchedule("reports", "blocked", ", blocked_reason, blocked_since",
			"now(), 'no such kind', now() - interval '3 hours'"),
		aSchedule("reports", "paused", ", paused_at", "'infinity', now() - interval '3 hours'"), `
		INSERT INTO pgleases.events (lease, cause, name, actor, reason)
		SELECT 'schedule/' || group_name, 'schedule paused', name, 'maria', E'no \n paper'
		FROM pgleases.schedules WHERE name = 'paused'`,
		aSchedule("reports", "slow", "", later),
		aPast("slow", "succeeded 5", "skipped 4", "skipped 3", "skipped 2", "skipped 30", "succeeded 29"),
		aSchedule("reports", "odd\x1b[2J", ", failures", later+", 1"))
	text := output1(t, database, "schedules")
	unprintable(t, "schedules", text)
	expectPrinted(t, text,
		`^GROUP +SCHEDULE +SINCE +SUCCEEDED +STATE$`,
		`^large +late too +5m ago +- +late: its partition has no owner$`,
		`^reports +blocked +3h ago +- +blocked: no such kind$`,
		`^reports +failing +3h ago +4h ago +failing, 2 ticks: no paper$`,
		`^reports +late +5m ago +- +late: its partition has no owner$`,
		`^reports +old +- +- +failing, 1000 ticks: .*$`,
		`^reports +"odd\\x1b\[2J" +- +- +failing, 1 tick: .*$`,
		`^reports +paused +3h ago +- +paused by maria: no ;  paper$`,
		`^reports +slow +- +- +skipping, 3 of 4 ticks of the last day$`)
	if strings.Count(text, "\n") != 9 {
		t.Errorf("it has others: %s", text)
	}
	for _, one := range decoded[[]admin.IllSchedule](t, database, "schedules") {
		since := time.Since(one.FailingSince).Round(time.Hour)
		if one.Name == "failing" && (one.Failures != 2 || since != 3*time.Hour || one.Error != "no paper") {
			t.Errorf("failing: %+v", one)
		}
	}
	fails(t, database, "schedules lsit",
		`there is no verb "lsit": did you mean list? pgleases schedules --help shows all`)
}

// What is not read is not said to be well, and what is not counted is not given as a number.
func TestNothingIsSaidOfGroupsThatAreNotRead(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	output1(t, database, "migrate", "--schedules")
	execute(t, database, sound, `
		INSERT INTO pgleases.schedule_groups SELECT 'g' || n, 1 FROM generate_series(1000, 1098) AS n;
		INSERT INTO pgleases.schedules (group_name, name, key, kind, args, rule, anchor, declared, revision, registered,
			partition, cursor, due)
		SELECT 'g' || n, 'one', 'k', 'close', '{}', '@every 1h', now(), false, 1, now(), 0, now(), now() + interval '1 hour'
		FROM generate_series(1000, 1098) AS n;
		INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
		SELECT 'g' || 1000 + n % 2, n, 0, 'mail', n, 'job', '{}', 2, now(), now() + interval '1 hour'
		FROM generate_series(1, 2500) AS n`)
	text, _ := statusIn(t, database)
	expectPrinted(t, text, `^schedules +99 in 99 groups, none late, failing, blocked or paused$`,
		`^jobs +2000\+ have not ended, 0 blocked$`)
	expectPrinted(t, output1(t, database, "jobs", "list", "g1000", "-n", "7"), `^There may be more: .*-n`)
	execute(t, database, "INSERT INTO pgleases.schedule_groups SELECT 'h' || n, 1 FROM generate_series(1, 9) AS n",
		aSchedule("h9", "failing", ", failures", "now() + interval '1 hour', 3"))
	const unread = `^pgleases: only the first 100 groups by name are read: there may be more$`
	text = output1(t, database, "schedules")
	expectPrinted(t, text, unread, `^All is well in the groups that were read: no schedule is failing`)
	expectPrinted(t, output1(t, database, "schedules", "groups"), unread)
	text, _ = statusIn(t, database)
	expectPrinted(t, text, `^schedules +99 in the first 100 groups, none late, failing, blocked or paused$`)
	execute(t, database, aSchedule("h1", "failing", ", failures", "now() + interval '1 hour', 3"))
	found, _ := examined(t, database)
	more := admin.Finding{Check: "schedules", Level: admin.LevelNote}
	for _, f := range found {
		if f.Check == more.Check && f.Level == more.Level {
			more = f
		}
	}
	if !strings.Contains(more.Text, `only 100 groups are examined, by name: not "h9"`) {
		t.Errorf("doctor found %+v", found)
	}
}

func TestSchedulesSaysThatTheListEnds(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	output1(t, database, "migrate", "--schedules")
	execute(t, database, `
		INSERT INTO pgleases.schedules (group_name, name, key, kind, args, rule, anchor, declared, revision, registered,
			partition, cursor, due, failures)
		SELECT 'g', 's' || n, 'k', 'close', '{}', '@every 1h', now(), false, 1, now(), 0, now(), now() + interval '1 hour', 3
		FROM generate_series(1, 201) AS n`)
	expectPrinted(t, output1(t, database, "schedules"),
		`^There may be more: these are the first 200 by group and name\.$`)
}
