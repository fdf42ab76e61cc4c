package fakestore

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrEnded is the error of a connection that has ended, and of a server that is down.
var ErrEnded = errors.New("the connection has ended")

// A Conn is a connection. Its methods are those of *store.Conn, one for each statement of the
// protocol.
type Conn struct {
	// Carry, if set, carries a statement to the database, by execute on this connection or another,
	// and the answer back. If it is nil, the answer is nil. Statements of locks have no name and are
	// not carried.
	Carry func(ctx context.Context, name string, execute func(on *Conn) (any, error)) (any, error)

	db    *Database
	notes chan struct{} // of capacity one
	ended chan struct{} // closed when the connection ends
	once  sync.Once

	listen  bool    // guarded by db.mu, as the fields below
	session int64   // the session that was last registered or renewed here
	locks   int64   // the session whose grants are notified here; 0: no session
	granted []int64 // the nonces of grants that were not read yet
}

// Connect opens a connection.
func (db *Database) Connect() (*Conn, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.down {
		return nil, fmt.Errorf("the server is down: %w", ErrEnded)
	}
	c := &Conn{db: db, notes: make(chan struct{}, 1), ended: make(chan struct{})}
	db.conns[c] = struct{}{}
	return c, nil
}

// end breaks the connection.
func (c *Conn) end() { c.once.Do(func() { close(c.ended) }) }

// Ended is closed when the connection has ended.
func (c *Conn) Ended() <-chan struct{} { return c.ended }

// Close ends the connection.
func (c *Conn) Close() {
	c.end()
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	delete(c.db.conns, c)
}

// Closed reports whether the connection has ended.
func (c *Conn) Closed() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// A statement returns its answer, and whether it has written a row.
type statement[T any] func(db *Database, t *Tables, clock int64) (answer T, wrote bool)

// execute runs a statement.
func execute[T any](
	ctx context.Context, c *Conn, name string, durable bool, s statement[T],
) (answer T, err error) {
	if c.Carry == nil || name == "" {
		return executeOn(ctx, c, durable, s)
	}
	carried, err := c.Carry(ctx, name, func(on *Conn) (any, error) {
		return executeOn(context.Background(), on, durable, s)
	})
	if carried != nil {
		answer = carried.(T)
	}
	return answer, err
}

func executeOn[T any](ctx context.Context, c *Conn, durable bool, s statement[T]) (T, error) {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	var none T
	switch {
	case c.Closed():
		return none, ErrEnded
	case ctx.Err() != nil:
		return none, context.Cause(ctx)
	}
	answer, wrote := s(c.db, &c.db.tables, c.db.clock())
	if wrote {
		c.db.wrote(durable)
	}
	return answer, nil
}

// Listen listens for notifications, which always arrive.
func (c *Conn) Listen(ctx context.Context) (bool, error) {
	return execute(ctx, c, "listen", false, func(*Database, *Tables, int64) (bool, bool) {
		c.listen = true
		return true, false
	})
}

// Prepare has no effect: there are no plans.
func (c *Conn) Prepare(ctx context.Context) error {
	_, err := execute(ctx, c, "prepare", false, func(*Database, *Tables, int64) (struct{}, bool) {
		return struct{}{}, false
	})
	return err
}

// Wait waits for a notification for the session that was last registered or renewed on this
// connection.
func (c *Conn) Wait(ctx context.Context) error {
	select {
	case <-c.notes:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ended:
		return ErrEnded
	}
}

// Notify notifies sessions that something changed for them, as a statement does when it commits.
func (db *Database) Notify(sessions ...int64) {
	db.mu.Lock()
	defer db.mu.Unlock()
	concerned := make(map[int64]bool)
	for _, s := range sessions {
		concerned[s] = true
	}
	db.notify(concerned)
}

func (db *Database) notify(sessions map[int64]bool) {
	for c := range db.conns {
		if c.listen && (sessions[c.session] || len(sessions) > 100) { // this many are notified with "all"
			c.wake()
		}
	}
}

// wake ends a Wait.
func (c *Conn) wake() {
	select {
	case c.notes <- struct{}{}:
	default: // it is notified already
	}
}
