package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/pgserver"
)

const leaseName = "work"

// A member is a client that joined one lease.
type member struct {
	id     string
	client *pgleases.Client
	*pgleases.Lease
}

func open(ctx context.Context, url, id string, ttl time.Duration) *member {
	opts := []pgleases.Option{pgleases.WithClientID(id), pgleases.WithLogger(quiet)}
	if ttl > 0 {
		opts = append(opts, pgleases.WithTTL(ttl))
	}
	return &member{id: id, client: must(pgleases.Open(ctx, url, opts...))}
}

// join joins a lease without a handoff delay, because the members do no work.
func (m *member) join(ctx context.Context, lease string, partitions int, opts ...pgleases.LeaseOption) {
	m.Lease = must(m.client.Lease(ctx, lease, partitions, append(opts, pgleases.WithHandoffDelay(0))...))
}

func closeClient(client *pgleases.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = client.Close(ctx) // what remains is dropped with the database
}

// watch reports what the member owns at every change, until its client ends.
func (m *member) watch(report func(holding)) {
	changed := m.Changed()
	report(holding{m.id, time.Now(), len(m.Values()), false})
	go func() {
		for {
			select {
			case <-changed:
				changed = m.Changed()
				report(holding{m.id, time.Now(), len(m.Values()), false})
			case <-m.client.Done():
				report(holding{m.id, time.Now(), 0, true})
				return
			}
		}
	}()
}

// A holding is the number of partitions that a client owns.
type holding struct {
	ID    string
	At    time.Time
	Owns  int
	Ended bool
}

// A census holds what each client owns. All methods are safe for concurrent use.
type census struct {
	patience time.Duration // the longest wait of until

	mu      sync.Mutex // guards the rest
	last    map[string]holding
	at      time.Time     // of the last change
	failed  error         // of a worker
	changed chan struct{} // closed at the next change
}

func newCensus() *census {
	return &census{patience: patience, last: make(map[string]holding), changed: make(chan struct{})}
}

func (c *census) update(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *census) report(h holding) {
	c.update(func() {
		if c.last[h.ID].Owns != h.Owns && h.At.After(c.at) {
			c.at = h.At
		}
		c.last[h.ID] = h
		if h.Ended {
			delete(c.last, h.ID)
		}
	})
}

// until waits until what is owned satisfies holds, and returns the time of the last change before
// that.
func (c *census) until(ctx context.Context, what string, holds func(owned []int) bool) time.Time {
	late := time.After(c.patience)
	for {
		c.mu.Lock()
		at, changed := c.at, c.changed
		err := c.failed
		var owned []int
		for h := range maps.Values(c.last) {
			owned = append(owned, h.Owns)
		}
		c.mu.Unlock()
		check(err)
		if holds(owned) {
			return at
		}
		select {
		case <-changed:
		case <-late:
			check(fmt.Errorf("not within %v: %s; %d clients own %d", c.patience, what, len(owned), total(owned)))
		case <-ctx.Done():
			check(context.Cause(ctx))
		}
	}
}

// even waits until a number of clients own all of a number of partitions, in even shares.
func (c *census) even(ctx context.Context, clients, partitions int) time.Time {
	return c.until(ctx, "even shares", func(owned []int) bool {
		return len(owned) == clients && total(owned) == partitions && slices.Max(owned)-slices.Min(owned) <= 1
	})
}

// covered waits until all of a number of partitions are owned.
func (c *census) covered(ctx context.Context, partitions int) time.Time {
	return c.until(ctx, "all is owned", func(owned []int) bool { return total(owned) == partitions })
}

func total(of []int) (sum int) {
	for _, n := range of {
		sum += n
	}
	return sum
}

// A group is a number of clients in this process that share a lease, in a database that only they
// use.
type group struct {
	*database
	*census
	reach      string // the clients' URL
	partitions int
	ttl        time.Duration // 0: the default TTL
	options    []pgleases.LeaseOption
	members    []*member // guarded by census.mu while several join
	joined     []*member // includes members that have left; guarded by census.mu
}

// newGroup creates a group of clients, and waits until their shares are even.
func (l *lab) newGroup(
	ctx context.Context, server *pgserver.Server, clients, partitions int, ttl time.Duration, through *pgserver.Bouncer,
) *group {
	d := l.newDatabase(ctx, server, 4)
	g := &group{database: d, census: newCensus(), reach: d.url, partitions: partitions, ttl: ttl}
	if through != nil {
		g.reach = must(through.Through(d.url))
	}
	for i := range clients {
		g.add(ctx, fmt.Sprintf("client-%02d", i))
	}
	if clients > 0 {
		g.settle(ctx)
	}
	return g
}

// add opens a client that joins, and returns the time when it began to join.
func (g *group) add(ctx context.Context, id string) (joining time.Time) {
	m := open(ctx, g.reach, id, g.ttl)
	joining = time.Now()
	m.join(ctx, leaseName, g.partitions, g.options...)
	g.mu.Lock()
	g.members, g.joined = append(g.members, m), append(g.joined, m)
	g.mu.Unlock()
	m.watch(g.report)
	return joining
}

// everybody returns all members that there have been, because a member that leaves owns partitions
// until it has handed them over.
func (g *group) everybody() []*member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.joined
}

// remove closes a member.
func (g *group) remove(i int) {
	m := g.members[i]
	g.members = slices.Delete(g.members, i, i+1)
	closeClient(m.client)
}

// settle waits until shares are even, with no plan and no handoff pending.
func (g *group) settle(ctx context.Context) {
	g.even(ctx, len(g.members), g.partitions)
	g.atRest(ctx)
}

// atRest waits until the database has no lease with a pending plan or handoff.
func (d *database) atRest(ctx context.Context) {
	const rest = `SELECT NOT EXISTS (SELECT FROM pgleases.leases AS l WHERE l.plan_due_at < 'infinity')
    AND NOT EXISTS (SELECT FROM pgleases.partitions AS p WHERE p.owner IS DISTINCT FROM p.target)`
	d.until(ctx, "leases at rest", rest)
}

func (g *group) end() {
	for _, m := range g.joined {
		closeClient(m.client)
	}
	g.database.end()
}
