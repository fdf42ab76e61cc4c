package pgleases

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
)

// The plan assigns each partition to a member. It is a pure function of members and partitions:
// no clock, no I/O, no randomness. Two clients that read the same snapshot make the same plan.
// Among equal members, the one that has been a member for longest gets what is left over, then
// the one with the lower ID.
//
// The plan has four steps, for the partitions that are not fixed. A fixed partition goes to its
// member, whatever the shares are: that is how pins, cordons, freezes and rebalance delays enter
// (see fix).
//
//  1. Shares. A member of weight w is due N*w/W of a lease's N partitions; W is the sum of the
//     weights. A member whose share reaches its ceiling is due the ceiling, and the others share the
//     rest in the same way, as water fills vessels of different heights. Another member gets the
//     floor of its share. The partitions that the floors leave over, the extras,
//     go to as many different members, one each. The floor and the extra are its quota. So no
//     member is a whole partition away from its share. This is the quota rule of apportionment:
//     Hamilton's method of largest remainders, see Balinski and Young, Fair Representation, 1982.
//     Here only ties go by remainder, because staying with the owner comes first.
//  2. Groups. Leases are balanced together if their working members (weight above 0) are the same
//     and have equal weights. The floors are equal within a lease, so totals over the group are
//     within 1 of each other exactly if the totals of extras are. A lease with fixed partitions is
//     balanced alone.
//  3. Extras. A member keeps min(has, gets) partitions. So an extra saves one move if its receiver
//     has more than its floor, and no move otherwise. In a single lease, the extras go where they
//     save most: that is the minimum. Over a group it is a transport problem: every lease hands
//     out its extras, and every member takes the same number. See evenOut.
//  4. Moves. A member gives away only the partitions above its quota. They go to their preferred
//     owner first.
//
// Why no plan has fewer moves: in any plan, a member that has h partitions and gets q keeps at
// most min(h, q), and step 4 reaches that for each member. So the number of moves depends on the
// quotas alone. Fairness leaves only the extras open, and step 3 places these at the least cost.
//
// The preferred owner is a second, weaker goal: among the plans with the fewest moves, choose one
// that returns partitions to where they were. Extras are placed by (moves saved, partitions that
// can return), compared in this order. The moves themselves are matched with preferred owners
// greedily. Stickiness as a goal next to balance is that of Kafka's sticky assignor (KIP-54).
//
// A member that is away, and is to come back, counts as if it were there: its partitions stay
// with it, without an owner, and the shares of the others are as before. It gets no other
// partition: see lend.
//
// If all members are at their ceilings, the rest has no owner. A partition with an owner that may
// keep it stays, a member above its ceiling gives its highest numbers, and of what has no owner
// the lowest numbers get one first. So what has no owner stays the same from plan to plan.
//
// If partitions are rarer than members, some members stand by, as candidates for one leadership
// do. A preferred owner then counts no more than any other member: with the time of joining as
// the only tie-break, members that leave and return get their turns in a queue, and none waits
// for ever.
//
// Cost: linear in partitions, except for those without an owner in a lease that is frozen or that
// settles. Each of these costs a look at all members. Ties cost M log M per lease of M members. A
// group of L leases costs some passes over an L x M table, a few in practice.

// planLease is one lease for the planner. A member is an index into members, or noMember.
type planLease struct {
	members []planMember // ids are unique; the order has no effect

	// Per member: its place in the order of joins. It may be empty: then all joined at once.
	joined []int64

	// Per member: the most partitions that it may own; 0: it has no ceiling. It may be empty.
	ceilings []int32

	away []bool // per member: it is awaited, and gets no partition. It may be empty

	current []int32 // per partition: the live or awaited member that owns it, or that it is moving to

	// Per partition: the member that lost it by leaving, crashing or draining, until it has returned.
	// It may be empty.
	preferred []int32

	// Per partition: the member that gets it whatever the shares are. The shares decide about those
	// of noMember. It may be empty. It is empty if preferred is empty.
	fixed []int32
}

const noMember int32 = -1

type planMember struct {
	id     string
	weight int // 0 to 1,000; 0 owns only fixed partitions
}

// plan returns per lease the member that each partition goes to; noMember only if no member has a
// weight above 0, or if all of them are at their ceilings. Pass the leases in a stable order (by
// name): it breaks ties between them.
func plan(leases []planLease) [][]int32 {
	shares := make([]share, len(leases))
	size := 0
	for i := range leases {
		size += len(leases[i].current)
		shares[i] = newShare(leases[i].withoutFixed())
	}
	for _, group := range groupShares(shares) {
		placeExtras(group)
	}
	for i := range shares {
		shares[i].lend()
	}
	plans, flat := make([][]int32, len(leases)), make([]int32, size)
	for i := range leases {
		n := len(leases[i].current)
		plans[i], flat = flat[:n:n], flat[n:]
		shares[i].move(plans[i][:len(shares[i].lease.current)])
		leases[i].putFixed(plans[i], len(shares[i].lease.current))
	}
	return plans
}

// withoutFixed returns the lease with only the partitions that are to be shared. A partition that
// is fixed to a member counts against its ceiling.
func (l *planLease) withoutFixed() *planLease {
	if l.fixed == nil {
		return l
	}
	rest := planLease{joined: l.joined, away: l.away, fixed: []int32{}}
	rest.members, rest.ceilings = slices.Clone(l.members), slices.Clone(l.ceilings)
	has := l.countFixed()
	for m, ceiling := range rest.ceilings {
		switch {
		case ceiling == 0:
		case ceiling > has[m]:
			rest.ceilings[m] = ceiling - has[m]
		default:
			rest.members[m].weight = 0
		}
	}
	for p, m := range l.current {
		if l.fixed[p] < 0 {
			rest.current, rest.preferred = append(rest.current, m), append(rest.preferred, l.preferred[p])
		}
	}
	return &rest
}

// putFixed completes a plan that begins with the given number of partitions that are not fixed.
func (l *planLease) putFixed(to []int32, free int) {
	for p, m := range slices.Backward(l.fixed) {
		if m < 0 {
			free--
			m = to[free]
		}
		to[p] = m
	}
}

// A hold says why the members of a lease keep what they have.
type hold struct {
	frozen  bool // by an operator
	settles bool // a rebalance delay is under way
}

// fix applies the overrides of operators to a lease: the pinned partitions, with members of a
// weight above 0, and which of these members are cordoned, by index. A member of a frozen lease,
// or of one that settles, keeps what it has. A pinned partition goes to its member. A cordoned
// member keeps what it has and gets no other partition. The precedence, highest first: freeze,
// pin, cordon, ceiling, delay. If all members are cordoned, the lease is treated as frozen.
//
// In a lease that is held the remaining partitions have no owner that may keep them, and are
// fixed too. A partition goes to its preferred owner if that is below its share of the whole
// lease, else to the member that is furthest below its share.
func (l *planLease) fix(h hold, cordoned []bool, pinned map[int]int32) {
	held := h.frozen || h.settles
	if !held && len(pinned) == 0 && !slices.Contains(cordoned, true) {
		return
	}
	l.fixed = slices.Repeat([]int32{noMember}, len(l.current))
	works := func(m int32) bool { return m >= 0 && l.members[m].weight > 0 }
	for p, m := range l.current {
		to, ok := pinned[p]
		if ok && !(works(m) && h.frozen) {
			l.fixed[p] = to
		}
	}
	has := l.countFixed()
	for p, m := range l.current {
		if l.fixed[p] < 0 && works(m) && (h.frozen || cordoned[m] || h.settles && l.hasRoom(m, has)) {
			l.fixed[p] = m
			has[m]++
		}
	}
	closed := !l.cordon(cordoned)
	if held || closed {
		l.fixRest()
	}
}

// cordon gives the cordoned members weight 0. If they are all the members that work, it changes
// nothing, and returns false.
func (l *planLease) cordon(cordoned []bool) bool {
	all := l.members
	l.members = slices.Clone(all)
	for m := range all {
		if cordoned[m] {
			l.members[m].weight = 0
		}
	}
	if !l.works() {
		l.members = all
		return false
	}
	return true
}

// fixRest fixes the remaining partitions of a lease that is held: see fix.
func (l *planLease) fixRest() {
	for p, m := range l.current {
		if l.fixed[p] < 0 && m >= 0 && l.isAway(m) && l.members[m].weight > 0 {
			l.fixed[p] = m
		}
	}
	_, weights := l.working()
	has := l.countFixed()
	for p, h := range l.preferred {
		below := func() bool { return int64(has[h])*weights < int64(len(l.preferred))*int64(l.members[h].weight) }
		if l.fixed[p] < 0 && h >= 0 && !l.isAway(h) && l.hasRoom(h, has) && below() {
			l.fixed[p] = h
			has[h]++
		}
	}
	l.fixToLeast(has)
}

// fixToLeast fixes each remaining partition to the present member that is furthest below its share,
// as long as one has room.
func (l *planLease) fixToLeast(has []int32) {
	present := l.present()
	weight := func(m int32) int64 { return int64(l.members[m].weight) }
	full := func(m int32) bool { return !l.hasRoom(m, has) }
	for p, m := range l.fixed {
		if m >= 0 {
			continue
		}
		present = slices.DeleteFunc(present, full)
		if len(present) == 0 {
			return
		}
		least := slices.MinFunc(present, func(a, b int32) int {
			return cmp.Or(cmp.Compare(int64(has[a]+1)*weight(b), int64(has[b]+1)*weight(a)),
				cmp.Compare(l.joinedAt(a), l.joinedAt(b)))
		})
		l.fixed[p] = least
		has[least]++
	}
}

// isAway reports whether a member is awaited.
func (l *planLease) isAway(m int32) bool { return l.away != nil && l.away[m] }

// present returns the members that work and are not away, by ID.
func (l *planLease) present() []int32 {
	working, _ := l.working()
	return slices.DeleteFunc(working, l.isAway)
}

// works reports whether a member works and is not away.
func (l *planLease) works() bool {
	for m, member := range l.members {
		if member.weight > 0 && !l.isAway(int32(m)) {
			return true
		}
	}
	return false
}

// countFixed returns per member how many partitions are fixed to it.
func (l *planLease) countFixed() []int32 {
	has := make([]int32, len(l.members))
	for _, m := range l.fixed {
		if m >= 0 {
			has[m]++
		}
	}
	return has
}

// ceiling returns the most partitions that a member may own; 0: it has no ceiling.
func (l *planLease) ceiling(m int32) int32 {
	if l.ceilings == nil {
		return 0
	}
	return l.ceilings[m]
}

// hasRoom reports whether a member that has so many partitions may own another one.
func (l *planLease) hasRoom(m int32, has []int32) bool {
	ceiling := l.ceiling(m)
	return ceiling == 0 || has[m] < ceiling
}

// working returns the members with a weight above 0, by ID, and the sum of their weights.
func (l *planLease) working() (working []int32, weights int64) {
	working = make([]int32, 0, len(l.members))
	for m, member := range l.members {
		if member.weight > 0 {
			working = append(working, int32(m))
			weights += int64(member.weight)
		}
	}
	slices.SortFunc(working, func(a, b int32) int { return cmp.Compare(l.members[a].id, l.members[b].id) })
	return working, weights
}

// joinedAt returns when a member joined.
func (l *planLease) joinedAt(m int32) int64 {
	if l.joined == nil {
		return 0
	}
	return l.joined[m]
}

// share is the number of partitions that each member of one lease is due. Slices are per member
// unless they say otherwise.
type share struct {
	lease   *planLease
	working []int32 // the members with a weight above 0, by ID
	has     []int32
	quota   []int32 // the floor of its share, or its ceiling; placeExtras adds the extras
	full    []bool  // its share reaches its ceiling
	rest    int64   // the partitions without those of full members
	weights int64   // the sum of the weights of the other members
	extras  int
	unowned int  // partitions that no member may own, because all are full
	even    bool // all working members have the same weight, none is full, and no partition is fixed
}

func newShare(l *planLease) share {
	s := share{
		lease: l, even: l.fixed == nil, rest: int64(len(l.current)),
		has: make([]int32, len(l.members)), quota: make([]int32, len(l.members)), full: make([]bool, len(l.members)),
	}
	s.working, s.weights = l.working()
	for _, m := range s.working {
		s.even = s.even && l.members[m].weight == l.members[s.working[0]].weight
	}
	for _, m := range l.current {
		if m >= 0 {
			s.has[m]++
		}
	}
	if len(s.working) == 0 {
		return s
	}
	for s.fill() {
		s.even = false
	}
	left := int(s.rest)
	for _, m := range s.working {
		if !s.full[m] {
			s.quota[m] = int32(s.rest * int64(l.members[m].weight) / s.weights)
			left -= int(s.quota[m])
		}
	}
	if s.weights > 0 {
		s.extras = left
	} else {
		s.unowned = left
	}
	return s
}

// fill gives their ceilings to the members whose share of the rest reaches it, and reports
// whether there are any. The rest is shared by the others.
func (s *share) fill() (filled bool) {
	rest, weights := s.rest, s.weights
	for _, m := range s.working {
		if s.full[m] {
			continue
		}
		weight := int64(s.lease.members[m].weight)
		ceiling, limited := s.ceiling(m, rest*weight/weights)
		if !limited || rest*weight < ceiling*weights {
			continue
		}
		filled = true
		s.full[m], s.quota[m] = true, int32(ceiling)
		s.rest -= ceiling
		s.weights -= weight
	}
	return filled
}

// ceiling returns the most partitions that a member may be due, if there is such a limit. A
// member that is away gets no partition, so it is due no more than it has. If it lacks less than
// a whole partition to its share, that is no limit: otherwise the shares of the others would
// change when it goes.
func (s *share) ceiling(m int32, floor int64) (most int64, limited bool) {
	ceiling, has := int64(s.lease.ceiling(m)), int64(s.has[m])
	if s.lease.isAway(m) && has < floor && (ceiling == 0 || has < ceiling) {
		return has, true
	}
	return ceiling, ceiling > 0
}

// remainder is the part of a member's share that the floor cut off, in units of 1 / sum of
// weights.
func (s *share) remainder(m int32) int64 {
	if s.full[m] {
		return 0
	}
	return s.rest * int64(s.lease.members[m].weight) % s.weights
}

// groupShares returns the shares that have extras, in groups. The extras of a group are balanced
// together.
func groupShares(shares []share) [][]*share {
	var groups [][]*share
	byMembers := map[string]int{}
	var key []byte
	for i := range shares {
		s := &shares[i]
		if s.extras == 0 {
			continue
		}
		if !s.even {
			groups = append(groups, []*share{s})
			continue
		}
		key = key[:0]
		for _, m := range s.working {
			id := s.lease.members[m].id
			key = append(binary.AppendUvarint(key, uint64(len(id))), id...)
		}
		g, ok := byMembers[string(key)]
		if !ok {
			g = len(groups)
			byMembers[string(key)] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], s)
	}
	return groups
}

// placeExtras raises by 1 the quotas of the members of a group that get an extra.
func placeExtras(group []*share) {
	members, extras := len(group[0].working), 0
	rows := make([]extrasRow, 0, len(group)+1)
	taken := make([]int32, members)
	rare := true // partitions are rarer than members
	for _, s := range group {
		extras += s.extras
		rare = rare && len(s.lease.current) == s.extras && extras < members
	}
	for _, s := range group {
		r := extrasRow{rank: s.rank(), held: make([]bool, members)}
		if rare {
			r.forgetReturns()
		}
		r.pick(s, taken)
		rows = append(rows, r)
	}
	if len(group) > 1 {
		// Some members end on the ceiling of the mean total, some on the floor, and the choice is free.
		// One more row, of fillers that are equally good for any member, makes it the same choice: with a
		// filler for each member on the floor, all members take the mean.
		rest := extras % members
		if rest > 0 {
			filler := extrasRow{rank: slices.Repeat([]uint8{rankMoves}, members), held: make([]bool, members)}
			filler.pick(&share{even: true, extras: members - rest}, taken)
			rows = append(rows, filler)
			extras += members - rest
		}
		evenOut(rows, taken, int32(extras/members))
	}
	for i, s := range group {
		for j, m := range s.working {
			if rows[i].held[j] {
				s.quota[m]++
			}
		}
	}
}

// extrasRow is one lease of a group. Its slices are by position in working, which is the same
// member in all leases of the group.
type extrasRow struct {
	rank []uint8 // how good it is to give an extra of this lease to this member, see share.rank
	held []bool  // the member gets an extra
}

// The effects of an extra at a member, from worst to best. Saving a move is more important than
// letting partitions return to their preferred owner, whatever their number.
const (
	rankNever     = iota // its share is a whole number, or it is away and has no more than the floor: no extra
	rankMoves            // a partition has to move to the member
	rankReturns          // a partition has to move to the member, which is its preferred owner
	rankStaysAway        // a partition stays with the member, and another is its preferred owner
	rankStays            // a partition stays with the member
	rankWaits            // a partition waits for the member, which is away
)

// rankWorth turns ranks into numbers that can be added along a path. A path visits each member at
// most once. So with up to 2^18 members a sum does not overflow from returns into moves, nor from
// the steps that evenOut counts (the low 20 bits) into returns, and is below unreached.
const (
	worthOfReturn = 1 << 20
	worthOfMove   = 1 << 40
)

var rankWorth = [...]int64{
	rankReturns: worthOfReturn, rankStaysAway: worthOfMove - worthOfReturn, rankStays: worthOfMove,
	rankWaits: 2 * worthOfMove,
}

// rank ranks the working members of a lease as receivers of its extras.
func (s *share) rank() []uint8 {
	rank := make([]uint8, len(s.working))
	canReturn, canLeave := s.returnCounts()
	for j, m := range s.working {
		switch above := s.has[m] - s.quota[m]; {
		case s.remainder(m) == 0, s.lease.isAway(m) && above <= 0:
			rank[j] = rankNever
		case above > 0 && s.lease.isAway(m):
			rank[j] = rankWaits
		case above > 0 && canLeave[m] >= above:
			rank[j] = rankStaysAway
		case above > 0:
			rank[j] = rankStays
		case canReturn[m] > -above:
			rank[j] = rankReturns
		default:
			rank[j] = rankMoves
		}
	}
	return rank
}

// forgetReturns makes preferred owners count no more than other members.
func (r *extrasRow) forgetReturns() {
	for j, rank := range r.rank {
		if rank == rankReturns {
			r.rank[j] = rankMoves
		}
	}
}

// returnCounts counts, per member, the partitions elsewhere that could return to it, and its
// partitions that could return to another member.
func (s *share) returnCounts() (canReturn, canLeave []int32) {
	canReturn, canLeave = make([]int32, len(s.has)), make([]int32, len(s.has))
	for p, h := range s.lease.preferred {
		m := s.lease.current[p]
		if h < 0 || h == m || s.lease.members[h].weight == 0 || s.has[h] > s.quota[h] {
			continue
		}
		if m < 0 {
			canReturn[h]++
		} else if s.has[m] > s.quota[m] {
			canReturn[h]++
			canLeave[m]++
		}
	}
	return canReturn, canLeave
}

// pick gives a lease's extras to the members that rank best: the fewest moves for this lease
// alone. Ties go to the largest remainder, then to the member with the fewest extras so far,
// which leaves less for evenOut, then to the member that joined first, then to the lowest ID.
func (r *extrasRow) pick(s *share, taken []int32) {
	keys := make([]uint64, len(r.rank))
	for place, j := range s.queue(len(r.rank)) {
		tie := int64(taken[j])
		if !s.even {
			tie = s.weights - s.remainder(s.working[j])
		}
		keys[j] = uint64(rankWaits-r.rank[j])<<60 | uint64(tie)<<24 | uint64(place)
	}
	best := make([]int, len(keys))
	for j := range best {
		best[j] = j
	}
	slices.SortFunc(best, func(a, b int) int { return cmp.Compare(keys[a], keys[b]) })
	for _, j := range best[:s.extras] {
		r.held[j] = true
		taken[j]++
	}
}

// queue returns the positions of n working members, the one that joined first at the beginning.
func (s *share) queue(n int) []int {
	queue := make([]int, n)
	for j := range queue {
		queue[j] = j
	}
	if s.lease != nil && s.lease.joined != nil {
		slices.SortStableFunc(queue, func(a, b int) int {
			return cmp.Compare(s.lease.joined[s.working[a]], s.lease.joined[s.working[b]])
		})
	}
	return queue
}

// evenOut passes extras on until every member has the mean number of them, at the least loss of
// worth.
//
// If a has an extra of a lease and b does not, a can pass it to b. That costs worth(a) - worth(b)
// in that lease. Extras travel from members with too many to members with too few on shortest
// paths of such steps. Each row starts at its own best, so no cycle has a negative cost, and
// passing along shortest paths keeps that true. Without negative cycles the result is the
// optimum. This is the method of successive shortest paths; with all shortest paths of one round
// at once, it is the primal-dual method (Ahuja, Magnanti and Orlin, Network Flows, 1993, chapter
// 9). Every round costs a few passes over the table and places at least one extra, in practice
// most.
func evenOut(rows []extrasRow, taken []int32, mean int32) {
	t := transport{rows: rows, dist: make([]int64, len(taken)), best: make([]int64, len(rows)),
		nextRow: make([]int, len(taken)), nextMember: make([]int, len(rows)), over: make([]int32, len(taken))}
	for j, n := range taken {
		t.over[j] = n - mean
	}
	for slices.Max(t.over) > 0 {
		t.measure()
		clear(t.nextRow)
		clear(t.nextMember)
		for j := range t.over {
			for t.over[j] > 0 && t.pass(j) {
				t.over[j]--
			}
		}
	}
}

type transport struct {
	rows []extrasRow
	over []int32 // per member: how many extras too many it has; negative: too few
	dist []int64 // per member: cost of the cheapest path from a member with too many, plus the number of steps
	best []int64 // per row: cost of the cheapest path on which an extra of that lease can be passed on

	// Where pass continues to search: a path that fails once fails for the rest of the round.
	nextRow    []int // per member
	nextMember []int // per row
}

const unreached = math.MaxInt64 / 2

// measure sets dist and best (Bellman and Ford; steps may have negative costs). Of equally cheap
// paths it takes the shortest, so that the steps that pass may take form no cycle.
func (t *transport) measure() {
	for j, over := range t.over {
		t.dist[j] = unreached
		if over > 0 {
			t.dist[j] = 0
		}
	}
	for changed := true; changed; {
		changed = false
		for i := range t.rows {
			r, best := &t.rows[i], int64(unreached)
			for j, held := range r.held {
				if held && t.dist[j] != unreached {
					best = min(best, t.dist[j]+rankWorth[r.rank[j]])
				}
			}
			t.best[i] = best
			if best == unreached {
				continue
			}
			for j, held := range r.held {
				d := best + 1 - rankWorth[r.rank[j]]
				if !held && d < t.dist[j] {
					t.dist[j], changed = d, true
				}
			}
		}
	}
}

// pass sends one extra from member j along a cheapest path to a member that has too few, and
// reports whether it found such a path.
func (t *transport) pass(j int) bool {
	if t.over[j] < 0 {
		t.over[j]++
		return true
	}
	for ; t.nextRow[j] < len(t.rows); t.nextRow[j]++ {
		i := t.nextRow[j]
		r := &t.rows[i]
		if !r.held[j] || t.dist[j]+rankWorth[r.rank[j]] != t.best[i] {
			continue
		}
		for ; t.nextMember[i] < len(r.held); t.nextMember[i]++ {
			k := t.nextMember[i]
			if !r.held[k] && t.best[i]+1-rankWorth[r.rank[k]] == t.dist[k] && t.pass(k) {
				r.held[j], r.held[k] = false, true
				return true
			}
		}
	}
	return false
}

// lend passes what members that are away lack to their quotas on to present members, each time to
// the one that is furthest below its share. If there are several, one that has that partition
// already comes first.
func (s *share) lend() {
	left := int32(0)
	for _, m := range s.working {
		if s.lease.isAway(m) && s.quota[m] > s.has[m] {
			left += s.quota[m] - s.has[m]
			s.quota[m] = s.has[m]
		}
	}
	present := slices.DeleteFunc(slices.Clone(s.working), s.lease.isAway)
	full := func(m int32) bool { return !s.lease.hasRoom(m, s.quota) }
	weight := func(m int32) int64 { return int64(s.lease.members[m].weight) }
	lacks := func(m int32) int32 { return min(s.quota[m]-s.has[m], 0) }
	for ; left > 0; left-- {
		present = slices.DeleteFunc(present, full)
		if len(present) == 0 {
			s.unowned += int(left)
			return
		}
		s.quota[slices.MinFunc(present, func(a, b int32) int {
			return cmp.Or(cmp.Compare(int64(s.quota[a]+1)*weight(b), int64(s.quota[b]+1)*weight(a)),
				cmp.Compare(lacks(a), lacks(b)), cmp.Compare(s.lease.joinedAt(a), s.lease.joinedAt(b)))
		})]++
	}
}

// move writes the member that each partition goes to. Only members above their quota give. First
// partitions return to their preferred owners if possible. Then what is still over goes, lowest
// number first, to the members that are still below their quota, lowest ID first. If there are
// not enough of these, the members above their quota give their highest numbers, and the last of
// all free partitions get no owner.
func (s *share) move(to []int32) {
	copy(to, s.lease.current)
	room := make([]int32, len(s.has)) // negative: has to give
	for m := range room {
		room[m] = s.quota[m] - s.has[m]
	}
	give := func(p int, m int32) {
		from := to[p]
		if from != noMember {
			room[from]++
		}
		room[m]--
		to[p] = m
	}
	for p, h := range s.lease.preferred {
		if h >= 0 && room[h] > 0 && (to[p] < 0 || room[to[p]] < 0) {
			give(p, h)
		}
	}
	if len(s.working) == 0 {
		for p := range to {
			to[p] = noMember
		}
		return
	}
	if s.unowned > 0 {
		shed(to, room)
	}
	next := 0
	for p, m := range to {
		if m >= 0 && room[m] >= 0 {
			continue
		}
		for next < len(s.working) && room[s.working[next]] <= 0 {
			next++
		}
		if next == len(s.working) {
			return
		}
		give(p, s.working[next])
	}
}

// shed takes their highest numbers from the members that have to give.
func shed(to, room []int32) {
	for p, m := range slices.Backward(to) {
		if m >= 0 && room[m] < 0 {
			room[m]++
			to[p] = noMember
		}
	}
}
