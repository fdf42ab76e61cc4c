package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// told is whether a wait ends of what was heard until now. Only where it should not: a wait that should end has no limit.
func (c *client) told() bool {
	c.f.Helper()
	c.f.ok(c.pg().Exec(c.f.ctx, "SELECT 1"))                          // the server sends what was notified before its answer
	ctx, cancel := context.WithTimeout(c.f.ctx, 200*time.Millisecond) // twice what passes until all read what all are told
	defer cancel()
	err := c.Wait(ctx)
	if err != nil && ctx.Err() == nil {
		c.f.Fatal(err)
	}
	return err == nil
}

// listening returns a client that has joined a lease, and hears of it.
func listening(f *fixture, id string) *client {
	f.Helper()
	c := f.client(id)
	c.join("l", 2)
	listens := testkit.Must(c.Listen(f.ctx))(f)
	expect(f.TB, listens, true, "listens")
	return c
}

func TestListenTellsWhetherNotificationsArrive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := listening(f, "a"), listening(f, "b"), listening(f, "c")
	c.give("l", a.session)
	f.ok(a.Wait(f.ctx)) // told of what it was given
	expect(t, b.told(), false, "told of what another was given")
	c.give("l", b.session)
	f.ok(a.Wait(f.ctx)) // told of what it is asked for
	expect(t, b.told(), false, "told of what another is asked for")
	a.release([]Release{{"l", 0, 1}})
	f.ok(a.Announce(f.ctx, []string{"l"}, []int64{b.session}))
	f.ok(b.Wait(f.ctx)) // told of what was released to it
	f.exec("SELECT pg_notify('pgleases', 'all')")
	f.ok(b.Wait(f.ctx)) // told what all are told
	f.exec("SELECT pg_notify('another', 'all')")
	expect(t, b.told(), false, "told what is on another channel")

	// A wait that ends leaves the connection usable, and forgets no notification.
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	if err := b.Wait(ctx); err == nil {
		t.Error("no error")
	}
	expect(t, b.Closed(), false, "closed")
	f.exec("SELECT pg_notify('pgleases', 'all')")
	expect(t, b.beat().Alive, true, "alive")
	if b.Wait(ctx) != nil { // it was not yet time to tell
		f.ok(b.Wait(f.ctx))
	}

	// A session that begins on the connection is told what names it.
	session := random()
	_, _, err := b.Register(f.ctx, registration(session, "b", 0, random(), time.Minute))
	f.ok(err)
	f.exec("SELECT pg_notify('pgleases', $1)", session)
	f.ok(b.Wait(f.ctx)) // told what names its new session
	f.exec("SELECT pg_notify('pgleases', $1)", b.session)
	expect(t, b.told(), false, "told what names its old session")
}

func TestNotificationsWithoutEndAreToldOnceAndNotKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	listens := testkit.Must(a.Listen(f.ctx))(f)
	expect(t, listens, true, "listens")
	for range 3 {
		f.exec("SELECT pg_notify('pgleases', i || ',' || $1) FROM generate_series(1, 20000) AS i", a.session)
		f.ok(a.pg().Exec(f.ctx, "SELECT 1"))
		f.ok(a.Wait(f.ctx))
		expect(t, a.told(), false, "told once more")
	}
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	if note, err := a.pg().Raw().WaitForNotification(ctx); err == nil {
		t.Errorf("pgx has kept %v", note)
	}
}

func TestReadNotificationsComeEvery100msAtMost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	listens := testkit.Must(a.Listen(f.ctx))(f)
	expect(t, listens, true, "listens")
	notify := func() {
		f.exec("SELECT pg_notify('pgleases', $1)", a.session)
		f.ok(a.pg().Exec(f.ctx, "SELECT 1"))
	}
	ended, cancel := context.WithCancel(f.ctx)
	cancel()
	began := time.Now()
	for range 20 {
		notify()
		f.ok(a.Wait(ended)) // at once: it does not look at its context
	}
	for range 5 {
		notify()
		f.ok(a.Wait(f.ctx))
	}
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("25 reads were told of in %v", took)
	}
}

func TestALeaveTellsTheSuccessors(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := listening(f, "a"), listening(f, "b"), listening(f, "c")
	a.give("l", a.session, c.session)
	for _, x := range []*client{a, c} {
		f.ok(x.Wait(f.ctx)) // told of what it was given
	}
	generation := f.tables().Leases["l"].Generation
	leave := []Leave{{"l", true, generation, map[int]int64{0: b.session}}}
	got := testkit.Must(a.Release(f.ctx, a.session, []Release{{"l", 0, 1}}, leave, a.joins))(f)
	expect(t, fmt.Sprintf("%+v", got.Released), fmt.Sprintf("[{Lease:l Partition:0 Owner:%d Epoch:2}]", b.session), "released")
	f.ok(b.Wait(f.ctx))
	expect(t, c.told(), false, "told of what another was given")
	expect(t, f.tables().Leases["l"].Generation, generation+1, "generation, for those that heard nothing")
}
