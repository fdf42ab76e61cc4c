package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
)

// An acquisition whose answer was lost is requested again. The first message may arrive after the
// lock was released.
func TestAcquisitionAfterItsReleaseLeavesNothing(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a, b := newWorker(t, url), newWorker(t, url)
	release(t, a.held(a.TryAcquire, "y")) // it knows the server: what is stranded would be granted
	deliver := a.app.Strand("lock_acquire", "granted")
	defer func() { _ = deliver() }()
	h := a.held(a.TryAcquire, "x")
	expect(t, a.app.Left(), 0, "messages that were lost")
	release(t, h)
	expect(t, testkit.Value[int](t, db, rows), 0, "rows")
	testkit.OK(t, deliver())
	release(t, b.held(b.Acquire, "x"))
	expect(t, testkit.Value[int](t, db, rows), 0, "rows")
}

// The server confirms the held locks, and returns whose turn it was, in one answer.
func TestWaiterGetsLockDuringServerRestart(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, pgtest.OwnerURL(url))
	a, b := newWorker(t, url), newWorker(t, url, pgleases.WithPolling())
	kept := b.held(b.TryAcquire, "kept")
	var places []<-chan *lock.Held
	for i := range 10 {
		name := fmt.Sprint("x", i)
		a.held(a.Acquire, name)
		places = append(places, b.waits(db, b.Acquire, name))
	}
	testkit.Execute(t, db, `
		BEGIN;
		DELETE FROM pgleases.boot_marker; -- as a promotion does
		DELETE FROM pgleases.locks WHERE token IS NOT NULL AND name <> 'kept';
		UPDATE pgleases.locks SET token = 1000 WHERE name <> 'kept';
		CREATE OR REPLACE FUNCTION pgleases.timeline() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 7::bigint';
		UPDATE pgleases.server SET accepted_timeline = 7, generation = generation + 1;
		COMMIT`)
	for _, place := range places {
		h := testkit.Receive(t, "it has the lock", place)
		expect(t, h.Token(), 1000, "the token that it was given")
		release(t, h)
	}
	release(t, kept)
}

// The client gives back what its callers await while it closes, and sends no more than that takes.
func TestCloseDuringAnAcquisitionLeavesNothing(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, url)
	a := newWorker(t, url)
	release(t, a.held(a.TryAcquire, "y"))
	deliver := a.app.Delay("lock_acquire")
	defer deliver()
	acquired := make(chan error, 1)
	go func() {
		_, err := a.TryAcquire(context.Background(), "x")
		acquired <- err
	}()
	testkit.Becomes(t, db, "its row is there", 1, rows)
	a.own.Count(".clients AS c USING settings")
	testkit.OK(t, a.client.Close(t.Context()))
	if n := a.own.Counted(); n == 0 || n > 5 {
		t.Errorf("the end of the session was sent %d times", n)
	}
	deliver()
	if err := testkit.Receive(t, "the acquisition ends", acquired); !errors.Is(err, pgleases.ErrClosed) {
		t.Errorf("TryAcquire: %v", err)
	}
	expect(t, testkit.Value[int](t, db, rows), 0, "rows")
}
