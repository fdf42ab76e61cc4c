package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/examples/internal/show"
)

// figures are counted in the database, after the last process ended.
type figures struct {
	Ticks     int // that there were, counted by the database without the package
	Fates     int // of them, written down
	Schedules int // whose ticks and fates differ in number
	Done      int
	Missed    int
	Skipped   int
	Dead      int
	Cancelled int

	Effects  int // what the handlers wrote
	Doubles  int // of a tick that has another already
	Apart    int // ticks that are done without an effect, or have one and are not done
	Early    int // effects before the tick
	Outdated int // effects under an epoch after one of a later epoch of the partition
	Workers  int // that wrote something

	Calm   int // effects of ticks while nothing happened
	Median time.Duration
	P99    time.Duration
	Latest time.Duration // of all effects
}

// withTicks has the ticks that each schedule should have had, up to $1 or, where it came farther, up to its cursor; and up to the cursor.
const withTicks = `
WITH schedules AS (
    SELECT *, CASE WHEN rule LIKE '@every %' THEN anchor ELSE date_trunc('minute', anchor) END AS origin,
              CASE WHEN rule LIKE '@every %' THEN interval '1 s' ELSE interval '1 min' END AS period
    FROM pgleases.schedules
), ticks AS (
    SELECT s.name, s.cursor, t AS at FROM schedules AS s, generate_series(origin + period, greatest(cursor, $1::timestamptz), period) AS t
)`

const withoutFate = withTicks + `SELECT count(*) FROM ticks WHERE at > cursor`

const countFigures = withTicks + `, per_schedule AS (
    SELECT s.name, (SELECT count(*) FROM ticks AS t WHERE t.name = s.name) AS ticks,
                   (SELECT coalesce(sum(h.ticks), 0) FROM pgleases.history AS h WHERE h.name = s.name) AS fates
    FROM schedules AS s
), fates AS (
    SELECT coalesce(sum(ticks) FILTER (WHERE fate = 'done'), 0)::bigint AS done, coalesce(sum(ticks) FILTER (WHERE fate = 'missed'), 0)::bigint AS missed,
           coalesce(sum(ticks) FILTER (WHERE fate = 'skipped'), 0)::bigint AS skipped, coalesce(sum(ticks) FILTER (WHERE fate = 'dead'), 0)::bigint AS dead,
           coalesce(sum(ticks) FILTER (WHERE fate = 'cancelled'), 0)::bigint AS cancelled
    FROM pgleases.history
), effects AS (
    SELECT *, ran_at - at AS late, max(epoch) OVER (PARTITION BY partition ORDER BY ran_at) AS highest FROM pgleases_example.ticks
), calm AS (
    SELECT late FROM effects WHERE EXISTS (SELECT FROM unnest($2::timestamptz[], $3::timestamptz[]) AS c (since, until) WHERE at BETWEEN c.since AND c.until)
)
SELECT (SELECT sum(ticks)::bigint FROM per_schedule), (SELECT sum(fates)::bigint FROM per_schedule), (SELECT count(*) FROM per_schedule WHERE ticks <> fates),
       done, missed, skipped, dead, cancelled,
       (SELECT count(*) FROM effects),
       (SELECT count(*) FROM effects) - (SELECT count(*) FROM (SELECT DISTINCT name, at FROM effects) AS d),
       (SELECT count(*) FROM (SELECT DISTINCT name, at FROM effects) AS e FULL JOIN (SELECT name, until FROM pgleases.history WHERE fate = 'done') AS h
            ON h.name = e.name AND h.until = e.at WHERE h.name IS NULL OR e.name IS NULL),
       (SELECT count(*) FROM effects WHERE ran_at < at),
       (SELECT count(*) FROM effects WHERE epoch < highest),
       (SELECT count(DISTINCT worker) FROM effects),
       (SELECT count(*) FROM calm),
       coalesce((SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY late) FROM calm), interval '0'),
       coalesce((SELECT percentile_disc(0.99) WITHIN GROUP (ORDER BY late) FROM calm), interval '0'),
       coalesce((SELECT max(late) FROM effects), interval '0')
FROM fates`

// count counts the figures of ticks up to an instant, and of those within the spans how late they were.
func count(ctx context.Context, pool *pgxpool.Pool, until time.Time, calm []span) (figures, error) {
	since, to := []time.Time{}, []time.Time{}
	for _, c := range calm {
		since, to = append(since, c.From), append(to, c.To)
	}
	rows, _ := pool.Query(ctx, countFigures, until, since, to) // CollectExactlyOneRow returns the error
	f, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[figures])
	if err != nil {
		return f, fmt.Errorf("count the figures: %w", err)
	}
	return f, nil
}

// verdict returns what is not as it should be.
func verdict(f figures, events []event) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if f.Doubles != 0 {
		wrong("%s ticks were done a second time", show.Thousands(f.Doubles))
	}
	if f.Fates != f.Ticks || f.Schedules != 0 {
		wrong("%s ticks have %s fates; %d schedules have more or fewer of one than of the other", show.Thousands(f.Ticks), show.Thousands(f.Fates), f.Schedules)
	}
	if f.Apart != 0 {
		wrong("of %s ticks only one is there, the fate or the effect", show.Thousands(f.Apart))
	}
	if f.Early != 0 {
		wrong("%s runs were early", show.Thousands(f.Early))
	}
	if f.Outdated != 0 {
		wrong("%s runs are of an owner after the next one had begun", show.Thousands(f.Outdated))
	}
	if f.Dead != 0 || f.Cancelled != 0 {
		wrong("%s ticks are dead and %s cancelled, though no handler fails and nobody edits", show.Thousands(f.Dead), show.Thousands(f.Cancelled))
	}
	if f.Calm == 0 {
		wrong("nothing ran while nothing happened")
	}
	for _, e := range events {
		if e.failure != "" {
			wrong("%s: %s", e.name, e.failure)
		}
	}
	return problems
}

// summary is what happened, for people.
func summary(f figures, events []event, problems []string, ttl, took time.Duration) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	line("\nWhat happened, and how long it took (by the database's clock; the TTL is %v):\n", ttl)
	for _, e := range events {
		if e.failure != "" {
			line("  %-38s  FAILED: %s", e.what, e.failure)
			continue
		}
		line("  %-38s  %3d schedules  %8s %s", e.what, e.schedules, show.Seconds(e.took), e.until)
	}

	line("\nThe ticks, and what became of them, counted in the database:\n")
	line("  %6s ticks", show.Thousands(f.Ticks))
	line("  %6s done, by %d processes", show.Thousands(f.Done), f.Workers)
	line("  %6s missed, by the policy of half of the schedules: of late ticks only the latest", show.Thousands(f.Missed))
	line("  %6s skipped: the run before was still under way", show.Thousands(f.Skipped))
	line("  %6s missing: without a fate", show.Thousands(f.Ticks-f.Fates))
	line("  %6s doubles: written a second time", show.Thousands(f.Doubles))
	line("  %6s early", show.Thousands(f.Early))
	line("\nThe runs were late by %s (p50) and %s (p99) while nothing happened, by %s at most through all of it.",
		show.Seconds(f.Median), show.Seconds(f.P99), show.Seconds(f.Latest))

	if len(problems) == 0 {
		line("\nAll is as it should be: each tick has its fate, none was missing, none done twice, in %.1f s.", took.Seconds())
	} else {
		line("\nNOT as it should be, after %.1f s:\n", took.Seconds())
		for _, problem := range problems {
			line("  - %s", problem)
		}
	}
	return b.String()
}
