package pgleases

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// Evicting the dead, and planning the leases that ask for it: what any client does for all.

func (e *engine) opEvict(now time.Time) *operation {
	cutoff, watched, run := e.watch.cutoff(now), e.watch.lasts(now), e.watch.run
	return &operation{name: "evict", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
		evicted, err := c.Evict(ctx, cutoff+time.Since(now).Microseconds(), watched, run)
		return func(error) error {
			e.evictAt = time.Time{}
			e.checkAt = time.Now().Add(100*time.Millisecond + rand.N(min(e.o.heartbeat, minTTL))) // another is at it
			if err != nil {
				return err
			}
			if evicted.CheckDueIn >= 0 {
				e.checkAt = e.lookAfter(evicted.CheckDueIn)
			}
			e.unwatched = evicted.Unwatched
			if len(evicted.IDs) > 0 {
				e.c.log.Info("pgleases: evicted expired sessions", slog.Any("clients", evicted.IDs))
			}
			e.ask(time.Now(), evicted.Asked)
			return nil
		}
	}}
}

// lookers is how many clients, of however many, look whether a check is due that no heartbeat of theirs would see so soon. Among
// that many, the chance that all of them are dead or late is none.
const lookers = 25

// lookAfter is when to look for a check that is due in so long: not all clients at the same instant, and of many only
// some; the zero time: not before the next heartbeat.
func (e *engine) lookAfter(due time.Duration) time.Time {
	if e.sessions > lookers && rand.Int64N(e.sessions) >= lookers {
		return time.Time{}
	}
	return time.Now().Add(due + time.Millisecond + rand.N(80*time.Millisecond))
}

// ask notes leases that ask for a plan.
func (e *engine) ask(at time.Time, names []string) {
	for _, name := range names {
		if planned := e.plans[name]; planned.IsZero() || at.Before(planned) {
			e.plans[name] = at
		}
	}
}

// opRebalance plans the leases that ask for it.
func (e *engine) opRebalance(now time.Time) *operation {
	var names []string
	for name, at := range e.plans {
		if !now.Before(at) {
			names = append(names, name)
		}
	}
	if names == nil {
		return nil
	}
	slices.Sort(names)
	return &operation{name: "rebalance", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
		planned, applied, err := rebalance(ctx, c, names)
		return func(error) error {
			now := time.Now()
			for _, name := range names {
				delete(e.plans, name)
			}
			if err != nil {
				if e.ending == nil { // who closes leaves it to the others
					e.ask(now.Add(e.pause), names)
				}
				return err
			}
			switch {
			case applied.More:
				e.ask(now, names)
			case applied.LeftOver > 0 || planned != nil && !applied.Applied:
				e.ask(now.Add(busyRetry), names)
			}
			if applied.Asked+applied.Given > 0 {
				for _, p := range planned {
					if l := e.leases[p.Name]; l != nil && l.joined {
						l.dirty = true
						e.readAt = now
					}
				}
			}
			return nil
		}
	}}
}

// overtaken is how long a plan is made again where another join overtakes it; longer ones wait until the joins calm down.
const overtaken = 100 * time.Millisecond

// rebalance claims leases, plans them and applies the plan. A plan that something overtook is made again.
func rebalance(ctx context.Context, c conn, names []string) ([]store.LeasePlan, store.Applied, error) {
	claimed, err := c.Claim(ctx, names)
	if err != nil || len(claimed) == 0 {
		return nil, store.Applied{}, err
	}
	began := time.Now()
	for attempt := 1; ; attempt++ {
		read, err := c.Plan(ctx, claimed)
		if err != nil {
			return nil, store.Applied{}, err
		}
		applied, err := c.Apply(ctx, read, replan(read))
		if err != nil || applied.Applied || attempt == 3 || time.Since(began) > overtaken {
			return read, applied, err
		}
		select {
		case <-time.After(rand.N(20 * time.Millisecond)):
		case <-ctx.Done():
			return nil, store.Applied{}, context.Cause(ctx)
		}
	}
}

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
	members := make(map[string]int32, len(r.Members)) // by client ID
	living := make(map[int64]int32, len(r.Members))   // by session
	for _, m := range r.Members {                     // the highest incarnation of an ID comes last
		i, known := members[m.ID]
		if !known {
			i = int32(len(sessions))
			members[m.ID] = i
			lease.members = append(lease.members, planMember{})
			sessions = append(sessions, 0)
		}
		lease.members[i], sessions[i] = planMember{m.ID, m.Weight}, m.Session
		living[m.Session] = i
	}
	lease.current = make([]int32, len(r.Owners))
	lease.home = make([]int32, len(r.Owners))
	for p, owner := range r.Owners {
		lease.home[p] = memberOf(members, r.HomeIDs[p])
		if i, ok := living[r.Targets[p]]; ok {
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
	return lease, sessions, living
}

func memberOf(members map[string]int32, id string) int32 {
	if i, ok := members[id]; ok {
		return i
	}
	return -1
}
