package main

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
)

// measureGuard compares a transaction that writes a row with the same one under Guard.
func measureGuard(ctx context.Context, l *lab, out *part) error {
	url, drop, err := newDatabase(ctx, l.durable)
	if err != nil {
		return err
	}
	defer drop()
	m, err := join(ctx, member{url: url, id: "writer", lease: "work", partitions: 16})
	if err != nil {
		return err
	}
	defer m.close()
	if err := m.Wait(ctx); err != nil {
		return err
	}
	p, _ := m.Partition(m.Values()[0])
	var trips tripCounter
	pool, err := trips.pool(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE account AS SELECT 1 AS id, 0 AS balance"); err != nil {
		return err
	}
	g := &guarded{pool: pool, lease: m.Lease, partition: p}
	if err := g.take(ctx, l.pick(20, 2000)); err != nil {
		return err
	}
	bare, err := trips.of(func() error { return g.transaction(ctx, false) })
	if err != nil {
		return err
	}
	with, err := trips.of(func() error { return g.transaction(ctx, true) })
	if err != nil {
		return err
	}
	g.tell(out, bare, with)
	return nil
}

type guarded struct {
	pool      *pgxpool.Pool
	lease     *pgleases.Lease
	partition pgleases.Partition

	without, with, trip []time.Duration
}

// take times both transactions and a round trip, in turns.
func (g *guarded) take(ctx context.Context, n int) error {
	timed := func(to *[]time.Duration, do func() error) error {
		began := time.Now()
		err := do()
		*to = append(*to, time.Since(began))
		return err
	}
	for range n {
		if err := timed(&g.without, func() error { return g.transaction(ctx, false) }); err != nil {
			return err
		}
		if err := timed(&g.with, func() error { return g.transaction(ctx, true) }); err != nil {
			return err
		}
		if err := timed(&g.trip, func() error { _, err := g.pool.Exec(ctx, "SELECT 1"); return err }); err != nil {
			return err
		}
	}
	return nil
}

func (g *guarded) transaction(ctx context.Context, guard bool) error {
	return pgx.BeginFunc(ctx, g.pool, func(tx pgx.Tx) error {
		if guard {
			if err := g.lease.Guard(ctx, tx, g.partition); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "UPDATE account SET balance = balance + 1 WHERE id = 1")
		return err
	})
}

func (g *guarded) tell(out *part, bare, with int64) {
	trip, without, took := median(g.trip), median(g.without), median(g.with)
	out.add(row{
		what:   "a transaction of one `UPDATE`, with `Guard`",
		figure: fmt.Sprintf("%s, %d round trips", duration(took), with),
		floors: []floor{
			{"the same without", fmt.Sprintf("%s, %d round trips", duration(without), bare), times(float64(took) / float64(without))},
			{"`SELECT 1`", duration(trip), fmt.Sprintf("%s more", times(float64(took-without)/float64(trip)))},
		},
		goal: "<= 1 round trip more",
		met:  judge(with-bare <= 1),
	})
	out.note("Medians of %s of each, in turns. The round trips are counted on the connection.", grouped(len(g.with)))
}

// tripCounter counts how often something was sent after something was received.
type tripCounter struct {
	n       atomic.Int64
	sending atomic.Bool
}

// pool returns a pool of one connection whose round trips are counted.
func (t *tripCounter) pool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 1
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &countedConn{conn, t}, err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// of returns how many round trips something takes.
func (t *tripCounter) of(do func() error) (int64, error) {
	before := t.n.Load()
	err := do()
	return t.n.Load() - before, err
}

type countedConn struct {
	net.Conn
	trips *tripCounter
}

func (c *countedConn) Write(b []byte) (int, error) {
	if !c.trips.sending.Swap(true) {
		c.trips.n.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.trips.sending.Store(false)
	}
	return n, err
}
