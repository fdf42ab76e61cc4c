package main

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// measureGuard compares a transaction that writes a row with the same transaction under Guard.
func measureGuard(ctx context.Context, l *lab, out *part) {
	g := l.newGroup(ctx, l.durable, 1, 16, 0, nil)
	defer g.end()
	g.all(ctx, "CREATE TABLE public.account AS SELECT 1 AS id, 0 AS balance")
	var writes atomic.Int64
	pool := countedPool(ctx, g.url, &writes)
	defer pool.Close()
	lease := g.members[0].Lease
	partition, _ := lease.Partition(lease.Values()[0])
	transaction := func(guard bool) func() {
		return func() {
			check(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if guard {
					check(lease.Guard(ctx, tx, partition))
				}
				_, err := tx.Exec(ctx, "UPDATE public.account SET balance = balance + 1 WHERE id = 1")
				return err
			}))
		}
	}
	took := l.alternate(2000, timed("", transaction(true)), timed("without", transaction(false)))
	out.compare("a transaction of one `UPDATE`, with `Guard`", took[0], took[1:]...)
	trips := func(do func()) sample {
		before := writes.Load()
		do()
		return sample{"without", []float64{float64(writes.Load() - before)}, significant}
	}
	with, without := trips(transaction(true)), trips(transaction(false))
	out.compare("its round trips, counted on the connection", with, without).
		goal("<= 1 more", with.values[0]-without.values[0] <= 1)
}

// countedPool returns a pool of one connection that counts its writes: one per round trip, once
// statements are prepared.
func countedPool(ctx context.Context, url string, writes *atomic.Int64) *pgxpool.Pool {
	config := must(pgxpool.ParseConfig(url))
	config.MaxConns = 1
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &countedConn{conn, writes}, err
	}
	return must(pgxpool.NewWithConfig(ctx, config))
}

type countedConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}
