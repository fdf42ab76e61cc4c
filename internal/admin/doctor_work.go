package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A fault is one that schedules or jobs of a group have, as duties.sql returns it, or a consumer,
// as queues.sql does.
type fault struct {
	Check, Fault, Group string
	Count               int
	Name                string     // of the worst one
	Worst               float64    // its age, or its number of failures or rows
	Why                 string     // its error, or what mends it
	Began               *time.Time // of some faults without an age: since when it fails; nil: unknown

	doctor *doctor
}

// A kind is a kind of fault. Its text says which ones there are, after what they have in common.
// The reason of each follows in parentheses, unless the remedy names it.
type kind struct {
	check, fault string
	level        Level
	common       string
	text, remedy func(fault) string
}

// lasts says since when a fault with an age lasts.
func (f fault) lasts() string { return f.doctor.since(f.Worst) }

// fails says since when something fails, if that is known.
func (f fault) fails() string {
	if f.Began == nil {
		return ""
	}
	return when("since", *f.Began, f.doctor.Now)
}

// A plain remedy is the same for all faults of a kind.
func plain(remedy string) func(fault) string { return func(fault) string { return remedy } }

// readFaults reads the faults of schedules, jobs and consumers, if they have tables.
func (d *doctor) readFaults(ctx context.Context) {
	d.failed = make(map[string]error)
	for _, p := range parts {
		if !slices.Contains(d.Parts, p.table) {
			continue
		}
		args := []any{d.Long.Seconds(), d.rolesOf()}
		faults, err := collect(ctx, d.Admin, d.conn, p.duties, pgx.RowToStructByNameLax[fault], args[:p.args]...)
		if err != nil {
			d.failed[p.flag] = err
		}
		d.faults = append(d.faults, faults...)
	}
	for i, f := range d.faults {
		d.faults[i].doctor = d
		if f.Fault == "column" {
			d.columnsOf[f.Name] = f.Group
		}
	}
}

// work checks schedules, jobs or consumers.
func (d *doctor) work(context.Context) {
	if err := d.failed[d.check]; err != nil {
		level, remedy := toRead(err, " --"+d.check)
		d.found(level, remedy, "cannot read them: %v", err)
		return
	}
	d.report()
	for _, f := range d.faults {
		if f.Check == d.check && f.Fault == "none" {
			d.fine("%s", f.Why)
		}
	}
}

// report adds the faults of the check that is running, those of one kind as one finding. Remedies
// that name a reason, such as a statement to run, are listed. Others differ in names only, and so
// one is enough.
func (d *doctor) report() {
	for _, k := range slices.Concat(kindsOfSchedules, kindsOfJobs, kindsOfConsumers, kindsOfQueues) {
		var texts, alike, own []string
		for _, f := range d.faults {
			if k.check != d.check || f.Check != k.check || f.Fault != k.fault {
				continue
			}
			text, remedy := k.text(f), k.remedy(f)
			switch {
			case f.Why == "":
				alike = append(alike, remedy)
			case strings.Contains(remedy, f.Why):
				own = append(own, remedy)
			default:
				alike = append(alike, remedy)
				text += " (" + f.Why + ")"
			}
			texts = append(texts, text)
		}
		if len(texts) > 0 {
			d.found(k.level, remedies(own, alike), "%s: %s", k.common, listed(texts))
		}
	}
}

// suchAs begins a text that names the worst of a group.
func (f fault) suchAs() string { return fmt.Sprintf("%d of group %q, such as ", f.Count, f.Group) }
