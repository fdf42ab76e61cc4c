package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	latencyPartitions = 128
	latencyTTL        = time.Second // the shortest; the heartbeat is a third of it
)

// A sample is one time, and whether the machine was late meanwhile.
type sample struct {
	took time.Duration
	late bool
}

// latencies are the samples of one way to reach the database.
type latencies struct {
	members int // of a crew
	// stage is held alone by who times a join and a Close, which take little longer than the turns of the processors that
	// others take; together by those who wait for a killed client's session to expire.
	stage sync.RWMutex

	mu                                   sync.Mutex // guards the rest
	opened, joined, closed, fresh, taken []sample
	trips                                []time.Duration // of SELECT 1
	commits                              []time.Duration // of one row, directly
	queued                               []time.Duration // of one from each member, of the same row; a join takes one of each owner
}

func (s *latencies) add(l *lab, to *[]sample, from, until, begin time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*to = append(*to, sample{until.Sub(from), l.late.during(begin, until)})
}

func measureListening(ctx context.Context, l *lab, out *part) error {
	return measureLatencies(ctx, l, out, 0, func(url string) (string, error) { return url, nil })
}

func measurePolling(ctx context.Context, l *lab, out *part) error {
	if l.bouncer == nil {
		out.skip("everything", "PgBouncer is not installed")
		return nil
	}
	return measureLatencies(ctx, l, out, latencyTTL/3, l.bouncer.Through)
}

// measureLatencies times how partitions follow when clients come, close and are killed. Some crews do it side by side, since most of
// the time they wait. What polling may cost more is a heartbeat.
func measureLatencies(ctx context.Context, l *lab, out *part, more time.Duration, reach func(url string) (string, error)) error {
	crews, rounds := l.pick(1, 4), l.pick(1, 25)
	all := latencies{members: l.pick(3, 10)}
	err := together(crews, func(int) error { return all.take(ctx, l, rounds, reach) })
	if err != nil {
		return err
	}
	all.tell(out, more)
	out.note("%d clients share %d partitions, TTL %v, heartbeat %v, nothing in work; %d such groups side by side, of which the others rest while a join and a Close are timed. "+
		"A join is timed when no other was planned within a second before, and a Close a second after the join, or at once: joins that come in quick succession are planned together, 100 ms after the last of them, or a second after the plan before.",
		all.members, latencyPartitions, latencyTTL, duration(latencyTTL/3), crews)
	return nil
}

// take adds samples of each kind, from a crew of its own.
func (s *latencies) take(ctx context.Context, l *lab, rounds int, reach func(url string) (string, error)) error {
	c, err := newLatencyCrew(ctx, l, s.members, reach)
	if err != nil {
		return err
	}
	defer c.disband()
	news := newNewsroom(patience)
	for round := range rounds {
		if err := s.come(ctx, l, c, fmt.Sprintf("newcomer-%d", round)); err != nil {
			return err
		}
		of := &s.fresh
		if round%2 == 0 { // by then the server has made its plans for the connection
			of = &s.closed
			if err := untilPlannedLongAgo(ctx, c.pool, crewLease); err != nil {
				return err
			}
		}
		if err := s.goAgain(ctx, l, c, of); err != nil {
			return err
		}
		if err := s.die(ctx, l, c, news, fmt.Sprintf("victim-%d", round)); err != nil {
			return err
		}
		trips, err := roundTrips(ctx, c.url, 20, "SELECT 1")
		if err != nil {
			return err
		}
		commits, err := roundTrips(ctx, c.direct, 5, "INSERT INTO public.commits VALUES (1)")
		if err != nil {
			return err
		}
		queued, err := queuedCommits(ctx, c.direct, s.members)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.trips, s.commits, s.queued = append(s.trips, trips...), append(s.commits, commits...), append(s.queued, queued)
		s.mu.Unlock()
	}
	return nil
}

func newLatencyCrew(ctx context.Context, l *lab, members int, reach func(url string) (string, error)) (*crew, error) {
	url, drop, err := newDatabase(ctx, l.durable)
	if err != nil {
		return nil, err
	}
	c := &crew{direct: url, partitions: latencyPartitions, ttl: latencyTTL, census: newCensus(), drop: drop}
	if c.pool, err = newPool(ctx, url); err == nil {
		c.url, err = reach(url)
	}
	if err == nil {
		_, err = c.pool.Exec(ctx, "CREATE TABLE public.commits (n int); CREATE TABLE public.queue AS SELECT 0 AS n")
	}
	if err == nil {
		err = c.enlist(ctx, members)
	}
	if err != nil {
		c.disband()
		return nil, err
	}
	return c, nil
}

// come times a client that joins.
func (s *latencies) come(ctx context.Context, l *lab, c *crew, id string) error {
	if err := untilPlannedLongAgo(ctx, c.pool, crewLease); err != nil {
		return err
	}
	s.stage.Lock()
	defer s.stage.Unlock()
	began := time.Now()
	m := &member{url: c.url, id: id, lease: crewLease, partitions: c.partitions, ttl: c.ttl}
	if err := m.open(ctx); err != nil {
		return err
	}
	opened := time.Now()
	if err := m.join(ctx); err != nil {
		m.close()
		return err
	}
	c.members = append(c.members, m)
	c.census.watch(m)
	at, err := c.census.until(ctx, "even shares", balanced(len(c.members), c.partitions))
	if err != nil {
		return err
	}
	s.add(l, &s.opened, began, at, began)
	s.add(l, &s.joined, opened, at, opened)
	return atRest(ctx, c.pool, crewLease)
}

// goAgain times the Close of the last that came.
func (s *latencies) goAgain(ctx context.Context, l *lab, c *crew, to *[]sample) error {
	s.stage.Lock()
	defer s.stage.Unlock()
	began := time.Now()
	left := make(chan struct{})
	go func() { c.dismiss(len(c.members) - 1); close(left) }()
	at, err := c.census.until(ctx, "the others own all", func(owned []int) bool {
		return len(owned) == s.members && total(owned) == c.partitions
	})
	<-left
	if err != nil {
		return err
	}
	s.add(l, to, began, at, began)
	return c.settle(ctx)
}

// die times how a client's partitions follow when its process is killed, from the moment at which its session expires.
func (s *latencies) die(ctx context.Context, l *lab, c *crew, news *newsroom, id string) error {
	s.stage.RLock()
	defer s.stage.RUnlock()
	w, err := news.start(job{URL: c.url, Prefix: id, Clients: 1, AtOnce: 1, Leases: []string{crewLease}, Partitions: c.partitions, TTL: c.ttl})
	if err != nil {
		return err
	}
	_, err = news.until(ctx, "the victim owns its share", func(t tiding) bool { return t.Owned >= c.partitions/(s.members+1) })
	if err == nil {
		err = atRest(ctx, c.pool, crewLease)
	}
	news.kill(w)
	if err != nil {
		return err
	}
	killed := time.Now()
	expires, err := one[time.Time](ctx, c.pool, "SELECT expires_at FROM pgleases.clients WHERE id = $1", id+"-0")
	if err != nil {
		return err
	}
	at, err := c.census.until(ctx, "the survivors own all", covered(c.partitions))
	if err != nil {
		return err
	}
	s.add(l, &s.taken, expires, at.Round(0), killed)
	return c.settle(ctx)
}

// roundTrips times a statement on a way to the database.
func roundTrips(ctx context.Context, url string, n int, statement string) ([]time.Duration, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.Background())
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		if _, err := conn.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			return nil, err
		}
		took[i] = time.Since(began)
	}
	return took, nil
}

// queuedCommits times a commit on each of so many connections, all begun at once, that update one row: each waits for the one before.
func queuedCommits(ctx context.Context, url string, n int) (took time.Duration, err error) {
	conns := make([]*pgx.Conn, n)
	for i := range conns {
		if conns[i], err = pgx.Connect(ctx, url); err != nil {
			return 0, err
		}
		defer conns[i].Close(context.Background())
		if _, err = conns[i].Exec(ctx, "SELECT FROM public.queue", pgx.QueryExecModeSimpleProtocol); err != nil { // the catalogues are read
			return 0, err
		}
	}
	began := time.Now()
	err = together(n, func(i int) error {
		_, err := conns[i].Exec(ctx, "UPDATE public.queue SET n = n + 1", pgx.QueryExecModeSimpleProtocol)
		return err
	})
	return time.Since(began), err
}

func (s *latencies) tell(out *part, more time.Duration) {
	trip, commit, queue := median(s.trips), median(s.commits), median(s.queued)
	byTrips := func(middle time.Duration) []floor {
		return []floor{
			{"`SELECT 1`", duration(trip), times(share(middle, trip))},
			{"a bare commit", duration(commit), times(share(middle, commit))},
			{fmt.Sprintf("%d bare commits of one row, begun at once", s.members), duration(queue), times(share(middle, queue))},
		}
	}
	byTTL := func(middle time.Duration) []floor {
		return []floor{{"the TTL", duration(latencyTTL), times(share(latencyTTL+middle, latencyTTL)) + " since the last heartbeat"}}
	}
	plus := ""
	if more > 0 {
		plus = " + a heartbeat"
	}
	for _, r := range []struct {
		what    string
		samples []sample
		floors  func(median time.Duration) []floor
		goal    string
		q       float64 // of which quantile
		most    time.Duration
	}{
		{"`Client.Lease` to even shares", s.joined, byTrips, "median <= 30 ms, or 5 x the last", 0.5, max(30*time.Millisecond, 5*queue)},
		{"`Open`, then `Client.Lease`, to even shares", s.opened, byTrips, "", 0, 0},
		{"`Close` to all owned again", s.closed, byTrips, "median <= 10 ms, or 2 x the last", 0.5, max(10*time.Millisecond, 2*queue)},
		{"the same, of a client that joined a moment ago", s.fresh, byTrips, "median <= 10 ms, or 2 x the last", 0.5, max(10*time.Millisecond, 2*queue)},
		{"kill -9: from the session's expiry to all owned again", s.taken, byTTL, "p95 <= 200 ms", 0.95, 200 * time.Millisecond},
	} {
		if len(r.samples) == 0 { // in a hurry there is one round
			continue
		}
		took := tookOf(r.samples, func(sample) bool { return true })
		told := row{what: r.what, figure: spreadOf(r.samples), floors: r.floors(median(took))}
		if r.goal != "" {
			told.goal, told.met = r.goal+plus, judge(quantile(took, r.q) <= r.most+more)
		}
		out.add(told)
	}
}

// spreadOf writes median, 95th percentile and maximum; those during which the machine was late also apart.
func spreadOf(all []sample) string {
	of := func(took []time.Duration) string {
		return fmt.Sprintf("%s, p95 %s, max %s (%d)", duration(median(took)), duration(quantile(took, 0.95)), duration(slices.Max(took)), len(took))
	}
	late := tookOf(all, func(s sample) bool { return s.late })
	prompt := tookOf(all, func(s sample) bool { return !s.late })
	text := of(tookOf(all, func(sample) bool { return true }))
	if len(late) > 0 && len(prompt) > 0 {
		text += "<br>machine on time: " + of(prompt) + "<br>machine late: " + of(late)
	} else if len(late) > 0 {
		text += "<br>the machine was late in all of them"
	}
	return text
}

func tookOf(of []sample, which func(sample) bool) []time.Duration {
	var took []time.Duration
	for _, s := range of {
		if which(s) {
			took = append(took, s.took)
		}
	}
	return took
}
