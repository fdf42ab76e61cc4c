package schedule_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// kept returns the entries of a group from a time on: "outcome since count".
func kept(db *database, group string) string {
	return one[string](db, `SELECT
			coalesce(string_agg(format('%s %s-%s', outcome, from_hour, to_hour), ', ' ORDER BY outcome), '') FROM (
		SELECT outcome, min(h) AS from_hour, max(h) AS to_hour FROM (
			SELECT outcome, extract(epoch FROM until - $2::timestamptz)::int / 3600 AS h FROM pgleases.history WHERE group_name = $1) AS e GROUP BY outcome) AS f`, group, midnight)
}

// Every fifth of 28 ticks fails. All entries are of the hour of their tick.
func TestEntriesStayForAsLongAsIsAsked(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithRetention(6*time.Hour+30*time.Minute, 18*time.Hour+30*time.Minute))
	w.Times().Trim = 10 * time.Millisecond
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if r.At.Hour()%5 == 0 {
			return errors.New("no paper")
		}
		return effect(ctx, tx, r)
	})
	testkit.OK(t, k.Add("close", args{}, hourly, missedAll))
	w.run().has("close")
	// Entries of another group, and of a deleted schedule.
	db.exec(`INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, outcome, ended_at)
		SELECT 0, g, 'gone', until - interval '1 hour', until, 1, f, until FROM (VALUES ('other'), ('` + group + `')) AS groups (g), (VALUES ('succeeded'), ('failed'), ('missed')) AS outcomes (f),
		generate_series(timestamptz '2026-02-20 00:00 UTC', '2026-03-02 00:00 UTC', interval '1 hour') AS until`)
	others := kept(db, "other")
	for hour := 1; hour <= 28; hour++ {
		now := midnight.Add(time.Duration(hour) * time.Hour)
		db.setClock(now)
		counts(db, fmt.Sprintf("hour %d has its outcome", hour), 1, `pgleases.history
			WHERE name = 'close' AND until = $1`, now)
		counts(db, fmt.Sprintf("what is old in hour %d is gone", hour), 0, `pgleases.history
			WHERE group_name = $2 AND ended_at <
				$1::timestamptz - CASE outcome WHEN 'failed' THEN interval '18:30' ELSE interval '6:30' END`, now, group)
	}
	w.close()
	expect(t, kept(db, group), "failed 10-24, succeeded 22-28", "what is kept") // that of hour 21 was done
	done := db.count("pgleases.history WHERE group_name = $1 AND outcome = 'succeeded'", group)
	expect(t, done, 6, "entries of done ticks")
	expect(t, kept(db, "other"), others, "what another group has")
}

var historyRuns = flag.Int("history-runs", 4*testkit.Rounds(5000),
	"how many runs there are of which the history keeps a tenth")

// The history is as large as what is kept, however many runs there were: one run every 10 s, of
// which 10 % fail and are kept twice as long. It is vacuumed when 20 % of its rows are dead, as by
// autovacuum.
func TestHistorySizeIsBounded(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	all, kept := *historyRuns, *historyRuns/10
	step := kept / 4
	of := func(runs int) time.Duration { return time.Duration(runs) * 10 * time.Second }
	w := newWorker(db, schedule.WithRetention(of(kept), of(2*kept)))
	w.Times().Trim = 50 * time.Millisecond
	w.run()
	var early, most, size int64
	for n := step; n <= all; n += step {
		_, err := db.Exec(t.Context(), `INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until,
				ticks, outcome, attempts, epoch, started_at, ended_at)
			SELECT n % 200, $1, 'second ' || n % 200, 'books', at - interval '10 seconds', at, 1, CASE n % 10 WHEN 0 THEN 'failed' ELSE 'succeeded' END, 1, 1, at, at
			FROM generate_series($2::int, $3::int) AS n, LATERAL (SELECT $4::timestamptz + n * interval '10 seconds') AS t (at)`, group, n-step+1, n, midnight)
		testkit.OK(t, err)
		db.setClock(midnight.Add(of(n)))
		counts(db, fmt.Sprintf("after %d runs what is old is gone", n), 0, `pgleases.history
			WHERE ended_at < $1 AND outcome = 'succeeded' OR ended_at < $2`,
			midnight.Add(of(n-kept)), midnight.Add(of(n-2*kept)))
		db.exec("VACUUM pgleases.history")
		size = one[int64](db, "SELECT pg_total_relation_size('pgleases.history')")
		most = max(most, size)
		if n == 4*kept {
			early = size
		}
	}
	left := db.count("pgleases.history")
	t.Logf("%d runs, %d entries are left, %d kB; after %d runs %d kB; at most %d kB",
		all, left, size/1024, 4*kept, early/1024, most/1024)
	if wants := int64(kept + kept/10); left < wants || left > wants+2 {
		t.Errorf("%d entries are left, of %d that are to be kept", left, wants)
	}
	// Without end it would have been 2.5 times that. An open snapshot may keep one VACUUM from its work.
	if 2*most > 3*early {
		t.Errorf("the history has %d bytes, and had %d after %d runs, %d at most", size, early, 4*kept, most)
	}
}

// While the clock is wrong for a moment, all entries look old.
func TestUnstableClockTrimsNoHistory(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithRetention(24*time.Hour, 24*time.Hour))
	w.Times().Trim = time.Millisecond
	w.Times().ClockDoubt = time.Hour
	testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly))
	db.exec(`INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, outcome, ended_at)
		SELECT 0, '` + group + `', 'close', now - interval '1 hour', now, 1, 'succeeded', now FROM public.test_clock`)
	w.run().has("close")
	db.polled()
	db.setClock(midnight.Add(30 * 24 * time.Hour))
	for range 5 {
		db.polled()
	}
	expect(t, db.count("pgleases.history WHERE outcome = 'succeeded'"), 1, "entries")
}

// Entries that were written while the clock was wrong by 80 years do not keep other entries.
func TestAnEntryOfTheFutureKeepsNoOther(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithRetention(24*time.Hour, 24*time.Hour))
	w.Times().Trim = 10 * time.Millisecond
	for _, ended := range []string{"2026-02-01", "2106-01-01", "2026-02-02", "2026-03-01 23:00"} {
		db.exec(`INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, outcome, ended_at)
			VALUES (0, '` + group + `', 'close', '2026-01-01', '2026-01-02', 1, 'succeeded', '` + ended + ` UTC')`)
	}
	w.run()
	becomes(db, "what is old is gone", "2106 2026", `SELECT
		string_agg(to_char(ended_at AT TIME ZONE 'UTC', 'YYYY'), ' ' ORDER BY id) FROM pgleases.history`)
}
