package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

// measureWide measures figures that should not grow with the leases and partitions of others.
func measureWide(ctx context.Context, l *lab, out *part) {
	measureBesideLeases(ctx, l, out)
	measureChecks(ctx, l, out)
	measureTakeOvers(ctx, l, out)
}

// A caller is a session that is a member of one lease, in a database of its own, with its
// connection.
type caller struct {
	*database
	conn *store.Conn
	last store.Renewal
	run  store.Incarnation
}

const ownSession = 1

func (l *lab) newCaller(ctx context.Context) *caller {
	d := l.newDatabase(ctx, l.durable, 4)
	check(pgleases.Migrate(ctx, d.Pool))
	c := &caller{database: d, conn: d.engine(ctx)}
	_, _, err := c.conn.Register(ctx, store.Registration{
		Session:   ownSession,
		ID:        "caller",
		Process:   1,
		TTL:       10 * time.Minute,
		Host:      "bench",
		StartedAt: time.Now(),
	})
	check(err)
	must(c.conn.Join(ctx, ownSession, "own", 8, store.Terms{Weight: 1}, 1))
	check(c.conn.SetMarker(ctx, 1))
	return c
}

func (c *caller) end() {
	c.conn.Close()
	c.database.end()
}

func (c *caller) beat(ctx context.Context) {
	beat := must(c.conn.Heartbeat(ctx, ownSession, 0, c.last))
	if !beat.Alive || len(beat.Leases) != 1 {
		check(fmt.Errorf("a heartbeat returned %+v", beat))
	}
	c.last, c.run = store.Renewal{Clock: beat.Clock, Marker: beat.Server.Marker}, beat.Server
}

// calm brings the database into its state after a plan and after autovacuum.
func (c *caller) calm(ctx context.Context) {
	c.all(ctx, "UPDATE pgleases.leases SET plan_due_at = 'infinity' WHERE plan_due_at <> 'infinity'", "VACUUM ANALYZE")
}

// others creates leases of others: $1 dropped leases, and $2 leases with $3 partitions and one
// member each, which owns them all.
const others = `INSERT INTO pgleases.leases
    (name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
SELECT 'other-' || n, CASE WHEN n > $1::int THEN $3::int ELSE 0 END, 3, 1, 1, 'infinity', now()
FROM generate_series(1, $1::int + $2::int) AS n;
INSERT INTO pgleases.clients
SELECT n, 'host-' || n, 1, now() + interval '1 day', '10 min', 'host', 1, now()
FROM generate_series(1001, 1016) AS n;
INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
SELECT 'other-' || n, 1001 + n % 16, 1, now(), 1 FROM generate_series($1::int + 1, $1::int + $2::int) AS n;
INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id)
SELECT 'other-' || n, p, 1001 + n % 16, 1001 + n % 16, 1, 'host-' || 1001 + n % 16
FROM generate_series($1::int + 1, $1::int + $2::int) AS n, generate_series(0, $3::int - 1) AS p`

// measureBesideLeases compares heartbeats beside leases of others with heartbeats beside no other
// lease.
func measureBesideLeases(ctx context.Context, l *lab, out *part) {
	leases, turns := l.pick(100, 50_000), l.pick(20, 500)
	alone, beside := l.newCaller(ctx), l.newCaller(ctx)
	defer alone.end()
	defer beside.end()
	must(beside.Exec(ctx, others, pgx.QueryExecModeSimpleProtocol, leases, leases, 1))
	beats := func(name string, c *caller) side {
		c.calm(ctx)
		return side{name, nanoseconds, func() float64 {
			began := time.Now()
			for range turns {
				c.beat(ctx)
			}
			return float64(time.Since(began)) / float64(turns)
		}}
	}
	took := l.alternate(31, beats("", beside), beats("beside none", alone))
	what := fmt.Sprintf("a heartbeat beside %s dropped leases and %[1]s of others", grouped(leases))
	out.compare(what, took[0], took[1]).atMost(1.2)
}

// measureChecks times expiry checks, each with one expired client, in schemas with many and with
// few partitions.
func measureChecks(ctx context.Context, l *lab, out *part) {
	leases, partitions := 20, l.pick(100, 60_000)
	wide, narrow := l.newCaller(ctx), l.newCaller(ctx)
	defer wide.end()
	defer narrow.end()
	must(wide.Exec(ctx, others, pgx.QueryExecModeSimpleProtocol, 0, leases, partitions))
	const expire = `INSERT INTO pgleases.clients
VALUES (2, 'dead', 1, now() - interval '1 hour', '1 s', 'host', 1, now());
INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number) VALUES ('own', 2, 1, now(), 1);
UPDATE pgleases.server SET next_check_at = now()`
	checks := func(name string, c *caller) side {
		c.calm(ctx)
		return side{name, nanoseconds, func() float64 {
			c.all(ctx, expire)
			c.beat(ctx)
			began := time.Now()
			evicted := must(c.conn.Evict(ctx, c.last.Clock, time.Minute, 10*time.Minute, c.run))
			asked := must(c.conn.Tidy(ctx))
			took := time.Since(began)
			if len(evicted.IDs) != 1 || len(asked) > 0 {
				check(fmt.Errorf("a check returned %+v, then %q", evicted, asked))
			}
			return float64(took)
		}}
	}
	took := l.alternate(l.pick(1, 50), checks("", wide), checks("with 8", narrow))
	what := fmt.Sprintf("an expiry check that finds one expired client, with %s partitions", grouped(leases*partitions))
	out.compare(what, took[0], took[1]).
		goal("<= 20 ms", median(took[0].values) <= float64(20*time.Millisecond))
}

// measureTakeOvers times takeovers in a small lease beside large leases, each takeover of another
// client's partitions.
func measureTakeOvers(ctx context.Context, l *lab, out *part) {
	leases, partitions := l.pick(2, 32), l.pick(100, 16_384)
	kills := l.pick(1, 20)
	g := l.newGroup(ctx, l.durable, 1, 8, latencyTTL, nil)
	defer g.end()
	for i := range leases {
		m := open(ctx, g.url, fmt.Sprint("large-", i), latencyTTL)
		defer closeClient(m.client)
		m.join(ctx, m.id, partitions)
	}
	g.settle(ctx)
	s := &latencies{}
	for i := range kills {
		s.kill(ctx, g, fmt.Sprint("victim-", i))
	}
	what := fmt.Sprintf("from the expiry after kill -9 until all are owned again, beside %d leases of %s partitions",
		leases, grouped(partitions))
	row := out.compare(what,
		sample{"", s.killed, nanoseconds},
		sample{"the TTL before", []float64{float64(latencyTTL)}, nanoseconds})
	row.figure += p95(s.killed)
	row.goal(fmt.Sprintf("<= 300 ms, %d of %[1]d", kills), slices.Max(s.killed) <= float64(300*time.Millisecond))
}
