package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgleases/pgleases/examples/internal/show"
	"github.com/pgleases/pgleases/internal/ranges"
)

// show shows the progress and the owners each second, until ctx ends.
func (f *fleet) show(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before := 0
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		var done int
		err := f.pool.QueryRow(ctx, "SELECT count(*) FROM pgleases_example.job_runs").Scan(&done)
		if err != nil {
			continue // the story fails for it, or it was a moment's trouble
		}
		all, err := owners(ctx, f.pool)
		if err != nil {
			continue
		}
		f.screen.Event("%s", f.line(done, done-before, all))
		before = done
	}
}

func (f *fleet) line(done, rate int, all []ownership) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6s jobs %4d/s", show.Thousands(done), rate)
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
	values, _ := owned(all, "")
	if len(values) > 0 {
		fmt.Fprintf(&b, " | nobody: %s", ranges.Format(values))
	}
	return b.String()
}
