// Package connect opens the connections that belong to one client only, and detects how they end.
// It refuses a server that takes no writes, and settings that break the promises. It sends no
// statement of the protocol: package store does that.
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/handlers"
)

// ParseConfig reads a connection string. Its errors contain no part of the string, because the
// wrong part may be the password.
func ParseConfig(connString string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(connString)
	var wrong *pgconn.ParseConfigError
	if errors.As(err, &wrong) {
		text := err.Error()
		text = text[strings.LastIndexByte(text, '`')+1:]
		hint := ""
		url := strings.HasPrefix(connString, "postgres://") || strings.HasPrefix(connString, "postgresql://")
		if url && (strings.HasPrefix(text, ": failed to parse") || strings.HasPrefix(text, ": invalid port")) {
			hint = "; " + escapes
		}
		return nil, fmt.Errorf("cannot read the connection string%s%s", text, hint)
	}
	if err != nil {
		return nil, err
	}
	return config, CheckHosts(config.ConnConfig)
}

// CheckHosts returns an error if a host is the end of a password with an unescaped @, because
// errors of connecting would contain it.
func CheckHosts(config *pgx.ConnConfig) error {
	hosts := []string{config.Host}
	for _, f := range config.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	odd := func(host string) bool { return strings.Contains(host, "@") && !strings.HasPrefix(host, "/") }
	if slices.ContainsFunc(hosts, odd) {
		return errors.New("the connection string has more than one @; " + escapes)
	}
	return nil
}

const escapes = "in the user and the password of a URL, " +
	"write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25"

// A Conn is a connection. One goroutine uses it at a time.
type Conn struct {
	Pgx      *pgx.Conn
	Settings []string // sent before each message; empty on a direct connection, which keeps its settings
	Plain    bool     // a heartbeat needs no settings
	Traced   bool     // the application traces each statement
	line     *line
}

// Direct reports whether the connection leads to a backend, not to a pooler.
func (c *Conn) Direct() bool { return c.line.direct.Load() }

// SetDirect overrides the result of Direct, for tests.
func (c *Conn) SetDirect(direct bool) { c.line.direct.Store(direct) }

// Closed reports whether the connection is closed: by Close, by the server, or after an error.
func (c *Conn) Closed() bool { return c.Pgx.IsClosed() }

// Close closes the connection. It waits up to 100 ms for its message to the server.
func (c *Conn) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	c.line.ends(c.line.own)
	_ = c.Pgx.Close(ctx) // the connection is closed whatever the error
	c.line.close()
}

// A Connector opens the connections that belong to one client only.
type Connector struct {
	Config        *pgx.ConnConfig
	BeforeConnect BeforeConnect // the pool's, which may set a new token; may be nil
	Heartbeat     time.Duration // limits each wait, see Connect
	FastFailover  time.Duration // the TTL of a client with fast failover; 0: it is off
	attempt       chan struct{} // holds one element while an attempt to connect is under way
	failed        int           // attempts since the last success; the attempt under way owns it
}

// BeforeConnect is a function that the pool calls before it connects.
type BeforeConnect = func(context.Context, *pgx.ConnConfig) error

// NewConnector returns a connector.
func NewConnector(config *pgx.ConnConfig, before BeforeConnect, heartbeat time.Duration) *Connector {
	return &Connector{Config: config, BeforeConnect: before, Heartbeat: heartbeat, attempt: make(chan struct{}, 1)}
}

// Settings are the settings that the texts of the statements and of their answers rely on, whatever
// the role or the database sets. A pooler in transaction mode keeps these few for each client. Each
// value is spelled as the server reports it: if they differ, PgBouncer sets it again before every
// transaction, which costs one more statement and round trip.
var Settings = map[string]string{
	"client_encoding": "UTF8", "standard_conforming_strings": "on", "DateStyle": "ISO, MDY",
}

// ErrReadOnly says that a connection was given up because its server takes no writes.
var ErrReadOnly = errors.New("server takes no writes")

// hooksMayTake is how long Connect waits for the application's functions after the end of ctx.
const hooksMayTake = time.Second

// Connect opens a connection to the first host that takes writes, within ctx. Each address of a
// host has perHost to answer, or a heartbeat if that is longer. The attempt continues as long as it
// reaches another address within four times that time, so that it gets past silent hosts. After
// three failed attempts an address has at least 5 s, so that a slow server is reached too.
//
// If a BeforeConnect or DialFunc of the application ignores its context, Connect returns without
// it. It then closes what the function returns later, and makes no other attempt until the function
// has returned.
func (cr *Connector) Connect(
	ctx context.Context, perHost time.Duration, notified pgconn.NotificationHandler,
) (*Conn, error) {
	limit := max(cr.Heartbeat, perHost)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stuck := time.AfterFunc(4*limit, func() { cancel(errStuck) })
	defer stuck.Stop()
	conn, err := cr.try(ctx, func() (*Conn, error) {
		if cr.failed%4 == 3 {
			limit = max(limit, 5*time.Second)
			stuck.Reset(4 * limit)
		}
		conn, err := cr.connect(ctx, limit, notified, func() { stuck.Reset(4 * limit) })
		cr.failed++
		if err == nil {
			cr.failed = 0
		}
		return conn, err
	})
	if errors.Is(err, errHangs) {
		err = fmt.Errorf("BeforeConnect, DialFunc or another function of the connection's configuration "+
			"continues after its context has ended: %w", context.Cause(ctx))
	}
	return conn, err
}

var errHangs = errors.New("a function continues after its context has ended")

// try makes an attempt with functions of the application, which may ignore ctx. It makes one
// attempt at a time. If the functions continue for 1 s after the end of ctx, try returns errHangs,
// and closes what they return later.
func (cr *Connector) try(ctx context.Context, attempt func() (*Conn, error)) (*Conn, error) {
	select {
	case cr.attempt <- struct{}{}:
	default: // without another attempt under way, an ended ctx must not be reported as errHangs
		select {
		case cr.attempt <- struct{}{}:
		case <-ctx.Done():
			return nil, errHangs
		}
	}
	left := make(chan struct{})
	defer context.AfterFunc(ctx, func() { time.AfterFunc(hooksMayTake, func() { close(left) }) })()
	type made struct {
		conn *Conn
		err  error
	}
	result := make(chan made)
	go func() {
		var conn *Conn
		err := handlers.Call(func() (err error) {
			conn, err = attempt()
			if err != nil { // it may be a nil pointer of the application, whose methods panic
				_, _ = err.Error(), errors.Is(err, errHangs)
			}
			return err
		})
		<-cr.attempt
		select {
		case result <- made{conn, err}:
		case <-left:
			if conn != nil {
				conn.Close()
			}
		}
	}()
	select {
	case m := <-result:
		return m.conn, m.err
	case <-left:
		return nil, errHangs
	}
}

// errStuck is why an attempt to connect ends that reaches no further address.
var errStuck = fmt.Errorf("a function of the connection's configuration, or the resolver, takes too long: %w",
	context.DeadlineExceeded)

// connect makes one attempt, and calls comes whenever it reaches an address.
func (cr *Connector) connect(
	ctx context.Context, limit time.Duration, notified pgconn.NotificationHandler, comes func(),
) (*Conn, error) {
	config := cr.Config.Copy()
	if cr.BeforeConnect != nil {
		if err := cr.BeforeConnect(ctx, config); err != nil {
			return nil, fmt.Errorf("before connect: %w", err)
		}
	}
	userTimeout := 2 * max(cr.Heartbeat, time.Second)
	line := &line{dial: config.DialFunc, userTimeout: userTimeout, open: make(map[net.Conn]struct{})}
	connected := false
	defer func() {
		if !connected { // also if a function of the application panics
			line.close()
		}
	}()
	c := &Conn{Traced: config.Tracer != nil, line: line}
	cr.adapt(config, limit, c, comes)
	config.OnNotification = notified
	var err error
	c.Pgx, err = pgx.ConnectConfig(context.WithValue(ctx, connecting{}, true), config)
	if err != nil {
		return nil, err
	}
	if cr.FastFailover > 0 {
		if err := c.prepareFailover(ctx, cr.FastFailover); err != nil {
			c.Close()
			return nil, err
		}
	}
	connected = true
	return c, nil
}

// adapt changes a configuration to that of a client's own connection, which becomes c.
func (cr *Connector) adapt(config *pgx.ConnConfig, limit time.Duration, c *Conn, comes func()) {
	if config.ConnectTimeout == 0 || config.ConnectTimeout > limit {
		config.ConnectTimeout = limit
	}
	maps.Copy(config.RuntimeParams, Settings)
	config.RuntimeParams["application_name"] = cmp.Or(config.RuntimeParams["application_name"], "pgleases")
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // also for a batch: see query
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if ctx.Value(connecting{}) != nil { // otherwise it is a cancel request, which may be much later
			comes()
		}
		return c.line.dialOne(ctx, network, address)
	}
	config.ValidateConnect = c.writable
	if hook := config.AfterConnect; hook != nil { // the application's, which may change any setting
		config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			if err := hook(ctx, conn); err != nil {
				return err
			}
			return config.ValidateConnect(ctx, conn)
		}
	}
	if cr.FastFailover > 0 {
		c.line.listen(&config.Config)
	}
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler { return newWatcher(conn, c.line) }
}

// ReadCommitted begins every message except a heartbeat, if the session's settings do not last. The
// statements rely on READ COMMITTED: a statement that waited for a lock continues with the
// committed rows, and a higher level would fail. The role or the database may have another default.
const ReadCommitted = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

// SearchPath is the search_path of every statement except heartbeats.
const SearchPath = "pg_catalog, pg_temp"

// ErrSetting says that a connection was given up because of a setting that breaks the promises.
var ErrSetting = errors.New("a setting must be changed")

// lasts are the settings of a direct connection until it ends, whatever the role, the database and
// the server set. A statement has its own limit, the connection is idle between heartbeats, and
// compiling never pays.
const lasts = `pg_catalog.set_config('search_path', '` + SearchPath + `', false),
	pg_catalog.set_config('default_transaction_isolation', 'read committed', false),
	pg_catalog.set_config('statement_timeout', '0', false),
	pg_catalog.set_config('idle_session_timeout', '0', false),
	pg_catalog.set_config('jit', 'off', false),
	CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL
		THEN pg_catalog.set_config('transaction_timeout', '0', false) END`

// The columns of the row that ask returns.
const (
	inRecovery = iota
	readOnly
	replicationRole
	isolation
	statementTimeout
	jit
	seqScan
	jitAboveCost
	transactionTimeout
	lasting // null behind a pooler
)

// ask reads what writable needs to know, and makes the settings that last if the process ID is that
// of the backend.
const ask = `SELECT pg_catalog.pg_is_in_recovery(),
	pg_catalog.current_setting('default_transaction_read_only')::boolean,
	pg_catalog.current_setting('session_replication_role'),
	pg_catalog.current_setting('default_transaction_isolation'),
	pg_catalog.current_setting('statement_timeout'),
	pg_catalog.current_setting('jit'),
	pg_catalog.current_setting('enable_seqscan'),
	pg_catalog.current_setting('jit_above_cost'),
	coalesce(pg_catalog.current_setting('transaction_timeout', true), '0'),
	CASE WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) %d THEN pg_catalog.concat(` + lasts + `) END`

// writable refuses a server that takes no writes, or that has a setting that breaks the promises,
// and checks the connection. On a direct connection it makes the settings that last. A pooler
// reports a process ID that is not the backend's.
func (c *Conn) writable(ctx context.Context, conn *pgconn.PgConn) error {
	c.line.direct.Store(false)
	results, err := conn.Exec(ctx, fmt.Sprintf(ask, conn.PID())).ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return errors.New("the first query has no answer")
	}
	row := results[0].Rows[0]
	is := func(column int, value string) bool { return string(row[column]) == value }
	switch {
	case !is(inRecovery, "f"):
		return fmt.Errorf("%w: it is a standby", ErrReadOnly)
	case !is(readOnly, "f"): // failover tools and operators set it to stop writes, so it is obeyed
		return fmt.Errorf("%w: default_transaction_read_only is on, for the role, the database or the server; "+
			"a client needs it off", ErrReadOnly)
	case is(replicationRole, "replica"):
		return fmt.Errorf("%w: session_replication_role is replica, so no trigger notifies clients of changes; "+
			"run ALTER ROLE ... RESET session_replication_role, or ALTER DATABASE ... RESET, where it is set",
			ErrSetting)
	}
	direct := row[lasting] != nil
	c.line.direct.Store(direct)
	c.Settings, c.Plain = nil, direct
	if direct {
		return nil
	}
	// Without sequential scans a plan seems to cost too much.
	compiles := !is(jit, "off") && (is(seqScan, "off") || is(jitAboveCost, "0"))
	c.Settings = []string{ReadCommitted, "SET LOCAL search_path = " + SearchPath}
	if !is(statementTimeout, "0") {
		c.Settings = append(c.Settings, "SET LOCAL statement_timeout = 0")
	}
	if compiles {
		c.Settings = append(c.Settings, "SET LOCAL jit = off")
	}
	if !is(transactionTimeout, "0") {
		c.Settings = append(c.Settings, "SET LOCAL transaction_timeout = 0")
	}
	c.Plain = is(isolation, "read committed") && !compiles
	return nil
}
