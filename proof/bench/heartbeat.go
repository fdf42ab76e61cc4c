package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/proof/pgserver"
)

const beatConnections = 16

// A herdSize says how many sessions joined how many leases of how many partitions.
type herdSize struct{ sessions, leases, partitions int }

func (s herdSize) String() string {
	return fmt.Sprintf("%s sessions, %s x %s", grouped(s.sessions), count(s.leases, "lease"), count(s.partitions, "partition"))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(n) + " " + what + "s"
}

// measureHeartbeats compares heartbeats with a bare UPDATE of one row, and sees what one costs the server as clients, leases
// and partitions grow.
func measureHeartbeats(ctx context.Context, l *lab, out *part) error {
	sizes := []herdSize{{16, 1, 16}, {16, 1, 4096}, {16, 10, 128}, {16, 100, 16}}
	if l.quick {
		sizes = []herdSize{{16, 10, 16}}
	}
	for i, size := range sizes {
		server := l.fast // setting up many leases waits for the disk a thousand times
		if i == 0 {
			server = l.durable
		}
		if err := measureRate(ctx, l, server, out, size); err != nil {
			return err
		}
	}
	for _, size := range sizes {
		if err := measureCost(ctx, l, out, size); err != nil {
			return err
		}
	}
	return measureGrowth(ctx, l, out)
}

// measureGrowth measures the cost of a heartbeat along three lines.
func measureGrowth(ctx context.Context, l *lab, out *part) error {
	lines := []struct {
		name, axis string
		sizes      []herdSize
		x          func(herdSize) int
	}{
		{"clients", "sessions, 1 lease of 16 partitions", []herdSize{{16, 1, 16}, {50, 1, 16}, {200, 1, 16}, {1000, 1, 16}},
			func(s herdSize) int { return s.sessions }},
		{"leases", "leases of 16 partitions, 16 sessions", []herdSize{{16, 1, 16}, {16, 3, 16}, {16, 10, 16}, {16, 30, 16}, {16, 100, 16}},
			func(s herdSize) int { return s.leases }},
		{"partitions", "partitions of 1 lease, 16 sessions", []herdSize{{16, 1, 16}, {16, 1, 128}, {16, 1, 1024}, {16, 1, 4096}},
			func(s herdSize) int { return s.partitions }},
	}
	costs := make(map[herdSize]beatCost)
	for _, line := range lines {
		if l.quick {
			line.sizes = line.sizes[:1]
		}
		c := curve{name: line.name, axis: line.axis}
		for _, size := range line.sizes {
			if _, known := costs[size]; !known {
				h, err := newHerd(ctx, l.fast, size)
				if err != nil {
					return err
				}
				costs[size], err = h.cost(ctx, l.pick(320, 1600))
				h.drop()
				if err != nil {
					return err
				}
			}
			c.points = append(c.points, point{line.x(size), costs[size]})
		}
		out.curves = append(out.curves, c)
	}
	return nil
}

// measureRate adds how many heartbeats go through 16 connections in a second, beside bare updates in turns. Only where commits wait
// for the disk is a synchronous one something to be measured beside.
func measureRate(ctx context.Context, l *lab, server *pgserver.Server, out *part, size herdSize) error {
	h, err := newHerd(ctx, server, size)
	if err != nil {
		return err
	}
	defer h.drop()
	bare, err := newBareUpdates(ctx, h.pool, h.url)
	if err != nil {
		return err
	}
	defer bare.close()
	if err := h.connect(ctx); err != nil {
		return err
	}
	defer h.disconnect()

	loads := []load{
		{"heartbeat", h.beat},
		{"bare `UPDATE`, asynchronous, as one message that a pooler cannot break", bare.simple},
		{"the same in a function that returns one value", bare.function},
		{"the same, prepared", bare.asynchronous},
	}
	if server == l.durable {
		loads = append(loads,
			load{"bare `UPDATE`, synchronous, prepared", bare.synchronous},
			load{"`SELECT 1` as one message", bare.nothing},
			load{"`SELECT 1`, prepared", bare.preparedNothing})
	}
	span := time.Duration(l.pick(20, 300)) * time.Millisecond
	rates := make([][]float64, len(loads))
	for round := range 1 + l.pick(3, 9) {
		for i, load := range loads {
			rate, err := throughput(ctx, beatConnections, span, load.do)
			if err != nil {
				return fmt.Errorf("%s: %w", load.name, err)
			}
			if round > 0 { // the first is to warm up
				rates[i] = append(rates[i], rate)
			}
		}
	}
	r := row{what: fmt.Sprintf("heartbeats through %d connections: %v", beatConnections, size), figure: significant(median(rates[0])) + "/s"}
	for i := 1; i < len(loads); i++ {
		r.floors = append(r.floors, floor{loads[i].name, significant(median(rates[i])) + "/s", percent(median(ratios(rates[0], rates[i])))})
	}
	r.goal, r.met = ">= 80 % of the first", judge(median(ratios(rates[0], rates[1])) >= 0.8)
	out.add(r)
	return nil
}

// A beatCost is what one heartbeat costs the server.
type beatCost struct {
	bytes     float64       // of WAL, without full-page images
	images    float64       // bytes of full-page images in all, after a checkpoint
	flushes   float64       // for each heartbeat
	rows      float64       // written
	hot       float64       // share of the updates
	processor time.Duration // of the server's processes; 0 where it is not known
}

// measureCost adds what a heartbeat costs the server.
func measureCost(ctx context.Context, l *lab, out *part, size herdSize) error {
	h, err := newHerd(ctx, l.fast, size)
	if err != nil {
		return err
	}
	defer h.drop()
	beats := l.pick(320, 4800)
	cost, err := h.cost(ctx, beats)
	if err != nil {
		return err
	}
	bare, err := h.bare(ctx)
	out.add(row{
		what: fmt.Sprintf("what one writes: %v", size),
		figure: fmt.Sprintf("%s bytes of WAL (full-page images of %s heartbeats after a checkpoint: %s bytes in all), %s rows, %s of them HOT, %s flushes",
			significant(cost.bytes), grouped(beats), grouped(int(cost.images)), significant(cost.rows), percent(cost.hot), significant(cost.flushes)),
		floors: []floor{{"a bare `UPDATE` of one row", significant(bare) + " bytes", times(cost.bytes / bare)}},
		goal:   "<= 130 bytes, >= 99 % HOT",
		met:    judge(cost.bytes <= 130 && cost.hot >= 0.99),
	})
	return err
}

// bareUpdates do nothing but update one row of their own on each connection.
type bareUpdates struct {
	off, on []*pgx.Conn // by synchronous_commit
}

// makeBare makes a table of so many rows, which bare updates change, and a function that changes one.
func makeBare(ctx context.Context, pool *pgxpool.Pool, rows int) error {
	_, err := pool.Exec(ctx, `CREATE TABLE bare (id int PRIMARY KEY, at timestamptz NOT NULL) WITH (fillfactor = 50);
CREATE FUNCTION bare_update(id int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    told text := set_config('synchronous_commit', 'off', true);
BEGIN
    UPDATE bare AS b SET at = clock_timestamp() WHERE b.id = $1 RETURNING b.at INTO told;
    RETURN told;
END $$`)
	if err == nil {
		_, err = pool.Exec(ctx, `INSERT INTO bare SELECT n, clock_timestamp() FROM generate_series(0, $1::int - 1) AS n`, rows)
	}
	return err
}

func newBareUpdates(ctx context.Context, pool *pgxpool.Pool, url string) (*bareUpdates, error) {
	err := makeBare(ctx, pool, beatConnections)
	b := &bareUpdates{}
	for range beatConnections {
		for _, to := range []struct {
			conns   *[]*pgx.Conn
			setting string
		}{{&b.off, "off"}, {&b.on, "on"}} {
			var conn *pgx.Conn
			if err == nil {
				conn, err = pgx.Connect(ctx, url)
			}
			if err == nil {
				*to.conns = append(*to.conns, conn)
				_, err = conn.Exec(ctx, "SET synchronous_commit = "+to.setting)
			}
		}
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bareUpdates) close() {
	for _, conn := range append(b.off, b.on...) {
		_ = conn.Close(context.Background()) // of no more use
	}
}

const bareUpdate = "UPDATE bare SET at = clock_timestamp() WHERE id = $1"

func (b *bareUpdates) asynchronous(ctx context.Context, connection, _ int) error {
	_, err := b.off[connection].Exec(ctx, bareUpdate, connection)
	return err
}

func (b *bareUpdates) synchronous(ctx context.Context, connection, _ int) error {
	_, err := b.on[connection].Exec(ctx, bareUpdate, connection)
	return err
}

// simple is asynchronous by what its own statement says, on a connection where nothing is prepared or set.
func (b *bareUpdates) simple(ctx context.Context, connection, _ int) error {
	return updateBare(ctx, b.on[connection], connection)
}

func updateBare(ctx context.Context, conn *pgx.Conn, id int) error {
	_, err := conn.Exec(ctx, `WITH settings AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS ok)
UPDATE bare SET at = clock_timestamp() FROM settings WHERE settings.ok = 'off' AND id = $1`, pgx.QueryExecModeSimpleProtocol, id)
	return err
}

// function is the least that a heartbeat does which tells something: its plan is kept, and it returns a value.
func (b *bareUpdates) function(ctx context.Context, connection, _ int) error {
	var told string
	return b.on[connection].QueryRow(ctx, "SELECT bare_update($1)", pgx.QueryExecModeSimpleProtocol, connection).Scan(&told)
}

func (b *bareUpdates) nothing(ctx context.Context, connection, _ int) error {
	_, err := b.on[connection].Exec(ctx, "SELECT 1", pgx.QueryExecModeSimpleProtocol)
	return err
}

func (b *bareUpdates) preparedNothing(ctx context.Context, connection, _ int) error {
	_, err := b.on[connection].Exec(ctx, "SELECT 1")
	return err
}
