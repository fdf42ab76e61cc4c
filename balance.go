package pgleases

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// Evicting the dead, and planning the leases that ask for it: what any client does for all.

// check is when to look whether a session has expired, and what is known for that.
type check struct {
	watch    watch     // of the database's clock
	lookAt   time.Time // when to look, by an early heartbeat; never: not before the next one
	evictAt  time.Time // when to evict, where the database said that a session may have expired; never: it did not
	passed   bool      // a check was due that this client left to those that look for it
	sessions int64     // of all clients, about
	toTidy   bool      // a check was made, and what can wait is left
}

// heardCheck takes what a heartbeat tells of the next check for this client: it is due at some time, or due now and this client
// has watched for long enough to evict anybody, or not.
func (e *engine) heardCheck(beat store.Beat) {
	now := time.Now()
	c := &e.check
	c.sessions = beat.Sessions
	if beat.CheckDueIn > 0 {
		c.lookAt, c.evictAt, c.passed = c.lookAfter(beat.CheckDueIn), never, false
		return
	}
	if c.sessions > lookers && c.lookAt == never && c.evictAt == never && !c.passed {
		c.passed = true
		return
	}
	if wait := minTTL - c.watch.lasts(now); wait > 0 {
		c.lookAt, c.evictAt = now.Add(wait), never
		return
	}
	// After the spread the cutoff is past the due time too. Heartbeats may be closer together than that: the first one decides.
	c.lookAt, c.evictAt = never, earlier(c.evictAt, now.Add(c.watch.spread()))
}

// lookers is how many clients, of however many, look whether a check is due that no heartbeat of theirs would see so soon. Among
// that many, the chance that all of them are dead or late is none.
const lookers = 25

// lookAfter is when to look for a check that is due after that time: not all clients at the same instant, and of many only
// some; never: not before the next heartbeat. Who does not look leaves a check that is due to the others, the first time.
func (c *check) lookAfter(due time.Duration) time.Time {
	if c.sessions > lookers && rand.Int64N(c.sessions) >= lookers {
		return never
	}
	return time.Now().Add(due + time.Millisecond + rand.N(80*time.Millisecond))
}

func (e *engine) evictDue(time.Time) time.Time { return e.check.evictAt }

func (e *engine) beginEvict(now time.Time) *operation {
	cutoff, watched, run := e.check.watch.cutoff(now), e.check.watch.lasts(now), e.check.watch.run
	ttl := e.options.ttl
	return ask(e.limit(), func(ctx context.Context, c conn) (store.Evicted, error) {
		return c.Evict(ctx, cutoff+time.Since(now).Microseconds(), watched, ttl, run)
	}, func(evicted store.Evicted, err error) {
		e.check.evictAt = never
		e.check.lookAt = time.Now().Add(100*time.Millisecond + rand.N(min(e.options.heartbeat, minTTL))) // another client is at it
		if err != nil {
			return
		}
		if evicted.CheckDueIn >= 0 {
			e.check.lookAt = e.check.lookAfter(evicted.CheckDueIn)
			e.check.toTidy = true
		}
		if len(evicted.IDs) > 0 {
			e.client.log.Info("pgleases: evicted expired sessions", slog.Any("clients", evicted.IDs))
		}
		e.evictedOthers(evicted)
	})
}

func (e *engine) tidyDue(time.Time) time.Time { return atOnceIf(e.check.toTidy) }

// beginTidy does what can wait. If it fails, the next check is in time for it.
func (e *engine) beginTidy(time.Time) *operation {
	return ask(e.limit(), func(ctx context.Context, c conn) ([]string, error) { return c.Tidy(ctx) }, func(asked []string, _ error) {
		e.check.toTidy = false
		e.plans.request(time.Now(), asked...)
	})
}

// evictedOthers has given to others what evicted sessions had.
func (e *engine) evictedOthers(evicted store.Evicted) {
	if len(evicted.IDs) > 0 {
		e.locks.sweepAt = time.Now()
	}
	e.plans.request(time.Now().Add(evicted.PlanDueIn), evicted.Asked...)
}

// plans are the leases that ask for a plan, joined or not, and what is known of their last.
type plans struct {
	at       map[string]time.Time // when to plan a lease
	claimed  map[string]bool      // of these: this client has claimed the plan
	apart    bool                 // a plan met a lock: the next one is of those leases alone that ask for it
	underWay *planning            // or to be made again; nil: none is
	batch    int                  // the most partitions that one statement moves; see fitting
	blocked  map[string]blocked   // by lease: those whose last plan changed nothing
}

func newPlans() plans {
	return plans{at: make(map[string]time.Time), claimed: make(map[string]bool), batch: maxBatch, blocked: make(map[string]blocked)}
}

// request notes leases that ask for a plan, to be made at that time.
func (p *plans) request(at time.Time, names ...string) {
	for _, name := range names {
		if planned, known := p.at[name]; !known || at.Before(planned) {
			p.at[name] = at
		}
	}
}

func (e *engine) rebalanceDue(time.Time) time.Time {
	_, at := soonest(maps.Values(e.plans.at), func(at time.Time) time.Time { return at })
	return at
}

// beginRebalance plans the leases that ask for it, or goes on with a plan.
func (e *engine) beginRebalance(now time.Time) *operation {
	var names []string
	for name, at := range e.plans.at {
		if !at.After(now) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	p := e.plans.underWay
	if p == nil || !slices.Contains(names, p.names[0]) {
		p = &planning{names: names, claimedAt: now, blocked: maps.Clone(e.plans.blocked), longest: min(e.options.heartbeat, time.Second)}
		if e.ending.reason != nil { // see leavesToOthers
			p.longest = busyRetry
		}
		for _, name := range names {
			if e.plans.claimed[name] {
				p.claimed = append(p.claimed, name)
			} else {
				p.unclaimed = append(p.unclaimed, name)
			}
			delete(e.plans.claimed, name)
		}
		e.plans.underWay = p
	}
	batch, alone, again, limit := e.plans.batch, e.plans.apart, time.Duration(store.NotAgain), e.limit()
	if alone {
		again = p.longest
	}
	return &operation{limit: limit, call: func(ctx context.Context, c conn) func(error) error {
		applied, took, err := p.proceed(ctx, c, batch, alone, again)
		return func(ended error) error {
			if took > 0 {
				e.plans.batch = fitting(e.plans.batch, maxPartitions, took, limit, ended)
			}
			e.plans.apart = store.LockTimeout(err) || alone && !applied.Applied
			e.rebalanced(p, applied, err)
			return err
		}
	}}
}

// A planning is a plan of leases from their claim to its last move. The moves that one statement has no room for follow in others. In
// between nothing is read anew: where another has changed a lease since, a statement writes nothing.
type planning struct {
	names     []string // that asked
	unclaimed []string // of these: to be claimed first
	claimed   []string // by this client
	read      []store.LeasePlan
	moves     []store.Move // that are left

	changed, leftOver bool // by what was applied of it

	blocked map[string]blocked // as the client had them when the plan began
	longest time.Duration      // the most that retryIn may be
	retryIn time.Duration      // when another plan is due if moves are left over

	claimedAt time.Time
	claimEnds time.Time // when others may claim the leases; set where something overtook the plan
}

// A blocked is a lease whose last plan changed nothing, because guarded transactions were open on all
// that it had to move.
type blocked struct {
	generation int64
	retryIn    time.Duration
}

// backOff returns when the leases are planned again if moves are left over: twice as late as before,
// unless one has changed.
func (p *planning) backOff() time.Duration {
	wait := p.longest
	for _, r := range p.read {
		if before, known := p.blocked[r.Name]; known && before.generation == r.Generation {
			wait = min(wait, 2*before.retryIn)
		} else if slices.Contains(p.claimed, r.Name) {
			wait = min(wait, busyRetry)
		}
	}
	return wait
}

const (
	// overtaken is how long a plan is made again where another join overtakes it; longer ones wait until the joins calm down.
	overtaken = 100 * time.Millisecond
	// stalled is when a plan is due of leases whose plan a client has under way, and does not go on with.
	stalled = time.Second
)

// proceed claims, reads and plans leases, where that is to be done, and applies the next moves, a batch. It also returns how long that
// took alone; 0: it did not come to it. A plan that something overtook is made again. The plan is of all leases that share a member
// with those claimed, or of those alone; then another plan is due again after some time.
func (p *planning) proceed(ctx context.Context, c conn, batch int, alone bool, again time.Duration) (applied store.Applied, took time.Duration, err error) {
	if len(p.unclaimed) > 0 {
		claimed, err := c.Claim(ctx, p.unclaimed)
		if err != nil {
			return applied, 0, err
		}
		p.claimedAt = time.Now()
		p.unclaimed, p.claimed = nil, append(p.claimed, claimed...)
	}
	if len(p.claimed) == 0 {
		return applied, 0, nil
	}
	began := time.Now()
	for attempt := 1; ; attempt++ {
		if p.read == nil {
			if p.read, err = c.Plan(ctx, p.claimed, alone); err != nil {
				p.read = nil
				return applied, 0, err
			}
			p.moves, p.retryIn = replan(p.read), p.backOff()
		}
		next, n := again, min(batch, len(p.moves))
		switch {
		case n < len(p.moves):
			next = stalled
		case next < 0 && p.leftOver:
			next = p.retryIn
		case next < 0:
			next = -p.retryIn // of the leases alone in which moves are left over
		}
		applying := time.Now()
		applied, err = c.Apply(ctx, p.read, p.moves[:n], next)
		took = time.Since(applying)
		if err == nil && applied.Applied {
			p.moves = p.moves[n:]
			p.changed = p.changed || applied.Asked+applied.Given > 0
			p.leftOver = p.leftOver || applied.LeftOver > 0
			return applied, took, nil
		}
		p.claimEnds = p.claimedAt.Add(claimLasts(p.read) + 10*time.Millisecond) // the clocks are two
		p.read, p.moves = nil, nil
		if err != nil || applied.Unsettled || attempt == 3 || time.Since(began) > overtaken {
			return applied, took, err
		}
		select {
		case <-time.After(rand.N(20 * time.Millisecond)):
		case <-ctx.Done():
			return applied, took, context.Cause(ctx)
		}
	}
}

// claimLasts is for how long a claim keeps others from a plan of these leases, as claim.sql has it.
func claimLasts(read []store.LeasePlan) time.Duration {
	most := 0
	for _, r := range read {
		most = max(most, len(r.Owners))
	}
	return 100*time.Millisecond + time.Duration(most)*10*time.Microsecond
}

// rebalanced takes what became of a plan, or of the first moves of it.
func (e *engine) rebalanced(p *planning, applied store.Applied, err error) {
	now := time.Now()
	for _, name := range p.names {
		delete(e.plans.at, name)
	}
	switch {
	case err != nil && e.ending.reason != nil: // the other clients do it
		e.plans.underWay = nil
	case err != nil || len(p.moves) > 0:
		e.plans.request(now, p.names...)
	case len(p.claimed) > 0 && !applied.Applied: // whoever overtook it may have it planned by now, or later: so it is claimed again
		p.unclaimed, p.claimed = p.claimed, nil
		e.plans.request(later(now.Add(busyRetry), p.claimEnds), p.names...)
		if applied.Unsettled {
			e.session.beatNow() // which tells it
		}
	default:
		e.plans.underWay = nil
		for _, r := range p.read {
			delete(e.plans.blocked, r.Name)
			if p.leftOver && !p.changed {
				e.plans.blocked[r.Name] = blocked{r.Generation, p.retryIn}
			}
		}
		if p.leftOver && !e.leavesToOthers(now) {
			e.plans.request(now.Add(p.retryIn), p.names...)
		}
	}
	if e.plans.underWay != nil {
		return
	}
	for _, r := range p.read {
		m := e.leases.byName[r.Name]
		if m == nil || !m.joined {
			continue
		}
		if p.changed && concerns(r, e.session.number) || m.generation == 0 && slices.Contains(r.Owners, e.session.number) {
			m.toRead = true
		}
	}
}

// concerns reports whether a plan may have asked the session for something, or given it something at once.
func concerns(p store.LeasePlan, session int64) bool {
	others := make(map[int64]bool, len(p.Members))
	for _, m := range p.Members {
		others[m.Session] = m.Session != session
	}
	return slices.ContainsFunc(p.Owners, func(owner int64) bool { return !others[owner] })
}

// bequeath plans leases without the session of this client ID, which leaves them, and names the heirs of what it owns there. Where the
// plan is about more than that, there are no heirs: a plan is made once the session has left.
func bequeath(ctx context.Context, c conn, session int64, id string, leaving []store.Leave) error {
	names, heirs := make([]string, len(leaving)), make(map[string]map[int]int64, len(leaving))
	for i, l := range leaving {
		names[i], heirs[l.Lease] = l.Lease, make(map[int]int64)
	}
	read, err := c.Plan(ctx, names, false)
	if err != nil {
		return err
	}
	generations := make(map[string]int64, len(read))
	for i, r := range read {
		of, leaves := heirs[r.Name]
		if !leaves {
			continue
		}
		generations[r.Name] = r.Generation
		read[i].Members = slices.DeleteFunc(r.Members, func(m store.Member) bool { return m.Session == session })
		for partition, owner := range r.Owners {
			if owner == session { // as if it had left
				r.Owners[partition], r.OwnerIDs[partition] = 0, id
				of[partition] = 0
			}
		}
	}
	for _, m := range replan(read) {
		if _, owned := heirs[m.Lease][m.Partition]; !owned {
			return nil
		}
		heirs[m.Lease][m.Partition] = m.Target
	}
	for i, l := range leaving {
		leaving[i].Planned, leaving[i].Heirs = generations[l.Lease], heirs[l.Lease]
	}
	return nil
}

func init() { seam.Replan = replan }

// replan makes a plan of what was read, and returns what it changes: targets of partitions whose owner lives, and
// partitions without a living owner, which go to their target whether or not that stays the same.
func replan(read []store.LeasePlan) []store.Move {
	leases := make([]planLease, len(read))
	sessions := make([][]int64, len(read)) // by member of the plan
	living := make([]map[int64]int32, len(read))
	for i, r := range read {
		leases[i], sessions[i], living[i] = planLeaseOf(r)
	}
	var moves []store.Move
	for i, targets := range plan(leases) {
		for partition, member := range targets {
			var target int64
			if member >= 0 {
				target = sessions[i][member]
			}
			owner := read[i].Owners[partition]
			_, kept := living[i][owner]
			if kept && read[i].Targets[partition] != target || !kept && (owner != 0 || target != 0) {
				moves = append(moves, store.Move{Lease: read[i].Name, Partition: partition, Target: target})
			}
		}
	}
	return moves
}

// planLeaseOf shows the planner one member per client ID, its highest incarnation, and every partition as with the client ID
// that it is meant for. It also returns the session of each member, and the member of each living session.
func planLeaseOf(r store.LeasePlan) (planLease, []int64, map[int64]int32) {
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
			sessions, cordoned = append(sessions, 0), append(cordoned, false)
		}
		weight := m.Weight
		if r.Paused || m.Drained || m.Incarnation < 0 {
			weight = 0
		}
		lease.members[i], sessions[i] = planMember{m.ID, weight}, m.Session
		cordoned[i] = m.Cordoned && weight > 0
		living[m.Session] = i
	}
	lease.current = make([]int32, len(r.Owners))
	lease.home = make([]int32, len(r.Owners))
	for p, owner := range r.Owners {
		lease.home[p] = memberOf(members, r.HomeIDs[p])
		if i, ok := living[owner]; ok && r.Frozen && lease.members[i].weight > 0 { // also where it was asked to hand over
			lease.current[p] = i
		} else if i, ok := living[r.Targets[p]]; ok {
			lease.current[p] = i
		} else if i, ok := living[owner]; ok {
			lease.current[p] = i
		} else {
			lease.current[p] = -1
			if i, ok := members[r.OwnerIDs[p]]; ok { // it restarted: its own come back
				lease.home[p] = i
			}
		}
	}
	pinned := make(map[int]int32, len(r.Pins))
	for p, id := range r.Pins {
		if i, ok := members[id]; ok && lease.members[i].weight > 0 {
			pinned[p] = i
		}
	}
	lease.fix(r.Frozen, cordoned, pinned)
	return lease, sessions, living
}

func memberOf(members map[string]int32, id string) int32 {
	if i, ok := members[id]; ok {
		return i
	}
	return -1
}
