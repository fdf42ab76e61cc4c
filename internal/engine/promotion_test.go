package engine_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/store"
)

// pair is two clients with half of a lease each.
func (w *world) pair(partitions int) (a, b *proc, la, lb *pgleases.Lease) {
	a, b = w.start("a"), w.start("b")
	la, lb = a.mustJoin("x", partitions), b.mustJoin("x", partitions)
	w.within(5*time.Second, "each owns half", each(partitions/2, la, lb))
	return a, b, la, lb
}

func TestFailoverGuardDelaysItsPartitionOnly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, _, la, lb := w.pair(4)
		w.promote(0, false)
		p, _ := la.Partition(la.Values()[0])
		end := w.guard(p)
		w.within(20*time.Second, "accepted", w.accepted)
		w.within(2*time.Second, "all else passes guards again", func() bool {
			passed := 0
			for _, other := range append(shown(la), shown(lb)...) {
				if w.passes("x", other) {
					passed++
				}
			}
			return passed == 3
		})
		time.Sleep(time.Minute)
		if la.Owns(p.Number) {
			t.Errorf("partition %d is owned anew under an open guard", p.Number)
		}
		end()
		w.within(time.Second, "it is owned again", func() bool { return la.Owns(p.Number) })
	})
}

func TestWorkBeforeFailoverEndsBeforeNewOwnership(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, _, la, _ := w.pair(2)
		h := la.Hold(context.Background())
		p := h.Partitions()[0]
		w.promote(0, false)
		w.within(20*time.Second, "accepted", w.accepted)
		w.within(2*time.Second, "its context ends", func() bool { return h.Context().Err() != nil })
		time.Sleep(time.Minute)
		if now, owned := la.Partition(p.Number); owned {
			t.Errorf("owned as %v while work on %v goes on", now, p)
		}
		h.Release()
		w.within(time.Second, "it is owned anew", func() bool { return la.Owns(p.Number) })
	})
}

// failOver promotes a standby and waits until it is accepted. It returns a function that puts the
// old primary in its place, which is still down.
func (w *world) failOver() (comeBack func()) {
	w.t.Helper()
	var old fakestore.Tables
	w.db.Look(func(tables *fakestore.Tables, _ int64) { old = tables.Clone() })
	run := w.db.Run()
	w.promote(0, false)
	w.within(20*time.Second, "accepted", w.accepted)
	return func() {
		w.db.Stop()
		w.db.Edit(func(tables *fakestore.Tables, _ int64) { *tables = old })
		w.db.SetRun(run)
	}
}

// The tables are those from before the failover, and the server does not look promoted.
func TestReturnToOldPrimaryIsHandledAsFailover(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _, la, lb := w.pair(8)
		comeBack := w.failOver()
		w.within(2*time.Second, "all is owned again", each(4, la, lb))
		if err := a.c.Close(context.Background()); err != nil { // so the owners are others than the old primary knows
			t.Fatal(err)
		}
		w.within(5*time.Second, "b owns all", func() bool { return len(lb.Values()) == 8 })
		late := w.start("late")
		ll := late.mustJoin("x", 8)
		w.within(5*time.Second, "the late one has its share", func() bool { return len(ll.Values()) == 4 })

		comeBack()
		w.db.Boot()
		w.within(40*time.Second, "accepted again", func() bool {
			var generation int64
			w.db.Look(func(tables *fakestore.Tables, _ int64) { generation = tables.Server.Generation })
			return generation > 0 && w.accepted()
		})
		w.within(20*time.Second, "all is owned", each(4, ll, lb))
	})
}

// A client that was never on the newer server cannot know that a higher generation exists. The
// clients that were there know it.
func TestOldPrimaryIsRejectedWhenOthersReturn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b, la, lb := w.pair(8)
		comeBack := w.failOver()
		earlier := func(p pgleases.Partition) bool { return store.ServerGenerationOf(p.Epoch) == 0 }
		var seen []pgleases.Partition
		w.within(heard, "all is owned under the new generation", func() bool {
			seen = append(shown(la), shown(lb)...)
			return len(seen) == 8 && !slices.ContainsFunc(seen, earlier)
		})

		comeBack()
		for _, p := range []*proc{a, b} {
			p.cutOff(true)
		}
		w.mu.Lock() // what a client finds that knows of no earlier server
		w.ledger = make(map[place]map[int64]int64)
		w.highest = make(map[place]int64)
		w.mu.Unlock()
		w.db.Boot()
		lc := w.start("c").mustJoin("x", 8)
		w.within(20*time.Second, "the new one owns all", func() bool { return len(lc.Values()) == 8 })
		for _, p := range shown(lc) {
			if store.ServerGenerationOf(p.Epoch) != 0 {
				t.Errorf("partition %v is of a new generation: this is no test", p)
			}
		}
		seen = append(seen, shown(lc)...)

		for _, p := range []*proc{a, b} {
			p.cutOff(false)
		}
		w.within(20*time.Second, "a client that knows better logs it",
			w.logs("rejected a server that is behind one seen before"))
		w.within(20*time.Second, "accepted again", w.accepted)
		above := func(p pgleases.Partition) bool {
			return !slices.ContainsFunc(seen, func(before pgleases.Partition) bool {
				return before.Number == p.Number && before.Epoch >= p.Epoch
			})
		}
		w.within(20*time.Second, "all is owned above all that was seen", func() bool {
			now := slices.Concat(shown(la), shown(lb), shown(lc))
			return len(now) == 8 && !slices.ContainsFunc(now, func(p pgleases.Partition) bool { return !above(p) })
		})
		for _, p := range seen {
			if w.passes("x", p) {
				t.Errorf("a guard of %v passes", p)
			}
		}
	})
}

// The server may become not accepted and accepted again between two heartbeats of a client, and no
// lease of the client changes by that.
func TestGenerationAcceptedByAnotherIsLearned(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		leases := make(map[string]*pgleases.Lease)
		for _, name := range []string{"a", "b", "c"} {
			leases[name] = w.start(name).mustJoin(name, 2)
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(30 * time.Second)
		// The SQL function new_server_generation does this.
		w.db.Edit(func(tables *fakestore.Tables, _ int64) { tables.Server.AcceptedTimeline = -1 })
		time.Sleep(time.Minute)
		if !w.accepted() {
			t.Fatal("it is not accepted")
		}
		for name, l := range leases {
			for _, p := range shown(l) {
				if !w.passes(name, p) {
					t.Errorf("partition %v of lease %q is shown, and its guard is refused", p, name)
				}
			}
		}
	})
}

// A loop over Values may still work on what it read before a failover ended the epoch, when the
// renewed partition moves.
func TestRenewedPartitionMovesAfterHandoffDelay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const delay = 5 * time.Second
		a, b := w.start("a"), w.start("b")
		la := a.owning("x", 2, pgleases.WithHandoffDelay(delay))
		w.promote(0, false)
		time.Sleep(3 * time.Second)
		lb := b.mustJoin("x", 2, pgleases.WithHandoffDelay(delay))
		if len(la.Values()) != 2 { // a loop begins its pass
			t.Fatal("a lost them before")
		}
		<-la.Changed()
		began := time.Now()
		if shows(lb) != "-" {
			t.Fatal("b owns something already")
		}
		w.within(30*time.Second, "b has its share", func() bool { return len(shown(lb)) == 1 })
		if took := time.Since(began); took < delay {
			t.Errorf("it moved %v after it left Values", took)
		}
	})
}

// The number of claims does not show it: a client that tries each plan three times, as it does if
// another join overtakes it, floods the server.
func TestUnnoticedPromotionCostsOnePlan(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		a.mustJoin("x", 2)
		time.Sleep(10 * time.Second)
		w.nextBeat(10 * time.Second) // so that the next one is far
		w.promote(0, true)
		plans, applies := w.count("snapshot"), w.count("apply")
		beats := w.count("heartbeat")
		l := a.mustJoin("y", 3)
		w.within(time.Second, "a plan is refused", func() bool { return w.count("apply") > applies })
		w.within(aMoment, "it is asked what server it is", func() bool { return w.count("heartbeat") > beats })
		if n := w.count("apply") - applies; n != 1 {
			t.Errorf("%d plans were sent to a server that is not accepted", n)
		}
		if n := w.count("snapshot") - plans; n != 1 {
			t.Errorf("%d plans were read", n)
		}
		w.within(20*time.Second, "accepted", w.accepted)
		w.within(2*time.Second, "all is planned", func() bool { return len(l.Values()) == 3 })
	})
}
