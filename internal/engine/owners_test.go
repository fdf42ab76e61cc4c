package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/leader"
)

// ownedBy returns what a client says of the owner of partition 0.
func (w *world) ownedBy(l *pgleases.Lease) string {
	owners, err := l.Owners(context.Background())
	if err != nil {
		w.failf("owners: %v", err)
	}
	if o, owned := owners[0]; owned {
		return o.ID
	}
	return "-"
}

// candidate runs an election until the world ends.
func (w *world) candidate(p *proc) *leader.Elector {
	e := leader.New(p.c, "x")
	lead := func(ctx context.Context) { <-ctx.Done() }
	go func() { _ = e.Run(context.Background(), leader.Callbacks{OnStartedLeading: lead}) }()
	return e
}

// A standby that missed a handoff has a lower generation of the lease, or the same for another state.
func TestOwnersFollowFailoverThatLostHandoff(t *testing.T) {
	for name, same := range map[string]bool{"a lower generation": false, "the same generation": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a, b, c := w.start("a"), w.start("b"), w.start("c")
				la := a.owning("x", 1)
				b.mustJoin("x", 1)
				follower := w.candidate(c)
				w.within(5*time.Second, "c hears of a", func() bool { return follower.Leader() == "a" })
				time.Sleep(5 * time.Second)
				w.db.KeepNone()
				testkit.OK(t, w.db.Override(fakestore.Override{Verb: "pin", Lease: "x"}, "b", fakestore.Ever, true))
				w.within(5*time.Second, "c hears of b", func() bool { return follower.Leader() == "b" })
				time.Sleep(5 * time.Second)
				var generation int64
				w.db.Look(func(t *fakestore.Tables, _ int64) { generation = t.Leases["x"].Generation })
				w.promote(1000, false)
				w.db.Edit(func(t *fakestore.Tables, _ int64) {
					for same && t.Leases["x"].Generation < generation {
						changed(t, "x")
					}
				})
				w.within(20*time.Second, "accepted", w.accepted)
				w.within(4*time.Second, "a owns it again", func() bool { return len(shown(la)) == 1 })
				w.within(2*time.Second, "c hears of a again", func() bool {
					return w.ownedBy(c.mustJoin("x", 1)) == "a" && follower.Leader() == "a"
				})
			})
		})
	}
}

// As long as heartbeats find no change, the owners stay. Changes by hand, which no heartbeat finds,
// are seen after ten times the TTL, and without heartbeats the database is asked after the TTL.
func TestOwnersStayWhileHeartbeatsFindNoChange(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		a.owning("x", 1)
		lb := b.mustJoin("x", 1, pgleases.WithWeight(0))
		w.within(5*time.Second, "b sees a", func() bool { return w.ownedBy(lb) == "a" })
		time.Sleep(5 * time.Second)
		w.ownedBy(lb)
		reads, since := w.count("owners"), time.Now()
		w.db.Edit(func(t *fakestore.Tables, _ int64) {
			row := t.Clients[sessionOf(t, "a")]
			row.Metadata = `{"by": "hand"}`
			t.Clients[row.Session] = row
		})
		w.within(2*time.Minute, "b sees the change", func() bool {
			return testkit.Must(lb.Owners(context.Background()))(t)[0].Metadata["by"] == "hand"
		})
		n, took := w.count("owners")-reads, time.Since(since)
		if n != 1 || took < 50*time.Second || took > time.Minute+time.Second {
			t.Errorf("%d reads, the last after %v", n, took)
		}
		b.cutOff(true)
		time.Sleep(7 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if owners, err := lb.Owners(ctx); err == nil {
			t.Errorf("without heartbeats for a TTL it returned %v", owners)
		}
		b.cutOff(false)
	})
}

// late makes a client's session look expired, until inTime is called.
func (w *world) late(client string) (inTime func()) {
	var expires int64
	w.db.Edit(func(t *fakestore.Tables, clock int64) {
		row := t.Clients[sessionOf(t, client)]
		expires, row.ExpiresAt = row.ExpiresAt, clock-1
		t.Clients[row.Session] = row
	})
	return func() {
		w.db.Edit(func(t *fakestore.Tables, _ int64) {
			row := t.Clients[sessionOf(t, client)]
			row.ExpiresAt = max(row.ExpiresAt, expires)
			t.Clients[row.Session] = row
		})
	}
}

// If reads are slow, the server has much to do. If each of many members then read all owners again
// after each TTL, because some are late, heartbeats would wait for these reads, and so more of them
// would be late.
func TestLateOwnersOfLargeLeaseAreReadSeldomIfReadsAreSlow(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start("a").owning("x", 1000)
		b := w.start("b")
		lb := b.mustJoin("x", 1000, pgleases.WithWeight(0))
		w.inject(func(client, op string) (f fault, injected bool) {
			if client == b.name && op == "owners" {
				f.after = time.Second
			}
			return f, f.after > 0
		})
		inTime := w.late("a")
		owner := w.ownedBy(lb)
		inTime()
		if owner != "-" {
			t.Fatalf("the late owner is %q", owner)
		}
		before := w.count("whole owners")
		for began := time.Now(); time.Since(began) < 19*time.Second; time.Sleep(100 * time.Millisecond) {
			w.ownedBy(lb)
		}
		if n := w.count("whole owners") - before; n > 0 {
			t.Errorf("%d reads of all owners", n)
		}
		w.within(8*time.Second, "it is read again", func() bool { return w.ownedBy(lb) == "a" })
	})
}

// At the moment when a candidate joins, the leader's heartbeat is late. It comes in time.
func TestLeaderIsSeenWhenItsHeartbeatWasLate(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		leading := w.candidate(a)
		w.within(5*time.Second, "a leads", leading.IsLeader)
		b := w.start("b")
		inTime := w.late("a")
		follower := w.candidate(b)
		time.Sleep(300 * time.Millisecond)
		inTime()
		w.within(10*time.Second, "b hears of the leader", func() bool { return follower.Leader() == "a" })
	})
}

// A callback may ask for the next owner while its client closes, and Close waits for the callback.
func TestOwnerAnswersWhileClientCloses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 1)
		h := l.Hold(context.Background())
		closed := make(chan error, 1)
		go func() { closed <- a.c.Close(context.Background()) }()
		w.within(time.Second, "it closes", func() bool { return len(shown(l)) == 0 })
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if o, owned, err := l.Owner(ctx, 0); err != nil || !owned || o.ID != "a" {
			t.Errorf("the owner while the client closes: %+v, %v, %v", o, owned, err)
		}
		if o, err := l.Owners(ctx); err != nil || o[0].ID != "a" {
			t.Errorf("all owners while the client closes: %+v, %v", o, err)
		}
		h.Release()
		testkit.OK(t, <-closed)
		if o, err := l.Owners(context.Background()); !errors.Is(err, pgleases.ErrClosed) {
			t.Errorf("after Close: %v, %v", o, err)
		}
	})
}
