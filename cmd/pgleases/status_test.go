//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// statusIn returns what status prints, and its exit code.
func statusIn(t *testing.T, database string, flags ...string) (string, int) {
	t.Helper()
	c := command.Run(t, command.Database(database), append([]string{"status", "--skip", "autovacuum"}, flags...)...)
	code := c.ExitCode()
	return c.Printed(), code
}

func TestStatusOfAQuietFleet(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	text, code := statusIn(t, database)
	if code != 0 {
		t.Errorf("exit code %d: %s", code, text)
	}
	expectPrinted(t, text, `\ASUBJECT    STATE\n`+
		`health     (?:ok|note)(: \d notes?; pgleases doctor has the remedies)?\n`+
		`clients    2 live\nleases     1 with 2 partitions, 0 without an owner\nlast hour  no event\n\z`)
	execute(t, database, "INSERT INTO pgleases.events (cause, reason) VALUES ('accepted', 'server generation 7')")
	text, code = statusIn(t, database)
	if code != 0 {
		t.Errorf("after a failover: exit code %d: %s", code, text)
	}
	expectPrinted(t, text, `^  timeline +note: the database failed over at \S+ \S+ UTC \(\S+ ago\), `+
		`and server generation 7 began$`)
	execute(t, database, `
		INSERT INTO pgleases.events (lease, cause, to_id)
		SELECT 'l' || n, 'joined', 'c' || n % 5 FROM generate_series(1, 20) AS n`)
	if text, _ := statusIn(t, database); !strings.Contains(text, "  joined 20 of 5 clients, accepted 1\n") {
		t.Errorf("after joins: %s", text)
	}
	c := command.Run(t, command.Database(database), "status", "--schema", "none")
	expectExit(t, c, 2)
	expectPrinted(t, c.Printed(), `\nhealth +fault: 1 fault; pgleases doctor has the remedies\n`+
		`  schema +fault: schema "none" is missing`)
	fails(t, database, "status --skip all", "give names out of connect,")
	fails(t, database, "status now", "now")
}

func TestStatusShowsWhatIsWrong(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t))
	output1(t, database, "migrate", "--consumers", "--schedules")
	execute(t, database, sound, `
		INSERT INTO pgleases.leases VALUES
			('orphaned', 4, 5, 1, 0, 'infinity', now()), ('left in order', 4, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.partitions (lease, partition, epoch, owner_id)
		SELECT 'left in order', p, 3, 'gone' FROM generate_series(0, 3) AS p;
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id)
		SELECT 'orphaned', p, NULL, NULL, 3, 'gone' FROM generate_series(0, 3) AS p;
		UPDATE pgleases.clients SET expires_at = clock_timestamp() - interval '1 hour' WHERE id = 'b';
		INSERT INTO pgleases.events (lease, cause, from_id, to_id, partitions) VALUES
			('l', 'handed over', 'a', 'b', '{[0,120)}'), ('l', 'handed over', 'a', 'b', '{[0,3)}'),
			(NULL, 'evicted', 'x', NULL, NULL);
		INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions) VALUES
			(now() - interval '2 hours', 'l', 'given', 'a', 'b', '{[0,120)}'),
			(now() - interval '2 hours', 'orphaned', 'given', 'gone', NULL, '{[0,4)}');

		CREATE TABLE public.outbox (
			id bigint PRIMARY KEY, customer text NOT NULL, partition int NOT NULL, created_at timestamptz);
		CREATE INDEX ON public.outbox (partition, id);
		INSERT INTO pgleases.consumers (name, queue, id_column, key_column, partition_column, time_column, partitions,
			paused_at, paused_by, paused_reason)
		VALUES ('orders', 'public.outbox', 'id', 'customer', 'partition', 'created_at', 4,
			now(), 'maria', 'the shop is closed');
		INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, since, next_at)
		VALUES ('orders', 0, 0, 'c', '0', 1, now() - interval '2 hours', 'infinity');
		INSERT INTO public.outbox
		SELECT n, 'd', 0, now() - interval '10 minutes' FROM generate_series(1, 7) AS n;

		INSERT INTO pgleases.schedule_groups VALUES ('reports', 1);
		INSERT INTO pgleases.schedules (group_name, name, key, kind, args, rule, anchor, declared, revision, registered,
			partition, cursor, due, paused_at, failures, error)
		SELECT 'reports', 'n' || n, 'k', 'close', '{}', '@every 1h', now(), false, 1, now(),
			0, now(), now() - interval '1 hour', CASE n WHEN 1 THEN now() END, CASE n WHEN 2 THEN 4 ELSE 0 END, 'no paper'
		FROM generate_series(1, 3) AS n`)
	text, code := statusIn(t, database)
	expectPrinted(t, text,
		`^health +fault: 1 fault, \d warnings(, \d notes?)?; pgleases doctor has the remedies$`,
		`^  orphans +fault: partitions that no live client owns: "l" 1 since 20.* ago\)$`,
		`^  expired +warning: silent for .*: client "b" since 20.* ago\)$`,
		`^  schedules +warning: failed 3 or more times in a row: 1 of group "reports", `+
			`such as "n2" 4 times \(no paper\)$`,
		`^clients +1 expired, 1 live$`,
		`^leases +3 with 10 partitions, 5 without an owner$`,
		`^  orphaned +4 without an owner: 0-3$`,
		`^  l +1 without an owner: 1$`,
		`^last hour +handed over 123, evicted 1$`,
		`^schedules +3 in 1 group$`,
		`^  reports +3 late, 1 failing, 1 paused$`,
		`^jobs +0 have not ended, 0 blocked$`,
		`^consumers +1, 1 of them blocked, behind or paused$`,
		`^  orders +1 blocked key for 2h; behind by 10m, rows: 7; paused \S+ ago by maria: the shop is closed$`)
	if code != 2 {
		t.Errorf("exit code %d: %s", code, text)
	}
	text, code = statusIn(t, database, "-o", "json")
	s := only[Status](t, text)
	if s.Level != admin.LevelFault || code != 2 {
		t.Errorf("exit code %d: %+v", code, s)
	}
	if s.Clients["expired"] != 1 || s.Partitions != 10 || len(s.Unowned) != 2 || s.Moves["handed over"] != 123 ||
		len(s.Groups) != 1 || len(s.Consumers) != 1 || len(s.Unread) != 0 {
		t.Errorf("it has %+v", s)
	}
	skip := "orphans,expired,schedules,consumers,shares,joins"
	if text, code := statusIn(t, database, "--skip", skip); code != 0 {
		t.Errorf("without the checks that find something: exit code %d: %s", code, text)
	}
	execute(t, database, `
		UPDATE pgleases.leases SET name = E'l\n\u202e' WHERE name = 'orphaned';
		UPDATE pgleases.partitions SET lease = E'l\n\u202e' WHERE lease = 'orphaned'`)
	text, _ = statusIn(t, database)
	unprintable(t, "status", text)

	role := newRole(t, database)
	text, _ = statusIn(t, as(t, database, role))
	expectPrinted(t, text, `^last hour +unknown: .* permission denied`)
}

// More leases than fit the screen are counted.
func TestStatusStaysOnOneScreen(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound, `
		INSERT INTO pgleases.leases
		SELECT 'orphaned' || n, 4, 5, 1, 0, 'infinity', now() FROM generate_series(1, 30) AS n;
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id)
		SELECT 'orphaned' || n, p, NULL, NULL, 3, 'gone'
		FROM generate_series(1, 30) AS n, generate_series(0, 3) AS p;
		INSERT INTO pgleases.events (lease, cause, from_id)
		SELECT 'orphaned' || n, 'given', 'gone' FROM generate_series(1, 30) AS n`)
	text, _ := statusIn(t, database)
	if !strings.Contains(text, "and 25 more: pgleases list\n") || strings.Count(text, "\n") > 24 {
		t.Errorf("%d lines: %s", strings.Count(text, "\n"), text)
	}
}

// A queue table that cannot be read is not counted as one in which no row waits.
func TestStatusCountsConsumersThatItCannotSee(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	output1(t, database, "migrate", "--consumers")
	execute(t, database, sound, outbox, orders)
	expectPrinted(t, output1(t, database, "consumers", "show", "orders", "-o", "json"),
		`"blocked": \[\]`, `"letters": \[\]`, `"changes": \[\]`)
	role := newRole(t, database)
	execute(t, database, output1(t, database, "grants", role, "--for=reader"))
	text, _ := statusIn(t, as(t, database, role))
	expectPrinted(t, text, `^consumers +1, 0 of them blocked, behind or paused, 1 with a table that cannot be read$`)
}
