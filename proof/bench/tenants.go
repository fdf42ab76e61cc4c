package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
)

// callersOfTenants is how many goroutines join leases at once.
const callersOfTenants = 8

// measureTenants measures an application with a lease for each of its tenants: what a join costs
// beside few leases and beside many, and a heartbeat.
func measureTenants(ctx context.Context, l *lab, out *part) {
	few := l.pick(10, 300)
	many, most := l.pick(120, 3000), l.pick(150, 10_000)
	d := l.newDatabase(ctx, l.durable, 4)
	defer d.end()
	check(pgleases.Migrate(ctx, d.Pool))
	single := open(ctx, d.url, "single", 0)
	defer closeClient(single.client)
	single.join(ctx, "single", 1)
	t := &tenants{member: open(ctx, d.url, "tenants", 0), database: d}
	defer closeClient(t.client)

	first := t.join(ctx, few)
	beside := t.join(ctx, 2*few)
	rest := t.join(ctx, many)
	took := first.span + beside.span + rest.span
	out.figure(fmt.Sprintf("%s joins, each of another lease, in one client", grouped(many)),
		fmt.Sprintf("%s; the longest %s", duration(took), duration(t.longest))).
		than("as many bare commits, one after the other", duration(t.bareCommits(ctx, many)), "").
		goal("<= 10 s for 3,000", many != 3000 || took <= 10*time.Second)

	t.measureHeartbeat(ctx, l, out)

	t.join(ctx, most-few)
	last := t.join(ctx, most)
	join := fmt.Sprintf("a join beside %s leases: ", grouped(most-few))
	joins := float64(few)
	out.compare(join+"processor time of the server",
		sample{"", []float64{float64(last.server) / joins}, nanoseconds},
		sample{"beside " + grouped(few), []float64{float64(max(beside.server, 1)) / joins}, nanoseconds}).
		atMost(2)
	out.compare(join+"WAL",
		sample{"", []float64{last.wal / joins}, bytes},
		sample{"beside " + grouped(few), []float64{beside.wal / joins}, bytes}).
		atMost(2)

	began := time.Now()
	closing := d.during(ctx, func() {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		check(t.client.Close(ctx))
	})
	out.figure(fmt.Sprintf("`Close` of %s leases", grouped(most)), duration(time.Since(began))).
		than("processor time of the server", duration(closing.server), "")
	out.note("Each lease has one partition. %d goroutines call `Client.Lease` at once. The TTL is the default.",
		callersOfTenants)
}

// tenants is a client with many leases.
type tenants struct {
	*member
	*database
	leases  []*pgleases.Lease
	longest time.Duration // of the joins
}

// join joins leases until there are n, and returns what the server used until the client owned all.
func (t *tenants) join(ctx context.Context, n int) usage {
	return t.during(ctx, func() {
		var mu sync.Mutex
		next := len(t.leases)
		together(callersOfTenants, func(int) {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n {
					return
				}
				began := time.Now()
				lease := must(t.client.Lease(ctx, fmt.Sprintf("tenant-%05d", i), 1))
				mu.Lock()
				t.leases = append(t.leases, lease)
				t.longest = max(t.longest, time.Since(began))
				mu.Unlock()
			}
		})
		t.owning(ctx)
	})
}

// owning waits until the client owns all leases.
func (t *tenants) owning(ctx context.Context) {
	for i := 0; i < len(t.leases); {
		changed := t.leases[i].Changed()
		if len(t.leases[i].Values()) > 0 {
			i++
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			check(context.Cause(ctx))
		}
	}
}

// bareCommits is how long n transactions take that update a row, one after the other.
func (t *tenants) bareCommits(ctx context.Context, n int) time.Duration {
	makeBare(ctx, t.database, 1)
	conn, end := connect(ctx, t.url)
	defer end()
	began := time.Now()
	for range n {
		must(conn.Exec(ctx, "UPDATE public.bare SET at = clock_timestamp()"))
	}
	return time.Since(began)
}

// The harness sends heartbeats of the clients' sessions itself, one soon after the other, because a
// machine may page out in the seconds between two heartbeats what a backend needs for them. It rolls
// them back. Otherwise each client would take the harness for a copy of its process.
const (
	heartbeatOfOne = `SELECT /* harness, one */ pgleases.heartbeat((c.session, 500, 'infinity', 0,
    extract(epoch FROM pg_postmaster_start_time())::float8, m.marker,
    pg_snapshot_xmin(pg_current_snapshot()), 1, false))
FROM pgleases.clients AS c, pgleases.present_marker AS m WHERE c.id = 'single'`
	heartbeatOfMany = `SELECT /* harness, many */ pgleases.heartbeat((c.session, 500, 'infinity', 0,
    extract(epoch FROM pg_postmaster_start_time())::float8, m.marker,
    pg_snapshot_xmin(pg_current_snapshot()), $1::int, false))
FROM pgleases.clients AS c, pgleases.present_marker AS m WHERE c.id = 'tenants'`
	heartbeatTimes = `SELECT coalesce(sum(total_exec_time) FILTER (WHERE query LIKE '%harness, one%'), 0)::float8,
    coalesce(sum(total_exec_time) FILTER (WHERE query LIKE '%harness, many%'), 0)::float8
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND query NOT LIKE '%pg_stat_statements%'`
)

// measureHeartbeat compares the heartbeats of this client with those of a client with one lease,
// while both are calm.
func (t *tenants) measureHeartbeat(ctx context.Context, l *lab, out *part) {
	t.all(ctx, "VACUUM ANALYZE")
	conn, end := connect(ctx, t.url)
	defer end()
	beat := func(statement string, args ...any) {
		tx := must(conn.Begin(ctx))
		var answer string
		check(tx.QueryRow(ctx, statement, args...).Scan(&answer))
		if strings.Contains(answer, "{") {
			check(fmt.Errorf("a heartbeat was not calm, because it returned leases: %.200s", answer))
		}
		check(tx.Rollback(ctx))
	}
	type milliseconds struct{ Few, Many float64 }
	calls := l.pick(5, 100)
	many := sample{unit: nanoseconds}
	few := sample{name: "of one lease", unit: nanoseconds}
	for range l.pick(2, 9) {
		before := ask[milliseconds](ctx, t.database, heartbeatTimes)
		for range calls {
			beat(heartbeatOfOne)
			beat(heartbeatOfMany, len(t.leases))
		}
		after := ask[milliseconds](ctx, t.database, heartbeatTimes)
		many.values = append(many.values, 1e6*(after.Many-before.Many)/float64(calls))
		few.values = append(few.values, 1e6*(after.Few-before.Few)/float64(calls))
	}
	what := fmt.Sprintf("a calm heartbeat of %s leases: time in the server", grouped(len(t.leases)))
	out.compare(what, many, few).goal("<= 1 ms", median(many.values) <= float64(time.Millisecond))
}
