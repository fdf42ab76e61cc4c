package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

// measureLarge measures figures that depend on the number of partitions: the statements of a plan,
// and the life of a lease.
func measureLarge(ctx context.Context, l *lab, out *part) {
	measurePlanStatements(ctx, l, out)
	// The maximum size of a lease, and the shortest TTL for it.
	measureLife(ctx, l, out, l.pick(1024, 65_536), 4*time.Second)
}

// fill creates a lease with members and without owners, on a server that they have accepted.
const fill = `UPDATE pgleases.server SET accepted_timeline = pgleases.timeline();
INSERT INTO pgleases.clients
SELECT n, 'host-' || n || '.example:4711:7f3a9c21', 1, now() + interval '1 day', '10 min', 'host', 1, now()
FROM generate_series(1, $2::int) AS n;
INSERT INTO pgleases.leases (name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
VALUES ('large', $1::int, 1, 1, 0, 'infinity', now());
INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
SELECT 'large', n, 1, now(), 1 FROM generate_series(1, $2::int) AS n;
INSERT INTO pgleases.partitions (lease, partition, epoch)
SELECT 'large', n, 0 FROM generate_series(0, $1::int - 1) AS n`

// A planned is a database with one large lease, and a connection that plans this lease.
type planned struct {
	*database
	conn     *store.Conn
	snapshot []store.LeaseSnapshot
}

func (l *lab) newPlanned(ctx context.Context, partitions, members int) *planned {
	d := l.newDatabase(ctx, l.durable, 4)
	check(pgleases.Migrate(ctx, d.Pool))
	must(d.Exec(ctx, fill, pgx.QueryExecModeSimpleProtocol, partitions, members))
	return &planned{database: d, conn: d.engine(ctx)}
}

// engine returns a connection that sends the engine's statements.
func (d *database) engine(ctx context.Context) *store.Conn {
	connector := store.NewConnector(must(pgx.ParseConfig(d.url)), nil, "pgleases", 20*time.Second)
	return must(connector.Connect(ctx, time.Minute))
}

func (d *planned) end() {
	d.conn.Close()
	d.database.end()
}

func (d *planned) read(ctx context.Context) {
	d.snapshot = must(d.conn.Snapshot(ctx, []string{"large"}, false))
}

// apply moves count partitions, each to a member by number, counted from 0.
func (d *planned) apply(ctx context.Context, count int, to func(partition int) int) {
	moves := make([]store.Move, count)
	for p := range moves {
		moves[p] = store.Move{Lease: "large", Partition: p, Target: int64(to(p) + 1)}
	}
	next := store.NextPlan{After: 50 * time.Millisecond, OnlyLeftOver: true}
	applied := must(d.conn.Apply(ctx, d.snapshot, moves, next))
	if applied.Asked+applied.Given != count {
		check(fmt.Errorf("of %d moves: %+v", count, applied))
	}
}

// measurePlanStatements measures reading a plan, and writing its moves.
func measurePlanStatements(ctx context.Context, l *lab, out *part) {
	partitions, members := l.pick(100, 10_000), l.pick(10, 1000)
	count := l.pick(64, 8192)
	d := l.newPlanned(ctx, partitions, members)
	defer d.end()
	vacuumed := func(name string, do func()) side {
		s := timed(name, do)
		return side{name, nanoseconds, func() float64 {
			d.all(ctx, "VACUUM ANALYZE pgleases.partitions")
			return s.measure()
		}}
	}
	statement := func(name, query string) side {
		return vacuumed(name, func() { d.all(ctx, query) })
	}
	update := func(name, set string) side {
		return statement(name, fmt.Sprintf("UPDATE pgleases.partitions SET %s WHERE partition < %d", set, count))
	}
	shift := 0
	read := vacuumed("", func() { d.read(ctx) })
	apply := vacuumed("", func() { // each move is to another member than before
		shift++
		d.apply(ctx, count, func(p int) int { return (p + shift) % members })
	})
	// The sides by number: each needs the state in which the one before it leaves the partitions.
	const gives, asks, inOneString, reads, asksBare, givesBare = 2, 4, 5, 6, 7, 8
	took := l.alternatePairs(7, []pair{{reads, inOneString}, {gives, givesBare}, {asks, asksBare}},
		update("", "owner = NULL, target = NULL"),
		read,
		apply,
		read,
		apply,
		statement("owners and targets in one string",
			"SELECT string_agg(concat(owner, target), ',') FROM pgleases.partitions"),
		read,
		update("one bare `UPDATE`", "target = target + 1, asked_at = now()"),
		update("one bare `UPDATE`", "owner = owner + 1, epoch = epoch + 1, owned_since = now()"))
	plan := fmt.Sprintf("a plan of %s partitions and %s members is read", grouped(partitions), grouped(members))
	moves := grouped(count) + " moves are written, which "
	out.compare(plan, took[reads], took[inOneString]).atMost(2.5)
	out.compare(moves+"give partitions to members", took[gives], took[givesBare]).atMost(2)
	out.compare(moves+"ask owners to hand over", took[asks], took[asksBare]).atMost(2)
}

// measureLife measures three clients that create a lease at once, a fourth client that joins, and
// the close of all four at once. Each round has a new database.
func measureLife(ctx context.Context, l *lab, out *part, partitions int, ttl time.Duration) {
	var g *group
	defer func() {
		if g != nil {
			g.end()
		}
	}()
	enter := func(n int) {
		first := len(g.members)
		together(n, func(i int) { g.add(ctx, fmt.Sprint("client-", first+i)) })
		g.even(ctx, first+n, partitions)
	}
	made := timed("", func() { enter(3) })
	fresh := side{"", nanoseconds, func() float64 {
		if g != nil {
			g.end()
		}
		g = l.newGroup(ctx, l.durable, 0, partitions, ttl, nil)
		return made.measure()
	}}
	insert := fmt.Sprintf(`INSERT INTO pgleases.partitions (lease, partition, epoch)
SELECT 'bare', n, 0 FROM generate_series(0, %d) AS n`, partitions-1)
	const update = "UPDATE pgleases.partitions SET owner = 1, epoch = epoch + 1 WHERE lease = 'bare'"
	took := l.alternatePairs(3, []pair{{0, 3}, {1, 4}, {2, 4}},
		fresh,
		timed("", func() { enter(1) }),
		timed("", func() {
			members := g.members
			g.members = nil
			together(len(members), func(i int) { closeClient(members[i].client) })
		}),
		timed("one bare `INSERT`", func() { g.all(ctx, insert) }),
		timed("one bare `UPDATE`", func() { g.all(ctx, update) }))
	of := fmt.Sprintf("%s partitions, ", grouped(partitions))
	for i, r := range []struct {
		what  string
		bound sample
		goal  time.Duration
	}{
		{"from their creation until 3 clients own them", took[3], 2 * time.Second},
		{"from the join of a fourth client to even shares", took[4], 3 * time.Second},
		{"while all 4 clients close at once", took[4], 2 * time.Second},
	} {
		out.compare(of+r.what, took[i], r.bound).goal("<= "+duration(r.goal), median(took[i].values) <= float64(r.goal))
	}
}
