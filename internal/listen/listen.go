// Package listen receives the notifications of the SQL function notify, on a connection that is
// also used for polls.
package listen

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/handlers"
)

// Silence is the time after a notification in which no other is sent: see the SQL function notify.
const Silence = 200 * time.Millisecond

// A Listener is a connection of its own, taken out of the pool. So a poll waits for no connection
// that handlers have, and notifications arrive there. One goroutine uses it at a time.
type Listener struct {
	Heard chan struct{} // of capacity 1: a notification has arrived, or may have been missed

	pool    *pgxpool.Pool
	channel string // a query of the channel's number
	topic   string

	conn   *pgx.Conn // nil or closed: no connection
	direct bool      // the connection is not through a pooler, which delivers no notifications
	stop   func()    // stops listening; nil: not listening
}

// New returns a Listener for a topic of a schema. It connects when Ready is called.
func New(pool *pgxpool.Pool, schema, topic string) *Listener {
	function := pgx.Identifier{schema}.Sanitize() + ".notify_channel"
	return &Listener{
		Heard:   make(chan struct{}, 1),
		pool:    pool,
		topic:   topic,
		channel: "SELECT " + function + "($1::pg_catalog.text), pg_catalog.pg_backend_pid()",
	}
}

// Another returns a Listener for the same, which leaves the connection of this one to code that hangs
// in it.
func (l *Listener) Another() *Listener {
	return &Listener{Heard: l.Heard, pool: l.pool, topic: l.topic, channel: l.channel}
}

// Ready returns the connection, and takes another from the pool if that is closed.
func (l *Listener) Ready(ctx context.Context) (*pgx.Conn, error) {
	l.rest()
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, nil
	}
	pooled, err := l.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	l.conn = pooled.Hijack()
	if err := l.subscribe(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l.conn, nil
}

// subscribe sets up a direct connection to the server, where notifications arrive. A pooler reports
// another process number than its server.
func (l *Listener) subscribe(ctx context.Context) error {
	var number int
	var pid uint32
	if err := l.conn.QueryRow(ctx, l.channel, l.topic).Scan(&number, &pid); err != nil {
		return err
	}
	l.direct = pid == l.conn.PgConn().PID()
	if !l.direct {
		return nil
	}
	// Each poll is its own transaction, which a higher isolation level than READ COMMITTED would
	// break off. It has its own time limit, and between polls the connection is idle. Behind a
	// pooler no setting would last.
	_, err := l.conn.Exec(ctx, fmt.Sprintf(`
		SET default_transaction_isolation = 'read committed';
		SET statement_timeout = 0;
		SET idle_session_timeout = 0;
		LISTEN pgleases_notify_%d`, number))
	Signal(l.Heard) // an earlier notification may have suppressed that of a new row
	return err
}

// Direct reports whether notifications arrive.
func (l *Listener) Direct() bool { return l.direct }

// Listen waits for notifications in the background, until Ready or Close.
func (l *Listener) Listen() {
	if l.stop != nil || l.conn == nil || l.conn.IsClosed() || !l.direct {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	conn := l.conn
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			// the application's OnNotice or OnNotification may panic
			err := handlers.Call(func() (err error) { _, err = conn.WaitForNotification(ctx); return err })
			if err == nil || ctx.Err() == nil { // the connection is lost, unless ctx has ended
				Signal(l.Heard)
			}
			if err != nil {
				return
			}
		}
	}()
	l.stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(hangs):
			l.conn = nil // it is left behind
		}
	}
}

// hangs is the time after which a function of the application that receives notices counts as hung.
const hangs = 5 * time.Second

// rest stops listening, so the connection is free for statements.
func (l *Listener) rest() {
	if l.stop != nil {
		l.stop()
		l.stop = nil
	}
}

// Close closes the connection; Ready then takes another.
func (l *Listener) Close() {
	l.rest()
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = l.conn.Close(ctx) // it is closed whatever the error
	l.conn = nil
}

// Signal sends to a channel of capacity 1, unless it is full: then the receiver knows already.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
