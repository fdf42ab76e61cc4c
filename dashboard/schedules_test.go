package dashboard_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/schedule"
)

// Who looks at the same page of 20,000 schedules gets it from one question, which reads no more than the page, and a verb shows at once.
func TestAPageOfManySchedulesIsAskedForOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	if err := schedule.Migrate(t.Context(), newPool(t, pgtest.OwnerURL(url), nil)); err != nil {
		t.Fatal(err)
	}
	exec(t, url, `INSERT INTO pgleases.schedule_groups VALUES ('billing', 64)`,
		`INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor, policy, declared, cursor, due, revision, registered)
			SELECT 'billing', 's' || lpad(n::text, 6, '0'), 'k' || n, n % 64, 'books', '{}', '@every 1h', now(), '{}', false, now(), now() + interval '1 hour', 1, now() FROM generate_series(0, 19999) AS n`,
		`ANALYZE pgleases.schedules`)
	c := new(cable)
	h := newHandler(t, newAdmin(t, newPool(t, pgtest.OwnerURL(url), c)), dashboard.Options{Authorize: as(dashboard.Steering, "ann")})
	get := func(query string) (page struct {
		Rows []struct{ Name, State string }
		More bool
	}) {
		t.Helper()
		w := do(t, h, "GET", "/schedules?group=billing&"+query)
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
	// The same page is asked for once for all, or, where this takes longer than a moment, a few times.
	before := c.sent.Load()
	get("which=paused")
	one := c.sent.Load() - before
	for range 200 {
		get("which=paused")
	}
	if all := c.sent.Load() - before; all > 20*one {
		t.Errorf("201 looks are %d messages, and one is %d", all, one)
	}
	if got := post(t, h, "/ask", `{"verb":"pause_schedule","group":"billing","schedule":"s000007","reason":"why"}`); got.status != 200 {
		t.Fatalf("%+v", got)
	}
	if page := get("which=paused"); len(page.Rows) != 1 || page.Rows[0].Name != "s000007" || page.Rows[0].State != "paused" {
		t.Errorf("after a verb: %+v", page)
	}
	for body, want := range map[string]string{
		`{"verb":"pause_schedule","group":"billing","schedule":"s000007","reason":" "}`:             "Say why",
		`{"verb":"pause_schedule","group":"billing","schedule":"none","reason":"why"}`:              `has no schedule "none"`,
		`{"verb":"delete_schedule","group":"billing","schedule":"s000007","reason":"why"}`:          "what is deleted is what was shown",
		`{"verb":"delete_schedule","group":"billing","schedule":"s000007","id":"1","reason":"why"}`: "is not the one that was seen",
		`{"verb":"pause_schedule","group":"billing","schedule":"s000007","id":"1","reason":"why"}`:  "ID is of delete_schedule",
		`{"verb":"cancel_job","job":"x","reason":"why"}`:                                            "not what this page sends",
		`{"verb":"drain","group":"billing","schedule":"s000007","reason":"why"}`:                    `"drain" is no verb`,
		fmt.Sprintf(`{"verb":"cancel_job","reason":%q}`, strings.Repeat("x", 17_000)):               "longer than",
	} {
		if got := post(t, h, "/ask", body); got.status < 400 || got.status > 502 || !strings.Contains(got.Text, want) || got.Kind == "unknown" {
			t.Errorf("%.60s: %+v, want %q", body, got, want)
		}
	}
	if got := post(t, newHandler(t, idle(t), dashboard.Options{Authorize: as(dashboard.ReadOnly, "")}), "/ask", `{}`); got.status != http.StatusForbidden {
		t.Errorf("of a viewer: %+v", got)
	}
	for _, path := range []string{"/jobs?group=billing&after=x", "/history?group=billing&name=s000007&after=x"} {
		if w := do(t, h, "GET", path); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// A browser sends a POST again where its connection ends before the answer. That is the same press, of the same person; another press is another.
func TestARequestThatIsSentAgainIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, pgtest.OwnerURL(url), nil)
	if err := schedule.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	exec(t, url, `INSERT INTO pgleases.schedule_groups VALUES ('billing', 64)`,
		`INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor, policy, declared, cursor, due, revision, registered)
			VALUES ('billing', 'close', 'close', 0, 'books', '{}', '@every 1h', now(), '{}', false, now(), now() + interval '1 hour', 1, now())`)
	var actor string
	h := newHandler(t, newAdmin(t, pool), dashboard.Options{Authorize: func(*http.Request) (dashboard.Access, string) { return dashboard.Steering, actor }})
	for i, press := range []struct {
		actor, token string
		jobs         int
	}{{"ann", "1", 1}, {"ann", "1", 1}, {"ann", "2", 2}, {"bob", "2", 3}, {"ann", "1", 3}, {"ann", "", 4}, {"ann", "", 5}} {
		actor = press.actor
		if got := post(
			t, h, "/ask",
			fmt.Sprintf(`{"verb":"trigger_schedule","group":"billing","schedule":"close","reason":"why","token":%q}`, press.token),
		); got.status != 200 {
			t.Fatalf("%+v", got)
		}
		var jobs int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pgleases.jobs_status").Scan(&jobs); err != nil || jobs != press.jobs {
			t.Errorf("press %d: %d jobs, %v; want %d", i, jobs, err, press.jobs)
		}
	}
}
