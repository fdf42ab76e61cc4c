package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Fast failover on the side of the connection: what it needs of a server, and when it ends.

// ErrNoFastFailover tells that there is no fast failover on a connection.
var ErrNoFastFailover = errors.New("WithFastFailover does not work on this connection")

// failoverVersion is the first one that has counted how a session ended before its process is gone.
const failoverVersion = 15

// outlives is how much longer than its TTL the server keeps a session whose network is cut. The
// client has not trusted itself for long then.
const outlives = time.Minute

// prepareFailover refuses what fast failover cannot work on, and has the server keep the session
// over a cut network.
func (c *Conn) prepareFailover(ctx context.Context, ttl time.Duration) error {
	if !c.line.direct.Load() {
		return fmt.Errorf("%w: it leads through a pooler, which gives its own process ID, %d, and keeps no session locks; "+
			"give WithConnConfig a way to the server itself", ErrNoFastFailover, c.Pgx.PgConn().PID())
	}
	version := c.Pgx.PgConn().ParameterStatus("server_version")
	major, err := strconv.Atoi(version[:len(version)-len(strings.TrimLeft(version, "0123456789"))])
	if err != nil || major < failoverVersion {
		return fmt.Errorf("%w: the server has version %s, which counts how sessions ended some time after they did; it needs PostgreSQL %d or later",
			ErrNoFastFailover, version, failoverVersion)
	}
	limit := ttl + outlives
	_, err = c.Pgx.Exec(ctx, fmt.Sprintf("SET tcp_user_timeout = %d; SET tcp_keepalives_idle = %d",
		limit.Milliseconds(), int(limit.Seconds())), pgx.QueryExecModeSimpleProtocol)
	return err
}

// OnEnd has f called once, when the connection ends: before it is closed from this side, whoever
// closes it, and where the other side ended it without a word. At once where that is so already.
// Not where the server has said that it ends it, as at a restart. f must not wait.
func (c *Conn) OnEnd(f func()) {
	l := c.line
	l.mu.Lock()
	over := l.own.ended && !l.bidden
	l.onEnd = f
	l.mu.Unlock()
	if over {
		f()
	}
}

// Severed reports whether the other side has ended the connection, and it was not read yet whether
// the server had said so, where the kernel tells. It is safe to call while a statement is under
// way.
func (c *Conn) Severed() bool {
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.own.Conn.(*net.TCPConn)
	if !ok || l.bidden {
		return false
	}
	raw, err := t.SyscallConn()
	return err == nil && tcpSevered(raw)
}

// listen has the line hear the last words of both sides. The server's are a fatal error, or a
// notice where all sessions end at once. The client's are pgx's, which closes a connection also by
// itself, as after a statement that was given up.
func (l *line) listen(config *pgconn.Config) {
	build := config.BuildFrontend
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend { return build(r, &outgoing{w, l}) }
	onError, onNotice := config.OnPgError, config.OnNotice
	config.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.SeverityUnlocalized == "FATAL" || err.SeverityUnlocalized == "PANIC" {
			l.bid()
		}
		return onError == nil || onError(conn, err)
	}
	config.OnNotice = func(conn *pgconn.PgConn, notice *pgconn.Notice) {
		if notice.Code == "57P01" || notice.Code == "57P02" { // it shuts down, or recovers from a crash of another session
			l.bid()
		}
		if onNotice != nil {
			onNotice(conn, notice)
		}
	}
}

// outgoing is what the client sends, before it is encrypted.
type outgoing struct {
	io.Writer
	line *line
}

var terminate = []byte{'X', 0, 0, 0, 4}

func (o *outgoing) Write(p []byte) (int, error) {
	if bytes.HasSuffix(p, terminate) {
		o.line.ends(o.line.own)
	}
	return o.Writer.Write(p)
}

func (l *line) bid() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bidden = true
}

// ends notes that a connection has ended, or is about to.
func (l *line) ends(d *dialed) {
	l.mu.Lock()
	first := !d.ended && d == l.own && !l.bidden
	d.ended = true
	f := l.onEnd
	l.mu.Unlock()
	if first && f != nil {
		f()
	}
}
