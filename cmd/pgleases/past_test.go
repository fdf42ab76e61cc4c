//go:build linux

package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/store"
)

// longPast is a partition l/0 with owners in the past: worker-1, which crashed, b, which an operator
// drained, and a. Its tables are a month old.
const longPast = sound + `
	UPDATE pgleases.installation SET installed_at = clock_timestamp() - interval '40 days';
	INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions, actor, reason)
	SELECT clock_timestamp() - v.ago * interval '1 minute', v.lease, v.cause, v.f, v.t, v.p::int4multirange,
		v.actor, v.why
	FROM (VALUES
		(9 * 1440, 'l', 'given', NULL, 'worker-1', '{[0,2)}', NULL, NULL),
		(190, NULL, 'evicted', 'worker-1', NULL, NULL, NULL, 'host web1, pid 7'),
		(189, 'l', 'given', 'worker-1', 'b', '{[0,2)}', NULL, NULL),
		(61, NULL, 'drain', 'b', NULL, NULL, 'maria', 'its host goes'),
		(60, 'l', 'handed over', 'b', 'a', '{[0,1)}', NULL, NULL)) AS v (ago, lease, cause, f, t, p, actor, why)`

func TestExplainShowsThePast(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, longPast)
	now := time.Now().UTC()
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339Nano) }
	const (
		at      = `20\d\d-\d\d-\d\d \d\d:\d\d:\d\d`
		period  = at + ` until ` + at + ` UTC`
		heading = `\n\nAT +CAUSE +LEASE +FROM +TO +PARTITIONS +BY +REASON\n`
		evicted = at + ` +evicted +- +worker-1 .* host web1, pid 7\n`
		drained = at + ` +drain +- +b .* maria +its host goes\n`
	)
	for d, want := range map[time.Duration]string{
		10 * time.Minute: `a owned it from ` + at + ` until now, for 60m\.\nIt began when b handed it over to a\.\n\n` +
			`Before that, b owned it from ` + period + `, for 2h\.` +
			heading + drained + at + ` +handed over +l +b +a +0 .*\n$`,
		2 * time.Hour: `b owned it from ` + period + `, for 2h\.\n` +
			`It began when a plan gave it to b, because worker-1 was gone\.\n` +
			`It ended when b handed it over to a\.\n\n` +
			`Before that, it had no owner from ` + period + `, for 60s\.` +
			heading + evicted + at + ` +given .*\n` + drained + at + ` +handed over .*\n$`,
		189*time.Minute + 30*time.Second: `It had no owner from .*, for 60s\.\n` +
			`It began when worker-1 was evicted \(host web1, pid 7\)\.\n` +
			`It ended when a plan gave it to b, because worker-1 was gone\.\n\n` +
			`Before that, worker-1 owned it from ` + at + ` or before until ` + at + ` UTC, for 23h\.`,
		5 * time.Hour: `worker-1 owned it from ` + period + `, for 8d\.\n` +
			`It began when a plan gave it to worker-1; it had no owner before\.\n` +
			`It ended when worker-1 was evicted \(host web1, pid 7\)\.\n\nAT `,
		10 * day: `No event says that it had an owner then\. worker-1 owned it from ` + at + ` UTC\.\n$`,
	} {
		text := output1(t, database, "explain", "l/0", "--at", ago(d))
		if !regexp.MustCompile(`^l/0 at ` + at + ` UTC\n\n` + want).MatchString(text) {
			t.Errorf("explain --at %s: %s", ago(d), text)
		}
	}
	p := decoded[Past](t, database, "explain", "l", "--key", "customer-7", "--at", ago(5*time.Hour))
	if p.Lease != "l" || p.Partition != store.PartitionFor("customer-7", 2) || p.Spell.Owner != "worker-1" ||
		p.Before != nil || p.After.Cause != "evicted" || len(p.Events) != 2 {
		t.Errorf("of a key: %+v", p)
	}
	for args, want := range map[string]string{
		"l/0 --at yesterday": `--at "yesterday": ` +
			`give a time such as 03:12 for today, '2026-03-02 03:12' or 2026-03-02T03:12:00Z`,
		"l/0 --at " + ago(31*day):            "older events are not kept",
		"l/0 --at " + ago(-time.Hour):        "it is in the future, because it is " + now.Format(time.DateOnly),
		"l/2 --at " + ago(time.Hour):         `lease "l" has partitions 0 to 1`,
		"ll/0 --at " + ago(time.Hour):        `there is no lease "ll": did you mean l?`,
		"l --at " + ago(time.Hour):           `lease "l" has partitions 0 to 1: give one`,
		"l/0 --at 00:00 --schema none":       "or run pgleases migrate",
		"l/0 --at 0200-01-02T03:04:05+00:00": "older events are not kept",
	} {
		fails(t, database, "explain "+args, want)
	}
	execute(t, database, "UPDATE pgleases.clients SET ttl = '1 minute', expires_at = now() - interval '9 minutes'")
	expectPrinted(t, output1(t, database, "explain", "l/0", "--at", ago(5*time.Minute)),
		`\n\nIt had no live owner from `+at+` until now, for \S+\.\nIt began when a sent its last heartbeat\.\n\n`+
			`Before that, a owned it from `)
	execute(t, database, "UPDATE pgleases.installation SET installed_at = clock_timestamp()")
	fails(t, database, "explain l/0 --at "+ago(5*time.Hour), "older events are not kept")
}

// More than 2000 events after a time hide it.
func TestExplainOfABusyPast(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, longPast, `
		INSERT INTO pgleases.events (lease, cause, from_id, to_id, partitions)
		SELECT 'l', 'handed over', 'a', 'a', '{[0,1)}' FROM generate_series(1, 2000)`)
	before := time.Now().UTC().Add(-2 * time.Hour).Format(time.RFC3339)
	fails(t, database, "explain l/0 --at "+before, "more events came after that than are read")
	if text := output1(t, database, "explain", "l/1", "--at", before); !strings.Contains(text, "b owned it from ") {
		t.Errorf("of a quiet partition: %s", text)
	}
}

func TestTimesOfThePast(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 8, 30, 0, 500, time.UTC)
	for text, want := range map[string]string{
		"03:12":                     "2026-03-02 03:12:00",
		"08:30":                     "2026-03-02 08:30:00",
		"08:29:59":                  "2026-03-02 08:29:59",
		"2026-02-28 23:59":          "2026-02-28 23:59:00",
		"2026-02-28 23:59:01":       "2026-02-28 23:59:01",
		"2026-03-02T09:12:00+02:00": "2026-03-02 07:12:00",
		"08:31": "--at 08:31: it is in the future, because it is 08:30:00 UTC now: " +
			"for yesterday give '2026-03-01 08:31'",
		"2026-03-03 08:31": "it is in the future, because it is 2026-03-02 08:30:00 UTC now",
		"25:00":            "give a time such as",
		"":                 "give a time such as",
	} {
		at, err := timeOf(text, now)
		if err == nil && utc(at) != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %v, %v; want %s", text, at, err, want)
		}
	}
}
