package engine

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/locks"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

const (
	// closeGrace is how long Close and Leave continue to release what is free after their ctx
	// ended.
	closeGrace = 2 * time.Second
	// closeAtMost is how long Close waits after its ctx ended. It is longer than the bounds of what
	// the client does by then: it releases what is free (closeGrace), waits for its last statement
	// (closeGrace), and for the last lines of its log (logqueue.FlushFor).
	closeAtMost = 3 * closeGrace
)

// A Client is an engine for other goroutines: they send it requests, and read what it publishes.
// All methods are safe for concurrent use.
type Client struct {
	Locks *locks.Session
	Line  worker.Line // of the pools that the application uses with this client

	config    Config
	guard     string // the statement of Guard
	requests  mailbox
	wake      chan struct{} // of capacity one: wake-ups coalesce
	stats     atomic.Pointer[Stats]
	counts    counts // of all leases
	callbacks callbacks
	leases    sync.Map // the *Lease by name, of those with stats of their own

	done     chan struct{}
	err      error // why it ended; set before done is closed
	closeErr error // what was left behind; set before done is closed
}

func newClient(config Config) *Client {
	return &Client{
		config: config, guard: store.StatementsFor(config.Schema).Guard,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// Start registers a client on its first connection, and starts its goroutine. It repeats what may
// succeed later until ctx ends. After an error no session and no goroutine remain.
func Start(ctx context.Context, first Conn, config Config) (*Client, error) {
	c := newClient(config)
	e := newEngine(c, first)
	if err := e.registerFirst(ctx); err != nil {
		if e.connection.open() {
			e.connection.close()
		}
		return nil, err
	}
	go e.run()
	if config.Double != nil {
		config.Double.Turn = func() {
			// An error says that the client has ended.
			_, _ = requestAnswer(context.Background(), c, func(_ *engine, done chan<- struct{}) { done <- struct{}{} })
		}
	}
	return c, nil
}

// Join joins a lease. It returns the same Lease if the client has joined it already.
func (c *Client) Join(ctx context.Context, name string, partitions int, o LeaseOptions) (*Lease, error) {
	j := &joinCall{name: name, partitions: partitions, options: o}
	refused, err := requestAnswer(ctx, c, func(e *engine, answer chan<- error) {
		j.done = answer
		e.members.join(j)
	})
	err = cmp.Or(err, refused)
	if err != nil {
		c.post(func(e *engine) { e.abandon(j) })
		return nil, err
	}
	return j.lease, nil
}

// ID returns the client's ID.
func (c *Client) ID() string { return c.config.ClientID }

// Log returns the client's logger.
func (c *Client) Log() *slog.Logger { return c.config.Log }

// Done returns a channel that is closed when the client has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the client ended; nil: it has not ended.
func (c *Client) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Stats returns the client's numbers as of its last loop.
func (c *Client) Stats() Stats {
	s := *c.stats.Load()
	s.LeaseStats = c.counts.addTo(s.LeaseStats)
	return s
}

// Leases returns the leases, in no order. One that has ended is among them until the work on its
// partitions has ended.
func (c *Client) Leases() iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		c.leases.Range(func(_, l any) bool { return yield(l.(*Lease)) })
	}
}

// Close ends the client, and waits for the work on what it owns until ctx ends. It returns what was
// left behind. In a callback that runs in Within, it returns at once with an error. If the client is
// to come back, its partitions wait for it in leases with a restart grace.
func (c *Client) Close(ctx context.Context, returns bool) error {
	_, patient := ctx.Deadline()
	c.post(func(e *engine) {
		if !e.closing.ends() {
			e.closing.returns = returns
		}
		e.closing.patient = e.closing.patient || patient
		e.close(e.config.Errors.Closed)
	})
	if err := c.callbacks.of(); err != nil {
		return err
	}
	select {
	case <-c.done:
		return c.closeErr
	case <-ctx.Done():
	}
	c.post(func(e *engine) { e.closing.hurry(context.Cause(ctx), time.Now()) })
	select {
	case <-c.done:
		return c.closeErr
	case <-time.After(closeAtMost):
		return wrap.Errorf("pgleases: close: the client has not ended %v after ctx: %w",
			closeAtMost, context.Cause(ctx))
	}
}

// Beat waits until the next heartbeat was answered. With atOnce it sends that heartbeat now.
func (c *Client) Beat(ctx context.Context, atOnce bool) error {
	answered, err := requestAnswer(ctx, c, func(e *engine, answer chan<- (<-chan struct{})) {
		answer <- e.locks.NextBeat()
		if atOnce {
			e.session.beatNow()
		}
	})
	if err == nil {
		_, err = locks.Answer(ctx, c.done, c.Err, answered)
	}
	return err
}

// LockTable returns where package lock acquires locks; nil: there is no pool.
func (c *Client) LockTable(pool *pgxpool.Pool) locks.Table {
	switch double := c.config.Double; {
	case double != nil:
		return double.Locks
	case pool == nil:
		return nil
	}
	c.Line.Add(pool)
	return &store.Locks{
		Statements: store.StatementsFor(c.config.Schema), LockWait: int(c.config.Heartbeat.Milliseconds()),
		OnConn: func(ctx, working context.Context, use func(context.Context, *pgx.Conn) error) error {
			return worker.Use(ctx, working, &c.Line, pool, func(alive context.Context, conn *pgxpool.Conn) error {
				return use(alive, conn.Conn())
			})
		},
	}
}

// Reaches returns an error if connections of a pool do not reach the client's session in a schema;
// "" is the client's schema. It is for everything that takes a client and a pool. It asks the
// database, because behind poolers addresses have no meaning.
func (c *Client) Reaches(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	if c.config.Double != nil {
		return nil
	}
	c.Line.Add(pool)
	schema = cmp.Or(schema, c.config.Schema)
	const refused = "the pool leads to another server, database or schema than the client's connection"
	for tries := 1; ; tries++ {
		session, err := requestAnswer(ctx, c, func(e *engine, answer chan<- int64) { answer <- e.session.number })
		if err != nil {
			return err
		}
		var database string
		var reached bool
		err = worker.Read(ctx, &c.Line, pool, func(ctx context.Context, conn *pgxpool.Conn) error {
			return conn.QueryRow(ctx, store.StatementsFor(schema).Reaches, session).Scan(&database, &reached)
		})
		switch {
		case store.Undefined(err):
			return fmt.Errorf(refused+": %w", err)
		case err != nil || reached:
			return err
		case tries > 2:
			return fmt.Errorf(refused+": schema %q of database %q has no session of client %q",
				schema, database, c.config.ClientID)
		}
		if err := c.Beat(ctx, true); err != nil { // the session may have been evicted
			return err
		}
	}
}

// A mailbox has the requests that the client's goroutine has not run yet. Any goroutine may add one
// without waiting, whatever the client's goroutine does.
type mailbox struct {
	mu    sync.Mutex
	posts []func(*engine)
}

// next takes the request that has waited longest, and reports whether there are more; nil: there is
// no request.
func (b *mailbox) next() (f func(*engine), more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.posts) == 0 {
		return nil, false
	}
	f = b.posts[0]
	b.posts[0] = nil // it must not live as long as the slice
	b.posts = b.posts[1:]
	return f, len(b.posts) > 0
}

// post makes the client's goroutine run f, after all that was posted before, unless the client ends
// first. It does not wait.
func (c *Client) post(f func(*engine)) {
	if c.Err() != nil {
		return
	}
	c.requests.mu.Lock()
	c.requests.posts = append(c.requests.posts, f)
	c.requests.mu.Unlock()
	c.wakeUp()
}

// requestAnswer posts a request that f, or a later step of the goroutine, answers once, and waits
// for the answer until ctx or the client ends.
func requestAnswer[T any](ctx context.Context, c *Client, f func(e *engine, answer chan<- T)) (T, error) {
	if ctx.Err() != nil {
		return *new(T), context.Cause(ctx)
	}
	from := make(chan T, 1)
	c.post(func(e *engine) { f(e, from) })
	return locks.Answer(ctx, c.done, c.Err, from)
}

// wakeUp makes the client's goroutine check its parts: work has ended, a lock is to be released, or
// the connection has ended.
func (c *Client) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default: // it is going to check already
	}
}
