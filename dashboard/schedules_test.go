package dashboard_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// Viewers of the same page of 20,000 schedules share one query, which reads only the page. The
// effect of a verb is visible at once.
func TestAPageOfManySchedulesIsAskedForOnce(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	testkit.OK(t, schedule.Migrate(t.Context(), newPool(t, pgtest.OwnerURL(url))))
	exec(t, url, `INSERT INTO pgleases.schedule_groups VALUES ('billing', 64)`, `
		INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered)
		SELECT 'billing', 's' || lpad(n::text, 6, '0'), 'k' || n, n % 64, 'reports', '{}', '@every 1h', now(), false,
			now(), now() + interval '1 hour', 1, now()
		FROM generate_series(0, 19999) AS n`,
		`ANALYZE pgleases.schedules`)
	c := new(testkit.Wire)
	h := newHandler(t, testkit.Pool(t, pgtest.OwnerURL(url), c.Carry), asOperator)
	get := func(query string) (page struct {
		Rows []struct{ Name, State string }
		More bool
	}) {
		t.Helper()
		w := do(t, h, "GET", "/data/schedules?group=billing&"+query)
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || w.Code != 200 {
			t.Fatalf("%s: %d %s", query, w.Code, w.Body)
		}
		return page
	}
	if page := get("prefix=s01"); len(page.Rows) != 50 || !page.More || page.Rows[0].Name != "s010000" {
		t.Fatalf("%+v", page)
	}
	if page := get("prefix=s01&after=s019998"); len(page.Rows) != 1 || page.More {
		t.Errorf("the last page: %+v", page)
	}
	// The page is read once for all viewers, or a few times on a slow machine.
	before := c.Counted()
	get("which=paused")
	one := c.Counted() - before
	for range 200 {
		get("which=paused")
	}
	if all := c.Counted() - before; all > 20*one {
		t.Errorf("201 looks are %d messages, and one is %d", all, one)
	}
	const ofThe7th = `"group":"billing","schedule":"s000007"`
	got := post(t, h, "/data/ask", `{"verb":"pause_schedule",`+ofThe7th+`,"reason":"why"}`)
	if got.status != 200 {
		t.Fatalf("%+v", got)
	}
	page := get("which=paused")
	if len(page.Rows) != 1 || page.Rows[0].Name != "s000007" || page.Rows[0].State != "paused" {
		t.Errorf("after a verb: %+v", page)
	}
	for _, test := range []struct {
		body   string
		status int
		text   string
	}{
		{`{"verb":"pause_schedule",` + ofThe7th + `,"reason":" "}`, 400, "Give a reason"},
		{`{"verb":"pause_schedule","group":"billing","schedule":"none","reason":"why"}`, 422, `has no schedule "none"`},
		{`{"verb":"delete_schedule",` + ofThe7th + `,"reason":"why"}`, 400, "Give the ID of the schedule"},
		{`{"verb":"delete_schedule",` + ofThe7th + `,"id":"1","reason":"why"}`, 409, "is not the one that was seen"},
		{`{"verb":"cancel_job","group":"billing","job":"x","reason":"why"}`, 400, "The request is invalid"},
		{`{"verb":"cancel_job","group":"billing","job":"7","reason":"why"}`, 422, "has no job 7"},
		{`{"verb":"retry_job","group":"","job":"7","reason":"why"}`, 422, `group "" is empty`},
		{`{"verb":"drain",` + ofThe7th + `,"reason":"why"}`, 400, `"drain" is not a verb`},
		{`{"verb":"backfill_schedule",` + ofThe7th + `,"reason":"why"}`, 422, "the range after"},
		{`{"verb":"retry_tick",` + ofThe7th + `,"reason":"why"}`, 422, "is not in the history"},
		{fmt.Sprintf(`{"verb":"cancel_job","group":"billing","job":"7","reason":"%s"}`, strings.Repeat("x", 4001)),
			422, "the reason has 4001 bytes"},
		{fmt.Sprintf(`{"verb":"cancel_job","group":"billing","reason":%q}`, strings.Repeat("x", 17_000)),
			413, "longer than"},
	} {
		got := post(t, h, "/data/ask", test.body)
		if got.status != test.status || !strings.Contains(got.Text, test.text) {
			t.Errorf("%.90s: %+v, want %d %q", test.body, got, test.status, test.text)
		}
	}
	got = post(t, newHandler(t, idle(t), asViewer), "/data/ask", `{}`)
	if got.status != http.StatusForbidden {
		t.Errorf("of a viewer: %+v", got)
	}
	for _, path := range []string{
		"/data/jobs?group=billing&after=x",
		"/data/history?group=billing&name=s000007&after=x",
	} {
		if w := do(t, h, "GET", path); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// Each verb of the page works with the rights that the error names without them.
func TestAskRunsEachVerb(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	owner := pgtest.OwnerURL(url)
	pool := newPool(t, owner)
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	exec(t, owner, `INSERT INTO pgleases.schedule_groups VALUES ('billing', 64)`, `
		INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered)
		VALUES ('billing', 'close', 'close', 0, 'reports', '{}', '@every 1h', '2026-03-02Z', false,
			'2026-03-02 03:00Z', now() + interval '1 hour', 1, now())`, `
		INSERT INTO pgleases.history
			(source, schedule, job, group_name, name, kind, since, until, ticks, outcome, error, ended_at, key, args, priority)
		VALUES
			('tick', 1, NULL, 'billing', 'close', 'reports', '2026-03-02 00:00Z', '2026-03-02 01:00Z', 1, 'failed',
				'no paper', now(), NULL, NULL, NULL),
			('job', NULL, 99999, 'billing', '', 'mail', now(), now(), 1, 'failed', 'no route', now(), 'j', '{}', 1)`)
	role, operators := roleOf(t, owner)
	h := newHandler(t, operators, asOperator)
	exec(t, owner, testkit.Must(admin.Grants(role, "pgleases", admin.ForReader))(t))
	got := post(t, h, "/data/ask", `{"verb":"pause_schedule","group":"billing","schedule":"close","reason":"why"}`)
	if got.status != 502 || !strings.Contains(got.Text, "--for=schedule-operators") {
		t.Errorf("without rights: %+v", got)
	}
	exec(t, owner, testkit.Must(admin.Grants(role, "pgleases", admin.ForScheduleOperators))(t))
	job := ""
	for _, c := range []struct {
		body string
		jobs bool
	}{
		{`{"verb":"pause_schedule","schedule":"close"`, false},
		{`{"verb":"resume_schedule","schedule":"close","catch_up":true`, false},
		{`{"verb":"pause_schedule","schedule":"close"`, false},
		{`{"verb":"resume_schedule","schedule":"close"`, false},
		{`{"verb":"trigger_schedule","schedule":"close"`, true},
		{`{"verb":"backfill_schedule","schedule":"close",` +
			`"after":"2026-03-02T01:00:00Z","until":"2026-03-02T02:00:00Z"`, true},
		{`{"verb":"retry_tick","schedule":"close","tick":"2026-03-02T01:00:00Z"`, true},
		{`{"verb":"retry_job","job":"99999"`, true},
		{`{"verb":"cancel_job","job":"JOB"`, false},
		{`{"verb":"delete_schedule","schedule":"close","id":"1"`, false},
	} {
		got := post(t, h, "/data/ask", strings.ReplaceAll(c.body, "JOB", job)+`,"group":"billing","reason":"why"}`)
		if got.status != 200 || (got.Job != "0") != c.jobs {
			t.Errorf("%s: %+v", c.body, got)
		}
		job = got.Job
	}
	verbs := testkit.Value[[]string](t, pool, `
		SELECT array_agg(concat_ws(' ', cause, args ->> 'catch_up') ORDER BY id) FROM pgleases.events
		WHERE lease = 'schedule/billing' AND reason = 'why' AND actor = 'ann (' || $1 || ')'`, role)
	want := []string{
		"schedule paused", "schedule resumed true", "schedule paused", "schedule resumed false", "schedule triggered",
		"schedule backfilled", "tick retried", "job retried", "job canceled", "schedule deleted",
	}
	if !slices.Equal(verbs, want) {
		t.Errorf("written down is %q, want %q", verbs, want)
	}
	var told admin.Happened
	testkit.Until(t, "the server answers, also beside other tests", func() bool {
		w := do(t, h, "GET", "/data/happened?lease=schedule/billing&name=close")
		return w.Code == 200 && json.Unmarshal(w.Body.Bytes(), &told) == nil
	})
	var causes []string
	for _, e := range told.Events { // the newest first
		causes = append(causes, e.Cause)
		if e.Name != "close" || e.Actor != "ann ("+role+")" || e.Reason != "why" {
			t.Errorf("the page of the schedule has the event %+v", e)
		}
	}
	want = []string{
		"schedule deleted", "tick retried", "schedule backfilled", "schedule triggered",
		"schedule resumed", "schedule paused", "schedule resumed", "schedule paused",
	}
	if !slices.Equal(causes, want) {
		t.Errorf("the page of the schedule has the events %q, want %q", causes, want)
	}
	page := do(t, h, "GET", "/events").Body.String()
	for _, cause := range admin.Causes {
		if !strings.Contains(page, "<option>"+cause+"</option>") {
			t.Errorf("the page does not offer the cause %q", cause)
		}
	}
}

// A browser repeats a POST if its connection ends before the answer. The server recognizes a
// repeated press of the same user, and executes another press.
func TestARequestThatIsSentAgainIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, pgtest.OwnerURL(url))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	exec(t, url, `INSERT INTO pgleases.schedule_groups VALUES ('billing', 64)`, `
		INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered)
		VALUES ('billing', 'close', 'close', 0, 'reports', '{}', '@every 1h', now(), false, now(),
			now() + interval '1 hour', 1, now())`)
	var actor string
	h := newHandler(t, pool, dashboard.Options{
		Authorize: func(*http.Request) (dashboard.Access, string) { return dashboard.AccessOperator, actor },
	})
	const trigger = `{"verb":"trigger_schedule","group":"billing","schedule":"close","reason":"why","token":%q}`
	for i, press := range []struct {
		actor, token string
		jobs         int
	}{
		{"ann", "1", 1},
		{"ann", "1", 1},
		{"ann", "2", 2},
		{"bob", "2", 3},
		{"ann", "1", 3},
		{"ann", "", 4},
		{"ann", "", 5},
	} {
		actor = press.actor
		if got := post(t, h, "/data/ask", fmt.Sprintf(trigger, press.token)); got.status != 200 {
			t.Fatalf("%+v", got)
		}
		jobs := testkit.Value[int](t, pool, "SELECT count(*) FROM pgleases.jobs_status")
		if jobs != press.jobs {
			t.Errorf("press %d: %d jobs, want %d", i, jobs, press.jobs)
		}
	}
}

// A schedule is shown with its last ticks, since when it fails, and its next ticks.
func TestScheduleShowsItsPastAndFuture(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, pgtest.OwnerURL(url))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	exec(t, url, `INSERT INTO pgleases.schedule_groups VALUES ('billing', 64)`, `
		INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered, failures)
		SELECT 'billing', name, name, 0, 'reports', '{}', 'CRON_TZ=Europe/Berlin 0 2 * * *', '2031-05-01Z', false,
			'2031-05-01Z', '2031-05-01 00:00Z', 1, now(), failures
		FROM (VALUES ('a/"b"', 3), ('well', 0), ('always', 9)) AS v (name, failures)`, `
		INSERT INTO pgleases.history
			(source, schedule, job, group_name, name, kind, since, until, ticks, outcome, ended_at)
		SELECT CASE WHEN v.job IS NULL THEN 'tick' ELSE 'extra' END, 1, v.job, 'billing', v.name, 'reports',
			v.at::timestamptz, v.at::timestamptz, 1, v.outcome, v.at::timestamptz
		FROM (VALUES
			('a/"b"', NULL::bigint, '2031-04-01Z', 'failed'),
			('a/"b"', NULL, '2031-04-02Z', 'succeeded'),
			('a/"b"', NULL, '2031-04-03Z', 'failed'),
			('a/"b"', 7, '2031-04-04Z', 'succeeded'),
			('a/"b"', NULL, '2031-04-05Z', 'skipped'),
			('a/"b"', NULL, '2031-04-06Z', 'unknown'),
			('well', NULL, '2031-04-06Z', 'succeeded')) AS v (name, job, at, outcome)`, `
		INSERT INTO pgleases.history (source, schedule, group_name, name, kind, since, until, ticks, outcome, ended_at)
		SELECT 'tick', 1, 'billing', 'always', 'reports', t, t, 1, 'failed', t
		FROM generate_series('2031-01-01Z'::timestamptz, '2031-01-01 05:00Z', '1 minute') AS t`)
	h := newHandler(t, pool, dashboard.Options{})
	for _, test := range []struct {
		name, since string
		ticks       int
	}{
		{`a/"b"`, "2031-04-03T00:00:00Z", 5},
		{"well", "", 1},
		{"always", "2031-01-01T00:00:00Z", 100},
	} {
		w := look(t, h, "schedule", map[string]string{"group": "billing", "name": test.name})
		expect(t, test.name, w, 200)
		var told struct {
			Ticks []struct{ Outcome string }
			Since string `json:"failing_since"`
			Next  []struct{ At, Local string }
		}
		testkit.OK(t, json.Unmarshal(w.Body.Bytes(), &told))
		if len(told.Ticks) != test.ticks || told.Since != test.since || len(told.Next) != 5 {
			t.Errorf("%s: %s", test.name, w.Body)
			continue
		}
		if next := told.Next[0]; next.At != "2031-05-02T00:00:00Z" || next.Local != "Fri, 2 May 02:00:00" {
			t.Errorf("%s: the next tick is %+v", test.name, next)
		}
	}
	none := look(t, h, "schedule", map[string]string{"group": "billing", "name": "none"})
	expect(t, "of no schedule", none, 404, "none")
}

// Jobs are found by kind and by key, page by page, also if few of many match.
func TestJobsAreFoundByKindAndKey(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	owner := pgtest.OwnerURL(url)
	pool := newPool(t, owner)
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	exec(t, owner, `INSERT INTO pgleases.schedule_groups VALUES ('mail', 4)`, `
		INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
		SELECT 'mail', 'k' || n % 7, pgleases.partition_for('k' || n % 7, 4),
			CASE WHEN n % 450 = 0 THEN 'rare' ELSE 'welcome' END, '', 'api', '{}', 1, now(), now() + '1 hour'
		FROM generate_series(1, 45000) AS n`, `
		INSERT INTO pgleases.jobs
			(group_name, key, partition, kind, name, trigger, args, priority, at, due, blocked_reason, blocked_since)
		VALUES ('mail', 'k1', pgleases.partition_for('k1', 4), 'welcome', '', 'api', '{}', 1, now(),
			now() - interval '1 hour', 'why', now())`, `
		INSERT INTO pgleases.history
			(source, job, group_name, name, kind, key, since, until, ticks, outcome, ended_at)
		SELECT 'job', n, 'mail', '', CASE WHEN n % 2 = 0 THEN 'rare' ELSE 'welcome' END, 'k' || n % 3,
			now(), now(), 1, 'failed', now()
		FROM generate_series(1, 120) AS n`,
		`ANALYZE`)
	h := newHandler(t, pool, dashboard.Options{})
	type answer struct {
		Rows []struct {
			ID, Job        int64
			Kind, Key      string
			State, Outcome string
		}
		More bool
		Next int64
		Text string
	}
	pages := func(query string) (sizes []int, found answer) {
		t.Helper()
		after := int64(0)
		for {
			var a answer
			// A server that is busy with other tests may take longer, so the question is asked again.
			testkit.Until(t, query+" is answered within the limit", func() bool {
				w := do(t, h, "GET", fmt.Sprintf("/data/jobs?group=mail&%s&after=%d", query, after))
				testkit.OK(t, json.Unmarshal(w.Body.Bytes(), &a))
				if w.Code != http.StatusOK && !strings.Contains(a.Text, "took longer") {
					t.Fatalf("%s: %d %s", query, w.Code, a.Text)
				}
				return w.Code == http.StatusOK
			})
			sizes = append(sizes, len(a.Rows))
			found.Rows = append(found.Rows, a.Rows...)
			if !a.More {
				return sizes, found
			}
			after = a.Next
			if after == 0 {
				after = a.Rows[len(a.Rows)-1].ID
			}
		}
	}
	for query, want := range map[string]string{
		"kind=rare":                      "[44 44 12]", // of 20,000 that are searched at a time
		"kind=rare&key=k0":               "[14]",
		"key=none":                       "[0]",
		"kind=none":                      "[0 0 0]",
		"key=k1&which=blocked":           "[1]",
		"kind=rare&which=blocked":        "[0 0 0]",
		"kind=rare&which=failed":         "[50 10]",
		"kind=rare&which=failed&key=k0":  "[20]",
		"kind=welcome&which=due&key=k1":  "[0]",
		"kind=rare&which=planned&key=k3": "[14]",
	} {
		sizes, found := pages(query)
		if got := fmt.Sprint(sizes); got != want {
			t.Errorf("%s: pages of %s rows, want %s", query, got, want)
		}
		seen := make(map[int64]bool)
		for _, row := range found.Rows {
			if seen[row.ID] {
				t.Errorf("%s: job %d is listed twice", query, row.ID)
			}
			seen[row.ID] = true
			if strings.Contains(query, "kind=rare") && row.Kind != "rare" {
				t.Errorf("%s: %+v", query, row)
			}
			isOfAKey := strings.Contains(query, "key=") && !strings.Contains(query, "failed")
			if isOfAKey && !strings.Contains(query, "key="+row.Key) {
				t.Errorf("%s: %+v", query, row)
			}
		}
	}
	if w := do(t, h, "GET", "/data/jobs?group=mail&kind=x&which=asleep"); w.Code != http.StatusBadRequest {
		t.Errorf("of an unknown state: %d", w.Code)
	}
	if sizes, _ := pages("key=k1&which="); len(sizes) < 100 {
		t.Errorf("%d pages of all jobs with a key", len(sizes))
	}
	if w := do(t, h, "GET", "/data/jobs?group=none&key=x"); w.Code != http.StatusOK {
		t.Errorf("of a group that has never run: %d %s", w.Code, w.Body)
	}
}
