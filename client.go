package pgleases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/connect"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/store"
)

// A Client is one process's part in all the leases of a schema. It keeps one connection of its own,
// outside the pool's slots, on which it sends heartbeats; a pool that is exhausted or slow costs it
// nothing. Open one client per process. All methods are safe for concurrent use.
type Client struct {
	engine  *engine.Client
	options options
}

// NewClient opens a client where the pool's connections go, on a connection of its own. It borrows
// the pool, of which it takes the configuration only, and never closes it. The schema is created or
// migrated where it is needed, unless WithoutMigration is given.
//
// ctx covers the opening only; a host that does not answer for 5 s, or for a heartbeat where that
// is longer, is passed over. Registering is tried again until ctx ends, where it failed for a
// reason that may pass, as a row that somebody has locked; that is logged once. The errors: a bad
// option, the connection's, ErrSchema, the database's where the role lacks rights, or the cause of
// ctx with the error of the last attempt. Nothing stays behind then.
func NewClient(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (*Client, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	if pool == nil {
		return nil, errors.New("pgleases: open client: pool is nil")
	}
	config := pool.Config()
	return open(ctx, config.ConnConfig, config.BeforeConnect, o)
}

// Open opens a client from a connection string, for applications that do not use pgxpool
// (database/sql, lib/pq, gorm). Otherwise it is NewClient.
func Open(ctx context.Context, connString string, opts ...Option) (*Client, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	if o.Double != nil {
		return openOn(ctx, o)
	}
	config, err := connect.ParseConfig(connString)
	if err != nil {
		return nil, fmt.Errorf("pgleases: open client: %w", err)
	}
	return open(ctx, config.ConnConfig, nil, o)
}

func open(ctx context.Context, config *pgx.ConnConfig, beforeConnect func(context.Context, *pgx.ConnConfig) error,
	o options) (*Client, error) {
	if o.connConfig != nil {
		config = o.connConfig
	}
	if err := connect.CheckHosts(config); err != nil {
		return nil, fmt.Errorf("pgleases: open client: %w", err)
	}
	connector := store.NewConnector(config.Copy(), beforeConnect, o.Schema, o.Heartbeat)
	if o.FastFailover {
		connector.FastFailover = o.TTL
	}
	first, err := connector.Connect(ctx, 5*time.Second) // nothing is lost yet: a slow start is better than none
	if err != nil {
		return nil, fmt.Errorf("pgleases: open client: connect: %w", store.Caused(ctx, err))
	}
	if o.noMigration {
		err = first.Fits(ctx)
	} else {
		err = first.Migrate(ctx)
	}
	if err != nil {
		first.Close()
		return nil, store.OpenError(ctx, "pgleases", "open client", o.Schema, ErrSchema, err)
	}
	return start(ctx, first, func(ctx context.Context) (engine.Conn, error) {
		c, err := connector.Connect(ctx, time.Second)
		if err != nil {
			return nil, err // not a nil *store.Conn in an interface
		}
		return c, nil
	}, o)
}

// openOn opens a client on what stands in for a server.
func openOn(ctx context.Context, o options) (*Client, error) {
	if o.FastFailover {
		return nil, errors.New("pgleases: open client: WithFastFailover needs a server, and there is none")
	}
	first, err := o.Double.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgleases: open client: connect: %w", err)
	}
	return start(ctx, first, o.Double.Connect, o)
}

// start registers a client on its first connection, and starts its goroutine.
func start(ctx context.Context, first engine.Conn, connect func(context.Context) (engine.Conn, error), o options) (*Client, error) {
	o.Log = o.Log.With(slog.String("client", o.ClientID))
	o.Connect, o.Plan = connect, replan
	o.Errors = engine.Errors{
		Closed: ErrClosed, Superseded: ErrSuperseded, Evicted: ErrEvicted, NotOwner: ErrNotOwner, PartitionCount: ErrPartitionCount,
		Handoff: ErrHandoff, TrustLost: ErrTrustLost, DrainTimeout: ErrDrainTimeout,
	}
	e, err := engine.Start(ctx, first, o.Config)
	if err != nil {
		return nil, store.OpenError(ctx, "pgleases", fmt.Sprintf("open client: register %q", o.ClientID), o.Schema, ErrSchema, err)
	}
	return &Client{engine: e, options: o}, nil
}

// Migrate creates the schema, or brings it up to date. It is idempotent and safe to race; where
// nothing is to be done it needs no more than the right to read. ctx covers all of it. The only
// option is WithSchema; any other is an error.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	schema, err := schemaOption("Migrate", opts)
	if err != nil {
		return err
	}
	if pool == nil {
		return errors.New("pgleases: migrate: pool is nil")
	}
	if err := connect.CheckHosts(pool.Config().ConnConfig); err != nil {
		return fmt.Errorf("pgleases: migrate: %w", err)
	}
	err = pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return store.Migrate(ctx, conn.Conn(), schema) })
	return store.OpenError(ctx, "pgleases", "migrate", schema, ErrSchema, err)
}

// Schema returns the DDL that Migrate runs, for goose, tern, Flyway and the like: tables, views,
// functions. The only option is WithSchema; any other is an error.
func Schema(opts ...Option) (string, error) {
	schema, err := schemaOption("Schema", opts)
	if err != nil {
		return "", err
	}
	return store.StatementsFor(schema).Schema, nil
}

// ID returns the client's ID.
func (c *Client) ID() string { return c.options.ClientID }

// Lease joins a lease with that number of partitions (1 to 65,536), which is made if it does not
// exist, and returns once the database has the membership, not once anything is owned: see
// Lease.Wait. The name has 1 to 255 bytes of UTF-8 without NUL. A plan reads all partitions of a
// lease, and has to come between two heartbeats: so there may be 16,384 for each second of the TTL;
// no more in all leases together that share members, which is not checked.
//
// ctx covers the joining only; if it ends first its cause is returned and no membership stays
// behind. Joining a lease again with the same number and options returns the same Lease, with
// others an error that names both. The other errors: ErrPartitionCount where it exists with another
// number, ErrClosed, ErrSuperseded and ErrEvicted after the client's end, a bad option, the
// database's.
func (c *Client) Lease(ctx context.Context, name string, partitions int, opts ...LeaseOption) (*Lease, error) {
	o, err := newLeaseOptions(name, partitions, c.options.TTL, opts)
	if err != nil {
		return nil, err
	}
	l, err := c.engine.Join(ctx, name, partitions, o)
	if err != nil {
		return nil, fmt.Errorf("pgleases: join lease %q: %w", name, err)
	}
	return l.Public(func() any { return &Lease{client: c, engine: l, board: l.Board} }).(*Lease), nil
}

// Done returns a channel that is closed when the client has ended: closed, superseded by a newer
// process of the same ID, or evicted by an operator.
func (c *Client) Done() <-chan struct{} { return c.engine.Done() }

// Err returns why the client ended, ErrClosed, ErrSuperseded or ErrEvicted; nil while it has not.
func (c *Client) Err() error { return c.engine.Err() }

// Close ends the client: Values of its leases is empty at once, Run callbacks are asked to end,
// partitions are handed over as their work ends, and the client leaves. End loops over bare Values
// first: the handoff delay is not paid here.
//
// ctx bounds the wait for work only. When it has ended, also when it had before, what is free is
// still released, for up to 2 s; what is in work is not: its contexts are canceled with ErrClosed
// and it moves when the session expires, a TTL after its last heartbeat. Close returns what was
// left in work, joined with the cause of ctx. Goroutines and the connection are gone when it
// returns. Without a database it stops trying when ctx has ended or nothing is trusted any more. It
// is idempotent, legal before any Lease, and never closes the pool.
//
// In a Run callback, or under a hold of the same goroutine, Close waits for that work too, which
// cannot end before: it returns when its ctx ends, and names the partition. With the callback's ctx
// it returns at once, as Close ends that one.
func (c *Client) Close(ctx context.Context) error { return c.engine.Close(ctx) }
