package pgleases

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgleases/pgleases/internal/testkit"
)

// What every plan must be, checked from the promises and not from how the planner works.

// checkPlan reports the first broken promise of a plan that needs no comparison with other plans:
// valid, fair per lease, fair over leases, preferred owners respected, no unnecessary move, and a
// fixed point.
func checkPlan(leases []planLease, plans [][]int32) error {
	if len(plans) != len(leases) {
		return fmt.Errorf("%d plans for %d leases", len(plans), len(leases))
	}
	for i := range leases {
		checks := []func(*planLease, []int32) error{checkComplete, checkShares, checkMoves, checkPreferred}
		for _, check := range checks {
			if err := check(&leases[i], plans[i]); err != nil {
				return fmt.Errorf("lease %d: %w", i, err)
			}
		}
	}
	if err := checkTotals(leases, plans); err != nil {
		return err
	}
	applied := slices.Clone(leases)
	for i := range applied {
		applied[i].current = plans[i]
	}
	for i, again := range plan(applied) {
		if !slices.Equal(again, plans[i]) {
			return fmt.Errorf("lease %d: planned %v, then, with that applied, %v", i, plans[i], again)
		}
	}
	return nil
}

func checkComplete(l *planLease, to []int32) error {
	if len(to) != len(l.current) {
		return fmt.Errorf("plan for %d of %d partitions", len(to), len(l.current))
	}
	working := slices.ContainsFunc(l.members, func(m planMember) bool { return m.weight > 0 })
	for p, m := range to {
		switch {
		case m < -1 || int(m) >= len(l.members):
			return fmt.Errorf("partition %d goes to %d of %d members", p, m, len(l.members))
		case m == -1 && working:
			return fmt.Errorf("partition %d gets no owner", p)
		case m >= 0 && l.members[m].weight == 0:
			return fmt.Errorf("partition %d goes to member %d, whose weight is 0", p, m)
		}
	}
	return nil
}

func countOwned(l *planLease, owners []int32) []int {
	n := make([]int, len(l.members))
	for _, m := range owners {
		if m >= 0 {
			n[m]++
		}
	}
	return n
}

func checkShares(l *planLease, to []int32) error {
	total := 0
	for _, m := range l.members {
		total += m.weight
	}
	for m, n := range countOwned(l, to) {
		// n is the floor or the ceiling of N*w/total: less than 1 away, which holds for no other whole
		// number.
		if total > 0 && max(n*total-len(to)*l.members[m].weight, len(to)*l.members[m].weight-n*total) >= total {
			return fmt.Errorf("member %d of weight %d of %d has %d of %d", m, l.members[m].weight, total, n, len(to))
		}
	}
	return nil
}

// checkMoves: a member that gives partitions away gains none, so no partition moved that could have
// stayed under the same quotas.
func checkMoves(l *planLease, to []int32) error {
	before, after := countOwned(l, l.current), countOwned(l, to)
	for p, m := range l.current {
		if m >= 0 && to[p] != m && before[m] <= after[m] {
			return fmt.Errorf("partition %d is taken from member %d, which has %d and should have %d",
				p, m, before[m], after[m])
		}
	}
	return nil
}

// checkPreferred: no partition goes to a member that is not its preferred owner while a partition of
// that member's own stays free, stays with the same giver or goes elsewhere.
func checkPreferred(l *planLease, to []int32) error {
	if l.preferred == nil {
		return nil
	}
	type pair struct{ from, to int32 }
	strangers := map[pair]int{} // a move of a partition to a member that is not its preferred owner
	received := map[int32]bool{}
	for p, m := range to {
		if m != l.current[p] && m >= 0 && l.preferred[p] != m {
			strangers[pair{l.current[p], m}] = p
			received[m] = true
		}
	}
	for p, h := range l.preferred {
		if h < 0 || h == to[p] || h == l.current[p] {
			continue
		}
		if to[p] != l.current[p] && received[h] {
			return fmt.Errorf("partition %d moves to %d, and its preferred owner %d gets another's", p, to[p], h)
		}
		if q, ok := strangers[pair{l.current[p], h}]; ok {
			return fmt.Errorf("member %d gives partition %d to %d and not %d, which prefers it", l.current[p], q, h, p)
		}
	}
	return nil
}

// teamKey names the leases that must be fair together: the IDs of the members that work, if their
// weights are equal.
func teamKey(l *planLease) (string, bool) {
	var ids []string
	weight := 0
	for _, m := range l.members {
		if m.weight == 0 {
			continue
		}
		if weight != 0 && weight != m.weight {
			return "", false
		}
		weight = m.weight
		ids = append(ids, m.id)
	}
	slices.Sort(ids)
	return fmt.Sprintf("%q", ids), len(ids) > 0
}

func checkTotals(leases []planLease, plans [][]int32) error {
	totals := map[string]map[string]int{}
	for i := range leases {
		l := &leases[i]
		key, ok := teamKey(l)
		if !ok {
			continue
		}
		if totals[key] == nil {
			totals[key] = map[string]int{}
		}
		for m, n := range countOwned(l, plans[i]) {
			if l.members[m].weight > 0 {
				totals[key][l.members[m].id] += n
			}
		}
	}
	for _, total := range totals {
		low, high := math.MaxInt, 0
		for _, n := range total {
			low, high = min(low, n), max(high, n)
		}
		if high-low > 1 {
			return fmt.Errorf("totals over leases are from %d to %d: %v", low, high, total)
		}
	}
	return nil
}

func countMoves(leases []planLease, plans [][]int32) int {
	n := 0
	for i := range leases {
		for p, m := range leases[i].current {
			if m >= 0 && plans[i][p] != m {
				n++
			}
		}
	}
	return n
}

// fewestMoves tries every assignment of every lease and every combination of them over leases that
// must be fair together.
func fewestMoves(leases []planLease) int {
	type totals [5]int
	sums := map[string]map[totals]int{} // per team: totals reached so far, and the fewest moves that reach them
	for i := range leases {
		l := &leases[i]
		key, fairTogether := teamKey(l)
		if !fairTogether {
			key = fmt.Sprint(i)
		}
		order := make([]int, 0, len(l.members)) // members that work, by ID: the same in all leases of a team
		for m := range l.members {
			if l.members[m].weight > 0 {
				order = append(order, m)
			}
		}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(l.members[a].id, l.members[b].id) })
		options := map[totals]int{}
		to := make([]int32, len(l.current))
		var try func(p int)
		try = func(p int) {
			if p < len(to) {
				for _, m := range order {
					to[p] = int32(m)
					try(p + 1)
				}
				if len(order) == 0 {
					to[p] = -1
					try(p + 1)
				}
				return
			}
			if checkShares(l, to) != nil {
				return
			}
			var sum totals
			if n := countOwned(l, to); fairTogether {
				for j, m := range order {
					sum[j] = n[m]
				}
			}
			cost := countMoves([]planLease{*l}, [][]int32{to})
			if best, ok := options[sum]; !ok || cost < best {
				options[sum] = cost
			}
		}
		try(0)
		before, ok := sums[key]
		if !ok {
			before = map[totals]int{{}: 0}
		}
		after := map[totals]int{}
		for a, costA := range before {
			for b, costB := range options {
				for j := range a {
					b[j] += a[j]
				}
				if best, ok := after[b]; !ok || costA+costB < best {
					after[b] = costA + costB
				}
			}
		}
		sums[key] = after
	}
	all := 0
	for key, reached := range sums {
		size := strings.Count(key, `"`) / 2
		best := math.MaxInt
		for sum, cost := range reached {
			if size == 0 || slices.Max(sum[:size])-slices.Min(sum[:size]) <= 1 {
				best = min(best, cost)
			}
		}
		all += best
	}
	return all
}

// cheaperCycle searches for a proof that a plan for leases of one team does not have the fewest
// moves: a cycle of extras (or a path from a member above the mean to one below it, which is a
// cycle through the extra node) that saves moves. It finds one if there is one.
func cheaperCycle(leases []planLease, plans [][]int32) bool {
	members := len(leases[0].members)
	cost := make([][]int, members+1)
	for a := range cost {
		cost[a] = slices.Repeat([]int{math.MaxInt32}, members+1)
	}
	total := make([]int, members)
	for i := range leases {
		has, gets := countOwned(&leases[i], leases[i].current), countOwned(&leases[i], plans[i])
		floor := len(plans[i]) / members
		saves := func(m int) int { return min(has[m], floor+1) - min(has[m], floor) }
		for a := range members {
			total[a] += gets[a]
			for b := range members {
				if gets[a] > floor && gets[b] == floor {
					cost[a][b] = min(cost[a][b], saves(a)-saves(b))
				}
			}
		}
	}
	low, high := slices.Min(total), slices.Max(total)
	for m := range members {
		if low < high && total[m] == low {
			cost[m][members] = 0
		} else if low < high {
			cost[members][m] = 0
		}
	}
	for k := range cost {
		for a := range cost {
			for b := range cost {
				cost[a][b] = min(cost[a][b], cost[a][k]+cost[k][b])
			}
			if cost[a][a] < 0 {
				return true
			}
		}
	}
	return false
}

func drawOwners(t *rapid.T, label string, partitions, members int) []int32 {
	return rapid.SliceOfN(rapid.Int32Range(-1, int32(members)-1), partitions, partitions).Draw(t, label)
}

func drawLease(t *rapid.T, partitions, members, weight int) planLease {
	l := planLease{members: []planMember{}}
	for _, id := range rapid.SliceOfNDistinct(rapid.IntRange(0, members), 0, members, rapid.ID[int]).Draw(t, "ids") {
		l.members = append(l.members, planMember{string(rune('a' + id)), rapid.IntRange(0, weight).Draw(t, "weight")})
	}
	n := rapid.IntRange(1, partitions).Draw(t, "partitions")
	l.current = drawOwners(t, "current", n, len(l.members))
	if rapid.Bool().Draw(t, "joined one after the other") {
		l.joined = rapid.SliceOfN(rapid.Int64Range(0, 9), len(l.members), len(l.members)).Draw(t, "joined")
	}
	if rapid.Bool().Draw(t, "preferred owners") {
		l.preferred = drawOwners(t, "preferred", n, len(l.members))
	}
	return l
}

// drawTeam draws leases with the same members of equal weight, the case in which extras travel.
func drawTeam(t *rapid.T, leases, partitions, members int) []planLease {
	m := rapid.IntRange(2, members).Draw(t, "members")
	busy := rapid.IntRange(1, m).Draw(t, "busy") // so that some teams have newcomers
	all := make([]planLease, rapid.IntRange(1, leases).Draw(t, "leases"))
	for i := range all {
		n := rapid.IntRange(1, partitions).Draw(t, "partitions")
		all[i].members = teamOf(m)
		all[i].current = drawOwners(t, "current", n, busy)
		all[i].preferred = drawOwners(t, "preferred", n, m)
	}
	return all
}

// unowned returns n partitions without an owner.
func unowned(n int) []int32 { return slices.Repeat([]int32{-1}, n) }

// teamOf returns n members of weight 1.
func teamOf(n int) []planMember {
	members := make([]planMember, n)
	for m := range members {
		members[m] = planMember{fmt.Sprintf("client-%05d", m), 1}
	}
	return members
}

func TestPlanKeepsItsPromisesInATeam(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		testkit.OK(t, checkAll(drawTeam(t, 30, 12, 9)))
	})
}

func TestPlanMovesTheFewest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { // any members, any weights
		leases := make([]planLease, rapid.IntRange(1, 4).Draw(t, "leases"))
		for i := range leases {
			leases[i] = drawLease(t, 5, 4, rapid.SampledFrom([]int{1, 3}).Draw(t, "heaviest"))
		}
		testkit.OK(t, checkAll(leases))
	})
	rapid.Check(t, func(t *rapid.T) { testkit.OK(t, checkAll(drawTeam(t, 5, 4, 4))) })
	rapid.Check(t, func(t *rapid.T) { testkit.OK(t, checkAll(drawTeam(t, 8, 2, 5))) })
}

func TestPlanDoesNotDependOnTheOrderOfMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		leases := make([]planLease, rapid.IntRange(1, 4).Draw(t, "leases"))
		shuffled := make([]planLease, len(leases))
		names := func(l *planLease, owners []int32) []string {
			ids := make([]string, len(owners))
			for p, m := range owners {
				if m >= 0 {
					ids[p] = l.members[m].id
				}
			}
			return ids
		}
		for i := range leases {
			l := drawLease(t, 12, 5, rapid.SampledFrom([]int{1, 3}).Draw(t, "heaviest"))
			order := make([]int, len(l.members))
			for m := range order {
				order[m] = m
			}
			order = rapid.Permutation(order).Draw(t, "order")
			s := planLease{members: make([]planMember, len(order))}
			s.current, s.preferred = slices.Clone(l.current), slices.Clone(l.preferred)
			for m, place := range order {
				s.members[place] = l.members[m]
			}
			if l.joined != nil {
				s.joined = make([]int64, len(order))
				for m, place := range order {
					s.joined[place] = l.joined[m]
				}
			}
			for _, owners := range [][]int32{s.current, s.preferred} {
				for p, m := range owners {
					if m >= 0 {
						owners[p] = int32(order[m])
					}
				}
			}
			leases[i], shuffled[i] = l, s
		}
		a, b := plan(leases), plan(shuffled)
		for i := range leases {
			if x, y := names(&leases[i], a[i]), names(&shuffled[i], b[i]); !slices.Equal(x, y) {
				t.Fatalf("lease %d: %q, members in another order: %q", i, x, y)
			}
		}
	})
}

func TestPlanLeavesItsInputAlone(t *testing.T) {
	current, preferred := []int32{0, 0, 0, -1}, []int32{-1, 1, 2, 0}
	l := planLease{members: teamOf(3), current: current, preferred: preferred}
	before := planLease{members: teamOf(3), current: slices.Clone(current), preferred: slices.Clone(preferred)}
	plan([]planLease{l})
	if fmt.Sprint(l) != fmt.Sprint(before) {
		t.Errorf("input is %v, was %v", l, before)
	}
}

func TestPlanWithoutAnyoneToOwn(t *testing.T) {
	for name, l := range map[string]planLease{
		"no members": {current: []int32{-1, -1}},
		"all weights 0": {members: []planMember{{"a", 0}, {"b", 0}},
			current: []int32{0, -1, 1}, preferred: []int32{1, 0, -1}},
		"no partitions":      {members: teamOf(2)},
		"no preferred owner": {members: []planMember{{"a", 0}}, current: []int32{0}, preferred: []int32{-1}},
	} {
		for p, m := range plan([]planLease{l})[0] {
			if m != -1 {
				t.Errorf("%s: partition %d goes to %d", name, p, m)
			}
		}
	}
	if plans := plan(nil); len(plans) != 0 {
		t.Errorf("no leases: %v", plans)
	}
}

func TestPlanWithTheLargestNumbers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, weight := range []func() int{
		func() int { return 1000 },
		func() int { return rng.IntN(1001) },
		func() int { return 1 + 999*rng.IntN(2) },
	} {
		l := planLease{members: teamOf(10_000), current: make([]int32, 65_536), preferred: make([]int32, 65_536)}
		for m := range l.members {
			l.members[m].weight = weight()
		}
		for p := range l.current {
			l.current[p], l.preferred[p] = rng.Int32N(10_001)-1, rng.Int32N(10_001)-1
		}
		leases := []planLease{l}
		if err := checkPlan(leases, plan(leases)); err != nil {
			t.Error(err)
		}
	}
}

// planCluster is the planner's caller: it applies plans, and keeps preferred owners as the field's
// comment says.
type planCluster struct {
	weights   map[string]int
	owner     [][]string // per lease and partition; empty: no owner
	preferred [][]string
}

func newPlanCluster(leases, partitions, clients int) *planCluster {
	c := &planCluster{weights: map[string]int{}}
	for range leases {
		c.owner = append(c.owner, make([]string, partitions))
		c.preferred = append(c.preferred, make([]string, partitions))
	}
	for _, m := range teamOf(clients) {
		c.weights[m.id] = 1
	}
	return c
}

// rebalance plans and applies, and returns how many partitions live clients lost.
func (c *planCluster) rebalance(t *testing.T) int {
	t.Helper()
	var members []planMember
	for id, weight := range c.weights {
		members = append(members, planMember{id, weight})
	}
	slices.SortFunc(members, func(a, b planMember) int { return cmp.Compare(a.id, b.id) })
	index := func(ids []string) []int32 {
		found := make([]int32, len(ids))
		for p, id := range ids {
			found[p] = int32(slices.IndexFunc(members, func(m planMember) bool { return m.id == id }))
		}
		return found
	}
	leases := make([]planLease, len(c.owner))
	for i := range leases {
		leases[i] = planLease{members: members, current: index(c.owner[i]), preferred: index(c.preferred[i])}
	}
	plans := plan(leases)
	testkit.OK(t, checkPlan(leases, plans))
	for i, to := range plans {
		for p, m := range to {
			id, owner, preferred := "", c.owner[i][p], &c.preferred[i][p]
			if m >= 0 {
				id = members[m].id
			}
			switch {
			case id == owner:
			case id == *preferred:
				*preferred = ""
			case owner != "" && c.weights[owner] == 0: // gone or draining
				*preferred = owner
			}
			c.owner[i][p] = id
		}
	}
	return countMoves(leases, plans)
}

func (c *planCluster) snapshot() [][]string {
	owner := make([][]string, len(c.owner))
	for i := range owner {
		owner[i] = slices.Clone(c.owner[i])
	}
	return owner
}

// differ counts the partitions whose owner is another than in before.
func (c *planCluster) differ(before [][]string) int {
	n := 0
	for i := range before {
		for p := range before[i] {
			if before[i][p] != c.owner[i][p] {
				n++
			}
		}
	}
	return n
}

func TestPlanJoinOfAnEleventhMoves11Of128(t *testing.T) {
	c := newPlanCluster(1, 128, 10)
	c.rebalance(t)
	c.weights["client-00010"] = 1
	if n := c.rebalance(t); n != 11 {
		t.Errorf("%d partitions moved, want 11", n)
	}
}

func TestPlanGivesAClientThatReturnsItsOwn(t *testing.T) {
	for _, size := range []struct{ leases, partitions, clients int }{
		{1, 1000, 10}, {1, 128, 10}, {1, 16, 5}, {1, 1, 3},
		{100, 1, 4}, {30, 1, 4}, {7, 10, 4}, {20, 33, 8}, {3, 100, 2},
	} {
		for _, m := range teamOf(size.clients) {
			id := m.id
			c := newPlanCluster(size.leases, size.partitions, size.clients)
			c.rebalance(t)
			before := c.snapshot()
			due := 0
			for i := range before {
				for _, owner := range before[i] {
					if owner == id {
						due++
					}
				}
			}
			delete(c.weights, id)
			if n := c.rebalance(t); n != 0 {
				t.Errorf("%v: %s left, and %d partitions of others moved", size, id, n)
			}
			c.weights[id] = 1
			got := c.rebalance(t)
			// If shares are not whole numbers, a member that returns may be due 1 less than it had.
			least := due - max(1, size.leases)
			if whole := size.leases*size.partitions%size.clients == 0; whole && size.leases == 1 {
				least = due
			}
			if got > due || got < least {
				t.Errorf("%v: %s returned to %d of its %d", size, id, got, due)
			}
			if lost := due - got; c.differ(before) != lost {
				t.Errorf("%v: %s returned to %d of its %d, and %d partitions are elsewhere",
					size, id, got, due, c.differ(before))
			}
		}
	}
}

// Its partitions are free: no member has taken them yet. Extras go back too, to the members that
// had them.
func TestPlanGivesAClientThatReturnsBeforeAnyPlanItsOwn(t *testing.T) {
	before := []int32{0, 0, 1, 1, 2, 2, 2, 3, 3, 3}
	for gone := range int32(4) {
		l := planLease{members: teamOf(4), current: slices.Clone(before), preferred: unowned(10)}
		for p, m := range before {
			if m == gone {
				l.current[p], l.preferred[p] = -1, gone
			}
		}
		if to := plan([]planLease{l})[0]; !slices.Equal(to, before) {
			t.Errorf("%d came back: %v, want %v", gone, to, before)
		}
	}
}

// What preferred owners and fairness leave open is decided by number and ID, so that an operator
// can predict it.
func TestPlanTakesTheLowestNumbers(t *testing.T) {
	l := planLease{members: teamOf(3), current: []int32{0, 0, 0, 0, 0, 0}}
	if to := plan([]planLease{l})[0]; !slices.Equal(to, []int32{1, 1, 2, 2, 0, 0}) {
		t.Errorf("plan is %v", to)
	}
}

// With fewer partitions than members, a free partition goes to the member that has waited longest,
// also if another one is its preferred owner. Otherwise a preferred owner comes first.
func TestPlanLetsMembersTakeTurns(t *testing.T) {
	for _, test := range []struct {
		partitions int
		preferred  int32
		gets       int32
	}{
		{1, -1, 2}, {1, 0, 2}, {2, 0, 2}, {3, -1, 2}, {5, 0, 0},
	} {
		l := planLease{members: teamOf(4), joined: []int64{30, 20, 10, 40}, current: unowned(test.partitions)}
		l.preferred = slices.Repeat([]int32{test.preferred}, test.partitions)
		to := plan([]planLease{l})[0]
		if n := countOwned(&l, to); n[test.gets] != test.partitions/4+1 {
			t.Errorf("%d partitions that prefer %d go to %v: not one more to %d",
				test.partitions, test.preferred, to, test.gets)
		}
	}
}

func TestPlanDrainAndBack(t *testing.T) {
	c := newPlanCluster(3, 40, 4)
	c.rebalance(t)
	before := c.snapshot()
	c.weights["client-00002"] = 0
	if n := c.rebalance(t); n != 30 {
		t.Errorf("drain: %d moves, want 30", n)
	}
	c.weights["client-00002"] = 1
	if n := c.rebalance(t); n != 30 || c.differ(before) != 0 {
		t.Errorf("back: %d moves, want 30, and %d partitions elsewhere", n, c.differ(before))
	}
}

// randomLeases makes any leases, of which some have the same members.
func randomLeases(rng *rand.Rand) []planLease {
	var members []planMember
	leases := make([]planLease, 1+rng.IntN(12))
	for i := range leases {
		if i == 0 || rng.IntN(3) == 0 { // else the same team as the lease before
			members = nil
			unequal := rng.IntN(2) == 0
			for m := range rng.IntN(7) {
				weight := 1
				if unequal {
					weight = []int{0, 1, 1, 2, 7, 1000}[rng.IntN(6)]
				}
				members = append(members, planMember{string(rune('a' + m)), weight})
			}
		}
		owners := make([][]int32, 1+rng.IntN(2))
		for o, n := 0, 1+rng.IntN(24); o < len(owners); o++ {
			for range n {
				owners[o] = append(owners[o], int32(rng.IntN(len(members)+1))-1)
			}
		}
		leases[i] = planLease{members: members, current: owners[0]}
		if len(owners) > 1 {
			leases[i].preferred = owners[1]
		}
		if rng.IntN(2) == 0 {
			for range members {
				leases[i].joined = append(leases[i].joined, rng.Int64N(9))
			}
		}
	}
	return leases
}

// checkAll checks everything that is promised, and the fewest moves by trying all plans if the
// leases are small enough for that.
func checkAll(leases []planLease) error {
	plans := plan(leases)
	if err := checkPlan(leases, plans); err != nil {
		return err
	}
	small := true
	for _, l := range leases {
		small = small && len(l.members) <= 5 && math.Pow(float64(len(l.members)), float64(len(l.current))) <= 1024
	}
	if small {
		if got, want := countMoves(leases, plans), fewestMoves(leases); got != want {
			return fmt.Errorf("%d moves, %d would do: %v", got, want, plans)
		}
	}
	teams := map[string][]int{}
	for i := range leases {
		if key, ok := teamKey(&leases[i]); ok {
			teams[key] = append(teams[key], i)
		}
	}
	idle := func(m planMember) bool { return m.weight == 0 }
	same := func(a, b planMember) bool { return a.id == b.id }
	for _, numbers := range teams {
		var some []planLease
		var done [][]int32
		for _, i := range numbers {
			l := leases[i]
			if slices.ContainsFunc(l.members, idle) || !slices.EqualFunc(l.members, leases[numbers[0]].members, same) {
				some = nil // cheaperCycle wants members that all work, in one order, and the whole team
				break
			}
			some, done = append(some, l), append(done, plans[i])
		}
		if some != nil && cheaperCycle(some, done) {
			return fmt.Errorf("%d moves are not the fewest", countMoves(some, done))
		}
	}
	return nil
}

// The property tests prefer small numbers; these are spread evenly.
func TestPlanKeepsItsPromisesOnRandomLeases(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 5000 {
		leases := randomLeases(rng)
		if err := checkAll(leases); err != nil {
			t.Fatalf("%v\n%+v", err, leases)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	balanced := func(leases, partitions, members int) []planLease {
		all := make([]planLease, leases)
		for i := range all {
			all[i] = planLease{members: teamOf(members), current: unowned(partitions), preferred: unowned(partitions)}
		}
		for i, to := range plan(all) {
			all[i].current = to
		}
		return all
	}
	for _, size := range []struct{ leases, partitions, members int }{
		{1, 1000, 100}, {1, 10_000, 1000}, {1, 100_000, 1000}, {1, 99_999, 1000},
		{1000, 1, 100}, {1000, 1, 1000}, {100, 64, 100}, {1000, 150, 100},
	} {
		steady := balanced(size.leases, size.partitions, size.members)
		change := func(owner func(lease, p int, m int32) int32) []planLease {
			changed := slices.Clone(steady)
			for i := range changed {
				changed[i].current = slices.Clone(steady[i].current)
				changed[i].preferred = slices.Clone(steady[i].preferred)
				for p, m := range steady[i].current {
					if changed[i].current[p] = owner(i, p, m); changed[i].current[p] != m {
						changed[i].preferred[p] = m
					}
				}
			}
			return changed
		}
		rng := rand.New(rand.NewPCG(5, 6))
		for _, scene := range []struct {
			name   string
			leases []planLease
		}{
			{"steady", steady},
			{"empty", change(func(int, int, int32) int32 { return -1 })},
			{"all-with-one", change(func(int, int, int32) int32 { return 0 })},
			{"one-returns", change(func(lease, p int, m int32) int32 {
				if m == 3 {
					return int32((lease + p) % 3)
				}
				return m
			})},
			{"half-return", change(func(_, _ int, m int32) int32 { return m / 2 })},
			{"random", change(func(int, int, int32) int32 { return rng.Int32N(int32(size.members)+1) - 1 })},
		} {
			name := fmt.Sprintf("%dx%dx%d/%s", size.leases, size.partitions, size.members, scene.name)
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					plan(scene.leases)
				}
			})
		}
	}
}

// --- ceilings

// drawCeilings gives some members of a lease a ceiling.
func drawCeilings(t *rapid.T, l *planLease) {
	for range l.members {
		l.ceilings = append(l.ceilings, rapid.Int32Range(0, int32(len(l.current))).Draw(t, "ceiling"))
	}
}

// level returns what each member is due, and how many partitions no member may own. The share per
// weight is found by bisection, as the level of water that is poured into vessels.
func level(l *planLease) (due []float64, unowned int) {
	room, weights := 0.0, 0
	ceiling := func(m int) float64 {
		switch {
		case l.members[m].weight == 0:
			return 0
		case l.ceilings == nil || l.ceilings[m] == 0:
			return float64(len(l.current))
		}
		return float64(l.ceilings[m])
	}
	for m := range l.members {
		room += ceiling(m)
		weights += l.members[m].weight
	}
	due = make([]float64, len(l.members))
	pour := func(level float64) (all float64) {
		for m := range due {
			due[m] = min(ceiling(m), level*float64(l.members[m].weight))
			all += due[m]
		}
		return all
	}
	wanted := min(room, float64(len(l.current)))
	low, high := 0.0, float64(len(l.current))
	for range 100 {
		middle := (low + high) / 2
		if pour(middle) < wanted {
			low = middle
		} else {
			high = middle
		}
	}
	pour(high)
	return due, len(l.current) - int(wanted)
}

// checkCeilings reports whether a plan keeps ceilings, and is fair within them.
func checkCeilings(l *planLease, to []int32) error {
	due, unowned := level(l)
	left := 0
	for _, m := range to {
		if m < 0 {
			left++
		}
	}
	if left != unowned {
		return fmt.Errorf("%d partitions have no owner, not %d", left, unowned)
	}
	for m, n := range countOwned(l, to) {
		ceiling := l.ceiling(int32(m))
		switch {
		case ceiling > 0 && n > int(ceiling):
			return fmt.Errorf("member %d has %d, above its ceiling of %d", m, n, ceiling)
		case l.members[m].weight == 0 && n > 0:
			return fmt.Errorf("member %d has %d, and weight 0", m, n)
		case math.Abs(float64(n)-due[m]) > 1-1e-6:
			return fmt.Errorf("member %d has %d, and is due %.3f", m, n, due[m])
		}
	}
	return nil
}

// fewestUnder tries every assignment of a lease that keeps its ceilings.
func fewestUnder(l *planLease) int {
	best, to := math.MaxInt, make([]int32, len(l.current))
	var try func(p int)
	try = func(p int) {
		if p == len(to) {
			if checkCeilings(l, to) == nil {
				best = min(best, countMoves([]planLease{*l}, [][]int32{to}))
			}
			return
		}
		for m := range len(l.members) + 1 {
			to[p] = int32(m) - 1
			try(p + 1)
		}
	}
	try(0)
	return best
}

func TestPlanKeepsCeilingsWithTheFewestMoves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := drawLease(t, 6, 3, 3)
		drawCeilings(t, &l)
		to := plan([]planLease{l})[0]
		for _, check := range []func(*planLease, []int32) error{checkCeilings, checkMoves} {
			if err := check(&l, to); err != nil {
				t.Fatalf("%v\n%+v\n%v", err, l, to)
			}
		}
		if moves, fewest := countMoves([]planLease{l}, [][]int32{to}), fewestUnder(&l); moves != fewest {
			t.Fatalf("%d moves, not %d\n%+v\n%v", moves, fewest, l, to)
		}
		again := l
		again.current = to
		if next := plan([]planLease{again})[0]; !slices.Equal(next, to) {
			t.Fatalf("planned %v, then, with that applied, %v\n%+v", to, next, l)
		}
	})
}

// Partitions without an owner stay the same while members come and go, as long as no member has
// room.
func TestPlanLeavesTheSameWithoutAnOwner(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name              string
		members           int
		current, ceilings []int32
		want              string
	}{
		{"the highest numbers", 2, []int32{-1, -1, -1, -1, -1}, []int32{2, 2}, "0 0 1 1 -1"},
		{"what stays with its owner is not taken from it", 2, []int32{-1, -1, 1, -1, 0}, []int32{2, 2}, "0 1 1 -1 0"},
		{"what was without an owner stays so after a crash",
			2, []int32{-1, -1, 0, 0, 1, 1, -1}, []int32{2, 2}, "-1 -1 0 0 1 1 -1"},
		{"a member above its ceiling gives its highest numbers",
			2, []int32{0, 0, 0, 0, 1}, []int32{2, 1}, "0 0 -1 -1 1"},
		{"what it gives goes where there is room", 2, []int32{0, 0, 0, 0, -1}, []int32{2, 1}, "0 0 1 -1 -1"},
		{"a new member gets the lowest numbers", 3, []int32{-1, 0, 1, -1, -1}, []int32{1, 1, 1}, "2 0 1 -1 -1"},
	} {
		l := planLease{members: teamOf(test.members), current: test.current, ceilings: test.ceilings}
		if got := strings.Trim(fmt.Sprint(plan([]planLease{l})[0]), "[]"); got != test.want {
			t.Errorf("%s: %s, not %s", test.name, got, test.want)
		}
	}
}

// --- members that are awaited

// drawAway draws which members of a lease are awaited.
func drawAway(t *rapid.T, l *planLease) {
	l.away = rapid.SliceOfN(rapid.Bool(), len(l.members), len(l.members)).Draw(t, "away")
}

// checkAway reports the first broken promise of a plan about members that are awaited.
func checkAway(l *planLease, to []int32) error {
	has := countOwned(l, to)
	for p, m := range to {
		switch {
		case m >= 0 && l.away[m] && l.current[p] != m:
			return fmt.Errorf("partition %d goes to member %d, which is away", p, m)
		case m >= 0 || l.current[p] >= 0 && l.away[l.current[p]] && l.members[l.current[p]].weight == 0:
			continue
		}
		for o, other := range l.members {
			room := l.ceiling(int32(o)) == 0 || has[o] < int(l.ceiling(int32(o)))
			if m < 0 && other.weight > 0 && !l.away[o] && room {
				return fmt.Errorf("partition %d gets no owner, although member %d has room", p, o)
			}
		}
	}
	return nil
}

func TestPlanGivesAwaitedMembersNoOthers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		leases := make([]planLease, rapid.IntRange(1, 3).Draw(t, "leases"))
		for i := range leases {
			leases[i] = drawLease(t, 12, 5, 3)
			drawAway(t, &leases[i])
			if rapid.Bool().Draw(t, "ceilings") {
				drawCeilings(t, &leases[i])
			}
		}
		plans := plan(leases)
		for i := range leases {
			if err := checkAway(&leases[i], plans[i]); err != nil {
				t.Fatalf("lease %d: %v\n%+v\n%v", i, err, leases[i], plans[i])
			}
			leases[i].current = plans[i]
		}
		for i, again := range plan(leases) {
			if !slices.Equal(again, plans[i]) {
				t.Fatalf("lease %d: planned %v, then, with that applied, %v\n%+v", i, plans[i], again, leases[i])
			}
		}
	})
}

// Whoever restarts, one or several at a time, no partition moves when they go, and none when they
// return, whatever the weights and ceilings are.
func TestPlanMovesNothingInARestart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var leases []planLease
		if rapid.Bool().Draw(t, "team") {
			leases = drawTeam(t, 6, 12, 5)
		} else {
			leases = append(leases, drawLease(t, 20, 5, 9))
			if rapid.Bool().Draw(t, "ceilings") {
				drawCeilings(t, &leases[0])
			}
		}
		for i, to := range plan(leases) {
			leases[i].current = to
		}
		for range 3 {
			away := rapid.SliceOfN(rapid.Bool(), 6, 6).Draw(t, "away")
			for i := range leases {
				leases[i].away = away[:len(leases[i].members)]
			}
			for i, to := range plan(leases) {
				if !slices.Equal(to, leases[i].current) {
					t.Fatalf("lease %d: while %v are away, %v instead of %v\n%+v",
						i, away, to, leases[i].current, leases[i])
				}
			}
		}
	})
}

// --- overrides of operators

// overriddenLease is a lease with its overrides.
type overriddenLease struct {
	planLease
	hold
	cordoned []bool
	pinned   map[int]int32
}

// planOverridden plans leases. It also returns the planner's input.
func planOverridden(leases []overriddenLease) ([][]int32, []planLease) {
	fixed := make([]planLease, len(leases))
	for i, l := range leases {
		fixed[i] = l.planLease
		fixed[i].fix(l.hold, l.cordoned, l.pinned)
	}
	return plan(fixed), fixed
}

// check reports the first broken promise of a plan of such a lease.
func (l *overriddenLease) check(to []int32) error {
	if err := checkComplete(&l.planLease, to); err != nil {
		return err
	}
	held := l.frozen || l.settles
	keeps := func(m int32) bool { return m >= 0 && l.members[m].weight > 0 && (held || l.cordoned[m]) }
	rest, moved, open := planLease{members: slices.Clone(l.members), preferred: []int32{}}, []int32{}, false
	for m := range rest.members {
		open = open || l.members[m].weight > 0 && !l.cordoned[m]
	}
	for m := range rest.members {
		if l.cordoned[m] && open {
			rest.members[m].weight = 0
		}
	}
	has := countOwned(&l.planLease, to)
	for p, m := range l.current {
		pin, pinned := l.pinned[p]
		switch {
		case pinned && !(l.frozen && keeps(m)):
			if to[p] != pin {
				return fmt.Errorf("partition %d is pinned to member %d, and goes to %d", p, pin, to[p])
			}
			continue
		case keeps(m) && to[p] != m:
			return fmt.Errorf("partition %d is taken from member %d, which should keep it", p, m)
		case keeps(m):
			continue
		case to[p] >= 0 && rest.members[to[p]].weight == 0:
			return fmt.Errorf("partition %d goes to member %d, which is cordoned", p, to[p])
		}
		rest.current = append(rest.current, m)
		rest.preferred = append(rest.preferred, l.preferred[p])
		moved = append(moved, to[p])
		if !held && open || to[p] < 0 || to[p] == l.preferred[p] {
			continue
		}
		for o, other := range rest.members { // it goes to the member that is furthest below its share
			if other.weight > 0 && has[to[p]]*other.weight > (has[o]+1)*rest.members[to[p]].weight {
				return fmt.Errorf("partition %d goes to member %d, which has %d, and not to %d, which has %d",
					p, to[p], has[to[p]], o, has[o])
			}
		}
	}
	if held || !open {
		return nil
	}
	for _, check := range []func(*planLease, []int32) error{checkShares, checkMoves, checkPreferred} {
		if err := check(&rest, moved); err != nil {
			return fmt.Errorf("among the rest: %w", err)
		}
	}
	return nil
}

func drawOverridden(t *rapid.T) overriddenLease {
	l := overriddenLease{planLease: drawLease(t, 12, 6, 3), pinned: make(map[int]int32)}
	if l.preferred == nil {
		l.preferred = unowned(len(l.current))
	}
	if rapid.Bool().Draw(t, "pins") {
		for p, m := range drawOwners(t, "pinned", len(l.current), len(l.members)) {
			if m >= 0 && l.members[m].weight > 0 {
				l.pinned[p] = m
			}
		}
	}
	l.frozen = rapid.SampledFrom([]bool{false, false, true}).Draw(t, "frozen")
	l.settles = rapid.SampledFrom([]bool{false, false, true}).Draw(t, "settles")
	for _, m := range l.members {
		cordoned := rapid.SampledFrom([]bool{false, false, true}).Draw(t, "cordoned")
		l.cordoned = append(l.cordoned, cordoned && m.weight > 0)
	}
	return l
}

// ordered returns per member how many partitions it has, whatever its ceiling: by a pin, or because
// a cordon or a freeze keeps it.
func (l *overriddenLease) ordered() []int {
	kept := unowned(len(l.current))
	for p, m := range l.current {
		works := m >= 0 && l.members[m].weight > 0
		pin, pinned := l.pinned[p]
		switch {
		case pinned && !(l.frozen && works):
			kept[p] = pin
		case works && (l.frozen || l.cordoned[m]):
			kept[p] = m
		}
	}
	return countOwned(&l.planLease, kept)
}

// checkCeilings reports the first broken promise about the ceilings of such a lease.
func (l *overriddenLease) checkCeilings(to []int32) error {
	has, gets, ordered := countOwned(&l.planLease, l.current), countOwned(&l.planLease, to), l.ordered()
	free := 0
	for _, m := range to {
		if m < 0 {
			free++
		}
	}
	for m, n := range gets {
		ceiling := int(l.ceiling(int32(m)))
		limited := ceiling > 0
		switch {
		case limited && n > max(ceiling, ordered[m]):
			return fmt.Errorf("member %d has %d, above its ceiling of %d, of which an operator has ordered %d",
				m, n, ceiling, ordered[m])
		case l.members[m].weight > 0 && !l.cordoned[m] && free > 0 && !(limited && n >= ceiling):
			return fmt.Errorf("member %d has %d, and %d partitions have no owner", m, n, free)
		case l.settles && !limited && l.members[m].weight > 0 && n < has[m] && len(l.pinned) == 0:
			return fmt.Errorf("member %d had %d, and has %d while the lease settles", m, has[m], n)
		}
	}
	return nil
}

func TestPlanKeepsCeilingsUnderOverrides(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := drawOverridden(t)
		drawCeilings(t, &l.planLease)
		plans, _ := planOverridden([]overriddenLease{l})
		if err := l.checkCeilings(plans[0]); err != nil {
			t.Fatalf("%v\n%+v\n%v", err, l, plans[0])
		}
		applied := l
		applied.current = plans[0]
		if again, _ := planOverridden([]overriddenLease{applied}); !slices.Equal(again[0], plans[0]) {
			t.Fatalf("planned %v, then, with that applied, %v\n%+v", plans[0], again[0], l)
		}
	})
}

func TestPlanObeysOverrides(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var leases []overriddenLease
		for range rapid.IntRange(1, 4).Draw(t, "leases") {
			leases = append(leases, drawOverridden(t))
		}
		plans, fixed := planOverridden(leases)
		overridden := func(l planLease) bool { return l.fixed != nil }
		plain := plan(slices.DeleteFunc(slices.Clone(fixed), overridden))
		applied := slices.Clone(leases)
		for i := range leases {
			applied[i].current = plans[i]
			l := leases[i]
			has := l.frozen || l.settles || len(l.pinned) > 0 || slices.Contains(l.cordoned, true)
			if overridden(fixed[i]) != has {
				t.Fatalf("lease %d: overridden is %v\n%+v", i, overridden(fixed[i]), l)
			}
			if !overridden(fixed[i]) {
				if !slices.Equal(plans[i], plain[0]) {
					t.Fatalf("lease %d, of which nothing is overridden, depends on others: %v, not %v",
						i, plans[i], plain[0])
				}
				plain = plain[1:]
				continue
			}
			if err := leases[i].check(plans[i]); err != nil {
				t.Fatalf("lease %d: %v\n%+v\n%v", i, err, leases[i], plans[i])
			}
		}
		again, _ := planOverridden(applied)
		for i, again := range again {
			if !slices.Equal(again, plans[i]) {
				t.Fatalf("lease %d: planned %v, then, with that applied, %v\n%+v", i, plans[i], again, leases[i])
			}
		}
	})
}
