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

// figures are counted in the database, after the last worker ended.
type figures struct {
	Once, Twice, Left int
	Outdated          int // jobs done under an epoch after one was done under a later epoch of the partition
	AfterThaw         int // jobs that the frozen worker did, after it went on, under epochs from before
	Workers           int // that did something

	Ticks    int // that each schedule had up to its cursor, counted without package schedule
	Outcomes int // of them, in the history
	Ran      int // of them, once or more often
	Doubles  int // that ran once more

	Median, Latest time.Duration // from when they were due to when they ran
}

const countFigures = `
WITH runs AS (
    SELECT r.*, j.partition FROM pgleases_example.job_runs AS r JOIN pgleases_example.jobs AS j ON j.id = r.job
), per_job AS (
    SELECT j.id, j.done_at, count(r.job) AS runs
    FROM pgleases_example.jobs AS j LEFT JOIN pgleases_example.job_runs AS r ON r.job = j.id GROUP BY j.id
), ordered AS (
    SELECT epoch, max(epoch) OVER (PARTITION BY partition ORDER BY ran_at) AS highest FROM runs
), frozen AS (
    SELECT * FROM unnest($2::int[], $3::bigint[]) AS f(partition, epoch)
), ticks AS (
    SELECT s.name, t AS at FROM pgleases.schedules AS s, generate_series(s.anchor + interval '1 s', s.cursor, '1 s') AS t
)
SELECT (SELECT count(*) FROM per_job WHERE runs = 1 AND done_at IS NOT NULL),
       (SELECT count(*) FROM per_job WHERE runs > 1),
       (SELECT count(*) FROM per_job WHERE done_at IS NULL),
       (SELECT count(*) FROM ordered WHERE epoch < highest),
       (SELECT count(*) FROM runs JOIN frozen USING (partition)
        WHERE runs.worker = $1 AND runs.epoch <= frozen.epoch AND runs.ran_at >= $4),
       (SELECT count(DISTINCT worker) FROM runs),
       (SELECT count(*) FROM ticks),
       (SELECT coalesce(sum(ticks), 0)::bigint FROM pgleases.history),
       (SELECT count(*) FROM (SELECT * FROM ticks INTERSECT SELECT name, at FROM pgleases_example.ticks) AS r),
       (SELECT count(*) - count(DISTINCT (name, at)) FROM pgleases_example.ticks),
       (SELECT coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY ran_at - at), '0') FROM pgleases_example.ticks),
       (SELECT coalesce(max(ran_at - at), '0') FROM pgleases_example.ticks)`

// count counts the figures; h is of the worker that was frozen, nil if none was.
func count(ctx context.Context, pool *pgxpool.Pool, h *handoff) (figures, error) {
	var id string
	var thawed time.Time
	partitions, epochs := []int{}, []int64{}
	if h != nil {
		id, thawed = h.from, h.thawed
		for partition, epoch := range h.epochs {
			partitions, epochs = append(partitions, partition), append(epochs, epoch)
		}
	}
	rows, _ := pool.Query(ctx, countFigures, id, partitions, epochs, thawed) // CollectExactlyOneRow returns the error
	f, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[figures])
	if err != nil {
		return f, fmt.Errorf("count the figures: %w", err)
	}
	return f, nil
}

// verdict returns which figures are wrong.
func verdict(f figures, events []event, p probe) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if f.Twice != 0 {
		wrong("%s jobs were done more than once", show.Thousands(f.Twice))
	}
	if f.Left != 0 {
		wrong("%s jobs are left over", show.Thousands(f.Left))
	}
	if f.Once != jobCount {
		wrong("%s jobs were done once, not %s", show.Thousands(f.Once), show.Thousands(jobCount))
	}
	if f.Outdated != 0 {
		wrong("%s jobs were done by an owner after the next one had begun", show.Thousands(f.Outdated))
	}
	if f.AfterThaw != 0 {
		wrong("the frozen worker did %s jobs under what it owned before", show.Thousands(f.AfterThaw))
	}
	if p.refused != p.asked {
		wrong("the guard let %d of %d outdated epochs pass", p.asked-p.refused, p.asked)
	}
	if f.Ran != f.Ticks || f.Outcomes != f.Ticks {
		wrong("of %s ticks %s ran, and %s have an outcome",
			show.Thousands(f.Ticks), show.Thousands(f.Ran), show.Thousands(f.Outcomes))
	}
	if f.Doubles != 0 {
		wrong("%s ticks ran more than once", show.Thousands(f.Doubles))
	}
	for _, e := range events {
		if e.failure != "" {
			wrong("%s: %s", e.name, e.failure)
		}
	}
	return problems
}

// summary is a text about what happened.
func summary(f figures, events []event, p probe, problems []string, took time.Duration) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	line("\nWhat happened, and how long it took (by the database's clock; the TTL is %v):\n", ttl)
	for _, e := range events {
		if e.failure != "" {
			line("  %-38s  FAILED: %s", e.what, e.failure)
			continue
		}
		line("  %-38s  %3d partitions  %8s %s", e.what, e.partitions, show.Seconds(e.took), e.until)
		if e.note != "" {
			line("%66s %s", "", e.note)
		}
	}

	line("\nThe jobs, counted in the database:\n")
	line("  %6s done once, by %d workers", show.Thousands(f.Once), f.Workers)
	line("  %6s done more than once", show.Thousands(f.Twice))
	line("  %6s left over", show.Thousands(f.Left))
	line("  %6s done by an owner after the partition's next one had begun", show.Thousands(f.Outdated))
	if p.asked > 0 {
		line("  %6s done by the frozen worker, when it went on, under what it owned before",
			show.Thousands(f.AfterThaw))
		line("\nThe guard refused %d of the %d epochs under which the frozen worker had owned, "+
			"when asked after the thaw.", p.refused, p.asked)
	}

	line("\nThe ticks of %d schedules: %s, of which %s ran, %s more than once; late by %s (median), by %s at most.",
		schedules, show.Thousands(f.Ticks), show.Thousands(f.Ran), show.Thousands(f.Doubles),
		show.Seconds(f.Median), show.Seconds(f.Latest))

	if len(problems) == 0 {
		line("\nAll is as it should be: %s jobs over %d partitions and %s ticks, "+
			"none lost, none done twice, in %.1f s.",
			show.Thousands(jobCount), partitions, show.Thousands(f.Ticks), took.Seconds())
	} else {
		line("\nNOT as it should be, after %.1f s:\n", took.Seconds())
		for _, problem := range problems {
			line("  - %s", problem)
		}
	}
	return b.String()
}
