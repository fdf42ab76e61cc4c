package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/lock"
)

// Callers of one client share one request. It stays in the queue when the caller gives up in whose
// name it was made, and giving up sends nothing.
func TestCallersShareOneRequest(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a := newWorker(t, url)
	b := newWorker(t, url, pgleases.WithHeartbeat(time.Second)) // which is its patience for the mutex
	h := a.held(a.Acquire, "x")
	release(t, b.held(b.Acquire, "its first may be sent twice"))
	b.app.Count("lock_acquire")
	b.own.Count("lock_releases")
	const callers, givingUp = 10, 5
	type result struct {
		caller int
		held   *lock.Held
		err    error
	}
	results, gaveUp := make(chan result, callers), errors.New("gave up")
	var cancels []context.CancelCauseFunc
	for i := range callers {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancels = append(cancels, cancel)
		go func() {
			held, err := b.Acquire(ctx, "x")
			results <- result{i, held, err}
		}()
		testkit.Until(t, "it waits", func() bool { return b.client.Stats().Locks.Waiting == i+1 })
	}
	testkit.Becomes(t, db, "requests in the queue", 1, rows+" WHERE token IS NULL")
	for _, cancel := range cancels[:givingUp] {
		cancel(gaveUp)
		r := testkit.Receive(t, "it gives up", results)
		wraps(t, "it gives up", r.err, gaveUp)
		if by := fmt.Sprintf("by client %q", a.client.ID()); !strings.Contains(r.err.Error(), by) {
			t.Errorf("the error does not say %q: %v", by, r.err)
		}
	}
	expect(t, b.client.Stats().Locks.Waiting, callers-givingUp, "callers that wait")
	clients.Beats(t, b.client, 1) // by then the client has sent what it had to
	expect(t, b.own.Counted(), 0, "places that were given back")
	release(t, h)
	for i := givingUp; i < callers; i++ {
		r := testkit.Receive(t, "the next has the lock", results)
		testkit.OK(t, r.err)
		expect(t, r.caller, i, "who has the lock")
		release(t, r.held)
	}
	expect(t, b.app.Counted(), callers-givingUp, "acquisitions that were sent")
}

// The line asks for what its first caller wants.
func TestReadersAndWritersShareALine(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a, b := newWorker(t, url), newWorker(t, url)
	h := a.held(a.AcquireShared, "x")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := b.Acquire(ctx, "x"); ended <- err }()
	testkit.Becomes(t, db, "the writer waits", 1, rows+" WHERE token IS NULL AND NOT shared")
	got := make(chan *lock.Held, 2)
	for i := range 2 {
		go func() { got <- testkit.Must(b.AcquireShared(t.Context(), "x"))(t) }()
		testkit.Until(t, "a reader waits", func() bool { return b.client.Stats().Locks.Waiting == i+2 })
	}
	cancel()
	wraps(t, "the writer gives up", testkit.Receive(t, "it returns", ended), context.Canceled)
	one, two := testkit.Receive(t, "a reader has the lock", got), testkit.Receive(t, "the other has it too", got)
	for _, h := range []*lock.Held{h, one, two} {
		release(t, h)
	}
}

// mutex makes a transaction have the mutex of a name.
func mutex(t testing.TB, db *pgxpool.Pool, name string) (free func()) {
	t.Helper()
	tx := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(pgleases.lock_mutex($1))", name))(t)
	return func() { testkit.OK(t, tx.Rollback(context.Background())) }
}

const blocked = `SELECT count(*) FROM pg_locks
	WHERE NOT granted AND locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

func TestDeadlineInStatementKeepsConnection(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a := newWorker(t, url, pgleases.WithHeartbeat(10*time.Second)) // for so long a statement waits for the mutex
	release(t, a.held(a.Acquire, "x"))
	before := a.pool.Stat().NewConnsCount()
	for name, acquire := range map[string]func(context.Context, string) (*lock.Held, error){
		"x": a.Acquire,
		"y": a.TryAcquire,
	} {
		free := mutex(t, db, name)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { _, err := acquire(ctx, name); ended <- err }()
		testkit.Becomes(t, db, "the statement waits", 1, blocked)
		cancel()
		wraps(t, "it gives up", testkit.Receive(t, "it returns", ended), context.Canceled)
		free()
		testkit.Until(t, "the statement has ended", func() bool { return a.pool.Stat().AcquiredConns() == 0 })
		testkit.Becomes(t, db, "nothing is left", 0, rows)
	}
	release(t, a.held(a.Acquire, "x"))
	expect(t, a.pool.Stat().NewConnsCount(), before, "connections")
}

// However many clients ask for a lock, one of them stands before a release.
func TestReleaseDoesNotQueueBehindAcquisitions(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	direct, _ := pgtest.DirectURL(url) // behind a pooler, who waits would see at a heartbeat only that it has the lock
	patient := []pgleases.Option{
		pgleases.WithTTL(10 * time.Minute),
		pgleases.WithHeartbeat(time.Minute), // which is also the patience for the mutex
		pgleases.WithConnConfig(testkit.Must(pgx.ParseConfig(direct))(t)),
	}
	a := newWorker(t, url, patient...)
	release(t, a.held(a.Acquire, "its first may be sent twice")) // then the client releases the other one itself
	h := a.held(a.Acquire, "x")
	free := mutex(t, db, "x")
	const others = 4
	got := make(chan *lock.Held, others)
	for i := range others {
		w := newWorker(t, url, patient...)
		go func() { got <- testkit.Must(w.Acquire(t.Context(), "x"))(t) }()
		testkit.Becomes(t, db, "it asks", i+1, blocked)
	}
	released := make(chan error, 1)
	go func() { released <- h.Release(t.Context()) }()
	testkit.Becomes(t, db, "the release waits too", others+1, blocked)
	if n := testkit.Value[int](t, db, blocked+" AND objsubid = 1"); n > 2 {
		t.Errorf("%d statements wait for the mutex, not the release and an acquisition", n)
	}
	free()
	testkit.OK(t, testkit.Receive(t, "the release returns", released))
	for range others {
		release(t, testkit.Receive(t, "it has the lock", got))
	}
}
