package dashboard_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// asked are the questions by GET, each with parameters for what the statements of filled insert.
var asked = map[string][]string{
	"calendar":  {"group=g&name=n"},
	"consumer":  {"name=c"},
	"consumers": {""},
	"curves":    {"of=all", "of=consumer&name=c"},
	"explain":   {"lease=l&partition=0", "lease=l&key=k"},
	"happened":  {"", "lease=l"},
	"history":   {"group=g&name=n"},
	"jobs":      {"group=g", "group=g&which=failed", "group=g&kind=k", "group=g&which=failed&kind=k", "group=g&key=k"},
	"life":      {"lease=l", "lease=l&partition=0"},
	"past":      {""},
	"poll":      {""},
	"schedule":  {"group=g&name=n"},
	"schedules": {"group=g"},
}

// questionsByGet returns the addresses of all questions by GET, and fails for one that asked lacks.
func questionsByGet(t *testing.T) (addresses []string) {
	t.Helper()
	names, _ := dashboard.Questions()
	for _, name := range names {
		if asked[name] == nil {
			t.Errorf("add the question %q to asked", name)
		}
		for _, query := range asked[name] {
			addresses = append(addresses, "/data/"+name+"?"+query)
		}
	}
	return addresses
}

// filled returns a database with a row of each kind.
func filled(t *testing.T) (url string) {
	t.Helper()
	url = pgtest.MigratedDatabase(t)
	owner := newPool(t, pgtest.OwnerURL(url))
	testkit.OK(t, schedule.Migrate(t.Context(), owner))
	testkit.OK(t, consumer.Migrate(t.Context(), owner))
	exec(t, url, `
		INSERT INTO pgleases.clients (session, id, incarnation, expires_at, ttl, host, pid, started_at)
		VALUES (1, 'a', 1, now() + interval '1 hour', '1 hour', 'h', 7, now());
		INSERT INTO pgleases.leases VALUES ('l', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number) VALUES ('l', 1, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		SELECT 'l', p, 1, 1, 3, 'a', now() FROM generate_series(0, 1) AS p;
		INSERT INTO pgleases.events (lease, cause, to_id, partitions) VALUES ('l', 'given', 'a', '{[0,2)}');
		INSERT INTO pgleases.schedule_groups VALUES ('g', 1);
		INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered)
		VALUES ('g', 'n', 'k', 0, 'k', '{}', '@every 1h', now(), true, now(), now() + interval '1 hour', 1, now());
		INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
		VALUES ('g', 'k', 0, 'k', '', 'job', '{}', 0, now(), now());
		INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, outcome, ended_at)
		SELECT id, 'g', 'n', 'k', now(), now(), 1, 'failed', now() FROM pgleases.schedules;
		INSERT INTO pgleases.history
			(source, job, group_name, name, kind, key, since, until, ticks, outcome, ended_at)
		VALUES ('job', 9, 'g', '', 'k', 'k', now(), now(), 1, 'failed', now());
		INSERT INTO pgleases.consumers (name, queue, id_column, key_column, partition_column, partitions)
		VALUES ('c', 'public.q', 'id', 'key', 'p', 1)`)
	return url
}

// A row that a program with the rights of an application can write, but no client writes, hides no other
// row: each question is answered, and no part of the answer is a failure.
func TestOddRowsHideNoOthers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	const tick = `
		INSERT INTO pgleases.history
			(schedule, group_name, name, kind, since, until, ticks, outcome, started_at, ended_at)
		SELECT id, 'g', 'n', 'k', `
	const job = `
		INSERT INTO pgleases.history
			(source, job, group_name, name, kind, key, begins, since, until, ticks, outcome, ended_at)
		VALUES ('job', 8, 'g', '', 'k', 'k', `
	url := filled(t)
	pool := newPool(t, pgtest.OwnerURL(url)) // an application's role may not read all
	for _, odd := range []string{
		"SELECT 1", // so all questions are right
		`INSERT INTO pgleases.events (lease, cause, partitions) VALUES
			('l', 'given', '{[-2147483648,2147483647)}'), ('l', 'given', '{(,)}'), ('l', 'given', '{}'),
			('l', 'given', '{(,-5),[-2,2147483647)}')`,
		`INSERT INTO pgleases.samples VALUES
			(now(), 'clients', '', 'NaN'), (now(), 'leases', '', 'Infinity'), (now(), 'waiting', 'c', '-Infinity')`,
		tick + `now(), now(), 9223372036854775807, o, now(), now()
			FROM pgleases.schedules, unnest('{succeeded,succeeded,skipped,skipped,failed,failed}'::text[]) AS o`,
		tick + `now(), now(), -9223372036854775808, o, now(), now()
			FROM pgleases.schedules, unnest('{succeeded,succeeded,succeeded,skipped,failed}'::text[]) AS o`,
		tick + `'-infinity', 'infinity', 1, 'failed', '-infinity', 'infinity' FROM pgleases.schedules`,
		tick + `'4713-01-01 BC', '294276-01-01', 1, 'succeeded', '294276-01-01', '4713-01-01 BC'
			FROM pgleases.schedules`,
		job + `'infinity', '-infinity', 'infinity', 1, 'failed', '-infinity')`,
		`UPDATE pgleases.leases SET partitions = 2147483647`,
		`INSERT INTO pgleases.graces VALUES ('l', 'b', 1, NULL, 1, '-infinity', 'infinity')`,
		`UPDATE pgleases.clients SET ttl = '-9999 years',
			metadata = ('{"a": ' || repeat('[', 11000) || repeat(']', 11000) || '}')::jsonb`,
		`UPDATE pgleases.schedule_groups SET partitions = 65536`,
		`UPDATE pgleases.schedule_groups SET partitions = 1`,
		`UPDATE pgleases.schedules SET registered = '-infinity', began = '-infinity', outages = 1`,
		`UPDATE pgleases.jobs SET args = (repeat('[', 11000) || repeat(']', 11000))::jsonb`,
		`UPDATE pgleases.jobs SET due = '294276-12-31'`,
		`UPDATE pgleases.jobs SET due = 'infinity'`,
		`UPDATE pgleases.schedules
			SET rule = repeat('* ', 100000), failures = 2147483647, error = repeat('x', 1000000)`,
	} {
		exec(t, url, odd)
		h := newHandler(t, pool, dashboard.Options{})
		testkit.Until(t, "all is read", func() bool {
			polled := do(t, h, "GET", "/data/poll").Body.String()
			isRead := func(part string) bool { return strings.Contains(polled, `"`+part+`":{`) }
			isStale := strings.Contains(polled, `"stale":true`)
			return isStale || isRead("health") && isRead("schedules") && isRead("locks")
		})
		for _, address := range questionsByGet(t) {
			var w *httptest.ResponseRecorder
			// A server that is busy with other tests may take longer, so the question is asked again.
			testkit.Until(t, address+" is answered within the limit", func() bool {
				w = do(t, h, "GET", address)
				return !strings.Contains(w.Body.String(), "took longer")
			})
			var content any
			isKnown := w.Code == http.StatusOK || w.Code == http.StatusNotFound
			if err := json.Unmarshal(w.Body.Bytes(), &content); err != nil || !isKnown {
				t.Errorf("after %.200s\n%s: %d %.500s", odd, address, w.Code, w.Body)
			}
			for _, failure := range failuresIn(content) {
				t.Errorf("after %.200s\n%s: %s", odd, address, failure)
			}
		}
	}
}

// A program with the rights of an application writes no number of partitions of which a screen would
// show each.
func TestGroupsRefuseANumberOfPartitionsOutOfRange(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.OwnerURL(filled(t)))
	for _, number := range []int{math.MinInt32, 0, 65537} {
		_, err := pool.Exec(t.Context(), "UPDATE pgleases.schedule_groups SET partitions = $1", number)
		if err == nil || !strings.Contains(err.Error(), "violates check constraint") {
			t.Errorf("%d partitions: %v", number, err)
		}
	}
}

// failuresIn returns the texts of an answer that say what could not be read.
func failuresIn(content any) (all []string) {
	switch c := content.(type) {
	case map[string]any:
		for key, value := range c {
			text, _ := value.(string)
			ofPostgres := strings.Contains(text, "SQLSTATE") || strings.Contains(text, "cannot read")
			if strings.HasSuffix(key, "failure") && text != "" || key == "text" && ofPostgres {
				all = append(all, key+": "+text)
			}
			all = append(all, failuresIn(value)...)
		}
	case []any:
		for _, value := range c {
			all = append(all, failuresIn(value)...)
		}
	}
	return all
}

// Without the access of an operator, each question by POST is refused before its body is read, whatever
// the request says of itself, and no question takes another method than its own.
func TestReadOnlyRefusesEachVerb(t *testing.T) {
	t.Parallel()
	byGet, byPost := dashboard.Questions()
	handlers := map[string]http.Handler{
		"nobody asks who it is": newHandler(t, idle(t), dashboard.Options{}),
		"a viewer":              newHandler(t, idle(t), asViewer),
		"nobody":                newHandler(t, idle(t), as(dashboard.AccessDenied, "")),
	}
	for _, headers := range [][]string{
		nil,
		{"Sec-Fetch-Site", "same-origin"},
		{"Sec-Fetch-Site", "none"},
		{"Origin", "http://example.com"},
		{"Sec-Fetch-Site", "cross-site"},
		{"Origin", "null"},
		{"Content-Type", "text/plain"},
		{"X-HTTP-Method-Override", "GET"},
	} {
		for who, h := range handlers {
			for _, name := range byPost {
				body := `{"verb":"drain","subject":"a","group":"g","consumer":"c","name":"n",` +
					`"reason":"why","actor":"root"}`
				if w := sent(h, "/data/"+name, body, headers...); w.Code != http.StatusForbidden {
					t.Errorf("%s, POST %s with %q: %d %s", who, name, headers, w.Code, w.Body)
				}
			}
		}
	}
	operator := newHandler(t, idle(t), asOperator)
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post"} {
		for _, name := range byPost {
			if w := do(t, operator, method, "/data/"+name); method != "POST" && w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d %s", method, name, w.Code, w.Body)
			}
		}
		for _, name := range byGet {
			isGet := method == "GET" || method == "HEAD"
			if w := do(t, operator, method, "/data/"+name); !isGet && w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d %s", method, name, w.Code, w.Body)
			}
		}
	}
}

// Each question refuses a query that cannot be read as a whole, or that is no text of the database, and
// names what is wrong.
func TestEachQuestionRefusesABadQuery(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), dashboard.Options{})
	byGet, _ := dashboard.Questions()
	for _, name := range byGet {
		for query, want := range map[string]string{
			"name=%zz":                              `invalid URL escape \"%zz\"`,
			"name=a;group=b":                        "invalid semicolon",
			"name=%00":                              `The value \"\\x00\" of \"name\" is not text`,
			"after=%ff":                             `The value \"\\xff\" of \"after\" is not text`,
			"name=" + strings.Repeat("%25", 1<<13):  "The query is longer than 16384 bytes",
			strings.Repeat("lease=l&", 1<<12) + "a": "The query is longer than 16384 bytes",
		} {
			w := do(t, h, "GET", "/data/"+name+"?"+query)
			if w.Code < 400 || w.Code >= 500 || !strings.Contains(w.Body.String(), want) || w.Body.Len() > 1000 {
				t.Errorf("%s?%.40s: %d %.200s, want %s", name, query, w.Code, w.Body, want)
			}
		}
	}
}

// After an outage, each question is asked again within the time that a failure is kept, also if its answer
// says of parts that they failed.
func TestEachQuestionIsAskedAgainAfterAnOutage(t *testing.T) {
	t.Parallel()
	for _, address := range questionsByGet(t) {
		synctest.Test(t, func(t *testing.T) {
			var dials atomic.Int32
			pool := testkit.Pool(t, nowhere, func(config *pgxpool.Config) {
				config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
					dials.Add(1)
					<-ctx.Done()
					return nil, ctx.Err()
				}
			})
			h := dashboard.HandlerWith(pool, asViewer, time.Second, 15*time.Second, time.Second)
			do(t, h, "GET", address)
			before := dials.Load()
			time.Sleep(6 * time.Second)
			do(t, h, "GET", address)
			time.Sleep(20 * time.Second) // shared questions have a loop, and a dial takes up to 15 s
			if dials.Load() == before {
				t.Errorf("%s: the answer of the outage is kept", address)
			}
			time.Sleep(time.Minute) // so the loops of polls end
		})
	}
}

// After an outage, an open page shows within a minute how the database answers now, in each part.
func TestEachPartIsReadAgainAfterAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		pool := testkit.Pool(t, nowhere, func(config *pgxpool.Config) {
			config.ConnConfig.ConnectTimeout = 20 * time.Second
			config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
				if time.Since(began) < 30*time.Second {
					<-ctx.Done()
				}
				return nil, errors.New("there is another fault now")
			}
		})
		h := dashboard.HandlerWith(pool, asViewer, time.Second, 15*time.Second, time.Second)
		polled := ""
		for range 105 {
			polled = do(t, h, "GET", "/data/poll").Body.String()
			time.Sleep(time.Second)
		}
		if strings.Contains(polled, "deadline exceeded") {
			t.Errorf("a part still shows the outage after %v: %s", time.Since(began), polled)
		}
		time.Sleep(time.Minute) // so the loops end
	})
}
