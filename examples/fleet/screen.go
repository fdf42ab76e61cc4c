package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/ranges"
)

// A screen shows events, which stay, and below them a table that is drawn again and again. Where the output is not a
// terminal it writes lines only.
type screen struct {
	began    time.Time
	chatty   bool
	terminal bool

	mu    sync.Mutex // guards out and drawn
	out   io.Writer
	drawn []string // the table's lines, as they stand on the terminal
}

func newScreen(out *os.File, began time.Time, chatty bool) *screen {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 &&
		runtime.GOOS != "windows" && os.Getenv("TERM") != "" && os.Getenv("TERM") != "dumb"
	return &screen{began: began, chatty: chatty, terminal: terminal, out: out}
}

// event writes a line that stays.
func (s *screen) event(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf("%5.1f s  ", time.Since(s.began).Seconds()) + fmt.Sprintf(format, args...)
	fmt.Fprint(s.out, s.erasure(), line, "\n", s.drawing())
}

// verbose writes a line that stays, if that was asked for.
func (s *screen) verbose(line string) {
	if s.chatty {
		s.event("%s", line)
	}
}

// table replaces the table.
func (s *screen) table(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	erasure := s.erasure()
	s.drawn = lines
	fmt.Fprint(s.out, erasure, s.drawing())
}

// clear removes the table.
func (s *screen) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprint(s.out, s.erasure())
	s.drawn = nil
}

// erasure goes up to the table's first line and clears from there to the end of the screen.
func (s *screen) erasure() string {
	if len(s.drawn) == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", len(s.drawn))
}

// drawing writes the table with the terminal's line wrap off, so that a line that is too long takes one line all the same,
// and going up by the number of lines leads to the first.
func (s *screen) drawing() string {
	if len(s.drawn) == 0 {
		return ""
	}
	return "\x1b[?7l" + strings.Join(s.drawn, "\n") + "\n\x1b[?7h"
}

// A progress is how many jobs were done when.
type progress struct {
	at       time.Time
	byWorker map[string]int
	all      int
}

// show shows who owns what and what is done, until ctx ends.
func (f *fleet) show(ctx context.Context) {
	interval := time.Second // lines
	if f.screen.terminal {
		interval = 250 * time.Millisecond
	}
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
			f.screen.event("cannot read the tables: %v", err) // the story fails for it, or it was a moment's trouble
			continue
		}
		past = append(past, now)
		if last := len(past) - 1; last > 0 {
			// The rate is that of the last second: smooth enough to read, quick enough to show an event.
			first := max(0, last-int(time.Second/interval))
			past = past[first:]
		}
		if f.screen.terminal {
			f.screen.table(f.table(now, past[0], all))
		} else {
			f.screen.event("%s", f.line(now, past[0], all))
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
		fmt.Sprintf("  [%-*s]  %s of %s jobs done, %d/s", width, bar, thousands(now.all), thousands(jobCount),
			rate(now.all, then.all, took)),
		"",
		"  worker        pid  state      jobs  jobs/s  owns",
	}
	for _, w := range f.all() {
		values, _ := owned(all, w.id)
		lines = append(lines, fmt.Sprintf("  %-9s %7d  %-7s %7s  %6d  %3d: %s", w.id, w.cmd.Process.Pid, w.is(),
			thousands(now.byWorker[w.id]), rate(now.byWorker[w.id], then.byWorker[w.id], took),
			len(values), ranges.Format(values)))
	}
	if values, _ := owned(all, ""); len(values) > 0 {
		lines = append(lines, fmt.Sprintf("  %-44s  %3d: %s", "nobody", len(values), ranges.Format(values)))
	}
	return lines
}

func (f *fleet) line(now, then progress, all []ownership) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6s jobs %4d/s", thousands(now.all), rate(now.all, then.all, now.at.Sub(then.at)))
	for _, w := range f.all() {
		values, _ := owned(all, w.id)
		state := w.is()
		switch {
		case len(values) > 0 && state == working:
			fmt.Fprintf(&b, " | %s: %s", w.id, ranges.Format(values))
		case len(values) > 0:
			fmt.Fprintf(&b, " | %s (%s): %s", w.id, state, ranges.Format(values))
		}
	}
	if values, _ := owned(all, ""); len(values) > 0 {
		fmt.Fprintf(&b, " | nobody: %s", ranges.Format(values))
	}
	return b.String()
}

// thousands writes a number as people read it: 20,000.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
