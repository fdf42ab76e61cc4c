package store

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Join is the answer to a join.
type Join struct {
	Alive  bool // whether the session exists
	Joined bool // whether it is a member now

	// Successor is the lease that has replaced this one, which nobody can join any more. It is empty
	// if the lease was not replaced.
	Successor string

	// Partitions is the number of the lease's partitions before this join. It is 0 if the lease was
	// dropped, did not exist, or was created meanwhile.
	Partitions int

	// DroppedWith is the number of partitions with which alone a dropped lease can be created again for
	// some time, if the session has not joined.
	DroppedWith int

	Claimed bool          // the plan that the join asked for is the caller's, at once
	DueIn   time.Duration // otherwise, the time until that plan is due

	SettlesIn time.Duration // the time until the rebalance delay ends; 0: no delay is under way

	// Generation is the lease's, without the joins. It is 0 if the lease is to be read, because the
	// session was a member before, or a member has more to know about the lease than what it owns.
	Generation int64
}

// Terms are what a client asks for in a lease.
type Terms struct {
	Weight         int
	RebalanceDelay time.Duration
	MaxPartitions  int // the most partitions that it may own; 0: it has no ceiling
	RestartGrace   time.Duration
}

// An Owned is one partition that a session owns.
type Owned struct {
	Partition int
	Epoch     int64
	Moving    bool // its target is another session, or no session
}

// A LeaseRead is what a session owns in one lease.
type LeaseRead struct {
	Name             string
	Generation       int64       // without the joins
	Server           Incarnation // the server that answered, without the boot marker
	AcceptedTimeline int64       // according to that server
	ServerGeneration int64       // the present generation: no guard passes under an epoch of an earlier one
	Owned            []Owned     // ordered by partition

	// Paused and Drained say who has paused the lease, or drained the client, and why. They are nil if
	// nobody has.
	Paused, Drained []string

	// Unowned is how many partitions have no owner, because all members are at their ceilings. Speaks
	// is whether this session is to log that for all members.
	Unowned int
	Speaks  bool
}

// ServerGenerationOf returns the server generation of an epoch.
func ServerGenerationOf(epoch int64) int64 { return epoch >> 32 }

// A Release is one partition that its owner gives up.
type Release struct {
	Lease     string
	Partition int
	Epoch     int64
}

// A Leave is a lease that its member leaves.
type Leave struct {
	Lease string

	// Now asks to end the membership. If the session still owns a partition there, it stays a member,
	// with weight 0, and a later release ends the membership.
	Now bool

	// Returns says that the client comes back. If it has a restart grace in the lease, its partitions
	// wait for it.
	Returns bool

	// Planned is the lease's generation, as the plan of the successors read it. It is 0 if there is no
	// such plan.
	Planned int64

	// Successors are the sessions that get the released partitions, by partition. A partition without
	// a successor goes to its target.
	Successors map[int]int64
}

// A Released is the answer to a release.
type Released struct {
	Released []Handed
	Busy     []Release // still owned: their rows are locked, or the server is not accepted; Epoch is 0
	Left     []string  // leases that the session is no longer a member of
	ToPlan   []string  // leases that need a plan now
}

// A Handed is a released partition with its new owner (0: no owner) and epoch. If the lease was
// left, the owner was notified.
type Handed struct {
	Lease     string
	Partition int
	Owner     int64
	Epoch     int64
}

// Join makes the session a member of a lease, or changes its weight, and creates the lease if it
// does not exist. The number rises with every join of the session. See join.sql.
func (c *Conn) Join(
	ctx context.Context, session int64, lease string, partitions int, terms Terms, number int64,
) (Join, error) {
	c.lastLeases = lastLeases{} // so that the next heartbeat returns the lease
	return one[Join](ctx, c, c.statements.Join, session, lease, partitions, terms.Weight, number, c.lockWait,
		terms.RebalanceDelay.Microseconds(), terms.MaxPartitions, terms.RestartGrace.Microseconds())
}

// Read returns the partitions that the session owns in the named leases, without leases that do not
// exist. See read.sql.
func (c *Conn) Read(ctx context.Context, session int64, leases []string) ([]LeaseRead, error) {
	type row struct {
		Name       string
		Generation int64
		Timeline   int64
		Started    int64
		Accepted   int64
		ServerGen  int64
		Partitions numbers
		Epochs     numbers
		Moving     flags

		Paused, Drained []string
		Unowned         int
		Speaks          bool
	}
	read := func(from pgx.CollectableRow) (LeaseRead, error) {
		r, err := pgx.RowToStructByPos[row](from)
		read := LeaseRead{
			Name: r.Name, Generation: r.Generation, Server: Incarnation{Timeline: r.Timeline, Started: r.Started},
			AcceptedTimeline: r.Accepted, ServerGeneration: r.ServerGen, Owned: make([]Owned, len(r.Partitions)),
			Paused: r.Paused, Drained: r.Drained, Unowned: r.Unowned, Speaks: r.Speaks,
		}
		for i := range r.Partitions {
			read.Owned[i] = Owned{int(r.Partitions[i]), r.Epochs[i], r.Moving[i]}
		}
		return read, err
	}
	collect := func(rows pgx.Rows) ([]LeaseRead, error) { return pgx.CollectRows(rows, read) }
	return query(ctx, c, collect, c.statements.Read, session, leases)
}

// A Span is a part of a lease: the partitions from First to Last. With Since, it is what has changed
// of them since an earlier answer.
type Span struct {
	Lease       string
	First, Last int
	Since       Point
}

// A Point is a point in the history of one server incarnation, as an answer about owners returns it.
// The zero Point is before all others.
type Point struct{ Run, Seen string }

// Owners are the clients that own partitions of a span.
type Owners struct {
	Partitions int   // of the lease; 0: there is no such lease
	Generation int64 // of the lease, without the joins
	At         Point // for the next question
	// Firsts and Lasts are the first and last partitions of what was read. The rest of the span did not
	// change since the point that the span names. If all may have changed, all was read.
	Firsts, Lasts []int64
	Owners        []Owner // of what was read
}

// Covers reports whether all partitions from the first to that one were read.
func (o Owners) Covers(last int) bool {
	return len(o.Firsts) == 1 && o.Firsts[0] == 0 && int(o.Lasts[0]) >= last
}

// An Owner is a client, and what it owns of a span.
type Owner struct {
	ID                 string
	Metadata           string // JSON
	Partitions, Epochs []int64
}

// Owners returns who owns partitions, by span. See owners.sql.
func (c *Conn) Owners(ctx context.Context, spans []Span) (map[Span]Owners, error) {
	leases := column(spans, func(s Span) string { return s.Lease })
	first := column(spans, func(s Span) int { return s.First })
	last := column(spans, func(s Span) int { return s.Last })
	runs := column(spans, func(s Span) string { return s.Since.Run })
	seen := column(spans, func(s Span) string { return cmp.Or(s.Since.Seen, "0") })
	type row struct {
		Number             int
		Lease              int
		Generation         int64
		Run, Seen          string
		Firsts, Lasts      numbers
		ID, Metadata       string
		Partitions, Epochs numbers
	}
	collect := func(rows pgx.Rows) ([]row, error) { return pgx.CollectRows(rows, pgx.RowToStructByPos[row]) }
	rows, err := query(ctx, c, collect, c.statements.Owners, leases, first, last, runs, seen)
	found := make(map[Span]Owners, len(spans))
	for _, r := range rows {
		of := found[spans[r.Number-1]]
		if r.ID == "" {
			of.Partitions, of.Generation = r.Lease, r.Generation
			of.At = Point{r.Run, r.Seen}
			of.Firsts, of.Lasts = r.Firsts, r.Lasts
		} else {
			of.Owners = append(of.Owners, Owner{r.ID, r.Metadata, r.Partitions, r.Epochs})
		}
		found[spans[r.Number-1]] = of
	}
	return found, err
}

// Release gives up partitions, and leaves the leases that the session joined with that join or
// earlier. Announce has to notify the new owners, except those in a lease that was left. See
// release.sql.
func (c *Conn) Release(
	ctx context.Context, session int64, releases []Release, leaving []Leave, lastJoin int64,
) (Released, error) {
	leases, partitions, epochs := columns(releases)
	left := column(leaving, func(l Leave) string { return l.Lease })
	planned := column(leaving, func(l Leave) int64 { return l.Planned })
	now, returning := []string{}, []string{}
	successorsOf := make(map[string]map[int]int64, len(leaving))
	for _, l := range leaving {
		successorsOf[l.Lease] = l.Successors
		if l.Now {
			now = append(now, l.Lease)
		}
		if l.Returns {
			returning = append(returning, l.Lease)
		}
	}
	successors := column(releases, func(r Release) int64 { return successorsOf[r.Lease][r.Partition] })
	type row struct {
		ReleasedLeases     []string
		ReleasedPartitions numbers
		Owners, Epochs     numbers
		BusyLeases         []string
		BusyPartitions     []int
		LeftLeases, ToPlan []string
	}
	got, err := notifying[row](ctx, c, c.statements.Release,
		session, leases, partitions, epochs, successors, left, planned, now, returning, lastJoin, c.lockWait)
	if err != nil {
		return Released{}, err
	}
	released := Released{Left: got.LeftLeases, ToPlan: got.ToPlan}
	for i, lease := range got.ReleasedLeases {
		handed := Handed{lease, int(got.ReleasedPartitions[i]), got.Owners[i], got.Epochs[i]}
		released.Released = append(released.Released, handed)
	}
	for i, lease := range got.BusyLeases {
		released.Busy = append(released.Busy, Release{Lease: lease, Partition: got.BusyPartitions[i]})
	}
	if len(leaving) > 0 {
		c.lastLeases = lastLeases{} // the next heartbeat returns the leases that it is still a member of
	}
	return released, nil
}

// Announce notifies sessions that leases have changed for them. See announce.sql.
func (c *Conn) Announce(ctx context.Context, leases []string, sessions []int64) error {
	_, err := notifying[struct{ Done string }](ctx, c, c.statements.Announce, leases, sessions, c.lockWait)
	return err
}

// Prepare makes the server plan the statements of a handoff for this connection, which takes longer
// than running them. No lease has the name that it passes.
func (c *Conn) Prepare(ctx context.Context) error {
	if _, err := c.Release(ctx, 0, nil, []Leave{{Lease: "", Now: true}}, 0); err != nil {
		return err
	}
	return c.Announce(ctx, []string{}, []int64{})
}

// Fence raises the epochs of partitions that guarded transactions keep from being released. See
// fence.sql.
func (c *Conn) Fence(ctx context.Context, session int64, busy []Release) error {
	leases, partitions, epochs := columns(busy)
	return c.exec(ctx, c.statements.Fence, session, leases, partitions, epochs, c.lockWait)
}

func columns(releases []Release) (leases []string, partitions []int, epochs []int64) {
	leases = column(releases, func(r Release) string { return r.Lease })
	partitions = column(releases, func(r Release) int { return r.Partition })
	epochs = column(releases, func(r Release) int64 { return r.Epoch })
	return leases, partitions, epochs
}
