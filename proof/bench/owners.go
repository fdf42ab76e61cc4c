package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/store"
)

// measureOwners measures looking up owners in the largest lease, and changes of owners among many
// members, with and without look-ups.
func measureOwners(ctx context.Context, l *lab, out *part) {
	measureLookups(ctx, l, out, l.pick(1024, 65_536))
	if l.bouncer == nil {
		out.skip("changes among members", "PgBouncer is not installed")
		return
	}
	plain, routing := l.changes(ctx, false), l.changes(ctx, true)
	of := fmt.Sprintf(" in %d changes of %s partitions among %s members",
		ownerChanges, grouped(l.partitions), grouped(l.clients))
	const beside = "without look-ups"
	rate := func(u usage) float64 { return float64(u.heartbeats) / u.span.Seconds() }
	out.figure("heartbeats"+of+", which all look up owners", perSecond(rate(routing))).
		than(beside, perSecond(rate(plain)), significant(rate(routing)/rate(plain))+"x")
	times := share(routing.server, plain.server)
	out.figure("server's processor time"+of, duration(routing.server)).
		than(beside, duration(plain.server), significant(times)+"x").
		goal("<= 1.5x", times <= 1.5)
}

func measureLookups(ctx context.Context, l *lab, out *part, partitions int) {
	g := l.newGroup(ctx, l.durable, 1, partitions, 0, nil)
	defer g.end()
	m := g.members[0]
	g.even(ctx, 1, partitions)
	g.atRest(ctx)
	whole := store.Span{Lease: leaseName, Last: partitions - 1}
	took := l.alternatePairs(9, []pair{{0, 3}, {1, 0}, {2, 4}},
		timed("", func() { _, _, err := m.Owner(ctx, 7); check(err) }),
		timed("", func() { must(m.Owners(ctx)) }),
		timed("", func() {
			read := must(bridge.Engine(m.client).Owners(ctx, whole))
			n := len(read.Owners.Owners[0].Partitions)
			if n != partitions {
				check(fmt.Errorf("owners of %d partitions", n))
			}
		}),
		timed("one bare `SELECT` by key", func() {
			g.all(ctx, "SELECT owner FROM pgleases.partitions WHERE lease = '"+leaseName+"' AND partition = 7")
		}),
		timed("partitions and epochs in one string", func() {
			g.all(ctx, "SELECT string_agg(concat(partition, ' ', epoch), ',') FROM pgleases.partitions")
		}))
	out.compare("`Owner`", took[0], took[3])
	of := "`Owners`, " + grouped(partitions) + " partitions"
	took[0].name = "`Owner`"
	out.compare(of+", kept", took[1], took[0])
	out.compare(of+", read from the database", took[2], took[4])
}

const ownerChanges = 5

// changes measures single changes of owners, one a second.
func (l *lab) changes(ctx context.Context, route bool) usage {
	d := l.newDatabase(ctx, l.durable, 4)
	defer d.end()
	check(pgleases.Migrate(ctx, d.Pool))
	c := newCensus()
	w := c.start(job{
		URL:        must(l.bouncer.Through(d.url)),
		Prefix:     "member",
		Clients:    l.clients,
		TTL:        l.ttl,
		AtOnce:     l.clients,
		Leases:     1,
		Partitions: l.partitions,
		Route:      route,
	})
	defer w.kill()
	c.even(ctx, l.clients, l.partitions)
	d.atRest(ctx)
	const (
		pin   = "SELECT pgleases.pin('%s', %d, 'member-%d', 'bench', 'bench')"
		moved = `SELECT o.id = 'member-%d' FROM pgleases.partitions AS p
JOIN pgleases.clients AS o ON o.session = p.owner WHERE p.partition = %[1]d`
	)
	return d.during(ctx, func() {
		for n := range ownerChanges {
			next := time.After(time.Second)
			d.all(ctx, fmt.Sprintf(pin, leaseName, n, n))
			d.until(ctx, "it has moved", fmt.Sprintf(moved, n))
			<-next
		}
		<-time.After(time.Duration(l.pick(1, 4)) * time.Second) // members hear of the last change
	})
}
