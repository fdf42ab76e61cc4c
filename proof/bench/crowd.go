package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/pgserver"
)

const crowdPoolSize = 20

// A crowdSize says how many clients there are, how many of them die together, and how long they are watched before.
type crowdSize struct {
	clients, victims, partitions int // partitions of all leases
	steady                       time.Duration
}

// jobs are those of two processes, of which the second dies.
func (s crowdSize) jobs() []job {
	return []job{
		{Prefix: "survivor", Clients: s.clients - s.victims, AtOnce: s.clients, Leases: []string{crewLease}, Partitions: s.partitions},
		{Prefix: "victim", Clients: s.victims, AtOnce: s.clients, Leases: []string{crewLease}, Partitions: s.partitions},
	}
}

// measureCrowd has many clients of two processes join at once through PgBouncer, watches them do nothing, and kills one process.
func measureCrowd(ctx context.Context, l *lab, out *part) error {
	if l.bouncer == nil {
		out.skip("everything", "PgBouncer is not installed")
		return nil
	}
	sizes := []crowdSize{{100, 10, 10_000, 10 * time.Second}, {300, 30, 10_000, 10 * time.Second}, {1000, 100, 10_000, time.Minute}}
	if l.quick {
		sizes = []crowdSize{{20, 4, 200, time.Second}}
	}
	ttl := time.Duration(l.pick(1, 6)) * time.Second
	line := curve{name: "crowd", axis: "clients of 1 lease of 10,000 partitions, heartbeat 2 s, through PgBouncer"}
	for _, size := range sizes {
		c, err := newCrowd(ctx, l, l.bouncer, size, ttl, patience)
		if err != nil {
			return err
		}
		err = c.explain(ctx, c.live(ctx))
		c.end()
		if err != nil && !errors.Is(err, errLate) {
			return fmt.Errorf("%d clients: %w", size.clients, err)
		}
		c.tell(out, size == sizes[len(sizes)-1])
		if err != nil {
			out.add(row{what: fmt.Sprintf("%s clients: what did not come", grouped(size.clients)), figure: err.Error(),
				floors: []floor{{"the harness's patience", duration(patience), ""}}, met: missed})
		}
		if c.steady.span > 0 {
			line.points = append(line.points, point{size.clients, beatCost{processor: c.steady.server / time.Duration(c.nominal())}})
		}
	}
	out.curves = append(out.curves, line)
	out.note("The clients are goroutines of two processes beside the server, each with a connection of its own through PgBouncer in transaction mode to %d of the server; "+
		"all open at once, TTL %v, heartbeat %v. The process that is killed has a tenth of them.",
		crowdPoolSize, ttl, duration(ttl/3))
	return nil
}

// A crowd is many clients in two processes, and what was seen of it.
type crowd struct {
	gauge
	size  crowdSize
	url   string
	ttl   time.Duration
	drop  func()
	news  *newsroom
	alive []*worker

	trips        time.Duration // a SELECT 1 for each client, one after the other
	joined       time.Duration // from the first to the last
	balanced     time.Duration // after the last join
	repeated     int           // attempts that failed
	moves        float64       // for each partition, after it was first given
	mostMoves    int
	arrival      usage // until balanced
	steady       usage
	bare         usage         // of bare updates in the place of heartbeats
	deaths       usage         // until the survivors share
	covered      time.Duration // from the last expiry of a victim until all is owned
	balancedLast time.Duration // and shared evenly again
}

// A gauge tells what a database uses.
type gauge struct {
	pool       *pgxpool.Pool
	postmaster int
	counts     bool // statements are counted
}

// A usage is what was used in a while.
type usage struct {
	span       time.Duration
	statements map[string]tally // nothing where they are not counted
	server     time.Duration    // processor time
	bouncer    time.Duration
	logged     float64 // bytes of WAL
}

// nominal is how many heartbeats there would be in the calm if each client sent one in each interval, and no other.
func (c *crowd) nominal() int {
	return max(1, int(float64(c.size.clients)*share(c.steady.span, c.ttl/3)))
}

func newCrowd(ctx context.Context, l *lab, bouncer *pgserver.Bouncer, size crowdSize, ttl, patience time.Duration) (*crowd, error) {
	url, drop, err := newDatabase(ctx, l.durable)
	if err != nil {
		return nil, err
	}
	c := &crowd{size: size, ttl: ttl, drop: drop, news: newNewsroom(patience)}
	if c.pool, err = newPool(ctx, url); err == nil {
		err = pgleases.Migrate(ctx, c.pool)
	}
	if err == nil {
		_, err = c.pool.Exec(ctx, journal)
	}
	if err == nil && l.counts {
		err = c.countStatements(ctx)
	}
	if err == nil {
		c.url, err = bouncer.Through(url)
	}
	if err == nil {
		c.postmaster, err = postmasterOf(ctx, c.pool)
	}
	if err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// countStatements has the server count the statements of sessions that begin from now on.
func (g *gauge) countStatements(ctx context.Context) error {
	_, err := g.pool.Exec(ctx, `CREATE EXTENSION pg_stat_statements;
DO $$
BEGIN
    EXECUTE format('ALTER DATABASE %I SET pg_stat_statements.track = top', current_database());
    EXECUTE format('ALTER DATABASE %I SET compute_query_id = on', current_database());
END $$`)
	g.counts = err == nil
	return err
}

// explain adds to an error what the database says.
func (c *crowd) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	state, asked := one[string](ctx, c.pool, `SELECT format('%s sessions, %s of them expired; the next check is due in %s; a plan in %s',
    count(*), count(*) FILTER (WHERE expires_at < clock_timestamp()),
    (SELECT next_check_at - clock_timestamp() FROM pgleases.server), (SELECT max(next_check_at) FROM pgleases.leases))
FROM pgleases.clients`)
	if asked != nil {
		return errors.Join(err, asked)
	}
	now, asked := c.used(ctx)
	return errors.Join(fmt.Errorf("%w; %s; statements in all: %s", err, state, listed(now.statements)), asked)
}

func (c *crowd) end() {
	for _, w := range c.alive {
		c.news.kill(w)
	}
	if c.pool != nil {
		c.pool.Close()
	}
	c.drop()
}

// live is the crowd's life.
func (c *crowd) live(ctx context.Context) error {
	trips, err := roundTrips(ctx, c.url, 50, "SELECT 1")
	if err != nil {
		return err
	}
	c.trips = median(trips) * time.Duration(c.size.clients)
	arrival, err := c.meter(ctx)
	if err != nil {
		return err
	}
	if err := c.arrive(ctx, c.size.jobs()); err != nil {
		return err
	}
	if c.arrival, err = arrival(ctx); err != nil {
		return err
	}
	if err := c.rest(ctx, crewLease); err != nil {
		return err
	}
	deaths, err := c.meter(ctx)
	if err != nil {
		return err
	}
	if err := c.die(ctx); err != nil {
		return err
	}
	c.deaths, err = deaths(ctx)
	if err != nil {
		return err
	}
	return c.updateBare(ctx)
}

// updateBare has as many connections do nothing but update a row each, at the pace of heartbeats.
func (c *crowd) updateBare(ctx context.Context) error {
	c.news.kill(c.alive[0])
	c.alive = nil
	if err := makeBare(ctx, c.pool, c.size.clients); err != nil {
		return err
	}
	w, err := c.news.start(job{URL: c.url, Prefix: "bare", Clients: c.size.clients, TTL: c.ttl, Bare: true})
	if err != nil {
		return err
	}
	c.alive = []*worker{w}
	if _, err := c.news.until(ctx, "all update", func(t tiding) bool { return t.Joined == c.size.clients }); err != nil {
		return err
	}
	c.bare, err = c.during(ctx, c.size.steady)
	return err
}

// rest watches the crowd do nothing, once its leases are at rest.
func (c *crowd) rest(ctx context.Context, leases ...string) error {
	for _, lease := range leases {
		if err := atRest(ctx, c.pool, lease); err != nil {
			return err
		}
	}
	var err error
	c.steady, err = c.during(ctx, c.size.steady)
	return err
}

// arrive has all clients join, and waits until they share.
func (c *crowd) arrive(ctx context.Context, jobs []job) error {
	began := time.Now()
	for _, j := range jobs {
		j.URL, j.TTL = c.url, c.ttl
		w, err := c.news.start(j)
		if err != nil {
			return err
		}
		c.alive = append(c.alive, w)
	}
	last, err := c.news.until(ctx, "all have joined", func(t tiding) bool { return t.Joined == c.size.clients })
	if err != nil {
		return err
	}
	c.joined = last.At.Sub(began.Round(0))
	even, err := c.news.until(ctx, "even shares", c.even(c.size.clients))
	if err != nil {
		return err
	}
	c.balanced, c.repeated = even.At.Sub(last.At), even.Repeated
	moves, err := ask[struct {
		Mean float64
		Most int
	}](ctx, c.pool, `SELECT avg(moves)::float8, max(moves)::int
FROM (SELECT count(g.before) AS moves FROM pgleases.partitions AS p LEFT JOIN public.given AS g USING (lease, partition)
      GROUP BY p.lease, p.partition) AS each`)
	c.moves, c.mostMoves = moves.Mean, moves.Most
	return err
}

func (c *crowd) even(clients int) func(tiding) bool {
	return func(t tiding) bool { return t.Joined == clients && t.Owned == c.size.partitions && t.Most-t.Least <= 1 }
}

// die kills the process of the victims.
func (c *crowd) die(ctx context.Context) error {
	c.news.kill(c.alive[1])
	c.alive = c.alive[:1]
	expiry, err := one[time.Time](ctx, c.pool, "SELECT max(expires_at) FROM pgleases.clients WHERE id LIKE 'victim-%'")
	if err != nil {
		return err
	}
	all, err := c.news.until(ctx, "the survivors own all", func(t tiding) bool { return t.Owned == c.size.partitions })
	if err != nil {
		return err
	}
	c.covered = all.At.Sub(expiry)
	all, err = c.news.until(ctx, "the survivors share", c.even(c.size.clients-c.size.victims))
	c.balancedLast = all.At.Sub(expiry)
	return err
}

// meter begins to measure what is used; what it returns tells.
func (g *gauge) meter(ctx context.Context) (func(context.Context) (usage, error), error) {
	began := time.Now()
	before, err := g.used(ctx)
	return func(ctx context.Context) (usage, error) {
		after, err := g.used(ctx)
		return usage{time.Since(began), since(before.statements, after.statements),
			after.server - before.server, after.bouncer - before.bouncer, after.logged - before.logged}, err
	}, err
}

// during measures what is used in so long.
func (g *gauge) during(ctx context.Context, d time.Duration) (usage, error) {
	until, err := g.meter(ctx)
	if err != nil {
		return usage{}, err
	}
	select {
	case <-time.After(d):
		return until(ctx)
	case <-ctx.Done():
		return usage{}, context.Cause(ctx)
	}
}

// used is what was used until now; 0 for what is not known.
func (g *gauge) used(ctx context.Context) (u usage, err error) {
	u.server, _ = serverTime(g.postmaster)
	u.bouncer, _ = namedTime("pgbouncer")
	if u.logged, err = one[float64](ctx, g.pool, walPosition); err != nil {
		return u, err
	}
	if g.counts {
		u.statements, err = tallies(ctx, g.pool)
	}
	return u, err
}

// adder returns what adds rows of this crowd, where it came so far.
func (c *crowd) adder(out *part, goals bool) func(reached bool, r row) {
	return func(reached bool, r row) {
		r.what = fmt.Sprintf("%s clients: %s", grouped(c.size.clients), r.what)
		if !goals {
			r.goal, r.met = "", noGoal
		}
		if reached {
			out.add(r)
		}
	}
}

func (c *crowd) tell(out *part, goals bool) {
	add := c.adder(out, goals)
	arrived := c.arrival.span > 0
	add(c.joined > 0, row{
		what:   "all have joined",
		figure: fmt.Sprintf("%s, %d attempts repeated", duration(c.joined), c.repeated),
		floors: []floor{{"as many `SELECT 1`, one after the other", duration(c.trips), times(share(c.joined, c.trips))}},
	})
	add(arrived, row{
		what:   "from the first that began to even shares",
		figure: fmt.Sprintf("%s (%s after the last join)", duration(c.joined+c.balanced), duration(c.balanced)),
		floors: []floor{
			{"processor time of the server until then", duration(c.arrival.server), percent(share(c.arrival.server, c.arrival.span)) + " of a core"},
			{
				"statements until then", grouped(calls(c.arrival.statements)),
				significant(float64(calls(c.arrival.statements))/float64(c.size.clients)) + " a client",
			},
		},
		goal: "<= 5 s", met: judge(c.joined+c.balanced <= 5*time.Second),
	})
	add(arrived, row{
		what:   "moves of a partition meanwhile, after it was first given",
		figure: fmt.Sprintf("%s on average, %d at most", significant(c.moves), c.mostMoves),
		floors: []floor{{"the minimum", "0", ""}},
		goal:   "<= 3", met: judge(c.mostMoves <= 3),
	})
	c.tellCalm(add)
	add(c.covered > 0, row{
		what:   fmt.Sprintf("%d of them killed: from the last expiry to all owned again", c.size.victims),
		figure: fmt.Sprintf("%s (even shares: %s)", duration(c.covered), duration(c.balancedLast)),
		floors: []floor{{"the heartbeat", duration(c.ttl / 3), times(share(c.covered, c.ttl/3))}},
		goal:   "<= a heartbeat + 200 ms", met: judge(c.covered <= c.ttl/3+200*time.Millisecond),
	})
	if goals {
		c.list(out)
	}
}

// tellCalm adds what the crowd cost while it did nothing.
func (c *crowd) tellCalm(add func(reached bool, r row)) {
	calm, beats := c.steady.span > 0, c.nominal()
	each := float64(calls(c.steady.statements)) / float64(beats)
	add(calm && c.counts, row{
		what:   fmt.Sprintf("statements in %v of calm", c.size.steady),
		figure: grouped(calls(c.steady.statements)),
		floors: []floor{{"one for each client and heartbeat", grouped(beats), times(each)}},
		goal:   "<= 1.1 x", met: judge(each <= 1.1),
	})
	add(calm, row{
		what:   "processor time of the server meanwhile",
		figure: fmt.Sprintf("%s, %s for each client and heartbeat", duration(c.steady.server), duration(c.steady.server/time.Duration(beats))),
		floors: append([]floor{
			{"one core", duration(c.steady.span), percent(share(c.steady.server, c.steady.span))},
			{"PgBouncer", duration(c.steady.bouncer), percent(share(c.steady.bouncer, c.steady.span)) + " of a core"},
		}, c.bareFloor(duration(c.bare.server/time.Duration(beats)), share(c.steady.server, c.bare.server))...),
		goal: "<= 200 µs, or 1.25 x the last",
		met:  judge(c.steady.server <= max(time.Duration(beats)*200*time.Microsecond, c.bare.server*5/4)),
	})
	add(calm, row{
		what:   "WAL meanwhile",
		figure: fmt.Sprintf("%s bytes for each client and heartbeat, full-page images included", significant(c.steady.logged/float64(beats))),
		floors: append([]floor{{"kB a second", significant(c.steady.logged / 1000 / c.steady.span.Seconds()), ""}},
			c.bareFloor(significant(c.bare.logged/float64(beats))+" bytes", c.steady.logged/c.bare.logged)...),
		goal: "<= 130 bytes, or as the last", met: judge(c.steady.logged <= max(130*float64(beats), c.bare.logged)),
	})
}

// bareFloor is the floor of what calm costs, where it was measured.
func (c *crowd) bareFloor(figure string, ratio float64) []floor {
	if c.bare.span == 0 {
		return nil
	}
	return []floor{{"bare `UPDATE`s at the same pace, one row for each client", figure, times(ratio)}}
}

// list notes the statements of each phase.
func (c *crowd) list(out *part) {
	if !c.counts {
		out.note("Statements were not counted: the server is without pg_stat_statements.")
		return
	}
	out.note("Statements of %s clients, with the time that the server took over each, planning apart. Until balanced: %s. Calm: %s. After the deaths: %s.", grouped(c.size.clients),
		listed(c.arrival.statements), listed(c.steady.statements), listed(c.deaths.statements))
}

func share(of, by time.Duration) float64 { return float64(of) / float64(by) }
