package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// queriesOfTheNight are those of the page on operations that are about schedules and jobs, by their headings.
func queriesOfTheNight(t *testing.T) map[string]string {
	t.Helper()
	page := testkit.Must(os.ReadFile("../docs/queries.md"))(t)
	_, chapter, _ := strings.Cut(strings.ReplaceAll(string(page), "\r\n", "\n"), "\n## Schedules and jobs at night\n")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	queries := make(map[string]string)
	for section := range strings.SplitSeq(chapter, "\n### ") {
		heading, rest, _ := strings.Cut(section, "\n")
		if _, block, found := strings.Cut(rest, "```sql\n"); found {
			block, _, _ = strings.Cut(block, "\n```")
			queries[heading] = strings.ReplaceAll(block, "billing'", group+"'")
		}
	}
	return queries
}

// Each of these can be found by an index: so it passes over few, however many schedules there are, and however long the history is.
func TestOperationsQueriesAreCheap(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	db.exec(`INSERT INTO pgleases.schedule_groups VALUES ('tests', 4);
		INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered, failures, blocked_reason, paused_at)
		SELECT 'tests', n, n, n % 4, 'books', '{}', '@every 1h', now(), false, now(), now() + n * interval '1 second', 1, now(),
		       CASE WHEN n = 1 THEN 3 ELSE 0 END, CASE WHEN n = 2 THEN 'why' END, CASE WHEN n = 3 THEN now() END
		FROM generate_series(1, 10000) AS n;
		INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, outcome, ended_at)
		SELECT n, 'tests', n, 'books', now(), now(), 1, CASE WHEN n % 1000 = 0 THEN 'failed' ELSE 'succeeded' END, now() - (20000 - n) * interval '1 minute' FROM generate_series(1, 20000) AS n`)
	db.exec(`INSERT INTO pgleases.events (lease, cause, partitions)
			SELECT 'schedule/tests', 'given', '{[0,4)}' FROM generate_series(1, 20000);
		INSERT INTO pgleases.events (lease, cause, name, actor, reason)
			SELECT 'schedule/tests', 'schedule paused', n % 100, 'ann', 'why' FROM generate_series(1, 1000) AS n`)
	db.exec("VACUUM ANALYZE pgleases.schedules, pgleases.history, pgleases.schedule_groups, pgleases.events")
	queries := queriesOfTheNight(t)
	queries["one"] = "SELECT * FROM pgleases.schedules_status WHERE group_name = 'tests' AND name = '7'"
	queries["why one is paused"] = "SELECT why FROM pgleases.schedules_status WHERE group_name = 'tests' AND name = '3'"
	seqScan := regexp.MustCompile("Seq Scan on (schedules|history|events)")
	for heading, index := range map[string]string{
		"one":                         "schedules_by_name",
		"Late schedules":              "schedules_by_due",
		"What runs now":               "schedules_by_due",
		"Who has too much to do":      "schedules_by_due",
		"Schedules that fail":         "schedules_that_fail",
		"What is blocked, and why":    "schedules_blocked",
		"What is paused, and by whom": "schedules_paused",
		"What has failed today":       "history_failed",
		"What ran in the last hour":   "history_by_time",
		"The longest runs of the day": "history_by_time",
		"What became of one":          "history_by_name",
		"What operators have changed": "events_of_operators",
		"why one is paused":           "events_by_name",
	} {
		rows := testkit.Must(db.Query(t.Context(), "EXPLAIN "+queries[heading], pgx.QueryExecModeSimpleProtocol))(t)
		lines := testkit.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
		plan := strings.Join(lines, "\n")
		if !strings.Contains(plan, index) || seqScan.MatchString(plan) {
			t.Errorf("%s does not go by %s:\n%s", heading, index, plan)
		}
	}
}

// changing are the columns that differ from one run of a test to the next.
var changing = []string{
	"at", "since", "paused_at", "answered", "backend", "open_for", "lateness", "average", "longest", "took", "tick",
	"started_at", "succeeded", "job", "owner", "actor", "args",
}

// Every query of the page on operations that is about schedules and jobs finds what it is for, and only that, also as the role that may read.
func TestOperationsQueriesShow(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	queries := queriesOfTheNight(t)
	db := newFreshDatabase(t)
	o := newOperator(db)
	reader := testkit.Must(admin.Grants(o.role, "pgleases", admin.ForReader))(t)
	db.exec(reader)
	// result runs a query of the page, once.
	result := func(heading string) string {
		t.Helper()
		query := queries[heading]
		if query == "" {
			t.Fatalf("the page has no query %q", heading)
		}
		var lines []string
		testkit.OK(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+o.role); err != nil {
				return err
			}
			rows, _ := tx.Query(t.Context(), query, pgx.QueryExecModeSimpleProtocol)
			var err error
			lines, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
				var words []string
				for i, v := range row.RawValues() {
					if !slices.Contains(changing, row.FieldDescriptions()[i].Name) {
						words = append(words, string(v))
					}
				}
				return strings.Join(words, " "), nil
			})
			return err
		}))
		return strings.Join(lines, "; ")
	}
	is := func(heading, want string) {
		t.Helper()
		got := "not read"
		testkit.Until(t, heading+" returns "+want, func() bool {
			if now := result(heading); now != got {
				got = now
				t.Logf("%s: %s", heading, got)
			}
			return got == want
		})
		delete(queries, heading)
	}
	tick := time.Now().UTC().Truncate(time.Minute).Add(-10 * time.Minute) // the queries ask the server's clock
	db.setClock(tick.Add(-time.Minute))
	w := newWorker(db)
	in, end := make(chan struct{}, 10), make(chan struct{})
	var fixed atomic.Bool
	mail := schedule.InTx(w.Scheduler, "mail", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		switch {
		case r.Args == "hangs":
			in <- struct{}{}
			released(ctx, end)
		case !fixed.Load() && strings.HasPrefix(r.Args, "bad"):
			return errors.New("no paper")
		}
		return nil
	})
	defer close(end)
	stranger := newWorker(db)
	daily := schedule.Cron(tick.Format("4 15 * * *"), "UTC")
	for _, name := range []string{"close", "bad tick", "halted"} {
		testkit.OK(t, mail.Put(t.Context(), name, name, daily))
	}
	testkit.OK(t, schedule.InTx(stranger.Scheduler, "telegraph", note).Put(t.Context(), "stranger", "", daily))
	stranger.run().has("stranger")
	db.polled()
	stranger.close() // the group is known
	testkit.OK(t, o.manage("a fire", "").Pause(t.Context(), "halted"))
	testkit.Must(mail.Enqueue(t.Context(), "hangs", rejecting("slow")))(t)
	testkit.Must(mail.Enqueue(t.Context(), "bad job", rejecting("once")))(t)
	db.setClock(tick)
	is("Late schedules", "tests bad tick mail due its partition has no owner; "+
		"tests close mail due its partition has no owner; tests stranger telegraph due its partition has no owner")
	w.run()
	testkit.Receive(t, "one runs", in)
	is("What runs now", "tests slow mail")
	is("Who has too much to do", "tests 1 0")
	is("Schedules that fail", "tests bad tick mail 1 planned no paper")
	is("What is blocked, and why", `tests schedule kind "telegraph" is not registered 1 stranger`)
	is("What is paused, and by whom", "tests halted by "+db.user()+": a fire")
	is("Jobs by what they do", "tests mail running 1")
	is("What became of one", "1 succeeded 1  ")
	db.exec("UPDATE pgleases.history SET ended_at = now()") // of today, also where the tick was yesterday
	is("What has failed today", "tests mail failed 2 0 no paper")
	is("What ran in the last hour", "tests mail failed 2; tests mail succeeded 1")
	longest := result("The longest runs of the day")
	for _, want := range []string{
		"tests mail close succeeded 1", "tests mail bad tick failed 1", "tests mail once failed 1",
	} {
		if !strings.Contains(longest, want) {
			t.Errorf("the longest runs are %q, without %q", longest, want)
		}
	}
	delete(queries, "The longest runs of the day")
	fixed.Store(true)
	ids, refused, err := o.manage("the mail server is back", "").RetryFailed(t.Context(), "mail", midnight)
	testkit.OK(t, err)
	expect(t, fmt.Sprint(len(ids), refused), "2 0", "retried and refused")
	counts(db, "the failed runs have succeeded", 2, `pgleases.history
		WHERE outcome = 'succeeded' AND job IN (SELECT retried FROM pgleases.history)`)
	is("What operators have changed", "jobs retried  2 the mail server is back; schedule paused halted  a fire")
	for heading := range queries {
		t.Errorf("no test reads the result of %q", heading)
	}
}
