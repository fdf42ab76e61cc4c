package admin

import (
	"fmt"
	"maps"
	"slices"
)

// latelyMost is the maximum number of events of one cause that are read to find losses.
const latelyMost = 5_000

// A loss is a client that was evicted, and that no other has replaced.
type loss struct {
	Event
	leases []string // which have fewer members than before
}

func (l loss) String() string {
	names := make([]string, len(l.leases))
	for i, name := range l.leases {
		names[i] = fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("client %q of %s, %s,", l.From, listed(names), l.Reason)
}

// losses returns the clients that were evicted and not replaced, the newest first, as far as events
// show it. Of these, too, the newest is first.
func (s *Snapshot) losses(events []Event) (all []loss) {
	leases := s.leasesOfEvicted(events)
	lost := make(map[string][]string) // leases, by the ID of the event
	for i := range s.Leases {
		l := &s.Leases[i]
		for _, e := range lostBy(l, events, leases) {
			lost[e.ID] = append(lost[e.ID], l.Name)
		}
	}
	for _, e := range events {
		if lost[e.ID] != nil && e.Cause == causeEvicted {
			all = append(all, loss{e, lost[e.ID]})
		}
	}
	return all
}

// leasesOfEvicted returns the leases that had an evicted client as a member, by the ID of the event,
// which does not say so. It leaves out clients that an operator has drained or evicted.
func (s *Snapshot) leasesOfEvicted(events []Event) map[string]map[string]bool {
	leases := make(map[string]map[string]bool)
	joined := make(map[string]map[string]bool) // leases by client
	latest := make(map[string]string)          // eviction of each client
	ordered := make(map[string]bool)           // clients that an operator has evicted
	for _, e := range slices.Backward(events) {
		switch e.Cause {
		case "joined":
			if joined[e.To] == nil {
				joined[e.To] = make(map[string]bool)
			}
			joined[e.To][e.Lease] = true
			ordered[e.To] = false
		case "left":
			delete(joined[e.From], e.Lease)
		case string(VerbEvict):
			ordered[e.From] = true
		case causeEvicted:
			latest[e.From] = e.ID
			if !ordered[e.From] && !s.drained(e.From) {
				leases[e.ID] = make(map[string]bool)
				maps.Copy(leases[e.ID], joined[e.From])
			}
		case "given", "awaited": // because its owner was evicted
			if leases[latest[e.From]] != nil {
				leases[latest[e.From]][e.Lease] = true
			}
		}
	}
	return leases
}

// drained reports whether a client is drained.
func (s *Snapshot) drained(client string) bool {
	return slices.ContainsFunc(s.Overrides, func(w Override) bool { return w.Verb == VerbDrain && w.Client == client })
}

// lostBy returns the evictions of members that a lease still lacks. It goes from its present members
// backward through the events, and counts who was a member before each eviction. If fewer are
// members now, although not more are missing than were evicted since, the evicted ones are not
// replaced. If more are missing, others have left in order, so the lease has fewer on purpose.
func lostBy(l *Lease, events []Event, leases map[string]map[string]bool) (evicted []Event) {
	present := make(map[string]int) // sessions of each client
	for _, m := range l.Members {
		present[m.Client]++
	}
	now := len(present)
	if now == 0 { // the check orphans says so
		return nil
	}
	settled := maps.Clone(present) // clients that joined, left or were evicted later
	missing := 0
	for _, e := range events {
		switch {
		case e.Cause == "joined" && e.Lease == l.Name:
			settled[e.To]++
			present[e.To]--
			if present[e.To] <= 0 {
				delete(present, e.To)
			}
		case e.Cause == "left" && e.Lease == l.Name:
			settled[e.From]++
			present[e.From]++
		case leases[e.ID][l.Name]:
			present[e.From]++
			if settled[e.From] == 0 {
				evicted = append(evicted, e)
			}
			settled[e.From]++
			fewer := len(present) - now
			if fewer <= len(evicted) {
				missing = max(missing, fewer)
			}
		}
	}
	return evicted[:missing]
}
