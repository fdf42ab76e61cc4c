package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestPartitionGainedAndWantedElsewhereIsHandedOver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a", pgleases.WithPolling()), w.start("b", pgleases.WithPolling())
		la, lb := a.mustJoin("x", 1, pgleases.WithWeight(0)), b.mustJoin("x", 1, pgleases.WithWeight(0))
		time.Sleep(5 * time.Second)
		w.give(place{"x", 0}, b, a)
		w.within(6*time.Second, "a owns it", func() bool { return shows(la) == "0" && shows(lb) == "-" })
	})
}

func TestOwnersReadAgainAfterServerIsAccepted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, _, la, lb := w.pair(2)
		w.mu.Lock()
		w.after = func(op string) {
			if op == "accept" {
				w.notify("a", "b")
			}
		}
		w.mu.Unlock()
		w.promote(0, false)
		w.within(12*time.Second, "accepted", w.accepted)
		time.Sleep(2 * time.Second)
		if len(la.Values()) != 1 || len(lb.Values()) != 1 {
			w.failf("a shows %s, b shows %s", shows(la), shows(lb))
		}
	})
}

// handOver has a hand a partition to b, by giving b all the weight. A standby that misses what it
// can misses that.
func (w *world) handOver(a, b *proc) (la, lb *pgleases.Lease) {
	la = a.owning("x", 1, pgleases.WithHandoffDelay(0))
	lb = b.mustJoin("x", 1, pgleases.WithHandoffDelay(0))
	time.Sleep(time.Second)
	w.db.KeepNone()
	testkit.OK(w.t, la.SetWeight(context.Background(), 0))
	w.within(5*time.Second, "b owns it", func() bool { return shows(lb) == "0" })
	return la, lb
}

// staysAway watches for 4 s that a lease does not show what it had handed over to another.
func (w *world) staysAway(lease, other *pgleases.Lease) {
	for range 4000 {
		time.Sleep(time.Millisecond)
		if shows(lease) != "-" {
			w.failf("it shows what it had handed over; the other shows %s", shows(other))
			return
		}
	}
}

func TestNewConnectionGainsAfterFirstHeartbeatOnly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		la, lb := w.handOver(a, b)
		w.inject(func(client, op string) (fault, bool) {
			return fault{err: errLocked}, op == "heartbeat" && client == a.name
		})
		w.promote(keepStates, false)
		w.staysAway(la, lb)
	})
}

func TestAReadThatAPromotedServerAnswersGainsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		la, lb := w.handOver(a, b)
		w.inject(func(client, op string) (fault, bool) {
			return fault{before: time.Second}, op == "read" && client == a.name
		})
		w.notify("a")
		time.Sleep(500 * time.Millisecond)
		w.promote(keepStates, true) // a pooler keeps the connections
		w.staysAway(la, lb)
	})
}

func TestFencedPartitionWaitsForFormerGuards(t *testing.T) {
	for name, f := range map[string]fault{
		"answered":        {},
		"its answer lost": {err: errBroken, broken: true, applied: true},
		"it failed":       {err: errLocked},
		"it arrives late": {before: 4500 * time.Millisecond, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a, b := w.start("a"), w.start("b")
				atOnce := pgleases.WithHandoffDelay(0)
				la, lb := a.owning("x", 1, atOnce), b.mustJoin("x", 1, pgleases.WithWeight(0), atOnce)
				p, _ := la.Partition(0)
				end, ok := w.db.Guard("x", 0, p.Epoch)
				if !ok {
					t.Fatal("the guard was refused")
				}
				var sent, arrived atomic.Bool
				w.inject(func(client, op string) (fault, bool) {
					switch {
					case op == "fence" && !sent.Swap(true):
						return f, true
					case op == "fence" && f.late && !arrived.Load():
						return fault{err: errLocked}, true
					}
					return fault{}, false
				})
				w.mu.Lock()
				w.after = func(op string) { // by another plan it shall stay at once
					if op == "fence" {
						arrived.Store(true)
						w.db.Edit(func(t *fakestore.Tables, _ int64) {
							row := &t.Partitions["x"][0]
							row.Target = row.Owner
							changed(t, "x")
						})
					}
				}
				w.mu.Unlock()
				testkit.OK(t, errors.Join(lb.SetWeight(context.Background(), 1), la.SetWeight(context.Background(), 0)))
				w.within(5*time.Second, "no further guard passes", func() bool { return !w.passes("x", p) })
				w.staysAway(la, lb)
				end()
				w.within(2*time.Second, "a owns it again", func() bool { return shows(la) == "0" })
			})
		})
	}
}

func TestADeathAfterTheClockStepsBackIsSeenInTime(t *testing.T) {
	for _, step := range []time.Duration{-3 * time.Second, -7 * time.Minute, -time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				_, b, la, _ := w.pair(2)
				time.Sleep(10 * time.Second)
				w.db.Step(step)
				b.kill()
				// The watch begins anew with the next heartbeat, and what b left runs for a TTL from when that
				// is seen.
				took := w.within(2*6*time.Second+4*time.Second, "a owns both", each(2, la))
				t.Logf("after %v", took)
			})
		})
	}
}

// kill ends a process without a message.
func (p *proc) kill() {
	p.w.event("%s: killed", p.name)
	p.set(func(p *proc) { p.killed = true })
	p.end()
	p.w.breakConns(p)
}

func TestUnwatchedClientDoesNotDelayOtherEvictions(t *testing.T) {
	for _, long := range []time.Duration{20 * time.Second, 10 * time.Minute} {
		t.Run(long.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				crashed := w.start("crashed", pgleases.WithTTL(long))
				crashed.mustJoin("x", 9)
				crashed.kill()
				time.Sleep(long - 6*time.Second)
				a := w.start("a", pgleases.WithTTL(time.Second))
				b := w.start("b", pgleases.WithTTL(time.Second))
				c := w.start("c", pgleases.WithTTL(2*time.Second))
				began := time.Now()
				// The first plan is for all of them.
				w.inject(func(_, op string) (fault, bool) { return fault{err: errLocked}, op == "snapshot" })
				la, lb, lc := a.mustJoin("x", 9), b.mustJoin("x", 9), c.mustJoin("x", 9)
				w.inject(nil)
				w.within(5*time.Second, "they own what the crashed one does not", func() bool {
					return seen(la, lb, lc) >= 6
				})
				evictions := func() int {
					before := w.count("evict")
					time.Sleep(3 * time.Second)
					return w.count("evict") - before
				}
				without := evictions()
				time.Sleep(time.Until(began.Add(8 * time.Second))) // it expired; no client has watched for long enough
				if with := evictions(); with > without+6 {
					t.Errorf("%v evictions in 3 s, %v before it expired", with, without)
				}
				for _, victim := range []struct {
					p   *proc
					ttl time.Duration
					own *pgleases.Lease
				}{{b, time.Second, lb}, {c, 2 * time.Second, lc}} {
					victim.p.kill()
					took := w.within(time.Minute, "what it owned is taken over", func() bool {
						taken := true
						w.db.Look(func(t *fakestore.Tables, _ int64) {
							for _, row := range t.Partitions["x"] {
								taken = taken && row.OwnerID != victim.p.id
							}
						})
						return taken
					})
					if most := victim.ttl + 300*time.Millisecond; took > most { // 200 ms, and a round trip on each side
						t.Errorf("with a TTL of %v it took %v, and not up to %v", victim.ttl, took, most)
					}
				}
				// The crashed one is evicted once a has watched for its TTL.
				w.within(time.Until(began.Add(long+300*time.Millisecond)), "a owns all", each(9, la))
			})
		})
	}
}

func TestAClientThatMayNotListenPolls(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.inject(func(_, op string) (fault, bool) { return fault{err: errLocked}, op == "listen" })
		w.start("a").owning("x", 4)
	})
}

func TestAWeightThatAFailoverLostIsSetAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		la, lb := w.handOver(a, b)
		testkit.OK(t, lb.SetWeight(context.Background(), 1))
		w.promote(keepStates, false) // a has weight 1 there
		time.Sleep(20 * time.Second)
		w.within(5*time.Second, "b owns it", func() bool { return len(la.Values()) == 0 && len(lb.Values()) == 1 })
	})
}

// For example because its row is deleted each time.
func TestAClientEvictedAgainAndAgainPauses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		l := w.start("a").mustJoin("x", 4)
		w.blind.Store(true) // the oracle knows no such eviction
		w.inject(func(_, op string) (f fault, is bool) {
			if op == "heartbeat" {
				w.db.Edit(func(t *fakestore.Tables, _ int64) { delete(t.Clients, sessionOf(t, "a")) })
			}
			return f, false
		})
		before := w.count("register")
		time.Sleep(time.Minute)
		if n := w.count("register") - before; n < 30 || n > 240 { // the pause is up to half a heartbeat, of 2 s
			t.Errorf("%d registrations in a minute", n)
		}
		w.inject(nil)
		w.within(10*time.Second, "a owns all", func() bool { return len(l.Values()) == 4 })
	})
}

// accepted reports whether the server's timeline is.
func (w *world) accepted() (accepted bool) {
	run := w.db.Run()
	w.db.Look(func(t *fakestore.Tables, _ int64) { accepted = t.Server.AcceptedTimeline == run.Timeline })
	return accepted
}

func TestAtRestAClientSendsLittleMoreThanItsHeartbeats(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.db.Keep = 0
		var last []*pgleases.Lease
		const clients = 10
		for i := range clients {
			p := w.start(fmt.Sprint("client", i))
			for j := range 10 {
				last = append(last, p.mustJoin(fmt.Sprint("lease", j), 32))
			}
		}
		time.Sleep(time.Minute)
		w.blind.Store(true) // the oracle would take longest
		w.mu.Lock()
		before := maps.Clone(w.calls)
		w.mu.Unlock()
		const length = 5 * time.Minute
		time.Sleep(length)
		w.mu.Lock()
		total, calls := 0, maps.Clone(w.calls)
		w.mu.Unlock()
		for op := range calls {
			calls[op] -= before[op]
			total += calls[op]
		}
		total -= calls["check"] // is an eviction that was due
		if ratio := float64(total) / float64(calls["heartbeat"]); ratio > 1.1 {
			t.Errorf("%.3f statements for each heartbeat: %v", ratio, calls)
		}
		// After each check the earliest that anybody expires is more than half a TTL away.
		if most := int(length / (3 * time.Second)); calls["check"] > most {
			t.Errorf("%d checks in %v, at most %d were expected: one for all clients", calls["check"], length, most)
		}
		if calls["claim"]+calls["snapshot"]+calls["apply"] > 0 {
			t.Errorf("plans at rest: %v", calls)
		}
		perPeriod := float64(total) / (clients * length.Seconds() / 1.9)
		t.Logf("%v: %v; %.3f statements for each period of 1.9 s", length, calls, perPeriod)
		for _, l := range last {
			if len(l.Values()) == 0 {
				t.Errorf("a client owns nothing of %s", l.Name())
			}
		}
	})
}
