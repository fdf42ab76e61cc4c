package engine

import (
	"context"
	"errors"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// What the tests of whole clients on a double have of an engine.

const (
	RetryMin   = retryMin
	CloseGrace = closeGrace
	MinBatch   = minBatch
	MaxBatch   = maxBatch
)

// do makes the client's goroutine run f, and waits for that.
func (c *Client) do(f func(e *engine)) {
	_, _ = requestAnswer(context.Background(), c, func(e *engine, done chan<- struct{}) {
		f(e)
		done <- struct{}{}
	})
}

func (c *Client) TTL() time.Duration { return c.config.TTL }

// Batches sets how many partitions one statement moves or releases at most.
func (c *Client) Batches(n int) { c.do(func(e *engine) { e.plans.batch, e.releases.batch = n, n }) }

// Freeze stops the client's goroutine for a time.
func (c *Client) Freeze(d time.Duration) { c.do(func(*engine) { time.Sleep(d) }) }

// PassWallLimit makes the trust deadline pass on the wall clock.
func (c *Client) PassWallLimit() { c.do(func(e *engine) { e.trust.wallLimit = time.Now() }) }

// EndAtReader is a reader that sees the deadline pass before the answer to a heartbeat is taken.
func (c *Client) EndAtReader() {
	c.do(func(e *engine) {
		e.trust.validity.End()
		e.earnTrust(time.Now())
	})
}

// deafConn is a connection on which waiting fails, though it stays open.
type deafConn struct {
	Conn
	err error
}

func (c deafConn) Wait(context.Context) error { return c.err }

// Deafen makes each wait for notifications fail.
func (c *Client) Deafen(err error) {
	c.do(func(e *engine) { e.connection.conn = deafConn{e.connection.conn, err} })
}

// WeightCalls returns how many calls of SetWeight wait.
func (c *Client) WeightCalls(lease string) (n int) {
	c.do(func(e *engine) { n = len(e.members.byName[lease].weightCalls) })
	return n
}

// JoinAbandoned takes the answer to a join whose caller has given up, while the lease was made.
func (c *Client) JoinAbandoned(lease string, partitions int) (err error) {
	c.do(func(e *engine) {
		m := e.members.add(lease, partitions, LeaseOptions{Weight: 1})
		m.reason = e.config.Errors.Closed
		m.become(stateLeft)
		err = e.joined(m, store.Join{Alive: true}, nil, 0, nil)
		if e.members.byName[lease] != nil {
			err = errors.Join(err, errors.New("the membership stays"))
		}
	})
	return err
}

// Copy returns a client that continues from the state of this one, as in a copy of its virtual
// machine: under the same session, on a connection of its own. It joins leases again.
func (c *Client) Copy(connect func(context.Context) (Conn, error)) (*Client, error) {
	first, err := connect(context.Background())
	if err != nil {
		return nil, err
	}
	config := c.config
	config.Connect = connect
	twin := newClient(config)
	e := newEngine(twin, first)
	c.do(func(of *engine) { e.session = of.session })
	e.session.beatNow()
	go e.run()
	return twin, nil
}
