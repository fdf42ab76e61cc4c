package audit

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// sound makes the records of two hours. Client a joined lease l and got its two partitions, handed
// one over to b, and was evicted. A schedule ticked each 10 minutes. Job 1 succeeded, job 2 failed
// and is retried as job 3. A consumer has a row in its table and a dead letter.
const sound = `
	UPDATE pgleases.installation SET installed_at = now() - interval '1 day';
	ALTER TABLE pgleases.jobs ALTER id DROP IDENTITY;
	INSERT INTO pgleases.clients SELECT 12, 'b', 1, now() + interval '1 hour', '1 hour', 'host', 7, now();
	INSERT INTO pgleases.leases (name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
	SELECT n, 2, 5, 1, 0, 'infinity', now() FROM unnest('{l,schedule/g,consumer/c}'::text[]) AS n;
	INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
	VALUES ('l', 0, 12, 12, 2, 'b', now()), ('l', 1, 12, 12, 2, 'b', now());
	INSERT INTO pgleases.partitions (lease, partition, epoch) SELECT l, n, 9
	FROM unnest('{schedule/g,consumer/c}'::text[]) AS l, generate_series(0, 1) AS n;
	INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions, generation, reason)
	SELECT now() - minutes * interval '1 minute', lease, cause, from_id, to_id, partitions::int4multirange, generation, reason
	FROM (VALUES (110, 'l', 'joined', NULL, 'a', NULL, 0, NULL), (109, 'l', 'given', NULL, 'a', '{[0,2)}', 1, NULL),
		(40, 'l', 'joined', NULL, 'b', NULL, 2, NULL), (39, 'l', 'handed over', 'a', 'b', '{[1,2)}', 3, NULL),
		(30, NULL, 'evicted', 'a', NULL, NULL, NULL, 'host h, pid 7'), (29, 'l', 'given', 'a', 'b', '{[0,1)}', 4, NULL))
		AS e (minutes, lease, cause, from_id, to_id, partitions, generation, reason);

	INSERT INTO pgleases.schedule_groups VALUES ('g', 2);
	INSERT INTO pgleases.schedules (id, group_name, name, key, partition, kind, args, rule, anchor, declared,
		cursor, due, revision, registered)
	OVERRIDING SYSTEM VALUE SELECT 1, 'g', 's', 's', 0, 'k', '1', '@every 10m0s', at, true,
		at + interval '110 minutes', now(), 1, now()
	FROM (VALUES (now() - interval '115 minutes')) AS a (at);
	INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, outcome, epoch, started_at, ended_at)
	SELECT 1, 'g', 's', s.anchor + (n - 1) * interval '10 minutes', t.at, 1, 'succeeded',
		n / 2 + 1, t.at, t.at + interval '1 second'
	FROM pgleases.schedules AS s, generate_series(1, 11) AS n, LATERAL (SELECT s.anchor + n * interval '10 minutes') AS t (at);
	INSERT INTO pgleases.schedule_owners VALUES ('g', 0, 6, 5, false);
	INSERT INTO pgleases.history (source, job, group_name, name, since, until, ticks, outcome, epoch,
		started_at, ended_at, revision, retried)
	SELECT 'job', job, 'g', name, t.at, t.at, 1, outcome, 3, t.at, t.at, revision, retried
	FROM (VALUES (now() - interval '20 minutes')) AS t (at),
		(VALUES (1, '', 'succeeded', NULL, NULL), (2, 'unique', 'failed', 1, 3)) AS j (job, name, outcome, revision, retried);
	INSERT INTO pgleases.jobs (id, group_name, key, partition, kind, name, trigger, args, priority, at, due)
	SELECT 3, 'g', 'k', 1, 'k', 'unique', 'retry', '1', 1, now(), now();

	CREATE SCHEMA q;
	CREATE TABLE q.t (id bigint, customer text, partition int);
	INSERT INTO q.t VALUES (8, 'c', 1);
	INSERT INTO pgleases.consumers (name, queue, id_column, partition_column, partitions)
	VALUES ('c', 'q.t', 'id', 'partition', 2);
	INSERT INTO pgleases.consumer_owners (consumer, partition, begun, ended, crashed) VALUES ('c', 0, 9, 7, 8);
	INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at, crashed)
	VALUES ('c', 0, 6, 'c', '', 1, now(), 8);
	INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts)
	VALUES ('c', 7, 1, 'c', '{"id": 7, "customer": "c", "partition": 1}', 1);`

func newPool(t *testing.T) pgx.Tx {
	t.Helper()
	url := pgtest.FreshDatabase(t, testkit.Must(schedule.Schema())(t), testkit.Must(consumer.Schema())(t))
	tx := testkit.Must(testkit.Pool(t, pgtest.OwnerURL(url)).Begin(t.Context()))(t)
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	return tx
}

// audited returns the report on the sound records after a statement has changed them. It rolls the
// change back.
func audited(t *testing.T, tx pgx.Tx, change string) *Report {
	t.Helper()
	inner := testkit.Must(tx.Begin(t.Context()))(t)
	defer func() { testkit.OK(t, inner.Rollback(t.Context())) }()
	testkit.Must(inner.Conn().PgConn().Exec(t.Context(), change).ReadAll())(t)
	return testkit.Must(within(t.Context(), inner, "pgleases", 3*time.Hour))(t)
}

func begin(t *testing.T) pgx.Tx {
	t.Helper()
	tx := newPool(t)
	testkit.Must(tx.Conn().PgConn().Exec(t.Context(), sound).ReadAll())(t)
	return tx
}

func TestSoundRecordsAreCertified(t *testing.T) {
	t.Parallel()
	tx := begin(t)
	for what, change := range map[string]string{
		"as they are": "",
		"a drop": "DELETE FROM pgleases.partitions WHERE lease = 'l'; INSERT INTO pgleases.events (lease, cause, " +
			"actor, generation) VALUES ('l', 'dropped', 'maria', 5)",
		"a clock that was a little slower": "UPDATE pgleases.events SET at = at - interval '50 seconds' WHERE id = 6",
		"a rule that was edited": "UPDATE pgleases.schedules SET anchor = now(), cursor = now(), " +
			"rule = '0 0 * * *'",
		"a schedule that was deleted": "DELETE FROM pgleases.schedules",
		"a cancellation of three ticks": "UPDATE pgleases.history SET since = since - interval '20 minutes', " +
			"ticks = 3, " +
			"outcome = " +
			"'canceled', epoch = NULL, started_at = NULL WHERE id = 6; DELETE FROM pgleases.history WHERE id " +
			"IN (4, 5)",
		"a job that was replaced": "UPDATE pgleases.jobs SET id = 2, revision = 2; " +
			"UPDATE pgleases.history SET retried = NULL",
		"what operators did to a schedule and to jobs": "ALTER TABLE pgleases.jobs ALTER id " +
			"ADD GENERATED ALWAYS AS IDENTITY (START 100); SELECT pgleases.schedule_pause('g', 's', 'maria', 'r'), " +
			"pgleases.schedule_catch_up('g', 's', 'maria', 'r'), pgleases.schedule_trigger('g', 's', 'maria', 'r'), " +
			"pgleases.schedule_cancel_job('g', 3, 'maria', 'r'); " +
			"SELECT pgleases.schedule_retry_job('g', 3, 'maria', 'r')",
		"an early history that is gone": "DELETE FROM pgleases.history WHERE id < 5",
		"early events that are gone":    "DELETE FROM pgleases.events WHERE id < 3",
		"a fast clock before an eviction by a slower server": "UPDATE pgleases.events " +
			"SET at = now() - interval '28 minutes' WHERE id = 2",
		"a server that was accepted by a slower clock": "UPDATE pgleases.server SET generation = 1; " +
			"INSERT INTO pgleases.events (at, cause, generation) " +
			"VALUES (now() - interval '31 minutes', 'accepted', 1)",
		"another row with the ID of a dead letter": "INSERT INTO q.t VALUES (7, 'other', 1)",
		"an edit after the clock was set back by a tick": "UPDATE pgleases.schedules SET " +
			"anchor = now() - interval '6 minutes 30 seconds', cursor = now() - interval '6 minutes', " +
			"rule = '@every 30s', revision = 2",
		"a schedule that no run can read":            "UPDATE pgleases.schedules SET cursor = 'infinity'",
		"a schedule that was moved to its partition": "UPDATE pgleases.history SET epoch = 2 WHERE id = 11",
	} {
		r := audited(t, tx, change)
		if r.Violation != nil || len(r.Parts) != 5 {
			t.Errorf("%s: %+v", what, r)
		}
	}
	text, err := json.Marshal(audited(t, tx, ""))
	for _, want := range []string{`4,"of":"changes of owners"`, `11,"of":"ticks with`, `2,"of":"jobs with`} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("the certificate lacks %s: %s, %v", want, text, err)
		}
	}
}

func TestReportSaysWhatRecordsLack(t *testing.T) {
	t.Parallel()
	tx := begin(t)
	for change, want := range map[string]string{
		"DELETE FROM pgleases.history WHERE id < 8":                    "its history begins there",
		"DELETE FROM pgleases.history WHERE outcome = 'succeeded'":     "has only failures",
		"UPDATE pgleases.schedules SET anchor = now(), cursor = now()": "whether a rule had 11 of these ticks",
		"UPDATE pgleases.consumers SET queue = 'q.gone'":               "cannot read all rows of its table q.gone",
		"UPDATE pgleases.consumers SET id_column = 'customer'":         "cannot read all rows of its table q.t",
		"UPDATE pgleases.history SET source = 'job', job = 2, name = 'unique', schedule = NULL WHERE id =" +
			" 11; UPDATE pgleases.schedules SET cursor = cursor - interval '10 minutes'": "1 more outcomes of jobs",
	} {
		r := audited(t, tx, change)
		text := string(testkit.Must(json.Marshal(r))(t))
		if r.Violation != nil || !strings.Contains(text, want) {
			t.Errorf("%s: it lacks %q: %s", change, want, text)
		}
	}
	gone := audited(t, tx, "DELETE FROM pgleases.events WHERE id < 3")
	if from := gone.Parts[0].From; gone.Until.Sub(from) > 40*time.Minute {
		t.Errorf("the events of the last 40 minutes are left, and the report says from %v until %v", from, gone.Until)
	}
}

// Each forgery is one that a check of its own finds.
func TestForgedRecordsAreConvicted(t *testing.T) {
	t.Parallel()
	tx := begin(t)
	for _, forged := range []struct{ change, subject, says string }{
		{
			"UPDATE pgleases.events SET from_id = 'x' WHERE id = 4",
			`partition 1 of lease "l"`, `it changed from "x", but "a" was its owner`,
		},
		{
			"UPDATE pgleases.events SET from_id = NULL WHERE id = 4",
			`partition 1 of lease "l"`, "no client handed it over",
		},
		{
			"UPDATE pgleases.events SET to_id = NULL WHERE id = 2",
			`partition 1 of lease "l"`, "it changed from \"a\", but \"\" was its owner",
		},
		{
			"DELETE FROM pgleases.events WHERE cause = 'evicted'",
			`partition 0 of lease "l"`, `it was given away while "a" owned it`,
		},
		{
			"DELETE FROM pgleases.events WHERE cause = 'evicted'",
			`partition 0 of lease "l"`, `it was given away while "a" owned it`,
		},
		{
			"INSERT INTO pgleases.events (lease, cause, from_id, to_id, partitions) VALUES ('l', 'handed " +
				"over', 'b', NULL, '{[1,2)}'), ('l', 'handed over', 'b', 'b', '{[1,2)}')",
			`partition 1 of lease "l"`, "did not own it any more",
		},
		{
			"UPDATE pgleases.events SET generation = 0 WHERE id = 6",
			`lease "l"`, "its generation fell from 2 to 0",
		},
		{
			"UPDATE pgleases.partitions SET owner = NULL WHERE partition = 1",
			`partition 1 of lease "l"`, "a change has no event",
		},
		{
			"DELETE FROM pgleases.events WHERE id IN (5, 6)",
			`partition 0 of lease "l"`, "a change has no event",
		},
		{
			"UPDATE pgleases.clients SET id = 'other'",
			`partition 0 of lease "l"`, `session is that of client "other"`,
		},
		{
			"UPDATE pgleases.partitions SET epoch = 1 WHERE lease = 'l'",
			`partition 0 of lease "l"`, "its owner changed 2 times",
		},
		{
			"UPDATE pgleases.leases SET epoch_floor = 3 WHERE name = 'l'",
			`partition 0 of lease "l"`, "its epoch fell below 3",
		},
		{
			"UPDATE pgleases.partitions SET epoch = 1::bigint << 32 WHERE lease = 'l'",
			`partition 0 of lease "l"`, "of server generation 1, and the server has 0",
		},
		{
			"UPDATE pgleases.events SET cause = 'accepted', generation = 3 WHERE id = 3; " +
				"UPDATE pgleases.server SET generation = 3",
			`partition 0 of lease "l"`, "its owner changed after generation 3 had begun",
		},
		{
			"DELETE FROM pgleases.partitions WHERE lease = 'l' AND partition = 1",
			`partition 1 of lease "l"`, "it is gone",
		},
		{
			"INSERT INTO pgleases.locks VALUES ('k', 1, 12, 1, false, 4, now()), ('k', 2, 13, 1, true, 5, " +
				"now())",
			`lock "k"`, "2 sessions hold it",
		},

		{"DELETE FROM pgleases.history WHERE id = 6", `schedule "s" of group "g"`, "has no outcome"},
		{"DELETE FROM pgleases.history WHERE id = 11", `schedule "s" of group "g"`, "has no outcome"},
		{
			"INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, outcome, epoch, " +
				"started_at, ended_at) SELECT schedule, group_name, name, since, until, ticks, outcome, epoch, " +
				"started_at, ended_at FROM pgleases.history WHERE id = 6",
			`schedule "s" of group "g"`, "a tick has two outcomes",
		},
		{
			"UPDATE pgleases.history SET outcome = 'skipped', ticks = 2 WHERE id = 6",
			`schedule "s" of group "g"`, "the rule @every 10m0s has 1 ticks there",
		},
		{
			"UPDATE pgleases.history SET until = until - interval '1 second' WHERE id = 6",
			`schedule "s" of group "g"`, "the rule @every 10m0s has 0 ticks there",
		},
		{
			"UPDATE pgleases.history SET until = until + interval '1 second' WHERE id = 11",
			`schedule "s" of group "g"`, "it ends at no tick",
		},
		{
			"UPDATE pgleases.history SET until = since WHERE id = 6",
			`schedule "s" of group "g"`, "ends before it begins",
		},
		{
			"UPDATE pgleases.history SET outcome = 'maybe' WHERE id = 6",
			`schedule "s" of group "g"`, "that is no outcome",
		},
		{
			"UPDATE pgleases.history SET epoch = NULL WHERE id = 6",
			`schedule "s" of group "g"`, "a run is of one tick, and has an epoch",
		},
		{
			"UPDATE pgleases.history SET started_at = until - interval '2 seconds' WHERE id = 6",
			`schedule "s" of group "g"`, "before its tick",
		},
		{
			"UPDATE pgleases.history SET epoch = 10 WHERE id = 11",
			`schedule "s" of group "g"`, "above all epochs of the lease",
		},
		{
			"UPDATE pgleases.history SET epoch = 4294967296 WHERE id < 11; UPDATE pgleases.partitions " +
				"SET epoch = 4294967297; UPDATE pgleases.server SET generation = 1",
			`schedule "s" of group "g"`, "the server generation of its epoch fell",
		},
		{
			"UPDATE pgleases.schedule_owners SET begun = 10",
			`partition 0 of lease "schedule/g"`, "its epoch fell",
		},
		{
			"INSERT INTO pgleases.schedule_slots VALUES ('g', 'k', 0, 0, 10, 'r')",
			`partition 0 of lease "schedule/g"`, "a slot of kind k had epoch 10",
		},

		{
			"INSERT INTO pgleases.history (source, job, group_name, name, since, until, ticks, outcome, " +
				"epoch, started_at, ended_at) SELECT source, job, group_name, name, since, until, ticks, outcome," +
				" epoch, started_at, ended_at FROM pgleases.history WHERE job = 1",
			`job 1 of group "g"`, "it has two outcomes",
		},
		{
			"INSERT INTO pgleases.history (source, job, group_name, name, since, until, ticks, outcome, " +
				"epoch, started_at, ended_at, revision) SELECT source, job, group_name, name, since, until, " +
				"ticks, outcome, epoch, started_at, ended_at, revision FROM pgleases.history WHERE job = 2",
			`job 2 of group "g"`, "its revision 1 has two outcomes",
		},
		{
			"UPDATE pgleases.history SET outcome = 'missed' WHERE job = 1",
			`job 1 of group "g"`, "that is no outcome of a job",
		},
		{
			"UPDATE pgleases.history SET started_at = NULL WHERE job = 1",
			`job 1 of group "g"`, "without an epoch or a begin",
		},
		{
			"UPDATE pgleases.history SET started_at = until - interval '2 seconds' WHERE job = 1",
			`job 1 of group "g"`, "before its time",
		},
		{"UPDATE pgleases.jobs SET id = 2", `job 2 of group "g"`, "it has an outcome, and is live"},
		{
			"UPDATE pgleases.jobs SET id = 1, revision = 2",
			`job 1 of group "g"`, "it has an outcome, and is live",
		},
		{"DELETE FROM pgleases.jobs", `job 3 of group "g"`, "neither live nor in the history"},
		{
			"INSERT INTO pgleases.events (lease, cause, name, row_id, rows, actor, reason) " +
				"VALUES ('schedule/g', 'schedule triggered', 's', 99, 1, 'maria', 'r')",
			`job 99 of group "g"`, "neither live nor in the history",
		},

		{
			"UPDATE pgleases.consumer_owners SET begun = 10",
			`partition 0 of lease "consumer/c"`, "an owner that has begun had epoch 10",
		},
		{
			"UPDATE pgleases.consumer_owners SET ended = 10",
			`partition 0 of lease "consumer/c"`, "an owner ended before it began",
		},
		{
			"UPDATE pgleases.consumer_blocked SET charged = 10",
			`partition 0 of lease "consumer/c"`, "the owner of a blocked row had epoch 10",
		},
		{
			"INSERT INTO q.t VALUES (7, 'c', 1)",
			`row 7 of consumer "c"`, "it is a dead letter, and is in its table q.t",
		},
	} {
		r := audited(t, tx, forged.change)
		v := r.Violation
		if v == nil || v.Subject != forged.subject || !strings.Contains(v.Text, forged.says) || len(v.Records) == 0 {
			t.Errorf("%s: %+v, want %s: %s", forged.change, v, forged.subject, forged.says)
		}
	}
}
