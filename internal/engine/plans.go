package engine

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// Plans: any client makes them for all members of a lease.

// plans are the leases that need a plan, joined or not, and what is known about their last plan.
type plans struct {
	at       map[string]time.Time // when to plan a lease
	claimed  map[string]bool      // this client has claimed the plan
	alone    bool                 // a plan met a lock: the next one is only of the leases that need it
	underWay *planning            // or to be made again; nil: no plan is
	batch    int                  // the most partitions that one statement moves; see fitting
	retryIn  time.Duration        // the pause before another plan if moves are left over; doubled if the last plan changed no partition
}

func newPlans() plans {
	return plans{at: make(map[string]time.Time), claimed: make(map[string]bool), batch: maxBatch, retryIn: busyRetry}
}

// request notes leases that need a plan, to be made at that time.
func (ps *plans) request(at time.Time, names ...string) {
	for _, name := range names {
		if planned, known := ps.at[name]; !known || at.Before(planned) {
			ps.at[name] = at
		}
	}
}

// heard notes leases that need a plan according to a heartbeat, unless one is to be made
// already.
func (ps *plans) heard(now time.Time, names ...string) {
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

// A planning is a plan of leases, from their claim to its last move. If one statement cannot write
// all moves, more statements follow, without another read. If another client has changed a lease
// since, a statement writes no move.
type planning struct {
	names     []string // that need it
	unclaimed []string // to be claimed first
	claimed   []string // by this client
	read      []store.LeaseSnapshot
	moves     []store.Move // not applied yet

	changed, leftOver bool // by the moves that were applied

	longest time.Duration // the most that retryIn may be
	retryIn time.Duration // the pause before another plan if moves are left over

	claimedAt time.Time
	claimEnds time.Time // when others may claim the leases; set if a change overtook the plan
}

// begin plans the leases that need it, or continues a plan. Longest is the longest pause before
// another plan if moves are left over.
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
	p := &planning{names: names, claimedAt: now, longest: longest, retryIn: min(ps.retryIn, longest)}
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
	// overtaken is how long the client repeats a plan that another join overtakes. A plan that takes
	// longer waits until fewer joins arrive.
	overtaken = 100 * time.Millisecond
	// stalled is when another plan is due for leases whose plan a client has under way and does not
	// continue.
	stalled = time.Second
)

// A portion is what a plan applies in one statement: the maximum number of moves; alone: only for
// the leases that need it, not for all that share a member with them.
type portion struct {
	batch int
	alone bool
}

// proceed claims, reads and plans leases, if that is not done yet, and applies the next batch of
// moves. It also returns how long that statement took; 0: it was not sent. A plan that a change
// overtook is made again.
func (p *planning) proceed(
	ctx context.Context, c Conn, plan func([]store.LeaseSnapshot) []store.Move, n portion,
) (applied store.Applied, took time.Duration, err error) {
	if err := p.claim(ctx, c); err != nil || len(p.claimed) == 0 {
		return applied, 0, err
	}
	began := time.Now()
	for attempt := 1; ; attempt++ {
		if p.read == nil {
			if p.read, err = c.Snapshot(ctx, p.claimed, n.alone); err != nil {
				p.read = nil
				return applied, 0, err
			}
			p.moves = plan(p.read)
		}
		moves := p.moves[:min(n.batch, len(p.moves))]
		applying := time.Now()
		applied, err = c.Apply(ctx, p.read, moves, p.again(n.alone, len(moves)))
		took = time.Since(applying)
		if err == nil && applied.Applied {
			p.moved(applied, len(moves))
			return applied, took, nil
		}
		p.claimEnds = p.claimedAt.Add(claimLasts(p.read) + 10*time.Millisecond) // the two clocks may differ
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

// moved notes that the first n moves are committed.
func (p *planning) moved(applied store.Applied, n int) {
	p.moves = p.moves[n:]
	p.changed = p.changed || applied.Asked+applied.Given > 0
	p.leftOver = p.leftOver || applied.LeftOver > 0
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

// again returns when another plan is due after a statement of n moves; negative: only for the
// leases with moves left over.
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

// claimLasts returns how long a claim keeps others from a plan of these leases, as in claim.sql.
func claimLasts(read []store.LeaseSnapshot) time.Duration {
	most := 0
	for _, r := range read {
		most = max(most, len(r.Owners))
	}
	return 100*time.Millisecond + time.Duration(most)*10*time.Microsecond
}

// proceeded handles the result of a plan, or of its first moves, and reports whether the plan is
// complete. If the client ends, the other clients make a plan that has failed.
func (ps *plans) proceeded(p *planning, applied store.Applied, err error, n portion, ends bool, now time.Time) (made bool) {
	ps.alone = store.LockTimeout(err) || n.alone && !applied.Applied
	for _, name := range p.names {
		delete(ps.at, name)
	}
	switch {
	case err != nil && ends:
		ps.underWay = nil
	case err != nil || len(p.moves) > 0:
		ps.request(now, p.names...)
	case len(p.claimed) > 0 && !applied.Applied: // a lease has changed since. The client that changed it may have planned them by now, or will: so they are claimed again
		p.unclaimed, p.claimed = p.claimed, nil
		ps.request(later(now.Add(busyRetry), p.claimEnds), p.names...)
	default:
		ps.underWay, ps.retryIn = nil, busyRetry
		if p.leftOver && !p.changed { // guarded transactions are open on all partitions that it had to move
			ps.retryIn = 2 * p.retryIn
		}
		return true
	}
	return false
}

// planned notes that a lease was planned. If the plan has changed a partition, it may have asked
// the session for one, or given it one at once. If not, the session may own partitions that were
// not read yet.
func (ms *members) planned(lease string, changed bool) {
	if m := ms.byName[lease]; m != nil && m.inDatabase() && (changed || m.generation == 0) {
		m.toRead = true
	}
}
