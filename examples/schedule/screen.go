package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/examples/internal/show"
)

// shown are the schedules that the table shows: one for each row.
func (s *story) shown() (names []string) {
	for _, zone := range zones {
		names = append(names, "minute/"+zone)
	}
	for n := range 8 {
		names = append(names, perSecond(n*s.Schedules/8))
	}
	return names
}

// A row is a schedule, and the last that became of a tick of it. The times are as the clocks of its zone show them.
type row struct {
	Name, Zone, Last, Next string
	Late                   *time.Duration // nil: nothing ran
	Fate, Worker           string
}

const readRows = `
SELECT s.name, z.zone, coalesce(to_char(h.until AT TIME ZONE z.zone, 'HH24:MI:SS'), '-'), coalesce(to_char(s.due AT TIME ZONE z.zone, 'HH24:MI:SS'), '-'),
       t.ran_at - t.at, coalesce(h.fate, '-'), coalesce(t.worker, '')
FROM pgleases.schedules AS s
CROSS JOIN LATERAL (SELECT coalesce(substring(s.rule FROM '^CRON_TZ=(\S+)'), 'UTC') AS zone) AS z
LEFT JOIN LATERAL (SELECT * FROM pgleases.history AS h WHERE h.group_name = s.group_name AND h.name = s.name ORDER BY h.id DESC LIMIT 1) AS h ON true
LEFT JOIN LATERAL (SELECT * FROM pgleases_example.ticks AS t WHERE t.name = s.name ORDER BY t.ran_at DESC LIMIT 1) AS t ON t.at = h.until
WHERE s.name = ANY ($1) ORDER BY s.name`

// A moment is what the display shows.
type moment struct {
	At          time.Time
	Runs        int            // until now
	ByWorker    map[string]int // of them, in the last second
	Median, P99 time.Duration  // of these, how late
	Fates       map[string]int // until now
	rows        []row          // of a terminal's table only
}

const (
	readRuns = `
SELECT worker, count(*), coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY ran_at - at), interval '0'),
       coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY ran_at - at), interval '0')
FROM pgleases_example.ticks WHERE ran_at > clock_timestamp() - interval '1 s' GROUP BY ROLLUP (worker)`
	readFates = "SELECT fate, sum(ticks)::bigint FROM pgleases.history GROUP BY fate"
)

func (s *story) read(ctx context.Context) (*moment, error) {
	m := &moment{At: time.Now(), ByWorker: make(map[string]int), Fates: make(map[string]int)}
	rows, _ := s.pool.Query(ctx, readRuns) // ForEachRow returns its error
	var worker *string
	var count int
	var median, p99 time.Duration
	_, err := pgx.ForEachRow(rows, []any{&worker, &count, &median, &p99}, func() error {
		if worker == nil { // of all
			m.Runs, m.Median, m.P99 = count, median, p99
		} else {
			m.ByWorker[*worker] = count
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	rows, _ = s.pool.Query(ctx, readFates)
	var fate string
	if _, err = pgx.ForEachRow(rows, []any{&fate, &count}, func() error { m.Fates[fate] = count; return nil }); err != nil {
		return nil, err
	}
	if s.screen.Terminal {
		rows, _ = s.pool.Query(ctx, readRows, s.shown())
		m.rows, err = pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	}
	return m, err
}

// show shows what runs, until ctx ends.
func (s *story) show(ctx context.Context) {
	tick := time.NewTicker(s.screen.Interval())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		m, err := s.read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.screen.Event("cannot read the tables: %v", err) // the story fails for it, or it was a moment's trouble
		case s.screen.Terminal:
			s.screen.Table(m.table(s.crew.All()))
		default:
			s.screen.Event("%s", m.line(s.crew.All()))
		}
	}
}

// fates tells how many ticks have which fate.
func (m *moment) fates() string {
	var text []string
	for _, fate := range []string{"done", "missed", "skipped", "dead", "cancelled"} {
		if n := m.Fates[fate]; n > 0 {
			text = append(text, show.Thousands(n)+" "+fate)
		}
	}
	return strings.Join(text, ", ")
}

func (m *moment) table(workers []*show.Worker) []string {
	lines := []string{
		"",
		fmt.Sprintf("  %d runs in the last second, late by %s (p50) and %s (p99); until now %s", m.Runs, show.Seconds(m.Median), show.Seconds(m.P99), m.fates()),
		"",
		"  schedule                     zone                  last      next      late      fate     by",
	}
	for _, r := range m.rows {
		late := "-"
		if r.Late != nil {
			late = show.Seconds(*r.Late)
		}
		lines = append(lines, fmt.Sprintf("  %-28s %-21s %-9s %-9s %-9s %-8s %s", r.Name, r.Zone, r.Last, r.Next, late, r.Fate, r.Worker))
	}
	lines = append(lines, "", "  process       pid  state    runs/s")
	for _, w := range workers {
		lines = append(lines, fmt.Sprintf("  %-9s %7d  %-7s  %6d", w.ID, w.PID(), w.State(), m.ByWorker[w.ID]))
	}
	return lines
}

func (m *moment) line(workers []*show.Worker) string {
	text := fmt.Sprintf("%3d runs/s, late by %s (p50), %s (p99)", m.Runs, show.Seconds(m.Median), show.Seconds(m.P99))
	for _, w := range workers {
		switch n, state := m.ByWorker[w.ID], w.State(); {
		case state == show.Working:
			text += fmt.Sprintf(" | %s: %d/s", w.ID, n)
		case slices.Contains([]string{show.Frozen, show.Closing}, state):
			text += fmt.Sprintf(" | %s (%s): %d/s", w.ID, state, n)
		}
	}
	return text
}
