package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/proof/pgserver"
)

// A herd is a number of sessions that do nothing but heartbeats, as fast as a few connections take them: the statement that a
// client sends, without the client.
type herd struct {
	size      herdSize
	url       string
	pool      *pgxpool.Pool
	drop      func()
	connector *store.Connector
	sessions  []int64
	renewals  []store.Renewal // the last of each session
	conns     []*store.Conn

	postmaster int
	written    int // rows, by the setting up
}

// newHerd registers the sessions and has them join the leases, in a database of its own.
func newHerd(ctx context.Context, server *pgserver.Server, size herdSize) (_ *herd, err error) {
	h := &herd{size: size}
	url, drop, err := newDatabase(ctx, server)
	if err != nil {
		return nil, err
	}
	h.url, h.drop = url, drop
	defer func() {
		if err != nil {
			h.drop()
		}
	}()
	if h.pool, err = newPool(ctx, url); err != nil {
		return nil, err
	}
	h.drop = func() { h.pool.Close(); drop() }
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	// A long heartbeat: what it waits for a lock grows with it, and the first join makes many partitions.
	h.connector = store.NewConnector(config, nil, "pgleases", time.Minute)
	if h.postmaster, err = postmasterOf(ctx, h.pool); err != nil {
		return nil, err
	}
	if err := h.register(ctx); err != nil {
		return nil, err
	}
	err = untilTrue(ctx, h.pool, "statistics of the setting up",
		"SELECT n_tup_ins >= $1 FROM pg_stat_user_tables WHERE relname = 'clients'", size.sessions)
	if err != nil {
		return nil, err
	}
	if _, err = h.pool.Exec(ctx, "UPDATE pgleases.leases SET next_check_at = 'infinity'"); err != nil { // as after a plan
		return nil, err
	}
	_, err = h.pool.Exec(ctx, "VACUUM ANALYZE pgleases.clients, pgleases.members, pgleases.leases, pgleases.identities")
	if err == nil {
		h.written, err = one[int](ctx, h.pool, rowsWritten)
	}
	return h, err
}

const rowsWritten = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::int FROM pg_stat_user_tables"

// register sets the herd up, through one connection.
func (h *herd) register(ctx context.Context) error {
	conn, err := h.connector.Connect(ctx, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Migrate(ctx); err != nil {
		return err
	}
	for i := range h.size.sessions {
		session := int64(i + 1)
		_, _, err := conn.Register(ctx, store.Registration{
			Session: session, ID: fmt.Sprintf("client-%d", session), Process: session,
			TTL: 10 * time.Minute, Host: "bench", StartedAt: time.Now(),
		})
		if err != nil {
			return err
		}
		beat, err := conn.Heartbeat(ctx, session, 0, store.Renewal{}) // before it joins, as a client does
		if err != nil {
			return err
		}
		h.sessions, h.renewals = append(h.sessions, session), append(h.renewals, store.Renewal{Clock: beat.Clock, Mark: beat.Run.Mark})
		for n := range h.size.leases {
			if _, err := conn.Join(ctx, session, fmt.Sprintf("lease-%d", n), h.size.partitions, 1, 1); err != nil {
				return err
			}
		}
	}
	return conn.Mark(ctx, 1)
}

func (h *herd) connect(ctx context.Context) error {
	for range beatConnections {
		conn, err := h.connector.Connect(ctx, 5*time.Second)
		if err != nil {
			return err
		}
		h.conns = append(h.conns, conn)
	}
	return nil
}

func (h *herd) disconnect() {
	for _, conn := range h.conns {
		conn.Close()
	}
	h.conns = nil
}

// beat has the sessions of a connection heartbeat, one after the other. There are at least as many as connections.
func (h *herd) beat(ctx context.Context, connection, turn int) error {
	own := (len(h.sessions) - connection + beatConnections - 1) / beatConnections
	i := connection + turn%own*beatConnections
	beat, err := h.conns[connection].Heartbeat(ctx, h.sessions[i], 0, h.renewals[i])
	h.renewals[i] = store.Renewal{Clock: beat.Clock, Mark: beat.Run.Mark}
	if err == nil && (!beat.Alive || len(beat.Leases) != h.size.leases) {
		err = fmt.Errorf("a heartbeat told %+v", beat)
	}
	return err
}

// cost measures what so many heartbeats cost.
func (h *herd) cost(ctx context.Context, beats int) (beatCost, error) {
	var cost beatCost
	if err := h.connect(ctx); err != nil {
		return cost, err
	}
	defer h.disconnect()
	some := func() error { return spread(ctx, beatConnections, beats, h.beat) }
	if err := some(); err != nil { // to warm up: catalogues, plans
		return cost, err
	}
	if _, err := h.pool.Exec(ctx, "CHECKPOINT"); err != nil {
		return cost, err
	}
	withImages, err := h.logged(ctx, some)
	if err != nil {
		return cost, err
	}
	before, err := flushed(ctx, h.pool)
	if err != nil {
		return cost, err
	}
	used, usedErr := serverTime(h.postmaster)
	without, err := h.logged(ctx, some)
	if err != nil {
		return cost, err
	}
	now, _ := serverTime(h.postmaster)
	if usedErr == nil {
		cost.processor = (now - used) / time.Duration(beats)
	}
	cost.bytes = without / float64(beats)
	cost.images = max(0, withImages-without)
	h.disconnect() // then they tell the rest of their statistics
	if err := h.told(ctx, &cost, 3*beats); err != nil {
		return cost, err
	}
	after, err := flushed(ctx, h.pool)
	cost.flushes = float64(after-before) / float64(beats)
	return cost, err
}

const walPosition = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8"

// logged returns how many bytes of WAL something writes.
func (h *herd) logged(ctx context.Context, do func() error) (float64, error) {
	before, err := one[float64](ctx, h.pool, walPosition)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := one[float64](ctx, h.pool, walPosition)
	return after - before, err
}

// told reads the statistics of tables, once all the heartbeats are in them.
func (h *herd) told(ctx context.Context, cost *beatCost, beats int) error {
	err := untilTrue(ctx, h.pool, "statistics of all heartbeats",
		"SELECT n_tup_upd >= $1 FROM pg_stat_user_tables WHERE relname = 'clients'", beats)
	if err != nil {
		return err
	}
	written, err := one[int](ctx, h.pool, rowsWritten)
	if err != nil {
		return err
	}
	cost.rows = float64(written-h.written) / float64(beats)
	cost.hot, err = one[float64](ctx, h.pool,
		"SELECT n_tup_hot_upd::float8 / n_tup_upd FROM pg_stat_user_tables WHERE relname = 'clients'")
	return err
}

// bare returns how many bytes of WAL a bare UPDATE of one row writes.
func (h *herd) bare(ctx context.Context) (float64, error) {
	const updates = 320
	b, err := newBareUpdates(ctx, h.pool, h.url)
	if err != nil {
		return 0, err
	}
	defer b.close()
	some := func() error { return spread(ctx, beatConnections, updates, b.asynchronous) }
	if err := some(); err != nil {
		return 0, err
	}
	bytes, err := h.logged(ctx, some)
	return bytes / updates, err
}

// flushed returns how often the server had its log flushed. From 18 on that is told elsewhere.
func flushed(ctx context.Context, pool *pgxpool.Pool) (int, error) {
	version, err := one[int](ctx, pool, "SELECT current_setting('server_version_num')::int")
	if err != nil {
		return 0, err
	}
	if version < 180000 {
		return one[int](ctx, pool, "SELECT wal_sync FROM pg_stat_wal")
	}
	return one[int](ctx, pool, "SELECT coalesce(sum(fsyncs), 0)::int FROM pg_stat_io WHERE object = 'wal'")
}

// postmasterOf returns the process id of the server.
func postmasterOf(ctx context.Context, pool *pgxpool.Pool) (int, error) {
	return one[int](ctx, pool, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int")
}

// A load is what a connection does again and again; turn counts from 0.
type load struct {
	name string
	do   func(ctx context.Context, connection, turn int) error
}

// throughput has all connections at it for a while, and returns how often in a second.
func throughput(ctx context.Context, connections int, span time.Duration, do func(ctx context.Context, connection, turn int) error) (float64, error) {
	began := time.Now()
	var done atomic.Int64
	err := together(connections, func(connection int) error {
		for turn := 0; time.Since(began) < span; turn++ {
			if err := do(ctx, connection, turn); err != nil {
				return err
			}
			done.Add(1)
		}
		return nil
	})
	return float64(done.Load()) / time.Since(began).Seconds(), err
}

// spread does something so many times in all.
func spread(ctx context.Context, connections, n int, do func(ctx context.Context, connection, turn int) error) error {
	return together(connections, func(connection int) error {
		for turn := range n / connections {
			if err := do(ctx, connection, turn); err != nil {
				return err
			}
		}
		return nil
	})
}

// together runs one goroutine for each connection, and waits for all.
func together(connections int, do func(connection int) error) error {
	errs := make([]error, connections)
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
