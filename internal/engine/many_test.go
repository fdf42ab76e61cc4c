package engine_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
)

// Clients with a lease for each of many tenants. What happens to one lease must not cost as much as
// all leases. These tests count statements, and the leases that they return.

const manyLeases = 300

// joinMany makes clients join leases of one partition, each in eight goroutines. The oracle does
// not watch them, because it would look at all leases after each statement.
func (w *world) joinMany(n int, procs ...*proc) (leases [][]*pgleases.Lease) {
	w.blind.Store(true)
	var joining sync.WaitGroup
	for _, p := range procs {
		joined := make([]*pgleases.Lease, n)
		leases = append(leases, joined)
		for first := range 8 {
			joining.Go(func() {
				for i := first; i < n; i += 8 {
					name := fmt.Sprintf("tenant-%04d", i)
					l, err := p.c.Lease(context.Background(), name, 1, pgleases.WithHandoffDelay(0))
					w.ok(err)
					joined[i] = l
				}
			})
		}
	}
	joining.Wait()
	return leases
}

func ownedOf(leases []*pgleases.Lease) (n int) {
	for _, l := range leases {
		n += len(shown(l))
	}
	return n
}

// share waits until each client owns as many of the leases as the others.
func (w *world) share(limit time.Duration, leases ...[]*pgleases.Lease) {
	w.t.Helper()
	share := len(leases[0]) / len(leases)
	w.within(limit, "shares are even", func() bool {
		return !slices.ContainsFunc(leases, func(of []*pgleases.Lease) bool { return ownedOf(of) != share })
	})
}

// counted returns how much a count has risen since it was taken.
func counted(count func(op string) int, op string) func() int {
	before := count(op)
	return func() int { return count(op) - before }
}

func TestJoinPlansAndReadsItsOwnLeaseOnly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		leases := w.joinMany(manyLeases, w.start("a"))[0]
		w.within(time.Second, "it owns all", func() bool { return ownedOf(leases) == manyLeases })
		if planned, read := w.leases("snapshot"), w.leases("read"); planned > manyLeases || read > 2*manyLeases {
			t.Errorf("for %d joins, %d leases were planned and %d read", manyLeases, planned, read)
		}
		if plans := w.count("apply"); plans > manyLeases/5 {
			t.Errorf("%d plans for %d joins, one after the other", plans, manyLeases)
		}
	})
}

func TestJoinsOfTwoClientsPlanAllLeasesSeldom(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		began := time.Now()
		leases := w.joinMany(manyLeases, w.start("a"), w.start("b"))
		planned, took := w.leases("snapshot"), time.Since(began)
		if limit := 8*manyLeases + 2*manyLeases*int(1+took/time.Second); planned > limit {
			t.Errorf("for %d joins, %d leases were planned within %v", 2*manyLeases, planned, took)
		}
		w.share(10*time.Second, leases...)
		time.Sleep(10 * time.Second) // a last plan of all may follow that finds nothing to do
		for _, op := range []string{"snapshot", "apply", "release"} {
			rises := counted(w.count, op)
			time.Sleep(time.Minute)
			if n := rises(); n > 0 {
				t.Errorf("%d statements %s in a minute in which nothing changed", n, op)
			}
		}
	})
}

func TestJoinsAreServedInTheOrderOfTheirCalls(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", rare...)
		var mu sync.Mutex
		var joined []int
		var joining sync.WaitGroup
		for i := range 30 {
			joining.Go(func() {
				_, err := a.c.Lease(context.Background(), fmt.Sprint("tenant-", i), 1)
				w.ok(err)
				mu.Lock()
				defer mu.Unlock()
				joined = append(joined, i)
			})
			time.Sleep(time.Microsecond) // until its request has arrived; a join takes longer
		}
		joining.Wait()
		if !slices.IsSorted(joined) {
			t.Errorf("joined in the order %v", joined)
		}
	})
}

func TestPlanOfTheNextJoinWaits50ms(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", rare...)
		for i, limit := range []time.Duration{20 * time.Millisecond, 80 * time.Millisecond, 80 * time.Millisecond} {
			l := a.mustJoin(fmt.Sprint("l", i), 1)
			w.within(limit, "it owns the lease", func() bool { return shows(l) == "0" })
		}
		time.Sleep(time.Second)
		l := a.mustJoin("later", 1)
		w.within(20*time.Millisecond, "it owns the one that it joined later", func() bool { return shows(l) == "0" })
	})
}

func TestJoinThatFailsWaitsBehindAllOthers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		failures, joins := 0, 0
		w.inject(func(_, op string) (fault, bool) {
			if op != "join" {
				return fault{}, false
			}
			if joins++; joins%2 == 1 && failures < 20 {
				failures++
				return fault{err: errLocked}, true
			}
			return fault{}, false
		})
		leases := w.joinMany(40, w.start("a"))[0]
		joined := slices.DeleteFunc(leases, func(l *pgleases.Lease) bool { return l == nil })
		if n := len(joined); n != 40 || failures == 0 {
			t.Errorf("%d leases joined after %d failures", n, failures)
		}
	})
}

func TestNotificationOfOneLeaseReadsNoOther(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		leases := w.joinMany(manyLeases, a)[0]
		w.within(time.Second, "it owns all", func() bool { return ownedOf(leases) == manyLeases })
		time.Sleep(10 * time.Second)
		reads := counted(w.leases, "read")
		w.db.Edit(func(t *fakestore.Tables, _ int64) { changed(t, "tenant-0007") })
		w.notify("a")
		time.Sleep(100 * time.Millisecond)
		if n := reads(); n != 1 {
			t.Errorf("%d leases read", n)
		}
	})
}

func TestLeaveOfOneLeasePlansNoOther(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := []*proc{w.start("a"), w.start("b"), w.start("c")}
		leases := w.joinMany(manyLeases, procs...)
		w.share(10*time.Second, leases...)
		time.Sleep(10 * time.Second)
		planned, began := counted(w.leases, "snapshot"), time.Now()
		for _, l := range leases[0] {
			w.ok(l.Leave(context.Background()))
		}
		took := time.Since(began)
		if n, limit := planned(), 5*manyLeases+3*manyLeases*int(1+took/time.Second); n > limit {
			t.Errorf("for %d leaves, %d leases were planned within %v", manyLeases, n, took)
		}
		w.share(10*time.Second, leases[1:]...)
	})
}

// Otherwise each client of a fleet that starts would read what it owns after every heartbeat.
func TestJoinsOfOthersCauseNoReads(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithPolling())
		a.owning("x", 4)
		time.Sleep(10 * time.Second)
		var reads atomic.Int64
		w.inject(func(client, op string) (fault, bool) {
			if client == a.name && op == "read" {
				reads.Add(1)
			}
			return fault{}, false
		})
		for i := range 5 {
			w.start(fmt.Sprint("b", i), pgleases.WithPolling()).mustJoin("x", 4, pgleases.WithWeight(0))
			time.Sleep(3 * time.Second)
		}
		if n := reads.Load(); n > 0 {
			t.Errorf("%d reads", n)
		}
	})
}

// Statements that take long, as on a busy server: between the read of a plan of all leases and its
// last statement, some of the leases have always changed. The plan goes on without these.
func TestStartOfManyClientsWastesFewPlans(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const clients, leases = 15, 60
		var procs []*proc
		for i := range clients {
			procs = append(procs, w.start(fmt.Sprint("c", i)))
		}
		w.inject(func(_, op string) (fault, bool) {
			switch op {
			case "join":
				return fault{before: w.span(50*time.Millisecond, 200*time.Millisecond)}, true
			case "snapshot":
				return fault{after: w.span(100*time.Millisecond, 400*time.Millisecond)}, true
			case "apply", "release", "read":
				return fault{before: w.span(100*time.Millisecond, 200*time.Millisecond)}, true
			}
			return fault{}, false
		})
		joined := w.joinMany(leases, procs...)
		w.share(20*time.Second, joined...)
		planned, plans, wasted := w.leases("snapshot"), w.count("apply"), w.count("overtaken")
		if planned > 5*clients*leases || wasted > plans/2 {
			t.Errorf("for %d joins, %d leases were planned, and of %d plans %d were overtaken",
				clients*leases, planned, plans, wasted)
		}
		t.Logf("%d leases planned, %d of %d plans overtaken, after %v", planned, wasted, plans, time.Since(w.began))
	})
}

// The others make the plans that are to balance what it has left.
func TestCloseAfterManyLeavesWaitsForNoPlan(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b, c := w.start("a"), w.start("b"), w.start("c")
		leases := w.joinMany(manyLeases, a, b, c)
		w.share(10*time.Second, leases...)
		time.Sleep(10 * time.Second)
		for _, l := range leases[0] {
			w.ok(l.Leave(context.Background()))
		}
		began := time.Now()
		w.ok(a.c.Close(context.Background()))
		if took := time.Since(began); took > soon {
			t.Errorf("it took %v", took)
		}
		w.share(20*time.Second, leases[1:]...)
	})
}

func TestCloseWithManyLeasesTakesFewStatements(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := []*proc{w.start("a"), w.start("b")}
		for _, p := range procs {
			p.engine().Batches(engine.MaxBatch)
		}
		leases := w.joinMany(manyLeases, procs...)
		w.share(10*time.Second, leases...)
		time.Sleep(10 * time.Second)
		planned, releases := counted(w.leases, "snapshot"), counted(w.count, "release")
		w.ok(procs[0].c.Close(context.Background()))
		w.within(10*time.Second, "the other owns all", func() bool { return ownedOf(leases[1]) == manyLeases })
		if p, r := planned(), releases(); p > 2*manyLeases || r > 3 {
			t.Errorf("%d leases were planned, and %d releases sent", p, r)
		}
	})
}

func TestEvictionWithManyLeasesPlansEachOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := []*proc{w.start("a"), w.start("b")}
		leases := w.joinMany(manyLeases, procs...)
		w.share(10*time.Second, leases...)
		time.Sleep(10 * time.Second)
		planned := counted(w.leases, "snapshot")
		procs[0].kill()
		w.within(10*time.Second, "the other owns all", func() bool { return ownedOf(leases[1]) == manyLeases })
		if n := planned(); n > 2*manyLeases {
			t.Errorf("%d leases were planned", n)
		}
	})
}

func TestLostSessionWithManyLeasesJoinsAllAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		leases := w.joinMany(manyLeases, w.start("a"))[0]
		w.within(time.Second, "it owns all", func() bool { return ownedOf(leases) == manyLeases })
		time.Sleep(10 * time.Second)
		planned, joins, read := counted(w.leases, "snapshot"), counted(w.count, "join"), counted(w.leases, "read")
		w.evict("a")
		w.within(20*time.Second, "it owns nothing", func() bool { return ownedOf(leases) == 0 })
		w.within(20*time.Second, "it owns all again", func() bool { return ownedOf(leases) == manyLeases })
		if p, j, r := planned(), joins(), read(); p > 2*manyLeases || j > manyLeases || r > 3*manyLeases {
			t.Errorf("for %d leases, %d joins, %d leases planned and %d read", manyLeases, j, p, r)
		}
	})
}

func TestWeightOfEachOfManyLeasesPlansFew(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		leases := w.joinMany(manyLeases, w.start("a"), w.start("b"))
		w.share(10*time.Second, leases...)
		time.Sleep(10 * time.Second)
		planned, began := counted(w.leases, "snapshot"), time.Now()
		for _, l := range leases[0] {
			w.ok(l.SetWeight(context.Background(), 0))
		}
		took := time.Since(began)
		if n, limit := planned(), 4*manyLeases+2*manyLeases*int(1+took/time.Second); n > limit {
			t.Errorf("for %d weights, %d leases were planned within %v", manyLeases, n, took)
		}
		w.within(10*time.Second, "the other owns all", func() bool { return ownedOf(leases[1]) == manyLeases })
	})
}

func TestStatsOfManyLeasesAreTheirSum(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		leases := w.joinMany(manyLeases, a)[0]
		w.within(time.Second, "it owns all", func() bool { return ownedOf(leases) == manyLeases })
		held := leases[3].Hold(context.Background())
		left := make(chan error)
		ctx, giveUp := context.WithCancel(context.Background())
		go func() { left <- leases[3].Leave(ctx) }()
		w.ok(leases[4].Leave(context.Background()))
		synctest.Wait()
		all := a.c.Stats()
		if all.Leases != manyLeases-1 || all.Owned != manyLeases-2 {
			t.Errorf("one lease has ended, another drains, and the stats are %+v", all)
		}
		if all.Gains != manyLeases || all.Losses.Closed != 1 {
			t.Errorf("stats of all are %+v", all)
		}
		for _, s := range []pgleases.LeaseStats{all.LeaseStats, leases[3].Stats()} {
			if s.Draining != 1 || s.DrainingSince.IsZero() {
				t.Errorf("one of them drains, and the stats are %+v", s)
			}
		}
		if n := len(a.c.StatsByLease()); n != manyLeases-1 {
			t.Errorf("%d leases have stats", n)
		}
		held.Release()
		w.ok(<-left)
		giveUp()
		synctest.Wait()
		all = a.c.Stats()
		if all.Draining != 0 || !all.DrainingSince.IsZero() || all.Losses.Closed != 2 {
			t.Errorf("stats are %+v after the work has ended", all)
		}
		if n := len(a.c.StatsByLease()); all.Leases != manyLeases-2 || n != manyLeases-2 {
			t.Errorf("%d leases, and %d have stats, after the work has ended", all.Leases, n)
		}
	})
}
