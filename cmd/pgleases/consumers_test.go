//go:build linux

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// An order is a row of a queue.
type order struct{ Customer string }

func TestConsumersAreShownAndChanged(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	pool := testkit.Pool(t, database)
	for _, args := range []string{
		"consumers",
		"consumers pause orders --reason why",
		"consumers delete orders --reason why",
	} {
		fails(t, database, args, "run pgleases migrate --consumers")
	}
	output1(t, database, "migrate", "--consumers")
	queue := consumer.Queue{Table: "public.outbox", Key: "customer", Partitions: 4, Time: "created_at"}
	execute(t, database, consumer.TableSQL("orders", "", queue))
	client := testkit.Must(pgleases.NewClient(t.Context(), pool))(t)
	defer client.Close(t.Context())
	var allKnown atomic.Bool
	handle := func(_ context.Context, _ pgx.Tx, row consumer.Row[order]) error {
		if strings.HasPrefix(row.Key, "bad") && !allKnown.Load() {
			return errors.New("no such customer \x1b[2J\nbelow")
		}
		return nil
	}
	c := testkit.Must(consumer.New(t.Context(), client, pool, "orders", queue,
		consumer.Each(handle), consumer.WithMaxAttempts(1, consumer.BackoffPolicy{})))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	healthy := decoded[[]admin.Consumer](t, database, "consumers")[0]
	if healthy.BlockedKeys != 0 || healthy.BlockedFor != 0 {
		t.Errorf("before any row: %+v", healthy)
	}
	execute(t, database, `
		INSERT INTO public.outbox (customer, payload) VALUES ('good', '1'), ('bad 1', '2'), (E'bad \n', '3')`)
	testkit.Becomes(t, pool, "two rows block their keys", int64(2),
		"SELECT count(*) FROM pgleases.consumer_blocked WHERE next_at = 'infinity'")

	all := decoded[[]admin.Consumer](t, database, "consumers")
	if len(all) != 1 {
		t.Fatalf("consumers: %+v", all)
	}
	one := all[0]
	if one.Name != "orders" || one.Queue != "public.outbox" || one.Partitions != 4 || one.Owned != 4 ||
		*one.Waiting != 2 || one.Oldest != nil || one.BlockedKeys != 2 || one.BlockedFor <= 0 ||
		*one.Unhandled != 0 || !one.PausedAt.IsZero() {
		t.Errorf("consumers: %+v", all)
	}
	text := output1(t, database, "consumers", "show", "orders")
	unprintable(t, "show", text)
	expectPrinted(t, text, `\norders +public.outbox +4/4 +2 +- +2 +\S+ +0 +0 +-\n\nROW .*(\n3 +"bad \\n" .*)?`+
		`\n2 +bad 1 +\d +\S+ +1 +- +blocked +"no such customer \\x1b\[2J"\n(3 +"bad \\n" |\z)`)
	const meant = "did you mean orders?"
	const meantLease = "did you mean consumer/orders?"
	for _, test := range []struct{ args, want string }{
		{"consumers show order", `there is no consumer "order": ` + meant + ` pgleases consumers shows all`},
		{"consumers pause order --reason why", meant},
		{"consumers show consumer/orders", meant},
		{"consumers pause consumer/orders --reason why", meant},
		{"pause orders --reason why",
			`there is no lease "orders", but a consumer: pgleases consumers pause orders --reason '...'`},
		{"resume orders --reason why", "pgleases consumers resume orders --reason"},
		{"pause orders --dry-run", "pgleases consumers pause orders"},
		{"events orders",
			`there is no lease "orders", and no event of one: ` + meantLease + ` pgleases list shows all`},
		{"describe orders", meantLease},
		{"explain orders", meantLease},
		{"explain orders/1", meantLease},
		{"drop orders --reason why", meantLease},
		{"consumers list", `there is no verb "list": pgleases consumers lists them`},
		{"consumers pasue orders", `did you mean pause?`},
		{"consumers skip orders 1 --reason why", `row 1 of consumer "orders" blocks no key`},
		{"consumers skip orders x --reason why",
			`"x" is no row: give the ID of a row that pgleases consumers show orders lists`},
		{"consumers skip orders 2", "--reason is missing"},
		{"consumers retry orders --reason why", "ID is missing"},
		{"consumers retry orders 2 --all --reason why", "row 2 and --all are given: leave one out"},
		{"consumers return orders --reason why", "ID is missing: give the ID of a row, or --all"},
	} {
		fails(t, database, test.args, test.want)
	}
	changes := func(want string, args ...string) {
		t.Helper()
		args = slices.Concat([]string{"consumers"}, args, []string{"--reason", "why", "--actor", "maria"})
		if text := output1(t, database, args...); !strings.HasPrefix(text, want) {
			t.Errorf("%v: %s, want %s", args, text, want)
		}
	}
	changes("pause orders: done", "pause", "orders")
	changes("pause orders: it is paused already", "pause", "orders")
	fails(t, database, "resume consumer/orders --reason why", `lease "consumer/orders" is not paused, `+
		`but its consumer: pgleases consumers resume orders --reason '...'`)
	listed := func(state string) {
		t.Helper()
		expectPrinted(t, output1(t, database, "list"), `\nconsumer/orders .* `+state+`\n\z`)
	}
	listed(" consumer paused")
	output1(t, database, "freeze", "consumer/orders", "--reason", "why")
	listed(" frozen, consumer paused")
	output1(t, database, "unfreeze", "consumer/orders", "--reason", "why")
	changes("skip orders 2: recorded", "skip", "orders", "2")
	expectPrinted(t, output1(t, database, "consumers", "show", "orders"),
		`paused \S+ ago by maria \(\w+\): why\n(.*\n)+2 .* 1 +- +skipped by maria (.*\n)+`+
			`.* row skipped +2 +1 +maria .* why\n.* unfreeze +- +- .*\n.* freeze +- +- .*\n`+
			`.* consumer paused +- +- +maria `)
	changes("resume orders: done", "resume", "orders")
	output1(t, database, "pause", "consumer/orders", "--reason", "why", "--wait")
	expectPrinted(t, output1(t, database, "consumers"), ` 0/4 .* lease paused\n`)
	listed(" paused")
	output1(t, database, "resume", "consumer/orders", "--reason", "why")
	if text := output1(t, database, "consumers"); strings.Contains(text, "lease paused") {
		t.Errorf("its lease is not paused: %s", text)
	}
	changes("resume orders: it is not paused", "resume", "orders")
	testkit.Becomes(t, pool, "the row is in the dead letters", "2",
		"SELECT coalesce(string_agg(id::text, ' '), '') FROM pgleases.consumer_dead_letters")
	allKnown.Store(true) // a change of the row could be found before the retry
	changes("retry orders: 1 row due now; within a minute if an outage has paused its partition; "+
		"after resume if the consumer is paused", "retry", "orders", "--all")
	testkit.Becomes(t, pool, "the row is handled", int64(0), "SELECT count(*) FROM public.outbox")
	testkit.Becomes(t, pool, "no row is blocked", int64(0), "SELECT count(*) FROM pgleases.consumer_blocked")
	changes("retry orders: no row is blocked", "retry", "orders", "--all")
	one = decoded[admin.Consumer](t, database, "consumers", "show", "orders")
	if one.DeadLetters != 1 || len(one.Changes) != 8 {
		t.Fatalf("show: %+v", one)
	}
	if c := one.Changes; c[0].Cause != "rows retried" || *c[0].Rows != 1 || *c[4].ID != 2 {
		t.Errorf("show: %+v", one)
	}
	fails(t, database, "consumers delete orders --reason why", `processes run the consumer "orders"`)
	expectPrinted(t, output1(t, database, "consumers", "show", "orders"),
		`\n\nDEAD LETTER +KEY +PARTITION +AT +ATTEMPTS +ERROR\n`+
			`2 +bad 1 +\d +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +1 +"no such customer \\x1b\[2J"\n\nAT +CHANGE `)
	role := newRole(t, database)
	execute(t, database, output1(t, database, "grants", role, "--for=reader"))
	fails(t, as(t, database, role), "consumers return orders 2 --reason why", "--for=consumer-operators")
	execute(t, database, output1(t, database, "grants", role, "--for=consumer-operators"))
	for _, right := range []string{"SELECT", "INSERT"} { // which no purpose grants
		fails(t, as(t, database, role), "consumers return orders 2 --reason why",
			"permission denied for table outbox (SQLSTATE 42501)\nas the table's owner: "+
				"GRANT SELECT, INSERT ON public.outbox TO your role, and USAGE on its schema\n")
		execute(t, database, "GRANT "+right+" ON public.outbox TO "+role)
	}
	letters := decoded[admin.Consumer](t, as(t, database, role), "consumers", "show", "orders").Letters
	if len(letters) != 1 {
		t.Fatalf("its dead letters: %+v", letters)
	}
	if l := letters[0]; l.ID != 2 || l.Key != "bad 1" || l.Attempts != 1 || l.At.IsZero() {
		t.Errorf("its dead letters: %+v", letters)
	}
	fails(t, database, "consumers return orders 7 --reason why", "row 7 of consumer \"orders\" is no dead letter")
	output1(t, as(t, database, role), "consumers", "return", "orders", "2", "--reason", "why")
	execute(t, database, "CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
		"CREATE TRIGGER keep BEFORE DELETE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.keep()",
		"INSERT INTO public.outbox (customer, payload) VALUES ('kept', '4')")
	testkit.Becomes(t, pool, "its delete fails", int64(1),
		"SELECT count(*) FROM pgleases.consumer_blocked WHERE key = 'kept'")
	// The hint of the server stands behind its error.
	expectPrinted(t, output1(t, database, "consumers", "show", "orders"),
		` kept .* 0 were deleted \(SQLSTATE PC001\); A trigger, a rule or row-level security prevents the DELETE`)
	cancel()
	<-ended
	ended <- nil
	execute(t, database, `INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts)
		SELECT 'orders', n, 0, 'c', jsonb_build_object('id', n, 'customer', 'c', 'payload', '1'), 1
		FROM generate_series(8, 9) AS n`)
	changes("return orders: 2 rows returned, each is handled before", "return", "orders", "--all")
	changes("return orders: there is no dead letter", "return", "orders", "--all")
	expectPrinted(t, output1(t, database, "consumers", "delete", "orders", "--reason", "why"),
		`\Adelete orders: done; its table was public.outbox, blocked keys: \d, dead letters that stay: 0; `+
			`its lease stays: pgleases drop consumer/orders --reason '...' deletes it\n\z`)
	const allOwned = "each partition has an owner, except of leases that are paused or that no process runs"
	found, _ := examined(t, database)
	for _, f := range found {
		if f.Check == "orphans" && (f.Level != admin.LevelOK || !strings.HasSuffix(f.Text, allOwned)) {
			t.Errorf("it was deleted, and doctor finds %+v", f)
		}
	}
	output1(t, database, "drop", "consumer/orders", "--reason", "why")
	fails(t, database, "consumers delete orders --reason why", `there is no consumer "orders"`)
}

// A name without a lease may be that of a consumer or of a group, also before its first run.
func TestVerbsNameConsumersAndGroups(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t))
	output1(t, database, "migrate", "--consumers", "--schedules")
	execute(t, database, `
		INSERT INTO pgleases.consumers
		VALUES ('orders', 'public.outbox', 'id', 'customer', 'partition', 'created_at', 4);
		INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, since, next_at)
		VALUES ('orders', 0, 0, 'c', '0', 1, now(), now());
		INSERT INTO pgleases.schedule_groups VALUES ('reports', 1)`)
	fails(t, database, "pause orders --reason why", "pgleases consumers pause orders --reason '...'")
	fails(t, database, "resume orders --reason why", "pgleases consumers resume orders --reason '...'")
	fails(t, database, "describe orders", `there is no lease "orders", but a consumer: pgleases consumers show orders`)
	fails(t, database, "pause reports --reason why",
		`there is no lease "reports", but a group of schedules: pgleases pause schedule/reports --reason '...'`)
	fails(t, database, "describe reports", "pgleases schedules list reports")
	output1(t, database, "pause", "consumer/orders", "--reason", "why")
	fails(t, database, "resume orders --reason why", `but a consumer: pgleases resume consumer/orders --reason '...'`)
	paused := func(want string, args ...string) {
		t.Helper()
		text := output1(t, database, append(args, "--reason", "why")...)
		if !strings.HasSuffix(text, want) {
			t.Errorf("%v: %q, want %q", args, text, want)
		}
	}
	const leaseToo = "; its lease is paused: pgleases resume consumer/orders --reason '...'\n"
	paused("it is not paused"+leaseToo, "consumers", "resume", "orders")
	paused("done; batches in hand end first\n", "consumers", "pause", "orders")
	paused("done"+leaseToo, "consumers", "resume", "orders")
	output1(t, database, "consumers", "pause", "orders", "--reason", "why")
	text := output1(t, database, "resume", "consumer/orders", "--reason", "why")
	const isPaused = `the consumer "orders" is paused, too: pgleases consumers resume orders --reason '...'`
	if !strings.Contains(text, "pgleases: "+isPaused+"\n") || !strings.Contains(text, "recorded") {
		t.Errorf("resume of the lease of a paused consumer: %q", text)
	}
	execute(t, database, "INSERT INTO pgleases.leases VALUES ('orders', 4, 5, 1, 0, 'infinity', now())")
	fails(t, database, "resume orders --reason why",
		`lease "orders" is not paused, but the consumer "orders": pgleases consumers resume orders --reason '...'`)
	paused("it is paused already\n", "consumers", "pause", "orders")
	output1(t, database, "pause", "orders", "--reason", "why")
	output1(t, database, "resume", "orders", "--reason", "why") // the lease, which is paused
	output1(t, database, "consumers", "resume", "orders", "--reason", "why")
	execute(t, database, "DELETE FROM pgleases.leases WHERE name = 'orders'")
	output1(t, database, "pause", "consumer/orders", "--reason", "why")

	output1(t, database, "consumers", "retry", "orders", "0", "--reason", "why")
	output1(t, database, "consumers", "skip", "orders", "0", "--reason", "why")
	expectPrinted(t, output1(t, database, "consumers", "show", "orders"),
		` row skipped +0 +1 .*\n.* row retried +0 +1 `)
	fails(t, database, "consumers return orders 0 --reason why", `row 0 of consumer "orders" is no dead letter`)
	fails(t, database, "consumers skip orders -5 --reason why",
		"a negative ID comes last, after --: pgleases consumers skip CONSUMER --reason '...' -- -5")
	fails(t, database, "consumers skip orders --reason why -- -5", `row -5 of consumer "orders" blocks no key`)

	text = output1(t, database, "consumers", "delete", "orders", "--reason", "why")
	if strings.Contains(text, "lease") {
		t.Errorf("it has no lease: %s", text)
	}
	execute(t, database, "INSERT INTO pgleases.leases VALUES ('consumer/orders', 4, 5, 1, 0, 'infinity', now())")
	if text := output1(t, database, "pause", "orders", "--reason", "why"); strings.Contains(text, "but a consumer") {
		t.Errorf("the consumer was forgotten: %s", text)
	}
	for name, like := range map[string]string{
		"orders": "did you mean consumer/orders? ",
		"odrers": "did you mean orders? ",
		"other":  "",
	} {
		want := "lease \"" + name + "\" does not exist yet: its pause begins when it is created; " +
			like + "pgleases list shows all\n"
		text := output1(t, database, "pause", name, "--reason", "why", "--wait")
		if !strings.Contains(text, want) || !strings.HasSuffix(text, "done\n") {
			t.Errorf("pause %s: %s, want %s", name, text, want)
		}
	}
}

// statementsOf returns the statements of a text as psql sends them, without comments above them.
func statementsOf(text string) (all []string) {
	one := ""
	for line := range strings.Lines(text) {
		if one == "" && (strings.HasPrefix(line, "--") || strings.TrimSpace(line) == "") {
			continue
		}
		one += line
		code, _, _ := strings.Cut(line, "; --")
		ends := code != line || strings.HasSuffix(strings.TrimSpace(line), ";")
		if ends && strings.Count(one, "$pgleases$")%2 == 0 {
			all = append(all, one)
			one = ""
		}
	}
	return append(all, strings.Fields(one)...)
}

// Both texts run, and a consumer handles the rows of the table.
func TestConsumersTablePrintsWhatRuns(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t))
	output1(t, database, "migrate", "--consumers")
	pool := testkit.Pool(t, database)
	const mails = "consumers table mails --table public.mails --key customer --time at --partitions 8"
	execute(t, database, output1(t, "postgres://127.0.0.1:1/none", strings.Fields(mails)...), `
		INSERT INTO public.mails (customer, payload) VALUES ('ada', '1');
		CREATE TABLE public.outbox (
			number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, payload jsonb);
		INSERT INTO public.outbox (customer, payload) SELECT 'c' || n, '1' FROM generate_series(1, 100) AS n`)
	const existing = "consumers table orders --table public.outbox --key customer --id number --partitions 8 --existing"
	text := output1(t, database, strings.Fields(existing)...)
	steps := statementsOf(text)
	if !strings.HasPrefix(text, "-- After pgleases migrate --consumers.") || len(steps) != 14 ||
		strings.Contains(text, "CREATE TABLE") || strings.Contains(text, "Instead") {
		t.Errorf("%d steps: %s", len(steps), text)
	}
	conn := newConn(t, database) // one session, no transaction
	for _, step := range steps {
		_, err := conn.PgConn().Exec(t.Context(), step).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	execute(t, database, "INSERT INTO public.outbox (customer, payload) VALUES ('later', '1')")
	client := testkit.Must(pgleases.NewClient(t.Context(), pool))(t)
	defer client.Close(t.Context())
	done := func(context.Context, pgx.Tx, consumer.Row[order]) error { return nil }
	for name, queue := range map[string]consumer.Queue{
		"mails":  {Table: "public.mails", Key: "customer", Time: "at"},
		"orders": {Table: "public.outbox", ID: "number", Key: "customer", Partitions: 8},
	} {
		c := testkit.Must(consumer.New(t.Context(), client, pool, name, queue, consumer.Each(done)))(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		testkit.Becomes(t, pool, "all rows of "+name+" are handled", int64(0), "SELECT count(*) FROM "+queue.Table)
		cancel()
		<-ended
	}
	for args, want := range map[string]string{
		"orders":                                      `required flag(s) "table" not set`,
		"orders --table outbox --existing":            "--key is missing",
		"orders --table outbox --partitions 0":        "--partitions 0: give 1 to 65536",
		"--table outbox":                              "CONSUMER is missing: pgleases consumers table CONSUMER",
		"orders --table outbox --key \x01 --existing": "has a control character",
		"orders --table outbox --partitions 70000":    "give 1 to 65536",
		"orders outbox --table outbox --key customer": `"outbox" is one argument too many`,
	} {
		fails(t, database, "consumers table "+args, want)
	}
}
