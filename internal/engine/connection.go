package engine

import (
	"math/rand/v2"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/when"
)

// connection is the client's own connection, and what is known about it.
type connection struct {
	conn  Conn // while it is open
	known bool // a heartbeat returned which server it leads to

	probed    bool // whether notifications arrive is known, or cannot be found out
	listening bool // notifications arrive

	prepareAt time.Time // when to make the server plan for this connection, or never

	retry   time.Duration // the longest pause before the next attempt to connect or to register
	retryAt time.Time
	failed  bool // the last attempt to connect failed
}

// open reports whether there is a connection.
func (c *connection) open() bool { return c.conn != nil }

// preparing is the server's time for a Prepare. Many clients spread theirs.
const preparing = 15 * time.Millisecond

// connected takes a new connection.
func (c *connection) connected(conn Conn) { c.conn, c.known, c.failed = conn, false, false }

// closingAtMost is how long a close may take. The network connection may be one of the
// application's DialFunc, and hang.
const closingAtMost = 200 * time.Millisecond

// close closes the connection.
func (c *connection) close() {
	conn, closed := c.conn, make(chan struct{})
	go func() {
		defer close(closed)
		closeQuietly(conn)
	}()
	late := time.NewTimer(closingAtMost)
	defer late.Stop()
	select {
	case <-closed:
	case <-late.C:
	}
	c.conn, c.prepareAt = nil, when.Never
	c.probed, c.listening = false, false
}

// closeQuietly closes a connection. Functions of the application run in it, for example of a
// connection that its DialFunc has made: it is given up, whatever they do.
func closeQuietly(conn Conn) {
	_ = handlers.Call(func() error {
		conn.Close()
		return nil
	})
}

// backOff spaces attempts to connect and to register. The first attempt is immediate.
func (c *connection) backOff(heartbeat time.Duration) {
	c.retryAt = time.Now().Add(rand.N(c.retry + 1))
	c.retry = min(max(2*c.retry, retryMin), max(heartbeat/2, retryMin))
}

// listened notes whether notifications arrive. If they do not, or if that cannot be found out, the
// client polls until the next connection.
func (c *connection) listened(arrives bool, err error, clients int64) {
	c.probed, c.listening = err == nil || !c.conn.Closed(), arrives
	if arrives {
		c.prepareAt = time.Now().Add(rand.N(preparing * time.Duration(max(clients, 1))))
	}
}
