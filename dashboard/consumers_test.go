package dashboard_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

const strange = "a/b \"c\"\n'd'"

// newConsumers creates the tables, and consumers with three blocked rows and two dead letters each.
func newConsumers(t *testing.T) (url string) {
	t.Helper()
	url = pgtest.MigratedDatabase(t)
	owner := newPool(t, pgtest.OwnerURL(url))
	testkit.OK(t, consumer.Migrate(t.Context(), owner))
	for i, name := range []string{"mails", strange} {
		queue := consumer.Queue{Table: fmt.Sprintf("mails%d", i), Key: "customer", Partitions: 4}
		testkit.Execute(t, owner, consumer.TableSQL(name, "", queue))
		testkit.Execute(t, owner, `
			INSERT INTO pgleases.consumers (name, queue, id_column, partition_column, key_column, partitions)
			VALUES ($1, $2, 'id', 'partition', 'customer', 4)`, name, queue.Table)
		testkit.Execute(t, owner, `
			INSERT INTO pgleases.consumer_blocked
				(consumer, partition, id, key, version, attempts, error, next_at)
			SELECT $1, 0, n, 'key ' || n, '1', 3, E'no route\nto host', 'infinity'
			FROM generate_series(1, 3) AS n`, name)
		testkit.Execute(t, owner, `
			INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts, error)
			SELECT $1, n, 0, 'key ' || n,
				jsonb_build_object('id', n, 'customer', 'key ' || n, 'payload', '{}'), 9, 'gone'
			FROM generate_series(11, 12) AS n`, name)
	}
	return url
}

func TestConsumersAreListed(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newPool(t, pgtest.OwnerURL(newConsumers(t))), dashboard.Options{})
	expect(t, "the list", look(t, h, "consumers", nil), 200, `"name":"mails"`, `"blocked_keys":3`)
	w := look(t, h, "consumer", map[string]string{"name": strange})
	expect(t, "one", w, 200)
	var c admin.Consumer
	testkit.OK(t, json.Unmarshal(w.Body.Bytes(), &c))
	if c.Name != strange || len(c.Letters) != 2 || len(c.Blocked) != 3 || c.Blocked[0].Error != "no route\nto host" {
		t.Errorf("it is %+v", c)
	}
	none := look(t, h, "consumer", map[string]string{"name": "none"})
	expect(t, "of no consumer", none, 404, `There is no consumer \"none\".`)
}

// A handled is an answer to a verb on a consumer, or to its rehearsal.
type handled struct {
	Kind, Text string
	Rows       json.RawMessage
	Failed     []struct{ ID, Text string }
	Gone       []struct{ ID string }
	All        int
	Already    bool
}

func TestVerbsOnConsumersAreRehearsedAndDone(t *testing.T) {
	t.Parallel()
	url := newConsumers(t)
	owner := newPool(t, pgtest.OwnerURL(url))
	h := newHandler(t, owner, asOperator)
	send := func(path, verb, rows string) (a handled, status int) {
		t.Helper()
		body := fmt.Sprintf(`{"verb":%q,"consumer":%q,"rows":[%s],"reason":"why"}`, verb, strange, rows)
		w := sent(h, "/data/"+path, body)
		testkit.OK(t, json.Unmarshal(w.Body.Bytes(), &a))
		return a, w.Code
	}
	for _, test := range []struct{ path, verb, rows, want string }{
		{"rehearse", "retry", `{"id":"1"},{"id":"7"}`, `rows [{"id":"1"}] gone 1`},
		{"handle", "retry", `{"id":"1"},{"id":"7"}`, `rows 1 failed 7`},
		{"rehearse", "skip", `{"id":"2"},{"id":"3"}`, `rows [{"id":"2"},{"id":"3"}]`},
		{"handle", "skip", `{"id":"2"},{"id":"3"}`, `rows 2`},
		{"rehearse", "retry_all", ``, `rows [] all 3`},
		{"handle", "retry_all", ``, `rows 3`},
		{"rehearse", "return", `{"id":"11"},{"id":"1"}`, `rows [{"id":"11"}] gone 1`},
		{"handle", "return", `{"id":"11"}`, `rows 1`},
		{"rehearse", "return_all", ``, `rows [] all 1`},
		{"handle", "return_all", ``, `rows 1`},
		{"rehearse", "pause", ``, `rows []`},
		{"handle", "pause", ``, `rows 0`},
		{"rehearse", "pause", ``, `rows [] already`},
		{"handle", "resume", ``, `rows 0`},
	} {
		a, status := send(test.path, test.verb, test.rows)
		got := "rows " + string(a.Rows)
		for _, f := range a.Failed {
			got += " failed " + f.ID
		}
		if len(a.Gone) > 0 {
			got += fmt.Sprint(" gone ", len(a.Gone))
		}
		if a.All > 0 {
			got += fmt.Sprint(" all ", a.All)
		}
		if a.Already {
			got += " already"
		}
		if status != 200 || got != test.want {
			t.Errorf("%s %s %s: %d %q, want %q: %s", test.path, test.verb, test.rows, status, got, test.want, a.Text)
		}
	}
	causes := testkit.Value[[]string](t, owner, `
		SELECT array_agg(cause ORDER BY id) FROM pgleases.events
		WHERE lease = 'consumer/' || $1 AND reason = 'why' AND actor LIKE 'ann (%'`, strange)
	want := []string{
		"row retried", "row skipped", "row skipped", "rows retried", "row returned", "row returned",
		"consumer paused", "consumer resumed",
	}
	if !slices.Equal(causes, want) {
		t.Errorf("written down is %q, want %q", causes, want)
	}
}

func TestVerbsOnConsumersAreRefused(t *testing.T) {
	t.Parallel()
	url := newConsumers(t)
	owner := newPool(t, pgtest.OwnerURL(url))
	operator := newHandler(t, owner, asOperator)
	many := strings.TrimSuffix(strings.Repeat(`{"id":"1"},`, 101), ",")
	for _, test := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"verb":"lose","consumer":"mails","reason":"why"}`, 400, `"lose" is not a verb on consumers`},
		{`{"verb":"delete","consumer":"mails","reason":"why"}`, 400, `"delete" is not a verb on consumers`},
		{`{"verb":"retry","consumer":"mails","reason":"why"}`, 400, "needs the IDs of rows"},
		{`{"verb":"pause","consumer":"mails","rows":[{"id":"1"}],"reason":"why"}`, 400, "takes no rows"},
		{`{"verb":"retry","consumer":"mails","rows":[` + many + `],"reason":"why"}`, 400, "101 rows are too many"},
		{`{"verb":"retry","consumer":"mails","rows":[{"id":"x"}],"reason":"why"}`, 400, "The request is invalid"},
		{`{"verb":"pause","consumer":"mails","reason":" "}`, 400, "Give a reason."},
		{`{"verb":"pause","consumer":"none","reason":"why"}`, 404, "none"},
		{`{"verb":"pause","consumer":"mails","reason":"` + strings.Repeat("x", 4001) + `"}`, 422, "4001 bytes"},
	} {
		got := post(t, operator, "/data/handle", test.body)
		if got.status != test.status || !strings.Contains(got.Text, test.want) {
			t.Errorf("%.80s: %+v, want %d %q", test.body, got, test.status, test.want)
		}
	}
	viewer := newHandler(t, owner, asViewer)
	const pause = `{"verb":"pause","consumer":"mails","reason":"why"}`
	for _, path := range []string{"/data/handle", "/data/rehearse"} {
		if got := post(t, viewer, path, pause); got.status != 403 || got.Kind != "denied" {
			t.Errorf("%s of a viewer: %+v", path, got)
		}
		if got := post(t, operator, path, `{}`, "Sec-Fetch-Site", "cross-site"); got.status != 403 {
			t.Errorf("%s of another site: %+v", path, got)
		}
	}
	role, pool := roleOf(t, url)
	exec(t, url, testkit.Must(admin.Grants(role, "pgleases", admin.ForReader))(t))
	reader := newHandler(t, pool, asOperator)
	got := post(t, reader, "/data/handle", pause)
	if got.status != 502 || !strings.Contains(got.Text, "--for=consumer-operators") {
		t.Errorf("without rights: %+v", got)
	}
	exec(t, url, testkit.Must(admin.Grants(role, "pgleases", admin.ForConsumerOperators))(t))
	if got := post(t, reader, "/data/handle", pause); got.status != 200 {
		t.Errorf("with the rights that the error names: %+v", got)
	}
}
