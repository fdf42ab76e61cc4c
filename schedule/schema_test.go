package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// Tables in a schema whose name must be quoted, created twice, with the clock of the server: a
// schedule of each second runs at its ticks.
func TestAnotherSchemaAndTheServersOwnClock(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	pool := newPool(t, pgtest.OwnerURL(pgtest.EmptyDatabase(t)))
	const schema = `o'dd "one"`
	testkit.OK(t, schedule.Migrate(t.Context(), pool, schedule.WithSchema(schema)))
	client := testkit.Must(pgleases.NewClient(t.Context(), pool, pgleases.WithSchema(schema)))(t)
	db := &database{t: t, Pool: pool}
	w := &worker{t: t, db: db, client: client, pool: pool, ended: make(chan error, 1)}
	w.Scheduler = testkit.Must(schedule.New(t.Context(), client, pool, group, schedule.WithSchema(schema)))(t)
	t.Cleanup(w.close)
	db.exec(`CREATE TABLE public.effects (name text, at timestamptz, epoch bigint,
		made timestamptz DEFAULT clock_timestamp())`)
	books := schedule.InTx(w.Scheduler, "books", effect)
	testkit.OK(t, books.Put(t.Context(), "close", args{}, schedule.Every(time.Second), missedAll))
	w.run()
	testkit.Until(t, "it has run", func() bool { return db.count("public.effects") >= 2 })
	expect(t, db.count("public.effects WHERE made < at"), 0, "runs before their ticks")
	var last time.Time
	for _, e := range all(t, w.History(t.Context(), "close", 0)) {
		// Those that were skipped have one entry.
		gap := !last.IsZero() && !e.Until.Equal(last)
		if gap || e.Until.Sub(e.Since) != time.Duration(e.Ticks)*time.Second {
			t.Errorf("an entry of %d ticks from %v to %v, and the next from %v", e.Ticks, e.Since, e.Until, last)
		}
		last = e.Since
	}
}

// Sessions with another zone and date style: the local time of the last tick is read as it was
// written.
func TestTheSettingsOfTheSessionDoNotMatter(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.set("timezone", "Asia/Tokyo")
	db.set("DateStyle", "German")
	w := newWorker(db)
	its := &database{t: t, url: db.url, Pool: w.pool}
	expect(t, one[string](its, "SELECT current_setting('timezone')"), "Asia/Tokyo", "the session's zone")
	k := schedule.InTx(w.Scheduler, "books", effect)
	l := newLedger(db, "close")
	l.should = func(after, until time.Time) (ticks []time.Time) {
		for t := after.Truncate(20 * time.Minute).Add(20 * time.Minute); !t.After(until); t = t.Add(20 * time.Minute) {
			ticks = append(ticks, t)
		}
		return ticks
	}
	rule := schedule.Cron("*/20 0-22 * * *", "UTC") // not all 24 hours: local times count
	testkit.OK(t, k.Add("close", args{}, rule))
	w.run().has("close")
	db.setClock(midnight.Add(20 * time.Minute))
	l.settled(w.Scheduler)
	testkit.OK(t, w.Pause(t.Context(), "close")) // writes the row as it was read
	testkit.OK(t, w.Resume(t.Context(), "close", schedule.ResumeCatchUp))
	db.setClock(midnight.Add(40 * time.Minute))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2})
}

// Without a client schedules are managed, and do not run.
func TestManageNeedsNoClient(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithPartitions(7))
	l := w.runs(schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly))
	m := testkit.Must(schedule.Manage(t.Context(), newPool(t, db.url), "tests"))(t)
	testkit.OK(t, m.Pause(t.Context(), "close"))
	s := testkit.Must(w.Get(t.Context(), "close"))(t)
	expect(t, s.PausedAt.IsZero(), false, "that it is not paused")
	strays := db.count("pgleases.schedules WHERE partition <> pgleases.partition_for(key, 7)")
	expect(t, strays, 0, "schedules in a partition that is not theirs")
	testkit.OK(t, m.Resume(t.Context(), "close", schedule.ResumeFromNow))
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
	expect(t, db.count("pgleases.clients"), 1, "clients")
	contains(t, m.Run(t.Context()), "create it with New")
	_, err := schedule.Manage(t.Context(), newPool(t, pgtest.EmptyDatabase(t)), "tests")
	wraps(t, "without tables", err, pgleases.ErrSchema)
}

// Changes are made and recorded, whatever the search_path of the role.
func TestChangesIgnoreSearchPath(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	k := schedule.InTx(newWorker(db).Scheduler, "books", effect)
	testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly))
	db.makeStrange()
	why := schedule.WithReason("why", "ann")
	m := testkit.Must(schedule.Manage(t.Context(), testkit.Pool(t, db.url), group, why))(t)
	changed := schedule.InTx(newWorker(db).Scheduler, "raw", nothing[string])
	for _, text := range []string{"one", "other", "other"} {
		testkit.OK(t, changed.Put(t.Context(), "close", text, hourly))
		expect(t, one[string](db, "SELECT args #>> '{}' FROM pgleases.schedules"), text, "arguments")
	}
	testkit.OK(t, m.Pause(t.Context(), "close"))
	testkit.OK(t, m.Resume(t.Context(), "close", schedule.ResumeFromNow))
	testkit.OK(t, m.Pause(t.Context(), "close"))
	testkit.OK(t, m.Resume(t.Context(), "close", schedule.ResumeCatchUp))
	id := testkit.Must(m.Trigger(t.Context(), "close"))(t)
	testkit.OK(t, m.Cancel(t.Context(), id))
	testkit.Must(m.Retry(t.Context(), id))(t)
	testkit.Must(m.Backfill(t.Context(), "close", midnight.Add(-90*time.Minute), midnight))(t)
	failed := one[time.Time](db, `INSERT INTO pgleases.history
			(schedule, group_name, name, kind, since, until, ticks, outcome, ended_at)
		SELECT id, group_name, name, kind, t, t, 1, 'failed', t
		FROM pgleases.schedules, unnest('{2026-01-01 01:00Z,2026-01-01 02:00Z}'::timestamptz[]) AS t RETURNING until`)
	testkit.Must(m.RetryTick(t.Context(), "close", failed))(t)
	retries, refused, err := m.RetryFailed(t.Context(), "raw", failed)
	testkit.OK(t, err)
	expect(t, fmt.Sprint(len(retries), refused), "1 0", "retries of failed ticks, and refusals")
	for _, conflict := range []schedule.OnConflict{
		schedule.OnConflictIgnore, schedule.OnConflictReplace, schedule.OnConflictIgnore,
	} {
		testkit.Must(changed.Enqueue(t.Context(), "text", schedule.WithUnique("one", conflict)))(t)
	}
	testkit.OK(t, m.Delete(t.Context(), "close"))
	expect(t, db.verbs(), strings.Join([]string{
		"schedule paused", "schedule resumed", "schedule paused", "schedule resumed",
		"schedule triggered", "job canceled", "job retried", "schedule backfilled",
		"tick retried", "jobs retried", "schedule deleted",
	}, ", "), "what is written down")
}
