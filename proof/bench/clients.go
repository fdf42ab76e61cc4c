package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pgleases/pgleases"
)

// measureClients starts many clients that join through PgBouncer, measures their cost while
// ownership is stable, and kills 10 % of them.
func measureClients(ctx context.Context, l *lab, out *part) {
	if l.bouncer == nil {
		out.skip("everything", "PgBouncer is not installed")
		return
	}
	d := l.newDatabase(ctx, l.durable, 4)
	defer d.end()
	reach := must(l.bouncer.Through(d.url))
	check(pgleases.Migrate(ctx, d.Pool))
	clients, victims, beat := l.clients, l.clients/10, l.ttl/3
	partitions := l.partitions / l.leases * l.leases
	shared := func(c *census, clients int) time.Time {
		if l.leases == 1 {
			return c.even(ctx, clients, partitions)
		}
		return c.covered(ctx, partitions)
	}

	c, j := newCensus(), job{URL: reach, TTL: l.ttl, AtOnce: clients, Leases: l.leases, Partitions: partitions / l.leases}
	if clients > 1000 {
		j.AtOnce, c.patience = 50, 15*time.Minute // for the first clients of each process
	}
	var joined, even time.Time
	var dying, surviving *worker
	began := time.Now()
	used := d.during(ctx, func() {
		j.Prefix, j.Clients = "survivor", clients-victims
		surviving = c.start(j)
		j.Prefix, j.Clients = "victim", victims
		dying = c.start(j)
		c.until(ctx, "all have joined", func(owned []int) bool { return len(owned) == clients })
		joined = time.Now()
		even = shared(c, clients)
	})
	defer surviving.kill()
	defer dying.kill()
	arrival := even.Round(0).Sub(began.Round(0))
	out.figure("from the first start to even shares", fmt.Sprintf("%s (all have joined: %s)", duration(arrival), duration(joined.Sub(began)))).
		than("processor time of the server", duration(used.server), percent(share(used.server, used.span))+" of a core").
		goal("<= 3 s for 1,000", clients != 1000 || arrival <= 3*time.Second)

	d.atRest(ctx)
	span := time.Duration(l.pick(1, 25)) * time.Second
	calm := d.calm(ctx, span)

	dying.kill()
	expiry := one[time.Time](ctx, d, "SELECT max(expires_at) FROM pgleases.clients WHERE id LIKE 'victim-%'")
	took := c.covered(ctx, partitions).Round(0).Sub(expiry)
	out.figure(fmt.Sprintf("from the last expiry after %d were killed until all are owned again", victims), duration(took)).
		than("a heartbeat", duration(beat), significant(share(took, beat))+"x").goal("<= a heartbeat + 200 ms", took <= beat+200*time.Millisecond)

	surviving.kill()
	makeBare(ctx, d, clients)
	c = newCensus()
	updating := c.start(job{URL: reach, Prefix: "bare", Clients: clients, TTL: l.ttl, Bare: true})
	defer updating.kill()
	c.covered(ctx, clients)
	bare := d.calm(ctx, span)
	beats := float64(clients) * share(span, beat)
	each := func(u usage) time.Duration { return time.Duration(float64(u.server) / beats) }
	out.figure(fmt.Sprintf("statements in %v of calm", span), grouped(calm.statements)).
		than("one for each heartbeat", grouped(int(beats)), significant(float64(calm.statements)/beats)+"x").
		goal("<= 1.02x", float64(calm.statements) <= 1.02*beats)
	const bound = "bare `UPDATE`s at the same pace"
	out.figure(fmt.Sprintf("server's processor time for %s clients", grouped(clients)), fmt.Sprintf("%s a heartbeat; %s of a core, PgBouncer: %s", duration(each(calm)),
		percent(share(calm.server, calm.span)), percent(share(calm.pooler, calm.span)))).
		than(bound, duration(each(bare)), significant(share(calm.server, bare.server))+"x").
		goal("<= 200 µs, or 1.25x", each(calm) <= max(200*time.Microsecond, each(bare)*5/4))
	out.figure("WAL in calm", fmt.Sprintf("%s a heartbeat, %s kB/s", bytes(calm.wal/beats), significant(calm.wal/1000/calm.span.Seconds()))).
		than(bound, bytes(bare.wal/beats), significant(calm.wal/bare.wal)+"x").
		goal("<= 130 bytes, or 1x", calm.wal <= max(130*beats, bare.wal))
	out.note("%s clients run in two processes. Each has a connection to PgBouncer, which has %d to the server. "+
		"The TTL is %v, and a client sends a heartbeat every %s. The number of leases is %d, and they have %s partitions together.",
		grouped(clients), serverConnections, l.ttl, duration(beat), l.leases, grouped(partitions))
}
