package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/proof/pgserver"
)

const beatConnections = 16

// sessions only send heartbeats, as fast as a few connections allow: the client's statement without
// the client.
type sessions struct {
	*database
	// Each session joins a number of leases, each with a number of partitions.
	n, leases, partitions int
	renewals              []store.Renewal // each session's last renewal
	conns                 []*store.Conn
	// Each session has a copy of its connection, which remembers the last answer to one session.
	own  []store.Conn
	bare []*pgx.Conn
}

func (s *sessions) String() string {
	return fmt.Sprintf("%s sessions, %d x %s", grouped(s.n), s.leases, grouped(s.partitions))
}

// measureHeartbeats compares heartbeats with a bare UPDATE of one row, for different numbers of
// sessions, leases and partitions.
func measureHeartbeats(ctx context.Context, l *lab, out *part) {
	rates := []sessions{
		{n: 16, leases: 1, partitions: 16},
		{n: 16, leases: 1, partitions: 4096},
		{n: 16, leases: 100, partitions: 16},
	}
	costs := []sessions{
		rates[0],
		{n: 200, leases: 1, partitions: 16},
		{n: 1000, leases: 1, partitions: 16},
		rates[2],
	}
	if l.quick {
		rates, costs = rates[:1], costs[:1]
	}
	for i, s := range rates {
		server := l.fast // the setup of 100 leases waits for the disk 1,000 times
		if i == 0 {
			server = l.durable
		}
		s.measure(ctx, l, server, func() { s.rate(ctx, l, out) })
	}
	for _, s := range costs {
		s.measure(ctx, l, l.fast, func() { s.cost(ctx, l, out) })
	}
	large := sessions{n: l.pick(200, 10_000), leases: 1, partitions: 16_384}
	large.measure(ctx, l, l.fast, func() { large.join(ctx, l, out) })
	out.note("With 1 x 16, each session is a member of one lease of 16 partitions. " +
		"With 100 x 16, it is a member of 100 such leases.")
}

// measure sets up the sessions in a database of their own, and calls do.
func (s *sessions) measure(ctx context.Context, l *lab, server *pgserver.Server, do func()) {
	s.database = l.newDatabase(ctx, server, 4)
	defer s.end()
	// The connector's limits grow with the heartbeat.
	connector := store.NewConnector(must(pgx.ParseConfig(s.url)), nil, "pgleases", time.Minute)
	for range beatConnections {
		conn := must(connector.Connect(ctx, 5*time.Second))
		defer conn.Close()
		bare, end := connect(ctx, s.url)
		defer end()
		s.conns, s.bare = append(s.conns, conn), append(s.bare, bare)
	}
	s.register(ctx)
	makeBare(ctx, s.database, s.n)
	s.all(ctx, handHeartbeat)
	s.all(ctx, "UPDATE pgleases.leases SET plan_due_at = 'infinity'", "VACUUM ANALYZE") // as after a plan
	do()
}

// register makes the first session a member of all leases. The other sessions are copies of its rows.
func (s *sessions) register(ctx context.Context) {
	check(s.conns[0].Migrate(ctx))
	s.enter(ctx, 1)
	for n := range s.leases {
		must(s.conns[0].Join(ctx, 1, fmt.Sprintf("lease-%d", n), s.partitions, store.Terms{Weight: 1}, 1))
	}
	for _, copied := range []string{
		`INSERT INTO pgleases.clients (session, id, incarnation, expires_at, ttl, host, pid, started_at)
SELECT n, 'client-' || n, c.incarnation, c.expires_at, c.ttl, c.host, c.pid, c.started_at
FROM pgleases.clients AS c, generate_series(2, $1::int) AS n`,
		`INSERT INTO pgleases.identities (id, incarnation, process, used_at)
SELECT 'client-' || n, i.incarnation, n, i.used_at
FROM pgleases.identities AS i, generate_series(2, $1::int) AS n`,
		`INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
SELECT m.lease, n, m.weight, m.joined_at, m.join_number
FROM pgleases.members AS m, generate_series(2, $1::int) AS n`,
	} {
		must(s.Exec(ctx, copied, s.n))
	}
	check(s.conns[0].SetMarker(ctx, 1))
	s.renewals = make([]store.Renewal, s.n)
	for i := range s.n {
		s.own = append(s.own, *s.conns[i%beatConnections])
	}
}

// enter registers a session.
func (s *sessions) enter(ctx context.Context, session int64) {
	_, _, err := s.conns[0].Register(ctx, store.Registration{
		Session:   session,
		ID:        fmt.Sprintf("client-%d", session),
		Process:   session,
		TTL:       10 * time.Minute,
		Host:      "bench",
		StartedAt: time.Now(),
	})
	check(err)
}

// each calls do for some sessions in turn, over all connections. Each connection has at least one
// session.
func (s *sessions) each(turns int, do func(session int)) {
	together(beatConnections, func(connection int) {
		for turn := range turns {
			do(s.of(connection, turn))
		}
	})
}

// of returns one of a connection's sessions, in turn, as an index.
func (s *sessions) of(connection, turn int) int {
	own := (s.n - connection + beatConnections - 1) / beatConnections
	return connection + turn%own*beatConnections
}

// beat sends a heartbeat of a session.
func (s *sessions) beat(ctx context.Context, i int) {
	beat := must(s.own[i].Heartbeat(ctx, int64(i+1), 0, s.renewals[i]))
	s.renewals[i] = store.Renewal{Clock: beat.Clock, Marker: beat.Server.Marker}
	if !beat.Alive || len(beat.Leases) != s.leases {
		check(fmt.Errorf("a heartbeat returned %+v", beat))
	}
}

// rate adds the number of heartbeats per second over the connections.
func (s *sessions) rate(ctx context.Context, l *lab, out *part) {
	rates := l.alternate(9,
		l.throughput("", beatConnections, func(i, turn int) { s.beat(ctx, s.of(i, turn)) }),
		l.throughput("bare `UPDATE`", beatConnections, func(i, _ int) { updateBare(ctx, s.bare[i], i) }),
		l.throughput("by hand", beatConnections, func(i, _ int) { s.beatByHand(ctx, i) }))
	least := 0.9
	if s.leases > 1 {
		least = 0.85
	}
	out.compare(fmt.Sprintf("heartbeats of %v", s), rates[0], rates[1:]...).atLeast(least)
}

// beatByHand does the least that a heartbeat can do: it updates one row, and reads whether the server,
// the client's ID or a lease has changed. It is planned once for each connection.
func (s *sessions) beatByHand(ctx context.Context, i int) {
	var answer string
	row := s.bare[i].QueryRow(ctx, "SELECT public.hand_heartbeat($1)", pgx.QueryExecModeExec, i)
	check(row.Scan(&answer))
}

const handHeartbeat = `CREATE FUNCTION public.hand_heartbeat(p_id int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1000', true);
    UPDATE public.bare AS b SET at = clock_timestamp() WHERE b.id = p_id
    RETURNING concat_ws(' ', extract(epoch FROM b.at),
        (SELECT concat_ws(' ', s.accepted_timeline, s.generation, extract(epoch FROM s.next_check_at))
            FROM pgleases.server AS s),
        (SELECT i.incarnation FROM pgleases.identities AS i WHERE i.id = 'client-1'),
        (SELECT m.marker FROM pgleases.present_marker AS m),
        EXISTS (SELECT FROM pgleases.leases AS l
            WHERE l.name = ANY ((SELECT pgleases.session_leases(1))::text[])
                AND l.changed >= pg_snapshot_xmin(pg_current_snapshot())))
    INTO answer;
    RETURN answer;
END
$$`

// throughput returns a side that calls do through several connections at once, for a while.
func (l *lab) throughput(name string, connections int, do func(connection, turn int)) side {
	span := time.Duration(l.pick(20, 300)) * time.Millisecond
	return side{name, perSecond, func() float64 {
		began := time.Now()
		var done atomic.Int64
		together(connections, func(connection int) {
			for turn := 0; time.Since(began) < span; turn++ {
				do(connection, turn)
				done.Add(1)
			}
		})
		return float64(done.Load()) / time.Since(began).Seconds()
	}}
}

// cost adds the server's cost of a heartbeat. Full-page images after a checkpoint do not count,
// because the first round writes them.
func (s *sessions) cost(ctx context.Context, l *lab, out *part) {
	turns := l.pick(20, 100)
	beats := beatConnections * turns
	var wal [2][]float64
	measured := func(i int, do func(session int)) side {
		return side{"bare `UPDATE`", nanoseconds, func() float64 {
			u := s.during(ctx, func() { s.each(turns, do) })
			wal[i] = append(wal[i], u.wal/float64(beats))
			return float64(u.server) / float64(beats)
		}}
	}
	beat := measured(0, func(i int) { s.beat(ctx, i) })
	bare := measured(1, func(i int) { updateBare(ctx, s.bare[i%beatConnections], i) })
	s.all(ctx, "CHECKPOINT")
	processor := l.alternate(5, beat, bare)
	all := len(wal[0]) * beats
	for _, conn := range s.conns {
		conn.Close() // a connection reports its statistics when it closes
	}
	const ofClients = " FROM pg_stat_user_tables WHERE relid = 'pgleases.clients'::regclass"
	s.until(ctx, "statistics of all heartbeats", "SELECT n_tup_upd >= $1"+ofClients, all)
	hot := one[float64](ctx, s.database, "SELECT n_tup_hot_upd::float8 / n_tup_upd"+ofClients)
	if !l.quick {
		wal[0], wal[1] = wal[0][1:], wal[1][1:]
	}
	r := out.compare(fmt.Sprintf("WAL of a heartbeat, %v", s),
		sample{"", wal[0], bytes},
		sample{bare.name, wal[1], bytes})
	r.figure += ", " + percent(hot) + " HOT"
	if s.n == 16 {
		r.goal("<= 130 bytes, >= 99 % HOT", median(wal[0]) <= 130 && hot >= 0.99)
	} else {
		r.goal(">= 99 % HOT", hot >= 0.99)
	}
	out.compare(fmt.Sprintf("server's processor time for a heartbeat, %v", s), processor[0], processor[1])
}

// join adds the server's cost of a heartbeat in a large fleet: in calm, and while more sessions join.
// Then each heartbeat finds that its lease has changed, and the client reads what it owns there.
func (s *sessions) join(ctx context.Context, l *lab, out *part) {
	perSession := func(name string, before func(), do func(session int)) side {
		return side{name, nanoseconds, func() float64 {
			before()
			turns := s.n / beatConnections
			u := s.during(ctx, func() { s.each(turns, do) })
			return float64(u.server) / float64(turns*beatConnections)
		}}
	}
	beat := func(i int) { s.beat(ctx, i) }
	next := int64(s.n)
	joins := func() {
		for range l.pick(1, 100) {
			next++
			s.enter(ctx, next)
			must(s.conns[0].Join(ctx, next, "lease-0", s.partitions, store.Terms{Weight: 1}, 1))
		}
		s.all(ctx, "UPDATE pgleases.leases SET plan_due_at = 'infinity'") // as after a plan
	}
	s.each(s.n/beatConnections, beat) // so that each session has been told the lease
	took := l.alternate(5,
		perSession("bare `UPDATE`", func() {}, func(i int) { updateBare(ctx, s.bare[i%beatConnections], i) }),
		perSession("in calm", func() {}, beat),
		perSession("", joins, func(i int) {
			beat(i)
			must(s.own[i].Read(ctx, int64(i+1), []string{"lease-0"}))
		}))
	out.compare(fmt.Sprintf("server's processor time for a heartbeat, %v", s), took[1], took[0])
	out.compare("the same while more join, with the read that follows", took[2], took[0], took[1])
}

// makeBare creates a table with a number of rows, which bare updates change.
func makeBare(ctx context.Context, d *database, rows int) {
	const table = `CREATE TABLE public.bare (id int PRIMARY KEY, at timestamptz NOT NULL) WITH (fillfactor = 50);
INSERT INTO public.bare SELECT n, clock_timestamp() FROM generate_series(0, %d) AS n`
	d.all(ctx, fmt.Sprintf(table, rows-1))
}

// updateBare updates one row asynchronously, on a connection without prepared statements or
// settings.
func updateBare(ctx context.Context, conn *pgx.Conn, id int) {
	const update = `WITH settings AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS ok)
UPDATE public.bare SET at = clock_timestamp() FROM settings WHERE settings.ok = 'off' AND id = $1`
	must(conn.Exec(ctx, update, pgx.QueryExecModeSimpleProtocol, id))
}
