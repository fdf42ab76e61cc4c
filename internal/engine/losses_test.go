package engine_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/wrap"
)

// TestEveryLossIsReportedOnce checks all ways that ownerships can end: the contexts' cause, one log
// line with the partitions and the cause, and one count.
func TestEveryLossIsReportedOnce(t *testing.T) {
	type scene struct {
		w    *world
		a    *proc
		l    *pgleases.Lease
		hold *pgleases.Hold
	}
	lost, handedOver := `WARN pgleases: partitions lost `, `INFO pgleases: partitions handed over `
	ask := func(s scene) { // for all
		s.w.ok(s.l.SetWeight(context.Background(), 0))
	}
	drains := func(s scene) {
		s.w.within(5*time.Second, "it drains", func() bool { return shows(s.l) == "-" })
	}
	isolate := func(s scene) {
		s.a.cutOff(true)
		time.Sleep(7 * time.Second)
		s.a.cutOff(false)
	}
	edit := func(s scene, edit func(row *fakestore.Partition)) {
		s.w.db.Edit(func(t *fakestore.Tables, _ int64) {
			for i := range t.Partitions["x"] {
				edit(&t.Partitions["x"][i])
			}
			changed(t, "x")
		})
		s.w.notify("a")
	}
	remove := func(s scene) {
		s.w.db.Edit(func(t *fakestore.Tables, _ int64) { clear(t.Members) })
	}
	for name, test := range map[string]struct {
		work   bool // there is an open hold
		drain  time.Duration
		lose   func(s scene)
		cause  error
		text   string // of the cause
		line   string
		losses pgleases.Losses
	}{
		"no heartbeat succeeds, idle": {false, 0, isolate,
			pgleases.ErrTrustLost, ": no heartbeat succeeded for 5.7s", lost, pgleases.Losses{TrustLost: 2}},
		"no heartbeat succeeds, in work": {true, 0, isolate,
			pgleases.ErrTrustLost, ": no heartbeat succeeded for 5.7s", lost, pgleases.Losses{TrustLost: 2}},
		"no heartbeat succeeds, while it drains": {true, 0, func(s scene) {
			ask(s)
			drains(s)
			isolate(s)
		}, pgleases.ErrTrustLost, ": no heartbeat succeeded for 5.7s", lost, pgleases.Losses{TrustLost: 2}},
		"no heartbeat succeeds, then evicted": {true, 0, func(s scene) {
			s.a.cutOff(true)
			time.Sleep(7 * time.Second)
			s.w.evict("a")
			s.a.cutOff(false)
		}, pgleases.ErrTrustLost, ": no heartbeat succeeded for 5.7s", lost, pgleases.Losses{TrustLost: 2}},
		"the wall clock passes the deadline": {true, 0, func(s scene) {
			s.a.engine().PassWallLimit()
		}, pgleases.ErrTrustLost, "", lost, pgleases.Losses{TrustLost: 2}},
		"a reader sees the deadline pass before the answer to a heartbeat is taken": {false, 0, func(s scene) {
			s.a.engine().EndAtReader()
		}, pgleases.ErrTrustLost, "", lost, pgleases.Losses{TrustLost: 2}},
		"evicted, as a heartbeat returns": {true, 0, func(s scene) {
			s.w.evict("a")
		}, pgleases.ErrTrustLost, ": the session was evicted", lost, pgleases.Losses{TrustLost: 2}},
		"evicted, as a join returns": {false, 0, func(s scene) {
			s.w.inject(func(_, op string) (fault, bool) { return fault{err: errLocked}, op == "heartbeat" })
			s.w.evict("a")
			s.a.mustJoin("y", 1)
			s.w.inject(nil)
		}, pgleases.ErrTrustLost, ": the session was evicted", lost, pgleases.Losses{TrustLost: 2}},
		"the membership is removed, as a heartbeat returns": {true, 0, remove,
			pgleases.ErrTrustLost, ": the membership was removed", lost, pgleases.Losses{TrustLost: 2}},
		"the membership is removed, while it is left": {true, 0, func(s scene) {
			_ = s.l.Leave(canceled)
			remove(s)
		}, pgleases.ErrClosed, "", lost, pgleases.Losses{Closed: 2}},
		"the server does not confirm it": {true, 0, func(s scene) {
			edit(s, func(row *fakestore.Partition) { row.Owner = 0 })
		}, pgleases.ErrTrustLost, ": the server does not confirm it", lost, pgleases.Losses{TrustLost: 2}},
		"the server has another epoch": {true, 0, func(s scene) {
			edit(s, func(row *fakestore.Partition) { row.Epoch++ })
		}, pgleases.ErrTrustLost, ": the server does not confirm it", lost, pgleases.Losses{TrustLost: 2}},
		"a failover, idle": {false, 0, func(s scene) {
			s.w.promote(0, false)
		}, pgleases.ErrTrustLost, ": a failover ended the epoch", lost, pgleases.Losses{TrustLost: 2}},
		"a failover, in work": {true, 0, func(s scene) {
			s.w.promote(0, true)
		}, pgleases.ErrTrustLost, ": a failover ended the epoch", lost, pgleases.Losses{TrustLost: 2}},
		"handed over": {false, 0, ask, pgleases.ErrHandoff, "", handedOver, pgleases.Losses{Handoff: 2}},
		"handed over after work": {true, 0, func(s scene) {
			ask(s)
			time.Sleep(5 * time.Second)
			s.hold.Release()
		}, pgleases.ErrHandoff, "", handedOver, pgleases.Losses{Handoff: 2}},
		"handed over, and the answer is lost": {false, 0, func(s scene) {
			s.w.failing(s.a, "release", 1, fault{err: errBroken, applied: true, broken: true})
			ask(s)
		}, pgleases.ErrHandoff, "", handedOver, pgleases.Losses{Handoff: 2}},
		"handed over, and it comes back": {true, 0, func(s scene) {
			edit(s, func(row *fakestore.Partition) { row.Target = 1 })
			drains(s)
			s.w.db.Edit(func(t *fakestore.Tables, _ int64) {
				for i := range t.Partitions["x"] {
					t.Partitions["x"][i].Target = sessionOf(t, "a")
				}
			})
			s.hold.Release()
		}, pgleases.ErrHandoff, "", handedOver, pgleases.Losses{Handoff: 2}},
		"drain timeout": {true, 3 * time.Second, ask,
			pgleases.ErrDrainTimeout, "", lost, pgleases.Losses{DrainTimeout: 2}},
		"left": {false, 0, func(s scene) {
			_ = s.l.Leave(context.Background())
		}, pgleases.ErrClosed, "", handedOver, pgleases.Losses{Closed: 2}},
		"left, and the answer is lost": {false, 0, func(s scene) {
			s.w.failing(s.a, "release", 1, fault{err: errBroken, applied: true, broken: true})
			_ = s.l.Leave(context.Background())
		}, pgleases.ErrClosed, "", lost, pgleases.Losses{Closed: 2}},
		"closed": {false, 0, func(s scene) {
			_ = s.a.c.Close(context.Background())
		}, pgleases.ErrClosed, "", handedOver, pgleases.Losses{Closed: 2}},
		"closed without waiting for work": {true, 0, func(s scene) {
			_ = s.a.c.Close(canceled)
		}, pgleases.ErrClosed, "", lost, pgleases.Losses{Closed: 2}},
		"closed without a database": {false, 0, func(s scene) {
			s.a.cutOff(true)
			_ = s.a.c.Close(canceled)
		}, pgleases.ErrClosed, "", lost, pgleases.Losses{Closed: 2}},
		"superseded": {false, 0, func(s scene) {
			s.w.start("a")
		}, pgleases.ErrSuperseded, "", handedOver, pgleases.Losses{Closed: 2}},
		"superseded in work, and closed": {true, 0, func(s scene) {
			s.w.start("a")
			drains(s)
			_ = s.a.c.Close(canceled)
		}, pgleases.ErrSuperseded, "", lost, pgleases.Losses{Closed: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.blind.Store(true) // rows are changed by hand
				a := w.start("a")
				l := a.owning("x", 2, pgleases.WithDrainTimeout(test.drain))
				var hold *pgleases.Hold
				if test.work {
					hold = l.Hold(context.Background())
				}
				first, _ := l.Partition(0)
				second, _ := l.Partition(1)
				waiting := first.Context() // the second's is not requested yet
				test.lose(scene{w, a, l, hold})
				w.within(20*time.Second, "it ends", func() bool { return waiting.Err() != nil })
				ends := []context.Context{waiting, second.Context()}
				if test.work && test.line == lost {
					ends = append(ends, hold.Context())
				}
				told := test.cause.Error() + test.text
				for i, ctx := range ends {
					cause := context.Cause(ctx)
					if !errors.Is(cause, test.cause) || !strings.HasPrefix(cause.Error(), told) {
						t.Errorf("context %d ended with %v, not %s", i, cause, told)
					}
				}
				time.Sleep(10 * time.Second)
				if test.work {
					hold.Release() // what is given back now was lost before
				}
				time.Sleep(20 * time.Second)
				if got := a.c.Stats().Losses; got != test.losses {
					t.Errorf("the losses are %+v, not %+v", got, test.losses)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				named := make(map[string]int) // partitions, or both in one line
				fields := "lease=x partitions="
				if test.line == handedOver && test.cause != pgleases.ErrHandoff { // one line at the end of the lease
					fields = "lease=x count=2 partitions="
				}
				for _, event := range w.events {
					_, line, is := strings.Cut(event, a.name+": ")
					if !is || !strings.HasPrefix(line, lost) && !strings.HasPrefix(line, handedOver) {
						continue
					}
					partitions, cause, _ := strings.Cut(strings.TrimPrefix(line, test.line+fields), " cause=")
					named[partitions]++
					says := strings.HasPrefix(cause, wrap.Text(test.cause)+test.text)
					isSilent := test.cause == pgleases.ErrHandoff && cause == ""
					repeats := cause == wrap.Text(pgleases.ErrHandoff) // what the message says
					if !says && !isSilent || repeats {
						t.Errorf("it is logged as %q", line)
					}
				}
				inOneLine, inTwo := map[string]int{"[0-1]": 1}, map[string]int{"[0]": 1, "[1]": 1}
				if !maps.Equal(named, inOneLine) && !maps.Equal(named, inTwo) {
					t.Errorf("the log names %v, not each partition once, by %q", named, test.line)
				}
			})
		})
	}
}

// --- work that outlives its ownership

// stuck makes a callback of Run that ignores its contexts outlive its ownership, which ends by
// lose. The partition comes back.
func (w *world) stuck(lose func(a *proc, l *pgleases.Lease), opts ...pgleases.LeaseOption) (
	a *proc, l *pgleases.Lease, before pgleases.Partition, calls *atomic.Int32, finish chan struct{},
) {
	a = w.start("a", pgleases.WithPolling())
	l = a.mustJoin("x", 1, opts...)
	calls, finish = new(atomic.Int32), make(chan struct{})
	go func() {
		_ = l.Run(context.Background(), func(context.Context, pgleases.Partition) error {
			calls.Add(1)
			w.wait(finish)
			return errors.New("late")
		})
	}()
	w.within(5*time.Second, "the callback is called", func() bool { return calls.Load() == 1 })
	before, _ = l.Partition(0)
	lose(a, l)
	w.within(10*time.Second, "a owns it again", func() bool {
		now, owns := l.Partition(0)
		return owns && now.Epoch > before.Epoch
	})
	return a, l, before, calls, finish
}

const (
	goesOn      = "work goes on after its partition was lost"
	failedAfter = "WARN pgleases: callback failed after its partition was lost lease=x partitions="
)

func TestCallbackThatOutlivesItsOwnershipIsReported(t *testing.T) {
	for name, test := range map[string]struct {
		drain time.Duration
		lose  func(w *world) func(a *proc, l *pgleases.Lease)
		cause error
	}{
		"evicted": {0, func(w *world) func(*proc, *pgleases.Lease) {
			return func(*proc, *pgleases.Lease) { w.evict("a") }
		}, pgleases.ErrTrustLost},
		"drain timeout": {time.Second, func(w *world) func(*proc, *pgleases.Lease) {
			return func(_ *proc, l *pgleases.Lease) {
				_ = l.SetWeight(context.Background(), 0)
				w.within(10*time.Second, "it is released", w.recorded("a", 0))
				_ = l.SetWeight(context.Background(), 1)
			}
		}, pgleases.ErrDrainTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				began := time.Now()
				a, l, before, calls, finish := w.stuck(test.lose(w), pgleases.WithDrainTimeout(test.drain))
				if cause := context.Cause(before.Context()); !errors.Is(cause, test.cause) {
					t.Errorf("the ownership ended with %v", cause)
				}
				const line = goesOn + " lease=x partitions=[0] for="
				// Since it was to end.
				for _, after := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute} {
					w.within(5*time.Minute, "it is logged", func() bool { return w.logged(line) == 1 })
					if took := time.Since(began); took < after || took > after+10*time.Second {
						t.Errorf("it is logged after %v, not %v", took, after)
					}
					if s := a.c.Stats(); s.Draining != 1 || s.Owned != 1 || s.DrainingSince.IsZero() {
						t.Errorf("the stats are %+v", s)
					}
				}
				if calls.Load() != 1 {
					t.Error("it is called while the call before has not returned")
				}
				finish <- struct{}{}
				w.within(time.Second, "it is called under the new epoch", func() bool { return calls.Load() == 2 })
				w.within(time.Second, "the stats show the return", func() bool { return a.c.Stats().Draining == 0 })
				time.Sleep(time.Hour)
				if of := w.linesWith("INFO pgleases: work on lost partitions ended lease=x for="); len(of) != 1 {
					t.Errorf("its end is logged as %q", of)
				}
				if n := len(w.linesWith(goesOn)); n > 0 {
					t.Errorf("it is logged %d times after the call has returned", n)
				}
				if n := w.logged(failedAfter + "[0] count=1 error=late cause=" + wrap.Text(test.cause)); n != 1 {
					t.Errorf("its error is logged %d times", n)
				}
				close(finish)
				w.within(time.Second, "it still owns", func() bool { return shows(l) == "0" })
			})
		})
	}
}

func TestWorkThatOutlivesOwnershipDelaysNoOwner(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, l, before, calls, finish := w.stuck(func(*proc, *pgleases.Lease) { w.evict("a") })
		b := w.start("b", pgleases.WithPolling())
		lb := b.mustJoin("x", 1)
		w.ok(l.SetWeight(context.Background(), 0))
		w.within(10*time.Second, "b owns it", func() bool { return shows(lb) == "0" && shows(l) == "-" })
		now, _ := lb.Partition(0)
		if w.passes("x", before) {
			t.Error("the work that goes on passes its guard")
		}
		if now.Epoch <= before.Epoch || before.Context().Err() == nil || calls.Load() != 1 {
			t.Errorf("epoch %d after %d, %d calls, context %v",
				now.Epoch, before.Epoch, calls.Load(), before.Context().Err())
		}
		w.within(time.Minute, "a logs its work anyway", func() bool { return w.logged(goesOn) == 1 })
		began := time.Now()
		err := a.c.Close(context.Background())
		if err == nil || !strings.Contains(err.Error(), `partitions 0 of lease "x" still in work`) {
			t.Errorf("Close says %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("Close waits %v for work that keeps nothing", took)
		}
		close(finish)
	})
}

func TestLongWorkIsLoggedInOneLineForEachLease(t *testing.T) {
	const waits = "handoff waits for work"
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		lx, ly := a.mustJoin("x", 300), a.mustJoin("y", 2)
		w.within(5*time.Second, "it owns all", func() bool { return shows(lx) == "0-299" && shows(ly) == "0-1" })
		defer lx.Hold(context.Background()).Release()
		w.start("b").mustJoin("x", 300)
		w.within(5*time.Second, "it is asked for the share of one", func() bool { return len(shown(lx)) == 150 })
		began := time.Now()
		w.start("c").mustJoin("x", 300)
		w.within(5*time.Second, "it is asked for that of the other too", func() bool { return len(shown(lx)) == 100 })
		if took := time.Since(began); took < 200*time.Millisecond || took > 900*time.Millisecond {
			w.failf("that was %v later, not a moment", took)
		}
		var draining []int
		for number := range 300 {
			if !lx.Owns(number) {
				draining = append(draining, number)
			}
		}
		line := waits + " lease=x partitions=" + ranges.Logged(draining) + " for="
		for _, after := range []time.Duration{30 * time.Second, 25 * time.Second} { // after 30 s, and after 60
			took := w.within(time.Minute, "it is logged", func() bool { return w.logged(line) == 1 })
			time.Sleep(5 * time.Second)
			if n := w.logged(waits); took < after-time.Second || took > after+time.Second || n != 0 {
				w.failf("it is logged after %v, not %v, and in %d more lines", took, after, n)
			}
		}
	})
}
