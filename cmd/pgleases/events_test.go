//go:build linux

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// past are two clients, a lease, and what happened to it: minutes ago, lease, cause, from, to.
const past = sound + `
	INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions)
	SELECT clock_timestamp() - v.ago * interval '1 minute', v.lease, v.cause, v.f, v.t, v.p::int4multirange
	FROM (VALUES
		(5000, 'l', 'given', NULL, 'early', '{[0,2)}'), (90, 'l', 'handed over', 'early', 'worker-1', '{[0,2)}'),
		(30, 'l', 'given', 'worker-1', 'a', '{[0,2)}'), (20, 'other', 'given', NULL, 'b', '{[0,1)}'),
		(10, NULL, 'evicted', 'worker-1', NULL, NULL)) AS v (ago, lease, cause, f, t, p)`

func TestEventsOfAPeriod(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, past)
	for args, want := range map[string]string{
		"--since 1h":                   "given worker-1,given ,evicted worker-1",
		"--since 1h -n 2":              "given ,evicted worker-1",
		"--since 7d":                   "given ,handed over early,given worker-1,given ,evicted worker-1",
		"--since 1d12h --client early": "handed over early",
		"l --since 1h":                 "given worker-1,evicted worker-1",
		"--lease l --since 1h":         "given worker-1,evicted worker-1",
		"--since 3h --client worker-1": "handed over early,given worker-1,evicted worker-1",
		"--since 7d --cause given":     "given ,given worker-1,given ",
		"--cause given":                "given worker-1,given ", // of a day
		"--client b --since 15m":       "",
		"--since 1h --cause joined":    "",
	} {
		var got []string
		words := slices.Concat([]string{"events"}, strings.Fields(args), []string{"-o", "json"})
		c := command.Run(t, command.Database(database), words...)
		code := c.ExitCode()
		text, note, _ := strings.Cut(c.Printed(), "pgleases: ")
		for _, e := range only[[]admin.Event](t, text) {
			got = append(got, e.Cause+" "+e.From)
		}
		if strings.Join(got, ",") != want || code != 0 || (note != "") != (want == "") {
			t.Errorf("events %s: %q, want %q; exit code %d, note %q", args, got, want, code, note)
		}
	}
	const period = "give a time above 0, such as 1h or 7d"
	for _, test := range []struct{ args, want string }{
		{"events --lease ll --since 1h",
			`there is no lease "ll", and no event of one: did you mean l? pgleases list shows all`},
		{"events --client worker-2 --since 1h", `there is no client "worker-2", and no event of one in the last 1h: ` +
			`did you mean worker-1? pgleases clients shows all`},
		{"events --client early --since 1h",
			`there is no client "early", and no event of one in the last 1h: pgleases clients shows all`},
		{"events --cause handed --since 1h",
			`there is no cause "handed": did you mean handed over? there are joined, left,`},
		{"events --cause nothing",
			`there is no cause "nothing": there are joined, left, handed over, given, evicted,`},
		{"events l --lease other --since 1h", `the leases "l" and "other" are given: leave one out`},
		{"events --since 1h -f", "[follow since]"},
		{"events --since 0s", period},
		{"events --since yesterday", period},
		{"audit --since yesterday", period},
		{"events --since 1h -n 0", "-n 0: give 1 to 1000"},
		{"events -f --cause nothing", `there is no cause "nothing": there are joined,`},
		{"events --lease none --client worker-1", `there is no lease "none"`},
		{"events --since 1h --client b --cause givne", `there is no cause "givne": did you mean given?`},
	} {
		fails(t, database, test.args, test.want)
	}
	expectPrinted(t, output1(t, database, "events", "--since", "1h", "--client", "a"),
		`\AAT +CAUSE +LEASE +FROM +TO +PARTITIONS +BY +REASON\n\S+ \S+ +given +l +worker-1 +a +0-1 +- +-\n\z`)
	execute(t, database, `
		INSERT INTO pgleases.events (lease, cause, to_id)
		SELECT 'l', 'joined', 'c' || n FROM generate_series(1, 1001) AS n`)
	const more = "pgleases: there are more than 1,000 such events, so older ones are missing: choose a shorter period"
	text := output1(t, database, "events", "--since", "1h")
	if strings.Count(text, " joined ") != 1000 || !strings.Contains(text, more) {
		t.Errorf("of more than 1000 events: %s", text[max(0, len(text)-200):])
	}
}

// A follower shows only the events that a client or a cause selects.
func TestEventsFollowSelects(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, past)
	follower := command.Run(t, command.Database(database), "events", "-f", "--client", "worker-1", "--cause", "evicted")
	testkit.Until(t, "it shows what was there", func() bool { return strings.Contains(follower.Printed(), "evicted") })
	execute(t, database, `
		INSERT INTO pgleases.events (cause, from_id, reason) VALUES
			('evicted', 'b', 'not this'), ('left', 'worker-1', 'not this'), ('evicted', 'worker-1', 'this one')`)
	testkit.Until(t, "it shows the new one", func() bool { return strings.Contains(follower.Printed(), "this one") })
	if text := follower.Printed(); strings.Contains(text, "given") || strings.Contains(text, "not this") {
		t.Errorf("it shows others: %s", text)
	}
	follower.Signal(syscall.SIGINT)
	follower.ExitCode()
}

// What operators did to schedules and jobs is among the events, wherever they are shown.
func TestVerbsOnSchedulesAreEvents(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t))
	output1(t, database, "migrate", "--schedules")
	const odd = "odd\x1b[2J"
	execute(t, database, "INSERT INTO pgleases.schedule_groups VALUES ('reports', 1)",
		aSchedule("reports", "close", "", "now() + interval '1 hour'"), aSchedule("reports", odd, "", "now()"), `
		INSERT INTO pgleases.clients SELECT 12, 'a', 1, now() + interval '1 hour', '1 hour', 'host', 7, now();
		INSERT INTO pgleases.leases VALUES ('schedule/reports', 1, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		VALUES ('schedule/reports', 0, 12, 12, 1, 'a', now())`)
	verb := func(args ...string) string {
		t.Helper()
		return output1(t, database, append(args, "--reason", "why", "--actor", "ann")...)
	}
	verb("schedules", "pause", "reports", "close")
	verb("schedules", "pause", "reports", "close") // it is paused already
	verb("schedules", "resume", "reports", "close", "--catch-up")
	job, _, _ := strings.Cut(verb("schedules", "trigger", "reports", odd), "\n")
	verb("jobs", "cancel", "reports", job)
	retry, _, _ := strings.Cut(verb("jobs", "retry", "reports", job), "\n")
	execute(t, database, `
		INSERT INTO pgleases.events (lease, cause, to_id, partitions)
		VALUES ('schedule/reports', 'given', 'a', '{[0,1)}')`)
	const by = ` +schedule/reports +- +- +- +ann \(.+\) +`
	all := []string{
		`schedule paused` + by + `close: why`,
		`schedule resumed` + by + `close, catch_up true: why`,
		`schedule triggered` + by + `"odd\\x1b\[2J, job ` + job + `: why"`,
		`job canceled` + by + `"odd\\x1b\[2J, job ` + job + `: why"`,
		`job retried` + by + `"odd\\x1b\[2J, job ` + retry + `, retry_of ` + job + `: why"`,
		`given +schedule/reports +- +a +0 +- +-`,
	}
	for _, test := range []struct{ args, want []string }{
		{[]string{"events", "schedule/reports"}, all},
		{[]string{"events", "--lease", "schedule/reports", "--since", "1h"}, all},
		{[]string{"events", "--cause", "schedule paused"}, all[:1]},
		{[]string{"events", "--cause", "job retried", "--lease", "schedule/reports"}, all[4:5]},
		{[]string{"explain", "schedule/reports/0", "--at", time.Now().UTC().Format(time.RFC3339Nano)}, all},
	} {
		expectPrinted(t, output1(t, database, test.args...),
			`^AT .*\n\S+ \S+ +`+strings.Join(test.want, `\n\S+ \S+ +`)+`\n\z`)
	}
	status, _ := statusIn(t, database)
	for _, want := range []string{
		"schedule paused 1", "schedule resumed 1", "schedule triggered 1", "job canceled 1", "job retried 1",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("status lacks %q: %s", want, status)
		}
	}
	events := decoded[[]admin.Event](t, database, "events", "schedule/reports")
	if len(events) != 6 || events[4].Name != odd || events[4].Args["retry_of"] != job {
		t.Errorf("events %+v", events)
	}
}

// The page explains each cause that the command knows.
func TestCausesAreThoseOfThePage(t *testing.T) {
	page := string(testkit.Must(os.ReadFile("../../docs/operations.md"))(t))
	_, page, _ = strings.Cut(page, "\n## Causes of events\n")
	page, _, _ = strings.Cut(page, "\n## ")
	var named []string
	for _, item := range regexp.MustCompile(`(?m)^- (\*\*.*?\*\*):`).FindAllStringSubmatch(page, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(item[1], -1) {
			named = append(named, name[1])
		}
	}
	if !slices.Equal(named, admin.Causes) {
		t.Errorf("the page explains %q, and the command knows %q", named, admin.Causes)
	}
}
