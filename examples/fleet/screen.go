package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/examples/internal/show"
	"github.com/pgleases/pgleases/internal/ranges"
)

// A progress is how many jobs were done when.
type progress struct {
	at       time.Time
	byWorker map[string]int
	all      int
}

// show shows the owners and the progress, until ctx ends.
func (f *fleet) show(ctx context.Context) {
	interval := f.screen.Interval()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var past []progress
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now, all, err := f.read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			f.screen.Event("cannot read the tables: %v", err) // the story fails for it, or it was a moment's trouble
			continue
		}
		past = append(past, now)
		if last := len(past) - 1; last > 0 {
			// The rate is that of the last second: smooth enough to read, quick enough to show an event.
			first := max(0, last-int(time.Second/interval))
			past = past[first:]
		}
		if f.screen.Terminal {
			f.screen.Table(f.table(now, past[0], all))
		} else {
			f.screen.Event("%s", f.line(now, past[0], all))
		}
	}
}

// read reads what the display shows.
func (f *fleet) read(ctx context.Context) (progress, []ownership, error) {
	p := progress{at: time.Now(), byWorker: make(map[string]int)}
	rows, _ := f.pool.Query(ctx, "SELECT worker, count(*) FROM pgleases_example.job_runs GROUP BY worker")
	var worker string
	var count int
	_, err := pgx.ForEachRow(rows, []any{&worker, &count}, func() error {
		p.byWorker[worker] = count
		p.all += count
		return nil
	})
	if err != nil {
		return p, nil, err
	}
	all, err := owners(ctx, f.pool)
	return p, all, err
}

func rate(now, then int, took time.Duration) int {
	if took <= 0 {
		return 0
	}
	return int(float64(now-then)/took.Seconds() + 0.5)
}

func (f *fleet) table(now, then progress, all []ownership) []string {
	took := now.at.Sub(then.at)
	const width = 40
	bar := strings.Repeat("#", now.all*width/jobCount)
	lines := []string{
		"",
		fmt.Sprintf("  [%-*s]  %s of %s jobs done, %d/s", width, bar, show.Thousands(now.all), show.Thousands(jobCount),
			rate(now.all, then.all, took)),
		"",
		"  worker        pid  state      jobs  jobs/s  owns",
	}
	for _, w := range f.crew.All() {
		values, _ := owned(all, w.ID)
		lines = append(lines, fmt.Sprintf("  %-9s %7d  %-7s %7s  %6d  %3d: %s", w.ID, w.PID(), w.State(),
			show.Thousands(now.byWorker[w.ID]), rate(now.byWorker[w.ID], then.byWorker[w.ID], took),
			len(values), ranges.Format(values)))
	}
	if values, _ := owned(all, ""); len(values) > 0 {
		lines = append(lines, fmt.Sprintf("  %-44s  %3d: %s", "nobody", len(values), ranges.Format(values)))
	}
	return lines
}

func (f *fleet) line(now, then progress, all []ownership) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6s jobs %4d/s", show.Thousands(now.all), rate(now.all, then.all, now.at.Sub(then.at)))
	for _, w := range f.crew.All() {
		values, _ := owned(all, w.ID)
		state := w.State()
		switch {
		case len(values) > 0 && state == show.Working:
			fmt.Fprintf(&b, " | %s: %s", w.ID, ranges.Format(values))
		case len(values) > 0:
			fmt.Fprintf(&b, " | %s (%s): %s", w.ID, state, ranges.Format(values))
		}
	}
	if values, _ := owned(all, ""); len(values) > 0 {
		fmt.Fprintf(&b, " | nobody: %s", ranges.Format(values))
	}
	return b.String()
}
