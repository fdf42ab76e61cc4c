package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pgleases/pgleases/proof/pgserver"
)

// measureMultitude has many clients of several processes join through PgBouncer, some at a time, and watches them do nothing.
func measureMultitude(ctx context.Context, l *lab, out *part) error {
	if l.bouncer == nil {
		out.skip("everything", "PgBouncer is not installed")
		return nil
	}
	const processes = 5
	leases := make([]string, l.pick(10, 100))
	for i := range leases {
		leases[i] = fmt.Sprintf("%s-%d", crewLease, i)
	}
	size := crowdSize{clients: l.pick(50, 10_000), partitions: l.pick(100, 20_000), steady: time.Duration(l.pick(1, 60)) * time.Second}
	ttl := time.Duration(l.pick(1, 30)) * time.Second
	bouncer, err := pgserver.PgBouncer(ctx, l.durable.URL(), pgserver.WithPoolSize(crowdPoolSize),
		pgserver.WithBouncerSettings(map[string]string{"max_client_conn": fmt.Sprint(size.clients + 1000)}))
	if err != nil {
		return err
	}
	defer func() { _ = bouncer.Stop() }()
	c, err := newCrowd(ctx, l, bouncer, size, ttl, 10*patience)
	if err != nil {
		return err
	}
	defer c.end()
	jobs := make([]job, processes)
	for i := range jobs {
		jobs[i] = job{Prefix: fmt.Sprintf("process-%d", i), Clients: size.clients / processes, AtOnce: crowdPoolSize,
			Leases: leases, Partitions: size.partitions / len(leases)}
	}
	arrival, err := c.meter(ctx)
	if err == nil {
		err = c.arrive(ctx, jobs)
	}
	if err == nil {
		c.arrival, err = arrival(ctx)
	}
	if err == nil {
		err = c.rest(ctx, leases...)
	}
	if err != nil {
		return c.explain(ctx, err)
	}
	connections, err := one[int](ctx, c.pool,
		"SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgleases'")
	if err != nil {
		return err
	}

	add := c.adder(out, false)
	add(true, row{
		what:   "all have joined",
		figure: fmt.Sprintf("%s, %d attempts repeated; even shares %s later", duration(c.joined), c.repeated, duration(c.balanced)),
		floors: []floor{{
			"processor time of the server until then", duration(c.arrival.server),
			percent(share(c.arrival.server, c.arrival.span)) + " of a core",
		}},
	})
	c.tellCalm(add)
	add(true, row{
		what:   "connections of the server",
		figure: grouped(connections),
		floors: []floor{{"connections of clients to PgBouncer", grouped(size.clients), percent(float64(connections) / float64(size.clients))}},
	})
	if c.counts {
		out.note("Statements, with the time that the server took over each, planning apart. Until even: %s. Calm: %s.",
			listed(c.arrival.statements), listed(c.steady.statements))
	}
	out.note("The clients are goroutines of %d processes beside the server, each with a connection of its own through one PgBouncer in transaction mode; "+
		"%d of each process open and join at a time. Each joins one of %d leases of %s partitions; TTL %v, heartbeat %v.",
		processes, crowdPoolSize, len(leases), grouped(size.partitions/len(leases)), ttl, duration(ttl/3))
	return nil
}
