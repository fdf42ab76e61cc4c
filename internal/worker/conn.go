package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/handlers"
)

// A Line tells what works on pools of the application what its client knows: that the server was
// away. The pool cannot know that. Its connections look healthy until a statement waits for an
// answer that never comes. The zero Line is ready, and a nil Line never tells anything.
type Line struct {
	mu     sync.Mutex // guards the following fields
	pools  map[*pgxpool.Pool]bool
	life   context.Context // ends at the next renewal; nil: nobody has asked for it yet
	cancel context.CancelFunc
}

// answersIn is how long an idle connection may take to answer after a renewal.
const answersIn = time.Second

// Add makes the line watch a pool.
func (l *Line) Add(pool *pgxpool.Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pools == nil {
		l.pools = make(map[*pgxpool.Pool]bool)
	}
	l.pools[pool] = true
}

// Life returns a context that ends when the client has connected again.
func (l *Line) Life() context.Context {
	if l == nil {
		return context.Background()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life == nil {
		l.life, l.cancel = context.WithCancel(context.Background())
	}
	return l.life
}

// Renewed notes that the client has connected again. A caller that waits for a connection begins anew, and
// idle connections that do not answer within a second are closed. It does not wait for that.
func (l *Line) Renewed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life != nil {
		l.cancel()
		l.life = nil
	}
	for pool := range l.pools {
		go func() {
			_ = handlers.Call(func() error {
				for _, conn := range pool.AcquireAllIdle(context.Background()) {
					go func() { _ = handlers.Call(func() error { probe(conn); return nil }) }()
				}
				return nil
			})
		}()
	}
}

// probe closes a connection that does not answer.
func probe(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), answersIn)
	defer cancel()
	defer conn.Release()
	_ = conn.Ping(ctx) // the end of ctx closes the connection; a tracer of the application may panic
}

// Acquire returns a connection of the pool, and calls begin with it, each within a time limit. If the
// connection leads to a server that cannot write, it is closed, and begin is called with another one.
// So it is if the client connects again meanwhile, because the connection's server may no longer
// exist. begin must not have an effect that lasts. If the connection is not nil, the error is of begin.
func Acquire(
	ctx context.Context, line *Line, pool *pgxpool.Pool, limit time.Duration, begin func(context.Context, *pgxpool.Conn) error,
) (*pgxpool.Conn, error) {
	for left := pool.Stat().TotalConns() + 1; ; left-- { // all that there are may lead to a standby
		conn, err := acquireOnce(ctx, line, pool, limit, begin)
		if err == nil || !errors.Is(err, errAnother) || left == 0 || ctx.Err() != nil {
			return conn, err
		}
		if conn != nil {
			conn.Release()
		}
	}
}

var errAnother = errors.New("the connection may not work")

func acquireOnce(
	ctx context.Context, line *Line, pool *pgxpool.Pool, limit time.Duration, begin func(context.Context, *pgxpool.Conn) error,
) (*pgxpool.Conn, error) {
	renewed, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(line.Life(), stop)()
	within, cancel := context.WithTimeout(renewed, limit)
	defer cancel()
	conn, err := pool.Acquire(within)
	if err == nil {
		beginning, cancel := context.WithTimeout(renewed, limit)
		defer cancel()
		err = begin(beginning, conn)
	}
	standby := Whose(err) == Standby
	if conn != nil && standby {
		_ = conn.Conn().Close(ctx)
	}
	if err != nil && ctx.Err() == nil && (standby || renewed.Err() != nil) {
		err = fmt.Errorf("%w: %w", errAnother, err)
	}
	return conn, err
}

// Use calls f with a connection of the pool, and calls it again with another one if the server
// cannot write. A call of f goes on when the client connects again.
func Use(ctx context.Context, line *Line, pool *pgxpool.Pool, f func(*pgxpool.Conn) error) error {
	for left := pool.Stat().TotalConns() + 1; ; left-- {
		conn, err := Acquire(ctx, line, pool, forever, func(context.Context, *pgxpool.Conn) error { return nil })
		if err != nil {
			return err
		}
		err = f(conn)
		standby := Whose(err) == Standby
		if standby {
			_ = conn.Conn().Close(ctx)
		}
		conn.Release()
		if !standby || left == 0 || ctx.Err() != nil {
			return err
		}
	}
}

// forever is longer than any wait for a connection.
const forever = 365 * 24 * time.Hour
