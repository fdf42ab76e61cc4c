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
	exec(t, url, testkit.ManySchedules, `UPDATE pgleases.schedules SET tick = now(), began = now(), call = 'r', call_epoch = 3 WHERE name = 's0004'`, // it runs
		"INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due) VALUES ('early', 'k', 0, 'mail', '', 'job', '{}', 2, now(), now())", // no process has run it
		"INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since) VALUES ('schedule/billing', 4, 11, 11, 3, 'a', now())")
	for _, partitions := range []int{16, 65_536} {
		exec(t, url, fmt.Sprintf("UPDATE pgleases.schedule_groups SET partitions = %d WHERE name = 'billing'", partitions), "VACUUM ANALYZE pgleases.schedules, pgleases.jobs")
		groups, err := a.ScheduleGroups(t.Context())
		if err != nil || len(groups) != 3 || groups[1].Name != "early" || groups[1].Jobs != 1 {
			t.Fatalf("%+v, %v", groups, err)
		}
		g := groups[0]
		if g.Name != "billing" || g.Schedules != 1001 || g.Paused != 30 || g.Blocked != 30 || g.Failing != 30 || g.Late != 29 || g.Jobs != 1001 || g.Stuck != 0 {
			t.Errorf("%d partitions: %+v", partitions, g)
		}
		if outcomes := fmt.Sprint(g.Outcomes); len(g.Outcomes) != 3 || !strings.Contains(outcomes, "{failed 1 ") || !strings.Contains(outcomes, "{succeeded 2 ") || !strings.Contains(outcomes, "{missed 4 ") {
			t.Errorf("outcomes %s", outcomes)
		}
	}
	text := testkit.Must(sql.Files.ReadFile("groups.sql"))(t)
	if blocks := testkit.BlocksRead(t, pool, string(text), 100, 10_000, 6); blocks > 5000 {
		t.Errorf("it reads %d blocks", blocks)
	}
}
