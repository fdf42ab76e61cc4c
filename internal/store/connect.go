package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// A Connector makes connections of a client's own.
type Connector struct {
	Config        *pgx.ConnConfig
	BeforeConnect func(context.Context, *pgx.ConnConfig) error // may be nil; carries tokens that change
	Schema        string
	Heartbeat     time.Duration // bounds what a connection waits for
	statements    Statements
}

// NewConnector returns a connector for a schema.
func NewConnector(config *pgx.ConnConfig, beforeConnect func(context.Context, *pgx.ConnConfig) error,
	schema string, heartbeat time.Duration) *Connector {
	return &Connector{config, beforeConnect, schema, heartbeat, StatementsFor(schema)}
}

// settings are what the statements' texts and their answers rely on, whatever the role or the database sets. A pooler in
// transaction mode keeps these for its clients.
var settings = map[string]string{"client_encoding": "UTF8", "standard_conforming_strings": "on", "DateStyle": "ISO"}

// ErrReadOnly tells that a server was left because it does not take writes.
var ErrReadOnly = errors.New("server is a standby or read-only")

// Connect opens a connection to a server that takes writes; ctx bounds it. Of several hosts it is the first such; each
// has so long, or the heartbeat where that is longer: a dead one must not use up the time of the others.
func (cr *Connector) Connect(ctx context.Context, perHost time.Duration) (*Conn, error) {
	config := cr.Config.Copy()
	if cr.BeforeConnect != nil {
		if err := cr.BeforeConnect(ctx, config); err != nil {
			return nil, fmt.Errorf("before connect: %w", err)
		}
	}
	if limit := max(cr.Heartbeat, perHost); config.ConnectTimeout == 0 || config.ConnectTimeout > limit {
		config.ConnectTimeout = limit
	}
	for name, value := range settings {
		config.RuntimeParams[name] = value
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "pgleases"
	}
	config.OnNotification = nil // the application's own would take what Wait waits for
	line := &line{dial: config.DialFunc, userTimeout: 2 * max(cr.Heartbeat, time.Second), open: make(map[net.Conn]struct{})}
	config.DialFunc = line.dialOne
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		direct, err := writable(ctx, conn)
		line.direct.Store(direct)
		return err
	}
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler { return newWatcher(conn, line) }
	conn, err := pgx.ConnectConfig(context.WithValue(ctx, connecting{}, true), config)
	if err != nil {
		line.close()
		return nil, err
	}
	return &Conn{
		conn: conn, line: line, statements: cr.statements, channel: cr.Schema,
		lockWait: max(1, int(cr.Heartbeat.Milliseconds()/4)),
	}, nil
}

// writable refuses a server that cannot take a heartbeat, and reports whether the connection leads to the very backend
// that it was opened to, and not to a pooler.
func writable(ctx context.Context, conn *pgconn.PgConn) (direct bool, err error) {
	results, err := conn.Exec(ctx,
		"SELECT NOT pg_is_in_recovery() AND NOT current_setting('default_transaction_read_only')::bool, pg_backend_pid()").ReadAll()
	if err != nil {
		return false, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "t" {
		return false, ErrReadOnly
	}
	return string(results[0].Rows[0][1]) == strconv.FormatUint(uint64(conn.PID()), 10), nil
}

// Listen listens for notifications, and reports whether they arrive. A pooler may accept LISTEN and deliver nothing, or
// deliver to whoever has the server connection; hence the connection must lead to the backend that it was opened to,
// and a notification to itself must come back.
func (c *Conn) Listen(ctx context.Context, probe int64) (bool, error) {
	private := fmt.Sprintf("pgleases_probe_%d", probe)
	channel := pgx.Identifier{c.channel}.Sanitize()
	if !c.line.direct.Load() {
		return false, nil
	}
	for _, statement := range []string{"LISTEN " + channel, "LISTEN " + private, "NOTIFY " + private, "UNLISTEN " + private} {
		if err := c.exec(ctx, statement); err != nil {
			return false, err
		}
	}
	late, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	for {
		n, err := c.conn.WaitForNotification(context.WithValue(late, waiting{}, true))
		switch {
		case err == nil && n.Channel == private:
			return true, nil
		case err != nil && ctx.Err() == nil && late.Err() != nil && !c.Closed():
			return false, c.exec(ctx, "UNLISTEN "+channel)
		case err != nil:
			return false, err
		}
	}
}

// waiting marks the context of a wait for notifications, which ends without harm, from that of a statement.
type waiting struct{}

// A watcher ends what a connection does when its context ends. A statement is cancelled at the server, so that one that
// waits for a lock does not stay behind with its connection; a wait for notifications just ends. Through a pooler nothing
// is cancelled, only given up: requests to cancel that are cut short bring PgBouncer 1.18 and 1.19 down.
type watcher struct {
	line      *line
	wait      pgconn.DeadlineContextWatcherHandler
	statement pgconn.CancelRequestContextWatcherHandler
	unwatch   func()
}

func newWatcher(conn *pgconn.PgConn, line *line) ctxwatch.Handler {
	return &watcher{
		line:      line,
		wait:      pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()},
		statement: pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: 200 * time.Millisecond},
	}
}

func (w *watcher) HandleCancel(ctx context.Context) {
	if !w.line.direct.Load() || ctx.Value(waiting{}) != nil {
		w.unwatch = w.wait.HandleUnwatchAfterCancel
		w.wait.HandleCancel(ctx)
		return
	}
	w.unwatch = w.statement.HandleUnwatchAfterCancel
	w.statement.HandleCancel(ctx)
}

func (w *watcher) HandleUnwatchAfterCancel() { w.unwatch() }

// A line is what one connection dials: itself, and the connections on which its statements are cancelled. Those may wait
// for a silent server for long after the connection was given up; closing the line ends them all.
type line struct {
	dial        pgconn.DialFunc
	userTimeout time.Duration
	direct      atomic.Bool // it leads to the backend that it was opened to

	// mu guards what follows.
	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

// connecting marks the context of an attempt to connect; pgx dials without it to cancel a statement, also where it only
// closes a connection on which one is under way.
type connecting struct{}

var errNoCancel = errors.New("nothing is cancelled through a pooler")

func (l *line) dialOne(ctx context.Context, network, address string) (net.Conn, error) {
	if ctx.Value(connecting{}) == nil && !l.direct.Load() {
		return nil, errNoCancel
	}
	conn, err := l.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if t, ok := conn.(*net.TCPConn); ok {
		if raw, err := t.SyscallConn(); err == nil {
			tcpUserTimeout(raw, l.userTimeout) // have the kernel give up what nobody acknowledges
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	l.open[conn] = struct{}{}
	return &dialed{conn, l}, nil
}

func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.open {
		_ = conn.Close() // closed already, or of no more use
	}
}

// A dialed connection leaves its line when it is closed.
type dialed struct {
	net.Conn
	line *line
}

func (d *dialed) Close() error {
	d.line.mu.Lock()
	delete(d.line.open, d.Conn)
	d.line.mu.Unlock()
	return d.Conn.Close()
}
