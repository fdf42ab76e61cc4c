package lock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/lock"
)

const rows = "SELECT count(*) FROM pgleases.locks"

func TestALockIsHeldByOneAndTheErrorSaysByWhom(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	a, b := newWorker(t, url, pgleases.WithClientID("the holder")), newWorker(t, url)
	db := testkit.Pool(t, url)
	h := a.held(a.TryAcquire, "x")
	expect(t, h.Name(), "x", "name")
	expect(t, h.Shared(), false, "shared")
	_, err := b.TryAcquire(t.Context(), "x")
	wraps(t, "held", err, lock.ErrHeld)
	for _, text := range []string{`"x"`, "the holder", "since 20", "expires at 20", "pid"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %s: %v", text, err)
		}
	}
	_, err = a.TryAcquire(t.Context(), "x")
	wraps(t, "not reentrant", err, lock.ErrHeld)
	_, err = b.TryAcquireShared(t.Context(), "x")
	wraps(t, "held by a writer", err, lock.ErrHeld)
	testkit.OK(t, h.Context().Err())
	release(t, h)
	release(t, h) // idempotent
	expect(t, errors.Is(context.Cause(h.Context()), lock.ErrLost), false, "a lock that was released was lost")
	expect(t, h.Context().Err(), context.Canceled, "context after the release")
	expect(t, testkit.Value[int](t, db, rows), 0, "rows")
	second := b.held(b.TryAcquire, "x")
	expect(t, second.Token() > h.Token(), true, "the token rises")
	release(t, second)
}

// If no notification arrives, the heartbeat returns it.
func TestWhoWaitsGetsTheLockWithoutNotifications(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a, b := newWorker(t, url), newWorker(t, url, pgleases.WithPolling())
	h := a.held(a.Acquire, "x")
	b.own.Count("lock_look")
	place := b.waits(db, b.Acquire, "x")
	b.looked(db)
	release(t, h)
	release(t, testkit.Receive(t, "it has the lock", place))
}

// No heartbeat arrives meanwhile that would return it.
func TestWaitersAreNotified(t *testing.T) {
	t.Parallel()
	url := direct(t)
	db := testkit.Pool(t, url)
	slow := []pgleases.Option{pgleases.WithTTL(10 * time.Minute), pgleases.WithHeartbeat(5 * time.Minute)}
	a, b := newWorker(t, url), newWorker(t, url, slow...)
	testkit.Until(t, "it listens", func() bool { return b.client.Stats().Listening })
	h := a.held(a.Acquire, "x")
	b.own.Count("lock_look")
	place := b.waits(db, b.Acquire, "x")
	b.looked(db)
	release(t, h)
	release(t, testkit.Receive(t, "it has the lock", place))
}

func TestWhoStopsWaitingLeavesTheQueue(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a, b, c := newWorker(t, url), newWorker(t, url), newWorker(t, url)
	h := a.held(a.AcquireShared, "x")
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := errors.New("gave up")
	ended := make(chan error, 1)
	go func() { _, err := b.Acquire(ctx, "x"); ended <- err }()
	testkit.Becomes(t, db, "it waits", 1, rows+" WHERE token IS NULL")
	place := c.waits(db, c.AcquireShared, "x")
	cancel(gaveUp)
	wraps(t, "it gave up", testkit.Receive(t, "it returns", ended), gaveUp)
	release(t, testkit.Receive(t, "who came after it has the lock", place))
	expect(t, testkit.Value[int](t, db, rows), 1, "rows")
	release(t, h)
}

func TestDoRunsUnderTheLockAndTryDoSkips(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a, b := newWorker(t, url), newWorker(t, url)
	failed := errors.New("failed")
	err := a.Do(t.Context(), "x", func(ctx context.Context) error {
		testkit.OK(t, ctx.Err())
		ran := testkit.Must(b.TryDo(ctx, "x", func(context.Context) error {
			t.Error("it ran beside another")
			return nil
		}))(t)
		expect(t, ran, false, "it ran")
		return failed
	})
	wraps(t, "Do", err, failed)
	expect(t, errors.Is(err, lock.ErrLost), false, "the lock was lost")
	ran := testkit.Must(b.TryDo(t.Context(), "x", func(context.Context) error { return nil }))(t)
	expect(t, ran, true, "it ran")
	ran, err = b.TryDo(t.Context(), "x", func(context.Context) error { return failed })
	expect(t, ran, true, "it ran")
	wraps(t, "TryDo", err, failed)

	ctx, cancel := context.WithCancel(t.Context())
	wraps(t, "its ctx ended", a.Do(ctx, "x", func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}), context.Canceled)
	func() {
		defer func() { expect(t, fmt.Sprint(recover()), "it panics", "recovered") }()
		_ = a.Do(t.Context(), "x", func(context.Context) error { panic("it panics") })
	}()
	expect(t, testkit.Value[int](t, db, rows), 0, "rows")
}

func TestAGuardFencesWritesUntilTheLockIsReleased(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	a, b := newWorker(t, url), newWorker(t, url)
	db := testkit.Pool(t, url)
	h := a.held(a.TryAcquire, "x")
	tx := testkit.Must(db.Begin(t.Context()))(t)
	testkit.OK(t, h.Guard(t.Context(), tx))
	released := make(chan error, 1)
	go func() { released <- h.Release(context.Background()) }()
	testkit.Until(t, "the release is tried", func() bool { return h.Context().Err() != nil })
	_, err := b.TryAcquire(t.Context(), "x")
	wraps(t, "while the transaction is open", err, lock.ErrHeld)
	select {
	case err := <-released:
		t.Fatalf("it was released under an open guard: %v", err)
	default:
	}
	testkit.OK(t, tx.Commit(t.Context()))
	testkit.OK(t, testkit.Receive(t, "it is released", released))
	tx = testkit.Must(db.Begin(t.Context()))(t)
	wraps(t, "guard after the release", h.Guard(t.Context(), tx), lock.ErrLost)
	testkit.OK(t, tx.Rollback(t.Context()))

	h = a.held(a.TryAcquire, "x")
	standard := stdlib.OpenDBFromPool(db)
	defer standard.Close()
	std := testkit.Must(standard.BeginTx(t.Context(), &sql.TxOptions{}))(t)
	testkit.OK(t, h.GuardSQL(t.Context(), std))
	testkit.OK(t, std.Rollback())
	testkit.Execute(t, testkit.Pool(t, pgtest.OwnerURL(url)), "DELETE FROM pgleases.locks")
	std = testkit.Must(standard.BeginTx(t.Context(), &sql.TxOptions{}))(t)
	wraps(t, "guard of what the database has no more", h.GuardSQL(t.Context(), std), lock.ErrLost)
	testkit.OK(t, std.Rollback())
	wraps(t, "release of what the database has no more", h.Release(t.Context()), lock.ErrLost)
	if h.Guard(t.Context(), nil) == nil || h.GuardSQL(t.Context(), nil) == nil {
		t.Error("a guard without a transaction passed")
	}
}

func TestCutOffClientStopsBeforeNextHolder(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, cutOffClientStopsBeforeNextHolder)
}

func cutOffClientStopsBeforeNextHolder(t *timeguard.Try) {
	t.Brief(time.Second)
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	short := []pgleases.Option{pgleases.WithTTL(time.Second), pgleases.WithHeartbeat(100 * time.Millisecond)}
	a := newWorker(t, url, short...)
	b := newWorker(t, url, pgleases.WithTTL(2*time.Second), pgleases.WithHeartbeat(100*time.Millisecond))
	h := a.held(a.TryAcquire, "x")
	still := a.held(a.TryAcquire, "y")
	place := b.waits(db, b.Acquire, "x")
	tx := testkit.Must(db.Begin(t.Context()))(t)
	a.own.Cut()
	next := testkit.Receive(t, "another has the lock", place)
	if h.Context().Err() == nil {
		t.Fatal("two had the lock")
	}
	wraps(t, "cause", context.Cause(h.Context()), lock.ErrLost, pgleases.ErrTrustLost)
	wraps(t, "guard", h.Guard(t.Context(), tx), lock.ErrLost)
	_, err := tx.Exec(t.Context(), "SELECT pgleases.guard_lock('x', $1)", h.Token())
	expect(t, err != nil, true, "a guard of the database refuses the token of before")
	testkit.OK(t, tx.Rollback(t.Context()))
	_, err = a.TryAcquire(t.Context(), "z")
	wraps(t, "acquisition without trust", err, pgleases.ErrTrustLost)
	testkit.Becomes(t, db, "no row of evicted sessions is left", 1, rows)
	a.own.Mend()
	wraps(t, "release", h.Release(t.Context()), lock.ErrLost, pgleases.ErrTrustLost)
	wraps(t, "release once more", h.Release(t.Context()), lock.ErrLost)
	wraps(t, "release", still.Release(t.Context()), lock.ErrLost)
	testkit.OK(t, next.Context().Err())
	expect(t, testkit.Value[int](t, db, rows), 1, "rows after the release of what was lost")
	waiting := a.waits(db, a.Acquire, "x")
	release(t, next)
	release(t, testkit.Receive(t, "it has the lock again", waiting))
}

// Its session is not evicted: it lives on, and the lock is lost anyway.
func TestALockThatWasLostNeverComesBack(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, aLockThatWasLostNeverComesBack)
}

func aLockThatWasLostNeverComesBack(t *timeguard.Try) {
	t.Brief(time.Second)
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a := newWorker(t, url, pgleases.WithTTL(time.Second), pgleases.WithHeartbeat(100*time.Millisecond))
	h := a.held(a.TryAcquire, "x")
	a.own.Cut()
	testkit.Receive(t, "it is lost", h.Context().Done())
	a.own.Mend()
	testkit.Until(t, "there is trust again", func() bool {
		other, err := a.TryAcquire(t.Context(), "y")
		if err == nil {
			release(t, other)
		}
		return err == nil
	})
	_, err := a.TryAcquire(t.Context(), "x")
	wraps(t, "its row keeps others out", err, lock.ErrHeld)
	wraps(t, "release", h.Release(t.Context()), lock.ErrLost)
	expect(t, testkit.Value[int](t, db, rows), 0, "rows")
}

// In between another client may have had the lock.
func TestAGrantThatIsOlderThanTheTrustDoesNotCount(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, aGrantThatIsOlderThanTheTrustDoesNotCount)
}

func aGrantThatIsOlderThanTheTrustDoesNotCount(t *timeguard.Try) {
	t.Brief(time.Second)
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a := newWorker(t, url, pgleases.WithTTL(time.Second), pgleases.WithHeartbeat(100*time.Millisecond))
	before := a.held(a.TryAcquire, "before")
	deliver := a.app.Delay("lock_acquire")
	defer deliver()
	type answer struct {
		held *lock.Held
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		h, err := a.TryAcquire(context.Background(), "x")
		got <- answer{h, err}
	}()
	testkit.Becomes(t, db, "it is granted", 1, rows+" WHERE name = 'x'")
	a.own.Cut()
	testkit.Receive(t, "trust is lost", before.Context().Done())
	a.own.Mend()
	testkit.Until(t, "there is trust again", func() bool { return a.client.Stats().Trust > 0 })
	deliver()
	late := testkit.Receive(t, "it returns", got)
	// When it had connected again, the client may have asked once more, and have found that grant.
	if !errors.Is(late.err, pgleases.ErrTrustLost) && !errors.Is(late.err, lock.ErrHeld) {
		t.Fatalf("a grant of before the loss of trust: lock %v, error %v", late.held, late.err)
	}
	testkit.Becomes(t, db, "it is given back", 0, rows+" WHERE name = 'x'")
}

func TestLostAnswerLeavesNoUnknownLock(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a := newWorker(t, url)
	for _, after := range []bool{false, true} {
		a.app.Lose(1, "lock_acquire", after)
		h := a.held(a.TryAcquire, "x")
		expect(t, a.app.Left(), 0, "messages to lose")
		expect(t, testkit.Value[int](t, db, rows), 1, "rows")
		a.app.Lose(1, "lock_release", after)
		release(t, h)
		expect(t, a.app.Left(), 0, "messages to lose")
		expect(t, testkit.Value[int](t, db, rows), 0, "rows")

		a.app.Lose(2, "lock_acquire", after)
		if h, err := a.TryAcquire(t.Context(), "x"); err == nil {
			t.Errorf("both answers were lost, and it has %v", h)
		}
		expect(t, a.app.Left(), 0, "messages to lose")
		testkit.Becomes(t, db, "no row is left", 0, rows)
	}
	h := a.held(a.Acquire, "x")
	b := newWorker(t, url)
	b.app.Lose(1, "lock_acquire", true)
	place := b.waits(db, b.Acquire, "x")
	expect(t, testkit.Value[int](t, db, rows), 2, "rows")
	release(t, h)
	release(t, testkit.Receive(t, "it has the lock", place))
	testkit.OK(t, b.client.Close(t.Context()))
}

// The calls that use all connections of the pool may wait for this very lock. A call that waits for
// a connection has sent no request yet: the trust at that time does not matter.
func TestAPoolThatIsExhaustedCostsTimeAndNoLock(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	timeguard.Run(t, aPoolThatIsExhaustedCostsTimeAndNoLock)
}

func aPoolThatIsExhaustedCostsTimeAndNoLock(t *timeguard.Try) {
	t.Brief(time.Second)
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a := newWorker(t, url, pgleases.WithTTL(time.Second))
	kept := a.held(a.TryAcquire, "kept")
	var all []*pgxpool.Conn
	for range a.pool.Config().MaxConns {
		conn := testkit.Must(a.pool.Acquire(t.Context()))(t)
		t.Cleanup(conn.Release) // or the end of the pool waits for it, if the try ends before
		all = append(all, conn)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := a.Acquire(ctx, "y")
	wraps(t, "acquisition", err, context.DeadlineExceeded)
	for _, acquire := range []func(context.Context, string) (*lock.Held, error){a.TryAcquire, a.Acquire} {
		got := make(chan error, 1)
		go func() {
			h, err := acquire(t.Context(), "x")
			if err == nil {
				err = h.Release(t.Context())
			}
			got <- err
		}()
		since := time.Now()
		testkit.Until(t, "heartbeats go on for longer than the TTL", func() bool {
			return time.Since(since) > 1500*time.Millisecond
		})
		all[0].Release()
		testkit.OK(t, testkit.Receive(t, "it is done", got))
		all[0] = testkit.Must(a.pool.Acquire(t.Context()))(t)
	}
	testkit.OK(t, kept.Context().Err())
	release(t, kept)
	expect(t, testkit.Value[int](t, db, rows), 0, "rows")
	for _, conn := range all {
		conn.Release()
	}
}

func TestAPoolThatCannotServeIsNamed(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url, other := newDatabase(t), newDatabase(t)
	a := newWorker(t, url)
	past, _ := pgtest.DirectURL(url)
	reads := testkit.Pool(t, past, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	stray, empty := testkit.Pool(t, other), testkit.Pool(t, pgtest.EmptyDatabase(t))
	testkit.Execute(t, testkit.Pool(t, pgtest.OwnerURL(other)), `
		INSERT INTO pgleases.boot_marker SELECT 1;
		UPDATE pgleases.server SET accepted_timeline = pgleases.timeline()`)
	const elsewhere = "another server, database or schema"
	for pool, says := range map[*pgxpool.Pool]string{
		stray: elsewhere,
		empty: elsewhere,
		reads: "leads to a standby, or default_transaction_read_only",
	} {
		_, err := lock.New(a.client, pool).TryAcquire(t.Context(), "x")
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, which does not say %q", err, says)
		}
	}
	expect(t, testkit.Value[int](t, stray, rows), 0, "rows")

	// The client's knowledge of the server is old: a heartbeat updates it.
	testkit.Execute(t, testkit.Pool(t, pgtest.OwnerURL(url)), "UPDATE pgleases.boot_marker SET marker = marker + 1")
	release(t, a.held(a.TryAcquire, "x"))
}

// A failover may lose acknowledged transactions.
func TestAnotherRunOfTheServerHasToConfirmWhatIsHeld(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, pgtest.OwnerURL(url))
	a := newWorker(t, url)
	kept := a.held(a.TryAcquire, "kept")
	lost := a.held(a.TryAcquire, "lost")
	ungranted := a.held(a.TryAcquire, "ungranted")
	testkit.Execute(t, db, `
		BEGIN;
		DELETE FROM pgleases.boot_marker; -- as a promotion does
		DELETE FROM pgleases.locks WHERE name = 'lost';
		UPDATE pgleases.locks SET token = NULL WHERE name = 'ungranted';
		INSERT INTO pgleases.locks SELECT 'released', 1, session, 42, false, 1, now() FROM pgleases.clients;
		CREATE OR REPLACE FUNCTION pgleases.timeline() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 7::bigint';
		COMMIT`)
	for _, h := range []*lock.Held{lost, ungranted} {
		testkit.Receive(t, h.Name()+" is lost", h.Context().Done())
		wraps(t, "cause", context.Cause(h.Context()), lock.ErrLost, pgleases.ErrTrustLost)
	}
	testkit.Becomes(t, db, "what was released is released here too", 0, rows+" WHERE name = 'released'")
	testkit.OK(t, kept.Context().Err())
	_, err := a.TryAcquire(t.Context(), "new")
	if err == nil || !strings.Contains(err.Error(), "not accepted") {
		t.Error("acquisition before the server is accepted: ", err)
	}
	testkit.Execute(t, db, "UPDATE pgleases.server SET accepted_timeline = 7, generation = generation + 1")
	h := a.held(a.Acquire, "new")
	expect(t, h.Token() > lost.Token(), true, "the token rises")
	release(t, kept)
	release(t, h)
	wraps(t, "release", lost.Release(t.Context()), lock.ErrLost)
	wraps(t, "release", ungranted.Release(t.Context()), lock.ErrLost)
}

// The client confirms its locks after the database has deleted the row of a lock, and before the
// answer to its release arrives.
func TestReleaseDuringAConfirmationIsNoLoss(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, pgtest.OwnerURL(url))
	a := newWorker(t, url)
	h, lost := a.held(a.TryAcquire, "released"), a.held(a.TryAcquire, "lost")
	deliver := a.app.Delay("lock_release")
	ended := make(chan error, 1)
	go func() { ended <- h.Release(t.Context()) }()
	testkit.Becomes(t, db, "the row is deleted", 0, rows+" WHERE name = 'released'")
	testkit.Execute(t, db, `
		DELETE FROM pgleases.boot_marker; -- as a crash of the server does
		DELETE FROM pgleases.locks WHERE name = 'lost'`)
	testkit.Receive(t, "the locks are confirmed", lost.Context().Done())
	deliver()
	testkit.OK(t, testkit.Receive(t, "the release ends", ended))
}

// A standby may have missed the release, and the client holds no lock that the server would have to
// confirm.
func TestWhatAFailoverBringsBackIsGivenBack(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, pgtest.OwnerURL(url))
	a, b := newWorker(t, url), newWorker(t, url)
	h := a.held(a.TryAcquire, "x")
	testkit.Execute(t, db, "CREATE TABLE missed AS SELECT * FROM pgleases.locks")
	release(t, h)
	deliver := b.own.Delay("heartbeat") // an earlier one, which does not show where the client is
	testkit.Until(t, "a heartbeat is under way", func() bool { return b.own.Left() == 0 })
	testkit.Execute(t, db, `
		BEGIN;
		DELETE FROM pgleases.boot_marker; -- as a promotion does
		INSERT INTO pgleases.locks SELECT * FROM missed;
		CREATE OR REPLACE FUNCTION pgleases.timeline() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 7::bigint';
		UPDATE pgleases.server SET accepted_timeline = 7, generation = generation + 1;
		COMMIT`)
	b.app.Count("lock_acquire")
	go func() {
		testkit.Until(t, "an acquisition was refused", func() bool { return b.app.Counted() > 0 })
		deliver()
	}()
	release(t, b.held(b.Acquire, "x"))
}

// A release that grants no lock is not flushed. A crash removes the boot marker, while the server's
// start time and timeline stay.
func TestWhatACrashBringsBackIsGivenBack(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, pgtest.OwnerURL(url))
	a := newWorker(t, url)
	kept, h := a.held(a.TryAcquire, "kept"), a.held(a.TryAcquire, "x")
	testkit.Execute(t, db, "CREATE TABLE undone AS SELECT * FROM pgleases.locks WHERE name = 'x'")
	release(t, h)
	testkit.Execute(t, db, `
		BEGIN;
		DELETE FROM pgleases.boot_marker;
		INSERT INTO pgleases.locks SELECT * FROM undone;
		COMMIT`)
	testkit.Becomes(t, db, "it is given back", 0, rows+" WHERE name = 'x'")
	release(t, kept)
}

func TestWhoWaitsQueuesAnewAfterAnEviction(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, pgtest.OwnerURL(url))
	a, b := newWorker(t, url), newWorker(t, url, pgleases.WithClientID("evicted"))
	h := a.held(a.TryAcquire, "x")
	own := b.held(b.TryAcquire, "own")
	place := b.waits(db, b.Acquire, "x")
	testkit.Execute(t, db, "DELETE FROM pgleases.clients WHERE id = 'evicted'")
	testkit.Receive(t, "what it held is lost", own.Context().Done())
	const ofNewSession = " AS l JOIN pgleases.clients AS c USING (session) WHERE c.id = 'evicted' AND l.name = 'x'"
	testkit.Becomes(t, db, "it waits under its new session", 1, rows+ofNewSession)
	release(t, h)
	release(t, testkit.Receive(t, "it has the lock", place))
}

func TestCloseAsksForTheEndOfWorkAndWaitsForTheRelease(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a, b := newWorker(t, url), newWorker(t, url)
	h := a.held(a.TryAcquire, "x")
	other := b.held(b.TryAcquire, "y")
	waiting := make(chan error, 1)
	go func() { _, err := a.Acquire(context.Background(), "y"); waiting <- err }()
	testkit.Becomes(t, db, "it waits", 1, rows+" WHERE token IS NULL")
	closed := make(chan error, 1)
	go func() { closed <- a.client.Close(context.Background()) }()
	testkit.Receive(t, "it is asked to end", h.Context().Done())
	wraps(t, "cause", context.Cause(h.Context()), pgleases.ErrClosed)
	wraps(t, "who waits", testkit.Receive(t, "it stops waiting", waiting), pgleases.ErrClosed)
	tx := testkit.Must(db.Begin(t.Context()))(t)
	testkit.OK(t, h.Guard(t.Context(), tx)) // the work in hand may be finished
	testkit.OK(t, tx.Commit(t.Context()))
	_, err := b.TryAcquire(t.Context(), "x")
	wraps(t, "while it closes", err, lock.ErrHeld)
	_, err = a.TryAcquire(t.Context(), "z")
	wraps(t, "acquisition while it closes", err, pgleases.ErrClosed)
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait: %v", err)
	default:
	}
	release(t, h)
	testkit.OK(t, testkit.Receive(t, "Close returns", closed))
	_, err = a.TryAcquire(t.Context(), "x")
	wraps(t, "after Close", err, pgleases.ErrClosed)
	release(t, other)
	expect(t, testkit.Value[int](t, db, "SELECT count(*) FROM pgleases.clients"), 1, "sessions")

	h = b.held(b.TryAcquire, "left behind")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = b.client.Close(ctx)
	wraps(t, "Close with work that goes on", err, context.Canceled)
	expect(t, strings.Contains(err.Error(), `"left behind"`), true, fmt.Sprint("the lock is named: ", err))
	wraps(t, "cause", context.Cause(h.Context()), pgleases.ErrClosed)
	tx = testkit.Must(db.Begin(t.Context()))(t)
	wraps(t, "guard after Close", h.Guard(t.Context(), tx), lock.ErrLost)
	testkit.OK(t, tx.Rollback(t.Context()))
}

func TestTheApplicationsIsolationMayBeAny(t *testing.T) {
	t.Parallel()
	url := direct(t)
	a := newWorker(t, url)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement,
	} {
		pool := testkit.Pool(t, url, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
			c.ConnConfig.DefaultQueryExecMode = mode
		})
		locks := lock.New(a.client, pool)
		h := testkit.Must(locks.Acquire(t.Context(), "x"))(t)
		tx := testkit.Must(pool.Begin(t.Context()))(t)
		testkit.OK(t, h.Guard(t.Context(), tx))
		testkit.OK(t, tx.Commit(t.Context()))
		release(t, h)
	}
}

// A lock that was acquired for no work would be found only when another caller waits for it.
func TestDoRefusesANilFunction(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	a := newWorker(t, url)
	_, tried := a.TryDo(t.Context(), "x", nil)
	const want = `pgleases: run under lock "x": the function is nil; pass the one that works under the lock`
	for name, err := range map[string]error{"Do": a.Do(t.Context(), "x", nil), "TryDo": tried} {
		if err == nil || err.Error() != want {
			t.Errorf("%s returned %v", name, err)
		}
	}
	expect(t, testkit.Value[int](t, testkit.Pool(t, url), rows), 0, "rows")
}

func TestWhatIsNoNameIsRefused(t *testing.T) {
	t.Parallel()
	a := newWorker(t, newDatabase(t))
	for _, name := range []string{"", strings.Repeat("x", 256), "\xff", "a\x00b"} {
		if _, err := a.TryAcquire(t.Context(), name); err == nil || !strings.Contains(err.Error(), "lock name") {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{strings.Repeat("x", 255), `'"\{},$1`, "naïve", " "} {
		release(t, a.held(a.Acquire, name))
	}
	for _, locks := range []*lock.Locks{lock.New(nil, a.pool), lock.New(a.client, nil)} {
		if _, err := locks.Acquire(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("without a client or a pool: %v", err)
		}
	}
}

// stuck is a log whose writer blocks at one message, like a pipe without a reader.
type stuck struct {
	at            string
	begun, ending chan struct{}
}

func (*stuck) Enabled(context.Context, slog.Level) bool { return true }
func (s *stuck) WithAttrs([]slog.Attr) slog.Handler     { return s }
func (s *stuck) WithGroup(string) slog.Handler          { return s }
func (s *stuck) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, s.at) {
		close(s.begun)
		<-s.ending
	}
	return nil
}

// Calls do not wait for the client's goroutine, whatever it does; nor does a log handler that
// acquires a lock.
func TestALogThatStandsStillHoldsUpNoCall(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	s := &stuck{"partitions gained", make(chan struct{}), make(chan struct{})}
	client := testkit.Must(pgleases.NewClient(
		t.Context(), pool, pgleases.WithLogger(slog.New(s)), pgleases.WithTTL(time.Minute),
	))(t)
	defer func() { testkit.OK(t, client.Close(context.Background())) }()
	defer close(s.ending)
	locks := lock.New(client, pool)
	held := testkit.Must(locks.TryAcquire(t.Context(), "before"))(t)
	testkit.Must(client.Lease(t.Context(), "orders", 4))(t)
	testkit.Receive(t, "the log stands still", s.begun)
	ended := make(chan error)
	go func() {
		other, err := locks.TryAcquire(t.Context(), "other")
		if err == nil {
			err = errors.Join(other.Release(t.Context()), held.Release(t.Context()))
		}
		ended <- err
	}()
	testkit.OK(t, testkit.Receive(t, "calls return", ended))
}
