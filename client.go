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
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Client is one process's part in all leases of a schema. It sends heartbeats on one connection
// of its own, outside of the pool, so it does not depend on an exhausted or slow pool. Open one
// client per process. All methods are safe for concurrent use.
type Client struct {
	engine  *engine.Client
	options options
}

// NewClient opens a client on a connection of its own, to where the pool's connections go. It takes
// only the configuration from the pool, and never closes it. It creates or migrates the schema if
// that is needed, unless WithoutMigration is given.
//
// ctx covers the opening only. NewClient skips a host that does not answer within 5 s, or within a
// heartbeat or the configuration's connect_timeout if that is longer. If registering fails for a
// reason that may pass, for example because another transaction has locked the row, NewClient logs
// that once and tries again until ctx ends.
//
// NewClient returns an error if an option is invalid, if it cannot connect, if the schema does not
// fit (ErrSchema), or if the role lacks rights. If ctx ends first, it returns the cause of ctx with
// the error of the last attempt. After an error no session and no connection remain.
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
// (database/sql, lib/pq, gorm). Otherwise it does what NewClient does.
func Open(ctx context.Context, connString string, opts ...Option) (*Client, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	if o.Double != nil {
		first, err := o.Double.Connect(ctx)
		if err != nil {
			return nil, wrap.Errorf("pgleases: open client: connect: %w", err)
		}
		return start(ctx, first, o.Double.Connect, o)
	}
	config, err := connect.ParseConfig(connString)
	if err != nil {
		return nil, wrap.Errorf("pgleases: open client: %w", err)
	}
	return open(ctx, config.ConnConfig, nil, o)
}

func open(ctx context.Context, config *pgx.ConnConfig, beforeConnect func(context.Context, *pgx.ConnConfig) error,
	o options) (*Client, error) {
	if o.connConfig != nil {
		config = o.connConfig
	}
	if err := connect.CheckHosts(config); err != nil {
		return nil, wrap.Errorf("pgleases: open client: %w", err)
	}
	connector := store.NewConnector(config.Copy(), beforeConnect, o.Schema, o.Heartbeat)
	if o.FastFailover {
		connector.FastFailover = o.TTL
	}
	// The client owns no partition yet, so a slow start is better than an error. An application can
	// allow more than 5 s with connect_timeout, if its server may be slow.
	first, err := connector.Connect(ctx, max(5*time.Second, config.ConnectTimeout))
	if err != nil {
		return nil, wrap.Errorf("pgleases: open client: connect: %w", store.Caused(ctx, err))
	}
	if o.noMigration {
		err = first.Fits(ctx)
	} else {
		err = first.Migrate(ctx)
	}
	if err != nil {
		first.Close()
		return nil, openError(ctx, "pgleases", "open client", o.Schema, err)
	}
	return start(ctx, first, func(ctx context.Context) (engine.Conn, error) {
		c, err := connector.Connect(ctx, time.Second)
		if err != nil {
			return nil, err // not a nil *store.Conn in an interface
		}
		return c, nil
	}, o)
}

// start registers a client on its first connection, and starts its goroutine.
func start(
	ctx context.Context, first engine.Conn, connect func(context.Context) (engine.Conn, error), o options,
) (*Client, error) {
	o.Log = o.Log.With(slog.String("client", o.ClientID))
	o.Connect, o.Plan = connect, replan
	o.Errors = engine.Errors{
		Closed: ErrClosed, Superseded: ErrSuperseded, Evicted: ErrEvicted, NotOwner: ErrNotOwner,
		PartitionCount: ErrPartitionCount, LeaseReplaced: ErrLeaseReplaced,
		Handoff: ErrHandoff, TrustLost: ErrTrustLost, DrainTimeout: ErrDrainTimeout,
	}
	e, err := engine.Start(ctx, first, o.Config)
	if err != nil {
		return nil, openError(ctx, "pgleases", fmt.Sprintf("open client: register %q", o.ClientID), o.Schema, err)
	}
	return &Client{engine: e, options: o}, nil
}

// Migrate creates the schema, or brings it up to date. It is idempotent, and any number of
// processes may call it at once. If the schema is up to date, it needs only the right to read. ctx
// covers the whole call. The only option is WithSchema. Any other is an error.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	schema, err := schemaOption("Migrate", opts)
	if err != nil {
		return err
	}
	if pool == nil {
		return errors.New("pgleases: migrate: pool is nil")
	}
	if err := connect.CheckHosts(pool.Config().ConnConfig); err != nil {
		return wrap.Errorf("pgleases: migrate: %w", err)
	}
	err = pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		return store.Engine.Migrate(ctx, conn.Conn(), schema)
	})
	return openError(ctx, "pgleases", "migrate", schema, err)
}

// Schema returns the DDL that Migrate runs: tables, views and functions, for goose, tern, Flyway
// and similar tools. The only option is WithSchema. Any other is an error.
func Schema(opts ...Option) (string, error) {
	schema, err := schemaOption("Schema", opts)
	if err != nil {
		return "", err
	}
	return store.StatementsFor(schema).Schema, nil
}

// ID returns the client's ID.
func (c *Client) ID() string { return c.options.ClientID }

// Lease joins a lease, and creates it if it does not exist. It returns when the database has the
// membership. Ownership comes later. See Lease.Wait. The name has 1 to 255 bytes of UTF-8 without
// NUL. There may be 1 to 65,536 partitions, and at most 16,384 for each second of the TTL, because
// a plan reads all partitions of a lease between two heartbeats. All leases that share members are
// planned together, so keep their sum below that limit too. The library does not check the sum.
//
// ctx covers the joining only. If it ends first, Lease returns its cause, and no membership is left
// behind. If the client has joined the lease already with the same number and options, Lease
// returns the same *Lease. With another number or other options it returns an error that names
// both.
//
// The other errors are ErrPartitionCount if the lease exists with another number of partitions,
// ErrLeaseReplaced if it was replaced by another one, ErrClosed, ErrSuperseded and ErrEvicted after
// the client's end, an invalid option, and the database's.
func (c *Client) Lease(ctx context.Context, name string, partitions int, opts ...LeaseOption) (*Lease, error) {
	o, err := newLeaseOptions(name, partitions, c.options.TTL, opts)
	if err != nil {
		return nil, err
	}
	if o.RestartGrace > 0 && !c.options.has("WithClientID") {
		return nil, fmt.Errorf("pgleases: lease %q: restart grace %v without an ID of its own: "+
			"give the client one with WithClientID, by which its next process is known", name, o.RestartGrace)
	}
	l, err := c.engine.Join(ctx, name, partitions, o)
	if err != nil {
		return nil, wrap.Errorf("pgleases: join lease %q: %w", name, err)
	}
	return l.Public(func() any { return &Lease{client: c, engine: l, board: l.Board} }).(*Lease), nil
}

// Done returns a channel that is closed when the client has ended. That is if it was closed, if a
// newer process took over its ID, or if an operator evicted it.
func (c *Client) Done() <-chan struct{} { return c.engine.Done() }

// Err returns why the client ended: ErrClosed, ErrSuperseded or ErrEvicted. It returns nil while
// the client lives.
func (c *Client) Err() error { return c.engine.Err() }

// Close ends the client. Values of its leases is empty at once, and Run callbacks are asked to end.
// The client hands over each partition when the work on it has ended, and then leaves. Close does
// not wait for the handoff delay, so stop loops over Values before you call it.
//
// ctx bounds only the wait for work. When ctx has ended, or if it had ended before the call, the
// client still releases what is free, for up to 2 s. Partitions in work are not released. Their
// contexts are canceled with ErrClosed, and they move when the session expires, a TTL after its
// last heartbeat. Close returns an error that names them and wraps the cause of ctx. If the
// database does not answer, Close returns when ctx has ended or the trust deadline has passed. If
// ctx has a deadline and the client can connect, the server may be slow, so Close returns only when
// no heartbeat has succeeded for two TTLs. In any case Close returns within 6 s after the end of
// ctx.
//
// When Close returns, the client has no goroutine and no connection. Close is idempotent, and never
// closes the pool.
//
// If a Run callback or a goroutine with an open hold calls Close, Close waits for that work too. It
// returns when its ctx ends, and names the partition. If a callback calls Close with its own ctx,
// Close returns at once, because Close ends that ctx.
//
// In leases with WithRestartGrace, the partitions of a client that closes wait for its return.
// WithoutReturn hands them over instead.
//
// Give ctx a deadline. Work that does not end keeps a Close without a deadline waiting.
func (c *Client) Close(ctx context.Context, opts ...CloseOption) error {
	o := closeOptions{returns: true}
	for _, opt := range opts {
		if opt.set == nil {
			return errors.New("pgleases: close: option is empty: create it with WithoutReturn")
		}
		opt.set(&o)
	}
	return c.engine.Close(ctx, o.returns)
}

// closeOptions are the options of a call of Close.
type closeOptions struct{ returns bool }

// A CloseOption changes how a client closes. WithoutReturn makes one.
type CloseOption struct{ set func(*closeOptions) }

// WithoutReturn says that no process with this client's ID starts soon, for example because its
// machine is removed. Then its partitions don't wait for WithRestartGrace, and others get them at
// once.
func WithoutReturn() CloseOption {
	return CloseOption{func(o *closeOptions) { o.returns = false }}
}
