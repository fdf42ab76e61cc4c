package engine

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// Plans: what any client does for all members of a lease.

// plans are the leases that ask for a plan, joined or not, and what is known of their last.
type plans struct {
	plan     func([]store.LeasePlan) []store.Move
	at       map[string]time.Time // when to plan a lease
	claimed  map[string]bool      // of these: this client has claimed the plan
	alone    bool                 // a plan met a lock: the next one is of those leases alone that ask for it
	underWay *planning            // or to be made again; nil: none is
	batch    int                  // the most partitions that one statement moves; see fitting
	retryIn  time.Duration        // when another plan is due if moves are left over; twice as late if the last plan changed nothing
}

func newPlans(plan func([]store.LeasePlan) []store.Move) plans {
	return plans{plan: plan, at: make(map[string]time.Time), claimed: make(map[string]bool), batch: maxBatch, retryIn: busyRetry}
}

// request notes leases that ask for a plan, to be made at that time.
func (ps *plans) request(at time.Time, names ...string) {
	for _, name := range names {
		if planned, known := ps.at[name]; !known || at.Before(planned) {
			ps.at[name] = at
		}
	}
}

// asked notes leases that ask for a plan as a heartbeat says, unless one is to be made already.
func (ps *plans) asked(now time.Time, names ...string) {
	for _, name := range names {
		if _, planned := ps.at[name]; !planned {
			ps.at[name] = now
		}
	}
}

// joined notes a lease that the session has joined. The join may have claimed its plan.
func (ps *plans) joined(name string, join store.Join, now time.Time) {
	if join.Claimed {
		ps.claimed[name] = true
		ps.request(now, name)
	} else {
		ps.request(now.Add(join.DueIn+time.Millisecond), name)
	}
}

func (ps *plans) due() time.Time {
	_, at := soonest(maps.Values(ps.at), func(at time.Time) time.Time { return at })
	return at
}

// A planning is a plan of leases from their claim to its last move. The moves that one statement
// has no room for follow in others. In between nothing is read again: if another has changed a
// lease since, a statement writes nothing.
type planning struct {
	plan      func([]store.LeasePlan) []store.Move
	names     []string // that asked
	unclaimed []string // of these: to be claimed first
	claimed   []string // by this client
	read      []store.LeasePlan
	moves     []store.Move // that are left

	changed, leftOver bool // by what was applied of it

	longest time.Duration // the most that retryIn may be
	retryIn time.Duration // when another plan is due if moves are left over

	claimedAt time.Time
	claimEnds time.Time // when others may claim the leases; set if something overtook the plan
}

// begin plans the leases that ask for it, or goes on with a plan. Longest is the most that another
// plan is put off if moves are left over.
func (ps *plans) begin(longest time.Duration, now time.Time) *planning {
	var names []string
	for name, at := range ps.at {
		if !at.After(now) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if p := ps.underWay; p != nil && slices.Contains(names, p.names[0]) {
		return p
	}
	p := &planning{plan: ps.plan, names: names, claimedAt: now, longest: longest, retryIn: min(ps.retryIn, longest)}
	for _, name := range names {
		if ps.claimed[name] {
			p.claimed = append(p.claimed, name)
		} else {
			p.unclaimed = append(p.unclaimed, name)
		}
		delete(ps.claimed, name)
	}
	ps.underWay = p
	return p
}

const (
	// overtaken is how long a plan is made again that another join overtakes; longer ones wait until
	// the joins calm down.
	overtaken = 100 * time.Millisecond
	// stalled is when a plan is due of leases whose plan a client has under way, and does not go on
	// with.
	stalled = time.Second
)

// next is what a plan applies in one statement: at most so many moves; alone: of the leases alone
// that ask for it, not of all that share a member with them.
type next struct {
	batch int
	alone bool
}

// proceed claims, reads and plans leases, if that is to be done, and applies the next moves, a
// batch. It also returns how long that took alone; 0: it did not come to it. A plan that something
// overtook is made again.
func (p *planning) proceed(ctx context.Context, c Conn, n next) (applied store.Applied, took time.Duration, err error) {
	if err := p.claim(ctx, c); err != nil || len(p.claimed) == 0 {
		return applied, 0, err
	}
	began := time.Now()
	for attempt := 1; ; attempt++ {
		if p.read == nil {
			if p.read, err = c.Plan(ctx, p.claimed, n.alone); err != nil {
				p.read = nil
				return applied, 0, err
			}
			p.moves = p.plan(p.read)
		}
		moves := p.moves[:min(n.batch, len(p.moves))]
		applying := time.Now()
		applied, err = c.Apply(ctx, p.read, moves, p.again(n.alone, len(moves)))
		took = time.Since(applying)
		if err == nil && applied.Applied {
			p.moves = p.moves[len(moves):]
			p.changed = p.changed || applied.Asked+applied.Given > 0
			p.leftOver = p.leftOver || applied.LeftOver > 0
			return applied, took, nil
		}
		p.claimEnds = p.claimedAt.Add(claimLasts(p.read) + 10*time.Millisecond) // the clocks are two
		p.read, p.moves = nil, nil
		if err != nil || applied.Unaccepted || attempt == 3 || time.Since(began) > overtaken {
			return applied, took, err
		}
		select {
		case <-time.After(rand.N(20 * time.Millisecond)):
		case <-ctx.Done():
			return applied, took, context.Cause(ctx)
		}
	}
}

func (p *planning) claim(ctx context.Context, c Conn) error {
	if len(p.unclaimed) == 0 {
		return nil
	}
	claimed, err := c.Claim(ctx, p.unclaimed)
	if err == nil {
		p.claimedAt = time.Now()
		p.unclaimed, p.claimed = nil, append(p.claimed, claimed...)
	}
	return err
}

// again is when another plan is due after a statement of n moves; negative: of the leases alone in
// which moves are left over.
func (p *planning) again(alone bool, n int) time.Duration {
	switch {
	case n < len(p.moves):
		return stalled
	case alone:
		return p.longest
	case p.leftOver:
		return p.retryIn
	}
	return -p.retryIn
}

// claimLasts is for how long a claim keeps others from a plan of these leases, as claim.sql has it.
func claimLasts(read []store.LeasePlan) time.Duration {
	most := 0
	for _, r := range read {
		most = max(most, len(r.Owners))
	}
	return 100*time.Millisecond + time.Duration(most)*10*time.Microsecond
}

// proceeded takes what became of a plan, or of the first moves of it, and reports whether the plan
// is made. If the client ends, the other clients make one that has failed.
func (ps *plans) proceeded(p *planning, applied store.Applied, err error, n next, ends bool, now time.Time) (made bool) {
	ps.alone = store.LockTimeout(err) || n.alone && !applied.Applied
	for _, name := range p.names {
		delete(ps.at, name)
	}
	switch {
	case err != nil && ends:
		ps.underWay = nil
	case err != nil || len(p.moves) > 0:
		ps.request(now, p.names...)
	case len(p.claimed) > 0 && !applied.Applied: // a lease has changed since. The client that overtook it may have planned them by now, or will: so they are claimed again
		p.unclaimed, p.claimed = p.claimed, nil
		ps.request(later(now.Add(busyRetry), p.claimEnds), p.names...)
	default:
		ps.underWay, ps.retryIn = nil, busyRetry
		if p.leftOver && !p.changed { // guarded transactions are open on all that it had to move
			ps.retryIn = 2 * p.retryIn
		}
		return true
	}
	return false
}

// planned notes that a plan is about a lease. If it has changed something, it may have asked the
// session for something, or given it something at once; else it may own something that was not read
// yet.
func (ms *members) planned(lease string, changed bool) {
	if m := ms.byName[lease]; m != nil && m.inDatabase() && (changed || m.generation == 0) {
		m.toRead = true
	}
}
