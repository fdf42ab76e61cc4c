package admin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/admin/sql"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// manySchedules makes 3,000 schedules, of each hundred of which one is paused, one waits, one fails and one is late, and 1,200 jobs.
func manySchedules(t *testing.T, url string) {
	t.Helper()
	pool := newPool(t, pgtest.OwnerURL(url))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	exec(t, url, `INSERT INTO pgleases.schedule_groups VALUES ('billing', 16), ('other', 1)`,
		`INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor, policy, declared, cursor, due, failures, revision, paused_at, blocked_reason, blocked_since, registered)
			SELECT 'billing', 's' || lpad(n::text, 4, '0'), 'k' || n, n % 16, 'reports', '{}', '@every 1h', now(), '{}', false, now() - interval '1 hour',
				CASE n % 100 WHEN 1 THEN 'infinity' WHEN 4 THEN now() - interval '5 minutes' ELSE now() + interval '1 hour' END, CASE n % 100 WHEN 3 THEN 2 ELSE 0 END, 1,
				CASE n % 100 WHEN 1 THEN now() END, CASE n % 100 WHEN 2 THEN 'nobody knows its kind' END, CASE n % 100 WHEN 2 THEN now() END, now()
			FROM generate_series(0, 2999) AS n`,
		`INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due) SELECT 'billing', 'j' || n, n % 16, 'mail', '', 'job', '{}', n % 4,
			CASE n WHEN 1199 THEN '0001-06-01Z' ELSE now() END, -- later than a Duration holds
			CASE WHEN n < 1150 THEN 'infinity' ELSE now() END FROM generate_series(0, 1199) AS n`,
		`INSERT INTO pgleases.history (schedule, job, group_name, name, kind, since, until, ticks, outcome, error, ended_at, again) VALUES
			(1, NULL, 'billing', 's0001', 'reports', now() - interval '2 hours', now() - interval '1 hour', 1, 'succeeded', NULL, now(), NULL),
			(1, NULL, 'billing', 's0001', 'reports', now() - interval '1 hour', now(), 4, 'missed', NULL, now(), NULL),
			(0, 99999, 'billing', '', 'mail', now(), now(), 1, 'failed', 'no route', now(), '{"key": "j", "args": {}, "priority": 1}'),
			(-1, 99997, 'billing', 's0001', 'mail', now(), now(), 1, 'succeeded', NULL, now(), NULL), -- whose unique key that is
			(0, 99998, 'other', '', 'mail', now(), now(), 1, 'failed', 'of another group', now(), NULL)`)
}

func TestManySchedulesAreCountedAndListedInPages(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	a := newAdmin(t, newPool(t, pgtest.OwnerURL(url)))
	manySchedules(t, url)
	groups, err := a.ScheduleGroups(t.Context())
	if err != nil || len(groups) != 2 {
		t.Fatalf("%+v, %v", groups, err)
	}
	g := groups[0]
	if g.Name != "billing" || g.Schedules != 1001 || g.Paused != 30 || g.Blocked != 30 || g.Failing != 30 || g.Late != 30 || g.Jobs != 1001 || g.Stuck != 0 {
		t.Errorf("%+v", g)
	}
	if outcomes := fmt.Sprint(g.Outcomes); len(g.Outcomes) != 3 || !strings.Contains(outcomes, "{failed 1 ") || !strings.Contains(outcomes, "{succeeded 2 ") || !strings.Contains(outcomes, "{missed 4 ") {
		t.Errorf("outcomes %s", outcomes)
	}
	// All of them come once, whatever the page.
	list := func(which, prefix string, most int) (names []string) {
		t.Helper()
		for after := ""; ; {
			page := testkit.Must(a.Schedules(t.Context(), "billing", which, prefix, after, most))(t)
			for _, s := range page {
				if s.Name <= after {
					t.Fatalf("%q comes after %q", s.Name, after)
				}
				after = s.Name
				names = append(names, s.Name)
			}
			if len(page) < most {
				return names
			}
		}
	}
	for _, test := range []struct {
		which, prefix string
		most, want    int
		first         string
	}{
		{"", "", 1000, 3000, "s0000"}, {"", "s01", 7, 100, "s0100"}, {admin.Paused, "", 7, 30, "s0001"}, {admin.Blocked, "", 7, 30, "s0002"},
		{admin.Failing, "s1", 1000, 10, "s1003"}, {admin.Late, "", 7, 30, "s0004"}, {"", "x", 5, 0, ""}, {admin.Late, "s2", 4, 10, "s2004"},
	} {
		if names := list(test.which, test.prefix, test.most); len(names) != test.want || test.want > 0 && names[0] != test.first {
			t.Errorf("%q with prefix %q: %d, the first %v", test.which, test.prefix, len(names), names[:min(1, len(names))])
		}
	}
	page, err := a.Schedules(t.Context(), "billing", admin.Late, "", "", 1)
	if err != nil || page[0].Late < 5*time.Minute || page[0].State != "due" || page[0].Rule != "@every 1h" || page[0].Why != "its partition has no owner" {
		t.Errorf("%+v, %v", page, err)
	}
	if page, err := a.Schedules(t.Context(), "billing", admin.Paused, "", "", 1); err != nil || page[0].Late != 0 || !page[0].Due.IsZero() {
		t.Errorf("a paused schedule is neither due nor late: %+v, %v", page, err)
	}
	if page, err := a.Jobs(t.Context(), "billing", "", 0, 1); err != nil || page[0].Late != 0 || !page[0].Due.IsZero() {
		t.Errorf("a job that waits for ever is neither due nor late: %+v, %v", page, err)
	}
	jobs := 0
	for after := int64(0); ; {
		page := testkit.Must(a.Jobs(t.Context(), "billing", "", after, 300))(t)
		if jobs += len(page); len(page) < 300 {
			break
		}
		after = page[len(page)-1].ID
	}
	if due, err := a.Jobs(t.Context(), "billing", admin.Due, 0, 1000); err != nil || len(due) != 50 || due[0].State != "due" || jobs != 1000 {
		t.Errorf("%d jobs, %d due, %v", jobs, len(due), err)
	}
	history, err := a.ScheduleHistory(t.Context(), "billing", "s0001", 0, 10)
	if err != nil || len(history) != 2 || history[0].Outcome != "missed" || history[0].Ticks != 4 || history[1].Outcome != "succeeded" {
		t.Errorf("%+v, %v", history, err)
	}
	if history, err = a.ScheduleHistory(t.Context(), "billing", "s0001", history[0].ID, 10); err != nil || len(history) != 1 {
		t.Errorf("before that: %+v, %v", history, err)
	}
	if failed, err := a.FailedJobs(t.Context(), "billing", 0, 10); err != nil || len(failed) != 1 || failed[0].Job != 99999 || failed[0].Error != "no route" {
		t.Errorf("%+v, %v", failed, err)
	}
}

// What is late, or due, is found where there are 65,536 partitions, too, and not by a look at each.
func TestWhatIsLateIsFoundInManyPartitions(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, pgtest.OwnerURL(url))
	a := newAdmin(t, pool)
	manySchedules(t, url)
	exec(t, url, "UPDATE pgleases.schedule_groups SET partitions = 65536 WHERE name = 'billing'", "VACUUM ANALYZE pgleases.schedules, pgleases.jobs")
	groups, err := a.ScheduleGroups(t.Context())
	if err != nil || len(groups) != 2 || groups[0].Late != 30 || groups[0].Schedules != 1001 {
		t.Errorf("%+v, %v", groups, err)
	}
	if late, err := a.Schedules(t.Context(), "billing", admin.Late, "s00", "", 1000); err != nil || len(late) != 1 || late[0].Name != "s0004" {
		t.Errorf("late are %+v, %v", late, err)
	}
	if due, err := a.Jobs(t.Context(), "billing", admin.Due, 0, 1000); err != nil || len(due) != 50 {
		t.Errorf("%d jobs are due, %v", len(due), err)
	}
	for name, args := range map[string][]any{"groups.sql": {100, 10_000, 6}, "schedules.sql": {"billing", "late", "", "", 50}, "jobs.sql": {"billing", "due", int64(0), 50}} {
		text := testkit.Must(sql.Files.ReadFile(name))(t)
		var plans []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		testkit.OK(t, pool.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+string(text), args...).Scan(&plans))
		if blocks := plans[0].Plan.Hit + plans[0].Plan.Read; blocks == 0 || blocks > 5000 {
			t.Errorf("%s reads %d blocks", name, blocks)
		}
	}
}

func TestSchedulesRefusals(t *testing.T) {
	t.Parallel()
	a := newAdmin(t, newPool(t, pgtest.OwnerURL(pgtest.MigratedDatabase(t))))
	if _, err := a.ScheduleGroups(t.Context()); !errors.Is(err, admin.ErrNoSchedules) {
		t.Errorf("without tables: %v", err)
	}
	for name, err := range map[string]error{
		"which": func() error { _, err := a.Schedules(t.Context(), "billing", "dead", "", "", 1); return err }(),
		"most":  func() error { _, err := a.Jobs(t.Context(), "billing", "", 0, 1001); return err }(),
		"none":  func() error { _, err := a.FailedJobs(context.Background(), "billing", 0, 0); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
