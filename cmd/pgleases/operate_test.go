//go:build linux

package main

import (
	"context"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// newMember joins the lease "orders" with 4 partitions. Its TTL is longer than a slow machine
// stalls.
func newMember(t *testing.T, pool *pgxpool.Pool, id string) *pgleases.Lease {
	t.Helper()
	c := testkit.Must(pgleases.NewClient(t.Context(), pool, pgleases.WithClientID(id),
		pgleases.WithTTL(time.Minute), pgleases.WithHeartbeat(200*time.Millisecond)))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		_ = c.Close(ctx) // an error is that it was evicted
	})
	return testkit.Must(c.Lease(t.Context(), "orders", 4, pgleases.WithHandoffDelay(0)))(t)
}

func TestOperatorsChangeAFleet(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	pool := testkit.Pool(t, database)
	newMember(t, pool, "one")
	newMember(t, pool, odd)
	owned := func() (owned [2]int) { // by "one", and by the other
		const of = `
			SELECT count(*) FILTER (WHERE owner_id = 'one'), count(*) FILTER (WHERE owner_id <> 'one')
			FROM pgleases.partitions WHERE owner IS NOT NULL`
		testkit.OK(t, pool.QueryRow(t.Context(), of).Scan(&owned[0], &owned[1]))
		return owned
	}
	testkit.Until(t, "shares", func() bool { return owned() == [2]int{2, 2} })
	dryRun := output1(t, database, "drain", odd, "--dry-run")
	unprintable(t, "dry run", dryRun)
	oddClient := regexp.QuoteMeta(shown(odd))
	found := regexp.MustCompile(`^LEASE +PARTITIONS +FROM +TO +KIND\norders +[0-9,-]+ +` + oddClient +
		` +one +asked\n\n2 partitions would move\.\n$`).MatchString(dryRun)
	if !found || owned() != [2]int{2, 2} {
		t.Fatalf("owned are %v; dry run: %s", owned(), dryRun)
	}
	follower := command.Run(t, command.Database(database), "events", "orders", "-f", "-o", "json")

	output1(t, database, "drain", odd, "--reason", "its host\ngoes", "--actor", "maria", "--for", "2h", "--wait")
	if got := owned(); got[1] != 0 {
		t.Errorf("drained, and owned are %v", got)
	}
	output1(t, database, "cordon", odd, "--reason", "why")
	expectPrinted(t, output1(t, database, "clients"),
		`^`+oddClient+` +live, drained, cordoned +\S+ +1m0s .*\none +live +\S+ +1m0s `)
	output1(t, database, "uncordon", odd, "--reason", "why")
	overrides := output1(t, database, "overrides")
	unprintable(t, "overrides", overrides)
	expectPrinted(t, overrides, `^drain +`+oddClient+` +0 +\S+ ago +in \S+ +maria \(\S+\) +"its host\\ngoes"$`)
	undrained := output1(t, database, "undrain", odd, "--reason", "it stays")
	if !strings.HasPrefix(undrained, "undrain "+shown(odd)+": recorded") {
		t.Errorf("undrain prints %q", undrained)
	}
	testkit.Until(t, "shares again", func() bool { return owned() == [2]int{2, 2} })
	output1(t, database, "pause", "orders", "--reason", "why", "--wait")
	if got := owned(); got != [2]int{} {
		t.Errorf("paused, and owned are %v", got)
	}
	output1(t, database, "freeze", "orders", "--reason", "why")
	expectPrinted(t, output1(t, database, "list"), `^orders .* paused$`) // it is frozen, too
	output1(t, database, "unfreeze", "orders", "--reason", "why")
	decoded[admin.Change](t, database, "resume", "orders", "--reason", "why")
	output1(t, database, "pin", "orders/3", odd, "--reason", "why", "--for", "2h")
	pins := decoded[[]admin.Override](t, database, "overrides")
	if len(pins) != 1 {
		t.Fatalf("overrides %+v", pins)
	}
	if p := pins[0]; p.Verb != admin.VerbPin || p.Of() != "orders/3" || p.Client != odd || p.Until.IsZero() {
		t.Errorf("overrides %+v", pins)
	}
	output1(t, database, "unpin", "orders/3", "--reason", "why")
	output1(t, database, "evict", odd, "--reason", "it hangs")
	decoded[[]admin.Event](t, database, "events")
	events := output1(t, database, "events")
	unprintable(t, "events", events)
	expectPrinted(t, events,
		` joined +orders +- +one +- +- +-$`,
		` drain +- +\S+ +- +- +maria \(\S+\) +"its host\\ngoes"$`,
		` handed over +orders +\S+ +one +[0-9,-]+ +- +-$`,
		` pause +orders .* why$`,
		` evict +- .* it hangs$`)
	testkit.Until(t, "the follower is told of the resumption", func() bool {
		return strings.Contains(follower.Printed(), `"cause":"resume"`)
	})
	follower.Signal(syscall.SIGTERM)
	if code := follower.ExitCode(); code != 0 || strings.Count(follower.Printed(), `"cause":"pause"`) != 1 {
		t.Errorf("exit code %d of events -f: %s", code, follower.Printed())
	}
	cordoned := output1(t, database, "cordon", "later", "--reason", "x", "--for", "1s")
	if cordoned != "cordon later: recorded; no client \"later\" is running: it holds when one starts\n" {
		t.Errorf("cordon of a client that does not run: %s", cordoned)
	}
	role := newRole(t, database)
	operator := as(t, database, role)
	host := testkit.Must(os.Hostname())(t)
	for _, test := range []struct{ database, args, want string }{
		{database, "drain oen --reason x --for 2h --wait",
			"no client \"oen\" is running: nothing was done\ndid you mean one? pgleases clients shows all"},
		{database, "drain " + host + " --reason x --for 2h --wait",
			`is a host, not a client: its clients are $'odd\n\x1b[2J\u202e\u009b', one: drain each`},
		{database, "drain " + host + " --reason x", ": drain each\npgleases clients shows all\nA client is known if"},
		{database, "drain one", "--reason is missing"},
		{database, "drain", "CLIENT is missing: pgleases drain CLIENT"},
		{database, "explain orders/99999999999", `lease "orders" has partitions 0 to 3`},
		{database, "explain orders/4", `lease "orders" has partitions 0 to 3`},
		{database, "members", "Did you mean this?\n\tdescribe"},
		{operator, "migrate", `prints for schema "pgleases"; to create or change the tables, ` +
			`run it as the role that owns the schema, or as one that may create it`},
		{database, "schedules puase g s", `there is no verb "puase": did you mean pause?`},
		{database, "cordon oen --reason x", "did you mean one? pgleases clients shows all"},
		{database, "drop order --reason x", "did you mean orders? pgleases list shows all"},
		{database, "drian one", "Did you mean this?\n\tdrain"},
		{operator, "drain one --dry-run", "pgleases grants ROLE --for=operator"},
		{database, "drain one --reason x --for 0s", "give a time above 0, such as 2h"},
		{database, "drain one --reason x --for soon", "invalid duration"},
		{database, "drop orders", "--reason is missing"},
		{database, "drop orders --reason x --partitions 0", "--partitions 0: give 1 to 65536"},
		{database, "drop orders --reason x --for 2h", "unknown flag: --for"},
		{database, "pin orders/1 --reason x", "CLIENT is missing: pgleases pin LEASE/PARTITION CLIENT"},
		{database, "pin orders one --reason x", `"orders" names no partition`},
		{database, "events -n 0", "give 1 to 1000"},
		{operator, "cordon one --reason x", "pgleases grants ROLE --for=operator"},
	} {
		fails(t, test.database, test.args, test.want)
	}
	fails(t, database, "drain one --reason x", "--force") // the last one
	execute(t, database, output1(t, database, "grants", role, "--for=operator"))
	decoded[admin.DryRun](t, operator, "cordon", "one", "--dry-run")
	output1(t, operator, "cordon", "one", "--reason", "why")
	execute(t, database, "ALTER ROLE "+role+" SET default_transaction_read_only = on")
	fails(t, operator, "uncordon one --reason x", "give the address of the primary") // the server takes no writes
	execute(t, database, "UPDATE pgleases.overrides SET since = now() - interval '2 days'")
	findings, _ := examined(t, database, "--skip", "autovacuum")
	if got := strings.Join(ill(findings), " "); !strings.Contains(got, "note overrides") {
		t.Errorf("doctor finds %s", got)
	}
}

// A handoff ends partition by partition, and is one line.
func TestEventsOfAHandoffAreTogether(t *testing.T) {
	at := time.Date(2026, 3, 2, 8, 0, 0, 0, time.FixedZone("", 3600))
	event := func(after time.Duration, cause, from, to string, partition int) admin.Event {
		partitions := admin.Ranges{{partition, partition}}
		return admin.Event{At: at.Add(after), Lease: "orders", Cause: cause, From: from, To: to, Partitions: partitions}
	}
	events := []admin.Event{
		event(0, "handed over", "a", "c", 3),
		event(1, "handed over", "b", "c", 7),
		event(2, "handed over", "a", "c", 2),
		event(3, "handed over", "a", "c", 0),
		event(4, "handed over", "c", "a", 3),
		event(5, "handed over", "a", "c", 3),
		event(3*time.Second, "handed over", "b", "c", 8),
		event(3*time.Second, "given", "b", "c", 9),
		{At: at, Cause: "joined"},
		{At: at, Cause: "joined"},
	}
	var got []string
	for _, e := range together(events) {
		got = append(got, strings.Join(mapped(eventCells(e)[:6], toText), " "))
	}
	for to, reason := range map[string]string{
		"a": "it had lost its trust, or a newer process with its ID took over",
		"c": dash,
	} {
		if got := eventCells(event(0, "handed over", "a", to, 3))[7]; toText(got) != reason {
			t.Errorf("from a to %s: %v, want %s", to, got, reason)
		}
	}
	want := []string{
		"2026-03-02 07:00:00 handed over orders a c 0,2-3",
		"2026-03-02 07:00:00 handed over orders b c 7",
		"2026-03-02 07:00:00 handed over orders c a 3",
		"2026-03-02 07:00:00 handed over orders a c 3",
		"2026-03-02 07:00:03 handed over orders b c 8",
		"2026-03-02 07:00:03 given orders b c 9",
		"2026-03-02 07:00:00 joined - - - -",
		"2026-03-02 07:00:00 joined - - - -",
	}
	if !slices.Equal(got, want) || events[0].Partitions.Count() != 1 {
		t.Errorf("got %q", got)
	}
}

// With the role of an operator, drop deletes a lease without members, as its dry run showed. The
// lease is then created again with another number of partitions.
func TestDropForgetsALeaseThatWasLeft(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	pool := testkit.Pool(t, database)
	lease := newMember(t, pool, "one")
	testkit.OK(t, lease.Wait(t.Context()))
	testkit.OK(t, lease.Leave(t.Context()))
	role := newRole(t, database)
	execute(t, database, output1(t, database, "grants", role, "--for=operator"))
	operator := as(t, database, role)
	text := output1(t, operator, "drop", "orders", "--dry-run")
	if text != "4 partitions would be forgotten: the lease has no members.\n" {
		t.Fatalf("dry run: %s", text)
	}
	output1(t, operator, "drop", "orders", "--reason", "one will do", "--actor", "maria")
	if leases := decoded[[]admin.Lease](t, database, "list"); len(leases) != 0 {
		t.Errorf("%+v", leases)
	}
	expectPrinted(t, output1(t, database, "events", "orders", "-n", "1"),
		` dropped +orders +- +- +- +maria \(`+role+`\) +one will do\n\z`)
	execute(t, database, `
		INSERT INTO pgleases.events (cause, lease, partitions)
		SELECT 'given', 'orders', int4multirange(int4range(p, p + 1)) FROM generate_series(0, 3) AS p`)
	if events := decoded[[]admin.Event](t, database, "events", "orders", "-n", "2"); len(events) != 2 {
		t.Errorf("JSON has %v", events)
	}
	expectPrinted(t, output1(t, database, "events", "orders", "-n", "2"),
		`\AAT .*\n.* dropped .*\n.* given .* 0-3 .*\n\z`)
	other := command.Run(t, command.Database(database), "run", "orders", "--once", "--", "true")
	expectExit(t, other, supervise.Failed, "for 24 h it can be created again only with 4, not with 1")
	output1(t, operator, "drop", "orders", "--partitions", "1", "--reason", "one will do")
	output1(t, database, "run", "orders", "--once", "--", "true")
	if l := decoded[admin.Lease](t, database, "describe", "orders"); l.Partitions != 1 {
		t.Errorf("%+v", l)
	}
}

// After a whole fleet was killed, the remedy of the error makes drop possible.
func TestDropForgetsALeaseOfAKilledFleet(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	fleet := command.Run(t, command.Database(database), "run", "orders", "--ttl", "2s", "--", "sleep", "600")
	conn := newConn(t, database)
	testkit.Until(t, "it works", func() (works bool) {
		const of = "SELECT count(owner) = 1 FROM pgleases.partitions"
		_ = conn.QueryRow(t.Context(), of).Scan(&works) // an error is that there are no tables yet
		return works
	})
	fleet.Signal(syscall.SIGKILL)
	fleet.ExitCode()
	drop := func() (int, string) {
		c := command.Run(t, command.Database(pgtest.OwnerURL(database)),
			"drop", "orders", "--reason", "nobody comes again")
		return c.ExitCode(), c.Printed()
	}
	advice := "pgleases run tidy --once -- sleep 60"
	if code, text := drop(); code != supervise.Failed || !strings.Contains(text, advice) {
		t.Fatalf("exit code %d: %s", code, text)
	}
	command.Run(t, command.Database(database), strings.Fields(strings.TrimPrefix(advice, "pgleases "))...)
	testkit.Until(t, "it is dropped", func() bool { code, _ := drop(); return code == 0 })
}

// No verb writes "1 partitions".
func TestCountsOfOneAreSingular(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	execute(t, database, `
		INSERT INTO pgleases.clients
		VALUES (11, 'a', 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now());
		INSERT INTO pgleases.identities VALUES ('a', 1, 1, now());
		INSERT INTO pgleases.leases VALUES ('an l', 1, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		VALUES ('an l', 11, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		VALUES ('an l', 0, 11, 11, 3, 'a', now())`)
	plural := regexp.MustCompile(`\b1 (partitions|clients|members|working members)\b`)
	prints := func(text, want string) {
		t.Helper()
		if !strings.Contains(text, want) || plural.MatchString(text) {
			t.Errorf("it prints %s, want %q", text, want)
		}
	}
	prints(output1(t, database, "describe", "an l"), "an l: 1 partition, generation 5")
	const share = "its share is 1.00 of 1 partition among 1 working member; it owns 1."
	prints(output1(t, database, "explain", "an l/0"), share)
	prints(output1(t, database, "explain", "an l"), share)
	prints(output1(t, database, "drain", "a", "--force", "--dry-run"), "\n1 partition would move.\n")
	doctor := command.Run(t, command.Database(database), "doctor")
	doctor.ExitCode() // it finds that the server was not accepted
	prints(doctor.Printed(), "1 client, with one TTL")
	waiting := command.Run(t, command.Database(database), "pause", "an l", "--reason", "why", "--wait")
	testkit.Until(t, "it says what it waits for", func() bool {
		return strings.Contains(waiting.Printed(), "still owned")
	})
	waiting.Signal(syscall.SIGINT)
	waiting.ExitCode()
	prints(waiting.Printed(), "pgleases: 1 partition still owned: waits for an l 0, which a (host host, pid 7) owns; "+
		"pgleases explain 'an l/0' says why\n")
	prints(waiting.Printed(), "take it back with pgleases resume 'an l' --reason '...'")
	execute(t, database, "DELETE FROM pgleases.members", "DELETE FROM pgleases.clients",
		"UPDATE pgleases.partitions SET owner = NULL, target = NULL")
	prints(output1(t, database, "drop", "an l", "--dry-run"),
		"1 partition would be forgotten: the lease has no members.\n")
}

// With --wait, pause ends when its override is taken back.
func TestWaitEndsWithTheOverride(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	pool := testkit.Pool(t, database)
	lease := newMember(t, pool, "one")
	for len(lease.Values()) == 0 {
		testkit.OK(t, lease.Wait(t.Context()))
	}
	hold := lease.Hold(t.Context())
	defer hold.Release()
	pause := strings.Fields("pause orders --reason maintenance --wait")
	waiting := command.Run(t, command.Database(database), pause...)
	interrupted := command.Run(t, command.Database(database), pause...)
	says := func(c *command.Command, want string) {
		t.Helper()
		testkit.Until(t, "it says "+want, func() bool { return strings.Contains(c.Printed(), want) })
	}
	says(waiting, "waits for orders 0-3, which one (host ")
	says(interrupted, "pgleases explain orders/0")
	interrupted.Signal(syscall.SIGINT)
	interrupted.ExitCode()
	expectPrinted(t, interrupted.Printed(), `the override remains; take it back with pgleases resume orders --reason`)
	output1(t, database, "resume", "orders", "--reason", "never mind")
	if code := waiting.ExitCode(); code != supervise.Failed || !strings.Contains(waiting.Printed(), "taken back") {
		t.Errorf("exit code %d: %s", code, waiting.Printed())
	}
}

// The error for an invalid connection string does not show the password.
func TestErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	escaped := regexp.MustCompile("@cret|/cret|:no")
	for _, database := range []string{
		"postgres://u:se/cret@127.0.0.1:1/d",
		"postgres://u:se@cret@127.0.0.1:1/d",
		"postgres://u:cret@127.0.0.1:no/d",
		"host=127.0.0.1 port=1 password='se cret'",
		"postgres://u:cret@127.0.0.1:1/d?sslmode=bogus",
	} {
		for _, verb := range []string{"list", "doctor", "migrate"} {
			c := command.Run(t, command.Database(database), verb)
			if code := c.ExitCode(); code == 0 || strings.Contains(c.Printed(), "cret") {
				t.Errorf("%s of %s: exit code %d: %s", verb, database, code, c.Printed())
			}
			want := escaped.MatchString(database)
			if strings.Contains(c.Printed(), "@ as %40, : as %3A, / as %2F") != want {
				t.Errorf("%s of %s, want escapes to be named: %v: %s", verb, database, want, c.Printed())
			}
		}
	}
}

// A server that refuses the login answers: its remedy is not to start one.
func TestARefusedLoginHasItsOwnRemedy(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t))
	name := testkit.Value[string](t, testkit.Pool(t, database), "SELECT current_database()::text")
	none := strings.Replace(database, name, "none", 1)
	remedy := "the server answers, but has no such database: correct its name in --database"
	fails(t, none, "list", remedy)
	examine := func(url string) admin.Finding {
		t.Helper()
		found, _ := examined(t, url)
		if len(found) != 1 || strings.ContainsAny(found[0].Text, "\n\t") {
			t.Fatalf("doctor of %s: %+v", url, found)
		}
		return found[0]
	}
	if f := examine(none); !strings.HasPrefix(f.Remedy, remedy) {
		t.Errorf("doctor: %+v", f)
	}
	if f := examine("postgres://127.0.0.1:1/none"); !strings.Contains(f.Text, "refused") {
		t.Errorf("doctor: %+v", f)
	}
	for code, remedy := range map[string]string{
		"42501": "the server answers, but the role may not connect to the database: GRANT CONNECT ON DATABASE",
		"55000": "the server answers, but the database allows no connections: ALTER DATABASE",
		"08P01": "a pooler answers, but refuses the connection: correct the database or the user in --database",
	} {
		refuses := newRefuser(t, code)
		c := command.Run(t, command.Database(refuses), "list")
		c.ExitCode()
		text := c.Printed()
		if !strings.Contains(text, remedy) {
			t.Errorf("%s: %s", code, text)
		}
		if strings.Contains(text, "pgleases grants") || strings.Contains(text, "that answers") {
			t.Errorf("%s has the remedy of another error: %s", code, text)
		}
		if f := examine(refuses); !strings.HasPrefix(f.Remedy, remedy) {
			t.Errorf("doctor, %s: %+v", code, f)
		}
	}
	const refused = "the server answers, but refuses the login: correct the user or the password in --database"
	for _, code := range []string{"28P01", "28000"} {
		if err := unreachable(&pgconn.PgError{Code: code}); !strings.Contains(err.Error(), refused) {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// newRefuser returns the URL of a server that refuses each connection with a SQLSTATE.
func newRefuser(t *testing.T, code string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.OK(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			server := pgproto3.NewBackend(conn, conn)
			_, _ = server.ReceiveStartupMessage()
			server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: "no"})
			_ = server.Flush()
			conn.Close()
		}
	}()
	return "postgres://u@" + listener.Addr().String() + "/d?sslmode=disable"
}

// After an outage, events --follow continues without duplicates. It reports the outage and its end
// once. It also continues on a server that lacks the latest events.
func TestEventsFollowContinuesAfterAnOutage(t *testing.T) { followOverOutage(t, false) }

func TestEventsFollowContinuesAfterSilence(t *testing.T) { followOverOutage(t, true) }

// followOverOutage is a test, and not a subtest, because parallel subtests run last, and it waits
// for seconds.
func followOverOutage(t *testing.T, frozen bool) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	happens := func(what string) {
		execute(t, database, "INSERT INTO pgleases.events (cause, actor) VALUES ('"+what+"', 'test')")
	}
	way := command.NewProxy(t, database)
	late, err := testkit.Pool(t, database).Begin(t.Context())
	if err == nil {
		_, err = late.Exec(t.Context(), "INSERT INTO pgleases.events (cause, actor) VALUES ('late', 'test')")
	}
	testkit.OK(t, err)
	happens("first")
	follower := command.Run(t, command.Database(way.URL), "events", "-f", "-o", "json")
	const lost, again = "The command tries again each second", "the events start again"
	told := func(what string, n int) func() bool {
		return func() bool { return strings.Count(follower.Printed(), what) == n }
	}
	testkit.Until(t, "it is told of what was there", told(`"first"`, 1))
	way.Set(!frozen, frozen)
	happens("meanwhile")
	testkit.Until(t, "it says that the connection was lost", told(lost, 1))
	way.Set(false, false)
	testkit.Until(t, "it goes on", told(`"meanwhile"`, 1))
	testkit.Until(t, "it says so", told(again, 1))
	happens("after")
	testkit.Until(t, "it goes on further", told(`"after"`, 1))
	testkit.OK(t, late.Commit(t.Context()))
	testkit.Until(t, "it is told of what was committed after others", told(`"late"`, 1))
	// As on a standby that was behind.
	execute(t, database, `
		DELETE FROM pgleases.events WHERE cause = 'after';
		INSERT INTO pgleases.events (cause, actor) VALUES ('promoted', 'test')`)
	testkit.Until(t, "it says so", told(again, 2))
	testkit.Until(t, "it goes on", told(`"promoted"`, 1))
	follower.Signal(syscall.SIGINT)
	if code := follower.ExitCode(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
	for _, what := range []string{"first", "meanwhile", "after", "promoted"} {
		if !told(`"`+what+`"`, 1)() {
			t.Errorf("%s is not told once: %s", what, follower.Printed())
		}
	}
}

// A process that was frozen until it was evicted does not join a lease again that was replaced
// meanwhile, and a dry run and a refusal change nothing.
func TestFrozenProcessOfAReplacedLeaseEnds(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	old := command.Run(t, command.Database(database), "run", "orders", "-n", "2", "--ttl", "2s", "--", "sleep", "600")
	conn := newConn(t, database)
	finds := func(what, query string) {
		t.Helper()
		testkit.Until(t, what, func() (is bool) {
			testkit.OK(t, conn.QueryRow(t.Context(), query).Scan(&is))
			return is
		})
	}
	finds("it works", "SELECT count(owner) = 2 FROM pgleases.partitions")
	replace := []string{"replace", "orders", "--by", "orders-4", "--partitions", "4"}
	refused := func(args ...string) {
		t.Helper()
		c := command.Run(t, command.Database(pgtest.OwnerURL(database)), append(replace, args...)...)
		expectExit(t, c, supervise.Failed, `lease "orders" has members: `)
	}
	refused("--dry-run")
	refused("--reason", "more keys")
	old.Signal(syscall.SIGSTOP)
	command.Run(t, command.Database(database), "run", "orders-4", "-n", "4", "--ttl", "2s", "--", "sleep", "600")
	finds("it is evicted", "SELECT count(*) = 0 FROM pgleases.members WHERE lease = 'orders'")
	dry := output1(t, database, append(replace, "--dry-run")...)
	if dry != "orders would be closed: it has no members. "+
		"Its 2 partitions would be forgotten, and orders-4 would have 4 partitions.\n" {
		t.Errorf("dry run: %s", dry)
	}
	finds("the dry run changed nothing",
		"SELECT partitions = 2 AND successor IS NULL FROM pgleases.leases WHERE name = 'orders'")
	output1(t, database, append(replace, "--reason", "more keys", "--actor", "maria")...)
	old.Signal(syscall.SIGCONT)
	expectExit(t, old, supervise.Failed, `lease was replaced by "orders-4"`)
	late := command.Run(t, command.Database(database), "run", "orders", "-n", "1", "--once", "--", "true")
	expectExit(t, late, supervise.Failed, `lease was replaced by "orders-4"`)
	events := output1(t, database, "events", "-n", "50")
	expectPrinted(t, events, ` replaced +orders .* maria \(.*more keys$`, ` replaces +orders-4 .* maria \(.*more keys$`)
}

// Members that have expired do not count as clients that work on a lease, and partitions that stay
// where they are do not count as moves.
func TestDryRunOfLastLivingClientWarns(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	execute(t, database, `
		INSERT INTO pgleases.clients (session, id, incarnation, expires_at, ttl, host, pid, started_at) VALUES
			(11, 'a', 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now()),
			(12, 'dead', 1, clock_timestamp() - interval '1 s', '1 hour', 'host', 8, now());
		INSERT INTO pgleases.identities (id, incarnation, process, used_at)
		VALUES ('a', 1, 1, now()), ('dead', 1, 2, now());
		INSERT INTO pgleases.leases
			(name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
		VALUES ('orders', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		VALUES ('orders', 11, 1, now(), 1), ('orders', 12, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since) VALUES
			('orders', 0, 11, 12, 3, 'a', now()), ('orders', 1, 12, 12, 3, 'dead', now())`)
	const warning = `client "a" is the last that works on: orders`
	refused := command.Run(t, command.Database(database), "drain", "a", "--dry-run")
	expectExit(t, refused, supervise.Failed, warning)
	forced := command.Run(t, command.Database(database), "drain", "a", "--force", "--dry-run")
	expectExit(t, forced, 0, "warning: without --force this is refused", warning)
	frozen := output1(t, database, "freeze", "orders", "--dry-run")
	// A handoff that is canceled does not count as a move.
	expectPrinted(t, frozen, `orders +0 +a +a +kept\n\nNo partition would move\.\n\z`)
}
