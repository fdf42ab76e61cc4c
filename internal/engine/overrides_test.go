package engine_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/testkit"
)

// --- what clients do about overrides

// override gives an operator's verb on a client or a lease, without an end and by force.
func (w *world) override(verb, lease, client string) {
	w.t.Helper()
	o := fakestore.Override{Verb: verb, Lease: lease, Client: client}
	testkit.OK(w.t, w.db.Override(o, "", fakestore.Ever, true))
}

func (w *world) takeBack(verb, lease, client string) {
	w.t.Helper()
	testkit.OK(w.t, w.db.TakeBack(fakestore.Override{Verb: verb, Lease: lease, Client: client}))
}

// heard is how long it takes until an override is obeyed: a heartbeat reports it, and work ends.
const heard = 4 * time.Second

// trio is three clients that share a lease of 12 partitions, and run work on it.
func (w *world) trio() (procs []*proc, leases []*pgleases.Lease) {
	for _, id := range []string{"a", "b", "c"} {
		p := w.start(id)
		l := p.mustJoin("x", 12)
		p.work(l)
		procs, leases = append(procs, p), append(leases, l)
	}
	w.shares(leases, 4, 4, 4)
	return procs, leases
}

// shares waits until the clients own these numbers of partitions, then checks for a while that they
// stay.
func (w *world) shares(leases []*pgleases.Lease, want ...int) {
	w.t.Helper()
	w.sharesIn(heard, leases, want...)
}

func (w *world) sharesIn(limit time.Duration, leases []*pgleases.Lease, want ...int) {
	w.t.Helper()
	owned := func() (got []int) {
		for _, l := range leases {
			got = append(got, len(shown(l)))
		}
		return got
	}
	w.within(limit, fmt.Sprintf("they own %v", want), func() bool { return slices.Equal(owned(), want) })
	time.Sleep(20 * time.Second)
	if got := owned(); !slices.Equal(got, want) {
		w.failf("they own %v, then %v", want, got)
	}
}

func TestADrainedClientOwnsNothingUntilItGetsItsOwnBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		logs := func(what string) {
			t.Helper()
			if n := w.logged(what); n != 1 {
				w.failf("it is logged %d times: %s", n, what)
			}
		}
		procs, leases := w.trio()
		before := shows(leases[1])
		w.override("drain", "", "b")
		w.shares(leases, 6, 0, 6)
		logs("client drained by an operator actor=operator reason=reason")
		if err := leases[1].SetWeight(context.Background(), 5); err != nil { // the application does not undo it
			t.Fatal(err)
		}
		w.shares(leases, 6, 0, 6)
		testkit.OK(t, leases[1].SetWeight(context.Background(), 1))
		procs[1].kill() // nor does a restart
		again := w.start("b").mustJoin("x", 12)
		leases[1] = again
		w.shares(leases, 6, 0, 6)
		w.takeBack("drain", "", "b")
		w.shares(leases, 4, 4, 4)
		logs("drain of the client ended for=2")
		if after := shows(again); after != before {
			t.Errorf("it owned %s, and then %s", before, after)
		}
	})
}

func TestEndOfAPauseSaysHowLongItWas(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, leases := w.trio()
		w.override("pause", "x", "")
		w.shares(leases, 0, 0, 0)
		w.takeBack("pause", "x", "")
		w.shares(leases, 4, 4, 4)
		if n := w.logged("pause of a lease ended lease=x for=2"); n != 3 {
			w.failf("the end is logged %d times with its length", n)
		}
	})
}

func TestCordonedClientKeepsItsPartitionsOnly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs, leases := w.trio()
		before := shows(leases[1])
		w.override("cordon", "", "b")
		testkit.OK(t, procs[0].close(time.Minute, time.Minute))
		w.shares(leases, 0, 4, 8)
		d := w.start("d").mustJoin("x", 12)
		leases[0] = d
		w.shares(leases, 4, 4, 4)
		if after := shows(leases[1]); after != before {
			t.Errorf("it owned %s, and then %s", before, after)
		}
		w.override("cordon", "", "d")
		w.override("cordon", "", "c")
		testkit.OK(t, d.Leave(context.Background()))
		w.shares(leases, 0, 6, 6) // all are cordoned, and every partition still has an owner
		e := w.start("e").mustJoin("x", 12)
		leases[0] = e
		w.shares(leases, 0, 6, 6) // it gets no partitions
		w.takeBack("cordon", "", "b")
		w.takeBack("cordon", "", "c")
		w.shares(leases, 4, 4, 4)
	})
}

func TestOfAFrozenLeaseOnlyWhatHasNoOwnerMoves(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs, leases := w.trio()
		w.override("freeze", "x", "")
		d := w.start("d").mustJoin("x", 12)
		leases = append(leases, d)
		w.shares(leases, 4, 4, 4, 0)
		procs[0].kill()
		w.sharesIn(12*time.Second, leases[1:], 4, 4, 4) // its partitions go to the member with the fewest
		testkit.OK(t, leases[1].Leave(context.Background()))
		w.shares(leases[2:], 6, 6)
		w.override("drain", "", "d")
		w.shares(leases[2:], 12, 0)
		w.takeBack("drain", "", "d")
		w.shares(leases[2:], 12, 0)
		w.takeBack("freeze", "x", "")
		w.shares(leases[2:], 6, 6)
	})
}

// A client that has heard of the override by then makes the check at its time.
func TestOverrideEndsAtItsTimeOrAHeartbeatLater(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.trio()
		for i, ahead := range []time.Duration{
			100 * time.Millisecond, 2500 * time.Millisecond, 5 * time.Second, 30 * time.Second, 10 * time.Minute,
		} {
			time.Sleep(time.Duration(i) * 300 * time.Millisecond)
			var until int64
			w.db.Look(func(_ *fakestore.Tables, clock int64) { until = clock + ahead.Microseconds() })
			testkit.OK(t, w.db.Override(fakestore.Override{Verb: "cordon", Client: "a"}, "", until, false))
			most := max(ahead, 2*time.Second) + 300*time.Millisecond
			if took := w.within(most, "it has ended", func() (ended bool) {
				w.db.Look(func(t *fakestore.Tables, _ int64) { ended = len(t.Overrides) == 0 })
				return ended
			}); took < ahead {
				t.Errorf("one of %v ended after %v", ahead, took)
			}
		}
	})
}

func TestPinnedPartitionIsWithItsClientIfMember(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs, leases := w.trio()
		its := shown(leases[2])[0].Number
		pin := fakestore.Override{Verb: "pin", Lease: "x", Partition: its}
		testkit.OK(t, w.db.Override(pin, "a", fakestore.Ever, false))
		owns := func(l *pgleases.Lease) bool {
			return slices.ContainsFunc(shown(l), func(o pgleases.Partition) bool { return o.Number == its })
		}
		w.within(heard, "a has it", func() bool { return owns(leases[0]) })
		w.within(heard, "the others are shared", func() bool {
			return len(shown(leases[1])) >= 3 && len(shown(leases[2])) >= 3 && len(shown(leases[0])) >= 4
		})
		w.override("drain", "", "a")
		w.within(heard, "it is with another", func() bool { return owns(leases[1]) || owns(leases[2]) })
		w.takeBack("drain", "", "a")
		w.within(heard, "it is back", func() bool { return owns(leases[0]) })
		procs[0].kill()
		w.within(10*time.Second, "it is with another", func() bool { return owns(leases[1]) || owns(leases[2]) })
		leases[0] = w.start("a").mustJoin("x", 12)
		w.within(heard, "it is back", func() bool { return owns(leases[0]) })
		w.override("cordon", "", "a") // the cordon keeps other partitions from it, but not pinned ones
		testkit.OK(t, w.db.Override(pin, "b", fakestore.Ever, false))
		w.within(heard, "it is with whom it is pinned to now", func() bool { return owns(leases[1]) })
		testkit.OK(t, w.db.TakeBack(pin))
		w.takeBack("cordon", "", "a")
		w.shares(leases, 4, 4, 4)
	})
}

// TestOverridesNeverGiveAPartitionTwoOwners plays histories of their verbs, with crashes of
// processes and of the database.
func TestOverridesNeverGiveAPartitionTwoOwners(t *testing.T) {
	histories(t, func(w *world) {
		leases := map[string]int{"a": 1 + w.n(3), "b": 1 + w.n(16)}
		var alive []*proc
		add := func(id string) {
			p := w.start(id)
			for _, name := range slices.Sorted(maps.Keys(leases)) {
				p.work(p.mustJoin(name, leases[name]))
			}
			alive = append(alive, p)
		}
		for id := range 3 {
			add(fmt.Sprint("id", id))
		}
		for step := range 60 {
			time.Sleep(w.span(0, 10*time.Second))
			i := w.n(len(alive))
			p := alive[i]
			gone := func() { alive = slices.Delete(alive, i, i+1) }
			switch n := w.n(12); {
			case n == 0 && len(alive) > 1:
				w.event("%s: killed", p.name)
				p.kill()
				gone()
			case n == 1 && len(alive) > 1:
				gone()
				_ = p.close(w.span(0, 10*time.Second), 13*time.Second)
			case n == 2 && len(alive) > 1:
				_, err := w.db.EvictClient(p.id)
				w.event("%s: evicted by an operator: %v", p.name, err)
				gone()
				if w.chance(0.5) {
					add(p.id)
				}
			case n == 3:
				w.event("database: crashed, %d heartbeats lost", w.db.Crash(w.n(20)))
			case n <= 5 && len(alive) < 6:
				add(fmt.Sprint("id", 3+step))
			case n <= 9:
				verbs := []string{"drain", "cordon", "pause", "freeze", "pin"}
				override, to := fakestore.Override{Verb: verbs[w.n(len(verbs))]}, ""
				if override.Verb == "drain" || override.Verb == "cordon" {
					override.Client = p.id
				} else {
					override.Lease = w.anyOf(leases)
				}
				if override.Verb == "pin" {
					override.Partition, to = w.n(leases[override.Lease]), p.id
				}
				until := int64(fakestore.Ever)
				if w.chance(0.5) {
					w.db.Look(func(_ *fakestore.Tables, clock int64) {
						until = clock + w.span(time.Second, 30*time.Second).Microseconds()
					})
				}
				w.event("%+v %s: %v", override, to, w.db.Override(override, to, until, w.chance(0.5)))
			default:
				w.takeAllBack(1)
			}
		}
		w.takeAllBack(1000)
		w.event("quiet")
		if !w.broken() {
			w.comesRight(alive, leases, 6*time.Second)
		}
		w.end()
	})
}

// takeAllBack takes the given overrides back.
func (w *world) takeAllBack(n int) {
	var overrides []fakestore.Override
	w.db.Look(func(t *fakestore.Tables, _ int64) { overrides = slices.Collect(maps.Keys(t.Overrides)) })
	slices.SortFunc(overrides, func(a, b fakestore.Override) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	for _, override := range overrides[:min(n, len(overrides))] {
		w.event("taken back: %+v: %v", override, w.db.TakeBack(override))
	}
}
