package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/examples/internal/jobs"
	"github.com/pgleases/pgleases/examples/internal/show"
)

// figures are counted in the database, after the last worker ended.
type figures struct {
	Once, Twice, Left int
	Outdated          int // jobs done under an epoch after one was done under a later epoch of the partition
	AfterThaw         int // jobs that the frozen worker did, after it went on, under epochs from before
	Refused           int // by Guard, to workers at work
	Workers           int // that did something
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
)
SELECT (SELECT count(*) FROM per_job WHERE runs = 1 AND done_at IS NOT NULL),
       (SELECT count(*) FROM per_job WHERE runs > 1),
       (SELECT count(*) FROM per_job WHERE done_at IS NULL),
       (SELECT count(*) FROM ordered WHERE epoch < highest),
       (SELECT count(*) FROM runs JOIN frozen USING (partition)
        WHERE runs.worker = $1 AND runs.epoch <= frozen.epoch AND runs.ran_at >= $4),
       (SELECT count(*) FROM pgleases_example.refusals),
       (SELECT count(DISTINCT worker) FROM runs)`

// count counts the figures; h is of the worker that was frozen, nil if none was.
func count(ctx context.Context, pool *pgxpool.Pool, h *handover) (figures, error) {
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

// verdict returns what is not as it should be.
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
	for _, e := range events {
		if e.failure != "" {
			wrong("%s: %s", e.name, e.failure)
		}
	}
	return problems
}

// summary is what happened, for people.
func summary(f figures, events []event, p probe, problems []string, ttl, took time.Duration) string {
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
		line("  %6s done by the frozen worker, when it went on, under what it owned before", show.Thousands(f.AfterThaw))
		line("\nThe guard refused %d of the %d epochs under which the frozen worker had owned, when asked after", p.refused, p.asked)
		line("the thaw, and %d jobs to workers at work.", f.Refused)
	} else {
		line("\nThe guard refused %d jobs to workers at work.", f.Refused)
	}

	if len(problems) == 0 {
		line("\nAll is as it should be: %s jobs over %d partitions, none lost, none done twice, in %.1f s.",
			show.Thousands(jobCount), jobs.Partitions, took.Seconds())
	} else {
		line("\nNOT as it should be, after %.1f s:\n", took.Seconds())
		for _, problem := range problems {
			line("  - %s", problem)
		}
	}
	return b.String()
}
