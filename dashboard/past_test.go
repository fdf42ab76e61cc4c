package dashboard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// look asks a question by GET.
func look(
	t *testing.T, h http.Handler, path string, query map[string]string,
) *httptest.ResponseRecorder {
	t.Helper()
	values := make(neturl.Values)
	for key, value := range query {
		values.Set(key, value)
	}
	return do(t, h, "GET", "/data/"+path+"?"+values.Encode())
}

// The answers of all questions about the past to bad periods, and to names that nothing has.
func TestPastRefusesWhatItCannotAnswer(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	h := newHandler(t, newPool(t, url), dashboard.Options{})
	for _, test := range []struct {
		path, query string
		status      int
		want        string
	}{
		{"past", "since=soon", 400, `The period \"soon\" is invalid: give since=1h`},
		{"past", "since=1y", 400, "is invalid"},
		{"past", "since=0h", 400, "out of range, which is 1 minute to 31 days"},
		{"past", "since=32d", 400, "out of range"},
		{"past", "from=yesterday", 400, `The start \"yesterday\" of the period is no time`},
		{"past", "from=2031-05-01T00:00:00Z&to=x", 400, `The end \"x\" of the period is no time`},
		{"past", "from=2031-05-02T00:00:00Z&to=2031-05-01T00:00:00Z", 400, "The period of -24h0m0s is out of range"},
		{"past", "from=2020-01-01T00:00:00Z", 400, "out of range"},
		{"past", "to=0000-01-01T00:00:00Z", 400, `The end \"0000-01-01T00:00:00Z\" of the period is no time`},
		{"past", "from=0000-01-01T00:00:00Z&to=0000-01-02T00:00:00Z", 400, "of the period is no time"},
		{"past", "from=0001-01-01T00:00:00%2B01:00&to=0001-01-02T00:00:00Z", 400, "of the period is no time"},
		{"past", "to=9999-12-31T23:59:59-23:00", 400, "of the period is no time"},
		{"past", "to=2031-05-01T00:00:00Z&since=1h", 200, `"step":60`},
		{"past", "", 200, `"moves":{`},
		{"happened", "since=x", 400, "is invalid"},
		{"happened", "lease=none&client=none&cause=none", 200, `"events":[]`},
		{"life", "lease=none&since=x", 400, "is invalid"},
		{"life", "lease=none", 404, `there is no such lease: \"none\"`},
		{"life", "lease=none&partition=x", 400, `Partition \"x\" is not a number`},
		{"life", "lease=none&partition=-1", 400, `Partition \"-1\" is not a number from 0`},
		{"life", "lease=l&partition=4294967296", 404, "there is no such partition: 4294967296"},
		{"life", "lease=l&partition=99999999999999999999", 400, `Partition \"99999999999999999999\" is not a number`},
		{"happened", "lease=%zz", 400, `The query is invalid: invalid URL escape \"%zz\".`},
		{"happened", "lease=a;client=b", 400, "The query is invalid: invalid semicolon"},
		{"happened", "lease=" + strings.Repeat("x", 17<<10), 414, "The query is longer than 16384 bytes"},
		{"poll", "leases=" + strings.Repeat("x", 17<<10), 414, "The query is longer than 16384 bytes"},
		{"life", "lease=a%00b", 400, `The value \"a\\x00b\" of \"lease\" is not text of UTF-8 without NUL.`},
		{"happened", "client=%FF", 400, `The value \"\\xff\" of \"client\" is not text`},
		{"history", "group=g&name=%00", 400, `of \"name\" is not text`},
		{"curves", "of=all&since=x", 400, "is invalid"},
		{"curves", "of=none", 400, `There are no curves of \"none\"`},
		{"curves", "of=consumer", 400, "need its name"},
		{"curves", "of=all&name=x", 400, "those of all take no name"},
		{"curves", "of=consumer&name=none", 200, `{"kind":"waiting","points":[]}`},
		{"explain", "lease=none&partition=1", 404, "there is no such partition"},
		{"explain", "lease=none&partition=", 400, "is not a number from 0"},
		{"explain", "lease=none&key=a", 404, "there is no such lease"},
	} {
		expect(t, test.path+"?"+test.query, do(t, h, "GET", "/data/"+test.path+"?"+test.query), test.status, test.want)
	}
}

// Names reach the database as they are, and a key finds the partition that the library gives it.
func TestPastTakesAnyName(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, url)
	h := newHandler(t, pool, dashboard.Options{})
	c := newClient(t, pool, "one")
	for _, name := range []string{
		`a/b "c" 'd' \ e`, "line\nbreak\ttab", "../..", "%2F~2F?&#", strings.Repeat("ä", 127),
	} {
		lease := testkit.Must(c.Lease(t.Context(), name, 7))(t)
		testkit.Until(t, "it owns all", func() bool { return len(lease.Values()) == 7 })
		w := look(t, h, "life", map[string]string{"lease": name})
		expect(t, "the life of "+name, w, 200)
		var life struct {
			Lease  string
			Spells []struct{ Owner string }
		}
		testkit.OK(t, json.Unmarshal(w.Body.Bytes(), &life))
		if life.Lease != name || len(life.Spells) == 0 || life.Spells[0].Owner != "one" {
			t.Errorf("%q: %s", name, w.Body)
		}
		w = look(t, h, "happened", map[string]string{"lease": name})
		expect(t, "the events of "+name, w, 200, `"cause":"joined"`)
		key := "customer-7/" + name
		want := fmt.Sprintf(`"partition":%d,`, lease.PartitionFor(key))
		w = look(t, h, "explain", map[string]string{"lease": name, "key": key})
		expect(t, "the partition of "+key, w, 200, want)
	}
}

// Each half of the overview fails on its own, and the answer says what the role lacks.
func TestPastWithoutRights(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	h := newHandler(t, newRole(t, url, "SELECT ON pgleases.leases"), dashboard.Options{})
	expect(t, "past", look(t, h, "past", nil), 200, "permission denied for table events", "--for=reader")
	for _, path := range []string{"happened", "life"} {
		w := look(t, h, path, map[string]string{"lease": "l"})
		expect(t, path, w, http.StatusBadGateway, "permission denied", "--for=reader")
	}
	expect(t, "without tables", look(t, h, "consumers", nil), 200, `"missing":true`)
}

func TestPastWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), dashboard.Options{})
	for _, path := range []string{"happened", "life", "explain", "consumers", "consumer", "schedule"} {
		w := look(t, h, path, map[string]string{"lease": "l", "partition": "1", "group": "g", "name": "n"})
		expect(t, path, w, http.StatusBadGateway, "failed to connect")
	}
	if w := look(t, h, "past", nil); w.Code != 200 || strings.Count(w.Body.String(), "failed to connect") < 2 {
		t.Errorf("past: %d %s", w.Code, w.Body)
	}
}

// Of a database with a million events, each question takes the server less than its limit.
func TestPastIsReadByIndex(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `INSERT INTO pgleases.leases VALUES ('l-7', 256, 5, 1, 0, 'infinity', now())`, `
		INSERT INTO pgleases.events (tx, at, lease, cause, from_id, to_id, partitions)
		SELECT (1000001 - n)::text::xid8, clock_timestamp() - n * interval '2.5 seconds', 'l-' || n % 90, 'given',
			'c-' || n % 200, 'c-' || (n + 1) % 200, int4multirange(int4range(n % 200, n % 200 + 5))
		FROM generate_series(1, 1000000) AS n`, `
		INSERT INTO pgleases.events (at, lease, cause, name, actor, reason)
		SELECT clock_timestamp() - n * interval '1 day', 'schedule/g', 'schedule paused', 'close', 'ann', 'why'
		FROM generate_series(1, 10) AS n`,
		`ANALYZE pgleases.events`)
	h := newHandler(t, newPool(t, url), dashboard.Options{})
	const day = 24 * time.Hour
	for _, query := range []string{
		"past?since=1h",
		"past?since=24h",
		"past?since=7d",
		fmt.Sprintf("past?from=%s&to=%s", ago(20*day), ago(19*day)),
		"life?lease=l-7&since=1h",
		"life?lease=l-7&since=7d",
		"life?lease=l-7&since=7d&partition=7",
		"happened?since=1h",
		"happened?since=7d",
		"happened?since=7d&lease=l-7",
		"happened?since=7d&client=c-7",
		"happened?since=30d&lease=schedule/g&name=close",
		"happened?since=30d&cause=joined",
		fmt.Sprintf("happened?from=%s&to=%s", ago(20*day), ago(20*day-time.Hour)),
	} {
		// A server that is busy with other tests may take longer, so the question is asked again.
		testkit.Until(t, query+" is answered within the limit", func() bool {
			began := time.Now()
			w := do(t, h, "GET", "/data/"+query)
			t.Logf("%s: %v, %d kB", query, time.Since(began).Round(time.Millisecond), w.Body.Len()>>10)
			if strings.Contains(w.Body.String(), "took longer") {
				return false
			}
			if w.Code != 200 {
				t.Fatalf("%s: %d %.300s", query, w.Code, w.Body)
			}
			return true
		})
	}
}

func ago(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }

// Viewers of one address share its answer.
func TestViewersOfAnAddressShareItsPast(t *testing.T) {
	t.Parallel()
	c := new(testkit.Wire)
	h := newHandler(t, testkit.Pool(t, pgtest.MigratedDatabase(t), c.Carry), dashboard.Options{})
	before := c.Counted()
	look(t, h, "past", nil)
	one := c.Counted() - before
	for range 200 {
		look(t, h, "past", nil)
	}
	if all := c.Counted() - before; all > 20*one {
		t.Errorf("201 looks are %d messages, and one is %d", all, one)
	}
}

// Viewers of one address also share why it has no answer, and why a partition has its owner.
func TestViewersOfAnAddressShareItsFailure(t *testing.T) {
	t.Parallel()
	c := new(testkit.Wire)
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t), c.Carry)
	h := newHandler(t, pool, dashboard.Options{})
	lease := testkit.Must(newClient(t, pool, "one").Lease(t.Context(), "l", 2))(t)
	testkit.Until(t, "it owns all", func() bool { return len(lease.Values()) == 2 })
	for _, test := range []struct {
		path  string
		query map[string]string
		want  int
	}{
		{"life", map[string]string{"lease": "none"}, http.StatusNotFound},
		{"explain", map[string]string{"lease": "none", "partition": "1"}, http.StatusNotFound},
		{"explain", map[string]string{"lease": "l", "partition": "1"}, http.StatusOK},
	} {
		before := c.Counted()
		look(t, h, test.path, test.query)
		one := c.Counted() - before
		for range 200 {
			if w := look(t, h, test.path, test.query); w.Code != test.want {
				t.Fatalf("%s %v: %d %s", test.path, test.query, w.Code, w.Body)
			}
		}
		if all := c.Counted() - before; all > 20*one {
			t.Errorf("%s %v: 201 looks are %d messages, and one is %d", test.path, test.query, all, one)
		}
	}
}

// newRole returns a pool whose role has only a right.
func newRole(t *testing.T, url, right string) *pgxpool.Pool {
	t.Helper()
	role, pool := roleOf(t, url)
	exec(t, url, "GRANT USAGE ON SCHEMA pgleases TO "+role, "GRANT "+right+" TO "+role)
	return pool
}

// Viewers of one address that do not read share the bytes of its answer.
func TestViewersOfThePastThatDoNotReadCostLittle(t *testing.T) { // not in parallel: it measures what the process has
	testkit.OnlyInCI(t)
	const viewers, most = 300, 50 << 20
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.events (cause, actor, reason)
		SELECT 'drain', 'ann', repeat('x', 1000) FROM generate_series(1, 1000)`)
	pool := newPool(t, url)
	server, _ := serveNarrow(t, dashboard.HandlerWith(pool, asViewer, time.Hour, patience, time.Hour))
	used := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before := used()
	for range viewers {
		doNotRead(t, server, "GET /data/happened HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200")
	}
	if cost := used() - before; cost > most {
		t.Errorf("%d viewers of a megabyte cost %.1f MB, want at most %d", viewers, float64(cost)/(1<<20), most>>20)
	} else {
		t.Logf("%d viewers cost %.1f MB", viewers, float64(cost)/(1<<20))
	}
}

// A viewer that goes away before it has its answer leaves none to the others.
func TestAViewerThatGoesLeavesNoAnswer(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newPool(t, pgtest.MigratedDatabase(t)), dashboard.Options{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // its turn comes at random
		r := httptest.NewRequest("GET", "/data/past?since=1h", nil).WithContext(gone)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	w := look(t, h, "past", map[string]string{"since": "1h"})
	if w.Code != 200 || strings.Contains(w.Body.String(), "canceled") {
		t.Errorf("another viewer gets %d %s", w.Code, w.Body)
	}
}
