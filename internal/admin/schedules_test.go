package admin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/admin/sql"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The counts stop early for many schedules, and late schedules in 65,536 partitions are counted
// without a look-up of each partition.
func TestManySchedulesAreCounted(t *testing.T) {
	t.Parallel()
	url := pgtest.FreshDatabase(t) // see BlocksRead
	pool := newPool(t, pgtest.OwnerURL(url))
	a := newAdmin(t, pool)
	if _, err := a.ScheduleGroups(t.Context()); !errors.Is(err, admin.ErrNoSchedules) {
		t.Errorf("without tables: %v", err)
	}
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	exec(t, url, testkit.ManySchedules, `
		UPDATE pgleases.schedules SET tick = now(), began = now(), call = 'r', call_epoch = 3 -- it runs
		WHERE name = 's0004'`, `
		INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
		VALUES ('early', 'k', 0, 'mail', '', 'job', '{}', 2, now(), now()) -- no process has run it`, `
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		VALUES ('schedule/billing', 4, 11, 11, 3, 'a', now())`)
	for _, partitions := range []int{16, 65_536} {
		set := fmt.Sprintf("UPDATE pgleases.schedule_groups SET partitions = %d WHERE name = 'billing'", partitions)
		exec(t, url, set, "VACUUM ANALYZE pgleases.schedules, pgleases.jobs")
		groups, err := a.ScheduleGroups(t.Context())
		if err != nil || len(groups) != 3 || groups[1].Name != "early" || groups[1].Jobs != 1 {
			t.Fatalf("%+v, %v", groups, err)
		}
		g := groups[0]
		outcomes := fmt.Sprint(g.Outcomes)
		for _, want := range []string{"{failed 1 ", "{succeeded 2 ", "{missed 4 "} {
			if len(g.Outcomes) != 3 || !strings.Contains(outcomes, want) {
				t.Errorf("outcomes %s", outcomes)
			}
		}
		want := admin.ScheduleGroup{
			Name: "billing", Schedules: 1001, Paused: 30, Blocked: 30, Failing: 30, Late: 29, Jobs: 1001,
		}
		g.Outcomes = nil
		if got := fmt.Sprintf("%+v", g); got != fmt.Sprintf("%+v", want) {
			t.Errorf("%d partitions: %s, want %+v", partitions, got, want)
		}
	}
	text := testkit.Must(sql.Files.ReadFile("groups.sql"))(t)
	if blocks := testkit.BlocksRead(t, pool, string(text), 100, 10_000, 6); blocks > 5000 {
		t.Errorf("it reads %d blocks", blocks)
	}
}
