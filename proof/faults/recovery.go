//go:build unix

package faults

import (
	"fmt"
	"time"

	"github.com/pgleases/pgleases/proof/oracle"
)

// A spell is the time that a fault lasted.
type spell struct {
	Incident
	over oracle.Instant
}

// spells pairs the beginnings of faults with their ends. One without an end, such as a kill, lasts no time.
func spells(incidents []Incident) []spell {
	var all []spell
	for _, i := range incidents {
		if i.Fault == "" {
			continue
		}
		if !i.Over {
			all = append(all, spell{i, i.At})
			continue
		}
		for n := len(all) - 1; n >= 0; n-- {
			if all[n].Worker == i.Worker && all[n].Fault == i.Fault {
				all[n].over = i.At
				break
			}
		}
	}
	return all
}

// handoff is what a time without an owner is put down to when no fault was near.
const handoff = "handoff"

// Recoveries tells the longest time that a partition was without an owner by the fault that it is put down to: the last one
// that befell the database, or who owned the partition, or else anybody. It also tells each time that was longer than promised.
// Faults overlap, so the bound adds up what was under way: two TTLs; for each fault of the database its length, and
// another TTL as clocks must be watched anew; the length of open transactions; and a second of a loaded machine's.
func Recoveries(gaps []oracle.Gap, incidents []Incident, ttl time.Duration) (worst map[string]time.Duration, late []Overdue) {
	all := spells(incidents)
	worst = make(map[string]time.Duration)
	for _, g := range gaps {
		cause, near := handoff, 0
		bound := 2*ttl + time.Second
		for _, s := range all {
			if s.At > g.After.First || s.over < g.Before.Last-oracle.Instant(ttl) {
				continue
			}
			if s.Worker == "" && s.Fault != "many clients" {
				bound += s.over.Sub(s.At)
				if s.Fault != openTransaction {
					bound += ttl
				}
			}
			rank := 1 // of others
			switch {
			case s.Worker == g.Before.Client:
				rank = 3
			case s.Worker == "":
				rank = 2
			}
			if rank >= near {
				cause, near = s.Fault, rank
			}
		}
		worst[cause] = max(worst[cause], g.Length())
		if g.Length() > bound {
			late = append(late, Overdue{g.Before.Last, g.After.First, bound, fmt.Sprintf(
				"partition %d had no owner for %v, from %s to %s, after %s: at most %v was promised",
				g.Before.Partition, g.Length(), g.Before.Client, g.After.Client, cause, bound)})
		}
	}
	return worst, late
}
