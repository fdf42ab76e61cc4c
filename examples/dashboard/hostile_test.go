package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// attacks are texts that would run, lead elsewhere, or be another thing, if they were more than text.
var attacks = []string{
	`<img src=x onerror="window.hacked=1"><svg onload="window.hacked=1">`,
	`"><script>window.hacked=1</script>`,
	"javascript:window.hacked=1//",
	`{{constructor.constructor("window.hacked=1")()}}${window.hacked=1}`,
	"' onmouseover='window.hacked=1' style='position:fixed",
	"\u202e\u2028\u2066<b>drowssap\u0085\u200b",
	"__proto__", "constructor", "..", "//evil.example/%2e%2e?#~00",
	"group \"a\" such as \"b\" \\\" <script>",
}

// everywhere writes a text into all columns of text that a client, an application or an operator fills, once
// for each of the names $1.
var everywhere = []string{
	`INSERT INTO pgleases.clients
			(session, id, incarnation, expires_at, ttl, host, pid, started_at, metadata, lost_locks, refused_leases)
		SELECT i, n, 1, now() + interval '1 hour', '1 hour', n, 7, now(), jsonb_build_object(n, n), ARRAY[n],
			jsonb_build_object(n, 3)
		FROM unnest($1::text[]) WITH ORDINALITY AS a (n, i)`,
	`INSERT INTO pgleases.identities (id, incarnation, process, used_at, takeovers, taken_at, taken_from)
		SELECT n, 1, 1, now(), 3, now(), n FROM unnest($1::text[]) AS n`,
	`INSERT INTO pgleases.leases
		SELECT n, 2, 5, 1, 0, 'infinity', now()
		FROM unnest($1::text[] || ARRAY(
			SELECT p || n FROM unnest($1::text[]) AS n, unnest('{consumer/,schedule/}'::text[]) AS p)) AS n`,
	`INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		SELECT n, i, 1, now(), 1 FROM unnest($1::text[]) WITH ORDINALITY AS a (n, i)`,
	`INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since, preferred_owner_id)
		SELECT n, p, CASE p WHEN 0 THEN i END, i, 3, n, now(), n
		FROM unnest($1::text[]) WITH ORDINALITY AS a (n, i), generate_series(0, 1) AS p`,
	`INSERT INTO pgleases.locks SELECT n, 1, i, 1, false, i, now() FROM unnest($1::text[]) WITH ORDINALITY AS a (n, i)`,
	`INSERT INTO pgleases.graces
		SELECT n, n, 1, NULL, 1, now(), now() + interval '1 hour' FROM unnest($1::text[]) AS n`,
	`INSERT INTO pgleases.overrides (verb, lease, partition, client, until, since, actor, reason)
		SELECT v, CASE WHEN v <> 'drain' THEN n END, CASE v WHEN 'pin' THEN 1 END, CASE WHEN v <> 'pause' THEN n END,
			'infinity', now(), n, n
		FROM unnest($1::text[]) AS n, unnest('{drain,pin,pause}'::text[] || $1[1]) AS v`,
	`INSERT INTO pgleases.events (lease, cause, actor, reason, from_id, to_id, partitions)
		SELECT n, CASE WHEN c = '' THEN n ELSE c END, n, n, n, n, '{[0,1)}'
		FROM unnest($1::text[]) AS n, unnest('{"",given,evicted}'::text[]) AS c`,
	`INSERT INTO pgleases.events (cause, reason)
		SELECT 'no live client', 'from ' || n || 'Z to ' || n || 'Z' FROM unnest($1::text[]) AS n`,
	`INSERT INTO pgleases.schedule_groups SELECT n, 1 FROM unnest($1::text[]) AS n`,
	`INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered,
			failures, error, blocked_reason, blocked_since)
		SELECT n, n, n, 0, n, to_jsonb(n), n, now(), false, now(), now(), 1, now(),
			3, n || E'\n' || n, n, now()
		FROM unnest($1::text[]) AS n`,
	`INSERT INTO pgleases.jobs
			(group_name, key, partition, kind, name, trigger, args, priority, at, due, error, attempts,
			blocked_reason, blocked_since)
		SELECT n, n, 0, n, n, n, to_jsonb(n), 0, now(), now(), n, 1, n, now() FROM unnest($1::text[]) AS n`,
	`INSERT INTO pgleases.history
			(schedule, group_name, name, kind, since, until, ticks, outcome, error, ended_at, started_at)
		SELECT s.id, s.name, s.name, s.name, now(), now(), 1, o, s.name, now(), now()
		FROM pgleases.schedules AS s, unnest(ARRAY['failed', s.name]) AS o`,
	`INSERT INTO pgleases.history
			(source, job, group_name, name, kind, key, since, until, ticks, outcome, error, ended_at)
		SELECT 'job', i, n, n, n, n, now(), now(), 1, 'failed', n, now()
		FROM unnest($1::text[]) WITH ORDINALITY AS a (n, i)`,
	`INSERT INTO pgleases.consumers
			(name, queue, id_column, key_column, partition_column, time_column, partitions,
			paused_at, paused_by, paused_reason)
		SELECT n, n, n, n, n, n, 1, now(), n, n FROM unnest($1::text[]) AS n`,
	`INSERT INTO pgleases.consumer_blocked
			(consumer, partition, id, key, version, attempts, error, next_at, skipped_by)
		SELECT n, 0, r, n, 'v', 1, n || E'\n' || n, 'infinity', CASE r WHEN 1 THEN n END
		FROM unnest($1::text[]) AS n, generate_series(1, 2) AS r`,
	`INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts, error)
		SELECT n, 3, 0, n, to_jsonb(n), 1, n FROM unnest($1::text[]) AS n`,
	`INSERT INTO pgleases.events (lease, cause, actor, reason, row_id)
		SELECT 'consumer/' || n, 'row retried', n, n, 1 FROM unnest($1::text[]) AS n`,
	`INSERT INTO pgleases.samples
		SELECT now() - i * interval '1 minute', k, n, 3
		FROM unnest('{waiting,oldest,blocked}'::text[]) AS k, unnest($1::text[]) AS n, generate_series(0, 3) AS i`,
}

// notInert is an expression for what a text has done to the page; empty: nothing.
const notInert = `(() => {
	const found = [];
	if ("hacked" in window || "polluted" in {} || Object.keys(Object.prototype).length > 0) found.push("a text ran");
	for (const e of document.querySelectorAll("main *, dialog *, header *")) {
		if (["SCRIPT", "IMG", "IFRAME", "OBJECT", "STYLE", "B"].includes(e.tagName)) found.push("element " + e.tagName);
		for (const a of e.attributes) {
			const isHandler = /^on/.test(a.name) || a.name === "style" && /fixed/.test(a.value);
			if (isHandler) found.push("attribute " + a.name + "=" + a.value);
		}
		if (!e.href) continue;
		const isOurs = typeof e.href === "string" && new URL(e.href).origin === location.origin &&
			new URL(e.href).pathname.startsWith("/ops/leases/");
		if (!isOurs) found.push("link " + e.href);
	}
	const labels = [...document.querySelectorAll("[aria-label], [title]")].map(e => e.ariaLabel + e.title).join();
	if (/[\u202e\u2028\u2066\u200b\u0085]/.test(document.body.textContent + document.title + labels)) {
		found.push("a hidden character");
	}
	return found;
})()`

// Texts that anyone can choose are text on each screen. The test opens all screens of the menu, and all
// kinds of links that it finds there.
func TestTextsAreInertOnEachScreen(t *testing.T) {
	t.Parallel()
	databaseURL, _ := database(t)
	owner := newPool(t, pgtest.OwnerURL(databaseURL))
	testkit.OK(t, schedule.Migrate(t.Context(), owner))
	testkit.OK(t, consumer.Migrate(t.Context(), owner))
	for _, statement := range everywhere {
		args := []any{attacks}
		if !strings.Contains(statement, "$1") {
			args = nil
		}
		testkit.Must(owner.Exec(t.Context(), statement, args...))(t)
	}
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, owner), "")
	root := eval[string](x, "location.origin") + "/ops/leases/"
	eval[bool](x, countRequests)
	next := eval[[]string](x, `[...document.querySelectorAll("nav a")].map(e => e.href)`)
	seen := map[string]int{} // by the kind of a link: see kindOf
	for i := 0; i < len(next); i++ {
		x.turnBy(next[i])
		for _, wrong := range eval[[]string](x, notInert) {
			t.Errorf("%s: %s", next[i], wrong)
		}
		for _, link := range eval[[]string](x, `[...document.querySelectorAll("main a[href]")].map(e => e.href)`) {
			kind := kindOf(t, strings.TrimPrefix(link, root))
			most := 1
			if strings.Contains(kind, "*") && !strings.Contains(kind, "?") {
				most = len(attacks)
			}
			if seen[kind] < most && !slices.Contains(next, link) {
				seen[kind]++
				next = append(next, link)
			}
		}
	}
	for _, kind := range []string{
		"leases/*", "clients/*", "schedules/*", "schedules/*/*", "jobs/*", "consumers/*", "leases/*/*",
	} {
		if seen[kind] == 0 {
			t.Errorf("no link %s was found: %v", kind, seen)
		}
	}
	t.Logf("%d screens", len(next))
}

// countRequests counts the requests of the page that have no answer yet, in window.unanswered.
const countRequests = `(() => {
	const ask = window.fetch;
	window.unanswered = 0;
	window.fetch = async (...of) => {
		window.unanswered++;
		try { return await ask(...of); } finally { setTimeout(() => window.unanswered--); } // after the page has the answer
	};
	return true;
})()`

// turnBy leads to an address without loading the page anew, and waits until all questions of its screen
// are answered.
func (x tab) turnBy(address string) {
	x.Helper()
	eval[bool](x, fmt.Sprintf(`history.pushState(null, "", %q) || dispatchEvent(new Event("gone"))`, address))
	x.until(`window.unanswered === 0 && document.querySelector("main").textContent.trim() !== ""`)
	const drawn = `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))`
	x.run(chromedp.Evaluate(drawn, nil, awaited))
}

// kindOf returns an address with a star for each name, and of its parameters only the names.
func kindOf(t *testing.T, address string) string {
	t.Helper()
	u := testkit.Must(url.Parse(address))(t)
	parts := strings.Split(u.EscapedPath(), "/")
	for i := range parts {
		if i > 0 {
			parts[i] = "*"
		}
	}
	var names []string
	for name := range u.Query() {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(parts, "/") + strings.TrimSuffix("?"+strings.Join(names, "&"), "?")
}

// Texts in an address are text, whichever part of it they are, also if they are no valid encoding.
func TestTextsInAddressesAreInert(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "")
	eval[bool](x, countRequests)
	root := eval[string](x, "location.origin") + "/ops/leases/"
	for _, screen := range eval[[]string](x, `[...document.querySelectorAll("nav a")].map(e => e.dataset.screen)`) {
		for _, text := range attacks[:6] {
			query := url.Values{"__proto__": {text}}
			for _, name := range []string{
				"q", "lease", "client", "cause", "since", "from", "to", "key", "kind", "state", "prefix", "after",
			} {
				query.Set(name, text)
			}
			name := url.PathEscape(text)
			addresses := []string{screen + "?" + query.Encode(), screen + "#" + name}
			if screen != "" {
				addresses = append(addresses, screen+"/"+name+"?since="+name,
					screen+"/"+name+"/"+name+"?from="+name, screen+"/a/b/c/"+name)
			}
			for _, address := range addresses {
				x.turnBy(root + address)
				for _, wrong := range eval[[]string](x, notInert) {
					t.Errorf("%s: %s", address, wrong)
				}
			}
		}
	}
	// What a browser loads, and what is no text.
	for _, address := range []string{
		"leases/%FF/~zz/~00",
		"leases/a/b/c/%FF",
		"leases/a/b/%25/~",
		"clients/%E2%80%AE~22",
		"events?lease=%FF&since=%00",
		"?from=%zz",
	} {
		x.show(address)
		x.until(`document.querySelector("main").textContent.trim() !== ""`)
		for _, wrong := range eval[[]string](x, notInert) {
			t.Errorf("%s: %s", address, wrong)
		}
	}
}
