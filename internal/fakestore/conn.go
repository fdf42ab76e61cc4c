package fakestore

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrEnded is what a connection that has ended says, and a server that is down.
var ErrEnded = errors.New("the connection has ended")

// A Conn is a connection. Its methods are those of *store.Conn, one for each statement of the
// protocol.
type Conn struct {
	// Carry, where it is set, brings a statement to the database, by execute on this connection or
	// another, and the answer back; else nil is answered. Those of locks have no name and are not
	// carried.
	Carry func(ctx context.Context, name string, execute func(on *Conn) (any, error)) (any, error)

	db    *Database
	notes chan struct{} // of capacity one
	ended chan struct{} // closed when the connection is
	once  sync.Once

	listen  bool    // guarded by db.mu, as what follows
	session int64   // the last that was registered or renewed here
	locks   int64   // the session whose grants are told here; 0: none
	granted []int64 // the nonces of those that were not read yet
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

// Closed reports whether the connection is of no more use.
func (c *Conn) Closed() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// execute runs a statement, which reports whether it has written anything.
func execute[T any](ctx context.Context, c *Conn, name string, durable bool, statement func(db *Database, t *Tables, clock int64) (T, bool)) (answer T, err error) {
	if c.Carry == nil || name == "" {
		return executeOn(ctx, c, durable, statement)
	}
	carried, err := c.Carry(ctx, name, func(on *Conn) (any, error) { return executeOn(context.Background(), on, durable, statement) })
	if carried != nil {
		answer = carried.(T)
	}
	return answer, err
}

func executeOn[T any](ctx context.Context, c *Conn, durable bool, statement func(db *Database, t *Tables, clock int64) (T, bool)) (T, error) {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	var none T
	switch {
	case c.Closed():
		return none, ErrEnded
	case ctx.Err() != nil:
		return none, context.Cause(ctx)
	}
	answer, wrote := statement(c.db, &c.db.tables, c.db.clock())
	if wrote {
		c.db.wrote(durable)
	}
	return answer, nil
}

// Listen listens for notifications, which arrive.
func (c *Conn) Listen(ctx context.Context) (bool, error) {
	return execute(ctx, c, "listen", false, func(*Database, *Tables, int64) (bool, bool) {
		c.listen = true
		return true, false
	})
}

// Prepare does nothing: there are no plans.
func (c *Conn) Prepare(ctx context.Context) error {
	_, err := execute(ctx, c, "prepare", false, func(*Database, *Tables, int64) (struct{}, bool) { return struct{}{}, false })
	return err
}

// Wait waits for a notification that concerns the session which was last registered or renewed on
// this connection.
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

// Notify tells sessions that something changed for them, as a statement does when it commits.
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
		if c.listen && (sessions[c.session] || len(sessions) > 100) { // so many are told as "all"
			c.wake()
		}
	}
}

// wake ends a Wait.
func (c *Conn) wake() {
	select {
	case c.notes <- struct{}{}:
	default: // it is told already
	}
}
