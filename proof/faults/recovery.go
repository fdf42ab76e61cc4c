//go:build unix

package faults

import (
	"fmt"
	"time"

	"github.com/pgleases/pgleases/proof/oracle"
)

// A spell is the duration of a fault.
type spell struct {
	Incident
	over oracle.Instant
}

// spells pairs the beginnings of faults with their ends. A fault without an end, such as a kill,
// has no duration.
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

// handoff is the cause of a gap without an owner if no fault was near.
const handoff = "handoff"

// Recoveries returns, by fault, the longest time that a partition had no owner. The cause of a gap
// is the last fault of the owner, else of the database, else of any worker. Recoveries also returns
// each gap that was longer than promised. Faults overlap, so the bound is a sum: 2 TTL; for each
// fault of the database its length, plus 1 TTL because the clients must watch the clock again; the
// length of open transactions; and 1 s for a loaded machine.
func Recoveries(
	gaps []oracle.Gap, incidents []Incident, ttl time.Duration,
) (worst map[string]time.Duration, late []Overdue) {
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
			rank := 1 // another worker's fault
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
