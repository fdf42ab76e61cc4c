package metrics

import (
	"context"
	"errors"
	"time"

	"github.com/pgleases/pgleases/internal/admin"
)

// database has what the tables say about all clients.
type database struct {
	*admin.Snapshot
	groups    []admin.ScheduleGroup
	consumers []admin.Consumer
}

// Database reads the tables, and returns the samples of all leases, clients, groups of schedules and
// consumers.
func Database(ctx context.Context, a *admin.Admin) ([]Sample, error) {
	s, err := a.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := a.ScheduleGroups(ctx)
	if err != nil && !errors.Is(err, admin.ErrNoSchedules) {
		return nil, err
	}
	consumers, err := a.Consumers(ctx)
	if err != nil && !errors.Is(err, admin.ErrNoConsumers) {
		return nil, err
	}
	return newSource(ofDatabase, nil, func() *database { return &database{s, groups, consumers} }).Read(), nil
}

// leases, members and groups read a metric that each of them has.
func leases(of func(s *admin.Snapshot, l *admin.Lease) float64) func(*database, add) {
	return func(d *database, to add) {
		for i := range d.Leases {
			to(of(d.Snapshot, &d.Leases[i]), d.Leases[i].Name)
		}
	}
}

// members adds up the members of a lease that have one client ID, as in a restart.
func members(of func(m *admin.Member) float64) func(*database, add) {
	return func(d *database, to add) {
		for _, l := range d.Leases {
			for i := 0; i < len(l.Members); { // they are in the order of client IDs
				id, sum := l.Members[i].Client, 0.0
				for ; i < len(l.Members) && l.Members[i].Client == id; i++ {
					sum += of(&l.Members[i])
				}
				to(sum, l.Name, id)
			}
		}
	}
}

func groups(of func(g *admin.ScheduleGroup) int) func(*database, add) {
	return func(d *database, to add) {
		for i := range d.groups {
			to(float64(of(&d.groups[i])), d.groups[i].Name)
		}
	}
}

// consumers reads a metric that each consumer has; of nil there is no sample.
func consumers(of func(c *admin.Consumer) *int) func(*database, add) {
	return func(d *database, to add) {
		for i := range d.consumers {
			if n := of(&d.consumers[i]); n != nil {
				to(float64(*n), d.consumers[i].Name)
			}
		}
	}
}

// age returns whole seconds; 0 for nil.
func age(d *time.Duration) *int {
	n := 0
	if d != nil {
		n = int(d.Seconds())
	}
	return &n
}

// sincePause returns the seconds since a pause; 0 if there is none.
func sincePause(now, since time.Time) float64 {
	if since.IsZero() {
		return 0
	}
	return max(0, now.Sub(since).Seconds())
}

var (
	ofMember = []string{"lease", "client"}
	ofGroup  = []string{"group"}
	ofQueue  = []string{"consumer"}
)

var ofDatabase = []entry[database]{
	{Metric{"pgleases.database.clients", "{client}", Level, nil,
		"Clients whose sessions have not expired."},
		count(func(d *database) (n int) {
			for _, c := range d.Clients {
				if !c.Expired {
					n++
				}
			}
			return n
		}), nil},
	{Metric{"pgleases.database.partitions", "{partition}", Level, ofLease,
		"Partitions of the lease."},
		leases(func(_ *admin.Snapshot, l *admin.Lease) float64 { return float64(l.Partitions) }), nil},
	{Metric{"pgleases.database.partitions.unowned", "{partition}", Level, ofLease,
		"Partitions without a live owner, except those that wait for a client; " +
			"0 while the lease is paused, and after its last member has left in order."},
		leases(func(s *admin.Snapshot, l *admin.Lease) float64 { return float64(s.Unowned(l)) }), nil},
	{Metric{"pgleases.database.members", "{client}", Level, ofLease,
		"Members of the lease whose sessions have not expired."},
		leases(func(s *admin.Snapshot, l *admin.Lease) (n float64) {
			for _, m := range l.Members {
				c := s.Client(m.Session)
				if c != nil && !c.Expired {
					n++
				}
			}
			return n
		}), nil},
	{Metric{"pgleases.database.pause.age", "s", Gauge, ofLease,
		"Time since an operator paused the lease, if the pause has no end; else 0."},
		leases(func(s *admin.Snapshot, l *admin.Lease) float64 {
			p := s.Pause(l)
			if p == nil || !p.Until.IsZero() {
				return 0
			}
			return sincePause(s.At, p.Since)
		}), nil},
	{Metric{"pgleases.database.partitions.waiting", "{partition}", Level, ofLease,
		"Partitions without an owner that wait for the return of a client, because of its restart grace."},
		leases(func(_ *admin.Snapshot, l *admin.Lease) float64 { return float64(l.Waiting().Count()) }), nil},
	{Metric{"pgleases.database.waiting.until", "s", Gauge, ofLease,
		"Time until the last of these partitions goes to another client; 0 if none waits."},
		leases(func(s *admin.Snapshot, l *admin.Lease) float64 {
			var longest time.Duration
			for _, h := range l.Holdings {
				if a := l.Awaits(h); a != nil {
					longest = max(longest, a.Until.Sub(s.At))
				}
			}
			return longest.Seconds()
		}), nil},
	{Metric{"pgleases.database.rebalance.delay", "s", Gauge, ofLease,
		"Time for which partitions with a live owner stay, because a member joined or changed its weight; else 0."},
		leases(func(s *admin.Snapshot, l *admin.Lease) float64 {
			if l.Settles.IsZero() {
				return 0
			}
			return max(0, l.Settles.Sub(s.At).Seconds())
		}), nil},
	{Metric{"pgleases.database.partitions.owned", "{partition}", Level, ofMember,
		"Partitions that the client owns."},
		members(func(m *admin.Member) float64 { return float64(m.Owned) }), nil},
	{Metric{"pgleases.database.partitions.wanted", "{partition}", Level, ofMember,
		"Partitions that the client is due by its weight."},
		members(func(m *admin.Member) float64 { return m.Share }), nil},
	{Metric{"pgleases.database.handoffs", "{partition}", Level, ofLease,
		"Partitions that a live owner is asked to hand over."},
		leases(func(_ *admin.Snapshot, l *admin.Lease) (n float64) {
			for _, h := range l.Holdings {
				if h.Moves() {
					n += float64(h.Partitions.Count())
				}
			}
			return n
		}), nil},
	{Metric{"pgleases.database.handoff.age", "s", Gauge, ofLease,
		"Time since the oldest of these requests; 0 if there is none."},
		leases(func(s *admin.Snapshot, l *admin.Lease) float64 {
			var oldest time.Duration
			for _, h := range l.Holdings {
				if h.Moves() && !h.Asked.IsZero() {
					oldest = max(oldest, s.At.Sub(h.Asked))
				}
			}
			return oldest.Seconds()
		}), nil},
	{Metric{"pgleases.database.schedule.late", "{schedule}", Level, ofGroup,
		"Schedules that are due for more than 10 s, 1001 at most."},
		groups(func(g *admin.ScheduleGroup) int { return g.Late }), nil},
	{Metric{"pgleases.database.schedule.failing", "{schedule}", Level, ofGroup,
		"Schedules whose last tick failed, 1001 at most."},
		groups(func(g *admin.ScheduleGroup) int { return g.Failing }), nil},
	{Metric{"pgleases.database.schedule.blocked", "{schedule}", Level, ofGroup,
		"Schedules that their owners cannot run, 1001 at most."},
		groups(func(g *admin.ScheduleGroup) int { return g.Blocked }), nil},
	{Metric{"pgleases.database.schedule.jobs", "{job}", Level, ofGroup,
		"Jobs that have not ended, 1001 at most."},
		groups(func(g *admin.ScheduleGroup) int { return g.Jobs }), nil},
	{Metric{"pgleases.database.schedule.stuck", "{job}", Level, ofGroup,
		"Jobs that their owners cannot run, 1001 at most."},
		groups(func(g *admin.ScheduleGroup) int { return g.Stuck }), nil},
	{Metric{"pgleases.database.consumer.waiting", "{row}", Level, ofQueue,
		"Rows in the queue table, 1000 at most."},
		consumers(func(c *admin.Consumer) *int { return c.Waiting }), nil},
	{Metric{"pgleases.database.consumer.oldest.age", "s", Gauge, ofQueue,
		"Age of the oldest row whose key is not blocked; 0 if there is none. " +
			"It is known if pgleases serve may read the table, " +
			"and the queue has a column for the time and an index that begins with the ID."},
		consumers(func(c *admin.Consumer) *int {
			if c.Waiting == nil || !c.Timed {
				return nil
			}
			return age(c.Oldest)
		}), nil},
	{Metric{"pgleases.database.consumer.first.age", "s", Gauge, ofQueue,
		"Time for which the row with the lowest ID whose key is not blocked has been the same, " +
			"as the consumer's processes saw it; 0 if no such row waits, " +
			"or if the consumer is paused or no partition has an owner."},
		consumers(func(c *admin.Consumer) *int { return age(&c.FirstFor) }), nil},
	{Metric{"pgleases.database.consumer.blocked", "{key}", Level, ofQueue,
		"Keys that wait for a row that failed."},
		consumers(func(c *admin.Consumer) *int { return &c.BlockedKeys }), nil},
	{Metric{"pgleases.database.consumer.blocked.age", "s", Gauge, ofQueue,
		"Time since the oldest of these rows failed first; 0 if there is none."},
		consumers(func(c *admin.Consumer) *int { return age(&c.BlockedFor) }), nil},
	{Metric{"pgleases.database.consumer.dead_letters", "{row}", Level, ofQueue,
		"Dead letters, 1000 at most."},
		consumers(func(c *admin.Consumer) *int { return &c.DeadLetters }), nil},
	{Metric{"pgleases.database.consumer.unhandled", "{row}", Level, ofQueue,
		"Rows whose partition is null or out of range, 1000 at most."},
		consumers(func(c *admin.Consumer) *int { return c.Unhandled }), nil},
	{Metric{"pgleases.database.consumer.paused", "", Gauge, ofQueue,
		"1 if an operator has paused the consumer or its lease, else 0."},
		consumers(func(c *admin.Consumer) *int {
			paused := map[bool]int{true: 1}[c.LeasePaused || !c.PausedAt.IsZero()]
			return &paused
		}), nil},
	{Metric{"pgleases.database.consumer.pause.age", "s", Gauge, ofQueue,
		"Time since an operator paused the consumer; 0 if it is not paused."},
		func(d *database, to add) {
			for _, c := range d.consumers {
				to(sincePause(d.At, c.PausedAt), c.Name)
			}
		}, nil},
}
