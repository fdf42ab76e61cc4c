//go:build linux

package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/schedule"
)

// working runs a consumer and a scheduler of one client, whose role has the rights of Grants and
// those on the queue table q.outbox, until the test ends.
func working(t *testing.T, database string) (role string) {
	t.Helper()
	output1(t, database, "migrate", "--consumers", "--schedules")
	role = newRole(t, database)
	queue := consumer.Queue{Table: "q.outbox", Key: "customer", Partitions: 2}
	execute(t, database, output1(t, database, "grants", role, "--for=consumers"),
		output1(t, database, "grants", role, "--for=schedules"),
		"CREATE SCHEMA q", consumer.TableSQL("orders", "", queue),
		"GRANT USAGE ON SCHEMA q TO "+role, "GRANT SELECT, UPDATE, DELETE ON q.outbox TO "+role)
	pool := testkit.Pool(t, as(t, database, role))
	client := clients.New(t, pool, pgleases.WithoutMigration())
	handle := func(context.Context, pgx.Tx, consumer.Row[order]) error { return nil }
	c := testkit.Must(consumer.New(t.Context(), client, pool, "orders", queue,
		consumer.Each(handle), consumer.WithoutMigration()))(t)
	s := testkit.Must(schedule.New(t.Context(), client, pool, "reports", schedule.WithoutMigration()))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- c.Run(ctx) }()
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		<-ended
	})
	testkit.Becomes(t, testkit.Pool(t, database), "both have partitions", int64(2),
		"SELECT count(DISTINCT lease) FROM pgleases.partitions WHERE owner IS NOT NULL")
	return role
}

var (
	printedGrants = regexp.MustCompile(`^as the tables' owner, run what pgleases (grants \S+(?: --for=\S+)?) prints$`)
	printedGrant  = regexp.MustCompile(`^as the table's owner: (GRANT .*)$`)
)

// A right that is revoked from the role of a client that runs is a fault, until somebody has run
// what its remedy says.
func TestDoctorFindsRevokedRights(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	role := working(t, database)
	doctor := testkit.Must(admin.New(testkit.Pool(t, database)))(t)
	faults := func() (all []admin.Finding) {
		for _, f := range doctor.Doctor(t.Context(), admin.DoctorOptions{}) {
			if f.Check == "rights" && f.Level != admin.LevelOK {
				all = append(all, f)
			}
		}
		return all
	}
	if all := faults(); len(all) > 0 {
		t.Fatalf("before the first right is revoked: %+v", all)
	}
	for _, test := range []struct{ revoked, from, want string }{
		{"USAGE ON SCHEMA pgleases", "", "USAGE on schema pgleases"},
		{"SELECT ON pgleases.status", "", "SELECT on status"}, // a view
		{"UPDATE ON pgleases.clients", "", "UPDATE on clients"},
		{"ALL ON pgleases.partitions", "", "INSERT on partitions, SELECT on partitions, UPDATE on partitions"},
		{"INSERT (reason) ON pgleases.events", "",
			"INSERT on events (lease, cause, reason, from_id, to_id, partitions, generation)"},
		{"USAGE ON SEQUENCE pgleases.lock_tokens", "", "USAGE on lock_tokens"},
		{"UPDATE ON SEQUENCE pgleases.notified", "", "UPDATE on notified"},
		{"EXECUTE ON FUNCTION pgleases.trim_events", "", "EXECUTE on trim_events"},
		{"EXECUTE ON FUNCTION pgleases.heartbeat", ", PUBLIC", "EXECUTE on heartbeat"},
		{"UPDATE ON pgleases.consumers", "", "cannot run consumers, it lacks UPDATE on consumers"},
		{"ALL ON pgleases.consumers, pgleases.consumer_owners", "", "INSERT on consumer_owners"},
		{"EXECUTE ON FUNCTION pgleases.consumer_end", ", PUBLIC", "EXECUTE on consumer_end"},
		{"DELETE ON pgleases.schedules", "", "cannot run schedules, it lacks DELETE on schedules"},
		{"ALL ON pgleases.schedules, pgleases.jobs", "", "DELETE on jobs"},
		{"EXECUTE ON FUNCTION pgleases.schedule_poll", ", PUBLIC", "EXECUTE on schedule_poll"},
		{"USAGE ON SCHEMA q", "", "USAGE on q.outbox"},
		{"SELECT ON q.outbox", "", "SELECT on q.outbox"},
		{"UPDATE ON q.outbox", "", "UPDATE on q.outbox"},
		{"DELETE ON q.outbox", "", "DELETE on q.outbox"},
		{"ALL ON q.outbox", "", "SELECT, UPDATE, DELETE on q.outbox"},
	} {
		execute(t, database, "REVOKE "+test.revoked+" FROM "+role+test.from)
		all := faults()
		for _, f := range all {
			if f.Level != admin.LevelFault || !strings.Contains(f.Text, test.want) || !strings.Contains(f.Text, role) {
				t.Errorf("without %s: %+v, want a fault that names %q and %q", test.revoked, f, role, test.want)
			}
		}
		if len(all) != 1 {
			t.Errorf("without %s: %d faults: %+v", test.revoked, len(all), all)
		}
		for _, f := range all {
			if grants := printedGrants.FindStringSubmatch(f.Remedy); grants != nil {
				execute(t, database, output1(t, database, strings.Fields(grants[1])...))
			} else if grant := printedGrant.FindStringSubmatch(f.Remedy); grant != nil {
				execute(t, database, grant[1])
			} else {
				t.Errorf("the remedy cannot be run: %s", f.Remedy)
			}
		}
		if all := faults(); len(all) > 0 {
			t.Fatalf("after the remedy for %s: %+v", test.revoked, all)
		}
	}
}

// Doctor sees a fault even if it connects with the role of the clients, or may read little itself.
func TestDoctorFindsRevokedRightsAsAnyRole(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	role, reader := working(t, database), newRole(t, database)
	execute(t, database, output1(t, database, "grants", reader, "--for=reader"),
		"REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgleases FROM "+role,
		"REVOKE ALL ON q.outbox FROM "+role)
	for _, as := range []string{as(t, database, role), as(t, database, reader), database} {
		doctor, n := testkit.Must(admin.New(testkit.Pool(t, as)))(t), 0
		for _, f := range doctor.Doctor(t.Context(), admin.DoctorOptions{}) {
			if f.Check == "rights" && f.Level == admin.LevelFault && strings.Contains(f.Text, role) {
				n++
			}
		}
		if n != 4 { // one each for clients, consumers, schedules, and the queue table
			t.Errorf("as %s: %d faults of %s, want 4", as, n, role)
		}
	}
	execute(t, database, output1(t, database, "grants", role, "--for=schedules")) // so that its client can end
}

// A client that was evicted has no row, and goes on trying, so only its session shows its role.
func TestDoctorNotesRolesOfClientsWithoutRows(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	execute(t, database, sound)
	role := newRole(t, database)
	execute(t, database, output1(t, database, "grants", role))
	config := testkit.Must(pgx.ParseConfig(as(t, database, role)))(t)
	config.RuntimeParams["application_name"] = "pgleases"
	conn := testkit.Must(pgx.ConnectConfig(t.Context(), config))(t)
	defer conn.Close(context.Background())
	expectIll(t, database, "", "")
	execute(t, database, "REVOKE UPDATE ON pgleases.clients FROM "+role)
	expectIll(t, database, "note rights", `use the role "`+role+`", which no known client uses; `+
		`it lacks UPDATE on clients > if it runs clients of this schema, `+
		`as the tables' owner, run what pgleases grants `+role+` prints`)
	// So is a role of another schema's clients.
	execute(t, database, "REVOKE ALL ON ALL TABLES IN SCHEMA pgleases FROM "+role)
	expectIll(t, database, "", "")
}

// Doctor says whose rights it has not checked.
func TestDoctorSaysWhoseRightsItCannotSee(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	execute(t, database, sound)
	says := func(want string, flags ...string) {
		t.Helper()
		found, _ := examined(t, database, flags...)
		for _, f := range found {
			if f.Check == "rights" && f.Level == admin.LevelOK && strings.Contains(f.Text, want) {
				return
			}
		}
		t.Errorf("rights lacks %q: %+v", want, found)
	}
	says("a pool that logs in under a different role from its client, and what handlers use besides queue tables")
	says("the roles of clients are not checked, because --role names another", "--role", "postgres")
	conn := newConn(t, database)
	testkit.Must(conn.Exec(t.Context(), "BEGIN; LOCK TABLE pgleases.clients IN ACCESS EXCLUSIVE MODE",
		pgx.QueryExecModeSimpleProtocol))(t)
	testkit.Until(t, "doctor sees the lock", func() bool {
		found, _ := examined(t, database)
		return strings.Contains(strings.Join(ill(found), ", "), "fault table-locks")
	})
	says("the roles of clients are not checked, because a session locks a table")
}
