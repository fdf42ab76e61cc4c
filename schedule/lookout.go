package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// tellEvery is how long it is not told again that something is put: see schedule_tell.
const tellEvery = 200 * time.Millisecond

// A lookout is the planner's own connection: what it asks waits for none that handlers have, and it hears there that something was put. One goroutine uses it.
type lookout struct {
	s     *Scheduler
	heard chan struct{} // of capacity one: something was put

	conn    *pgx.Conn // nil or closed: there is none
	listens bool      // it is a connection to the server itself; a pooler delivers no notifications
	hush    func()    // ends harking; nil: it does not hark
}

func newLookout(s *Scheduler) *lookout { return &lookout{s: s, heard: make(chan struct{}, 1)} }

// ready returns the connection, a new one where it must be.
func (l *lookout) ready(ctx context.Context) (*pgx.Conn, error) {
	l.rest()
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, nil
	}
	config := l.s.pool.Config()
	to := config.ConnConfig
	to.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { l.hear() }
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, to); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, to)
	if err != nil {
		return nil, err
	}
	l.conn = conn
	if config.AfterConnect != nil {
		err = config.AfterConnect(ctx, conn)
	}
	if err == nil {
		err = l.listen(ctx)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return conn, nil
}

// listen sets the connection up, and listens, where it is the server's own and notifications arrive: a pooler gives another number than its server's process has.
func (l *lookout) listen(ctx context.Context) error {
	share, pid, err := l.s.sendShare(ctx, l.conn)
	if err != nil {
		return err
	}
	l.listens = pid == l.conn.PgConn().PID()
	if !l.listens {
		return nil
	}
	// Each look is a transaction of its own, that a higher level than READ COMMITTED would break
	// off. It has a limit of its own, and between looks the connection is idle. Behind a pooler no
	// setting lasts.
	_, err = l.conn.Exec(ctx, fmt.Sprintf("SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0; "+
		"SET idle_session_timeout = 0; LISTEN pgleases_schedule_%d", share))
	l.hear() // what was told before it listened keeps what is put now silent
	return err
}

func (l *lookout) hear() {
	select {
	case l.heard <- struct{}{}:
	default:
	}
}

// hark waits for notifications in the background, until rest.
func (l *lookout) hark() {
	if l.hush != nil || l.conn == nil || l.conn.IsClosed() || !l.listens {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	conn := l.conn.PgConn()
	go func() {
		defer close(done)
		for conn.WaitForNotification(ctx) == nil {
		}
	}()
	l.hush = func() { cancel(); <-done }
}

// rest ends harking: the connection is free for statements.
func (l *lookout) rest() {
	if l.hush != nil {
		l.hush()
		l.hush = nil
	}
}

// close closes the connection; the next is another.
func (l *lookout) close() {
	l.rest()
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = l.conn.Close(ctx) // it is closed whatever the error
	l.conn = nil
}
