package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Line tells what works on pools of the application what its client knows: that the server was
// away. The pool cannot know that. Its connections look healthy until a statement waits for an
// answer that never comes. The zero Line is ready. A nil Line is that of a client that uses the
// pool, if there is one: a program may also use its pool without its client.
type Line struct {
	mu      sync.Mutex // guards the following fields
	pools   map[*pgxpool.Pool]bool
	renewed time.Time       // the latest renewal
	life    context.Context // ends at the next renewal; nil: nobody has asked for it yet
	cancel  context.CancelFunc
}

// answersIn is how long a connection may take to answer after a renewal.
const answersIn = time.Second

// lines has a *Line for each pool that a client uses. If there are several, any of them will do.
var lines sync.Map

func lineOf(pool *pgxpool.Pool) *Line {
	line, ok := lines.Load(pool)
	if !ok {
		return nil
	}
	return line.(*Line)
}

// End makes the line forget its pools.
func (l *Line) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pool := range l.pools {
		lines.CompareAndDelete(pool, l)
	}
	l.pools = nil
}

// Add makes the line watch a pool.
func (l *Line) Add(pool *pgxpool.Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pools == nil {
		l.pools = make(map[*pgxpool.Pool]bool)
	}
	l.pools[pool] = true
	lines.Store(pool, l)
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

// Until returns a context that also ends when the client has connected again: the server of a
// connection that is in use may be gone.
func (l *Line) Until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.Life(), cancel)
	return ctx, func() { stop(); cancel() }
}

// Renewed notes that the client has connected again. A caller that waits for a connection begins anew, and
// idle connections that do not answer within a second are given up. It does not wait for that.
func (l *Line) Renewed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed = time.Now()
	if l.life != nil {
		l.cancel()
		l.life = nil
	}
	for pool := range l.pools {
		go func() { _ = handlers.Call(func() error { return search(pool) }) }()
	}
}

// search gives up the idle connections of a pool that do not answer. It takes all of them, and
// calls a hook of the pool with each, whose statements must not keep them for ever.
func search(pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(context.Background(), answersIn)
	defer cancel()
	for _, conn := range pool.AcquireAllIdle(ctx) {
		go release(conn)
	}
	return nil
}

// release gives a connection back to its pool, if it answers.
func release(conn *pgxpool.Conn) {
	if answers(context.Background(), conn) == nil {
		conn.Release()
	}
}

// current returns an error if the connection may be from before the latest renewal, and does not
// answer. It is no longer its pool's then. The search for such connections, which a renewal begins,
// may come too late for a caller that begins anew, or miss one that was in use.
func (l *Line) current(ctx context.Context, conn *pgxpool.Conn) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	renewed := l.renewed
	l.mu.Unlock()
	answered, _ := conn.Conn().PgConn().CustomData()[answeredAt].(time.Time)
	if renewed.IsZero() || answered.After(renewed) {
		return nil
	}
	return answers(ctx, conn)
}

// answers returns an error if a connection does not answer within a second. It is no longer its
// pool's then.
func answers(ctx context.Context, conn *pgxpool.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	err := handlers.Call(func() error { return conn.Ping(ctx) }) // a tracer of the application may panic
	if err != nil {
		giveUp(conn)
		return err
	}
	conn.Conn().PgConn().CustomData()[answeredAt] = time.Now()
	return nil
}

// answeredAt is the key of a connection's custom data for the time when it answered last.
const answeredAt = "pgleases answered at"

// giveUp takes a connection out of its pool, and closes it. pgxpool would keep its place occupied
// until the server closes its end too, and a silent server does so after 15 s at the earliest.
func giveUp(conn *pgxpool.Conn) {
	_ = conn.Hijack().Close(context.Background())
}

// outlives returns a context that ends a second after the next renewal. So it ends if the answer to
// a statement will not come, and it hardly ever ends if it will.
func (l *Line) outlives(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.Life(), func() {
		time.AfterFunc(answersIn, func() { cancel(errSilent) })
	})
	return ctx, func() { stop(); cancel(nil) }
}

// Answered calls f, whose context ends a second after the next renewal: then the error says that
// the connection was silent.
func (l *Line) Answered(ctx context.Context, f func(context.Context) error) error {
	ctx, done := l.outlives(ctx)
	defer done()
	err := f(ctx)
	if err != nil && context.Cause(ctx) == errSilent {
		return Lost(wrap.Errorf("%w: %w", errSilent, err))
	}
	return err
}

var errSilent = errors.New("the connection did not answer within a second after the client had connected again")

// A pinged context limits the ping of a pool. pgxpool pings a connection that was idle for a while
// before it returns it, for as long as the context allows, and if that is canceled, for another
// minute. The limit counts from the ping, because a pool asks for it only then. So it does not limit
// the wait for a connection that is free.
type pinged struct{ context.Context }

func (p pinged) Deadline() (time.Time, bool) {
	limit := time.Now().Add(pingsIn)
	deadline, limited := p.Context.Deadline()
	if limited && deadline.Before(limit) {
		return deadline, true
	}
	return limit, true
}

// pingsIn is how long a connection of a pool may take to answer before it is used.
const pingsIn = 2 * time.Second

// Acquire returns a connection of the pool, and calls begin with it, each within a time limit. If the
// connection leads to a server that cannot write, it is closed, and begin is called with another one.
// So it is if the client connects again meanwhile, because the connection's server may no longer
// exist. begin must not have an effect that lasts. If the connection is not nil, the error is of
// begin, and release gives the connection back.
func Acquire(
	ctx context.Context, line *Line, pool *pgxpool.Pool, limit time.Duration,
	begin func(context.Context, *pgxpool.Conn) error,
) (conn *pgxpool.Conn, release func(), err error) {
	within := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, limit)
	}
	return acquire(ctx, cmp.Or(line, lineOf(pool)), pool, within, begin)
}

// A limiter gives each step of acquire a context of its own.
type limiter func(context.Context) (context.Context, context.CancelFunc)

// unlimited is the limiter of a wait that only its caller ends. A timer would cost each statement
// more than the search for the connection does.
func unlimited(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} }

func acquire(
	ctx context.Context, line *Line, pool *pgxpool.Pool, within limiter,
	begin func(context.Context, *pgxpool.Conn) error,
) (conn *pgxpool.Conn, release func(), err error) {
	release = func() {}
	err = repeat(ctx, pool, func() error {
		release()
		conn, release, err = acquireOnce(ctx, line, pool, within, begin)
		return err
	})
	return conn, release, err
}

// repeat calls f, and calls it again while another connection may work. All that there are may lead
// to a standby.
func repeat(ctx context.Context, pool *pgxpool.Pool, f func() error) error {
	another := func(err error) bool { return err != nil && errors.As(err, new(anotherError)) && ctx.Err() == nil }
	err := f()
	if !another(err) {
		return err
	}
	for left := pool.Stat().TotalConns(); left >= 0 && another(err); left-- {
		err = f()
	}
	return err
}

// An anotherError is of a connection that may not work, where another one may.
type anotherError struct{ error }

func (e anotherError) Unwrap() error { return e.error }

func acquireOnce(
	ctx context.Context, line *Line, pool *pgxpool.Pool, within limiter,
	begin func(context.Context, *pgxpool.Conn) error,
) (conn *pgxpool.Conn, release func(), err error) {
	renewed, stop := context.WithCancel(ctx)
	defer stop()
	life := line.Life()
	defer context.AfterFunc(life, stop)()
	waiting, cancel := within(renewed)
	defer cancel()
	conn, err = pool.Acquire(pinged{waiting})
	exhausted := err != nil && ctx.Err() == nil && waiting.Err() == context.DeadlineExceeded
	if exhausted {
		err = fmt.Errorf("the pool had no connection in time: %w", err)
	}
	if err == nil {
		err = line.current(renewed, conn)
		if err != nil {
			conn, err = nil, anotherError{err}
		}
	}
	release = func() { giveBack(conn, life) }
	returned := false
	defer func() {
		if !returned { // begin panics
			release()
		}
	}()
	if err == nil {
		beginning, cancel := within(renewed)
		defer cancel()
		err = begin(beginning, conn)
	}
	standby := Whose(err) == Standby
	if conn != nil && standby {
		_ = conn.Conn().Close(ctx)
	}
	switch {
	case err == nil, ctx.Err() != nil:
	case standby:
		err = anotherError{err}
	case renewed.Err() != nil:
		err = anotherError{fmt.Errorf("the client has connected again: %w", err)}
	}
	returned = true
	return conn, release, err
}

// A Loan is a connection of a pool, while code of the application may use it.
type Loan struct {
	conn    *pgxpool.Conn
	release func() // of Acquire
	once    sync.Once
	left    *pgx.Conn // it is out of its pool
}

// NewLoan returns the loan of what Acquire has returned.
func NewLoan(conn *pgxpool.Conn, release func()) *Loan { return &Loan{conn: conn, release: release} }

// Leave lets the pool replace the connection, because code of the application goes on with it after
// its context has ended. Another goroutine than that of End may call it.
func (l *Loan) Leave() { l.once.Do(func() { l.left = l.conn.Hijack() }) }

// End gives the connection back to its pool, or closes it within the limit if it was left.
func (l *Loan) End(limit time.Duration) {
	l.once.Do(l.release)
	if l.left == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_ = l.left.Close(ctx)
}

// giveBack gives a connection back to its pool. life is that of its line when it was acquired.
func giveBack(conn *pgxpool.Conn, life context.Context) {
	switch {
	case conn == nil:
	case conn.Conn().IsClosed() && life.Err() != nil: // it was silent
		giveUp(conn)
	default:
		conn.Release()
	}
}

// Use calls f with a connection of the pool, and calls it again with another one if the server
// cannot write. ctx is for the wait for a connection only, and working for f. The context of f also
// ends a second after the client has connected again, and then f is not repeated.
func Use(
	ctx, working context.Context, line *Line, pool *pgxpool.Pool, f func(context.Context, *pgxpool.Conn) error,
) error {
	line = cmp.Or(line, lineOf(pool))
	return repeat(ctx, pool, func() error { return useOnce(ctx, working, line, pool, f) })
}

// useOnce calls f with a connection, and releases it, also if f panics.
func useOnce(
	ctx, working context.Context, line *Line, pool *pgxpool.Pool, f func(context.Context, *pgxpool.Conn) error,
) error {
	begin := func(context.Context, *pgxpool.Conn) error { return nil }
	conn, release, err := acquireOnce(ctx, line, pool, unlimited, begin)
	defer release()
	if err != nil {
		return err
	}
	alive, done := line.outlives(working)
	defer done()
	err = f(alive, conn)
	if Whose(err) == Standby {
		_ = conn.Conn().Close(ctx)
		return anotherError{err}
	}
	return err
}

// Read calls f with a connection of the pool, and begins anew as Acquire does. f must not have an
// effect that lasts.
func Read(ctx context.Context, line *Line, pool *pgxpool.Pool, f func(context.Context, *pgxpool.Conn) error) error {
	_, release, err := acquire(ctx, cmp.Or(line, lineOf(pool)), pool, unlimited, f)
	release()
	return err
}

// InTx calls f in a transaction of the pool, and commits it. Until the commit it begins anew as
// Acquire does. If the commit is not answered, the error is that of a failed connection.
func InTx(ctx context.Context, line *Line, pool *pgxpool.Pool, f func(context.Context, pgx.Tx) error) error {
	return inTx(ctx, line, pool, handlers.ReadCommitted, f)
}

// InOperatorsTx is InTx for a change that an operator makes. It is read-only if its session is by
// default: failover tools and operators set that to stop writes.
func InOperatorsTx(ctx context.Context, line *Line, pool *pgxpool.Pool, f func(context.Context, pgx.Tx) error) error {
	return inTx(ctx, line, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, f)
}

// Change is InOperatorsTx for a change without a client, see Committed.
func Change(ctx context.Context, pool *pgxpool.Pool, unknown error, f func(context.Context, pgx.Tx) error) error {
	return Committed(ctx, unknown, func(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
		return InOperatorsTx(ctx, nil, pool, f)
	}, f)
}

// Committed calls f in a transaction of in. If the commit is not answered, so that what f did may be
// committed, the error wraps unknown.
func Committed(
	ctx context.Context, unknown error, in func(context.Context, func(context.Context, pgx.Tx) error) error,
	f func(context.Context, pgx.Tx) error,
) error {
	committing := false // so an error is that of the commit
	err := in(ctx, func(ctx context.Context, tx pgx.Tx) error {
		err := f(ctx, tx)
		committing = err == nil
		return err
	})
	if err != nil && committing && !handlers.NotCommitted(err) {
		return wrap.Errorf("%w: %w", unknown, err)
	}
	return err
}

func inTx(
	ctx context.Context, line *Line, pool *pgxpool.Pool, options pgx.TxOptions, f func(context.Context, pgx.Tx) error,
) error {
	line = cmp.Or(line, lineOf(pool))
	var tx pgx.Tx
	begin := func(ctx context.Context, conn *pgxpool.Conn) (err error) {
		tx, err = conn.BeginTx(ctx, options)
		if err != nil {
			return err
		}
		return f(ctx, tx)
	}
	conn, release, err := acquire(ctx, line, pool, unlimited, begin)
	defer release()
	switch {
	case err == nil:
		err = commit(ctx, line, tx)
	case conn != nil && tx != nil:
		_ = tx.Rollback(ctx) // the pool closes the connection if this fails
	}
	return err
}

func commit(ctx context.Context, line *Line, tx pgx.Tx) error {
	err := line.Answered(ctx, tx.Commit)
	if errors.Is(err, errSilent) {
		return Lost(fmt.Errorf("commit: %w, so it may have been committed", errSilent))
	}
	return err
}
