package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// told reports whether the notifications so far end a wait. Use it only if they should not: a wait
// that should end has no limit.
func (c *client) told() bool {
	c.f.Helper()
	c.f.ok(c.pg().Exec(c.f.ctx, "SELECT 1")) // the server sends what was notified before its answer
	// Twice the time until all clients read that "all" notifies.
	ctx, cancel := context.WithTimeout(c.f.ctx, 200*time.Millisecond)
	defer cancel()
	err := c.Wait(ctx)
	if err != nil && ctx.Err() == nil {
		c.f.Fatal(err)
	}
	return err == nil
}

// listening returns a client that has joined a lease, and received its notifications.
func listening(f *fixture, id string) *client {
	f.Helper()
	c := f.client(id)
	c.join("l", 2)
	expect(f.TB, testkit.Must(c.Listen(f.ctx))(f), true, "listens")
	return c
}

func TestListenReportsWhetherNotificationsArrive(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, b, c := listening(f, "a"), listening(f, "b"), listening(f, "c")
	c.give("l", a.session)
	f.ok(a.Wait(f.ctx)) // of its new partition
	expect(t, b.told(), false, "notified of another's new partition")
	c.give("l", b.session)
	f.ok(a.Wait(f.ctx)) // of the request for its partition
	expect(t, b.told(), false, "notified of a request to another")
	a.release([]Release{{"l", 0, 1}})
	f.ok(a.Announce(f.ctx, []string{"l"}, []int64{b.session}))
	f.ok(b.Wait(f.ctx)) // of the partition that was released to it
	f.exec("SELECT pg_notify('pgleases', 'all')")
	f.ok(b.Wait(f.ctx)) // of "all"
	f.exec("SELECT pg_notify('another', 'all')")
	expect(t, b.told(), false, "notified on another channel")

	// A wait that ends leaves the connection usable, and loses no notification.
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	if err := b.Wait(ctx); err == nil {
		t.Error("no error")
	}
	expect(t, b.Closed(), false, "closed")
	f.exec("SELECT pg_notify('pgleases', 'all')")
	expect(t, b.beat().Alive, true, "alive")
	if b.Wait(ctx) != nil { // it was too early for a read
		f.ok(b.Wait(f.ctx))
	}

	// A session that begins on the connection receives the notifications that name it.
	session := random()
	_, _, err := b.Register(f.ctx, registration(session, "b", 0, random(), time.Minute))
	f.ok(err)
	f.exec("SELECT pg_notify('pgleases', $1)", session)
	f.ok(b.Wait(f.ctx)) // names its new session
	f.exec("SELECT pg_notify('pgleases', $1)", b.session)
	expect(t, b.told(), false, "notified of its old session")
}

func TestEndlessNotificationsAreReadOnceNotQueued(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	expect(t, testkit.Must(a.Listen(f.ctx))(f), true, "listens")
	for range 3 {
		f.exec("SELECT pg_notify('pgleases', i || ',' || $1) FROM generate_series(1, 20000) AS i", a.session)
		f.ok(a.pg().Exec(f.ctx, "SELECT 1"))
		f.ok(a.Wait(f.ctx))
		expect(t, a.told(), false, "notified again")
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
	expect(t, testkit.Must(a.Listen(f.ctx))(f), true, "listens")
	notify := func() {
		f.exec("SELECT pg_notify('pgleases', $1)", a.session)
		f.ok(a.pg().Exec(f.ctx, "SELECT 1"))
	}
	ended, cancel := context.WithCancel(f.ctx)
	cancel()
	began := time.Now()
	for range 20 {
		notify()
		f.ok(a.Wait(ended)) // at once: it does not check its context
	}
	for range 5 {
		notify()
		f.ok(a.Wait(f.ctx))
	}
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("25 reads were requested in %v", took)
	}
}

func TestLeaveNotifiesTheSuccessors(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := listening(f, "a"), listening(f, "b"), listening(f, "c")
	a.give("l", a.session, c.session)
	for _, x := range []*client{a, c} {
		f.ok(x.Wait(f.ctx)) // of its new partition
	}
	generation := f.tables().Leases["l"].Generation
	plan := map[int]int64{0: b.session}
	got := a.leave(Leave{"l", true, false, generation, plan}, Release{"l", 0, 1})
	want := fmt.Sprintf("[{Lease:l Partition:0 Owner:%d Epoch:2}]", b.session)
	expect(t, fmt.Sprintf("%+v", got.Released), want, "released")
	f.ok(b.Wait(f.ctx))
	expect(t, c.told(), false, "notified of another's new partition")
	expect(t, f.tables().Leases["l"].Generation, generation+1, "generation, for those that heard nothing")
}
