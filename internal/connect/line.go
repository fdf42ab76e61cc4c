package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// A watcher stops what a connection does when its context ends. It cancels a statement at the
// server: otherwise a statement that waits for a lock would continue there without its client. It
// stops a wait for notifications only on this side. Through a pooler it cancels no statement,
// because a cancel request that is cut short crashes PgBouncer 1.18 and 1.19.
type watcher struct {
	line            *line
	wait, statement ctxwatch.Handler
	used            ctxwatch.Handler // one of these
}

func newWatcher(conn *pgconn.PgConn, line *line) ctxwatch.Handler {
	return &watcher{
		line:      line,
		wait:      &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()},
		statement: &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: 200 * time.Millisecond},
	}
}

func (w *watcher) HandleCancel(ctx context.Context) {
	w.used = w.wait
	if w.line.direct.Load() && ctx.Value(waiting{}) == nil {
		w.used = w.statement
	}
	w.used.HandleCancel(ctx)
}

func (w *watcher) HandleUnwatchAfterCancel() { w.used.HandleUnwatchAfterCancel() }

// A line has every network connection that one Conn opened: its own, and those for cancel requests.
// A cancel request may wait for a silent server long after the Conn was closed; closing the line
// closes them all.
type line struct {
	dial        pgconn.DialFunc
	userTimeout time.Duration
	direct      atomic.Bool // the connection leads to a backend, not to a pooler

	// mu guards what follows.
	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
	own    *dialed // the connection of the Conn, the last one that was dialed for it
	bidden bool    // the server has said that it ends the connection
	onEnd  func()  // see Conn.OnEnd
}

// connecting marks the context of an attempt to connect. pgx dials with another context to send a
// cancel request, which it also does when it closes a connection in the middle of a statement.
type connecting struct{}

var errNoCancel = errors.New("no statement is canceled through a pooler")

func (l *line) dialOne(ctx context.Context, network, address string) (net.Conn, error) {
	if ctx.Value(connecting{}) == nil && !l.direct.Load() {
		return nil, errNoCancel
	}
	conn, err := l.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil { // the client needs deadlines to end waits
		_ = conn.Close()
		return nil, fmt.Errorf("the connection of DialFunc does not support deadlines: %w", err)
	}
	if t, ok := conn.(*net.TCPConn); ok {
		if raw, err := t.SyscallConn(); err == nil {
			// The kernel closes the connection if no data is acknowledged for this time.
			tcpUserTimeout(raw, l.userTimeout)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	l.open[conn] = struct{}{}
	d := &dialed{Conn: conn, line: l}
	if ctx.Value(connecting{}) != nil {
		l.own = d
	}
	return d, nil
}

func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.open {
		_ = conn.Close() // an error means that it is closed already
	}
}

// A dialed connection is removed from its line when it is closed.
type dialed struct {
	net.Conn
	line  *line
	ended bool // guarded by line.mu: it was closed, or the other side ended it
}

func (d *dialed) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		d.line.ends(d)
	}
	return n, err
}

func (d *dialed) Close() error {
	d.line.ends(d) // before it is closed
	d.line.mu.Lock()
	delete(d.line.open, d.Conn)
	d.line.mu.Unlock()
	return d.Conn.Close()
}

type waiting struct{}

// Waiting marks the context of a wait for notifications: its end stops the wait here only.
func Waiting(ctx context.Context) context.Context { return context.WithValue(ctx, waiting{}, true) }
