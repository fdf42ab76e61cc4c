package schedule

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// A listener is the poller's own connection, taken out of the pool. So a poll waits for no
// connection that handlers have, and notifications arrive there. One goroutine uses it at a time.
type listener struct {
	db    *db
	heard chan struct{} // of capacity 1: something was enqueued

	conn   *pgx.Conn // nil or closed: no connection
	direct bool      // the connection is not through a pooler, which delivers no notifications
	stop   func()    // stops listening; nil: not listening
}

func newListener(db *db) *listener { return &listener{db: db, heard: make(chan struct{}, 1)} }

// ready returns the connection, and takes another from the pool if that is closed.
func (l *listener) ready(ctx context.Context) (*pgx.Conn, error) {
	l.rest()
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, nil
	}
	pooled, err := l.db.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	l.conn = pooled.Hijack()
	if err := l.subscribe(ctx); err != nil {
		l.close()
		return nil, err
	}
	return l.conn, nil
}

// subscribe sets up a direct connection to the server, where notifications arrive. A pooler reports
// another process number than its server.
func (l *listener) subscribe(ctx context.Context) error {
	share, pid, err := l.db.sendChannel(ctx, l.conn)
	if err != nil {
		return err
	}
	l.direct = pid == l.conn.PgConn().PID()
	if !l.direct {
		return nil
	}
	// Each poll is its own transaction, which a higher isolation level than READ COMMITTED would
	// break off. It has its own time limit, and between polls the connection is idle. Behind a
	// pooler no setting would last.
	_, err = l.conn.Exec(ctx, fmt.Sprintf("SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0; "+
		"SET idle_session_timeout = 0; LISTEN pgleases_schedule_%d", share))
	signal(l.heard) // an earlier notification may have suppressed that of a new job
	return err
}

// listen waits for notifications in the background, until rest.
func (l *listener) listen() {
	if l.stop != nil || l.conn == nil || l.conn.IsClosed() || !l.direct {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	conn := l.conn
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return
			}
			signal(l.heard)
		}
	})
	l.stop = func() { cancel(); listening.Wait() }
}

// rest stops listening, so the connection is free for statements.
func (l *listener) rest() {
	if l.stop != nil {
		l.stop()
		l.stop = nil
	}
}

// close closes the connection; ready then takes another.
func (l *listener) close() {
	l.rest()
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = l.conn.Close(ctx) // it is closed whatever the error
	l.conn = nil
}
