package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/proof/pgserver"
)

const (
	latencyPartitions = 128
	latencyTTL        = time.Second // the shortest; the heartbeat is a third of it
)

func measureListening(ctx context.Context, l *lab, out *part) { measureLatencies(ctx, l, out, nil) }

func measurePolling(ctx context.Context, l *lab, out *part) {
	if l.bouncer == nil {
		out.skip("everything", "PgBouncer is not installed")
		return
	}
	measureLatencies(ctx, l, out, l.bouncer)
}

// latencies holds the samples of one way to reach the database, in nanoseconds.
type latencies struct {
	clients int // the number of clients of a group
	// A group holds stage exclusively while it times a join or a Close, because these take little
	// longer than the time slices of other processes. Groups that wait for a killed client's
	// session to expire hold it shared.
	stage sync.RWMutex

	mu                            sync.Mutex // guards the rest
	joined, closed, killed, queue []float64
}

func (s *latencies) add(to *[]float64, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*to = append(*to, float64(took))
}

// measureLatencies times how partitions move when clients join, close and are killed. Several
// groups run side by side, because they wait most of the time.
func measureLatencies(ctx context.Context, l *lab, out *part, through *pgserver.Bouncer) {
	groups, rounds := l.pick(1, 4), l.pick(2, 14)
	s := &latencies{clients: l.pick(3, 10)}
	together(groups, func(int) {
		g := l.newGroup(ctx, l.durable, s.clients, latencyPartitions, latencyTTL, through)
		defer g.end()
		g.all(ctx, "CREATE TABLE public.queue AS SELECT 0 AS n")
		for round := range rounds {
			s.round(ctx, g, round)
		}
	})
	more, plus := time.Duration(0), ""
	if through != nil {
		more, plus = latencyTTL/3, " + a heartbeat"
	}
	queue := sample{fmt.Sprintf("%d bare commits at once", s.clients), s.queue, nanoseconds}
	for _, r := range []struct {
		what  string
		took  []float64
		least time.Duration
		times float64 // in the goal: times the queue
	}{
		{"from `Client.Lease` to even shares", s.joined, 30 * time.Millisecond, 5},
		{"from `Close` until all are owned again", s.closed, 10 * time.Millisecond, 2},
	} {
		row := out.compare(r.what, sample{"", r.took, nanoseconds}, queue)
		row.figure += p95(r.took)
		most := max(float64(r.least), r.times*median(s.queue)) + float64(more)
		row.goal(fmt.Sprintf("<= %s, or %vx%s", duration(r.least), r.times, plus), median(r.took) <= most)
	}
	row := out.compare("from the expiry after kill -9 until all are owned again", sample{"", s.killed, nanoseconds},
		sample{"the TTL before", []float64{float64(latencyTTL)}, nanoseconds})
	row.figure += p95(s.killed)
	row.goal("p95 <= 200 ms"+plus, quantile(s.killed, 0.95) <= float64(200*time.Millisecond+more))
	if through != nil {
		return
	}
	out.note("%d clients share %d partitions. The TTL is %v, and a client sends a heartbeat every %s.",
		s.clients, latencyPartitions, latencyTTL, duration(latencyTTL/3))
}

func p95(took []float64) string {
	return ", p95 " + nanoseconds(quantile(took, 0.95))
}

// round adds a sample of each kind.
func (s *latencies) round(ctx context.Context, g *group, round int) {
	s.join(ctx, g, fmt.Sprint("newcomer-", round))
	g.plannedLongAgo(ctx) // by then the server has cached its plans for the connection
	s.close(ctx, g)
	s.kill(ctx, g, fmt.Sprint("victim-", round))
	s.stage.Lock()
	defer s.stage.Unlock()
	s.queued(ctx, g)
}

// plannedLongAgo waits until the next join will be planned at once. A join soon after a plan waits
// for others.
func (d *database) plannedLongAgo(ctx context.Context) {
	d.until(ctx, "a second since the last plan",
		"SELECT bool_and(planned_at < clock_timestamp() - interval '1010 milliseconds') FROM pgleases.leases")
}

// join times a client's join.
func (s *latencies) join(ctx context.Context, g *group, id string) {
	g.plannedLongAgo(ctx)
	s.stage.Lock()
	defer s.stage.Unlock()
	joining := g.add(ctx, id)
	at := g.even(ctx, len(g.members), g.partitions)
	s.add(&s.joined, at.Sub(joining))
	g.atRest(ctx)
}

// close times the Close of the newest client.
func (s *latencies) close(ctx context.Context, g *group) {
	s.stage.Lock()
	defer s.stage.Unlock()
	began, closed := time.Now(), make(chan struct{})
	go func() { g.remove(s.clients); close(closed) }()
	at := g.census.until(ctx, "the others own all", func(owned []int) bool {
		return len(owned) == s.clients && total(owned) == g.partitions
	})
	<-closed
	s.add(&s.closed, at.Sub(began))
	g.settle(ctx)
}

// kill kills a client's process, and times how soon others own its partitions, from the expiry of
// its session on.
func (s *latencies) kill(ctx context.Context, g *group, id string) {
	s.stage.RLock()
	defer s.stage.RUnlock()
	w := g.start(job{URL: g.reach, Prefix: id, Clients: 1, AtOnce: 1, Leases: 1, Partitions: g.partitions, TTL: g.ttl})
	defer w.kill()
	g.even(ctx, len(g.members)+1, g.partitions)
	g.atRest(ctx)
	w.kill()
	expires := one[time.Time](ctx, g.database, "SELECT expires_at FROM pgleases.clients WHERE id = $1", id+"-0")
	at := g.covered(ctx, g.partitions)
	s.add(&s.killed, at.Round(0).Sub(expires))
	g.settle(ctx)
}

// queued times commits on as many connections as there are clients. All begin at once and update
// one row, because a join takes a commit of each owner.
func (s *latencies) queued(ctx context.Context, g *group) {
	conns := make([]*pgx.Conn, s.clients)
	for i := range conns {
		conn, end := connect(ctx, g.url)
		defer end()
		// Loads the catalogs.
		must(conn.Exec(ctx, "SELECT FROM public.queue", pgx.QueryExecModeSimpleProtocol))
		conns[i] = conn
	}
	began := time.Now()
	together(s.clients, func(i int) {
		must(conns[i].Exec(ctx, "UPDATE public.queue SET n = n + 1", pgx.QueryExecModeSimpleProtocol))
	})
	s.add(&s.queue, time.Since(began))
}
