package pgleases

import (
	"context"
	"math/rand/v2"
	"time"
)

// connection is the client's own connection, and what is known of it.
type connection struct {
	connect func(context.Context) (conn, error)
	conn    conn // nil: to be made
	known   bool // a heartbeat told to which server it leads

	probed    bool // it is known whether notifications arrive, or it cannot be found out
	listening bool // they arrive

	prepareAt time.Time // when to have the server make its plans for this connection; never: it was done, or is not worth it

	retry         time.Duration // at most so long until the next attempt to connect or to register
	retryAt       time.Time
	connectFailed bool // the last attempt to connect
}

// retryDue is when to connect or to register.
func (e *engine) retryDue(time.Time) time.Time { return e.connection.retryAt }

func (e *engine) beginConnect(time.Time) *operation {
	connect := func(ctx context.Context, _ conn) (conn, error) { return e.connection.connect(ctx) }
	return ask(time.Hour, connect, func(c conn, err error) {
		e.connection.connectFailed = err != nil
		if err != nil {
			e.connection.backOff(e.options)
			return
		}
		e.connected(c)
		e.connection.known = false
		e.session.beatNow()
		clear(e.agenda.pauses)
		e.stats.Reconnects++
	})
}

func (e *engine) disconnect() {
	e.endLifeline()
	e.connection.conn.Close()
	e.connection.conn, e.connection.probed, e.connection.listening, e.connection.prepareAt = nil, false, false, never
	e.locks.listened = 0
	e.connection.backOff(e.options)
}

// backOff spaces attempts to connect and to register. The first one comes at once.
func (c *connection) backOff(o options) {
	c.retryAt = time.Now().Add(rand.N(c.retry + 1))
	c.retry = min(max(2*c.retry, retryMin), max(o.heartbeat/2, retryMin))
}

func (e *engine) listenDue(time.Time) time.Time {
	return atOnceIf(!e.connection.probed && !e.options.polling)
}

func (e *engine) beginListen(time.Time) *operation {
	listen := func(ctx context.Context, c conn) (bool, error) { return c.Listen(ctx, randomID()) }
	return ask(e.limit(), listen, func(arrives bool, err error) {
		if err != nil {
			e.connection.probed = !e.connection.conn.Closed() // polling goes on until the next connection
			return
		}
		e.connection.probed, e.connection.listening = true, arrives
		if arrives {
			e.connection.prepareAt = time.Now().Add(rand.N(preparing * time.Duration(max(e.check.sessions, 1))))
		} else {
			e.client.log.Info("pgleases: notifications do not arrive, as behind a connection pooler: polling at the heartbeat")
		}
		e.readAll() // what changed before it listened
	})
}

// preparing is what Prepare costs the server. Where there are many clients, they do not have it prepare for all of them at once.
const preparing = 15 * time.Millisecond

func (e *engine) prepareDue(time.Time) time.Time { return e.connection.prepareAt }

// beginPrepare has the server plan what it will do for this connection when partitions are handed over, so that nobody has to wait
// for that then. Behind a pooler no connection of the server is the client's own.
func (e *engine) beginPrepare(time.Time) *operation {
	return tell(e.limit(), func(ctx context.Context, c conn) error { return c.Prepare(ctx) }, func(err error) {
		if err == nil {
			e.connection.prepareAt = never
		}
	})
}

// beginWait waits for a notification until a duty is due.
func (e *engine) beginWait(time.Time) *operation {
	return &operation{limit: time.Hour, call: func(ctx context.Context, c conn) func(error) error {
		err := c.Wait(ctx)
		return func(cancelled error) error {
			switch {
			case err == nil && e.heardGrants(c):
			case err == nil:
				e.readAll()
				e.failover.lookAt = atOnce
			case cancelled != nil && !c.Closed():
				return nil
			}
			return err
		}
	}}
}
