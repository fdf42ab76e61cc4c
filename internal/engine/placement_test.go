package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/testkit"
)

// --- what waits before it moves

// delayed is a pair of clients that share a lease of 12 partitions with a rebalance delay, after
// the delay of the last join.
func (w *world) delayed(delay time.Duration) (procs []*proc, leases []*pgleases.Lease) {
	for _, id := range []string{"a", "b"} {
		p := w.start(id)
		l := p.mustJoin("x", 12, pgleases.WithRebalanceDelay(delay))
		p.work(l)
		procs, leases = append(procs, p), append(leases, l)
	}
	w.sharesIn(delay+heard, leases, 6, 6)
	return procs, leases
}

// settles returns the time until the rebalance delay of lease x ends; 0: there is none.
func (w *world) settles() (left time.Duration) {
	w.db.Look(func(t *fakestore.Tables, clock int64) {
		at := t.Leases["x"].SettlesAt
		if at != 0 {
			left = time.Duration(at-clock) * time.Microsecond
		}
	})
	return left
}

func TestNewMemberWaitsForTheRebalanceDelay(t *testing.T) {
	for _, delay := range []time.Duration{time.Second, 7 * time.Second, 10 * time.Minute} {
		t.Run(delay.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				_, leases := w.delayed(delay)
				before := shows(leases[0])
				w.logged("rebalance delayed") // by the join of the second
				began := time.Now()
				c := w.start("c").mustJoin("x", 12)
				took := w.within(delay+heard, "c owns its share", func() bool {
					if len(shown(c)) == 0 && shows(leases[0]) != before && time.Since(began) < delay {
						w.failf("after %v a owns %s, not %s", time.Since(began), shows(leases[0]), before)
					}
					return len(shown(c)) == 4
				})
				if took < delay {
					w.failf("it moved after %v, before the delay of %v", took, delay)
				}
				if n := w.logged("rebalance delayed"); n != 1 {
					w.failf("the delay is logged %d times", n)
				}
			})
		})
	}
}

func TestRollingDeploymentWithDelayMovesEachOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const delay = 30 * time.Second
		procs, leases := w.delayed(delay)
		old := slices.Clone(leases)
		gains := func(leases []*pgleases.Lease) int64 { return leases[0].Stats().Gains + leases[1].Stats().Gains }
		before := gains(old)
		for i, id := range []string{"c", "d"} {
			p := w.start(id)
			l := p.mustJoin("x", 12, pgleases.WithRebalanceDelay(delay))
			p.work(l)
			testkit.OK(t, procs[i].close(time.Minute, time.Minute))
			leases[i] = l
			w.within(heard, "the new client has what the old one had", func() bool { return len(shown(l)) == 6 })
		}
		w.sharesIn(delay, leases, 6, 6)
		time.Sleep(2 * delay)
		if n := gains(leases); n != 12 {
			w.failf("the 12 partitions moved %d times to the new clients", n)
		}
		if n := gains(old) - before; n != 0 {
			w.failf("partitions moved %d times to the old clients", n)
		}
	})
}

func TestLaterJoinBeginsTheDelayAnew(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const delay = 10 * time.Second
		procs, _ := w.delayed(delay)
		later := w.start("c").mustJoin("x", 12)
		began := time.Now()
		for time.Since(began) < 5*delay-time.Second {
			left := w.settles()
			if want := min(delay, 5*delay-time.Since(began)); left > want || left < want-7*time.Second {
				w.failf("after %v the delay lasts for %v more", time.Since(began), left)
			}
			if len(shown(later)) > 0 {
				w.failf("after %v c owns %s", time.Since(began), shows(later))
			}
			time.Sleep(6 * time.Second)
			testkit.OK(t, later.SetWeight(context.Background(), 1+int(time.Since(began)/time.Second)))
		}
		w.within(heard+2*time.Second, "after 5 delays c owns its share", func() bool { return len(shown(later)) > 0 })
		testkit.OK(t, procs[0].close(time.Minute, time.Minute))
	})
}

func TestWhatHasNoOwnerDoesNotWaitForTheDelay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs, leases := w.delayed(10 * time.Minute)
		c := w.start("c").mustJoin("x", 12)
		before := slices.Clone(shown(leases[1]))
		procs[0].kill()
		w.within(12*time.Second, "c owns what a had", func() bool { return len(shown(c)) == 6 })
		if after := shown(leases[1]); len(after) != len(before) {
			w.failf("b owned %v, and then %v", before, after)
		}
		testkit.OK(t, leases[1].SetWeight(context.Background(), 0))
		w.within(heard, "weight 0 gives at once", func() bool { return len(shown(c)) == 12 })
		w.override("drain", "", "c")
		testkit.OK(t, leases[1].SetWeight(context.Background(), 1))
		w.within(heard, "a drain comes before the delay", func() bool { return len(shown(leases[1])) == 12 })
	})
}

// A delay that began in the future was written under another clock. It does not wait for that clock.
func TestDelaysEndWhenTheClockStepsBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.delayed(time.Minute)
		c := w.start("c").mustJoin("x", 12)
		time.Sleep(time.Second)
		w.db.Step(-time.Hour)
		w.within(30*time.Second, "c owns its share", func() bool { return len(shown(c)) == 4 })
	})
}

func TestRebalanceDelaySurvivesItsPlannerAndAPromotion(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const delay = time.Minute
		procs, leases := w.delayed(delay)
		c := w.start("c")
		l := c.mustJoin("x", 12)
		began := time.Now()
		procs[0].kill()
		w.within(12*time.Second, "c has what a had", func() bool { return len(shown(l)) == 6 })
		w.promote(0, false)
		for time.Since(began) < delay-time.Second {
			time.Sleep(time.Second)
		}
		if n := len(shown(leases[1])); n != 6 {
			w.failf("b owns %d, not 6", n)
		}
		d := w.start("d").mustJoin("x", 12)
		w.within(delay+heard, "the delay of the new server ends", func() bool { return len(shown(d)) == 4 })
	})
}

// --- ceilings

// leftOut is the message about partitions that no member may own.
const leftOut = "partitions left without an owner"

func TestCeilingsLeaveTheSamePartitionsWithoutAnOwner(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var procs []*proc
		var leases []*pgleases.Lease
		for _, id := range []string{"a", "b"} {
			p := w.start(id)
			procs, leases = append(procs, p), append(leases, p.mustJoin("x", 12, pgleases.WithMaxPartitions(3)))
		}
		w.shares(leases, 3, 3)
		without := func() (numbers []int) {
			w.db.Look(func(t *fakestore.Tables, _ int64) {
				for p, row := range t.Partitions["x"] {
					if row.Owner == 0 {
						numbers = append(numbers, p)
					}
				}
			})
			return numbers
		}
		if got := without(); !slices.Equal(got, []int{6, 7, 8, 9, 10, 11}) {
			w.failf("without an owner: %v", got)
		}
		for _, l := range leases {
			if n := l.Stats().Unowned; n != 6 {
				w.failf("Stats.Unowned is %d, not 6", n)
			}
		}
		if n := procs[0].c.Stats().Unowned; n != 6 {
			w.failf("Stats.Unowned of the client is %d, not 6", n)
		}
		c := w.start("c").mustJoin("x", 12)
		w.within(heard, "a member without a ceiling takes the rest", func() bool { return len(shown(c)) == 6 })
		w.within(heard, "each partition has an owner", func() bool { return leases[0].Stats().Unowned == 0 })
		testkit.OK(t, c.Leave(context.Background()))
		w.within(heard, "the others stay at their ceilings", func() bool { return leases[1].Stats().Unowned == 6 })
		if got := without(); !slices.Equal(got, []int{6, 7, 8, 9, 10, 11}) {
			w.failf("without an owner: %v", got)
		}
		procs[1].kill()
		w.within(12*time.Second, "the survivor owns no more", func() bool { return leases[0].Stats().Unowned == 9 })
		if n := len(shown(leases[0])); n != 3 {
			w.failf("the survivor owns %d, above its ceiling of 3", n)
		}
	})
}

func TestOneMemberLogsEachMinuteWhatHasNoOwner(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var procs []*proc
		var leases []*pgleases.Lease
		for _, id := range []string{"a", "b", "c"} {
			p := w.start(id)
			procs, leases = append(procs, p), append(leases, p.mustJoin("x", 12, pgleases.WithMaxPartitions(3)))
		}
		w.shares(leases, 3, 3, 3)
		w.logged(leftOut)
		time.Sleep(10*time.Minute + time.Second)
		if n := w.logged(leftOut + ", all members are at their ceilings lease=x count=3"); n != 10 {
			w.failf("it was logged %d times in 10 min, not 10", n)
		}
		testkit.OK(t, procs[0].close(time.Minute, time.Minute))
		testkit.OK(t, procs[1].close(time.Minute, time.Minute))
		w.within(heard, "the last member hears of it", func() bool { return leases[2].Stats().Unowned == 9 })
		w.logged(leftOut)
		time.Sleep(10*time.Minute + time.Second)
		if n := w.logged(leftOut + ", all members are at their ceilings lease=x count=9"); n != 10 {
			w.failf("the last member logged it %d times in 10 min, not 10", n)
		}
		d := w.start("d").mustJoin("x", 12)
		w.within(heard, "each partition has an owner", func() bool { return len(shown(d)) == 9 })
		time.Sleep(10 * time.Minute)
		if n := w.logged("ceilings no longer exceeded lease=x for="); n != 1 {
			w.failf("its end was logged %d times", n)
		}
		if n := w.logged(leftOut); n != 0 {
			w.failf("it was logged %d times after its end", n)
		}
	})
}

func TestPinsCountAgainstACeilingAndPassIt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a").mustJoin("x", 6, pgleases.WithMaxPartitions(2))
		b := w.start("b").mustJoin("x", 6)
		leases := []*pgleases.Lease{a, b}
		w.shares(leases, 2, 4)
		pin := func(partition int) {
			pin := fakestore.Override{Verb: "pin", Lease: "x", Partition: partition}
			testkit.OK(t, w.db.Override(pin, "a", fakestore.Ever, false))
		}
		free := slices.Clone(shown(b))
		pin(free[0].Number)
		w.shares(leases, 2, 4)
		pin(free[1].Number)
		pin(free[2].Number)
		w.shares(leases, 3, 3)
	})
}

// --- graces

// waiting returns the partitions of lease x without an owner.
func (w *world) waiting() (numbers []int) {
	w.db.Look(func(t *fakestore.Tables, _ int64) {
		for p, row := range t.Partitions["x"] {
			if _, lives := t.Clients[row.Owner]; !lives {
				numbers = append(numbers, p)
			}
		}
	})
	return numbers
}

// graceful is three clients with weights that share a lease of 13 partitions with a restart grace.
func (w *world) graceful(grace time.Duration, weights ...int) (procs []*proc, leases []*pgleases.Lease) {
	for i, weight := range weights {
		p := w.start(string(rune('a' + i)))
		l := p.mustJoin("x", 13, pgleases.WithRestartGrace(grace), pgleases.WithWeight(weight))
		p.work(l)
		procs, leases = append(procs, p), append(leases, l)
	}
	w.within(heard, "all partitions have an owner", func() bool {
		sum := 0
		for _, l := range leases {
			sum += len(shown(l))
		}
		return sum == 13 && len(w.waiting()) == 0
	})
	time.Sleep(10 * time.Second)
	return procs, leases
}

func TestPartitionsWaitForAClientThatRestarts(t *testing.T) {
	const grace = time.Minute
	for _, how := range []string{"close", "crash", "freeze"} {
		for _, weights := range [][]int{{1, 1, 1}, {3, 1, 2}, {2, 3, 5}, {1, 2, 7}} {
			t.Run(fmt.Sprint(how, weights), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					procs, leases := w.graceful(grace, weights...)
					for i, p := range procs {
						before := []string{shows(leases[0]), shows(leases[1]), shows(leases[2])}
						var numbers []int
						for _, o := range shown(leases[i]) {
							numbers = append(numbers, o.Number)
						}
						switch how {
						case "close":
							testkit.OK(t, p.close(time.Minute, time.Minute))
						case "crash":
							p.kill()
						case "freeze":
							p.cutOff(true)
						}
						w.within(12*time.Second, "its partitions wait", func() bool {
							return slices.Equal(w.waiting(), numbers)
						})
						time.Sleep(grace - 20*time.Second)
						if got := w.waiting(); !slices.Equal(got, numbers) {
							w.failf("%v wait, not %v", got, numbers)
						}
						if how == "freeze" {
							p.cutOff(false)
						} else {
							p = w.start(p.id)
							l := p.mustJoin("x", 13, pgleases.WithRestartGrace(grace), pgleases.WithWeight(weights[i]))
							p.work(l)
							leases[i], procs[i] = l, p
						}
						w.within(heard, "it has its own", func() bool { return shows(leases[i]) == before[i] })
						time.Sleep(2 * grace)
						after := []string{shows(leases[0]), shows(leases[1]), shows(leases[2])}
						if !slices.Equal(after, before) {
							w.failf("they owned %v, and then %v", before, after)
						}
					}
				})
			})
		}
	}
}

func TestGraceEndsAtItsTime(t *testing.T) {
	for _, grace := range []time.Duration{2 * time.Second, 10 * time.Second, time.Hour} {
		for _, crashes := range []bool{false, true} {
			t.Run(fmt.Sprint(grace, crashes), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					procs, leases := w.graceful(grace, 1, 1, 1)
					began, late := time.Now(), heard
					if crashes {
						procs[1].kill()
						late += 8 * time.Second
					} else {
						testkit.OK(t, procs[1].close(time.Minute, time.Minute))
					}
					if n := w.logged("partitions wait for the return of this client"); n != 1 && !crashes {
						w.failf("it is logged %d times that they wait", n)
					}
					w.within(grace+late, "others have them", func() bool {
						return len(w.waiting()) == 0 && len(shown(leases[0]))+len(shown(leases[2])) == 13
					})
					if took := time.Since(began); took < grace {
						w.failf("others have them after %v", took)
					}
				})
			})
		}
	}
}

func TestNothingWaitsForAClientThatDoesNotComeBack(t *testing.T) {
	for how, end := range map[string]func(w *world, p *proc, l *pgleases.Lease) error{
		"Close": func(_ *world, p *proc, _ *pgleases.Lease) error {
			return p.c.Close(context.Background(), pgleases.WithoutReturn())
		},
		"Leave": func(_ *world, _ *proc, l *pgleases.Lease) error { return l.Leave(context.Background()) },
		"drain before": func(w *world, p *proc, _ *pgleases.Lease) error {
			w.override("drain", "", "b")
			return p.close(time.Minute, time.Minute)
		},
		"drain after": func(w *world, p *proc, _ *pgleases.Lease) error {
			err := p.close(time.Minute, time.Minute)
			w.override("drain", "", "b")
			return err
		},
		"drain after a crash": func(w *world, p *proc, _ *pgleases.Lease) error {
			p.kill()
			time.Sleep(10 * time.Second)
			w.override("drain", "", "b")
			return nil
		},
		"eviction by an operator": func(w *world, _ *proc, _ *pgleases.Lease) error {
			_, err := w.db.EvictClient("b")
			time.Sleep(6 * time.Second)
			return err
		},
		"weight 0": func(w *world, p *proc, l *pgleases.Lease) error {
			testkit.OK(w.t, l.SetWeight(context.Background(), 0))
			return p.close(time.Minute, time.Minute)
		},
		"Close after a return": func(w *world, p *proc, _ *pgleases.Lease) error {
			testkit.OK(w.t, p.close(time.Minute, time.Minute))
			again := w.start("b")
			l := again.mustJoin("x", 13, pgleases.WithRestartGrace(time.Hour))
			w.within(heard, "it is back", func() bool { return len(shown(l)) > 0 })
			return again.c.Close(context.Background(), pgleases.WithoutReturn())
		},
	} {
		t.Run(how, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				procs, leases := w.graceful(time.Hour, 1, 1, 1)
				testkit.OK(t, end(w, procs[1], leases[1]))
				w.within(heard, "others have them", func() bool {
					return len(w.waiting()) == 0 && len(shown(leases[0]))+len(shown(leases[2])) == 13
				})
			})
		})
	}
}

func TestClientThatIsAwaitedGetsNoOthers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs, leases := w.graceful(time.Hour, 1, 1, 1)
		mine := shows(leases[0])
		testkit.OK(t, procs[0].close(time.Minute, time.Minute))
		numbers := w.waiting()
		testkit.OK(t, procs[1].c.Close(context.Background(), pgleases.WithoutReturn()))
		w.within(heard, "the last client has the rest", func() bool { return len(shown(leases[2])) == 13-len(numbers) })
		if got := w.waiting(); !slices.Equal(got, numbers) {
			w.failf("%v wait, not %v", got, numbers)
		}
		d := w.start("d").mustJoin("x", 13)
		w.within(heard, "a new member has its share", func() bool { return len(shown(d)) >= 4 })
		a := w.start("a").mustJoin("x", 13, pgleases.WithRestartGrace(time.Hour))
		w.within(heard, "the client has its own", func() bool { return shows(a) == mine })
	})
}

func TestANewerProcessTakesOverWhileTheOlderEnds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, leases := w.graceful(time.Minute, 1, 1, 1)
		before := []string{shows(leases[0]), shows(leases[1]), shows(leases[2])}
		newer := w.start("b")
		time.Sleep(5 * time.Second) // the older has ended meanwhile
		leases[1] = newer.mustJoin("x", 13, pgleases.WithRestartGrace(time.Minute))
		w.within(heard, "the newer has what the older had", func() bool { return shows(leases[1]) == before[1] })
		time.Sleep(2 * time.Minute)
		if after := []string{shows(leases[0]), shows(leases[1]), shows(leases[2])}; !slices.Equal(after, before) {
			w.failf("they owned %v, and then %v", before, after)
		}
	})
}

func TestGraceSurvivesItsPlannerAndAPromotion(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs, leases := w.graceful(2*time.Minute, 1, 1, 1)
		mine := shows(leases[0])
		testkit.OK(t, procs[0].close(time.Minute, time.Minute))
		numbers := w.waiting()
		w.promote(0, false)
		time.Sleep(20 * time.Second)
		procs[1].kill()
		w.within(20*time.Second, "the planner is gone", func() bool { return len(w.waiting()) > len(numbers) })
		a := w.start("a").mustJoin("x", 13, pgleases.WithRestartGrace(time.Minute))
		w.within(heard, "the client has its own", func() bool { return shows(a) == mine })
	})
}

func TestGraceThatBeganInTheFutureIsNone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs, leases := w.graceful(time.Hour, 1, 1, 1)
		testkit.OK(t, procs[0].close(time.Minute, time.Minute))
		w.db.Step(-time.Hour)
		w.within(30*time.Second, "others have them", func() bool {
			return len(w.waiting()) == 0 && len(shown(leases[1]))+len(shown(leases[2])) == 13
		})
	})
}
