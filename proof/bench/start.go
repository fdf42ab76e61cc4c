package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// measureStart measures how soon many clients that start at once have even shares, in turns with a
// program that only writes what they cannot do without.
func measureStart(ctx context.Context, l *lab, out *part) {
	if l.bouncer == nil {
		out.skip("everything", "PgBouncer is not installed")
		return
	}
	rounds := l.pick(1, 3)
	if l.clients > 1000 {
		rounds = 1
	}
	var ours, hand []start
	for range rounds {
		ours = append(ours, l.startClients(ctx))
		hand = append(hand, l.startByHand(ctx))
	}
	took, least := spans("", ours), spans("by hand", hand)
	out.compare("from the first start to even shares", took, least).
		goal("<= 3 s for 1,000", l.clients != 1000 || median(took.values) <= float64(3*time.Second))
	one, other := middle(ours), middle(hand)
	out.figure("until the last client is registered, has joined, and owns its share", one.steps.String()).
		than("by hand", other.steps.String(), "")
	out.figure("processor time until shares are even", one.spent()).than("by hand", other.spent(), "")
	out.note("%s clients run in two processes, as in the next table. In the run of which the table has the details, "+
		"they sent %s heartbeats, read what they own %s times, wrote %s plans, and handed over in %s statements. "+
		"By hand, as many connections each insert a row when they register, "+
		"and another when they join, which also raises the generation of the lease. "+
		"Then each of them updates the rows of its share, which is known before.",
		grouped(l.clients), grouped(one.Heartbeats), grouped(one.Reads), grouped(one.Plans), grouped(one.Releases))
}

// A start is what happened between the start of the first process and even shares.
type start struct {
	usage
	steps
	statements
	even time.Duration
}

// steps say how long after the start of the first process the last client had come so far.
type steps struct{ Registered, Joined, Owned time.Duration }

func (s steps) String() string {
	return fmt.Sprintf("%s, %s, %s", duration(s.Registered), duration(s.Joined), duration(s.Owned))
}

// statements counts some of the statements of clients.
type statements struct{ Heartbeats, Reads, Plans, Releases int }

// spent formats the processor times, and their share of all cores.
func (s start) spent() string {
	cores := runtime.NumCPU()
	all := s.server + s.workers + s.pooler + s.bench
	return fmt.Sprintf("%s: %s of %d cores", s.processors, percent(share(all, s.even*time.Duration(cores))), cores)
}

// spans returns how long starts took.
func spans(name string, of []start) sample {
	s := sample{name, nil, nanoseconds}
	for _, each := range of {
		s.values = append(s.values, float64(each.even))
	}
	return s
}

// middle returns the start of the median length.
func middle(of []start) start {
	byLength := func(a, b start) int { return cmp.Compare(a.even, b.even) }
	return slices.SortedFunc(slices.Values(of), byLength)[(len(of)-1)/2]
}

// startOf starts the processes of a fleet, and waits until their shares are even.
func (f *fleet) startOf(ctx context.Context, of job, ends string) (s start) {
	began := time.Now()
	s.usage = f.during(ctx, func() {
		f.launch(of)
		s.even = f.shared(ctx, f.clients).Round(0).Sub(began.Round(0))
	})
	s.steps = ask[steps](ctx, f.database, ends, began)
	return s
}

// startClients starts clients of the library.
func (l *lab) startClients(ctx context.Context) start {
	const (
		ends = `SELECT (SELECT max(begun_at) FROM pgleases.clients) - $1,
    (SELECT max(joined_at) FROM pgleases.members) - $1,
    (SELECT max(owned_since) FROM pgleases.partitions) - $1`
		counts = `SELECT coalesce(sum(calls) FILTER (WHERE query LIKE '%.heartbeat(%'), 0)::int,
    coalesce(sum(calls) FILTER (WHERE query LIKE '%.read(%'), 0)::int,
    coalesce(sum(calls) FILTER (WHERE query LIKE '%.apply(%'), 0)::int,
    coalesce(sum(calls) FILTER (WHERE query LIKE '%.release(%'), 0)::int
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND query LIKE 'SELECT%' AND query NOT LIKE '%pg_stat_statements%'`
	)
	f := l.newFleet(ctx)
	defer f.end()
	s := f.startOf(ctx, job{}, ends)
	s.statements = ask[statements](ctx, f.database, counts)
	return s
}

// startByHand starts a program that only writes what a start cannot do without.
func (l *lab) startByHand(ctx context.Context) start {
	const (
		tables = `CREATE TABLE public.hand_clients (id text PRIMARY KEY,
    expires_at timestamptz NOT NULL, registered_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE public.hand_lease (generation bigint NOT NULL);
INSERT INTO public.hand_lease VALUES (0);
CREATE TABLE public.hand_members (id text PRIMARY KEY,
    generation bigint NOT NULL, joined_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE public.hand_partitions (partition int PRIMARY KEY,
    owner text, epoch bigint NOT NULL DEFAULT 0, owned_since timestamptz) WITH (fillfactor = 50)`
		partitions = "INSERT INTO public.hand_partitions SELECT generate_series(0, $1::int - 1)"
		ends       = `SELECT (SELECT max(registered_at) FROM public.hand_clients) - $1,
    (SELECT max(joined_at) FROM public.hand_members) - $1,
    (SELECT max(owned_since) FROM public.hand_partitions) - $1`
	)
	f := l.newFleet(ctx)
	defer f.end()
	f.all(ctx, tables)
	must(f.Exec(ctx, partitions, f.partitions))
	return f.startOf(ctx, job{ByHand: true}, ends)
}

// startByHand is one client of the program by hand. Each statement is a transaction that waits for the
// disk, because others have to find after a crash that the client lives, that it is a member, and
// what it owns.
func (j job) startByHand(ctx context.Context, i int, report func(holding)) {
	const (
		register = "INSERT INTO public.hand_clients (id, expires_at) VALUES ($1, now() + interval '6 s')"
		join     = `WITH raised AS (UPDATE public.hand_lease SET generation = generation + 1 RETURNING generation)
INSERT INTO public.hand_members (id, generation) SELECT $1, generation FROM raised`
		take = `UPDATE public.hand_partitions SET owner = $1, epoch = epoch + 1, owned_since = clock_timestamp()
WHERE partition >= $2::int AND partition < $3::int`
	)
	conn, end := connect(ctx, j.URL)
	defer end()
	id := fmt.Sprintf("%s-%d", j.Prefix, i)
	before := func(clients int) int { return clients * j.Leases * j.Partitions / j.All }
	first, next := before(j.First+i), before(j.First+i+1)
	must(conn.Exec(ctx, register, pgx.QueryExecModeSimpleProtocol, id))
	must(conn.Exec(ctx, join, pgx.QueryExecModeSimpleProtocol, id))
	must(conn.Exec(ctx, take, pgx.QueryExecModeSimpleProtocol, id, first, next))
	report(holding{id, time.Now(), next - first, false})
	<-ctx.Done()
}
