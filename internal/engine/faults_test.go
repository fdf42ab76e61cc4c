package engine_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/store"
)

// A fault is a disturbance of a statement on its way to the database and back.
type fault struct {
	before, after time.Duration // on the way there and back
	err           error         // in place of an answer
	applied       bool          // it was executed anyway
	broken        bool          // the connection is gone with it
	late          bool          // it is executed also when its context ends on the way there
	survives      bool          // the connection survives the end of a statement's context
	deaf          time.Duration // a function of the application takes so long, whatever the context
	does          func()        // a function of the application; nil: there is none
}

var (
	errBroken = errors.New("connection broken")
	errLocked = &pgconn.PgError{Code: "55P03", Message: "canceling statement due to lock timeout"}
)

// A faultyConn is a client's connection to the world's database, through faults.
type faultyConn struct {
	*fakestore.Conn
	w      *world
	client string // name of the process
}

// connectTimeout is what a Connector gives one host, with the default heartbeat.
const connectTimeout = 2 * time.Second

// connect opens a connection of a client.
func (w *world) connect(ctx context.Context, client string) (*faultyConn, error) {
	f := w.faults(client, "connect")
	ctx, cancel := context.WithTimeout(ctx, scaled(connectTimeout))
	defer cancel()
	if !wait(ctx, nil, f.before+f.after) {
		return nil, context.Cause(ctx)
	}
	if f.does != nil {
		f.does()
	}
	if f.err != nil {
		return nil, f.err
	}
	c, err := w.db.Connect()
	if err != nil {
		return nil, err
	}
	conn := &faultyConn{c, w, client}
	c.Carry = conn.carry
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[conn] = struct{}{}
	return conn, nil
}

func (c *faultyConn) Close() {
	c.Conn.Close()
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	delete(c.w.conns, c)
}

// Fast failover needs these. No client of the world watches the locks of others.

func (c *faultyConn) OnEnd(f func()) {
	go func() {
		<-c.Ended()
		f()
	}()
}

func (*faultyConn) Severed() bool                                    { return false }
func (*faultyConn) HoldLiveness(context.Context, int64, int64) error { return nil }

func (*faultyConn) WatchLiveness(context.Context, int64, int64) (store.Liveness, error) {
	return store.Liveness{}, nil
}

func (*faultyConn) EvictDisconnected(
	context.Context, []store.Absence, store.SessionEnds, store.Incarnation,
) (store.Evicted, error) {
	return store.Evicted{}, nil
}

// wait waits; false: the context or the connection ended first.
func wait(ctx context.Context, ended <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-ended:
		return false
	default:
	}
	if d <= 0 {
		return true
	}
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-ended:
		return false
	}
}

// carry sends a statement, and has the world look once it was executed.
func (c *faultyConn) carry(ctx context.Context, op string, statement func(*fakestore.Conn) (any, error)) (any, error) {
	if c.Closed() {
		return nil, errBroken
	}
	ft := c.w.faults(c.client, op)
	timeline := c.w.db.Run().Timeline
	execute := func(conn *fakestore.Conn) (any, error) {
		answer, err := statement(conn)
		if err == nil {
			c.w.executed(c.client, op, answer)
		}
		return answer, err
	}
	sent := time.Now()
	time.Sleep(ft.deaf)
	if ft.does != nil {
		ft.does()
	}
	if !wait(ctx, c.Ended(), ft.before) {
		if rest := ft.before - time.Since(sent); ft.late && !ft.survives {
			go func() {
				time.Sleep(rest)
				if conn, err := c.w.db.Connect(); err == nil && c.w.db.Run().Timeline == timeline {
					_, _ = execute(conn)
					c.w.event("%s: %s arrived late", c.client, op)
					conn.Close()
				}
			}()
		}
		return nil, c.givenUp(ctx, ft)
	}
	if ft.err != nil && !ft.applied {
		if ft.broken {
			c.Conn.Close()
		}
		return nil, ft.err
	}
	answer, err := execute(c.Conn)
	if err != nil {
		return nil, err
	}
	if !wait(ctx, c.Ended(), ft.after) {
		return nil, c.givenUp(ctx, ft)
	}
	if ft.broken {
		c.Conn.Close()
	}
	return answer, ft.err
}

// givenUp is what a statement returns whose context or connection ended.
func (c *faultyConn) givenUp(ctx context.Context, ft fault) error {
	if c.Closed() {
		return errBroken
	}
	if !ft.survives {
		c.Conn.Close()
	}
	return fmt.Errorf("statement canceled: %w", context.Cause(ctx))
}
