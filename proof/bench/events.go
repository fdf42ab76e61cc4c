package main

import (
	"context"
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5"
)

// writesEvents matches the parts of a function that write events, up to a bracket that stays.
var writesEvents = regexp.MustCompile(`(?s)range_agg\([^\n]* AS partitions, ` +
	`|(\)), recorded AS \(\n\s*INSERT INTO "pgleases"\.events.*?\n\s*\)`)

// measureEvents compares plans whose moves are written as events with the same plans without
// events, applied by a copy of the function without the part that writes events.
func measureEvents(ctx context.Context, l *lab, out *part) {
	partitions, owners := l.pick(256, 8192), l.pick(8, 64)
	with, without := l.newPlanned(ctx, partitions, owners), l.newPlanned(ctx, partitions, owners)
	defer with.end()
	defer without.end()
	text := one[string](ctx, without.database, "SELECT pg_get_functiondef('pgleases.apply'::regproc)")
	stripped := writesEvents.ReplaceAllString(text, "$1")
	if stripped == text {
		panic(failure{fmt.Errorf("nothing in apply writes events")})
	}
	without.all(ctx, stripped)
	scattered := func(p int) int { return p % owners }
	var logged [2][]float64
	measured := func(i int, d *planned) side {
		before := make([]string, partitions)
		for p := range before {
			before[p] = fmt.Sprint("gone-", p/owners%owners)
		}
		const disown = `UPDATE pgleases.partitions
SET owner = NULL, target = NULL, owner_id = ($1::text[])[partition + 1]`
		return side{"without events", nanoseconds, func() float64 {
			must(d.Exec(ctx, disown, pgx.QueryExecModeExec, before))
			d.all(ctx, "VACUUM pgleases.partitions")
			d.read(ctx)
			u := d.during(ctx, func() { d.apply(ctx, partitions, scattered) })
			logged[i] = append(logged[i], u.wal)
			return float64(u.span)
		}}
	}
	took := l.alternate(5, measured(0, with), measured(1, without))
	out.compare(fmt.Sprintf("a plan of %s moves to %d clients", grouped(partitions), owners), took[0], took[1])
	out.compare("its WAL", sample{"", logged[0], bytes}, sample{"without events", logged[1], bytes})
}
