//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// illRows are changes by hand that no process can read, or that no process makes, each in a row with
// the name "ill", or of the consumer "ill".
var illRows = []string{
	"UPDATE pgleases.schedules SET due = '-infinity' WHERE name = 'ill'",
	"UPDATE pgleases.schedules SET due = 'infinity' WHERE name = 'ill'",
	"UPDATE pgleases.schedules SET due = '294276-01-01' WHERE name = 'ill'",
	"UPDATE pgleases.schedules SET cursor = '4713-01-01 BC' WHERE name = 'ill'",
	"UPDATE pgleases.schedules SET missed = 'what', overlap = '' WHERE name = 'ill'",
	"UPDATE pgleases.schedules SET grace = '300 years', jitter = '-1 s' WHERE name = 'ill'",
	"UPDATE pgleases.schedules SET rule = 'never', kind = '' WHERE name = 'ill'",
	"UPDATE pgleases.schedules SET blocked_reason = 'by hand', blocked_since = '-infinity' WHERE name = 'ill'",
	"UPDATE pgleases.schedules SET registered = '-infinity', anchor = 'infinity' WHERE name = 'ill'",
	"UPDATE pgleases.schedules SET partition = 70000 WHERE name = 'ill'",
	"UPDATE pgleases.jobs SET due = '-infinity' WHERE key = 'ill'",
	"UPDATE pgleases.jobs SET at = 'infinity' WHERE key = 'ill'",
	"UPDATE pgleases.jobs SET blocked_reason = 'by hand', blocked_since = '4713-01-01 BC' WHERE key = 'ill'",
	`UPDATE pgleases.consumers SET since = '-infinity', looked_at = 'infinity', first_since = '-infinity'
		WHERE name = 'ill'`,
	"UPDATE pgleases.consumers SET paused_at = '-infinity', paused_by = 'x' WHERE name = 'ill'",
	"UPDATE pgleases.consumers SET queue = 'no such table' WHERE name = 'ill'",
	"UPDATE pgleases.consumers SET id_column = 'no such column' WHERE name = 'ill'",
	"UPDATE pgleases.consumers SET partitions = -1 WHERE name = 'ill'",
	`UPDATE pgleases.consumer_blocked SET since = '-infinity', failed_at = 'infinity', next_at = '294276-01-01'
		WHERE consumer = 'ill'`,
	"UPDATE pgleases.consumer_blocked SET partition = -1, attempts = -1, error = NULL WHERE consumer = 'ill'",
	"UPDATE pgleases.consumer_blocked SET attempts = 0 WHERE consumer = 'ill'", // as after Snooze
	"UPDATE pgleases.consumer_dead_letters SET died_at = '-infinity', content = 'null' WHERE consumer = 'ill'",
}

// doctor, and the lists that its remedies name, work beside each row that was edited by hand, and name
// what else is wrong.
func TestDoctorWorksBesideRowsEditedByHand(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	execute(t, database, sound)
	output1(t, database, "migrate", "--schedules", "--consumers")
	queue := consumer.Queue{Table: "public.outbox", Key: "customer", Partitions: 2}
	execute(t, database, consumer.TableSQL("well", "", queue), "CREATE TABLE public.other (LIKE public.outbox)", `
		ALTER TABLE pgleases.jobs DROP CONSTRAINT IF EXISTS jobs_times;
		INSERT INTO pgleases.schedule_groups VALUES ('reports', 1);
		INSERT INTO pgleases.leases
			SELECT l, n, 5, 1, 0, 'infinity', now()
			FROM (VALUES ('schedule/reports', 1), ('consumer/well', 2), ('consumer/ill', 2)) AS l (l, n);
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
			SELECT name, 11, 1, now(), 1 FROM pgleases.leases WHERE name LIKE '%/%';
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
			SELECT name, p, 11, 11, 3, 'a', now()
			FROM pgleases.leases, generate_series(0, partitions - 1) AS p WHERE name LIKE '%/%';
		INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered)
			SELECT 'reports', name, name, 0, 'close', '{}', '@every 1h', now(), false, now(), due, 1, now()
			FROM (VALUES ('ill', now() + interval '30 minutes'), ('late', now() - interval '1 hour')) AS s (name, due);
		INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
			SELECT 'reports', key, 0, 'mail', '', 'job', '{}', 2, now(), due
			FROM (VALUES ('ill', now() + interval '30 minutes'), ('late', now() - interval '1 hour')) AS j (key, due);
		INSERT INTO pgleases.consumers VALUES
			('well', 'public.outbox', 'id', 'customer', 'partition', 'created_at', 2),
			('ill', 'public.other', 'id', 'customer', 'partition', 'created_at', 2);
		INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, error, next_at, since)
			SELECT c, 0, 2, 'k', '0', 15, 'it broke', 'infinity', now() - interval '4 minutes'
			FROM (VALUES ('ill'), ('well')) AS c (c);
		INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts)
		VALUES ('ill', 1, 0, 'k', '{}', 15)`)
	save := "CREATE TABLE public.saved_%[1]s AS TABLE pgleases.%[1]s"
	back := "DELETE FROM pgleases.%[1]s; " +
		"INSERT INTO pgleases.%[1]s OVERRIDING SYSTEM VALUE SELECT * FROM public.saved_%[1]s"
	tables := []string{"schedules", "jobs", "consumers", "consumer_blocked", "consumer_dead_letters"}
	for _, table := range tables {
		execute(t, database, strings.ReplaceAll(save, "%[1]s", table))
	}
	lists := map[string][][]string{
		"schedules":             {{"schedules", "list", "reports"}},
		"jobs":                  {{"jobs", "list", "reports"}},
		"consumers":             {{"consumers"}, {"consumers", "show", "ill"}},
		"consumer_blocked":      {{"consumers"}, {"consumers", "show", "ill"}},
		"consumer_dead_letters": {{"consumers", "show", "ill"}},
	}
	for _, change := range illRows {
		execute(t, database, change)
		found, _ := examined(t, database)
		all := fmt.Sprint(found)
		for _, text := range []string{`such as "late"`, `"well"`} {
			if !strings.Contains(all, text) {
				t.Errorf("after %s\ndoctor does not say %s:\n%s", change, text, all)
			}
		}
		table := strings.TrimPrefix(strings.Fields(change)[1], "pgleases.")
		for _, args := range lists[table] {
			c := command.Run(t, command.Database(database), slices.Concat(args, []string{"-o", "json"})...)
			if code, text := c.ExitCode(), c.Printed(); code != 0 || !strings.Contains(text, `"ill"`) {
				t.Errorf("after %s\n%v exits with %d: %s", change, args, code, text)
			}
		}
		execute(t, database, strings.ReplaceAll(back, "%[1]s", table))
	}
}
