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

// Fast failover on the connection's side: its requirements of a server, and the detection of the
// end.

// ErrNoFastFailover says that fast failover is not possible on a connection.
var ErrNoFastFailover = errors.New("WithFastFailover does not work on this connection")

// failoverVersion is the first version that counts how a session ended before its process is gone.
const failoverVersion = 15

// outlives is how much longer than its TTL the server keeps a session whose network is cut. By then
// the client has not trusted itself for long.
const outlives = time.Minute

// prepareFailover refuses a connection that does not support fast failover, and makes the server
// keep the session while the network is cut.
func (c *Conn) prepareFailover(ctx context.Context, ttl time.Duration) error {
	if !c.line.direct.Load() {
		return fmt.Errorf("%w: it leads through a pooler, which gives its own process ID, %d, "+
			"and keeps no session locks; give WithConnConfig a way to the server itself",
			ErrNoFastFailover, c.Pgx.PgConn().PID())
	}
	version := c.Pgx.PgConn().ParameterStatus("server_version")
	major, err := strconv.Atoi(version[:len(version)-len(strings.TrimLeft(version, "0123456789"))])
	if err != nil || major < failoverVersion {
		return fmt.Errorf("%w: the server has version %s, which counts too late how sessions ended; "+
			"use PostgreSQL %d or later", ErrNoFastFailover, version, failoverVersion)
	}
	limit := ttl + outlives
	_, err = c.Pgx.Exec(ctx, fmt.Sprintf("SET tcp_user_timeout = %d; SET tcp_keepalives_idle = %d",
		limit.Milliseconds(), int(limit.Seconds())), pgx.QueryExecModeSimpleProtocol)
	return err
}

// OnEnd makes the connection call f once when it ends: before this side closes it, whoever does
// that, and when the other side ended it without a message. If it has ended already, f is called at
// once. If the server has announced the end, for example at a restart, f is not called. f must not
// wait.
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

// Severed reports whether the other side has ended the connection, according to the kernel, and no
// announcement of the server was read yet. It is safe to call while a statement is under way.
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

// listen makes the line notice the last messages of both sides. The server's is a fatal error, or a
// notice if all sessions end at once. The client's is written by pgx, which also closes a
// connection automatically, for example after a statement that was given up.
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
		// The server shuts down, or recovers from a crash of another session.
		if notice.Code == "57P01" || notice.Code == "57P02" {
			l.bid()
		}
		if onNotice != nil {
			onNotice(conn, notice)
		}
	}
}

// outgoing writes the client's messages, before they are encrypted.
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
