package admin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// sampled is a database with a consumer, whose queue table has 40 rows, and with 10 schedules, of
// which 4 fail and 3 are late.
func sampled(t *testing.T) (url string, owner *pgxpool.Pool) {
	t.Helper()
	url = pgtest.MigratedDatabase(t)
	owner = newPool(t, pgtest.OwnerURL(url))
	queue := consumer.Queue{Table: "outbox", Key: "customer", Partitions: 4, Time: "created_at"}
	testkit.OK(t, consumer.Migrate(t.Context(), owner))
	testkit.OK(t, schedule.Migrate(t.Context(), owner))
	testkit.Execute(t, owner, consumer.TableSQL("outbox", "", queue))
	client := newClient(t, owner, "worker")
	never := func(context.Context, pgx.Tx, consumer.Row[struct{}]) error { return errors.New("never called") }
	testkit.Must(consumer.New(t.Context(), client, owner, "outbox", queue, consumer.Each(never)))(t)
	testkit.Execute(t, owner, `
		INSERT INTO outbox (customer, payload, created_at)
		SELECT 'c' || n, '{}', clock_timestamp() - n * interval '1 minute' FROM generate_series(1, 40) AS n;
		INSERT INTO pgleases.schedule_groups (name, partitions) VALUES ('mail', 8);
		INSERT INTO pgleases.schedules (group_name, name, kind, key, partition, rule, args, anchor, cursor, due,
			failures, declared, revision, registered)
		SELECT 'mail', 's' || n, 'k', '', n % 8, '@every 1h', '{}', now(), now(),
			now() + CASE WHEN n <= 3 THEN '-1 hour' ELSE '1 hour' END::interval,
			CASE WHEN n > 6 THEN 2 ELSE 0 END, false, 1, now()
		FROM generate_series(1, 10) AS n`)
	return url, owner
}

// sample writes the samples of this minute, and returns those of a name, or of all together.
func sample(t *testing.T, pool *pgxpool.Pool, name string) string {
	t.Helper()
	tx := testkit.Must(pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.Background()) }()
	testkit.Must(tx.Exec(t.Context(), "DELETE FROM pgleases.samples"))(t)
	for {
		var remains bool
		testkit.OK(t, tx.QueryRow(t.Context(), "SELECT remains FROM pgleases.sample(1000)").Scan(&remains))
		if !remains {
			break
		}
	}
	var all string
	testkit.OK(t, tx.QueryRow(t.Context(), `
		SELECT coalesce(string_agg(concat_ws(' ', kind,
			coalesce(floor(value / CASE kind WHEN 'oldest' THEN 60 ELSE 1 END)::text, '-')), ', ' ORDER BY kind), '')
		FROM pgleases.samples WHERE name = $1 AND at = (SELECT max(at) FROM pgleases.samples)`, name).Scan(&all))
	return all
}

func TestSamplesOfConsumersAndSchedules(t *testing.T) {
	t.Parallel()
	_, owner := sampled(t)
	for name, want := range map[string]string{
		"outbox": "blocked 0, oldest 40, waiting 40", "mail": "failing 4, late 3",
		"": "blocked 0, clients 1, failing 4, late 3, leases 0, locks 0, oldest 40, waiting 40",
	} {
		if got := sample(t, owner, name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	testkit.Execute(t, owner, "DELETE FROM outbox")
	if got, want := sample(t, owner, "outbox"), "blocked 0, oldest 0, waiting 0"; got != want {
		t.Errorf("of an empty queue: %s, want %s", got, want)
	}
}

// What the client's role may not read, or what is gone, has no sample, and the others have theirs.
func TestSamplesLeaveOutWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	url, owner := sampled(t)
	testkit.Execute(t, owner, "DROP TABLE outbox")
	if got, want := sample(t, owner, "outbox"), "blocked 0, waiting -"; got != want {
		t.Errorf("of a queue that is gone: %s, want %s", got, want)
	}
	if got, want := sample(t, owner, "mail"), "failing 4, late 3"; got != want {
		t.Errorf("of the group: %s, want %s", got, want)
	}
	// A function that does not end stands for a queue table that is slow to read.
	exec(t, url, `
		CREATE OR REPLACE FUNCTION pgleases.consumer_backlog(p_consumer pgleases.consumers,
			OUT waiting int, OUT oldest timestamptz, OUT timed boolean, OUT unhandled int, OUT first_id bigint)
		LANGUAGE plpgsql VOLATILE AS 'BEGIN PERFORM pg_sleep(60); END'`)
	exec(t, url, "DELETE FROM pgleases.samples")
	conn := testkit.Must(owner.Acquire(t.Context()))(t)
	defer conn.Release()
	// A client allows 100 ms, in which a busy machine may not count the late schedules either.
	testkit.Must(conn.Exec(t.Context(), "SET statement_timeout = '3s'"))(t)
	for remains, calls := true, 0; remains; calls++ {
		if calls > 20 {
			t.Fatal("the samples of a minute do not end")
		}
		testkit.OK(t, conn.QueryRow(t.Context(), "SELECT remains FROM pgleases.sample(1000)").Scan(&remains))
	}
	testkit.Must(conn.Exec(t.Context(), "RESET statement_timeout"))(t)
	of := func(kind string) (n int) {
		testkit.OK(t, conn.QueryRow(t.Context(), `
			SELECT count(value)::int FROM pgleases.samples WHERE kind = $1 AND name <> ''`, kind).Scan(&n))
		return n
	}
	if of("waiting") != 0 || of("late") == 0 {
		t.Errorf("beside a slow queue there are %d samples of queues, and %d of groups", of("waiting"), of("late"))
	}
}

func TestCurvesHaveGapsAndTheHighestOfEachStep(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.samples (at, kind, name, value)
		SELECT '2031-05-01 00:00:00Z'::timestamptz + n * interval '1 minute', 'waiting', 'outbox', n
		FROM generate_series(0, 1439) AS n WHERE n < 30 OR n >= 60;
		INSERT INTO pgleases.samples (at, kind, name, value) VALUES
			('2031-05-01 00:00:00Z', 'waiting', '', 7), ('2031-05-01 00:01:00Z', 'oldest', 'outbox', NULL)`)
	a := newAdmin(t, newPool(t, url))
	day := time.Date(2031, 5, 1, 0, 0, 0, 0, time.UTC)
	outbox := func(from time.Time) *admin.Curves {
		p := admin.Period{From: from, To: from.Add(24 * hour)}
		return testkit.Must(a.Curves(t.Context(), p, "outbox", "oldest", "waiting"))(t)
	}
	c := outbox(day)
	if c.Step != 900 || len(c.Curves) != 2 {
		t.Fatalf("the curves are %+v", c)
	}
	oldest, waiting := c.Curves[0], c.Curves[1]
	if oldest.Kind != "oldest" || len(oldest.Points) != 0 || len(waiting.Points) != 94 {
		t.Fatalf("the curves are %+v", c)
	}
	points := waiting.Points
	for i, want := range map[int]admin.Point{
		0:  {day.Unix(), 14},
		1:  {day.Unix() + 900, 29},
		2:  {day.Unix() + 3600, 74},
		93: {day.Unix() + 23*3600 + 2700, 1439},
	} {
		if points[i] != want {
			t.Errorf("point %d is %v, want %v", i, points[i], want)
		}
	}
	if want := day.Add(23*hour + 59*time.Minute); c.Last == nil || !c.Last.Equal(want) {
		t.Errorf("the latest sample is of %v, want %v", c.Last, want)
	}
	for from, want := range map[time.Time]*time.Time{day.Add(-24 * hour): nil, day.Add(48 * hour): c.Last} {
		before := outbox(from)
		if (before.Last == nil) != (want == nil) || want != nil && !before.Last.Equal(*want) {
			t.Errorf("of the day from %v the latest sample is of %v, want %v", from, before.Last, want)
		}
	}
	all := testkit.Must(a.Curves(t.Context(), admin.Period{From: day, To: day.Add(hour)}, "", "waiting"))(t)
	if got := fmt.Sprint(all.Step, all.Curves); got != fmt.Sprintf("60 [{waiting [{%d 7}]}]", day.Unix()) {
		t.Errorf("of all together: %s", got)
	}
}
