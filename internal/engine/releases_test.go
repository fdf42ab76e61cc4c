package engine_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestAReleaseThatFailedBeforeLeavesCloseItsHeirs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b, c := w.start("a"), w.start("b"), w.start("c")
		leases := []*pgleases.Lease{a.mustJoin("x", 9), b.mustJoin("x", 9)}
		both := func(a, b *pgleases.Lease) func() bool {
			return func() bool { return len(shown(a))+len(shown(b)) == 9 }
		}
		w.within(10*time.Second, "they own all", both(leases[0], leases[1]))
		time.Sleep(5 * time.Second)
		w.failing(a, "release", 1, fault{err: errBroken, broken: true})
		leases = append(leases, c.mustJoin("x", 9))
		w.within(10*time.Second, "each owns three", func() bool {
			return !slices.ContainsFunc(leases, func(l *pgleases.Lease) bool { return len(shown(l)) != 3 })
		})
		time.Sleep(5 * time.Second)
		applied := w.count("apply")
		testkit.OK(t, a.c.Close(patiently(w.t)))
		w.within(200*time.Millisecond, "the others own all", both(leases[1], leases[2]))
		if n := w.count("apply") - applied; n > 0 {
			t.Errorf("%d plans were applied", n)
		}
	})
}

func TestCloseThatCannotPlanHandsOverAllTheSame(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _, _, lb := w.pair(4)
		w.inject(func(client, op string) (fault, bool) {
			return fault{err: errLocked}, client == a.name && op == "snapshot"
		})
		testkit.OK(t, a.c.Close(patiently(w.t)))
		w.within(5*time.Second, "the other owns all", func() bool { return len(shown(lb)) == 4 })
	})
}

// The new owner polls: the generation of the lease shows it.
func TestWhatWasReleasedIsAnnouncedUntilThatIsAnswered(t *testing.T) {
	for name, f := range map[string]fault{
		"the message is lost": {err: errBroken, broken: true},
		"its answer is lost":  {err: errBroken, broken: true, applied: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a, b := w.start("a"), w.start("b", pgleases.WithPolling())
				w.failing(a, "announce", 2, f)
				_, lb := w.handOver(a, b)
				w.within(5*time.Second, "the new owner shows it", func() bool { return len(shown(lb)) > 0 })
			})
		})
	}
}

func TestReleaseBeforeCrashReachesItsOwner(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b", pgleases.WithPolling())
		var released atomic.Bool
		w.inject(func(client, op string) (fault, bool) {
			if client == a.name && op == "announce" {
				released.Store(true)
				return fault{err: errBroken, broken: true}, true
			}
			return fault{}, false
		})
		la := a.owning("x", 1)
		lb := b.mustJoin("x", 1)
		testkit.OK(t, la.SetWeight(patiently(w.t), 0))
		w.within(10*time.Second, "a releases it", released.Load)
		a.kill()
		w.within(15*time.Second, "the new owner shows it", func() bool { return len(shown(lb)) > 0 })
	})
}

// The server does not restart: only its boot marker shows the crash.
func TestCrashWithLostAnnouncementHidesNoPartition(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a", pgleases.WithPolling()), w.start("b", pgleases.WithPolling())
		la := a.owning("x", 1)
		lb := b.mustJoin("x", 1)
		hold := la.Hold(context.Background())
		testkit.OK(t, la.SetWeight(patiently(w.t), 0))
		time.Sleep(10 * time.Second)
		w.within(10*time.Second, "no heartbeat is due soon", func() bool { return w.silence() < time.Second })
		hold.Release()
		w.within(10*time.Second, "it is handed over and announced", func() bool { return w.count("announce") == 1 })
		time.Sleep(3 * time.Millisecond)
		if shows(lb) == "0" || w.db.Crash(1) != 1 {
			t.Fatal("the announcement was heard, or was not lost")
		}
		w.within(20*time.Second, "the new owner shows it", func() bool { return shows(lb) == "0" })
	})
}

func TestReleaseWithLostAnswerIsAnnounced(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a", pgleases.WithPolling()), w.start("b")
		la := a.owning("x", 1)
		lb := b.mustJoin("x", 1)
		time.Sleep(10 * time.Second)
		hold := la.Hold(context.Background())
		testkit.OK(t, la.SetWeight(patiently(w.t), 0))
		w.within(10*time.Second, "it drains", func() bool { return shows(la) == "-" })
		time.Sleep(10 * time.Second)
		w.failing(a, "release", 1, fault{err: errBroken, broken: true, applied: true})
		w.db.Edit(func(t *fakestore.Tables, _ int64) { changed(t, "x") }) // by another plan
		w.notify("b")
		time.Sleep(50 * time.Millisecond)
		hold.Release()
		w.within(20*time.Second, "the new owner shows it", func() bool { return shows(lb) == "0" })
	})
}

// Work ends all the time while there are partitions to release.
func TestAStreamOfReleasesDelaysNoAnnouncement(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const partitions, each = 500, time.Millisecond / 4 // less than a statement takes
		a, b := w.start("a"), w.start("b")
		a.engine().Batches(partitions)
		b.engine().Batches(partitions)
		la := a.owning("x", partitions)
		go func() {
			_ = la.Run(context.Background(), func(ctx context.Context, p pgleases.Partition) error {
				<-ctx.Done()
				time.Sleep(time.Duration(p.Number) * each)
				return nil
			})
		}()
		lb := b.mustJoin("x", partitions)
		time.Sleep(5 * time.Second)
		w.blind.Store(true) // the oracle would take longest
		releases, announcements := w.count("release"), w.count("announce")
		testkit.OK(t, la.SetWeight(patiently(w.t), 0))
		w.within(5*time.Second, "b owns all", func() bool { return len(shown(lb)) == partitions })
		releases, announcements = w.count("release")-releases, w.count("announce")-announcements
		if releases < 20 || announcements < releases {
			t.Errorf("%d releases, %d announcements", releases, announcements)
		}
	})
}

func TestCloseHandsOverInOneStatement(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _, _, lb := w.pair(4)
		time.Sleep(10 * time.Second)
		releases, announcements := w.count("release"), w.count("announce")
		testkit.OK(t, a.c.Close(context.Background()))
		w.within(aMoment, "b owns all", func() bool { return len(lb.Values()) == 4 })
		if n := w.count("release") - releases; n != 1 {
			t.Errorf("%d releases", n)
		}
		if n := w.count("announce") - announcements; n != 0 {
			t.Errorf("%d announcements", n)
		}
	})
}
