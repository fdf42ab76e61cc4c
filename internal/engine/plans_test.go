package engine_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
)

// Plans of more moves, and releases of more partitions, than one statement may contain. Heartbeats
// are minutes apart, as in wakeups_test.go.

// inBatches opens a client with rare heartbeats whose statements move few partitions.
func (w *world) inBatches(id string) *proc {
	p := w.start(id, rare...)
	p.engine().Batches(engine.MinBatch)
	return p
}

func TestAPlanOfManyMovesIsReadOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		l := w.inBatches("a").mustJoin("x", 1000)
		w.within(time.Second, "it owns all", func() bool { return len(l.Values()) == 1000 })
		plans, applies := w.count("snapshot"), w.count("apply")
		if plans != 1 || applies != 5 { // 64, 128, 256, 512 and the rest
			t.Errorf("%d plans, applied in %d batches", plans, applies)
		}
	})
}

func TestOvertakenPlanIsMadeAgainAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		overtaken := false
		w.after = func(op string) {
			if op == "apply" && !overtaken {
				overtaken = true
				w.db.Edit(func(t *fakestore.Tables, _ int64) {
					changed(t, "x")
				})
			}
		}
		l := w.inBatches("a").mustJoin("x", 1000)
		took := w.within(time.Second, "it owns all", func() bool { return len(l.Values()) == 1000 })
		if plans := w.count("snapshot"); plans != 2 || took > soon {
			t.Errorf("%d plans, after %v", plans, took)
		}
	})
}

func TestFailureBetweenBatchesPlansAgainAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.inBatches("a")
		applies := 0
		w.inject(func(_, op string) (fault, bool) {
			if op == "apply" {
				applies++
			}
			executed := op == "apply" && applies == 2 // its answer is lost
			return fault{err: errLocked, applied: true}, executed
		})
		l := a.mustJoin("x", 1000)
		took := w.within(time.Second, "it owns all", func() bool { return len(l.Values()) == 1000 })
		if plans := w.count("snapshot"); plans != 2 || took > soon {
			t.Errorf("%d plans, after %v", plans, took)
		}
	})
}

func TestWhatAnyBatchOfAPlanLeavesOverIsPlannedAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithTTL(engine.MinTTL), pgleases.WithPolling())
		la := a.mustJoin("x", 1000)
		w.within(time.Second, "it owns all", func() bool { return len(la.Values()) == 1000 })
		first, _ := la.Partition(0)
		end := w.guard(first)
		a.kill()
		w.within(engine.MinTTL, "it shows nothing", func() bool { return len(la.Values()) == 0 })
		w.evict("a")
		w.inBatches("b").mustJoin("x", 1000)
		w.within(2*time.Second, "it owns all but the first", w.recorded("b", 999))
		plans := w.count("snapshot")
		time.Sleep(10 * time.Second)
		if n := w.count("snapshot") - plans; n < 10 || n > 20 {
			t.Errorf("%d plans in 10 s in which nothing changed", n)
		}
		w.start("c", rare...).mustJoin("x", 1000)
		w.within(time.Second, "a join is planned meanwhile", func() bool {
			_, meant := w.owns("c", "x")
			return meant >= 499
		})
		end()
		w.within(time.Second+soon, "the first has another owner", func() (has bool) {
			w.db.Look(func(t *fakestore.Tables, _ int64) { has = t.Clients[t.Partitions["x"][0].Owner].ID != "" })
			return has
		})
	})
}

// sharing opens three clients that share a lease, and whose statements release few partitions.
func (w *world) sharing(partitions int) (procs []*proc, leases []*pgleases.Lease) {
	for _, id := range []string{"a", "b", "c"} {
		p := w.start(id, pgleases.WithTTL(engine.MinTTL), pgleases.WithPolling())
		procs, leases = append(procs, p), append(leases, p.mustJoin("x", partitions, pgleases.WithHandoffDelay(0)))
	}
	for i, l := range leases {
		w.within(10*time.Second, "each owns a third", func() bool { return len(l.Values()) == partitions/3 })
		procs[i].engine().Batches(engine.MinBatch)
	}
	w.within(10*time.Second, "no plan is due", func() (none bool) {
		w.db.Look(func(t *fakestore.Tables, _ int64) { none = t.Leases["x"].NextCheckAt == fakestore.Ever })
		return none
	})
	return procs, leases
}

// epochs returns the sum of a lease's epochs, which rises with each change of an owner.
func (w *world) epochs(lease string) (sum int64) {
	w.db.Look(func(t *fakestore.Tables, _ int64) {
		for _, row := range t.Partitions[lease] {
			sum += row.Epoch
		}
	})
	return sum
}

func TestClientsThatCloseAtOnceAreNoSuccessors(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs, _ := w.sharing(1200)
		before, applies := w.epochs("x"), w.count("apply")
		// All begin before the first statement is executed, also on a busy machine.
		w.inject(func(_, _ string) (fault, bool) { return fault{before: time.Millisecond}, true })
		var closing sync.WaitGroup
		for _, p := range procs {
			closing.Go(func() {
				w.ok(p.c.Close(context.Background()))
			})
		}
		closing.Wait()
		if moved := w.epochs("x") - before; moved != 1200 {
			t.Errorf("%d changes of owners, not one for each of 1,200 partitions", moved)
		}
		if n := w.count("apply") - applies; n > 0 {
			t.Errorf("%d plans were applied meanwhile", n)
		}
	})
}

func TestWhatOneClosesInBatchesGoesStraightToItsHeirs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs, leases := w.sharing(1200)
		before, applies := w.epochs("x"), w.count("apply")
		w.ok(procs[0].c.Close(context.Background()))
		for _, l := range leases[1:] {
			w.within(engine.MinTTL, "each owns half", func() bool { return len(l.Values()) == 600 })
		}
		if moved, n := w.epochs("x")-before, w.count("apply")-applies; moved != 400 || n > 0 {
			t.Errorf("%d changes of owners, not one for each of 400 partitions; %d plans applied meanwhile", moved, n)
		}
	})
}

// Its rows still exist, and it is asked for one of them. What it releases is not released, and what
// it reads has to be released.
func TestASessionThatIsGoneDoesNotReleaseAgainAndAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var leases []*pgleases.Lease
		for _, id := range []string{"a", "b"} {
			p := w.start(id, pgleases.WithTTL(10*time.Second))
			leases = append(leases, p.mustJoin("x", 6, pgleases.WithHandoffDelay(0)))
		}
		for _, l := range leases {
			w.within(10*time.Second, "each owns half", func() bool { return len(l.Values()) == 3 })
		}
		before := w.count("release")
		var a int64 // its session
		w.db.Edit(func(t *fakestore.Tables, _ int64) {
			a = sessionOf(t, "a")
			delete(t.Clients, a)
			for i, row := range t.Partitions["x"] {
				if row.Owner == a {
					t.Partitions["x"][i].Target = sessionOf(t, "b")
				}
			}
			changed(t, "x")
		})
		w.db.Notify(a) // long before its next heartbeat
		time.Sleep(10 * time.Second)
		if n := w.count("release") - before; n == 0 || n > 10 {
			t.Errorf("%d releases within a TTL", n)
		}
	})
}

// The client that overtook it may have asked for another plan, at another time.
func TestAPlanThatIsOvertakenForLongIsClaimedAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		began := time.Now()
		w.after = func(op string) {
			if op == "snapshot" && time.Since(began) < time.Second {
				w.db.Edit(func(t *fakestore.Tables, _ int64) {
					changed(t, "x")
				})
			}
		}
		l := w.start("a", rare...).mustJoin("x", 1000)
		w.within(2*time.Second, "it owns all", func() bool { return len(l.Values()) == 1000 })
		plans, claims := w.count("snapshot"), w.count("claim")
		if claims < 5 || plans > 3*(claims+1) { // the join made the first claim
			t.Errorf("%d plans, %d claims, after %v", plans, claims, time.Since(began))
		}
	})
}
