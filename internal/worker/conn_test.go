package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/internal/worker"
)

// idle fills a pool with idle connections, and returns a set of them.
func idle(t testing.TB, pool *pgxpool.Pool) map[uint32]bool {
	t.Helper()
	of := make(map[uint32]bool)
	var conns []*pgxpool.Conn
	for range pool.Config().MaxConns {
		conn := testkit.Must(pool.Acquire(t.Context()))(t)
		of[conn.Conn().PgConn().PID()] = true
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		conn.Release()
	}
	return of
}

// All idle connections lead to a standby: the first work uses none of them, and they are gone.
func TestConnectionsToStandbyAreGivenUp(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t), func(c *pgxpool.Config) { c.MaxConns = 4 })
	refused := 0
	for name, standbys := range map[string]map[uint32]bool{"acquire": idle(t, pool), "use": idle(t, pool)} {
		begin := func(_ context.Context, conn *pgxpool.Conn) error {
			if standbys[conn.Conn().PgConn().PID()] {
				refused++
				return &pgconn.PgError{Code: "0A000", Message: "cannot set transaction read-write mode during recovery"}
			}
			return nil
		}
		if name == "use" {
			testkit.OK(t, worker.Use(t.Context(), t.Context(), nil, pool, begin))
			continue
		}
		_, release, err := worker.Acquire(t.Context(), nil, pool, time.Minute, begin)
		testkit.OK(t, err)
		release()
	}
	if refused != 4 {
		t.Errorf("%d connections were refused, not each once", refused)
	}
}

// A server that is a standby itself is no reason to try for ever.
func TestStandbyIsTriedForAWhileOnly(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t), func(c *pgxpool.Config) { c.MaxConns = 4 })
	idle(t, pool)
	tries := 0
	standby := func(context.Context, *pgxpool.Conn) error { tries++; return &pgconn.PgError{Code: "25006"} }
	err := worker.Use(t.Context(), t.Context(), nil, pool, standby)
	if worker.Whose(err) != worker.Standby || tries > 6 {
		t.Errorf("%v after %d tries", err, tries)
	}
}

// The error of a pool that is exhausted says so.
func TestExhaustedPoolIsNamed(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	conn := testkit.Must(pool.Acquire(t.Context()))(t)
	defer conn.Release()
	begin := func(context.Context, *pgxpool.Conn) error { return nil }
	_, release, err := worker.Acquire(t.Context(), nil, pool, 10*time.Millisecond, begin)
	release()
	const text = "the pool had no connection in time: context deadline exceeded"
	if err == nil || err.Error() != text || worker.Whose(err) != worker.Limit {
		t.Errorf("%v (%v), want %s", err, worker.Whose(err), text)
	}
}

// The server of all connections has gone silently. When the client has connected again, who waits for
// an answer begins anew, and idle connections are closed that do not answer.
func TestRenewalEndsSilence(t *testing.T) {
	t.Parallel()
	wire := new(testkit.Wire)
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t), wire.Carry, func(c *pgxpool.Config) { c.MaxConns = 2 })
	var line worker.Line
	line.Add(pool)
	silent := idle(t, pool)
	waits, began := make(chan bool, 1), make(chan error, 1)
	go func() {
		prepare := func(ctx context.Context, conn *pgxpool.Conn) error {
			if !silent[conn.Conn().PgConn().PID()] {
				return nil
			}
			waits <- true
			<-ctx.Done()
			_ = conn.Conn().Close(ctx)
			return ctx.Err()
		}
		_, release, err := worker.Acquire(t.Context(), &line, pool, time.Hour, prepare)
		release()
		began <- err
	}()
	testkit.Receive(t, "it waits for an answer", waits)
	wire.Mute("-- ping") // of the other connection
	line.Renewed()
	testkit.OK(t, testkit.Receive(t, "it has begun", began))
	testkit.Until(t, "no connection of before is left", func() bool {
		for _, conn := range pool.AcquireAllIdle(t.Context()) {
			old := silent[conn.Conn().PgConn().PID()]
			conn.Release()
			if old {
				return false
			}
		}
		return pool.Stat().AcquiredConns() == 0
	})
}

// All connections of a pool fall silent, idle ones and one in a transaction. After a renewal the pool
// has all its places again, although pgx waits for a silent server for 15 s.
func TestSilentConnectionsLeaveTheirPlaces(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, silentConnectionsLeaveTheirPlaces)
}

func silentConnectionsLeaveTheirPlaces(t *timeguard.Try) {
	wire := new(testkit.Wire)
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t), wire.Carry, func(c *pgxpool.Config) { c.MaxConns = 3 })
	var line worker.Line
	line.Add(pool)
	silent := idle(t, pool)
	calls, written := make(chan bool, 2), make(chan error, 1)
	go func() {
		written <- worker.InTx(t.Context(), nil, pool, func(ctx context.Context, tx pgx.Tx) error {
			if silent[tx.Conn().PgConn().PID()] {
				wire.Silence()
			}
			calls <- true
			_, err := tx.Exec(ctx, "SELECT")
			return err
		})
	}()
	testkit.Receive(t, "it is in a transaction", calls)
	again := time.Now()
	line.Renewed()
	testkit.OK(t, testkit.Receive(t, "it is written", written))
	for pid := range idle(t, pool) {
		if silent[pid] {
			t.Errorf("the pool still has connection %d", pid)
		}
	}
	if time.Since(again) > 5*time.Second {
		t.Missed(again, 5*time.Second, "the pool did not have all its places again")
	}
	wire.Cut() // otherwise the pool's end waits 15 s for the silent ones
}

// A hook of the pool sends a statement on a connection that has fallen silent. It ends with its
// context, so the search for silent connections gives all places back.
func TestHookOnASilentConnectionKeepsNoPlace(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t), func(c *pgxpool.Config) {
		c.MaxConns = 3
		c.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) {
			if silent.CompareAndSwap(true, false) {
				<-ctx.Done()
			}
			return ctx.Err() == nil, nil
		}
	})
	var line worker.Line
	line.Add(pool)
	idle(t, pool)
	silent.Store(true)
	line.Renewed()
	testkit.Until(t, "the hook waits for an answer", func() bool { return !silent.Load() })
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for range pool.Config().MaxConns {
		conn := testkit.Must(pool.Acquire(ctx))(t)
		defer conn.Release()
	}
}

// A caller that begins anew after a renewal may be faster than the search for silent connections. It
// must not wait for one of them.
func TestRenewalKeepsNoSilentConnection(t *testing.T) {
	t.Parallel()
	wire := new(testkit.Wire)
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t), wire.Carry, func(c *pgxpool.Config) { c.MaxConns = 3 })
	var line worker.Line // does not know the pool, so it searches no silent connections
	silent := idle(t, pool)
	wire.Silence()
	line.Renewed()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	testkit.OK(t, worker.InTx(ctx, &line, pool, func(ctx context.Context, tx pgx.Tx) error {
		if silent[tx.Conn().PgConn().PID()] {
			t.Error("the transaction has a connection that was silent before the renewal")
		}
		_, err := tx.Exec(ctx, "SELECT")
		return err
	}))
	wire.Cut() // otherwise the pool's end waits 15 s for the silent ones
}
