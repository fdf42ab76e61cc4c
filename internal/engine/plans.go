package engine

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// Plans: any client makes them for all members of a lease.

// plans are the leases that need a plan, joined or not, and what is known about their last plan.
type plans struct {
	at    dueTimes // when to plan a lease
	joins dueTimes // when to plan a lease that the session has joined
	// Joined leases are not planned before then, so that joins that follow each other share plans.
	joinsAt time.Time
	claimed map[string]bool // this client has claimed the plan
	alone   bool            // a plan met a lock: the next one is only of the leases that need it
	// until then plans are only of the leases that need them, because a plan of all was large
	allAt    time.Time
	underWay *planning // the plan that is under way or to be made again; nil: there is no such plan
	batch    int       // the most partitions that one statement moves; see fitting
	// the pause before another plan if moves are left over; doubled if the last plan changed no
	// partition
	retryIn time.Duration
}

func newPlans() plans {
	return plans{
		at: newDueTimes(), joins: newDueTimes(), claimed: make(map[string]bool),
		batch: maxBatch, retryIn: busyRetry,
	}
}

const (
	// joinsTogether is how long after a plan of joined leases the next one is made.
	joinsTogether = 50 * time.Millisecond
	// manyOthers is how many memberships a plan may read each time of leases that do not need it.
	manyOthers = 300
	// restAfterAll is the pause between two plans of many leases, as a multiple of the time that
	// one took. It is at least a second.
	restAfterAll = 20
)

// request notes leases that need a plan, to be made at that time.
func (ps *plans) request(at time.Time, names ...string) {
	for _, name := range names {
		planned, known := ps.at.of[name]
		if !known || at.Before(planned) {
			ps.at.set(name, at)
		}
	}
}

// heard notes leases that need a plan according to a heartbeat, unless one is to be made
// already.
func (ps *plans) heard(now time.Time, names ...string) {
	for _, name := range names {
		_, requested := ps.at.of[name]
		_, joined := ps.joins.of[name]
		if !requested && !joined {
			ps.at.set(name, now)
		}
	}
}

// joined notes a lease that the session has joined. The join may have claimed its plan.
func (ps *plans) joined(name string, join store.Join, now time.Time) {
	if join.Claimed {
		ps.claimed[name] = true
		ps.joins.set(name, now)
	} else {
		ps.joins.set(name, now.Add(join.DueIn+time.Millisecond))
	}
}

// forget forgets that a lease needs a plan.
func (ps *plans) forget(name string) {
	ps.at.delete(name)
	ps.joins.delete(name)
}

// names returns the leases that need a plan.
func (ps *plans) names() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(ps.at.of)), maps.Keys(ps.joins.of))
	slices.Sort(names)
	return slices.Compact(names)
}

// none reports whether no lease needs a plan.
func (ps *plans) none() bool { return len(ps.at.of)+len(ps.joins.of) == 0 }

func (ps *plans) due() time.Time {
	return when.Earlier(ps.at.soonest(), when.Later(ps.joins.soonest(), ps.joinsAt))
}

// dueTimes are times by lease. The soonest is kept, because each step of the engine asks for it.
type dueTimes struct {
	of    map[string]time.Time
	first time.Time // the soonest
	known bool      // the soonest is known
}

func newDueTimes() dueTimes { return dueTimes{of: make(map[string]time.Time)} }

func (d *dueTimes) set(name string, at time.Time) {
	d.delete(name)
	d.of[name] = at
	if d.known && at.Before(d.first) {
		d.first = at
	}
}

func (d *dueTimes) delete(name string) {
	at, is := d.of[name]
	if is && at.Equal(d.first) {
		d.known = false
	}
	delete(d.of, name)
}

func (d *dueTimes) soonest() time.Time {
	if !d.known {
		_, d.first = when.Soonest(maps.Values(d.of), func(at time.Time) time.Time { return at })
		d.known = true
	}
	return d.first
}

// until returns the names that are due.
func (d *dueTimes) until(now time.Time) (names []string) {
	if d.soonest().After(now) {
		return nil
	}
	for name, at := range d.of {
		if !at.After(now) {
			names = append(names, name)
		}
	}
	return names
}

// A planning is a plan of leases, from their claim to its last move. If one statement cannot write
// all moves, more statements follow, without another read. If another client has changed a lease
// since the read, the plan goes on without that lease. While an operation runs, its goroutine alone
// uses the planning.
type planning struct {
	names     []string // the leases that need it
	unclaimed []string // those to be claimed first
	claimed   []string // those that this client has claimed
	// it leaves out leases that share a member with these, so a plan of all is due
	needsPlanOfAll bool
	overtaken      []string // of the claimed leases: they have changed, and need another plan
	read           []store.LeaseSnapshot
	moves          []store.Move // not applied yet

	many              bool // it has read many memberships of leases that do not need it
	changed, leftOver bool // by the moves that were applied

	longest time.Duration // the most that retryIn may be
	retryIn time.Duration // the pause before another plan if moves are left over

	claimedAt time.Time
	claimEnds time.Time // when others may claim the leases; set if a change overtook the plan
}

// begin plans the leases that need it, or continues a plan. Longest is the longest pause before
// another plan if moves are left over.
func (ps *plans) begin(longest time.Duration, now time.Time) *planning {
	names := ps.at.until(now)
	joined := ps.joins.until(now)
	if len(joined) > 0 {
		names, ps.joinsAt = append(names, joined...), now.Add(joinsTogether)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	p := ps.underWay
	if p != nil && slices.Contains(names, p.names[0]) {
		return p
	}
	p = newPlanning(names, ps.claimed, longest, min(ps.retryIn, longest), now)
	for _, name := range names {
		delete(ps.claimed, name)
	}
	ps.underWay = p
	return p
}

// newPlanning returns a plan of leases that need one, of which some are claimed.
func newPlanning(names []string, claimed map[string]bool, longest, retryIn time.Duration, now time.Time) *planning {
	p := &planning{names: names, longest: longest, retryIn: retryIn, claimedAt: now}
	for _, name := range names {
		if claimed[name] {
			p.claimed = append(p.claimed, name)
		} else {
			p.unclaimed = append(p.unclaimed, name)
		}
	}
	return p
}

const (
	// overtakenFor is how long the client repeats a plan that another join overtakes. A plan that
	// takes longer waits until fewer joins arrive.
	overtakenFor = 100 * time.Millisecond
	// stalled is when another plan is due for leases whose plan a client has under way and does not
	// continue.
	stalled = time.Second
)

// portion returns what the next statement of a plan applies.
func (ps *plans) portion(now time.Time) portion {
	return portion{ps.batch, ps.alone || now.Before(ps.allAt)}
}

// A portion is what a plan applies in one statement: the maximum number of moves; alone: only for
// the leases that need it, not for all that share a member with them.
type portion struct {
	batch int
	alone bool
}

// An outcome is what came of a plan, or of its next batch of moves.
type outcome struct {
	applied store.Applied
	took    time.Duration // of the statement that applied moves, if one was sent
	err     error
}

// planAttempts is how often a plan is made in a row whose leases have all changed meanwhile.
const planAttempts = 3

// proceed claims, reads and plans leases, if that is not done yet, and applies the next batch of
// moves. A plan is made again if all of its leases have changed.
func (p *planning) proceed(
	ctx context.Context, c Conn, plan func([]store.LeaseSnapshot) []store.Move, n portion,
) outcome {
	err := p.claim(ctx, c)
	if err != nil || len(p.claimed) == 0 {
		return outcome{err: err}
	}
	began := time.Now()
	for attempt := 1; ; attempt++ {
		if p.read == nil {
			if err := p.snapshot(ctx, c, plan, n.alone); err != nil {
				return outcome{err: err}
			}
		}
		o := p.apply(ctx, c, n.batch)
		overtaken := o.err == nil && !o.applied.Applied && !o.applied.Unaccepted
		if !overtaken || attempt == planAttempts || time.Since(began) > overtakenFor {
			return o
		}
		select {
		case <-time.After(rand.N(20 * time.Millisecond)):
		case <-ctx.Done():
			o.err = context.Cause(ctx)
			return o
		}
	}
}

// claim claims the leases that other clients may plan too.
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

// snapshot reads the claimed leases, and plans their moves.
func (p *planning) snapshot(
	ctx context.Context, c Conn, plan func([]store.LeaseSnapshot) []store.Move, alone bool,
) error {
	read, err := c.Snapshot(ctx, p.claimed, alone)
	if err != nil {
		return err
	}
	p.read, p.moves = read, plan(read)
	p.needsPlanOfAll = alone && sharesMembers(read)
	p.many = p.many || readsMany(read, p.claimed)
	return nil
}

// apply applies the next moves. If that has no effect, the leases are to be read again.
func (p *planning) apply(ctx context.Context, c Conn, batch int) (o outcome) {
	moves := p.moves[:min(batch, len(p.moves))]
	began := time.Now()
	o.applied, o.err = c.Apply(ctx, p.read, moves, p.next(len(moves)))
	o.took = time.Since(began)
	if o.err == nil && o.applied.Applied {
		p.moved(o.applied, len(moves))
		p.dropOvertaken()
		return o
	}
	p.claimEnds = p.claimOver()
	p.read, p.moves = nil, nil
	return o
}

// moved notes that the first n moves are committed.
func (p *planning) moved(applied store.Applied, n int) {
	p.moves = p.moves[n:]
	p.changed = p.changed || applied.Asked+applied.Given > 0
	p.leftOver = p.leftOver || applied.LeftOver > 0
}

// dropOvertaken removes leases that have changed since they were read. They were to be balanced
// together with the others, so another plan of all is due.
func (p *planning) dropOvertaken() {
	is := make(map[string]bool)
	for _, r := range p.read {
		if r.Overtaken {
			is[r.Name] = true
		}
	}
	if len(is) == 0 {
		return
	}
	p.needsPlanOfAll, p.claimEnds = true, p.claimOver()
	p.read = slices.DeleteFunc(p.read, func(r store.LeaseSnapshot) bool { return r.Overtaken })
	p.moves = slices.DeleteFunc(p.moves, func(m store.Move) bool { return is[m.Lease] })
	for _, name := range p.claimed {
		if is[name] {
			p.overtaken = append(p.overtaken, name)
		}
	}
}

// claimOver returns when the claim is over, also for a server whose clock differs a little.
func (p *planning) claimOver() time.Time {
	return p.claimedAt.Add(claimLasts(p.read) + 10*time.Millisecond)
}

// unclaim makes the leases of a plan be claimed again.
func (p *planning) unclaim() { p.unclaimed, p.claimed = p.claimed, nil }

// readsMany reports whether a plan has read many memberships of leases that did not need it.
func readsMany(read []store.LeaseSnapshot, needed []string) bool {
	is, others := setOf(needed), 0
	for _, r := range read {
		if !is[r.Name] {
			others += len(r.Members)
		}
	}
	return others > manyOthers
}

// sharesMembers reports whether a lease has more than one member, so that others may have to be
// balanced with it.
func sharesMembers(read []store.LeaseSnapshot) bool {
	return slices.ContainsFunc(read, func(r store.LeaseSnapshot) bool { return len(r.Members) > 1 })
}

// next returns when another plan is due after a statement of n moves. It is due in any case if an
// earlier statement of this plan left moves over, and otherwise only if this one does.
func (p *planning) next(n int) store.NextPlan {
	switch {
	case n < len(p.moves):
		return store.NextPlan{After: stalled}
	case p.needsPlanOfAll:
		return store.NextPlan{After: p.longest}
	}
	return store.NextPlan{After: p.retryIn, OnlyLeftOver: !p.leftOver}
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
func (ps *plans) proceeded(p *planning, o outcome, n portion, ends bool, now time.Time) (made bool) {
	ps.alone = store.LockTimeout(o.err) || n.alone && !o.applied.Applied
	for _, name := range p.names {
		ps.forget(name)
	}
	if p.many {
		ps.restAfterLargePlan(now.Sub(p.claimedAt), now)
	}
	switch {
	case o.err != nil && ends:
		ps.underWay = nil
	case o.err != nil || len(p.moves) > 0:
		ps.request(now, p.names...)
	case len(p.claimed) > 0 && !o.applied.Applied:
		// A lease has changed since. The client that changed it may have planned them by now, or
		// will. So they are claimed again.
		p.unclaim()
		ps.request(when.Later(now.Add(busyRetry), p.claimEnds), p.names...)
	default:
		ps.underWay, ps.retryIn = nil, busyRetry
		if !ends {
			ps.request(when.Later(now.Add(busyRetry), p.claimEnds), p.overtaken...)
		}
		if p.leftOver && !p.changed { // guarded transactions are open on all partitions that it had to move
			ps.retryIn = 2 * p.retryIn
		}
		return true
	}
	return false
}

// requestAll notes leases whose plan left out others: another plan of them reads all that share a member
// with them.
func (ps *plans) requestAll(p *planning, now time.Time, names ...string) {
	ps.request(when.Later(now.Add(p.longest+time.Millisecond), ps.allAt), names...)
}

// restAfterLargePlan notes that a plan has read many memberships of leases that did not need it, and took that
// long. Until it pays to read all again, plans are only of the leases that need them.
func (ps *plans) restAfterLargePlan(took time.Duration, now time.Time) {
	ps.allAt = now.Add(max(time.Second, restAfterAll*took))
}

// planned notes that a lease was planned. The plan may have asked the session for a partition, or
// given it one at once, and the session may own partitions that were not read yet.
func (ms *members) planned(lease string) {
	m := ms.byName[lease]
	if m != nil {
		m.setToRead(true)
	}
}
