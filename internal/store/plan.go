package store

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// An Evicted is the answer to an eviction.
type Evicted struct {
	IDs       []string      // client IDs of the evicted sessions
	Hosts     []string      // of their processes, in the same order
	PIDs      []int         // as Hosts
	ToPlan    []string      // leases that need a plan
	PlanDueIn time.Duration // the time until it is due for all of them
	// Made says that the caller made the check, and has to call Tidy. Otherwise another client makes it,
	// or may make it.
	Made       bool
	CheckDueIn time.Duration // the time until the next check is due for the caller, if it made this one
}

// A Member is a live member of a lease.
type Member struct {
	Session     int64
	ID          string
	Incarnation int64
	Revoked     bool // an operator has evicted the client
	Weight      int
	// MaxPartitions is the most partitions that it may own; 0: it has no ceiling.
	MaxPartitions int
	Joined        int64 // generation of the lease when it joined, or its weight was last raised from 0

	Drained, Cordoned bool // by an operator's override
}

// A LeaseSnapshot is the input of a plan for one lease.
type LeaseSnapshot struct {
	Name           string
	Generation     int64
	Members        []Member       // ordered by ID, incarnation, session
	Paused, Frozen bool           // by an operator's override
	Settling       bool           // a rebalance delay is under way: what has a live owner stays
	Pins           map[int]string // likewise: partitions pinned to a client, by its ID
	// Awaited are the clients whose partitions wait for their return, by ID, also of clients that are
	// back.
	Awaited []Awaited
	// By partition number. Owners, Targets: the session that owns the partition, and the session that
	// is to own it (0: none). OwnerIDs: the last owner's client ID, if the owner is not a live member
	// (otherwise empty). PreferredIDs: the client ID of the preferred owner (empty: none), which
	// gets the partition back when it returns.
	Owners, Targets        []int64
	OwnerIDs, PreferredIDs []string

	// Unowned are the partitions without an owner, because all members are at their ceilings, in
	// ascending order; set by the plan. WasUnowned is how many there were after the last plan.
	Unowned    []int
	WasUnowned int

	Overtaken bool // set by Apply: the lease had changed since, and nothing of it was written
}

// An Awaited is a client that has left a lease, or was evicted, and is to come back.
type Awaited struct {
	ID                    string
	Weight, MaxPartitions int   // as a member; ceiling 0: none
	Generation            int64 // of the lease when it went away: if it has joined later, it is back
}

// A Move gives a partition a new target; 0: no session.
type Move struct {
	Lease     string
	Partition int
	Target    int64
}

// An Applied is the answer to a plan.
type Applied struct {
	// Applied is false if no row was written, because all leases had changed since the plan read them,
	// or because the server is not accepted.
	Applied    bool
	Unaccepted bool // the server is not accepted

	Asked int // partitions that their owners are asked to hand over
	Given int // partitions given to their targets

	// LeftOver is the number of moves that were not made, because a guarded transaction is open on a
	// partition without a live owner, or its epoch rose meanwhile.
	LeftOver int
}

// Evict removes the sessions that expired before cutoff (the database's clock, microseconds since
// 1970) and whose TTL is at most watched. It removes no session if no check is due for the caller,
// who has that TTL, or if this is another server incarnation. See evict.sql.
func (c *Conn) Evict(ctx context.Context, cutoff int64, watched, ttl time.Duration, run Incarnation) (Evicted, error) {
	return one[Evicted](ctx, c, c.statements.Evict, cutoff, watched.Microseconds(),
		ttl.Microseconds(), run.Timeline, run.Started, run.Marker, c.lockWait)
}

// Tidy does the work that a check for expired sessions leaves for later, and returns the leases
// that need a plan. See tidy.sql.
func (c *Conn) Tidy(ctx context.Context) ([]string, error) {
	got, err := one[struct{ ToPlan []string }](ctx, c, c.statements.Tidy, c.lockWait)
	return got.ToPlan, err
}

// Sampled says what a call of Sample has done.
type Sampled struct {
	Wrote   bool // otherwise another client has written them, or writes them
	Remains bool // some of this minute remain for the next call
}

// Sample writes samples of this minute, unless another client does it. The server takes at most
// limit for it. See sample.sql.
func (c *Conn) Sample(ctx context.Context, limit time.Duration) (Sampled, error) {
	timeout := fmt.Sprintf("SET LOCAL statement_timeout = %d", limit.Milliseconds())
	settings := append(slices.Clone(c.Settings), timeout)
	return send(ctx, c.Pgx, settings, theOne(pgx.RowToStructByPos[Sampled]), c.statements.Sample, c.lockWait)
}

// Claim claims the planning of those of the leases that need a plan, and returns them. It tries a
// lease that another statement has locked up to four times; a lock that lasts longer is another
// client's plan. See claim.sql.
func (c *Conn) Claim(ctx context.Context, leases []string) ([]string, error) {
	var claimed []string
	for attempt := 1; ; attempt++ {
		got, err := one[struct{ Claimed, Locked []string }](ctx, c, c.statements.Claim, leases, c.lockWait)
		claimed = append(claimed, got.Claimed...)
		if err != nil || len(got.Locked) == 0 || attempt == 4 {
			return claimed, err
		}
		leases = got.Locked
		Pause(ctx, rand.N(10*time.Millisecond))
	}
}

// Snapshot reads the input of a plan: the named leases, and, unless alone, all leases that share a
// member with them, ordered by name. See snapshot.sql.
func (c *Conn) Snapshot(ctx context.Context, leases []string, alone bool) ([]LeaseSnapshot, error) {
	return query(ctx, c, CollectSnapshots, c.statements.Snapshot, leases, alone)
}

// CollectSnapshots reads the rows of a statement whose columns are those of snapshot.sql, and
// closes them.
func CollectSnapshots(rows pgx.Rows) ([]LeaseSnapshot, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (LeaseSnapshot, error) {
		r, err := pgx.RowToStructByPos[snapshotRow](row)
		if err != nil {
			return LeaseSnapshot{}, err
		}
		return r.snapshot()
	})
}

// A snapshotRow is a row of snapshot.sql.
type snapshotRow struct {
	Name                   string
	Generation             int64
	Partitions             int
	Sessions               numbers
	IDs                    []string
	Incarnations           numbers
	Weights, Ceilings      numbers
	Joined                 numbers
	Drained, Cordoned      flags
	Paused, Frozen         bool
	Settling               bool
	Unowned                int
	Pinned                 numbers
	PinnedTo               []string
	Awaited                []string
	AwaitedWeights         numbers
	AwaitedCeilings        numbers
	AwaitedGenerations     numbers
	Owners, Targets        numbers // by holding, as the fields below
	OwnerIDs, PreferredIDs []string
	Numbers                string
}

func (r snapshotRow) snapshot() (LeaseSnapshot, error) {
	p := LeaseSnapshot{
		Name: r.Name, Generation: r.Generation, Paused: r.Paused, Frozen: r.Frozen,
		Settling: r.Settling, WasUnowned: r.Unowned,
		Members: make([]Member, len(r.Sessions)), Pins: make(map[int]string, len(r.Pinned)),
		Owners: make([]int64, r.Partitions), Targets: make([]int64, r.Partitions),
		OwnerIDs: make([]string, r.Partitions), PreferredIDs: make([]string, r.Partitions),
	}
	live := make(map[int64]bool, len(r.Sessions))
	for i, session := range r.Sessions {
		weight := int(r.Weights[i])
		p.Members[i] = Member{
			Session: session, ID: r.IDs[i], Incarnation: r.Incarnations[i], Revoked: r.Incarnations[i] < 0,
			Weight: weight, MaxPartitions: int(r.Ceilings[i]), Joined: r.Joined[i],
			Drained: r.Drained[i], Cordoned: r.Cordoned[i],
		}
		live[session] = true
	}
	for i, n := range r.Pinned {
		p.Pins[int(n)] = r.PinnedTo[i]
	}
	for i, id := range r.Awaited {
		p.Awaited = append(p.Awaited, Awaited{
			ID: id, Weight: int(r.AwaitedWeights[i]), MaxPartitions: int(r.AwaitedCeilings[i]),
			Generation: r.AwaitedGenerations[i],
		})
	}
	if r.Numbers == "" {
		return p, nil
	}
	for i, holding := range strings.Split(r.Numbers, ";") {
		if live[r.Owners[i]] {
			r.OwnerIDs[i] = ""
		}
		for text := range strings.SplitSeq(holding, ",") {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 || n >= r.Partitions {
				return p, fmt.Errorf("snapshot of lease %q: partition %s is not one of %d", r.Name, text, r.Partitions)
			}
			p.Owners[n], p.OwnerIDs[n] = r.Owners[i], r.OwnerIDs[i]
			p.Targets[n], p.PreferredIDs[n] = r.Targets[i], r.PreferredIDs[i]
		}
	}
	return p, nil
}

// A NextPlan says when another plan is due after a plan. If a lease was overtaken, another plan of
// all leases is due after 1 s instead.
type NextPlan struct {
	After        time.Duration // at most 1 s
	OnlyLeftOver bool          // only for leases with moves left over
}

// Apply writes moves of a plan, for those of its leases that are as they were read. Afterwards read
// says which leases were overtaken, and has the new generations of the others, so that more of the
// plan's moves can follow. See apply.sql.
func (c *Conn) Apply(ctx context.Context, read []LeaseSnapshot, moves []Move, next NextPlan) (Applied, error) {
	names, generations := make([]string, len(read)), make([]int64, len(read))
	for i, l := range read {
		names[i], generations[i] = l.Name, l.Generation
	}
	runs := runsOf(moves)
	changed, unowned := unownedOf(read)
	type row struct {
		Applied
		Overtaken []string
		Moved     []string // leases whose generation it raised
	}
	got, err := notifying[row](ctx, c, c.statements.Apply,
		names, generations, runs.successorLeases, runs.successors,
		runs.leases, runs.firsts, runs.lasts, runs.shifts, runs.moves, c.lockWait,
		next.After.Microseconds(), next.OnlyLeftOver, changed, unowned)
	overtaken, moved := setOf(got.Overtaken), setOf(got.Moved)
	for i := range read {
		read[i].Overtaken = overtaken[read[i].Name]
		if moved[read[i].Name] {
			read[i].Generation++
		}
		if err == nil && got.Applied.Applied && !read[i].Overtaken {
			read[i].WasUnowned = len(read[i].Unowned)
		}
	}
	return got.Applied, err
}

// unownedOf returns the leases in which another number of partitions has no owner than before, and
// these partitions, as multiranges.
func unownedOf(read []LeaseSnapshot) (leases, unowned []string) {
	leases, unowned = []string{}, []string{}
	for _, l := range read {
		if len(l.Unowned) != l.WasUnowned {
			leases, unowned = append(leases, l.Name), append(unowned, multirange(l.Unowned))
		}
	}
	return leases, unowned
}

// multirange returns ascending numbers as an int4multirange.
func multirange(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		first := numbers[i]
		next := first
		for ; i < len(numbers) && numbers[i] == next; i++ {
			next++
		}
		parts = append(parts, fmt.Sprintf("[%d,%d)", first, next))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// runs are moves in the format of apply.sql.
type runs struct {
	successorLeases []string
	successors      []int64
	leases          []string
	firsts, lasts   []int
	shifts          []int
	moves           []int
}

// maxGap is the maximum number of partitions without a move between two moves of a run: skipping
// them costs about as much as a new run.
const maxGap = 8

func runsOf(moves []Move) runs {
	moves = slices.Clone(moves)
	slices.SortFunc(moves, func(a, b Move) int {
		return cmp.Or(strings.Compare(a.Lease, b.Lease), a.Partition-b.Partition)
	})
	type successor struct {
		lease   string
		session int64
	}
	var r runs
	numbers := make(map[successor]int)
	for _, m := range moves {
		h := successor{m.Lease, m.Target}
		number, known := numbers[h]
		if !known {
			r.successorLeases, r.successors = append(r.successorLeases, h.lease), append(r.successors, h.session)
			number = len(r.successors)
			numbers[h] = number
		}
		last := len(r.leases) - 1
		if last < 0 || r.leases[last] != m.Lease || m.Partition-r.lasts[last] > maxGap {
			r.leases = append(r.leases, m.Lease)
			r.firsts, r.lasts = append(r.firsts, m.Partition), append(r.lasts, m.Partition-1)
			r.shifts = append(r.shifts, len(r.moves)+1-m.Partition)
			last++
		}
		for ; r.lasts[last] < m.Partition; r.lasts[last]++ {
			r.moves = append(r.moves, 0)
		}
		r.moves[len(r.moves)-1] = number
	}
	return r
}
