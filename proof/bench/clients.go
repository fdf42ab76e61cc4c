package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pgleases/pgleases"
)

// A fleet is many clients that share leases, each with a connection to PgBouncer. They run in two
// processes, one of which has a tenth of them, so that it can be killed.
type fleet struct {
	*database
	*census
	clients, leases, partitions int
	ttl                         time.Duration
	reach                       string // the clients' URL
	survivors, victims          *worker
}

// newFleet creates a database with the library's tables, for a fleet that has not started.
func (l *lab) newFleet(ctx context.Context) *fleet {
	f := &fleet{
		database:   l.newDatabase(ctx, l.durable, 4),
		census:     newCensus(),
		clients:    l.clients,
		leases:     l.leases,
		partitions: l.partitions / l.leases * l.leases,
		ttl:        l.ttl,
	}
	check(pgleases.Migrate(ctx, f.Pool))
	f.reach = must(l.bouncer.Through(f.url))
	return f
}

// killed returns how many clients the smaller process has.
func (f *fleet) killed() int { return f.clients / 10 }

// launch starts the two processes. What both do is in the job, and the rest is added to it.
func (f *fleet) launch(of job) {
	of.URL = f.reach
	of.TTL = f.ttl
	of.AtOnce = f.clients
	of.Leases = f.leases
	of.Partitions = f.partitions / f.leases
	of.All = f.clients
	if f.clients > 1000 {
		of.AtOnce = 50 // for the first clients of each process
		f.patience = 15 * time.Minute
	}
	of.Prefix, of.Clients = "survivor", f.clients-f.killed()
	f.survivors = f.census.start(of)
	of.Prefix, of.Clients = "victim", f.killed()
	of.First = f.clients - f.killed()
	f.victims = f.census.start(of)
}

// shared waits until a number of clients share all partitions, and returns when they did. Shares of
// several leases need not be even.
func (f *fleet) shared(ctx context.Context, clients int) time.Time {
	if f.leases > 1 {
		return f.covered(ctx, f.partitions)
	}
	return f.even(ctx, clients, f.partitions)
}

// kill ends the processes of the fleet that have started.
func (f *fleet) kill() {
	for _, w := range []*worker{f.survivors, f.victims} {
		if w != nil {
			w.kill()
		}
	}
}

func (f *fleet) end() {
	f.kill()
	f.database.end()
}

// measureClients measures what many clients cost while ownership is stable, and kills 10 % of them.
func measureClients(ctx context.Context, l *lab, out *part) {
	if l.bouncer == nil {
		out.skip("everything", "PgBouncer is not installed")
		return
	}
	f := l.newFleet(ctx)
	defer f.end()
	f.launch(job{})
	f.shared(ctx, f.clients)
	f.atRest(ctx)
	pause(ctx, f.ttl) // by then a check for expired sessions has counted all clients
	span := time.Duration(l.pick(1, 25)) * time.Second
	calm := f.calm(ctx, span)
	f.replace(ctx, out)
	f.kill()
	f.report(out, calm, f.updateBare(ctx, span))
	out.note("%s clients run in two processes. Each has a connection to PgBouncer, which has %d to the server. "+
		"The TTL is %v, and a client sends a heartbeat every %s. The number of leases is %d, "+
		"and they have %s partitions together.",
		grouped(f.clients), serverConnections, f.ttl, duration(f.ttl/3), f.leases, grouped(f.partitions))
}

// replace kills some of the clients, and measures when the others own their partitions.
func (f *fleet) replace(ctx context.Context, out *part) {
	f.victims.kill()
	expiry := one[time.Time](ctx, f.database,
		"SELECT max(expires_at) FROM pgleases.clients WHERE id LIKE 'victim-%'")
	took := f.covered(ctx, f.partitions).Round(0).Sub(expiry)
	beat := f.ttl / 3
	out.figure(fmt.Sprintf("from the last expiry after %d were killed until all are owned again", f.killed()),
		duration(took)).
		than("a heartbeat", duration(beat), significant(share(took, beat))+"x").
		goal("<= a heartbeat + 200 ms", took <= beat+200*time.Millisecond)
}

// updateBare returns what as many connections use that update a row each, at the pace of heartbeats.
func (f *fleet) updateBare(ctx context.Context, span time.Duration) usage {
	makeBare(ctx, f.database, f.clients)
	c := newCensus()
	updating := c.start(job{URL: f.reach, Prefix: "bare", Clients: f.clients, TTL: f.ttl, Bare: true})
	defer updating.kill()
	c.covered(ctx, f.clients)
	return f.calm(ctx, span)
}

// report adds what calm clients cost, beside bare updates.
func (f *fleet) report(out *part, calm, bare usage) {
	const bound = "bare `UPDATE`s at the same pace"
	beats := float64(f.clients) * share(calm.span, f.ttl/3)
	times := func(n int) string { return significant(float64(n)/beats) + "x" }
	out.figure("heartbeats sent by idle clients in "+calm.span.Round(time.Second).String(), grouped(calm.heartbeats)).
		than("one for each interval", grouped(int(beats)), times(calm.heartbeats)).
		than("all statements", grouped(calm.statements), times(calm.statements)).
		goal("<= 1.02x", float64(calm.heartbeats) <= 1.02*beats)
	each := func(u usage) time.Duration { return time.Duration(float64(u.server) / beats) }
	out.figure(fmt.Sprintf("server's processor time for %s clients", grouped(f.clients)),
		fmt.Sprintf("%s a heartbeat; %s of a core, PgBouncer: %s", duration(each(calm)),
			percent(share(calm.server, calm.span)), percent(share(calm.pooler, calm.span)))).
		than(bound, duration(each(bare)), significant(share(calm.server, bare.server))+"x").
		goal("<= 200 µs, or 1.25x", each(calm) <= max(200*time.Microsecond, each(bare)*5/4))
	out.figure("WAL in calm",
		fmt.Sprintf("%s a heartbeat, %s kB/s", bytes(calm.wal/beats), significant(calm.wal/1000/calm.span.Seconds()))).
		than(bound, bytes(bare.wal/beats), significant(calm.wal/bare.wal)+"x").
		goal("<= 130 bytes, or 1x", calm.wal <= max(130*beats, bare.wal))
}
