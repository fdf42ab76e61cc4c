//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/internal/testkit/command"
	"github.com/pgleases/pgleases/schedule"
)

// execute runs statements in a database, on a new connection.
func execute(t *testing.T, databaseURL string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	testkit.OK(t, err)
	defer conn.Close(context.Background())
	for _, statement := range statements {
		if _, err := conn.PgConn().Exec(t.Context(), statement).ReadAll(); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// changing are verbs that need a reason.
var changing = regexp.MustCompile(
	`pgleases (drain|pause|evict|drop|(schedules|jobs) (retry|delete|pause|resume|cancel))`)

// examined runs doctor, and returns its findings and its exit code. Remedies have the flags that their verbs need.
func examined(t *testing.T, databaseURL string, flags ...string) (found []admin.Finding, code int) {
	t.Helper()
	c := command.Run(t, command.Database(databaseURL), append([]string{"doctor", "-o", "json"}, flags...)...)
	code = c.ExitCode()
	found = only[[]admin.Finding](t, c.Printed())
	for _, f := range found {
		if changing.MatchString(f.Remedy) && !strings.Contains(f.Remedy, "--reason") {
			t.Errorf("the remedy cannot be executed as it is: %s", f.Remedy)
		}
	}
	return found, code
}

// told returns the text of a finding with its remedy.
func told(f admin.Finding) string { return f.Text + " > " + f.Remedy }

// ill returns the checks that found something, except autovacuum, which the tests' server has off.
func ill(found []admin.Finding) (checks []string) {
	for _, f := range found {
		if f.Level != admin.LevelOK && (f.Check != "autovacuum" || !strings.Contains(f.Text, "off on the server")) {
			checks = append(checks, string(f.Level)+" "+f.Check)
		}
	}
	return checks
}

// sound creates the rows of a fleet: two clients that share a lease.
const sound = `
	INSERT INTO pgleases.clients
	SELECT s, id, 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now()
	FROM (VALUES (11, 'a'), (12, 'b')) AS v (s, id);
	INSERT INTO pgleases.identities SELECT id, 1, 1, now() FROM pgleases.clients;
	INSERT INTO pgleases.boot_marker VALUES (1);
	UPDATE pgleases.server SET accepted_timeline = pgleases.timeline();
	INSERT INTO pgleases.leases VALUES ('l', 2, 5, 1, 0, 'infinity', now());
	INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
	VALUES ('l', 11, 1, now(), 1), ('l', 12, 1, now(), 1);
	INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
	VALUES ('l', 0, 11, 11, 3, 'a', now()), ('l', 1, 12, 12, 3, 'b', now());`

// outbox and orders create a queue table, and the row of a consumer that reads it.
var outbox = consumer.TableSQL("orders", "",
	consumer.Queue{Table: "public.outbox", Key: "customer", Partitions: 2})

const orders = `
	INSERT INTO pgleases.consumers
	VALUES ('orders', 'public.outbox', 'id', 'customer', 'partition', 'created_at', 2)`

// ddl finds statements that change more than rows.
var ddl = regexp.MustCompile("ALTER|CREATE|DROP")

// override returns a statement that sets an override of a lease, which has been set for some time.
func override(verb, lease, until, age string) string {
	return fmt.Sprintf(`
		INSERT INTO pgleases.overrides (verb, lease, until, since, actor, reason)
		VALUES ('%s', '%s', '%s', now() - interval '%s', 'x', 'why')`, verb, lease, until, age)
}

// accepted returns a statement that inserts the event of a failover.
func accepted(age string) string {
	return fmt.Sprintf(`
		INSERT INTO pgleases.events (at, cause, reason)
		VALUES (now() - interval '%s', 'accepted', 'server generation 7')`, age)
}

// alterDatabase returns a statement that alters the database in which it runs.
func alterDatabase(how string) string {
	return "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I " + how + "', current_database()); END $$"
}

// Doctor reports each fault, and no other one. Without a fault it reports none.
func TestDoctorFindsEachFault(t *testing.T) {
	t.Parallel()
	for _, test := range testkit.Some([]struct {
		name  string
		want  string // what is found, with commas between
		text  string // of the first that is found
		flags []string
		fault string // a statement
	}{
		{name: "none", want: ""},
		{name: "writes stopped", want: "fault server", text: "default_transaction_read_only",
			fault: alterDatabase("SET default_transaction_read_only = on")},
		{name: "another schema", want: "fault schema", text: `schema "none" is missing`,
			flags: []string{"--schema", "none"}},
		{name: "old schema", want: "fault schema", text: "it has version 0, this code needs",
			fault: "UPDATE pgleases.schema_version SET version = 0, min_code = 0"},
		{name: "new schema", want: "fault schema", text: "serves code for version 99",
			fault: "UPDATE pgleases.schema_version SET version = 99, min_code = 99"},
		{name: "table missing", want: "fault schema", text: "presences",
			fault: "ALTER TABLE pgleases.presences RENAME TO elsewhere"},
		{name: "function missing", want: "fault functions, fault rights", text: "missing: partition_for",
			fault: "DROP FUNCTION pgleases.partition_for"},
		{name: "function changed", want: "warning functions", text: "guard_lock",
			fault: `CREATE OR REPLACE FUNCTION pgleases.guard_lock(name text, token bigint) RETURNS void
				LANGUAGE plpgsql AS 'BEGIN END'`},
		{name: "trigger disabled", want: "fault functions", text: "trigger",
			fault: "ALTER TABLE pgleases.leases DISABLE TRIGGER changed"},
		{name: "no such role", want: "fault rights", text: `no role "no such"`, flags: []string{"--role", "no such"}},
		{name: "another server", want: "warning timeline", text: "not accepted",
			fault: "UPDATE pgleases.server SET accepted_timeline = accepted_timeline - 1"},
		{name: "no identifier", want: "warning timeline", text: "copies are not detected",
			fault: "ALTER FUNCTION pg_control_system() RENAME TO pg_control_system_before"},
		{name: "no timeline", want: "warning timeline", text: "failovers are not detected",
			fault: "ALTER FUNCTION pg_current_wal_lsn() RENAME TO pg_current_wal_lsn_before"},
		{name: "neither", want: "warning timeline", text: "failovers and copies are not detected",
			fault: `ALTER FUNCTION pg_control_system() RENAME TO pg_control_system_before;
				ALTER FUNCTION pg_current_wal_lsn() RENAME TO pg_current_wal_lsn_before`},
		{name: "Aurora", want: "warning timeline", text: "not accepted",
			fault: `CREATE FUNCTION pg_catalog.aurora_version() RETURNS text LANGUAGE sql AS 'SELECT version()'`},
		{name: "failed over", want: "note timeline",
			text:  ` ago), and server generation 7 began > see docs/database-failover.md`,
			fault: accepted("59 minutes")},
		{name: "the same for longer", want: "", fault: accepted("61 minutes")},
		{name: "crashed", want: "warning boot-marker", text: "no client takes over",
			fault: "DELETE FROM pgleases.boot_marker"},
		{name: "TTLs", want: "warning ttl", text: "1h0m0s (1), 1m0s (1)",
			fault: "UPDATE pgleases.clients SET ttl = '1 minute' WHERE session = 11"},
		{name: "expired", want: "warning expired", text: `"gone"`,
			fault: `INSERT INTO pgleases.clients
				VALUES (13, 'gone', 1, now() - interval '1 hour', '1 hour', 'host', 7, now())`},
		{name: "one ID in several processes", want: "warning client-ids",
			text: `client ID "a" have ended each other 3 times, within 5 min each time: ` +
				`host host, pid 7; host other, pid 8 > give every live process an ID of its own`,
			fault: `UPDATE pgleases.identities
				SET takeovers = 3, taken_at = clock_timestamp(), taken_from = 'host other, pid 8' WHERE id = 'a'`},
		{name: "a lease that refuses a former member", want: "warning joins",
			text:  `client "a", host host, pid 7, has 16 partitions of "m", and the lease has another number`,
			fault: `UPDATE pgleases.clients SET refused_leases = '{"m": 16}' WHERE id = 'a'`},
		{name: "the same six minutes ago", want: "",
			fault: "UPDATE pgleases.identities SET takeovers = 3, taken_at = now() - interval '6 minutes'"},
		{name: "orphan of an expired session", want: "fault orphans", text: `"l" 1`,
			fault: "UPDATE pgleases.partitions SET owner = 77, target = 77 WHERE partition = 1"},
		{name: "ceilings that are too low", want: "fault ceilings",
			text: `because all members are at their ceilings: "l" has 1 (2 members, 1 each, 3 partitions) > ` +
				`start more processes, or raise WithMaxPartitions`,
			fault: `UPDATE pgleases.leases SET partitions = 3, unowned = 1;
				UPDATE pgleases.members SET max_partitions = 1;
				INSERT INTO pgleases.partitions (lease, partition, epoch) VALUES ('l', 2, 3)`},
		{name: "ceilings that differ", want: "fault ceilings", text: `"l" has 2 (2 members, 3 together, 5 partitions)`,
			fault: `UPDATE pgleases.leases SET partitions = 5, unowned = 2;
				UPDATE pgleases.members SET max_partitions = session - 10;
				INSERT INTO pgleases.partitions (lease, partition, epoch) VALUES ('l', 3, 3), ('l', 4, 3)`},
		{name: "nobody works", want: "fault orphans", text: `no client works on "l"`,
			fault: "DELETE FROM pgleases.members"},
		{name: "all are drained", want: "fault orphans, note overrides",
			text: `no client works on "l"; drain of "a" by x since 20`,
			fault: `INSERT INTO pgleases.overrides (verb, client, until, since, actor, reason) VALUES
				('drain', 'a', 'infinity', now(), 'x', 'its host goes'), ('drain', 'b', 'infinity', now(), 'x', 'why')`},
		{name: "a pause without an end", want: "note overrides",
			text: `, without an end: "why": no work is done > ` +
				`when it may go on: pgleases resume l --reason '...'`,
			fault: override("pause", "l", "infinity", "0")},
		{name: "the same for 59 minutes", want: "note overrides", text: `"l" is paused by x since 20`,
			fault: override("pause", "l", "infinity", "59 minutes")},
		{name: "the same for an hour", want: "warning overrides", text: ` UTC (1h1m`,
			fault: override("pause", "l", "infinity", "61 minutes")},
		{name: "a pause with an end", want: "", fault: override("pause", "l", "2999-01-02", "61 minutes")},
		{name: "a freeze without an end", want: "", fault: override("freeze", "l", "infinity", "23 hours")},
		{name: "an old one", want: "note overrides",
			text:  `older than a day, without an end: freeze of "l" by x since 20`,
			fault: override("freeze", "l", "infinity", "25 hours")},
		{name: "its remedy", want: "note overrides",
			text:  `: "why" > if it is no longer needed: pgleases unfreeze l --reason '...'`,
			fault: override("freeze", "l", "infinity", "25 hours")},
		{name: "all are frozen", want: "fault orphans", text: `partitions that no live client owns: "l" 0-1 since 20`,
			fault: "UPDATE pgleases.clients SET expires_at = now() - interval '10 seconds'"},
		{name: "where they were", want: "fault orphans",
			text: ` ago); no client is live, the last were "a" (host host, pid 7), "b" (host host, pid 7) > ` +
				`continue or restart them; kill -9 what is frozen`,
			fault: "UPDATE pgleases.clients SET expires_at = now() - interval '10 seconds'"},
		{name: "all have left", want: "note orphans", text: `no process runs, as after pgleases run --once: "l"`,
			fault: "DELETE FROM pgleases.members; UPDATE pgleases.partitions SET owner = NULL, target = NULL"},
		{name: "the last member left in order, and was killed later", want: "note expired, note orphans",
			text: `evicted in the last 10 min, and not back: client "c", `,
			fault: `INSERT INTO pgleases.leases VALUES ('gone', 1, 5, 1, 0, 'infinity', now());
				INSERT INTO pgleases.partitions (lease, partition, epoch, owner_id) VALUES ('gone', 0, 3, 'c');
				INSERT INTO pgleases.events (lease, cause, from_id) VALUES ('gone', 'left', 'c');
				INSERT INTO pgleases.events (cause, from_id) VALUES ('evicted', 'c')`},
		{name: "a pause that is over", want: "fault orphans", text: `no client works on "l"`,
			fault: `INSERT INTO pgleases.overrides (verb, lease, until, since, actor, reason)
				VALUES ('pause', 'l', now() - interval '1 second', now(), 'x', 'why');
				DELETE FROM pgleases.members`},
		{name: "more members than partitions", want: "note shares", text: `"l" has 2 for 3 members`,
			fault: `INSERT INTO pgleases.clients
				VALUES (13, 'c', 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now());
				INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
				VALUES ('l', 13, 1, now(), 3)`},
		{name: "plan overdue", want: "warning plans", text: `"l" since 20`,
			fault: "UPDATE pgleases.leases SET plan_due_at = now() - interval '1 hour'"},
		{name: "handoff", want: "warning handoffs", text: `"l" 0 of client "a" since 20`,
			fault: `UPDATE pgleases.partitions SET target = 12, asked_at = now() - interval '1 hour'
				WHERE partition = 0`},
		{name: "lock awaited", want: "note locks", text: `"k" since 20`,
			fault: `INSERT INTO pgleases.locks VALUES
				('k', 1, 11, 1, false, 7, now()), ('k', 2, 12, 2, false, NULL, now() - interval '1 hour')`},
		{name: "lost lock awaited", want: "warning locks",
			text: `, held by "a" > the holder has lost the lock, and has not released it`,
			fault: `UPDATE pgleases.clients SET lost_locks = '{k}' WHERE session = 11;
				INSERT INTO pgleases.locks VALUES
				('k', 1, 11, 1, false, 7, now()), ('k', 2, 12, 2, false, NULL, now() - interval '1 hour')`},
		{name: "lost lock behind locks of leaders", want: "warning locks",
			text: `12 awaited, such as "k" since 20`,
			fault: `UPDATE pgleases.clients SET lost_locks = '{k}' WHERE session = 11;
				INSERT INTO pgleases.locks VALUES
				('k', 1, 11, 1, false, 7, now()), ('k', 2, 12, 2, false, NULL, now() - interval '1 hour');
				INSERT INTO pgleases.locks SELECT 'leader' || n, 9 + n, 11, n, false, 9 + n, now() - interval '1 day'
				FROM generate_series(1, 11) AS n;
				INSERT INTO pgleases.locks SELECT 'leader' || n, 90 + n, 12, n, false, NULL, now() - interval '1 day'
				FROM generate_series(1, 11) AS n`},
		{name: "lock awaited that two share", want: "warning locks",
			text: `, held by "b" > the holder has lost the lock, and has not released it`,
			fault: `UPDATE pgleases.clients SET lost_locks = '{k}' WHERE session = 12;
				INSERT INTO pgleases.locks VALUES ('k', 1, 11, 1, true, 7, now()), ('k', 2, 12, 2, true, 7, now()),
				('k', 3, 11, 3, false, NULL, now() - interval '1 hour')`},
		{name: "lock awaited that two share, one expired", want: "warning locks", text: `"k" since 20`,
			fault: `INSERT INTO pgleases.locks VALUES ('k', 1, 11, 1, true, 7, now()),
				('k', 2, 99, 2, true, 7, now()), ('k', 3, 12, 3, false, NULL, now() - interval '1 hour')`},
		{name: "lock of an expired session awaited", want: "warning locks", text: `"k" since 20`,
			fault: `INSERT INTO pgleases.locks VALUES
				('k', 1, 99, 1, false, 7, now()), ('k', 2, 12, 2, false, NULL, now() - interval '1 hour')`},
		{name: "number of a column", want: "warning columns",
			text: "outbox.partition for 64; leases have 2 > start the consumer that reads it; if none does, drop",
			fault: `CREATE TABLE outbox (
				id text,
				two int GENERATED ALWAYS AS (pgleases.partition_for(id, 2)) STORED,
				partition int GENERATED ALWAYS AS (pgleases.partition_for(id, 64)) STORED)`},
		{name: "no autovacuum", want: "warning autovacuum", text: "off for clients",
			fault: "ALTER TABLE pgleases.clients SET (autovacuum_enabled = off)"},
		{name: "connections", want: "warning connections", text: "of 3 are left for the database",
			fault: alterDatabase("CONNECTION LIMIT 3")},
	}...) {
		t.Run(test.name, func(t *testing.T) {
			newDatabase := pgtest.MigratedDatabase // one for all, one after the other
			if ddl.MatchString(test.fault) {
				t.Parallel()
				newDatabase = pgtest.FreshDatabase
			}
			database := newDatabase(t)
			execute(t, database, sound)
			if test.fault != "" {
				execute(t, database, test.fault)
			}
			expectIll(t, database, test.want, test.text, test.flags...)
		})
	}
}

// Doctor says which process to kill, and who was evicted. If all clients are dead, it says to start one.
func TestDoctorNamesProcesses(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	says := func(check, want string) {
		t.Helper()
		found, _ := examined(t, database)
		isWanted := func(f admin.Finding) bool { return f.Check == check && strings.Contains(told(f), want) }
		if !slices.ContainsFunc(found, isWanted) {
			t.Errorf("%s lacks %q: %+v", check, want, found)
		}
	}
	execute(t, database, sound, `
		INSERT INTO pgleases.overrides (verb, client, until, since, actor, reason)
		SELECT 'drain', id, CASE id WHEN 'a' THEN 'infinity' ELSE timestamptz '2999-01-02 03:04:05Z' END,
			now(), 'x', 'why'
		FROM pgleases.clients`)
	says("orphans", `"why", drain of "b" by x since `+time.Now().UTC().Format(time.DateOnly)+
		`, until 2999-01-02 03:04:05 UTC: "why" > `+
		`pgleases undrain CLIENT --reason '...' for each of them, or start another process; if`)
	says("overrides", `"a" is drained by x since 20`)
	says("overrides", `: "why": a lease of it has no member that works > `+
		`when it may go on: pgleases undrain a --reason '...'`)
	execute(t, database, "UPDATE pgleases.members SET weight = 0")
	says("orphans", `no client works on "l" (of weight 0, for example because the client ends: "a", "b") > `+
		`start a process; if`)
	execute(t, database, "DELETE FROM pgleases.overrides", override("pause", "l", "infinity", "0"),
		override("pause", "it''s", "infinity", "2 hours"), override("pause", "m", "2999-01-02", "0"))
	says("orphans", `each partition has an owner, except of leases that are paused`)
	says("overrides", `"it's" is paused by x since 20`)
	says("overrides", `> when it may go on: pgleases resume 'it'\''s' --reason '...'`)
	execute(t, database, `
		UPDATE pgleases.members SET weight = 1;
		DELETE FROM pgleases.overrides;
		UPDATE pgleases.clients SET id = E'w\nrm -rf x $(touch y) ''z''' WHERE session = 11;
		UPDATE pgleases.partitions SET target = 12, asked_at = now() - interval '1 hour' WHERE partition = 0;
		INSERT INTO pgleases.events (at, cause, from_id, reason) VALUES
			(now() - interval '11 minutes', 'evicted', 'long ago', 'host node-7, pid 8'),
			(now() - interval '9 minutes', 'evicted', 'svc-2', 'host node-7, pid 9')`)
	word := `$'w\nrm -rf x $(touch y) \047z\047'` // of one line, for a shell
	says("handoffs", "> if the work on it may take that long, wait\n"+
		"pgleases doctor --long 1s: if it warns of a transaction of that process, end that first\n"+
		"if the work hangs: kill -9 7 on host host ("+word+"); SIGTERM would wait for the work\n"+
		"if you cannot reach it: pgleases evict "+word+" --reason '...'; after a TTL")
	says("expired", `evicted in the last 10 min, and not back: client "svc-2", host node-7, pid 9, at 20`)
	says("expired", ` ago) > on that host: if the process is frozen`)
	execute(t, database, "UPDATE pgleases.events SET from_id = 'b'") // which is live
	says("expired", `no session is expired > `)
	execute(t, database, `
		UPDATE pgleases.leases SET name = '$(touch y)', partitions = 1;
		INSERT INTO pgleases.leases VALUES ('z', 2, 5, 1, 0, 'infinity', now());
		UPDATE pgleases.members SET lease = CASE session WHEN 11 THEN 'z' ELSE '$(touch y)' END;
		UPDATE pgleases.partitions
		SET owner = 77, target = 77, lease = CASE partition WHEN 1 THEN 'z' ELSE '$(touch y)' END`)
	says("orphans", `partitions that no live client owns: "$(touch y)" 0, "z" 1 since 20`)
	says("orphans", ` > pgleases explain '$(touch y)/0' says`)
	execute(t, database, "UPDATE pgleases.clients SET expires_at = now() - interval '2 hours'")
	says("expired", "> start one: no client is live")
}

// If the last client of a lease is killed while clients of other leases live, doctor says since when
// no client works on the lease, and where the last one was.
func TestDoctorFindsAFleetThatWasKilled(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	pool := testkit.Pool(t, database)
	other := clients.New(t, pool, pgleases.WithTTL(time.Second), pgleases.WithHeartbeat(100*time.Millisecond))
	testkit.Must(other.Lease(t.Context(), "other", 1))(t)
	execute(t, database, `
		INSERT INTO pgleases.clients VALUES (13, 'c', 1, clock_timestamp(), '1 second', 'node-7', 9, now());
		INSERT INTO pgleases.leases VALUES ('gone', 1, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		VALUES ('gone', 13, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		VALUES ('gone', 0, 13, 13, 3, 'c', now());
		INSERT INTO pgleases.events (lease, cause, to_id) VALUES ('gone', 'joined', 'c')`)
	testkit.Becomes(t, pool, "the other client has evicted it", int64(1),
		"SELECT count(*) FROM pgleases.events WHERE cause = 'evicted' AND from_id = 'c'")
	want := regexp.MustCompile(`^no client works on "gone" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(\S+ ago\), ` +
		`when its last owner "c", host node-7, pid 9, was evicted > start a process`)
	testkit.Until(t, "doctor says so", func() bool {
		found, code := examined(t, database)
		return code == 2 && slices.ContainsFunc(found, func(f admin.Finding) bool {
			return f.Check == "orphans" && f.Level == admin.LevelFault && want.MatchString(told(f))
		})
	})
}

// seenLater are the checks that read sessions and statistics.
var seenLater = regexp.MustCompile("transactions|snapshots|table-locks|row-locks|advisory-locks|autovacuum")

// expectIll expects the findings of doctor, and the text and remedy of the first one. Doctor may see sessions
// and statistics a little later.
func expectIll(t *testing.T, databaseURL, want, text string, flags ...string) {
	t.Helper()
	exits := map[bool]int{true: 2, false: min(1, strings.Count(want, "warning"))}[strings.Contains(want, "fault")]
	if !strings.Contains(want, "autovacuum") {
		flags = append(flags, "--skip", "autovacuum")
	}
	var found []admin.Finding
	var code int
	late := time.Now()
	if seenLater.MatchString(want) {
		late = late.Add(testkit.Patience)
	}
	for {
		found, code = examined(t, databaseURL, flags...)
		if strings.Join(ill(found), ", ") == want || time.Now().After(late) {
			break
		}
	}
	i := slices.IndexFunc(found, func(f admin.Finding) bool { return f.Level != admin.LevelOK })
	switch got := strings.Join(ill(found), ", "); {
	case got != want || code != exits:
		t.Errorf("found %q with exit code %d, want %q with %d: %+v", got, code, want, exits, found)
	case want != "" && (!strings.Contains(told(found[i]), text) || found[i].Remedy == ""):
		t.Errorf("found %+v, want %q and a remedy", found[i], text)
	}
}

func TestDoctorFindsTransactionsThatLast(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	conn := newConn(t, database)
	_, err := conn.Exec(t.Context(), "BEGIN")
	testkit.OK(t, err)
	expectIll(t, database, "warning transactions", "1 idle, such as process ", "--long", "1ms")
	_, err = conn.Exec(t.Context(), "ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class",
		pgx.QueryExecModeSimpleProtocol)
	testkit.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = conn.Exec(ctx, "SELECT pg_sleep(1000)")
	}()
	expectIll(t, database, "warning snapshots", "1 in use, such as that of process ", "--long", "1ms")
	cancel()
	<-ended
}

// A role that cannot see what other sessions do counts them all the same.
func TestDoctorCountsConnectionsOfOtherRoles(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.DirectURL(pgtest.FreshDatabase(t))
	role := newRole(t, database)
	execute(t, database, sound, output1(t, database, "grants", role, "--for=reader"),
		alterDatabase("CONNECTION LIMIT 6"))
	for range 3 {
		_ = newConn(t, database)
	}
	expectIll(t, as(t, database, role), "note transactions, note snapshots, warning connections", "GRANT pg_monitor")
}

// needPrepared skips a test that prepares transactions where the server has no room for them.
func needPrepared(t *testing.T, database string) {
	t.Helper()
	const most = "SELECT current_setting('max_prepared_transactions')::int"
	if testkit.Value[int](t, testkit.Pool(t, database), most) == 0 {
		t.Skip("max_prepared_transactions is 0")
	}
}

// A prepared transaction has no process, and lasts until somebody ends it.
func TestDoctorFindsPreparedTransactions(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	needPrepared(t, database)
	execute(t, database, sound)
	name := rand.Text()
	execute(t, database, "BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION '"+name+"'")
	expectIll(t, database, "warning transactions",
		fmt.Sprintf("1 idle, such as the prepared transaction %q of ", name), "--long", "1ms")
	expectIll(t, database, "warning transactions",
		"> COMMIT PREPARED or ROLLBACK PREPARED it: pg_prepared_xacts lists them", "--long", "1ms")
	expectIll(t, database, "", "") // it is younger than a usual one
	execute(t, database, "ROLLBACK PREPARED '"+name+"'")
	expectIll(t, database, "", "", "--long", "1ms")
}

// locked begins a transaction that locks rows, or a table by reading it, and returns its connection.
func locked(t *testing.T, database, rows string) *pgx.Conn {
	t.Helper()
	conn := newConn(t, database)
	testkit.Must(conn.Exec(t.Context(), "BEGIN; SELECT FROM pgleases."+rows, pgx.QueryExecModeSimpleProtocol))(t)
	return conn
}

// Of the transactions that have locked the row of a client, a lease, a member or the server, doctor
// names the oldest.
func TestDoctorNamesWhoHasRowsLocked(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	all := []struct {
		rows, of string
		conn     *pgx.Conn
	}{
		{"clients WHERE id = 'a'", `client "a"`, nil},
		{"leases", `lease "l"`, nil},
		{"members", `a member of lease "l"`, nil},
		{"server", "server", nil},
	}
	for i := range all {
		all[i].conn = locked(t, database, all[i].rows+" FOR UPDATE")
	}
	for _, l := range all {
		text := fmt.Sprintf("the row of %s is locked by process %d of ", l.of, l.conn.PgConn().PID())
		expectIll(t, database, "fault row-locks", text)
		testkit.Must(l.conn.Exec(t.Context(), "ROLLBACK"))(t)
	}
	expectIll(t, database, "", "")
}

// If several transactions share a row lock, doctor finds them only through a session that waits for
// it. A role that cannot see since when a row is locked gets a note.
func TestDoctorNamesWhoSharesARowLock(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	role := newRole(t, database)
	execute(t, database, output1(t, database, "grants", role, "--for=reader"))
	one := locked(t, database, "clients WHERE id = 'a' FOR SHARE")
	other := locked(t, database, "clients WHERE id = 'a' FOR SHARE")
	ended := make(chan error, 1)
	waiting := newConn(t, database)
	go func() {
		_, err := waiting.Exec(context.Background(), "UPDATE pgleases.clients SET pid = pid WHERE id = 'a'")
		ended <- err
	}()
	text := fmt.Sprintf(`the row of client "a" is locked by process %d of `, one.PgConn().PID())
	expectIll(t, database, "fault row-locks", text)
	expectIll(t, as(t, database, role), "note row-locks, note transactions, note snapshots", "")
	testkit.Must(one.Exec(t.Context(), "ROLLBACK"))(t)
	testkit.Must(other.Exec(t.Context(), "ROLLBACK"))(t)
	testkit.OK(t, <-ended)
}

func TestDoctorNamesWhatKeepsAPartition(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound, "UPDATE pgleases.partitions SET owner = 77, target = 77 WHERE partition = 1")
	conn := locked(t, database, "partitions FOR KEY SHARE")
	text := fmt.Sprintf(`the row of partition "l"/1 is locked by process %d of `, conn.PgConn().PID())
	expectIll(t, database, "fault row-locks, fault orphans", text)
}

// Any role may take locks with keys of the library, even the lock of a client that crashes.
func TestDoctorNamesStrangersAtAdvisoryLocks(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.DirectURL(pgtest.FreshDatabase(t))
	execute(t, database, sound)
	owner := newConn(t, database)
	_, err := owner.Exec(t.Context(), "SELECT pg_advisory_lock(-7), pg_advisory_lock(-8)")
	testkit.OK(t, err)
	execute(t, database, fmt.Sprintf("INSERT INTO pgleases.presences VALUES (11, -7, %d)", owner.PgConn().PID()),
		"INSERT INTO pgleases.locks VALUES ('it''s', 1, 11, 1, false, 7, now())")
	expectIll(t, database, "", "")
	for _, test := range testkit.Some([]struct{ key, use string }{
		{"7358216409153", "Migrate"},
		{"hashtextextended('override', 'pgleases.overrides'::regclass::bigint)", "verbs of operators"},
		{"pgleases.lock_mutex('it''s')", `the named lock "it's"`},
		{"-7", "fast failover"},
	}...) {
		stranger := newConn(t, database)
		pid := stranger.PgConn().PID()
		ended := make(chan error, 1)
		go func() {
			_, err := stranger.Exec(context.Background(),
				"SET application_name = 'stranger'; SELECT pg_advisory_lock("+test.key+")",
				pgx.QueryExecModeSimpleProtocol)
			ended <- err
		}()
		text := fmt.Sprintf(`1 held or awaited by other programs: that for %s by process %d of `, test.use, pid)
		expectIll(t, database, "warning advisory-locks", text)
		execute(t, database, fmt.Sprintf("SELECT pg_terminate_backend(%d, 10000)", pid))
		<-ended
	}
}

// Doctor names the session that has locked a table, with a remedy, even if the table cannot be
// read.
func TestDoctorNamesWhoHasLockedATable(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	t.Run("against readers", func(t *testing.T) { namesTheLocker(t, "clients", "ACCESS EXCLUSIVE", false) })
	t.Run("against writers", func(t *testing.T) { namesTheLocker(t, "clients", "SHARE", false) })
	t.Run("waiting", func(t *testing.T) { namesTheLocker(t, "leases", "ACCESS EXCLUSIVE", true) })
}

// namesTheLocker checks what doctor says of a session that locks a table in a mode, or waits for it
// behind a session that reads it.
func namesTheLocker(t *testing.T, table, mode string, waits bool) {
	t.Helper()
	t.Parallel()
	means := map[string]string{
		"SHARE":            "others cannot write it",
		"ACCESS EXCLUSIVE": "others cannot read or write it",
	}[mode]
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound, `
		CREATE TABLE outbox (
			id text DEFAULT 'x', partition int GENERATED ALWAYS AS (pgleases.partition_for(id, 2)) STORED)`)
	if waits {
		locked(t, database, table)
	}
	conn := newConn(t, database)
	pid := conn.PgConn().PID()
	has := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "BEGIN; SET LOCAL application_name = 'report'; "+
			"LOCK TABLE pgleases."+table+", outbox IN "+mode+" MODE")
		has <- err
	}()
	if !waits {
		testkit.OK(t, <-has)
	}
	expectIll(t, database, "fault table-locks", fmt.Sprintf("%s is locked by process %d of ", table, pid))
	found, _ := examined(t, database)
	i := slices.IndexFunc(found, func(f admin.Finding) bool { return f.Check == "table-locks" })
	f := found[i]
	kill := fmt.Sprintf("pg_terminate_backend(%d)", pid)
	isNamed := strings.Contains(f.Text, `("report")`) && strings.Contains(f.Text, means)
	if !isNamed || !strings.Contains(f.Remedy, kill) {
		t.Errorf("found %+v, want that %s, and a remedy", f, means)
	}
	if mode == "ACCESS EXCLUSIVE" { // the error of a verb names doctor
		c := command.Run(t, command.Database(database), "list")
		if code := c.ExitCode(); code == 0 || !strings.Contains(c.Printed(), "pgleases doctor names the transaction") {
			t.Errorf("list ended with %d: %s, want that doctor names the session", code, c.Printed())
		}
	}
	execute(t, database, fmt.Sprintf("SELECT pg_terminate_backend(%d, 10000)", pid))
	expectIll(t, database, "", "")
}

// A prepared transaction keeps the partitions that it has guarded, without a time limit.
func TestDoctorNamesAPreparedTransactionThatIsGuarded(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	needPrepared(t, database)
	execute(t, database, sound)
	name := rand.Text()
	execute(t, database, "BEGIN; SELECT FROM pgleases.partitions FOR KEY SHARE; PREPARE TRANSACTION '"+name+"'")
	expectIll(t, database, "warning table-locks", "partitions is locked by the prepared transaction \""+name)
	execute(t, database, "ROLLBACK PREPARED '"+name+"'")
	expectIll(t, database, "", "")
}

// A prepared transaction that has a row locked has no process that could be ended.
func TestDoctorNamesAPreparedTransactionThatHasARowLocked(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	needPrepared(t, database)
	execute(t, database, sound)
	name := rand.Text()
	execute(t, database,
		"BEGIN; SELECT FROM pgleases.clients WHERE id = 'a' FOR UPDATE; PREPARE TRANSACTION '"+name+"'")
	expectIll(t, database, "fault row-locks",
		fmt.Sprintf(`the row of client "a" is locked by the prepared transaction %q of `, name))
	execute(t, database, "ROLLBACK PREPARED '"+name+"'")
	expectIll(t, database, "", "")
}

// A remedy names what it calls in the schema that is examined.
func TestDoctorNamesTheSchemaInItsRemedies(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.EmptyDatabase(t)
	output1(t, database, "migrate", "--schema", "Work")
	execute(t, database, "ALTER FUNCTION pg_current_wal_lsn() RENAME TO pg_current_wal_lsn_before",
		`ALTER TABLE "Work".leases DISABLE TRIGGER changed`)
	found, _ := examined(t, database, "--schema", "Work")
	for check, want := range map[string]string{
		"timeline":  `call "Work"."new_server_generation"() after each failover`,
		"functions": `ALTER TABLE "Work"."leases" ENABLE TRIGGER changed`,
	} {
		if !slices.ContainsFunc(found, func(f admin.Finding) bool {
			return f.Check == check && strings.Contains(f.Remedy, want)
		}) {
			t.Errorf("no remedy of %s has %s: %+v", check, want, found)
		}
	}
}

func TestDoctorFindsWhatARoleLacks(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	role := newRole(t, database)
	expectIll(t, database, "fault rights", "DELETE on clients, ", "--role", role)
	execute(t, database, output1(t, database, "grants", role))
	expectIll(t, database, "", "", "--role", role)
	execute(t, database, "REVOKE INSERT ON pgleases.locks FROM "+role)
	expectIll(t, database, "fault rights", "it lacks INSERT on locks", "--role", role)
}

// Faults between the client and the database: a filter makes them.
func TestDoctorFindsWhatIsOnTheWay(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, test := range []struct {
		want, text string
		filter     func(kind byte, body []byte) (keep bool)
	}{
		{"", "", func(byte, []byte) bool { return true }},
		{"warning pooler", "a connection pooler is between", func(kind byte, body []byte) bool {
			if kind == 'K' { // the process ID, as a pooler changes it
				body[0] ^= 0x40
			}
			return true
		}},
		{"warning notifications", "did not arrive", func(kind byte, _ []byte) bool { return kind != 'A' }},
		{"warning round-trip", "cannot take over", func(kind byte, _ []byte) bool {
			if kind == 'Z' { // the end of an answer
				time.Sleep(55 * time.Millisecond) // a distance, not a wait for something
			}
			return true
		}},
	} {
		t.Run(test.want, func(t *testing.T) {
			t.Parallel()
			database := pgtest.MigratedDatabase(t)
			execute(t, database, sound)
			if strings.Contains(test.want, "round-trip") {
				execute(t, database, "UPDATE pgleases.clients SET ttl = '1 second'")
			}
			expectIll(t, newFilter(t, database, test.filter), test.want, test.text)
		})
	}
	expectIll(t, "postgres://127.0.0.1:1/none", "fault connect", "connect", "--long", "1m")
}

// overdue has what a run records whose timeout passed 11 minutes ago; ended inserts outcomes.
const (
	overdue = ` SET due = now() - interval '1 hour', began = now(), call = 'r', call_epoch = 3,
		call_began = now() - interval '12 minutes', call_ends = now() - interval '11 minutes'`
	ended = `;INSERT INTO pgleases.history
		(group_name, kind, since, ticks, ended_at, schedule, name, job, until, outcome, error)
		VALUES ('reports', 'pay', now(), 1, now(), `
)

// Jobs that were in hand at a crash run one after the other, each alone.
func TestJobsShowTheSuspectThatTheyWaitFor(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	output1(t, database, "migrate", "--schedules")
	execute(t, database, `
		INSERT INTO pgleases.schedule_groups VALUES ('reports', 1);
		INSERT INTO pgleases.leases VALUES ('schedule/reports', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since) VALUES
			('schedule/reports', 0, 11, 11, 3, 'a', now()), ('schedule/reports', 1, NULL, NULL, 3, NULL, NULL);
		INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due,
			began, crashes, crash_epoch, call, call_epoch, call_began)
		SELECT 'reports', n::text, (n = 4)::int, 'mail', '', 'job', '{}', 2, now(), now() - interval '1 hour',
			began, crashes, crash_epoch, call, call_epoch, began
		FROM (VALUES
			(1, timestamptz '2026-03-02Z', 2, 3, 'r', 3), (2, '2026-03-02Z', 1, 2, NULL, NULL),
			(3, NULL, 0, NULL, NULL, NULL), (4, NULL, 0, NULL, NULL, NULL))
			AS j (n, began, crashes, crash_epoch, call, call_epoch)`)
	expectPrinted(t, output1(t, database, "jobs", "list", "reports"),
		`^1 .* running for \S+, crashes 2 +a `,
		`^2 .* due, crashes 1: waits for crash suspect job 1 +a `,
		`^3 .* due: its owner is busy, or .* +a `,
		`^4 .* due: its partition has no owner +- `)
	execute(t, database, "UPDATE pgleases.jobs SET due = now()")
	all := decoded[[]schedule.Job](t, database, "jobs", "list", "reports")
	if all[2].Why != "waits for crash suspect job 1" || all[3].Why != "its partition has no owner" {
		t.Errorf("reasons: %q, %q", all[2].Why, all[3].Why)
	}
	if text := output1(t, database, "jobs", "show", "reports", "2"); !strings.Contains(text, " due, crashes 1 ") {
		t.Errorf("jobs show: %s", text)
	}
}

func TestDoctorFindsFaultsOfSchedulesAndJobs(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	output1(t, database, "migrate", "--schedules")
	expectPrinted(t, output1(t, database, "doctor", "--skip", "autovacuum"),
		`ok +schedules +there are none\nok +jobs +there are none\n`)
	// What is due in half an hour is not late, however long this test takes.
	execute(t, database, `
		INSERT INTO pgleases.schedule_groups VALUES ('reports', 1);
		INSERT INTO pgleases.leases VALUES ('schedule/reports', 1, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		VALUES ('schedule/reports', 11, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		VALUES ('schedule/reports', 0, 11, 11, 3, 'a', now());
		INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered)
		SELECT 'reports', name, name, 0, 'close', '{}', '@every 1h', now(), declared, now(),
			now() + interval '30 minutes', 1, registered
		FROM (VALUES ('put', false, '2026-03-02Z'), ('new', true, now() - interval '6 days 23 hours'))
			AS s (name, declared, registered);
		INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
		VALUES ('reports', 'k', 0, 'mail', '', 'job', '{}', 2, now(), now() + interval '30 minutes')`)
	expectIll(t, database, "", "")
	for _, test := range []struct{ want, text, fault, mend string }{
		{"warning schedules", `late: 1 of group "reports", such as "new" since 20`,
			"UPDATE pgleases.schedules SET due = now() - interval '1 hour' WHERE name = 'new'",
			"UPDATE pgleases.schedules SET due = now() + interval '30 minutes'"},
		{"warning schedules", `blocked, so they wait: 2 of group "reports", such as "`,
			"UPDATE pgleases.schedules SET blocked_reason = 'no handler', blocked_since = now() - interval '1 hour'",
			"UPDATE pgleases.schedules SET blocked_reason = NULL, blocked_since = NULL"},
		{"warning schedules", `failed 3 or more times in a row: 1 of group "reports", such as "put" 3 times since 20`,
			`UPDATE pgleases.schedules SET failures = 3 WHERE name = 'put';
				INSERT INTO pgleases.history
				(schedule, group_name, name, since, until, ticks, outcome, error, ended_at)
				SELECT id, 'reports', 'put', now(), now(), 1, 'failed', 'it broke', now()
				FROM pgleases.schedules WHERE name = 'put'`,
			"UPDATE pgleases.schedules SET failures = 1 WHERE name = 'put'"},
		{"note schedules", `failed, and paused: 1 of group "reports", such as "put" since 20`,
			"UPDATE pgleases.schedules SET failures = 3, paused_at = now() WHERE name = 'put'",
			"UPDATE pgleases.schedules SET failures = 1, paused_at = NULL WHERE name = 'put'"},
		{"", "", "SELECT", // its next tick is soon
			"UPDATE pgleases.schedules SET due = now() + interval '2 hours' WHERE name = 'put'"},
		{"warning schedules", `the last tick failed: 1 of group "reports", such as "put" since 20`, "SELECT",
			"UPDATE pgleases.history SET retried = 1"},
		{"", "", "SELECT", "UPDATE pgleases.schedules SET due = now() + interval '30 minutes', failures = 0"},
		{"warning jobs", `(its owner is busy, or it waits for a run of its key or for the limit of its kind) > ` +
			`pgleases jobs list reports shows why`,
			"UPDATE pgleases.jobs SET due = now() - interval '1 hour', at = now() - interval '1 hour'",
			"UPDATE pgleases.jobs SET due = now() + interval '30 minutes'"},
		{"warning jobs", `3 times since 20`,
			"UPDATE pgleases.jobs SET began = now(), attempts = 3, error = 'it broke'",
			"UPDATE pgleases.jobs SET began = NULL, attempts = 0, error = NULL"},
		{"warning jobs", `kinds paused, because something that their handlers need is away: ` +
			`1 of group "reports", such as "mail" since 20`,
			"UPDATE pgleases.jobs SET began = now() - interval '5 minutes', outages = 9, error = 'no mail server'",
			"UPDATE pgleases.jobs SET began = NULL, outages = 0, error = NULL"},
		{"warning schedules", `kinds paused, because something that their handlers need is away: ` +
			`1 of group "reports", such as "close" since 20`,
			`UPDATE pgleases.schedules SET began = now() - interval '5 minutes', outages = 9, error = 'no printer'
				WHERE name = 'put'`,
			"UPDATE pgleases.schedules SET began = NULL, outages = 0, error = NULL"},
		{"", "", // it began a moment ago
			"UPDATE pgleases.jobs SET began = now(), outages = 1, error = 'no mail server'",
			"UPDATE pgleases.jobs SET began = NULL, outages = 0, error = NULL"},
		{"warning jobs", `running for longer than their timeout: 1 of group "reports", such as job 1 (mail) since 20`,
			"UPDATE pgleases.jobs" + overdue,
			"UPDATE pgleases.jobs SET began = NULL, call = NULL, due = now() + interval '30 minutes'"},
		{"warning schedules", ` > if it hangs (its log says "handler still running"): ` +
			`kill -9 7 on host "host" ("a\n"); SIGTERM would wait for the work`,
			`UPDATE pgleases.clients SET id = E'a\n' WHERE id = 'a';
				UPDATE pgleases.schedules` + overdue + " WHERE name = 'put'",
			"UPDATE pgleases.schedules SET began = NULL, call = NULL, due = now() + interval '30 minutes'"},
		{"warning schedules", ` ago) (tick 2026-03-02T00:00:00+00:00) > check its effect first; ` +
			`only if it was not done: pgleases schedules retry reports put 2026-03-02T00:00:00+00:00 --unknown`,
			ended + `5, 'put', NULL, '2026-03-02Z', 'unknown', NULL)`,
			"DELETE FROM pgleases.history WHERE outcome = 'unknown'"},
		{"warning jobs, warning jobs", `outcome unknown, so they may have been done: ` +
			`1 of group "reports", such as job 6 (pay) since 20`,
			ended + `NULL, '', 6, now(), 'unknown', NULL)` +
				ended + `NULL, '', 7, now(), 'failed', E'it broke\nin many lines')`,
			"UPDATE pgleases.history SET retried = 8 WHERE job = 6"},
		{"warning jobs", `failed in the last day, and were not retried: ` +
			`1 of group "reports", such as job 7 (pay) since 20`,
			"SELECT", "UPDATE pgleases.history SET retried = 8"},
		{"fault functions, fault rights", "missing: schedule_job",
			"ALTER FUNCTION pgleases.schedule_job RENAME TO elsewhere",
			"ALTER FUNCTION pgleases.elsewhere RENAME TO schedule_job"},
		{"fault orphans, warning schedules", "",
			"DELETE FROM pgleases.members WHERE lease = 'schedule/reports'",
			`INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
				VALUES ('schedule/reports', 11, 1, now(), 1)`},
		{"warning schedules", `no process runs: group "report"`, // a typing error of its Enqueuer
			"UPDATE pgleases.jobs SET group_name = 'report'",
			"UPDATE pgleases.jobs SET group_name = 'reports'"},
		{"note schedules", `1 of group "reports", such as "an old one" (since 2026-03-02)`,
			"UPDATE pgleases.schedules SET name = 'an old one', registered = '2026-03-02Z' WHERE name = 'new'",
			"SELECT"},
	} {
		execute(t, database, test.fault)
		expectIll(t, database, test.want, test.text)
		execute(t, database, test.mend)
	}
	expectPrinted(t, output1(t, database, "jobs", "failed", "reports"), `^7 +- +pay +failed +0 +\S+ ago +8 +it broke$`)
	expectPrinted(t, output1(t, database, "doctor", "--skip", "autovacuum"),
		`^note +schedules +no process .*[^.]\n +> start a process .* pgleases schedules delete reports 'an old one' `+
			`--reason`)
	role := newRole(t, database)
	execute(t, database, output1(t, database, "grants", role, "--for=reader"))
	expectIll(t, as(t, database, role), "note schedules, note transactions, note snapshots", "")
	execute(t, database, "REVOKE SELECT ON pgleases.schedules FROM "+role)
	expectIll(t, as(t, database, role), "note schedules, note transactions, note snapshots", "")
	execute(t, database, output1(t, database, "grants", role))
	expectIll(t, database, "note rights, note schedules",
		"can run clients, but no schedules, it lacks DELETE on history", "--role", role)
	execute(t, database, output1(t, database, "grants", role, "--for=schedules"))
	expectIll(t, database, "note schedules", "", "--role", role)
	execute(t, database, "REVOKE UPDATE ON SEQUENCE pgleases.notified FROM "+role)
	expectIll(t, database, "fault rights, note schedules", "it lacks UPDATE on notified", "--role", role)
}

func TestDoctorFindsFaultsOfConsumers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	execute(t, database, sound)
	output1(t, database, "migrate", "--consumers")
	expectPrinted(t, output1(t, database, "doctor", "--skip", "autovacuum"), `ok +consumers +there are none\n`)
	execute(t, database, outbox, orders, `
		INSERT INTO pgleases.leases VALUES ('consumer/orders', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		VALUES ('consumer/orders', 11, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		SELECT 'consumer/orders', n, 11, 11, 3, 'a', now() FROM generate_series(0, 1) AS n;
		INSERT INTO public.outbox (customer, payload) VALUES ('c1', '1')`)
	expectIll(t, database, "", "")
	const trigger = "CREATE OR REPLACE TRIGGER consumer_inserted AFTER INSERT ON public.outbox " +
		"FOR EACH STATEMENT EXECUTE FUNCTION pgleases.consumer_inserted"
	for _, test := range []struct{ want, text, fault, mend string }{
		{"note consumers", `blocked keys: 1 of "orders", such as "c2" since 20`,
			`INSERT INTO pgleases.consumer_blocked
				(consumer, partition, id, key, version, attempts, error, next_at, since)
				VALUES ('orders', 0, 2, 'c2', '0', 15, E'it broke\nbelow', 'infinity', now() - interval '4 minutes')`,
			"SELECT"},
		{"warning consumers", `keys blocked for long: 1 of "orders", such as "c2" since 20`,
			"UPDATE pgleases.consumer_blocked SET since = now() - interval '6 minutes'",
			"DELETE FROM pgleases.consumer_blocked"},
		{"warning consumers", `no process can read their queue tables, so no row is handled: "orders" since 20`,
			`UPDATE pgleases.consumers
				SET since = now() - interval '11 minutes', looked_at = now() - interval '11 minutes'`,
			"UPDATE pgleases.consumers SET since = now()"},
		{"warning consumers", `the oldest row that is not blocked stays the same: row 1 of "orders" since 20`,
			`UPDATE pgleases.consumers
				SET looked_at = now(), first_id = 1, first_since = now() - interval '11 minutes'`,
			"UPDATE pgleases.consumers SET first_since = now()"},
		{"warning consumers", `rows wait for long: the oldest of "orders" since 20`,
			"UPDATE public.outbox SET created_at = now() - interval '11 minutes'",
			"UPDATE public.outbox SET created_at = now() - interval '9 minutes'"},
		{"note consumers", `paused, so no row is handled: "orders" since 20`,
			`UPDATE public.outbox SET created_at = now() - interval '11 minutes';
				UPDATE pgleases.consumers
				SET paused_at = now() - interval '59 minutes', paused_by = 'maria', paused_reason = 'why'`,
			"SELECT"},
		{"warning consumers", ` (by maria since 2026-03-02 08:00:00 UTC: "why"; rows that wait: 1) > ` +
			`when it may go on: pgleases consumers resume orders --reason`,
			"UPDATE pgleases.consumers SET paused_at = '2026-03-02 08:00:00Z'",
			"UPDATE pgleases.consumers SET paused_at = NULL"},
		{"", "", // its rows wait, as was wanted
			override("pause", "consumer/orders", "2999-01-02", "0") + `;
				UPDATE pgleases.partitions SET owner = NULL, target = NULL WHERE lease = 'consumer/orders'`,
			`DELETE FROM pgleases.overrides;
				UPDATE pgleases.partitions SET owner = 11, target = 11 WHERE lease = 'consumer/orders';
				UPDATE public.outbox SET created_at = now()`},
		{"note consumers", `rows wait, and for how long is not seen: 1 of "orders" > set Queue.Time`,
			"UPDATE pgleases.consumers SET time_column = NULL",
			"UPDATE pgleases.consumers SET time_column = 'created_at'"},
		{"warning consumers", `no process runs: consumer "orders" (rows that wait: 1) > ` +
			`start one, or repair its cron job; if none will run, pgleases consumers delete orders --reason`,
			`UPDATE public.outbox SET created_at = now() - interval '11 minutes';
				DELETE FROM pgleases.members WHERE lease = 'consumer/orders';
				UPDATE pgleases.partitions SET owner = NULL, target = NULL WHERE lease = 'consumer/orders'`,
			"SELECT"},
		{"warning consumers, note consumers", `no process runs: consumer "orders"`,
			"UPDATE pgleases.consumers SET time_column = NULL",
			"UPDATE pgleases.consumers SET time_column = 'created_at'"},
		{"note consumers", `no process runs: consumer "orders" (rows that wait: 1) > if cron starts it, wait`,
			"UPDATE public.outbox SET created_at = now() - interval '9 minutes'", "SELECT"},
		{"note consumers", `no process runs: consumer "orders" (rows that wait: 0)`,
			"DELETE FROM public.outbox", "SELECT"},
		{"fault orphans", `no client works on "consumer/orders"`,
			"UPDATE pgleases.partitions SET owner = 11, target = 11 WHERE lease = 'consumer/orders'",
			`INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
				VALUES ('consumer/orders', 11, 1, now(), 1);
				INSERT INTO public.outbox (customer, payload) VALUES ('c1', '1')`},
		{"note consumers", `rows wait, and for how long is not seen: 1 of "orders" > ` +
			`CREATE INDEX CONCURRENTLY ON public.outbox (id)`,
			"ALTER TABLE public.outbox DROP CONSTRAINT outbox_pkey", "ALTER TABLE public.outbox ADD PRIMARY KEY (id)"},
		{"note consumers", `rows in the dead letters: 3 of "orders" > pgleases consumers show orders lists them; ` +
			`when the cause is repaired, pgleases consumers return orders --all --reason '...', or one of them; or`,
			`INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts)
				SELECT 'orders', n, 0, 'c1', '{}', 1 FROM generate_series(1, 3) AS n`,
			"DELETE FROM pgleases.consumer_dead_letters"},
		{"warning consumers", `public.outbox of "orders"`,
			"ALTER TABLE public.outbox RENAME TO elsewhere", "ALTER TABLE public.elsewhere RENAME TO outbox"},
		{"warning consumers", "> create it again, or pgleases consumers delete mail --reason '...'\n" +
			"likewise for the other one",
			`INSERT INTO pgleases.consumers
				VALUES ('mail', 'public.mail', 'id', 'customer', 'partition', NULL, 2);
				ALTER TABLE public.outbox RENAME TO elsewhere`,
			`DELETE FROM pgleases.consumers WHERE name = 'mail'; ALTER TABLE public.elsewhere RENAME TO outbox`},
		{"fault consumers", `no row is handled: column customer of public.outbox, consumer "orders" (it is gone) > ` +
			`as the table's owner: rename it back`,
			"ALTER TABLE public.outbox RENAME customer TO client",
			"ALTER TABLE public.outbox RENAME client TO customer"},
		{"fault consumers", `column partition of public.outbox, consumer "orders" (it is gone)`,
			"ALTER TABLE public.outbox RENAME partition TO p", "ALTER TABLE public.outbox RENAME p TO partition"},
		{"note consumers", `rows wait, and for how long is not seen: 1 of "orders" > ` +
			`column payload of public.outbox, which Queue.Time names, is gone, or is no timestamptz`,
			"UPDATE pgleases.consumers SET time_column = 'payload'",
			"UPDATE pgleases.consumers SET time_column = 'created_at'"},
		{"warning consumers", `rows wait for the poll, because the trigger of the table announces another consumer: ` +
			`"order", not "orders" > as the table's owner: ` + trigger + `('orders')`,
			trigger + "('order')", trigger + "('orders')"},
		{"warning autovacuum", "public.outbox",
			"ALTER TABLE public.outbox SET (autovacuum_enabled = off)",
			"ALTER TABLE public.outbox RESET (autovacuum_enabled)"},
		{"fault consumers", `public.outbox of "orders"`,
			`UPDATE pg_index SET indisvalid = false
				WHERE indexrelid = 'public.outbox_partition_id_idx'::regclass`,
			"SELECT"},
		{"fault consumers", "> as the table's owner: CREATE INDEX CONCURRENTLY ON public.outbox (partition, id)",
			"DROP INDEX public.outbox_partition_id_idx", "CREATE INDEX ON public.outbox (partition, id)"},
		{"fault columns", `public.outbox.partition for 2, and consumer "orders" has 4`,
			`UPDATE pgleases.leases SET partitions = 4 WHERE name = 'consumer/orders';
				INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
				SELECT 'consumer/orders', n, 11, 11, 3, 'a', now() FROM generate_series(2, 3) AS n`,
			`UPDATE pgleases.leases SET partitions = 2 WHERE name = 'consumer/orders';
				DELETE FROM pgleases.partitions WHERE partition > 1`},
		{"fault consumers", `rows that no process handles, because their partition is null or out of range: ` +
			`1 of "orders" (public.outbox) > correct`,
			"ALTER TABLE public.outbox ALTER partition DROP EXPRESSION; UPDATE public.outbox SET partition = 2",
			"UPDATE public.outbox SET partition = 0"},
		{"fault consumers", `column customer of public.outbox, consumer "orders" (it is character(9))`,
			"ALTER TABLE public.outbox ALTER customer TYPE char(9)",
			"ALTER TABLE public.outbox ALTER customer TYPE text"},
		{"warning autovacuum", "dead rows in public.outbox",
			`ALTER TABLE public.outbox SET (autovacuum_vacuum_threshold = 100); DELETE FROM public.outbox;
				INSERT INTO public.outbox (customer, payload, partition)
				SELECT 'c1', '1', 0 FROM generate_series(1, 1100);
				DELETE FROM public.outbox`,
			"VACUUM public.outbox"},
	} {
		execute(t, database, test.fault)
		expectIll(t, database, test.want, test.text)
		execute(t, database, test.mend)
	}
	expectIll(t, database, "", "")
	for _, mode := range []string{"SHARE ROW EXCLUSIVE", "ACCESS EXCLUSIVE"} {
		conn := newConn(t, database)
		tx := testkit.Must(conn.Begin(t.Context()))(t)
		_, err := tx.Exec(t.Context(), "LOCK TABLE public.outbox IN "+mode+" MODE")
		testkit.OK(t, err)
		reported := regexp.MustCompile(fmt.Sprintf(
			`a session locks the queue table, so no row is handled: public.outbox by process %d .*`+
				`pg_terminate_backend\(%[1]d\)`, conn.PgConn().PID()))
		testkit.Until(t, "the lock is reported", func() bool {
			c := command.Run(t, command.Database(database), "doctor")
			code := c.ExitCode()
			return code == 1 && reported.MatchString(strings.Join(strings.Fields(c.Printed()), " "))
		})
		testkit.OK(t, tx.Rollback(t.Context()))
	}
	timed := func(want bool) {
		t.Helper()
		if c := decoded[[]admin.Consumer](t, database, "consumers"); len(c) != 1 || c[0].Timed != want {
			t.Errorf("%+v, want the oldest row to be known: %v", c, want)
		}
	}
	timed(true)
	execute(t, database, "ALTER TABLE public.outbox DROP CONSTRAINT outbox_pkey")
	timed(false)
	execute(t, database, "ALTER TABLE public.outbox ADD PRIMARY KEY (id)",
		"ALTER TABLE public.outbox RENAME created_at TO other")
	timed(false)
	execute(t, database, "ALTER TABLE public.outbox RENAME other TO created_at")
	reader := newRole(t, database)
	grant := "GRANT SELECT ON public.outbox TO " + reader
	execute(t, database, output1(t, database, "grants", reader, "--for=reader"), "GRANT pg_monitor TO "+reader)
	expectOfReader := func(want, text string) {
		t.Helper()
		expectIll(t, as(t, database, reader), want, text, "--skip", "rights")
	}
	expectOfReader("note consumers",
		`, are not seen: public.outbox of "orders" > if it should, as the table's owner: `+grant)
	execute(t, database, "GRANT INSERT ON public.outbox TO "+reader)
	expectOfReader("warning consumers",
		`, are not seen: public.outbox of "orders" > as the table's owner: `+grant)
	execute(t, database, "UPDATE pgleases.consumers SET paused_at = now()")
	expectOfReader("note consumers, warning consumers", `rows that wait: unknown`)
	execute(t, database, "UPDATE pgleases.consumers SET paused_at = NULL", grant)
	expectOfReader("", "")
	execute(t, database, "ALTER TABLE public.outbox ENABLE ROW LEVEL SECURITY")
	expectOfReader("warning consumers", `public.outbox of "orders" > policies hide its rows from `+reader+
		": use a role with BYPASSRLS, or the table's owner")
	execute(t, database, "ALTER TABLE public.outbox DISABLE ROW LEVEL SECURITY", `
		CREATE SCHEMA "a b"; ALTER TABLE public.outbox SET SCHEMA "a b";
		UPDATE pgleases.consumers SET queue = '"a b".outbox'`)
	expectOfReader("warning consumers", `> as the table's owner: GRANT USAGE ON SCHEMA "a b" TO `+reader)
	expectIll(t, as(t, database, reader), "warning consumers", "") // which needs no other rights
	role := newRole(t, database)
	execute(t, database, output1(t, database, "grants", role))
	expectOfRole := func(want, text string) {
		t.Helper()
		expectIll(t, database, want, text, "--role", role)
	}
	expectOfRole("note rights", "can run clients, but no consumers, it lacks DELETE on consumer_blocked")
	execute(t, database, output1(t, database, "grants", role, "--for=consumers"))
	grant = `GRANT USAGE ON SCHEMA "a b" TO ` + role + `; GRANT SELECT, UPDATE, DELETE ON "a b".outbox TO ` + role
	const lacks = "it lacks rights on queue tables: "
	expectOfRole("note rights", "a role may not handle rows, "+lacks+
		`USAGE, SELECT, UPDATE, DELETE on "a b".outbox for `+role+` of "orders" > `+
		"if it runs this consumer, as the table's owner: "+grant)
	execute(t, database, `GRANT USAGE ON SCHEMA "a b" TO `+role+`; GRANT SELECT, INSERT ON "a b".outbox TO `+role)
	expectOfRole("note rights", `: UPDATE, DELETE on "a b".outbox for `+role+` of "orders"`) // it reads and inserts
	execute(t, database, grant)
	expectOfRole("", "")
	execute(t, database, `REVOKE UPDATE ON "a b".outbox FROM `+role, `GRANT UPDATE (payload) ON "a b".outbox TO `+role)
	expectOfRole("", "") // to lock rows, one column is enough
	execute(t, database, `REVOKE DELETE ON "a b".outbox FROM `+role)
	expectOfRole("fault rights", "a role cannot handle rows, "+lacks+`DELETE on "a b".outbox for `+role+
		` of "orders" > as the table's owner: GRANT DELETE ON "a b".outbox TO `+role)
	execute(t, database, `GRANT DELETE ON "a b".outbox TO `+role)
	execute(t, database, "REVOKE DELETE ON pgleases.consumer_blocked FROM "+role)
	expectOfRole("fault rights", "cannot run consumers, it lacks DELETE on consumer_blocked > "+
		"as the tables' owner, run what pgleases grants")
	execute(t, database, "ALTER FUNCTION pgleases.consumer_end RENAME TO elsewhere")
	expectOfRole("fault functions, fault rights",
		"missing: consumer_end > as their owner, run pgleases migrate --consumers")
}

// Whoever runs doctor may do more than the clients.
func TestDoctorChecksTheRolesOfLiveClients(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	execute(t, database, sound)
	output1(t, database, "migrate", "--consumers")
	role := newRole(t, database)
	execute(t, database, output1(t, database, "grants", role, "--for=consumers"),
		"UPDATE pgleases.clients SET role = '"+role+"'")
	expectIll(t, database, "", "")
	execute(t, database, "REVOKE DELETE ON pgleases.consumer_blocked FROM "+role)
	uses := `clients use the role "` + role + `", which `
	expectIll(t, database, "fault rights", uses+"cannot run consumers, it lacks DELETE on consumer_blocked > "+
		"as the tables' owner, run what pgleases grants "+role+" --for=consumers prints")
	execute(t, database, "GRANT DELETE ON pgleases.consumer_blocked TO "+role,
		"REVOKE UPDATE ON pgleases.partitions FROM "+role)
	expectIll(t, database, "fault rights", uses+"lacks UPDATE on partitions > "+
		"as the tables' owner, run what pgleases grants "+role+" prints")
	execute(t, database, outbox, orders, "GRANT UPDATE ON pgleases.partitions TO "+role,
		"GRANT UPDATE, DELETE ON public.outbox TO "+role)
	expectIll(t, database, "fault rights, note consumers",
		"it lacks rights on queue tables: SELECT on public.outbox for "+role+` of "orders"`)
	execute(t, database, "GRANT SELECT ON public.outbox TO "+role, "UPDATE pgleases.clients SET role = 'gone'")
	expectIll(t, database, "fault rights, note consumers", `clients use the role "gone", which does not exist`)
}

// The process of an expired client has ended, or is about to end, so its role needs no rights.
func TestDoctorIgnoresTheRolesOfExpiredClients(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	execute(t, database, sound, "UPDATE pgleases.clients SET role = current_user")
	output1(t, database, "migrate", "--consumers")
	lacking := newRole(t, database)
	execute(t, database, outbox, orders, `
		INSERT INTO pgleases.leases VALUES ('consumer/orders', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
			SELECT 'consumer/orders', n, 11, 11, 3, 'a', now() FROM generate_series(0, 1) AS n;
		INSERT INTO pgleases.clients (session, id, incarnation, expires_at, ttl, host, pid, started_at, role) VALUES
			(13, 'c', 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now(), '`+lacking+`'),
			(14, 'd', 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now(), 'dropped');
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number) VALUES
			('consumer/orders', 11, 1, now(), 1), ('consumer/orders', 13, 0, now(), 2), ('consumer/orders', 14, 0, now(), 3)`)
	expectIll(t, database, "fault rights, fault rights, fault rights, fault rights, note shares", "")
	execute(t, database, `
		UPDATE pgleases.clients SET expires_at = clock_timestamp() - interval '1 second' WHERE session > 12`)
	expectIll(t, database, "", "")
	// It is asked for.
	expectIll(t, database, "fault rights", `role "`+lacking+`" cannot run clients`, "--role", lacking)
}

func TestNoFreeConnectionHasItsOwnRemedy(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	role := newRole(t, database)
	execute(t, database, "ALTER ROLE "+role+" CONNECTION LIMIT 0")
	for _, verb := range []string{"list", "doctor"} {
		c := command.Run(t, command.Database(as(t, database, role)), verb)
		code := c.ExitCode()
		text := c.Printed()
		hasCause := strings.Contains(strings.ToLower(text), "no connection is left: see pg_stat_activity")
		if code == 0 || !hasCause || strings.Contains(text, "--database") {
			t.Errorf("%s: exit code %d, output %q", verb, code, text)
		}
	}
}

// newFilter returns the URL of a proxy whose filter changes or drops messages of the server.
func newFilter(t *testing.T, databaseURL string, filter func(kind byte, body []byte) (keep bool)) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	testkit.OK(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.OK(t, err)
	t.Cleanup(func() { listener.Close() })
	upstream := u.Host
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", upstream)
				if err != nil {
					return
				}
				defer server.Close()
				go func() {
					_, _ = io.Copy(server, client)
					server.Close()
				}()
				for head := make([]byte, 5); ; {
					if _, err := io.ReadFull(server, head); err != nil {
						return
					}
					body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
					if _, err := io.ReadFull(server, body); err != nil {
						return
					}
					if !filter(head[0], body) {
						continue
					}
					if _, err := client.Write(append(slices.Clone(head), body...)); err != nil {
						return
					}
				}
			}()
		}
	}()
	u.Host = listener.Addr().String()
	return u.String()
}

// A view or an index that is gone, and a verb that every role may execute, are found and repaired.
func TestDamagedSchemaIsFoundAndRepaired(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	const open = "every role may execute functions for operators, or for the tables' owner: "
	for damage, found := range map[string]string{
		"DROP VIEW pgleases.status":                              "views or indexes are missing: status",
		"DROP INDEX pgleases.overrides_once":                     "views or indexes are missing: overrides_once",
		"GRANT EXECUTE ON FUNCTION pgleases.drain TO PUBLIC":     open + "drain",
		"GRANT EXECUTE ON FUNCTION pgleases.emptied() TO PUBLIC": open + "emptied",
	} {
		execute(t, database, damage)
		expectIll(t, database, "fault functions", found)
		if done := output1(t, database, "migrate"); !strings.Contains(done, "replaced: ") {
			t.Errorf("%s: migrate prints %s", damage, done)
		}
		if done := output1(t, database, "migrate"); !strings.Contains(done, "nothing to do") {
			t.Errorf("%s: a second migrate prints %s", damage, done)
		}
	}
}
