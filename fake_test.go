package pgleases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/store"
)

// A fault is what happens to a statement on its way to the database and back.
type fault struct {
	before, after time.Duration // on the way there and back
	err           error         // in place of an answer
	applied       bool          // it was executed all the same
	broken        bool          // the connection is gone with it
	late          bool          // it is executed also when its context ends on the way there
	survives      bool          // the connection survives the end of a statement's context
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
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if !wait(ctx, nil, f.before+f.after) {
		return nil, context.Cause(ctx)
	}
	if f.err != nil {
		return nil, f.err
	}
	c, err := w.db.Connect()
	if err != nil {
		return nil, err
	}
	conn := &faultyConn{c, w, client}
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

// call sends a statement, and has the world look once it was executed.
func call[T any](ctx context.Context, c *faultyConn, op string, statement func(context.Context, *fakestore.Conn) (T, error)) (T, error) {
	var none T
	if c.Closed() {
		return none, errBroken
	}
	ft := c.w.faults(c.client, op)
	timeline := c.w.db.Run().Timeline
	execute := func(conn *fakestore.Conn) (T, error) {
		answer, err := statement(context.Background(), conn)
		if err == nil {
			c.w.executed(c.client, op, answer)
		}
		return answer, err
	}
	sent := time.Now()
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
		return none, c.givenUp(ctx, ft)
	}
	if ft.err != nil && !ft.applied {
		if ft.broken {
			c.Conn.Close()
		}
		return none, ft.err
	}
	answer, err := execute(c.Conn)
	if err != nil {
		return none, err
	}
	if !wait(ctx, c.Ended(), ft.after) {
		return none, c.givenUp(ctx, ft)
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
	return fmt.Errorf("statement cancelled: %w", context.Cause(ctx))
}

func (c *faultyConn) Register(ctx context.Context, r store.Registration) (int64, *store.Process, error) {
	type answer struct {
		incarnation int64
		newer       *store.Process
	}
	a, err := call(ctx, c, "register", func(ctx context.Context, conn *fakestore.Conn) (answer, error) {
		incarnation, newer, err := conn.Register(ctx, r)
		if incarnation != 0 {
			c.w.renewed(r.Session)
		}
		return answer{incarnation, newer}, err
	})
	return a.incarnation, a.newer, err
}

func (c *faultyConn) Superseder(ctx context.Context, id string) (*store.Process, error) {
	return call(ctx, c, "superseder", func(ctx context.Context, conn *fakestore.Conn) (*store.Process, error) {
		return conn.Superseder(ctx, id)
	})
}

func (c *faultyConn) Heartbeat(ctx context.Context, session int64, watched time.Duration, last store.Renewal) (store.Beat, error) {
	return call(ctx, c, "heartbeat", func(ctx context.Context, conn *fakestore.Conn) (store.Beat, error) {
		beat, err := conn.Heartbeat(ctx, session, watched, last)
		if beat.Alive {
			c.w.renewed(session)
		}
		return beat, err
	})
}

func (c *faultyConn) Mark(ctx context.Context, mark int64) error {
	_, err := call(ctx, c, "mark", func(ctx context.Context, conn *fakestore.Conn) (struct{}, error) {
		return struct{}{}, conn.Mark(ctx, mark)
	})
	return err
}

func (c *faultyConn) Settle(ctx context.Context, watched time.Duration, run store.Run, era int64) (int64, error) {
	return call(ctx, c, "settle", func(ctx context.Context, conn *fakestore.Conn) (int64, error) {
		return conn.Settle(ctx, watched, run, era)
	})
}

func (c *faultyConn) Unsettle(ctx context.Context, era int64) error {
	_, err := call(ctx, c, "unsettle", func(ctx context.Context, conn *fakestore.Conn) (struct{}, error) {
		return struct{}{}, conn.Unsettle(ctx, era)
	})
	return err
}

func (c *faultyConn) End(ctx context.Context, session int64) (bool, error) {
	return call(ctx, c, "end", func(ctx context.Context, conn *fakestore.Conn) (bool, error) {
		return conn.End(ctx, session)
	})
}

func (c *faultyConn) Join(ctx context.Context, session int64, lease string, partitions, weight int, number int64) (store.Join, error) {
	return call(ctx, c, "join", func(ctx context.Context, conn *fakestore.Conn) (store.Join, error) {
		return conn.Join(ctx, session, lease, partitions, weight, number)
	})
}

func (c *faultyConn) SetWeight(ctx context.Context, session int64, lease string, weight int) (bool, error) {
	return call(ctx, c, "weight", func(ctx context.Context, conn *fakestore.Conn) (bool, error) {
		return conn.SetWeight(ctx, session, lease, weight)
	})
}

func (c *faultyConn) Read(ctx context.Context, session int64, leases []string) ([]store.LeaseRead, error) {
	return call(ctx, c, "read", func(ctx context.Context, conn *fakestore.Conn) ([]store.LeaseRead, error) {
		return conn.Read(ctx, session, leases)
	})
}

func (c *faultyConn) Release(ctx context.Context, session int64, releases []store.Release, leaving []store.Leave, lastJoin int64) (store.Released, error) {
	return call(ctx, c, "release", func(ctx context.Context, conn *fakestore.Conn) (store.Released, error) {
		return conn.Release(ctx, session, releases, leaving, lastJoin)
	})
}

func (c *faultyConn) Announce(ctx context.Context, leases []string, sessions []int64) error {
	_, err := call(ctx, c, "announce", func(ctx context.Context, conn *fakestore.Conn) (struct{}, error) {
		return struct{}{}, conn.Announce(ctx, leases, sessions)
	})
	return err
}

func (c *faultyConn) Fence(ctx context.Context, session int64, busy []store.Release) error {
	_, err := call(ctx, c, "fence", func(ctx context.Context, conn *fakestore.Conn) (struct{}, error) {
		return struct{}{}, conn.Fence(ctx, session, busy)
	})
	return err
}

func (c *faultyConn) Evict(ctx context.Context, cutoff int64, watched, ttl time.Duration, run store.Run) (store.Evicted, error) {
	return call(ctx, c, "evict", func(ctx context.Context, conn *fakestore.Conn) (store.Evicted, error) {
		return conn.Evict(ctx, cutoff, watched, ttl, run)
	})
}

func (c *faultyConn) Tidy(ctx context.Context) ([]string, error) {
	return call(ctx, c, "tidy", func(ctx context.Context, conn *fakestore.Conn) ([]string, error) {
		return conn.Tidy(ctx)
	})
}

func (c *faultyConn) Claim(ctx context.Context, leases []string) ([]string, error) {
	return call(ctx, c, "claim", func(ctx context.Context, conn *fakestore.Conn) ([]string, error) {
		return conn.Claim(ctx, leases)
	})
}

func (c *faultyConn) Plan(ctx context.Context, leases []string, alone bool) ([]store.LeasePlan, error) {
	return call(ctx, c, "plan", func(ctx context.Context, conn *fakestore.Conn) ([]store.LeasePlan, error) {
		return conn.Plan(ctx, leases, alone)
	})
}

func (c *faultyConn) Apply(ctx context.Context, plan []store.LeasePlan, moves []store.Move, again time.Duration) (store.Applied, error) {
	return call(ctx, c, "apply", func(ctx context.Context, conn *fakestore.Conn) (store.Applied, error) {
		return conn.Apply(ctx, plan, moves, again)
	})
}

func (c *faultyConn) Prepare(ctx context.Context) error {
	_, err := call(ctx, c, "prepare", func(ctx context.Context, conn *fakestore.Conn) (struct{}, error) {
		return struct{}{}, conn.Prepare(ctx)
	})
	return err
}

func (c *faultyConn) Listen(ctx context.Context, probe int64) (bool, error) {
	return call(ctx, c, "listen", func(ctx context.Context, conn *fakestore.Conn) (bool, error) {
		return conn.Listen(ctx, probe)
	})
}
