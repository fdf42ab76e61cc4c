//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/schedule"
	schedulesql "github.com/pgleases/pgleases/schedule/sql"
)

// output1 returns the output of a verb that must succeed.
func output1(t *testing.T, databaseURL string, args ...string) string {
	t.Helper()
	c := command.Run(t, command.Database(databaseURL), args...)
	if code := c.ExitCode(); code != 0 {
		t.Fatalf("pgleases %s: exit code %d: %s", strings.Join(args, " "), code, c.Printed())
	}
	return c.Printed()
}

// decoded returns the decoded JSON of a verb.
func decoded[T any](t *testing.T, databaseURL string, args ...string) T {
	t.Helper()
	return only[T](t, output1(t, databaseURL, append(args, "-o", "json")...))
}

// only decodes a text that must be the JSON of an exported type, whose fields internal/surface holds.
func only[T any](t *testing.T, text string) (value T) {
	t.Helper()
	err := json.Unmarshal([]byte(text), &value)
	if again, _ := asJSON(value, "  "); err != nil || again != text {
		t.Fatalf("it is not the JSON of %T: %v: %s, want %s", value, err, text, again)
	}
	return value
}

func newConn(t *testing.T, databaseURL string) *pgx.Conn {
	t.Helper()
	conn := testkit.Must(pgx.Connect(t.Context(), databaseURL))(t)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// fails runs a verb that must fail with a message.
func fails(t *testing.T, databaseURL, args, says string) {
	t.Helper()
	c := command.Run(t, command.Database(databaseURL), strings.Fields(args)...)
	expectExit(t, c, supervise.Failed, says)
}

// expectExit expects the exit code of a command, and texts in what it prints.
func expectExit(t *testing.T, c *command.Command, code int, texts ...string) {
	t.Helper()
	got := c.ExitCode()
	printed := c.Printed()
	isMissing := func(text string) bool { return !strings.Contains(printed, text) }
	if got != code || slices.ContainsFunc(texts, isMissing) {
		t.Errorf("%q: exit code %d and %q, want %d and %q", c.Args[1:], got, printed, code, texts)
	}
}

// expectPrinted checks that a text matches each pattern, in which ^ and $ are the ends of a line.
func expectPrinted(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		if !regexp.MustCompile("(?m)" + pattern).MatchString(text) {
			t.Errorf("the command does not print %s: %s", pattern, text)
		}
	}
}

// newRole creates a role, and drops it at the end of the test.
func newRole(t *testing.T, databaseURL string) string {
	t.Helper()
	role := "pgleases_test_" + strings.ToLower(rand.Text()[:10])
	execute(t, databaseURL, "CREATE ROLE "+role+" LOGIN PASSWORD '"+role+"'")
	pool := testkit.Pool(t, databaseURL)
	t.Cleanup(func() { // before the database goes
		for _, statement := range []string{"DROP OWNED BY " + role, "DROP ROLE " + role} {
			if _, err := pool.Exec(context.Background(), statement); err != nil {
				t.Error(err)
			}
		}
	})
	return role
}

// as returns a database's URL for a role.
func as(t *testing.T, databaseURL, role string) string {
	t.Helper()
	u := testkit.Must(url.Parse(databaseURL))(t)
	u.User = url.UserPassword(role, role)
	return u.String()
}

// unprintable fails the test if a text has a character that moves the cursor, ends a line within a
// name, or changes the direction of writing.
func unprintable(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%s prints %q: %q", what, r, text)
			return
		}
	}
}

const odd = "odd\n\x1b[2J\u202e\u009b" // ends the line, clears the screen, changes the direction

// The fleet consists of real processes: pgleases run.
func TestVerbsShowAFleet(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	env := command.Database(database)
	ids := []string{"one", "two", odd}
	for _, id := range ids {
		command.Run(t, env, "run", "fleet", "-n", "6", "--ttl", "1m", "--id", id, "--", "sleep", "600")
	}
	conn := newConn(t, database)
	testkit.Until(t, "two partitions each", func() (even bool) {
		const of = `
			SELECT count(*) = 3 AND min(n) = 2
			FROM (SELECT count(*) AS n FROM pgleases.partitions WHERE owner = target GROUP BY owner) AS counts`
		_ = conn.QueryRow(t.Context(), of).Scan(&even) // an error is that there are no tables yet
		return even
	})
	lease := decoded[[]admin.Lease](t, database, "list")[0]
	for _, m := range lease.Members {
		if !slices.Contains(ids, m.Client) || m.Share != 2 || m.Weight != 1 {
			t.Errorf("member %+v", m)
		}
	}

	list := output1(t, database, "list")
	expectPrinted(t, list, `^LEASE +COUNT +OWNED +MOVING +ORPHANS +MEMBERS +PLANNED +STATE\n`+
		`fleet +6 +6 +0 +0 +3 +\S+ ago +-$`)
	clients := output1(t, database, "clients")
	for _, id := range ids {
		expectPrinted(t, clients, `^`+regexp.QuoteMeta(shown(id))+` +live +\S+ +1m0s +1 +2 +\S+ +[0-9]+ +\S+ +no$`)
	}
	decoded[Build](t, database, "version")
	for _, c := range decoded[[]admin.Client](t, database, "clients") {
		if !slices.Contains(ids, c.ID) || c.TTL.Minutes() != 1 || c.Expired || c.PID == 0 || c.Session == 0 {
			t.Errorf("client %+v", c)
		}
	}
	l := decoded[admin.Lease](t, database, "describe", "fleet")
	if l.Name != "fleet" || len(l.Members) != 3 || len(l.Holdings) != 3 {
		t.Errorf("describe: %+v", l)
	}
	describe := output1(t, database, "describe", "fleet")
	n := len(regexp.MustCompile(`(?m)^[0-9,-]+ +2 +\S`).FindAllString(describe, -1))
	if n != 3 || !strings.HasPrefix(describe, "fleet: 6 partitions, generation ") {
		t.Errorf("describe has %d rows: %s", n, describe)
	}
	explain := output1(t, database, "explain", "fleet/5")
	expectPrinted(t, explain, `weight 1, so its share is 2.00 of 6 partitions among 3 working members; it owns 2\.`)
	e := decoded[admin.Explanation](t, database, "explain", "fleet/5")
	if !slices.Contains(ids, e.Owner) || e.Epoch < 1 || len(e.Reasons) == 0 {
		t.Errorf("explain: %+v", e)
	}
	for what, text := range map[string]string{
		"list":            list,
		"clients":         clients,
		"describe":        describe,
		"explain":         explain,
		"clients -o json": output1(t, database, "clients", "-o", "json"),
	} {
		unprintable(t, what, text)
	}
	expectIll(t, database, "", "") // doctor finds nothing
	fails(t, database, "describe fleat", `there is no lease "fleat": did you mean fleet?`)
	fails(t, database, "explain fleat/1", `there is no lease "fleat": did you mean fleet?`)
	var of int
	testkit.OK(t, conn.QueryRow(t.Context(), "SELECT pgleases.partition_for('customer-7', 6)").Scan(&of))
	e = decoded[admin.Explanation](t, database, "explain", "fleet", "--key", "customer-7")
	if e.Lease != "fleet" || e.Partition != of {
		t.Errorf("the partition of a key is %d, and explained: %+v", of, e)
	}
	fails(t, database, "explain fleet/5 --key customer-7", `"fleet/5" names a partition, and --key another one: `+
		`give pgleases explain fleet --key KEY, or leave --key out`)
	fails(t, database, "explain fleet",
		`lease "fleet" has partitions 0 to 5: give one, such as pgleases explain fleet/0, or a key with --key`)
	fails(t, database, "explain fleat --key customer-7", `there is no lease "fleat": did you mean fleet?`)
}

// On a terminal, names are cut, and states have colors unless NO_COLOR is set. Otherwise the table
// is whole and plain.
func TestTerminalGetsNarrowTablesWithColors(t *testing.T) {
	t.Parallel()
	database, long := pgtest.MigratedDatabase(t), strings.Repeat("worker", 12)
	execute(t, database, strings.ReplaceAll(sound, "'a'", "'"+long+"'"))
	execute(t, database, `
		UPDATE pgleases.clients SET metadata = '{"zone": "b\u0007", "address": "`+strings.Repeat("x", 300)+`"}'`)
	for _, noColor := range []string{"", "1"} {
		terminal := testkit.Must(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
		defer terminal.Close()
		fd := int(terminal.Fd())
		testkit.OK(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
		testkit.OK(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: 80, Row: 20}))
		number := testkit.Must(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
		side := testkit.Must(os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
		c := exec.Command(command.Built, "clients")
		c.Stdout = side
		c.Env = append(os.Environ(), "DATABASE_URL="+database, "TERM=xterm", "NO_COLOR="+noColor)
		testkit.OK(t, c.Run())
		side.Close()
		buffer := make([]byte, 4096)
		text := string(buffer[:testkit.Must(terminal.Read(buffer))(t)])
		if strings.Contains(text, long) || !strings.Contains(text, "…") {
			t.Errorf("the name is not cut: %q", text)
		}
		if strings.Contains(text, green+"live"+plain) != (noColor == "") {
			t.Errorf("with NO_COLOR=%s: %q", noColor, text)
		}
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); n > 80 && noColor != "" {
				t.Errorf("%d columns: %q", n, line)
			}
		}
	}
	for _, verb := range []string{"clients", "describe l"} {
		text := output1(t, database, strings.Fields(verb)...)
		if !strings.Contains(text, long) || strings.Contains(text, "\x1b") {
			t.Errorf("without a terminal: %q", text)
		}
		expectPrinted(t, text, ` METADATA +(FAST|STATE)\n.* address=x{22}…x{18} zone="b\\a" `)
	}
	execute(t, database, `UPDATE pgleases.clients SET metadata = '{"nested": [1]}'`)
	if text := output1(t, database, "clients"); !strings.Contains(text, ` nested=[1] `) {
		t.Errorf("metadata by hand: %q", text)
	}
}

func TestLocksListsHolders(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	pool := testkit.Pool(t, database)
	// A crashed client left this lock, and an open transaction prevents its removal.
	execute(t, database, "INSERT INTO pgleases.locks VALUES ('left', 1, 999, 1, true, 7, now())")
	guarded := testkit.Must(pool.Begin(t.Context()))(t)
	defer guarded.Rollback(context.Background())
	testkit.Must(guarded.Exec(t.Context(), "SELECT FROM pgleases.locks WHERE name = 'left' FOR UPDATE"))(t)
	client := testkit.Must(pgleases.NewClient(t.Context(), pool, pgleases.WithClientID(odd)))(t)
	defer client.Close(t.Context())
	for _, name := range []string{"plain", odd} {
		held := testkit.Must(lock.New(client, pool).Acquire(t.Context(), name))(t)
		defer held.Release(t.Context())
	}
	waiter := testkit.Must(pgleases.NewClient(t.Context(), pool, pgleases.WithClientID("waiter")))(t)
	defer waiter.Close(t.Context())
	waits, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := lock.New(waiter, pool).Acquire(waits, "plain")
		ended <- err
	}()
	defer func() { cancel(); <-ended }()
	testkit.Becomes(t, pool, "one waits", 1,
		"SELECT count(*)::int FROM pgleases.locks WHERE name = 'plain' AND token IS NULL")
	text := output1(t, database, "locks")
	unprintable(t, "locks", text)
	oddClient := regexp.QuoteMeta(shown(odd))
	expectPrinted(t, text,
		`^plain +exclusive +`+oddClient+` +\S+ +\S+ +\S+ +[0-9]+ +[0-9]+ +1$`,
		`^left +shared +- +\S+ +- +- +- +7 +0$`,
		`^`+oddClient+` +exclusive .*$`)
	all := decoded[[]admin.Lock](t, database, "locks", "pl")
	if len(all) != 1 || all[0].Name != "plain" || all[0].Waiting != 1 {
		t.Fatalf("locks with a prefix: %+v", all)
	}
	if h := all[0].Holders[0]; h.Client != odd || h.Token == 0 || h.TimeLeft <= 0 || h.TimeLeft > 6*time.Second {
		t.Errorf("locks with a prefix: %+v", all)
	}
}

// During an outage, watch keeps the last view.
func TestWatchContinuesThroughAnOutage(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	way := command.NewProxy(t, database)
	execute(t, database, sound)
	all := command.Run(t, command.Database(way.URL), "watch")
	fails(t, database, "watch none", `there is no lease "none"`)
	testkit.Until(t, "a look", func() bool { return strings.Contains(all.Printed(), "LEASE ") })
	expectPrinted(t, all.Printed(), `^20\d\d-\S+ \S+ UTC$`)
	way.Set(true, false)
	testkit.Until(t, "it tells of the outage, above what was seen", func() bool {
		_, after, found := strings.Cut(all.Printed(), "Set --database, DATABASE_URL")
		return found && strings.Contains(after, "LEASE ")
	})
	execute(t, database, "UPDATE pgleases.leases SET name = 'renamed'",
		"UPDATE pgleases.members SET lease = 'renamed'", "UPDATE pgleases.partitions SET lease = 'renamed'")
	way.Set(false, false)
	testkit.Until(t, "it looks again", func() bool { return strings.Contains(all.Printed(), "renamed ") })
	unprintable(t, "watch", all.Printed())
	all.Signal(syscall.SIGINT)
	if code := all.ExitCode(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
}

// An interrupt does not wait for the farewell of a server that hangs.
func TestInterruptEndsBesideAHungServer(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	timeguard.Run(t, func(t *timeguard.Try) {
		way := command.NewProxy(t, database)
		c := command.Run(t, command.Database(way.URL), "watch")
		testkit.Until(t, "a look", func() bool { return strings.Contains(c.Printed(), "LEASE ") })
		way.Set(false, true)
		testkit.Until(t, "it tells of the outage", func() bool {
			return strings.Contains(c.Printed(), "read a snapshot")
		})
		at := time.Now()
		c.Signal(syscall.SIGINT)
		c.ExitCode()
		if took, limit := time.Since(at), 5*time.Second; took > limit {
			t.Missed(at, limit, "it ended after %v", took)
		}
	})
}

func TestUnwritableOutputIsAFailure(t *testing.T) {
	t.Parallel()
	full := testkit.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	env := append(os.Environ(), command.Database(pgtest.MigratedDatabase(t))...)
	const done = "Only the output failed: if the verb changes something, the change was made\n"
	for _, args := range []string{
		"--version", "list", "clients -o json", "events", "schema", "help", "pause l --reason why",
	} {
		c := exec.Command(command.Built, strings.Fields(args)...)
		var told strings.Builder
		c.Env, c.Stdout, c.Stderr = env, full, &told
		if _ = c.Run(); c.ProcessState.ExitCode() != 125 || !strings.Contains(told.String(), "no space left") {
			t.Errorf("%s: exit code %d, want 125; told %q", args, c.ProcessState.ExitCode(), told.String())
		}
		if strings.HasPrefix(args, "pause") && !strings.Contains(told.String(), done) {
			t.Errorf("%s does not say that it was done: %q", args, told.String())
		}
	}
}

func TestVerbsNameTheRemedy(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	empty, database := pgtest.EmptyDatabase(t), pgtest.MigratedDatabase(t)
	role := newRole(t, database)
	direct, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t, testkit.Must(schedule.Schema())(t)))
	stopped := direct + "&default_transaction_read_only=on" // so writes are stopped
	restricted := as(t, database, role)
	for _, test := range []struct{ database, args, want string }{
		{empty, "list", "or run pgleases migrate"},
		{empty, "locks", "or run pgleases migrate"},
		{database, "list --schema none", `schema "none" is missing`},
		{restricted, "list", "pgleases grants ROLE --for=reader"},
		{restricted, "schedules pause reports close --reason why", "pgleases grants ROLE --for=schedule-operators"},
		{stopped, "schedules pause reports close --reason why",
			"default_transaction_read_only: give the address of the primary"},
		{restricted, "migrate --schema other", fmt.Sprintf("role %q may not create it", role)},
		{"postgres://127.0.0.1:1/none", "clients", "Set --database, DATABASE_URL or the PG* variables"},
		{"not a url", "clients", "cannot read the connection string"},
		{database, "list extra", "extra"},
		{database, "list -o xml", "give one of table, json"},
		{database, "describe", "LEASE is missing: pgleases describe LEASE"},
		{database, "describe none", `there is no lease "none": pgleases list shows`},
		{database, "describe one two", `"two" is one argument too many`},
		{database, "explain orders", `there is no lease "orders": pgleases list shows`},
		{database, "explain orders/-1", `there is no lease "orders/-1"`},
		{database, "explain orders/0", `there is no lease "orders": pgleases list shows`},
		{database, "grants r --for=all", "application, guard, reader, operator, schedules, schedule-operators"},
		{database, "doctor --skip all", "give names out of connect,"},
		{database, "doctor --long 0s", "give 1ms or more"},
		{database, "unlock plain", "locks"},
		{empty, "serve --listen 127.0.0.1:0", "or run pgleases migrate"},
		{database, "serve --listen nowhere", `cannot listen on "nowhere"`},
	} {
		fails(t, test.database, test.args, test.want)
	}
}

// A database that has answered is not named as one that does not answer.
func TestPGVariablesAreNotBlamedForOtherErrors(t *testing.T) {
	t.Parallel()
	config := testkit.Must(pgx.ParseConfig(pgtest.MigratedDatabase(t)))(t)
	env := []string{
		"DATABASE_URL=", "PGHOST=" + config.Host, fmt.Sprintf("PGPORT=%d", config.Port), "PGUSER=" + config.User,
		"PGPASSWORD=" + config.Password, "PGDATABASE=" + config.Database, "PGSSLMODE=disable",
		fmt.Sprintf("PGCONNECT_TIMEOUT=%.0f", testkit.Patience.Seconds()),
	}
	c := command.Run(t, env, "describe", "none")
	expectExit(t, c, 125, `there is no lease "none"`)
	if strings.Contains(c.Printed(), "PG*") {
		t.Errorf("it blames the variables: %s", c.Printed())
	}
}

// Package admin tests the rights of each purpose. This tests that the command prints them.
func TestMigrateAndGrantsServeRoles(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database, byText := pgtest.EmptyDatabase(t), pgtest.EmptyDatabase(t)
	const clockNow = `
		CREATE OR REPLACE FUNCTION "it's".schedule_clock() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'`
	for _, test := range []struct{ before, leases, schedules, consumers string }{
		{"SELECT", "created", "created", "created"},
		{`DELETE FROM "it's".server; ALTER TABLE "it's".leases DISABLE TRIGGER changed;
			DROP FUNCTION "it's".tidy; DROP FUNCTION "it's".consumer_pause;` + clockNow,
			"replaced: tidy, the row of server, the trigger changed", "replaced: schedule_clock",
			"replaced: consumer_pause"},
		// No client has used the tables, so they need no acceptance.
		{`UPDATE "it's".server SET accepted_timeline = 0`, "nothing to do", "nothing to do", "nothing to do"},
	} {
		execute(t, database, test.before)
		want := fmt.Sprintf(`schema "it's": version 1, %s
package schedule in schema "it's": version 1, %s
package consumer in schema "it's": version 1, %s
`, test.leases, test.schedules, test.consumers)
		if got := output1(t, database, "migrate", "--schedules", "--consumers", "--schema", "it's"); got != want {
			t.Errorf("migrate after %s: %q, want %q", test.before, got, want)
		}
	}
	execute(t, byText, "SET client_min_messages = warning",
		output1(t, byText, "schema", "--schedules", "--consumers", "--schema", "it's"))
	for _, url := range []string{database, byText} {
		// Without clients, the round trip is measured against a short TTL.
		expectIll(t, url, "", "", "--schema", "it's", "--skip", "round-trip")
	}
	execute(t, byText, clockNow)
	expectIll(t, byText, "warning functions", "schedule_clock", "--schema", "it's", "--skip", "round-trip")

	execute(t, database, `REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA "it's" FROM PUBLIC`)
	roles := make(map[string]string)
	for _, purpose := range admin.Purposes {
		role := newRole(t, database)
		roles[string(purpose)] = role
		grants := output1(t, database, "grants", role, "--for", string(purpose), "--schema", "it's")
		execute(t, database, grants)
	}
	in := func(purpose string, args ...string) (int, string) {
		c := command.Run(t, command.Database(as(t, database, roles[purpose])), append(args, "--schema", "it's")...)
		return c.ExitCode(), c.Printed()
	}
	file := testkit.Must(schedulesql.Files.ReadFile("grants/operator.sql"))(t)
	roles["the file alone"] = newRole(t, database)
	ofRole := strings.NewReplacer("pgleases_operator", roles["the file alone"], "pgleases", `"it's"`)
	execute(t, database, ofRole.Replace(string(file)))
	for _, verb := range []string{
		"schedules groups",
		"schedules list none",
		"schedules list none --only late",
		"schedules history none x",
		"jobs list none",
	} {
		for _, purpose := range []string{"reader", "schedules", "schedule-operators", "the file alone"} {
			if _, text := in(purpose, strings.Fields(verb)...); strings.Contains(text, "permission denied") {
				t.Errorf("%s as %s: %s", verb, purpose, text)
			}
		}
	}
	for _, purpose := range []string{"reader", "consumers", "consumer-operators"} {
		if code, text := in(purpose, "consumers"); code != 0 {
			t.Errorf("consumers as %s: %s", purpose, text)
		}
	}
	for purpose, want := range map[string]string{
		"consumer-operators": "there is no consumer",
		"consumers":          "--for=consumer-operators",
		"reader":             "--for=consumer-operators",
	} {
		if _, text := in(purpose, "consumers", "pause", "orders", "--reason", "why"); !strings.Contains(text, want) {
			t.Errorf("pause as %s: %s", purpose, text)
		}
	}
	for _, verb := range [][]string{{"locks"}, {"list"}} {
		for _, purpose := range []string{"reader", "application", "operator"} {
			if code, text := in(purpose, verb...); code != 0 {
				t.Errorf("%s as %s: %s", verb, purpose, text)
			}
		}
	}
	const run = "run reports --once --ttl 5m --schema it's -- true"
	expectExit(t, command.Run(t, command.Database(as(t, database, roles["application"])), strings.Fields(run)...), 0)
	for purpose, want := range map[string]int{
		"operator":    0,
		"reader":      supervise.Failed,
		"application": supervise.Failed,
	} {
		code, text := in(purpose, "freeze", "reports", "--dry-run")
		if code != want || (code == 0) != strings.Contains(text, "No partition would move.") {
			t.Errorf("dry run as %s: exit code %d, %s", purpose, code, text)
		}
	}
}

// A job has the arguments of a schedule.
type job struct{ N int }

func TestSchedulesArePausedResumedAndDeleted(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	pool := testkit.Pool(t, database)
	client := testkit.Must(pgleases.NewClient(t.Context(), pool))(t)
	defer client.Close(t.Context())
	s := testkit.Must(schedule.New(t.Context(), client, pool, "reports"))(t)
	kind := schedule.InTx(s, "close", func(_ context.Context, _ pgx.Tx, r schedule.Run[job]) error {
		if r.Args.N > 0 {
			return fmt.Errorf("job %d failed \x1b[2J\nbelow", r.Args.N)
		}
		return nil
	})
	canceled := make(chan struct{})
	export := schedule.AtLeastOnce(s, "export", func(ctx context.Context, _ schedule.Run[job]) error {
		select {
		case <-canceled:
		case <-ctx.Done():
		}
		return nil
	})
	// However late, each tick runs.
	all := []schedule.ScheduleOption{
		schedule.WithMissed(schedule.MissedAll),
		schedule.WithOverlap(schedule.OverlapBuffer),
	}
	for i, name := range []string{"good", "bad", odd} {
		testkit.OK(t, kind.Add(name, job{i}, schedule.Every(time.Second), all...))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	history := func(name string) []schedule.HistoryEntry {
		return decoded[[]schedule.HistoryEntry](t, database, "schedules", "history", "reports", name, "-n", "1000")
	}
	recorded := func(what, query string, args ...any) { // in the history
		t.Helper()
		testkit.Until(t, what, func() (is bool) {
			isThere := "SELECT count(*) > 0 FROM pgleases.history WHERE " + query
			testkit.OK(t, pool.QueryRow(t.Context(), isThere, args...).Scan(&is))
			return is
		})
	}
	recorded("one has run", "name = 'good'")
	recorded("one has failed", "name = 'bad'")
	first, bad := history("good"), history("bad")
	if first[len(first)-1].Outcome != "succeeded" {
		t.Errorf("history %+v", first)
	}
	if bad[0].Outcome != "failed" || !strings.Contains(bad[0].Error, "job 1 failed") {
		t.Errorf("history %+v", bad)
	}
	text := output1(t, database, "schedules", "history", "reports", "bad", "-n", "1")
	if strings.Count(text, "\n") != 2 || !strings.Contains(text, `"job 1 failed \x1b[2J"`+"\n") {
		t.Errorf("history: %s", text)
	}
	changed := func(args ...string) string {
		t.Helper()
		return output1(t, database, append(args, "--reason", "why", "--actor", "ann")...)
	}
	shows := func(pattern string, args ...string) {
		t.Helper()
		expectPrinted(t, output1(t, database, args...), pattern)
	}
	if text := changed("schedules", "pause", "reports", "good"); text != "pause reports good: done\n" {
		t.Errorf("pause prints %q", text)
	}
	list := ""
	testkit.Until(t, "no run is under way", func() bool {
		list = output1(t, database, "schedules", "list", "reports")
		return !regexp.MustCompile(`(?m)^good .* running `).MatchString(list)
	})
	unprintable(t, "schedules list", list)
	expectPrinted(t, list,
		`^good +close +\S.* +- +\S+ ago +paused \S+ ago by ann \(.+\): why$`,
		`^bad +close .* (running|due|planned|retrying).* \(last error: job 1 failed \\x1b\[2J\)$`,
		`^`+regexp.QuoteMeta(shown(odd))+` +close .* (running|due|planned|retrying).*$`)
	one := decoded[[]schedule.Schedule](t, database, "schedules", "list", "reports", "go")
	if len(one) != 1 || one[0].Name != "good" || one[0].PausedAt.IsZero() {
		t.Errorf("schedules list with a prefix: %+v", one)
	}
	shows(`\ASCHEDULE .*\nbad (.*\n)*.*There may be more`, "schedules", "list", "reports", "-n", "1")
	page := decoded[[]schedule.Schedule](t, database,
		"schedules", "list", "reports", "--after", "bad", "--only", "paused")
	if len(page) != 1 || page[0].Name != "good" {
		t.Errorf("those that are paused behind bad: %+v", page)
	}
	shows(`^reports +3 +\d+ +0 +1 +\d +\d+ +0$`, "schedules", "groups")
	decoded[[]admin.ScheduleGroup](t, database, "schedules", "groups")
	for args, want := range map[string]string{
		"jobs cancle reports 7":              `there is no verb "cancle": did you mean cancel? pgleases jobs --help`,
		"schedules list boks":                `there is no group "boks": pgleases schedules groups`,
		"jobs list report":                   `there is no group "report": did you mean reports?`,
		"schedules history reports goood":    "pgleases schedules list GROUP, schedules history",
		"schedules list reports --only dead": "give one of late, failing",
	} {
		fails(t, database, args, want)
	}
	before := history("good")[0] // the newest: the list is cut, so its length says nothing on a slow machine
	changed("schedules", "resume", "reports", "good")
	if text := changed("schedules", "resume", "reports", "good"); text != "resume reports good: it was not paused\n" {
		t.Errorf("a second resume prints %q", text)
	}
	recorded("it runs again", "name = 'good' AND until > $1", before.Until.Add(time.Second))
	number := func(text string) string {
		t.Helper()
		id, hint, _ := strings.Cut(text, "\n") // the hint is on stderr
		want := "pgleases: new jobs: 1; to see how it goes: pgleases jobs show reports " + id + "\n"
		if !regexp.MustCompile(`^[0-9]+$`).MatchString(id) || hint != want {
			t.Fatalf("%q is no number with a hint", text)
		}
		return id
	}
	ends := func(job, outcome string) string {
		t.Helper()
		recorded("job "+job+" is "+outcome, "job = $1::text::bigint AND outcome = $2", job, outcome)
		return job
	}
	failed := ends(number(changed("schedules", "trigger", "reports", "bad")), "failed")
	j := decoded[schedule.Job](t, database, "jobs", "show", "reports", failed)
	if fmt.Sprint(j.ID) != failed || j.Name != "bad" || j.Outcome != "failed" ||
		!strings.HasPrefix(j.Error, "job 1 failed") {
		t.Errorf("job %+v", j)
	}
	if !slices.ContainsFunc(history("bad"), func(e schedule.HistoryEntry) bool { return fmt.Sprint(e.Job) == failed }) {
		t.Errorf("the history lacks job %s: %+v", failed, history("bad"))
	}
	decoded[[]schedule.HistoryEntry](t, database, "jobs", "failed", "reports")
	shows(`^`+failed+` +bad +close +failed .* "job 1 failed \\x1b\[2J" \(\{"N": 1\}\)$`, "jobs", "failed", "reports")
	text = output1(t, database, "jobs", "show", "reports", failed)
	unprintable(t, "jobs show", text)
	expectPrinted(t, text, `^`+failed+` +bad +close .* failed .* "job 1 failed \\x1b\[2J"$`)
	if !strings.HasSuffix(text, "\narguments: {\"N\": 1}\n\njob 1 failed \\x1b[2J\nbelow\n") {
		t.Errorf("jobs show: %s", text)
	}
	text = output1(t, database, "jobs", "show", "reports", failed, "-o", "json")
	if strings.Contains(text, `"owner"`) || !strings.Contains(text, `"N": 1`) {
		t.Errorf("an ended job has an owner, or a failed one no arguments: %s", text)
	}
	testkit.Must(pool.Exec(t.Context(), "UPDATE pgleases.history SET outcome = 'unknown' WHERE outcome = 'failed'"))(t)
	fails(t, database, "jobs retry reports "+failed+" --reason why", "so it may have been done")
	retriedJob := ends(number(changed("jobs", "retry", "reports", failed, "--unknown")), "failed")
	shows(` ago +- +`+retriedJob+` +"job 1 failed`, "jobs", "show", "reports", failed) // RETRY OF, RETRIED AS
	shows(` ago +`+failed+` +- +"job 1 failed`, "jobs", "show", "reports", retriedJob)
	bad = history("bad")
	isUnknownTick := func(e schedule.HistoryEntry) bool { return e.Job == 0 && e.Outcome == "unknown" }
	tick := bad[slices.IndexFunc(bad, isUnknownTick)].Until.Format(time.RFC3339Nano)
	fails(t, database, "schedules retry reports bad --reason why "+tick, "so it may have been done")
	retried := ends(number(changed("schedules", "retry", "reports", "bad", tick, "--unknown")), "failed")
	good := history("good")
	done := good[slices.IndexFunc(good, func(e schedule.HistoryEntry) bool { return e.Outcome == "succeeded" })].Until
	from, to := done.Add(-time.Millisecond).Format(time.RFC3339Nano), done.Format(time.RFC3339Nano)
	again := ends(number(changed("schedules", "backfill", "reports", "good", from, to)), "succeeded")
	// Its arguments are not shown.
	shows(`(?s)^JOB.* ATTEMPTS .*\n`+again+` +good +close +.* succeeded +- +1 [^\n]*\n\z`,
		"jobs", "show", "reports", again)
	hangs := testkit.Must(export.Enqueue(t.Context(), job{}))(t)
	testkit.Until(t, "one runs", func() bool {
		text = output1(t, database, "jobs", "list", "reports")
		isRunning := regexp.MustCompile(`(?m)^\d+ +- +export .* running for \S+ +` + client.ID() + ` +0 +- +-$`)
		return isRunning.MatchString(text)
	})
	shows(` running +`+client.ID()+` +0 +\S+ ago +- +- +- +-\n`, "jobs", "show", "reports", fmt.Sprint(hangs))
	asAnn := []string{"--reason", "why", "--actor", "ann"}
	shows(` restart `+client.ID()+`: pgleases clients names its host and pid$`,
		append([]string{"jobs", "cancel", "reports", fmt.Sprint(hangs)}, asAnn...)...)
	close(canceled)
	later := testkit.Must(kind.Enqueue(t.Context(), job{}, schedule.WithDelay(time.Hour)))(t)
	waiting := fmt.Sprint(later)
	shows(`^`+waiting+` +- +close +\S.* planned +\S+ +0 +- +- +- +- +-$`, "jobs", "show", "reports", waiting)
	unique := schedule.WithUnique(odd, schedule.OnConflictReject)
	testkit.Must(kind.Enqueue(t.Context(), job{}, schedule.WithDelay(time.Hour), unique))(t)
	listed := func(args ...string) []schedule.Job {
		return decoded[[]schedule.Job](t, database, append([]string{"jobs", "list", "reports"}, args...)...)
	}
	for args, want := range map[string]int{
		"--kind none":      0,
		"--state retrying": 0,
		"odd":              1,
		"-n 1":             1,
	} {
		if got := listed(strings.Fields(args)...); len(got) != want {
			t.Errorf("jobs list %s: %+v", args, got)
		}
	}
	for _, args := range []string{"", "--kind close --state planned"} {
		got := listed(strings.Fields(args)...)
		if len(got) != 2 {
			t.Fatalf("jobs list %s: %+v", args, got)
		}
		if j := got[0]; j.ID != later || j.Kind != "close" || j.State != "planned" || j.Trigger != "job" {
			t.Errorf("jobs list %s: %+v", args, got)
		}
	}
	list = output1(t, database, "jobs", "list", "reports")
	unprintable(t, "jobs list", list)
	expectPrinted(t, list, `^\d+ +`+regexp.QuoteMeta(shown(odd))+` +close +\S.* planned +\S+ +0 +\S.* -$`)
	changed("jobs", "cancel", "reports", waiting)
	if j := decoded[schedule.Job](t, database, "jobs", "show", "reports", waiting); j.Outcome != "canceled" {
		t.Errorf("job %+v", j)
	}
	retryFailed := func(kind string) []string {
		return append([]string{"jobs", "retry-failed", "reports", kind, "2020-01-01T00:00:00Z"}, asAnn...)
	}
	shows(`nothing to retry: no job or tick of kind none failed since then, or all were retried; `+
		`kinds of failed jobs and failing schedules: close$`, retryFailed("none")...)
	fails(t, database, "jobs retry-failed reports close 2020-01-01T00:00:00Z --reason why",
		"because their outcome is unknown")
	testkit.Execute(t, pool, `
		UPDATE pgleases.history SET outcome = 'failed', kind = 'mail', retried = NULL
		WHERE job = $1::text::bigint`, retried)
	shows(`^(\d+)\npgleases: new jobs: 1; to see how it goes: pgleases jobs show reports \d+$`, retryFailed("mail")...)
	shows(`or all were retried; kinds of failed jobs and failing schedules: close$`, retryFailed("mail")...)
	changed("schedules", "delete", "reports", "good")
	asked := testkit.Value[[]string](t, pool, `
		SELECT array_agg(concat_ws(' ', cause, nullif(name, ''), CASE WHEN cause <> 'jobs retried' THEN row_id END)
			ORDER BY id)
		FROM pgleases.events
		WHERE lease = 'schedule/reports' AND reason = 'why' AND actor = concat('ann (', session_user, ')')`)
	want := []string{
		"schedule paused good",
		"schedule resumed good",
		"schedule triggered bad " + failed,
		"job retried bad " + retriedJob,
		"tick retried bad " + retried,
		"schedule backfilled good " + again,
		fmt.Sprint("job canceled ", hangs),
		"job canceled " + waiting,
		"jobs retried",
		"schedule deleted good",
	}
	if !slices.Equal(asked, want) {
		t.Errorf("written down is %q, want %q", asked, want)
	}
	for _, test := range []struct{ args, want string }{
		{"schedules pause reports good --reason why", "pgleases schedules list GROUP, schedules history"},
		{"schedules pause report bad --reason why", `there is no group "report": did you mean reports?`},
		{"schedules pause reports bad", "--reason is missing"},
		{"jobs retry-failed report close 2020-01-01T00:00:00Z --reason why",
			`there is no group "report": did you mean reports?`},
		{"jobs cancel reports " + failed, "--reason is missing"},
		{"schedules pause reports", "SCHEDULE is missing: pgleases schedules pause"},
		{"schedules trigger reports good --reason why", "pgleases schedules list GROUP, schedules history"},
		{"schedules backfill reports bad x y", `"x" is no time`},
		{"schedules backfill reports bad 2030-01-01T00:00:00Z", "TO is missing"},
		{"jobs show reports x", `"x" is no job`},
		{"jobs show reports 99999", "has no such job"},
		{"jobs retry-failed reports close x --reason why", `"x" is no time`},
		{"jobs list reports -n 0", "give 1 or more"},
		{"jobs list reports --state asleep", "planned, due, running, retrying, blocked"},
		{"schedules retry reports bad 2020-01-01T00:00:00Z --reason why", "is not in the history"},
		{"schedules list reports --schema none", "missing in this database"},
	} {
		fails(t, database, test.args, test.want)
	}
}
