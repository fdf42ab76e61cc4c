package schedule

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// A listener is the poller's own connection, which it takes out of the pool: a poll waits for none
// that handlers have, and notifications that something was enqueued arrive there. One goroutine
// uses it at a time.
type listener struct {
	db    *db
	heard chan struct{} // of capacity one: something was enqueued

	conn   *pgx.Conn // nil or closed: there is none
	direct bool      // it is a connection to the server itself; a pooler delivers no notifications
	stop   func()    // ends listening; nil: it does not listen
}

func newListener(db *db) *listener {
	return &listener{db: db, heard: make(chan struct{}, 1)}
}

// ready returns the connection, and takes another if that is closed.
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

// subscribe sets the connection up if it is the server's own and notifications arrive: a pooler
// gives another number than its server's process has.
func (l *listener) subscribe(ctx context.Context) error {
	share, pid, err := l.db.sendChannel(ctx, l.conn)
	if err != nil {
		return err
	}
	l.direct = pid == l.conn.PgConn().PID()
	if !l.direct {
		return nil
	}
	// Each poll is a transaction of its own, that a higher level than READ COMMITTED would break off.
	// It has a limit of its own, and between polls the connection is idle. Behind a pooler no setting
	// lasts.
	_, err = l.conn.Exec(ctx, fmt.Sprintf("SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0; "+
		"SET idle_session_timeout = 0; LISTEN pgleases_schedule_%d", share))
	l.wake() // a notification of before keeps what is enqueued now silent
	return err
}

func (l *listener) wake() {
	select {
	case l.heard <- struct{}{}:
	default:
	}
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
			l.wake()
		}
	})
	l.stop = func() { cancel(); listening.Wait() }
}

// rest ends listening: the connection is free for statements.
func (l *listener) rest() {
	if l.stop != nil {
		l.stop()
		l.stop = nil
	}
}

// close closes the connection; the next is another.
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
