package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

// largest is how many partitions a lease may have.
const largest = 65536

// measureLarge measures what depends on the number of partitions: the statements of a plan, and a lease's life from its making to the
// end of its last client.
func measureLarge(ctx context.Context, l *lab, out *part) error {
	if err := measurePlanStatements(ctx, l, out); err != nil {
		return err
	}
	partitions := l.pick(1024, largest)
	for _, ttl := range []time.Duration{4 * time.Second, 30 * time.Second} {
		if err := measureLife(ctx, l, out, partitions, ttl); err != nil {
			return err
		}
	}
	return nil
}

// fill makes a lease of which so many sessions are members, and nobody owns anything.
const fill = `INSERT INTO pgleases.clients SELECT n, 'host-' || n || '.example:4711:7f3a9c21', 1, now() + interval '1 day', '10 min', 'host', 1, now()
FROM generate_series(1, $2::int) AS n;
INSERT INTO pgleases.leases VALUES ('large', $1::int, 1, 1, 0, 'infinity', now());
INSERT INTO pgleases.members SELECT 'large', n, 1, now(), 1 FROM generate_series(1, $2::int) AS n;
INSERT INTO pgleases.partitions (lease, partition, epoch) SELECT 'large', n, 0 FROM generate_series(0, $1::int - 1) AS n`

// measurePlanStatements measures the reading of a plan, and the writing of its moves.
func measurePlanStatements(ctx context.Context, l *lab, out *part) error {
	url, drop, err := newDatabase(ctx, l.durable)
	if err != nil {
		return err
	}
	defer drop()
	pool, err := newPool(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	partitions, members, count := l.pick(100, 10_000), l.pick(10, 1000), l.pick(64, 8192)
	if err := pgleases.Migrate(ctx, pool); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, fill, pgx.QueryExecModeSimpleProtocol, partitions, members); err != nil {
		return err
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	conn, err := store.NewConnector(config, nil, "pgleases", 20*time.Second).Connect(ctx, time.Minute)
	if err != nil {
		return err
	}
	defer conn.Close()

	var reads, bareReads, gives, bareGives, asks, bareAsks []float64
	timed := func(into *[]float64, do func() error) error {
		began := time.Now()
		err := do()
		*into = append(*into, float64(time.Since(began)))
		return err
	}
	bare := func(statement string) func() error {
		return func() error { _, err := pool.Exec(ctx, statement, count); return err }
	}
	var plan []store.LeasePlan
	read := func() (err error) { plan, err = conn.Plan(ctx, []string{"large"}, false); return err }
	shift := 0
	apply := func() error { // all moves are to others than before
		shift++
		moves := make([]store.Move, count)
		for i := range moves {
			moves[i] = store.Move{Lease: "large", Partition: i, Target: int64((i+shift)%members + 1)}
		}
		applied, err := conn.Apply(ctx, plan, moves, store.NotAgain)
		if err == nil && applied.Asked+applied.Given != count {
			err = fmt.Errorf("of %d moves: %+v", count, applied)
		}
		return err
	}
	for range l.pick(1, 7) {
		for _, step := range []struct {
			into *[]float64
			do   func() error
		}{
			{nil, bare("UPDATE pgleases.partitions SET owner = NULL, target = NULL WHERE partition < $1")},
			{nil, read},
			{&gives, apply},
			{nil, read},
			{&asks, apply},
			{&bareReads, func() error {
				_, err := one[string](ctx, pool, "SELECT string_agg(concat(owner, target), ',') FROM pgleases.partitions")
				return err
			}},
			{&reads, read},
			{&bareAsks, bare("UPDATE pgleases.partitions SET target = target + 1, asked_at = now() WHERE partition < $1")},
			{&bareGives, bare("UPDATE pgleases.partitions SET owner = owner + 1, epoch = epoch + 1, owned_since = now() WHERE partition < $1")},
		} {
			if step.into == nil {
				step.into = new([]float64)
			}
			if _, err := pool.Exec(ctx, "VACUUM ANALYZE pgleases.partitions"); err != nil {
				return err
			}
			if err := timed(step.into, step.do); err != nil {
				return err
			}
		}
	}
	add := func(what string, took []float64, bare string, floors []float64, goal time.Duration) {
		out.add(row{
			what:   what,
			figure: duration(time.Duration(median(took))),
			floors: []floor{{bare, duration(time.Duration(median(floors))), times(median(ratios(took, floors)))}},
			goal:   "<= " + duration(goal),
			met:    judge(median(took) <= float64(goal)),
		})
	}
	add(fmt.Sprintf("a plan of %s partitions, %s members: read", grouped(partitions), grouped(members)),
		reads, "owners and targets in one string", bareReads, 10*time.Millisecond)
	add(fmt.Sprintf("%s moves applied: given to members", grouped(count)), gives, "one bare UPDATE", bareGives, 80*time.Millisecond)
	add(fmt.Sprintf("%s moves applied: owners asked to hand over", grouped(count)), asks, "one bare UPDATE", bareAsks, 80*time.Millisecond)
	return nil
}

// measureLife has three clients make a lease at once, a fourth one join them, and all close at once.
func measureLife(ctx context.Context, l *lab, out *part, partitions int, ttl time.Duration) error {
	var made, joined, closed, inserts, updates []float64
	for range l.pick(1, 5) {
		life, err := liveOnce(ctx, l, partitions, ttl)
		if err != nil {
			return err
		}
		made, joined, closed = append(made, float64(life.made)), append(joined, float64(life.joined)), append(closed, float64(life.closed))
		inserts, updates = append(inserts, float64(life.insert)), append(updates, float64(life.update))
	}
	of := fmt.Sprintf("%s partitions, TTL %v: ", grouped(partitions), ttl)
	for _, r := range []struct {
		what         string
		took, floors []float64
		floor        string
		goal         time.Duration
	}{
		{"made, and owned by three clients", made, inserts, "one bare INSERT of as many rows", 2 * time.Second},
		{"joined by a fourth, until all is even", joined, updates, "one bare UPDATE of all rows", 3 * time.Second},
		{"all four closed at once", closed, updates, "one bare UPDATE of all rows", 2 * time.Second},
	} {
		out.add(row{
			what:   of + r.what,
			figure: duration(time.Duration(median(r.took))),
			floors: []floor{{r.floor, duration(time.Duration(median(r.floors))), times(median(ratios(r.took, r.floors)))}},
			goal:   "<= " + duration(r.goal),
			met:    judge(median(r.took) <= float64(r.goal)),
		})
	}
	return nil
}

// A life is how long the parts of a lease's life took, and bare statements beside it.
type life struct{ made, joined, closed, insert, update time.Duration }

func liveOnce(ctx context.Context, l *lab, partitions int, ttl time.Duration) (of life, err error) {
	url, drop, err := newDatabase(ctx, l.durable)
	if err != nil {
		return of, err
	}
	c := &crew{url: url, partitions: partitions, ttl: ttl, census: newCensus(), drop: drop}
	defer c.disband()
	if c.pool, err = newPool(ctx, url); err != nil {
		return of, err
	}
	began := time.Now()
	members, errs := make([]*member, 3), make([]error, 3)
	var wg sync.WaitGroup
	for i := range members {
		wg.Go(func() {
			members[i], errs[i] = join(ctx, member{url: url, id: fmt.Sprint("client-", i), lease: crewLease, partitions: partitions, ttl: ttl})
		})
	}
	wg.Wait()
	for i, m := range members {
		if m != nil {
			c.members = append(c.members, m)
			c.census.watch(m)
		}
		if errs[i] != nil {
			err = errs[i]
		}
	}
	if err != nil {
		return of, err
	}
	at, err := c.census.until(ctx, "even shares", balanced(3, partitions))
	if err != nil {
		return of, err
	}
	of.made = at.Sub(began)
	began = time.Now()
	if _, err = c.add(ctx, "newcomer"); err != nil {
		return of, err
	}
	if at, err = c.census.until(ctx, "even shares", balanced(4, partitions)); err != nil {
		return of, err
	}
	of.joined = at.Sub(began)
	began = time.Now()
	for _, m := range c.members {
		wg.Go(m.close)
	}
	wg.Wait()
	c.members, of.closed = nil, time.Since(began)
	return of, of.bare(ctx, c.pool, partitions)
}

// bare measures what the server takes for as many rows alone.
func (of *life) bare(ctx context.Context, pool *pgxpool.Pool, partitions int) error {
	for _, b := range []struct {
		took      *time.Duration
		statement string
	}{
		{&of.insert, "INSERT INTO pgleases.partitions (lease, partition, epoch) SELECT 'bare', n, $1::int - $1::int FROM generate_series(0, $1::int - 1) AS n"},
		{&of.update, "UPDATE pgleases.partitions SET owner = 1, epoch = epoch + 1 WHERE lease = 'bare' AND partition < $1"},
	} {
		began := time.Now()
		if _, err := pool.Exec(ctx, b.statement, partitions); err != nil {
			return err
		}
		*b.took = time.Since(began)
	}
	return nil
}
