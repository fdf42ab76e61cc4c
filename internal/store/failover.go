package store

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

// Fast failover on the side of the connection: what it needs of a server, when it ends, and the statements.

// ErrNoFastFailover tells that there is no fast failover on a connection.
var ErrNoFastFailover = errors.New("WithFastFailover does not work on this connection")

// failoverVersion is the first one that has counted how a session ended before its process is gone.
const failoverVersion = 15

// outlives is how much longer than its TTL the server keeps a session whose network is cut. The client has not trusted itself for long then.
const outlives = time.Minute

// prepareFailover refuses what fast failover cannot work on, and has the server keep the session over a cut network.
func (c *Conn) prepareFailover(ctx context.Context, ttl time.Duration) error {
	if !c.line.direct.Load() {
		return fmt.Errorf("%w: it leads through a pooler, which gives its own process ID, %d, and keeps no session locks; "+
			"give WithConnConfig a way to the server itself", ErrNoFastFailover, c.conn.PgConn().PID())
	}
	version := c.conn.PgConn().ParameterStatus("server_version")
	major, err := strconv.Atoi(version[:len(version)-len(strings.TrimLeft(version, "0123456789"))])
	if err != nil || major < failoverVersion {
		return fmt.Errorf("%w: the server has version %s, which counts how sessions ended some time after they did; it needs PostgreSQL %d or later",
			ErrNoFastFailover, version, failoverVersion)
	}
	limit := ttl + outlives
	_, err = c.conn.Exec(ctx, fmt.Sprintf("SET tcp_user_timeout = %d; SET tcp_keepalives_idle = %d",
		limit.Milliseconds(), int(limit.Seconds())), pgx.QueryExecModeSimpleProtocol)
	return err
}

// OnEnd has f called once, when the connection ends: before it is closed from this side, whoever closes it, and where the other side ended
// it without a word. At once where that is so already. Not where the server has said that it ends it, as at a restart. f must not wait.
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

// Severed reports whether the other side has ended the connection, and it was not read yet whether the server had said so, where the kernel
// tells. It is safe to call while a statement is under way.
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

// listen has the line hear the last words of both sides. The server's are a fatal error, or a notice where all sessions end at once. The
// client's are pgx's, which closes a connection also by itself, as after a statement that was given up.
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

// HoldLiveness has the connection hold a lock for a session until it ends, under a negative key below the client's earlier ones. See liveness.sql.
func (c *Conn) HoldLiveness(ctx context.Context, session, presence int64) error {
	got, err := one[struct{ Taken bool }](ctx, c, c.statements.Liveness, session, presence, c.lockWait)
	if err == nil && !got.Taken {
		err = fmt.Errorf("the session has a later lock than %d", presence)
	}
	return err
}

// SessionEnds counts how sessions of the database ended that did not end in good order.
type SessionEnds struct{ Abandoned, Killed, Fatal, Reset int64 }

// A Liveness is what a look at the locks of sessions tells. See watch.sql.
type Liveness struct {
	Watches bool // the caller is one of the two that watch; else the rest is empty
	Ends    SessionEnds
	Digest  int64
	Held    map[int64]int // the server's process by key; nil: the digest is the one given
	Free    []Absence
	// Stranger is a process of the server that holds or awaits a lock of a client's, and is not the
	// client's: it keeps the lock held when the client dies. 0: there is none.
	Stranger int
}

// An Absence is a session whose lock nobody holds.
type Absence struct {
	Session, Presence int64
	Expiry            int64 // as the table has it: another one tells that the session was renewed
	PID               int   // of the server's process that held the lock
}

// WatchLiveness looks which sessions' locks are held, where the session is one of the two that watch.
func (c *Conn) WatchLiveness(ctx context.Context, session, digest int64) (Liveness, error) {
	type row struct {
		Watches                          bool
		Abandoned, Killed, Fatal, Reset  int64
		Digest                           int64
		Held, PIDs                       numbers
		Free, FreeSessions, FreeExpiries numbers
		Stranger                         int
	}
	got, err := one[row](ctx, c, c.statements.Watch, session, digest)
	if err != nil || !got.Watches {
		return Liveness{}, err
	}
	l := Liveness{Watches: true, Ends: SessionEnds{got.Abandoned, got.Killed, got.Fatal, got.Reset}, Digest: got.Digest, Stranger: got.Stranger}
	if got.Digest != digest {
		l.Held = make(map[int64]int, len(got.Held))
		for i, key := range got.Held {
			l.Held[key] = int(got.PIDs[i])
		}
	}
	for i, key := range got.Free {
		l.Free = append(l.Free, Absence{Session: got.FreeSessions[i], Presence: key, Expiry: got.FreeExpiries[i]})
	}
	return l, nil
}

// EvictDisconnected removes sessions whose connection ended as that of a dead process does, where as many sessions were abandoned since, and none ended
// in another way. See evictdisconnected.sql.
func (c *Conn) EvictDisconnected(ctx context.Context, ended []Absence, since SessionEnds, run Incarnation) (Evicted, error) {
	sessions, keys, pids, expiries := make([]int64, len(ended)), make([]int64, len(ended)), make([]int, len(ended)), make([]int64, len(ended))
	for i, a := range ended {
		sessions[i], keys[i], pids[i], expiries[i] = a.Session, a.Presence, a.PID, a.Expiry
	}
	return notifying[Evicted](ctx, c, c.statements.EvictDisconnected, sessions, keys, pids, expiries,
		since.Abandoned, since.Killed, since.Fatal, since.Reset, run.Timeline, run.Started, run.Marker, c.lockWait)
}
