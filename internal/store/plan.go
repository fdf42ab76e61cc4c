package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// An Evicted is the answer to an eviction.
type Evicted struct {
	IDs   []string // client IDs of the evicted sessions
	Asked []string // leases for which a plan is due now
	// CheckDueIn is the time until the next check is due for the caller; negative: another client does the check, or may do it.
	CheckDueIn time.Duration
}

// A Member is a living member of a lease.
type Member struct {
	Session     int64
	ID          string
	Incarnation int64
	Weight      int
}

// A LeasePlan is what a plan needs to know of one lease.
type LeasePlan struct {
	Name       string
	Generation int64
	Members    []Member // ordered by ID, incarnation, session
	// By partition number. Owners, Targets: the session that owns the partition, and the one that shall (0: none).
	// OwnerIDs: the last owner's client ID, where the owner's session does not exist (else empty). HomeIDs: the client ID to
	// which the partition returns when that client does (empty: none).
	Owners, Targets   []int64
	OwnerIDs, HomeIDs []string
}

// A Move gives a partition a new target; 0: no session.
type Move struct {
	Lease     string
	Partition int
	Target    int64
}

// An Applied is the answer to a plan.
type Applied struct {
	Applied  bool // false: a lease had changed since the plan read it, and nothing was written
	Asked    int  // owners asked to hand over
	Given    int  // partitions given to their targets
	LeftOver int  // moves not made, because a guarded transaction is open on the partition, or its epoch rose meanwhile
}

// Evict removes the sessions that expired before cutoff (the database's clock, microseconds since 1970) and whose TTL is at
// most watched. It does nothing where no check is due for the caller, who has that TTL, nor on another run of the server. See
// evict.sql.
func (c *Conn) Evict(ctx context.Context, cutoff int64, watched, ttl time.Duration, run Run) (Evicted, error) {
	type row struct {
		IDs, Asked []string
		CheckDueIn int64
	}
	got, err := one[row](ctx, c, c.statements.Evict, cutoff, watched.Microseconds(),
		ttl.Microseconds(), run.Timeline, run.Started, run.Mark, c.lockWait)
	return Evicted{got.IDs, got.Asked, micros(got.CheckDueIn)}, err
}

// Claim claims the planning of those leases for which a plan is due, and returns them. A lease that another statement has
// locked is tried up to four times; a lock that lasts longer is another client's plan. See claim.sql.
func (c *Conn) Claim(ctx context.Context, leases []string) ([]string, error) {
	var claimed []string
	for attempt := 1; ; attempt++ {
		got, err := one[struct{ Claimed, Locked []string }](ctx, c, c.statements.Claim, leases, c.lockWait)
		claimed = append(claimed, got.Claimed...)
		if err != nil || len(got.Locked) == 0 || attempt == 4 {
			return claimed, err
		}
		leases = got.Locked
		pause(ctx, rand.N(10*time.Millisecond))
	}
}

// Plan reads what a plan needs: the leases named, and, unless they are to be planned alone, all leases that share a member with
// them, ordered by name. See plan.sql.
func (c *Conn) Plan(ctx context.Context, leases []string, alone bool) ([]LeasePlan, error) {
	rows, err := all[planRow](ctx, c, c.statements.Plan, leases, alone)
	plans := make([]LeasePlan, len(rows))
	for i, r := range rows {
		if plans[i], err = r.plan(); err != nil {
			return nil, fmt.Errorf("plan of lease %q: %w", r.Name, err)
		}
	}
	return plans, err
}

// A planRow is a row of plan.sql.
type planRow struct {
	Name              string
	Generation        int64
	Partitions        int
	Sessions          []int64
	IDs               []string
	Incarnations      []int64
	Weights           []int
	Owners, Targets   []int64 // by holding, as what follows
	OwnerIDs, HomeIDs []string
	Numbers           string
}

func (r planRow) plan() (LeasePlan, error) {
	p := LeasePlan{
		Name: r.Name, Generation: r.Generation, Members: make([]Member, len(r.Sessions)),
		Owners: make([]int64, r.Partitions), Targets: make([]int64, r.Partitions),
		OwnerIDs: make([]string, r.Partitions), HomeIDs: make([]string, r.Partitions),
	}
	for i := range r.Sessions {
		p.Members[i] = Member{r.Sessions[i], r.IDs[i], r.Incarnations[i], r.Weights[i]}
	}
	if r.Numbers == "" {
		return p, nil
	}
	for i, numbers := range strings.Split(r.Numbers, ";") {
		for text := range strings.SplitSeq(numbers, ",") {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 || n >= r.Partitions {
				return p, fmt.Errorf("partition %s is none of %d", text, r.Partitions)
			}
			p.Owners[n], p.Targets[n], p.OwnerIDs[n], p.HomeIDs[n] = r.Owners[i], r.Targets[i], r.OwnerIDs[i], r.HomeIDs[i]
		}
	}
	return p, nil
}

// NotAgain is the time after which no other plan is due.
const NotAgain = -time.Microsecond

// Apply writes moves of a plan if all its leases are as the plan read them, else nothing. Another plan is due after that time, at
// most a second, or NotAgain. See apply.sql.
func (c *Conn) Apply(ctx context.Context, plan []LeasePlan, moves []Move, again time.Duration) (Applied, error) {
	names, generations := make([]string, len(plan)), make([]int64, len(plan))
	for i, p := range plan {
		names[i], generations[i] = p.Name, p.Generation
	}
	leases, partitions, targets := make([]string, len(moves)), make([]int, len(moves)), make([]int64, len(moves))
	for i, m := range moves {
		leases[i], partitions[i], targets[i] = m.Lease, m.Partition, m.Target
	}
	type row struct {
		Applied                bool
		Asked, Given, LeftOver int
	}
	got, err := notifying[row](ctx, c, c.statements.Apply,
		names, generations, leases, partitions, targets, c.lockWait, again.Microseconds())
	return Applied{got.Applied, got.Asked, got.Given, got.LeftOver}, err
}
