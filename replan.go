package pgleases

import "github.com/pgleases/pgleases/internal/store"

// replan makes a plan of what was read, and returns the moves of that plan. It also sets which
// partitions of the leases have no owner after it, because all members are at their ceilings. A
// partition with a live owner is moved if its target changes. A partition without a live owner is
// always moved to its target, even if the target is the same as before.
func replan(read []store.LeaseSnapshot) []store.Move {
	leases := make([]planLease, len(read))
	sessions := make([][]int64, len(read)) // by member of the plan
	living := make([]map[int64]int32, len(read))
	for i, r := range read {
		leases[i], sessions[i], living[i] = planLeaseOf(r)
	}
	var moves []store.Move
	for i, targets := range plan(leases) {
		works := leases[i].works()
		read[i].Unowned = nil
		for partition, member := range targets {
			owner := read[i].Owners[partition]
			_, kept := living[i][owner]
			var target int64
			switch {
			case member == noMember && works:
				read[i].Unowned = append(read[i].Unowned, partition)
			case member == noMember:
			case leases[i].isAway(member) && !kept: // it waits for its owner
			default:
				target = sessions[i][member]
			}
			if kept && read[i].Targets[partition] != target || !kept && (owner != 0 || target != 0) {
				moves = append(moves, store.Move{Lease: read[i].Name, Partition: partition, Target: target})
			}
		}
	}
	return moves
}

// planLeaseOf converts a lease for the planner. Each client ID becomes one member, its highest
// incarnation. Each partition counts as owned by the client ID that it is meant for. planLeaseOf
// also returns the session of each member, and the member of each live session.
func planLeaseOf(r store.LeaseSnapshot) (planLease, []int64, map[int64]int32) {
	var lease planLease
	var sessions []int64
	var cordoned []bool
	members := make(map[string]int32, len(r.Members)) // by client ID
	living := make(map[int64]int32, len(r.Members))   // by session
	for _, m := range r.Members {                     // the highest incarnation of an ID comes last
		i, known := members[m.ID]
		if !known {
			i = int32(len(sessions))
			members[m.ID] = i
			lease.members = append(lease.members, planMember{})
			lease.joined, lease.ceilings = append(lease.joined, 0), append(lease.ceilings, 0)
			lease.away = append(lease.away, false)
			sessions, cordoned = append(sessions, 0), append(cordoned, false)
		}
		weight := m.Weight
		if r.Paused || m.Drained || m.Revoked {
			weight = 0
		}
		lease.members[i], sessions[i] = planMember{m.ID, weight}, m.Session
		lease.joined[i], lease.ceilings[i] = m.Joined, int32(m.MaxPartitions)
		cordoned[i] = m.Cordoned && weight > 0
		living[m.Session] = i
	}
	own := lease.await(r, members)
	for len(sessions) < len(lease.members) { // those that have gone have no session
		sessions, cordoned = append(sessions, 0), append(cordoned, false)
	}
	lease.current = make([]int32, len(r.Owners))
	lease.preferred = make([]int32, len(r.Owners))
	for p := range r.Owners {
		lease.preferred[p], lease.current[p] = noMember, lease.with(r, p, living)
		if i, ok := members[r.PreferredIDs[p]]; ok {
			lease.preferred[p] = i
		}
		last, ok := members[r.OwnerIDs[p]]
		switch {
		case !ok || lease.current[p] != noMember:
		case own[last]:
			lease.current[p] = last
		default: // it restarted: its own partitions come back
			lease.preferred[p] = last
		}
	}
	pinned := make(map[int]int32, len(r.Pins))
	for p, id := range r.Pins {
		i, ok := members[id]
		if ok && lease.members[i].weight > 0 && !lease.isAway(i) {
			pinned[p] = i
		}
	}
	lease.fix(hold{r.Frozen, r.Settling}, cordoned, pinned)
	return lease, sessions, living
}

// await adds the clients that are awaited: those that have gone, as members, and those that leave,
// with the weights that they had. It returns the members that are awaited or back. The partitions
// that such a member was the last to own count as its own.
func (l *planLease) await(r store.LeaseSnapshot, members map[string]int32) (own map[int32]bool) {
	own = make(map[int32]bool, len(r.Awaited))
	for _, a := range r.Awaited {
		i, known := members[a.ID]
		if !known {
			i = int32(len(l.members))
			members[a.ID] = i
			l.members, l.joined = append(l.members, planMember{id: a.ID}), append(l.joined, 0)
			l.ceilings, l.away = append(l.ceilings, 0), append(l.away, false)
		}
		own[i] = true
		if known && l.joined[i] > a.Generation { // it is back
			continue
		}
		l.away[i], l.ceilings[i] = true, int32(a.MaxPartitions)
		if !r.Paused {
			l.members[i].weight = a.Weight
		}
	}
	return own
}

// with returns the member that counts as the owner of a partition: its target, unless that closes
// and is awaited, or else its owner; noMember if neither lives. If the lease is frozen or settles, its owner comes first, even if it
// was asked to hand over.
func (l *planLease) with(r store.LeaseSnapshot, p int, living map[int64]int32) int32 {
	owner, owned := living[r.Owners[p]]
	target, meant := living[r.Targets[p]]
	switch {
	case owned && (r.Frozen || r.Settling) && l.members[owner].weight > 0:
		return owner
	case meant && !l.isAway(target):
		return target
	case owned:
		return owner
	case meant:
		return target
	}
	return noMember
}
