package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/locks"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// Locks acquires locks for a client. All methods are safe for concurrent use.
type Locks struct {
	client *engine.Client
	pool   *pgxpool.Pool
	table  locks.Table
	misuse error // why New's arguments cannot be used; nil: they can
}

// New returns the locks of a client. It acquires and releases them on connections of the pool, and
// closes neither client nor pool. The pool has to lead to the client's database. It may do so
// through a connection pooler, because each statement is one message, in the mode that the pool has
// for all its statements (pgx.QueryExecMode). If client or pool is nil, every call returns an
// error. A client of package pgleasestest needs no pool.
//
// Client.Close asks for the end of all work under locks, and waits for the releases until its ctx
// ends. A lock that is not released then is free when the session expires.
func New(client *pgleases.Client, pool *pgxpool.Pool) *Locks {
	if client == nil {
		return &Locks{misuse: errors.New("pgleases: locks: client is nil")}
	}
	of := bridge.Engine(client)
	table := of.LockTable(pool)
	if table == nil {
		return &Locks{misuse: errors.New("pgleases: locks: pool is nil")}
	}
	return &Locks{client: of, pool: pool, table: table}
}

// TryAcquire acquires a lock if it is free and no client waits for it, in one round trip. Otherwise
// it returns ErrHeld. If all sessions that hold or await the lock have expired, for example after a
// crash, TryAcquire waits until they are evicted, and tries again. A client evicts a session after
// it has watched the database's clock for that session's TTL.
//
// The name has 1 to 255 bytes of UTF-8 without NUL. ctx covers the call only, including these waits
// and the wait for a connection of the pool. The lock is held until Held.Release, which you have to
// call. If an answer is lost, TryAcquire asks for it once more.
//
// The other errors are pgleases.ErrClosed, ErrSuperseded and ErrEvicted if the client has ended,
// and pgleases.ErrTrustLost if the client has no trust in its session. The cause of ctx, and errors
// of the pool and the database, are returned too. If a call fails, the client gives back what the
// call may have acquired.
func (l *Locks) TryAcquire(ctx context.Context, name string) (*Held, error) {
	return l.acquire(ctx, mode{}, name)
}

// TryAcquireShared is TryAcquire for a lock that others may share. It also acquires a lock that is
// held, if all holders share it.
func (l *Locks) TryAcquireShared(ctx context.Context, name string) (*Held, error) {
	return l.acquire(ctx, mode{shared: true}, name)
}

// Acquire acquires a lock, and waits for its turn until ctx ends. Otherwise it does what TryAcquire
// does, without ErrHeld. Only if ctx comes from work under the same lock, so that the call would
// wait for its own caller forever, it returns ErrHeld. It also waits while the client has no trust,
// and while a promoted server is not accepted. If the session is evicted meanwhile, Acquire joins
// the queue again at its end.
func (l *Locks) Acquire(ctx context.Context, name string) (*Held, error) {
	return l.acquire(ctx, mode{waits: true}, name)
}

// AcquireShared is Acquire for a lock that others may share. It does not pass a writer that has
// waited for longer.
func (l *Locks) AcquireShared(ctx context.Context, name string) (*Held, error) {
	return l.acquire(ctx, mode{shared: true, waits: true}, name)
}

// Do acquires a lock as Acquire does, runs fn, and releases the lock, also if fn panics. fn's
// context ends with ctx and with Held.Context. Do returns the error of acquiring, and does not run
// fn then. Otherwise it returns the error of fn joined with that of the release. ErrLost says that
// another client may have had the lock before fn ended.
func (l *Locks) Do(ctx context.Context, name string, fn func(ctx context.Context) error) error {
	if fn == nil {
		return noFunction(name)
	}
	h, err := l.Acquire(ctx, name)
	if err != nil {
		return err
	}
	return h.run(ctx, fn)
}

// TryDo acquires a lock as TryAcquire does, and runs fn as Do does. If the lock is held, it returns
// false and no error. After a crash of the holder it may wait for about the holder's TTL. A later
// caller runs fn again, so for work once a night, use package schedule.
func (l *Locks) TryDo(ctx context.Context, name string, fn func(ctx context.Context) error) (ran bool, err error) {
	if fn == nil {
		return false, noFunction(name)
	}
	h, err := l.TryAcquire(ctx, name)
	switch {
	case errors.Is(err, ErrHeld):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, h.run(ctx, fn)
}

func noFunction(name string) error {
	return fmt.Errorf("pgleases: run under lock %q: the function is nil; pass the one that works under the lock", name)
}

// mode says how to ask for a lock.
type mode struct{ shared, waits bool }

func (l *Locks) acquire(ctx context.Context, m mode, name string) (*Held, error) {
	if err := cmp.Or(l.misuse, store.CheckName("lock name", name)); err != nil {
		return nil, err
	}
	if err := l.checkNested(ctx, m, name); err != nil {
		return nil, wrap.Errorf("pgleases: acquire lock %q: %w", name, err)
	}
	for {
		got, err := l.wait(ctx, m, name)
		if err != nil {
			return nil, wrap.Errorf("pgleases: acquire lock %q: %w", name, err)
		}
		h := newHeld(ctx, l, got.of, m.shared, got.token)
		err = l.client.Locks.Hold(got.of, got.token, h.end)
		if err == nil {
			return h, nil
		}
		again, err := failure(ctx, err)
		if again != whileWaiting || !m.waits {
			return nil, wrap.Errorf("pgleases: acquire lock %q: %w", name, err)
		}
	}
}

// ask asks for a lock in the name of a line, until it is granted.
func (l *Locks) ask(ctx context.Context, m mode, of *line) (grant, error) {
	for tries := 1; ; tries++ {
		got, again, err := l.attempt(ctx, m, of)
		switch {
		case err == nil:
			return got, nil
		case again == never, again == twice && tries > 2, again == whileWaiting && !m.waits:
			if again == twice {
				asked := handlers.Called(func() error { return l.client.Reaches(ctx, l.pool, "") })
				why, ended := locks.Answer(ctx, nil, nil, asked)
				err = cmp.Or(ended, why, err)
			}
			return grant{}, err
		}
		of.note(err)
		// After a heartbeat the client knows the server's state, so a heartbeat is sent at once. A second
		// one follows, because the first may have been under way already, but no third.
		var ended error
		if again == whileExpired {
			tries = 0
			_, ended = locks.Answer(ctx, l.client.Done(), l.client.Err, time.After(expiredPoll))
		} else {
			ended = l.client.Beat(ctx, tries <= 2)
		}
		if ended != nil {
			return grant{}, fmt.Errorf("%w; %v", ended, err)
		}
	}
}

// repetition says when a failed attempt may be repeated, after a heartbeat.
type repetition int

const (
	never        repetition = iota
	twice                   // the client's knowledge of the server was old, or the holder was evicted meanwhile
	whileWaiting            // the lock is held, or the server is not accepted yet
	whileExpired            // the holder's session has expired, and this client may not evict it yet
)

// expiredPoll is the pause between two attempts while the holder's session is expired.
const expiredPoll = 100 * time.Millisecond

// attempt acquires a lock, or waits for it in its queue.
func (l *Locks) attempt(ctx context.Context, m mode, of *line) (grant, repetition, error) {
	a, err := l.client.Locks.Begin(ctx, of.key.name)
	if err != nil {
		again, err := failure(ctx, err)
		return grant{}, again, err
	}
	answer, giveUp, err := l.request(ctx, m, a)
	if err != nil {
		giveUp(a)
		again, err := failure(ctx, err)
		return grant{}, again, err
	}
	switch answer.Outcome {
	case store.LockGranted:
	case store.LockWaits:
		if answer.Holder != "" {
			of.note(fmt.Errorf("when it was asked for, it was held or awaited %s", l.inTheWay(a.Name, answer)))
		}
		answer.Token, err = l.client.Locks.Await(ctx, a)
		if err != nil {
			l.client.Locks.Abandon(a)
			return grant{}, never, err
		}
		if answer.Token == 0 {
			return grant{}, whileWaiting, errors.New("the place in the queue was lost with the session")
		}
	default:
		giveUp(a)
		again, err := l.refusal(a, answer)
		if m.waits && answer.Outcome == store.LockLate { // it waited too long for a connection of the pool
			again = whileWaiting
		}
		return grant{}, again, err
	}
	return grant{a, answer.Token}, never, nil
}

// request asks for a lock, and once more if the answer was lost. It also returns what to do with
// the acquisition if the lock is not granted.
func (l *Locks) request(
	ctx context.Context, m mode, a *locks.Acquisition,
) (store.LockAnswer, func(*locks.Acquisition), error) {
	answer, sent, err := l.send(ctx, m, a, func(answer store.LockAnswer, err error) {
		l.unused(answer, true, err)(a)
	})
	switch {
	case errors.Is(err, store.ErrUnanswered): // the answer decides
		return answer, func(*locks.Acquisition) {}, err
	case err == nil, !sent, store.Code(err) != "":
		return answer, l.unused(answer, sent, err), err
	}
	if ctx.Err() == nil { // the message may still arrive: ask about it by its nonce
		l.client.Locks.SendTwice(a)
		answer, _, err = l.send(ctx, m, a, func(store.LockAnswer, error) {})
	}
	return answer, l.client.Locks.Abandon, err
}

// unused returns how to end an acquisition whose answer comes too late, or is of no use.
func (l *Locks) unused(answer store.LockAnswer, sent bool, err error) func(*locks.Acquisition) {
	unknown := err != nil && sent && !store.LockTimeout(err)
	if unknown || answer.Outcome == store.LockGranted || answer.Outcome == store.LockWaits {
		return l.client.Locks.Abandon
	}
	return l.client.Locks.Forget
}

// failure returns whether to repeat an attempt that has failed, and why it has.
func failure(ctx context.Context, err error) (repetition, error) {
	switch {
	case ctx.Err() != nil:
		return never, context.Cause(ctx)
	case errors.Is(err, pgleases.ErrTrustLost), store.LockTimeout(err): // or the lock's mutex is contended
		return whileWaiting, err
	case store.Undefined(err), errors.Is(err, locks.ErrPaused):
		return twice, err
	case worker.Whose(err) == worker.Standby:
		err = fmt.Errorf("the pool leads to a standby, or default_transaction_read_only is on in it: %w", err)
	}
	return never, err
}

// send asks for a lock. It reports whether the database may have been asked.
func (l *Locks) send(
	ctx context.Context, m mode, a *locks.Acquisition, late func(store.LockAnswer, error),
) (answer store.LockAnswer, sent bool, err error) {
	return l.table.Acquire(ctx, store.LockRequest{
		Name: a.Name, Session: a.Session, Nonce: a.Nonce, Shared: m.shared, Waits: m.waits,
		Latest: a.Latest, Server: a.Run,
	}, late)
}

// inTheWay returns who has the lock, or waits for it.
func (l *Locks) inTheWay(name string, answer store.LockAnswer) string {
	who := "this client itself"
	if answer.Holder != l.client.ID() || answer.PID != os.Getpid() { // another process may have taken over the ID
		who = fmt.Sprintf("client %q, host %s, pid %d", answer.Holder, answer.Host, answer.PID)
	}
	by := fmt.Sprintf("by %s, since %s", who, answer.Since.Format(time.RFC3339Nano))
	if at, is := l.client.Locks.LostSince(name); is {
		const unreleased = " (this client lost the lock at %s and has not released it: call Release on the lost Held)"
		by += fmt.Sprintf(unreleased, at.Format(time.RFC3339Nano))
	}
	return by
}

// refusal returns why the database has not granted the lock.
func (l *Locks) refusal(a *locks.Acquisition, answer store.LockAnswer) (repetition, error) {
	switch answer.Outcome {
	case store.LockHeld, store.LockExpired:
		if answer.Holder == "" {
			return twice, fmt.Errorf("%w: by a client that was evicted, because a guarded transaction is open", ErrHeld)
		}
		by := l.inTheWay(a.Name, answer)
		until := answer.LivesUntil.Format(time.RFC3339Nano)
		if answer.Outcome == store.LockExpired {
			return whileExpired, fmt.Errorf("held or awaited %s; its session expired at %s, and is not evicted yet",
				by, until)
		}
		return never, fmt.Errorf("%w: %s; its session expires at %s without another heartbeat", ErrHeld, by, until)
	case store.LockElsewhere:
		return twice, errors.New("the pool leads to another server, or another incarnation of it, " +
			"than the client's connection")
	case store.LockUnaccepted:
		return whileWaiting, errors.New("the server was promoted, and is not accepted yet: that takes a TTL")
	case store.LockLate:
		return twice, errors.New("the request reached the database after its trust deadline")
	case store.LockGone:
		return whileWaiting, fmt.Errorf("%w: the session was evicted, or a newer process has the client ID",
			pgleases.ErrTrustLost)
	}
	return never, fmt.Errorf("the database answered %q", answer.Outcome)
}
