package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer/sql"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Consumer is one process of those that work through a queue table. All methods are safe for
// concurrent use.
type Consumer struct {
	client  *pgleases.Client
	pool    *pgxpool.Pool
	name    string
	source  Queue  // as the application gave it, with what was read from the table
	table   *table // what the database says about it
	handler *handler
	options options
	sql     statements
	log     *slog.Logger
	counts  counts
	times   timings
	running atomic.Bool

	announced bool // the table has the trigger that notifies
}

// leaseOf is the prefix of a lease's name, before the name of its consumer.
const leaseOf = "consumer/"

// New returns a Consumer of a queue table. Its name has 1 to 246 bytes of UTF-8 without NUL; the
// name of its lease is "consumer/" and this name. All processes that work on the table give the
// same name and queue. Client and pool must connect to one database; New closes neither. It creates
// or migrates the library's tables, unless [WithoutMigration] is given, and never changes the queue
// table. ctx covers this call only.
//
// New returns an error for an invalid option, and for a table that cannot be consumed safely; it
// says what to change. It also returns pgleases.ErrSchema, or an error of the database.
func New[T any](
	ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool,
	name string, queue Queue, h Handler[T], opts ...Option,
) (*Consumer, error) {
	o, err := newOptions(opts)
	nameErr := store.CheckName("lease of the consumer", leaseOf+name)
	if err := errors.Join(
		err,
		wrong(client == nil || pool == nil, "consumer: client or pool is nil"),
		wrong(nameErr != nil || name == "", "consumer: name %q: 1 to 246 bytes of UTF-8 without NUL", name),
	); err != nil {
		return nil, err
	}
	c := &Consumer{
		client:  client,
		pool:    pool,
		name:    name,
		source:  queue.withDefaults(),
		options: o,
		sql:     statementsFor(o.schema, strings.NewReplacer()),
		times:   defaultTimings,
		log:     o.log.With(slog.String("consumer", name)),
	}
	size := int(pool.Config().MaxConns)
	if o.limited && o.maxRunning >= size {
		return nil, fmt.Errorf(
			"consumer: %d batches at once need a pool of more than %d connections, not %d: see WithMaxRunning",
			o.maxRunning, o.maxRunning, size,
		)
	}
	err = bridge.Engine(client).Reaches(ctx, pool, o.schema)
	if err != nil {
		return nil, bridge.OpenError(ctx, "consumer", "new consumer", o.schema, err)
	}
	if o.noMigration {
		err = withConn(ctx, pool, "new consumer", o.schema, schemaPart.Fits)
	} else {
		err = Migrate(ctx, pool, WithSchema(o.schema))
	}
	if err != nil {
		return nil, err
	}
	if err = c.inspect(ctx, func(columns []string) (err error) {
		c.handler, err = untyped(h, columns)
		return err
	}); err != nil {
		return nil, wrap.Errorf("consumer: new consumer %q: %w", name, store.Advised(store.Caused(ctx, err)))
	}
	if c.table.Announces != "" && !c.announced {
		c.log.Warn("consumer: trigger announces another consumer, rows wait for the poll",
			slog.String("announces", c.table.Announces))
	}
	return c, nil
}

// inspect checks the table, and stores the consumer.
func (c *Consumer) inspect(ctx context.Context, fits func(columns []string) error) error {
	return worker.Read(ctx, nil, c.pool, func(ctx context.Context, conn *pgxpool.Conn) error {
		return c.inspectBy(ctx, conn, fits)
	})
}

// inspectBy is inspect on a connection. It may be called again with another one.
func (c *Consumer) inspectBy(ctx context.Context, conn *pgxpool.Conn, fits func(columns []string) error) error {
	t, q, err := c.sql.inspect(ctx, conn, c.name, c.source, c.options.ascending)
	if err != nil {
		return err
	}
	if err := fits(t.Columns); err != nil {
		return err
	}
	c.source, c.table = q, t
	c.sql = statementsFor(c.options.schema, namesIn(t, q, c.handler))
	c.announced = t.Announced
	if q.Key != "" && t.N == 0 { // otherwise generated from the key alone
		if err := c.findMisplaced(ctx, conn); err != nil {
			return err
		}
	}
	return pgx.BeginTxFunc(ctx, conn, handlers.ReadCommitted, func(tx pgx.Tx) error {
		return c.sql.register(ctx, tx, c.name, t, q)
	})
}

// findMisplaced returns an error if it finds a row whose partition is not that of its key.
func (c *Consumer) findMisplaced(ctx context.Context, conn *pgxpool.Conn) error {
	var id int64
	var stored, key string
	var wanted int
	n := c.source.Partitions
	err := conn.QueryRow(ctx, c.sql.Misplaced, n).Scan(&id, &stored, &key, &wanted)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("table %s: row %d with key %.100q is in partition %s, but partition_for(key, %d) is %d: "+
		"correct column %q first, or Partitions",
		c.table.Name, id, key, stored, n, wanted, c.source.Partition)
}

var schemaPart = store.PartOf("consumer", sql.Files)

// Migrate creates or updates the tables of package consumer, after those of the engine. It gives
// the same promises as pgleases.Migrate. Of the options only WithSchema counts.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	o, err := newOptions(opts)
	if err != nil {
		return err
	}
	if err := pgleases.Migrate(ctx, pool, pgleases.WithSchema(o.schema)); err != nil {
		return err
	}
	return withConn(ctx, pool, "migrate", o.schema, schemaPart.Migrate)
}

// Schema returns the DDL of Migrate, to run after that of pgleases.Schema, for goose, tern, Flyway
// and similar tools. Of the options only WithSchema counts.
func Schema(opts ...Option) (string, error) {
	o, err := newOptions(opts)
	if err != nil {
		return "", err
	}
	return schemaPart.DDL(o.schema), nil
}

// withConn calls f with a connection and the schema. doing is for an error.
func withConn(
	ctx context.Context, pool *pgxpool.Pool, doing, schema string,
	f func(context.Context, *pgx.Conn, string) error,
) error {
	err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return f(ctx, c.Conn(), schema) })
	return bridge.OpenError(ctx, "consumer", doing, schema, err)
}

// Name returns the consumer's name.
func (c *Consumer) Name() string { return c.name }

// Run handles rows until ctx ends. Then it takes no more rows, and finishes what is in hand within
// the lease's drain timeout. It hands over its partitions, and returns the cause of ctx, as Run of
// a lease does. It returns another error if it cannot join the lease, if the lease or the client
// ends before ctx, or if it finds the pool closed. A Consumer has one Run at a time, and a client
// runs one Consumer of a name at a time.
func (c *Consumer) Run(ctx context.Context) error { return c.run(ctx, false) }

// RunUntilEmpty is Run until no row is left in the queue, in any partition, and returns nil then.
// If only rows are left whose keys are blocked, it returns an error that wraps [ErrBlocked] and
// says why the first is. If ctx ends first, it returns its cause. Rows that are committed while it
// looks for the last time may be left. It is for tests, and for a program that cron starts.
func (c *Consumer) RunUntilEmpty(ctx context.Context) error { return c.run(ctx, true) }

// ErrBlocked is returned by RunUntilEmpty if only rows of blocked keys are left.
var ErrBlocked = errors.New("consumer: only rows of blocked keys are left")

// errEmpty is why RunUntilEmpty ends.
var errEmpty = errors.New("consumer: the queue is empty")

var running sync.Map // of *Consumer by membership

// A membership is a client's in a consumer's lease.
type membership struct {
	client *pgleases.Client
	name   string
}

func (c *Consumer) run(ctx context.Context, untilEmpty bool) error {
	failed := func(err error) error { return wrap.Errorf("consumer: run %q: %w", c.name, err) }
	if !c.running.CompareAndSwap(false, true) {
		return failed(errors.New("it runs already"))
	}
	defer c.running.Store(false)
	defer logqueue.Flush(c.log) // the process may end next
	mine := membership{c.client, c.name}
	if _, taken := running.LoadOrStore(mine, c); taken {
		return failed(errors.New("another Consumer of this client runs it"))
	}
	defer running.Delete(mine)
	drain := pgleases.WithDrainTimeout(c.options.drain)
	opts := append([]pgleases.LeaseOption{drain}, c.options.lease...)
	lease, err := c.client.Lease(ctx, leaseOf+c.name, c.source.Partitions, opts...)
	if err != nil {
		return failed(err)
	}
	life, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// At once, so that each partition moves when its batch has ended.
	defer context.AfterFunc(life, func() { _ = lease.Leave(life) })()
	share := c.share()
	defer share.Leave()
	if crowded, handlers, places := share.Crowded(); crowded {
		c.log.Info("consumer: handlers take turns, the pool is small",
			slog.Int("handlers", handlers), slog.Int("at_once", places))
	}
	p := newPlanner(life, c, lease, share, untilEmpty, stop)
	end := p.start()
	err = lease.Run(life, p.serve)
	end()
	p.exec.outage.lines.Flush()
	c.counts.polled.Clear()
	c.counts.oldest.Clear()
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.times.leave)
	defer cancel()
	left := lease.Leave(leaving)
	switch cause := context.Cause(life); {
	case life.Err() == nil:
		return failed(err)
	case errors.Is(cause, errEmpty):
		return left
	case errors.Is(cause, ErrBlocked), worker.EndsRun(cause) != nil:
		return failed(cause)
	case untilEmpty:
		return failed(fmt.Errorf("%w: rows are left%s", context.Cause(ctx), p.why()))
	case left != nil:
		return failed(wrap.Errorf("%w: %w", context.Cause(ctx), left))
	}
	return failed(context.Cause(ctx))
}

// share counts a Run on the pool.
func (c *Consumer) share() *worker.Share {
	if c.options.limited {
		return worker.JoinWith(c.pool, c.options.maxRunning)
	}
	return worker.Join(c.pool)
}
