package pgleases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
)

// idleEngine returns an engine without a goroutine and without a database, trusted for an hour, that owns n partitions of a lease.
func idleEngine(n int, log slog.Handler) (*engine, *membership) {
	o := options{clientID: "a", ttl: time.Hour, heartbeat: time.Minute}
	e := newEngine(&Client{options: o, log: slog.New(log), wake: make(chan struct{}, 1)}, nil, nil)
	e.session.settled = true
	e.trust(time.Now())
	m := e.newMembership("orders", n, leaseOptions{})
	m.joined = true
	gained := make([]*tenure, n)
	for i := range gained {
		gained[i] = e.own(m, i, 1)
	}
	e.publish(m)
	return e, m
}

// BenchmarkLossOfTrust measures how long after a loss of trust the last context has ended for somebody who waits for them all: those
// of the holds, each of all partitions, alone, and those of all ownerships too.
func BenchmarkLossOfTrust(b *testing.B) {
	for _, size := range []struct{ partitions, holds int }{{128, 1}, {8192, 1}, {8192, 100}, {65536, 1}, {65536, 100}} {
		for _, all := range []bool{false, true} {
			b.Run(fmt.Sprintf("partitions=%d/holds=%d/all=%v", size.partitions, size.holds, all), func(b *testing.B) {
				var last time.Duration
				for b.Loop() {
					b.StopTimer()
					e, m := idleEngine(size.partitions, slog.DiscardHandler)
					var ends []context.Context
					for range size.holds {
						ends = append(ends, m.lease.Hold(context.Background()).Context())
					}
					if all {
						for _, p := range shown(m.lease) {
							ends = append(ends, p.Context())
						}
					}
					ended := make(chan time.Time)
					go func() {
						for _, ctx := range ends {
							<-ctx.Done()
						}
						ended <- time.Now()
					}()
					b.StartTimer()
					began := time.Now()
					e.loseTrust(began, ErrTrustLost)
					last += (<-ended).Sub(began)
				}
				b.ReportMetric(float64(last.Microseconds())/1e3/float64(b.N), "ms-to-the-last")
			})
		}
	}
}

// TestEveryLossIsToldOnce goes through all ways in which ownerships end: the contexts' cause, one line of the log with the partitions and
// the cause, once counted.
func TestEveryLossIsToldOnce(t *testing.T) {
	lost, handedOver := `WARN pgleases: partitions lost `, `INFO pgleases: partitions handed over `
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	ask := func(w *world, l *Lease) { // for all
		if err := l.SetWeight(context.Background(), 0); err != nil {
			w.failf("%v", err)
		}
	}
	meant := func(w *world, to int64) { // by a plan
		w.db.Edit(func(t *fakestore.Tables, _ int64) {
			for i := range t.Partitions["x"] {
				t.Partitions["x"][i].Target = to
			}
			changed(t, "x")
		})
		w.notify("a")
	}
	remove := func(w *world) {
		w.db.Edit(func(t *fakestore.Tables, _ int64) { clear(t.Members) })
	}
	cut := func(p *proc, is bool) {
		p.set(func(p *proc) { p.cut = is })
		p.w.breakConns(p)
	}
	for name, test := range map[string]struct {
		work   bool // there is an open hold
		drain  time.Duration
		lose   func(w *world, a *proc, l *Lease, hold *Hold)
		cause  error
		text   string // of the cause
		line   string
		losses Losses
	}{
		"no heartbeat succeeds, idle": {false, 0, func(w *world, a *proc, _ *Lease, _ *Hold) {
			cut(a, true)
			time.Sleep(7 * time.Second)
			cut(a, false)
		}, ErrTrustLost, "", lost, Losses{TrustLost: 2}},
		"no heartbeat succeeds, in work": {true, 0, func(w *world, a *proc, _ *Lease, _ *Hold) {
			cut(a, true)
			time.Sleep(7 * time.Second)
			cut(a, false)
		}, ErrTrustLost, "", lost, Losses{TrustLost: 2}},
		"no heartbeat succeeds, while it drains": {true, 0, func(w *world, a *proc, l *Lease, _ *Hold) {
			ask(w, l)
			w.within(5*time.Second, "it drains", func() bool { return shows(l) == "-" })
			cut(a, true)
			time.Sleep(7 * time.Second)
			cut(a, false)
		}, ErrTrustLost, "", lost, Losses{TrustLost: 2}},
		"no heartbeat succeeds, then evicted": {true, 0, func(w *world, a *proc, _ *Lease, _ *Hold) {
			cut(a, true)
			time.Sleep(7 * time.Second)
			w.evict("a")
			cut(a, false)
		}, ErrTrustLost, "", lost, Losses{TrustLost: 2}},
		"the wall clock passes the deadline": {true, 0, func(w *world, a *proc, _ *Lease, _ *Hold) {
			_ = a.c.request(context.Background(), nil, func(e *engine) { e.session.wallLimit = time.Now() })
		}, ErrTrustLost, "", lost, Losses{TrustLost: 2}},
		"a reader sees the deadline pass before the answer to a heartbeat is taken": {false, 0, func(w *world, a *proc, _ *Lease, _ *Hold) {
			_ = a.c.request(context.Background(), nil, func(e *engine) {
				e.session.term.deadline.Store(0)
				e.trust(time.Now())
			})
		}, ErrTrustLost, "", lost, Losses{TrustLost: 2}},
		"evicted, as a heartbeat tells": {true, 0, func(w *world, _ *proc, _ *Lease, _ *Hold) {
			w.evict("a")
		}, ErrTrustLost, ": the session was evicted", lost, Losses{TrustLost: 2}},
		"evicted, as a join tells": {false, 0, func(w *world, a *proc, _ *Lease, _ *Hold) {
			w.inject(func(_, op string) (fault, bool) { return fault{err: errLocked}, op == "heartbeat" })
			w.evict("a")
			a.mustJoin("y", 1)
			w.inject(nil)
		}, ErrTrustLost, ": the session was evicted", lost, Losses{TrustLost: 2}},
		"the membership is removed, as a heartbeat tells": {true, 0, func(w *world, _ *proc, _ *Lease, _ *Hold) {
			remove(w)
		}, ErrTrustLost, ": the membership was removed", lost, Losses{TrustLost: 2}},
		"the membership is removed, as SetWeight tells": {false, 0, func(w *world, _ *proc, l *Lease, _ *Hold) {
			w.inject(func(_, op string) (fault, bool) { return fault{err: errLocked}, op == "heartbeat" })
			remove(w)
			_ = l.SetWeight(context.Background(), 2)
			w.inject(nil)
		}, ErrTrustLost, ": the membership was removed", lost, Losses{TrustLost: 2}},
		"the membership is removed, while it is left": {true, 0, func(w *world, _ *proc, l *Lease, _ *Hold) {
			_ = l.Leave(ended)
			remove(w)
		}, ErrClosed, "", lost, Losses{Closed: 2}},
		"handed over": {false, 0, func(w *world, _ *proc, l *Lease, _ *Hold) {
			ask(w, l)
		}, ErrHandover, "", handedOver, Losses{Handover: 2}},
		"handed over after work": {true, 0, func(w *world, _ *proc, l *Lease, hold *Hold) {
			ask(w, l)
			time.Sleep(5 * time.Second)
			hold.Release()
		}, ErrHandover, "", handedOver, Losses{Handover: 2}},
		"handed over, and the answer is lost": {false, 0, func(w *world, a *proc, l *Lease, _ *Hold) {
			w.failing(a, "release", 1, fault{err: errBroken, applied: true, broken: true})
			ask(w, l)
		}, ErrHandover, "", handedOver, Losses{Handover: 2}},
		"handed over, and it comes back": {true, 0, func(w *world, _ *proc, l *Lease, hold *Hold) {
			meant(w, 1)
			w.within(5*time.Second, "it drains", func() bool { return shows(l) == "-" })
			w.db.Edit(func(t *fakestore.Tables, _ int64) {
				for i := range t.Partitions["x"] {
					t.Partitions["x"][i].Target = sessionOf(t, "a")
				}
			})
			hold.Release()
		}, ErrHandover, "", handedOver, Losses{Handover: 2}},
		"drain timeout": {true, 3 * time.Second, func(w *world, _ *proc, l *Lease, _ *Hold) {
			ask(w, l)
		}, ErrDrainTimeout, "", lost, Losses{DrainTimeout: 2}},
		"left": {false, 0, func(_ *world, _ *proc, l *Lease, _ *Hold) {
			_ = l.Leave(context.Background())
		}, ErrClosed, "", handedOver, Losses{Closed: 2}},
		"left, and the answer is lost": {false, 0, func(w *world, a *proc, l *Lease, _ *Hold) {
			w.failing(a, "release", 1, fault{err: errBroken, applied: true, broken: true})
			_ = l.Leave(context.Background())
		}, ErrClosed, "", lost, Losses{Closed: 2}},
		"closed": {false, 0, func(_ *world, a *proc, _ *Lease, _ *Hold) {
			_ = a.c.Close(context.Background())
		}, ErrClosed, "", handedOver, Losses{Closed: 2}},
		"closed without waiting for work": {true, 0, func(_ *world, a *proc, _ *Lease, _ *Hold) {
			_ = a.c.Close(ended)
		}, ErrClosed, "", lost, Losses{Closed: 2}},
		"closed without a database": {false, 0, func(_ *world, a *proc, _ *Lease, _ *Hold) {
			cut(a, true)
			_ = a.c.Close(ended)
		}, ErrClosed, "", lost, Losses{Closed: 2}},
		"superseded": {false, 0, func(w *world, _ *proc, _ *Lease, _ *Hold) {
			w.start("a")
		}, ErrSuperseded, "", handedOver, Losses{Closed: 2}},
		"superseded in work, and closed": {true, 0, func(w *world, a *proc, l *Lease, _ *Hold) {
			w.start("a")
			w.within(5*time.Second, "it is told", func() bool { return shows(l) == "-" })
			_ = a.c.Close(ended)
		}, ErrSuperseded, "", lost, Losses{Closed: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.blind = true // rows are changed by hand
				a := w.start("a")
				l := a.mustJoin("x", 2, WithDrainTimeout(test.drain))
				w.within(5*time.Second, "it owns all", func() bool { return shows(l) == "0-1" })
				var hold *Hold
				if test.work {
					hold = l.Hold(context.Background())
				}
				first, _ := l.Partition(0)
				second, _ := l.Partition(1)
				waiting := first.Context() // nobody has asked for the second's yet
				test.lose(w, a, l, hold)
				w.within(20*time.Second, "it ends", func() bool { return waiting.Err() != nil })
				ends := []context.Context{waiting, second.Context()}
				if test.work && test.line == lost {
					ends = append(ends, hold.Context())
				}
				told := test.cause.Error() + test.text
				for i, ctx := range ends {
					if cause := context.Cause(ctx); !errors.Is(cause, test.cause) || !strings.HasPrefix(cause.Error(), told) {
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
				for _, event := range w.events {
					_, line, is := strings.Cut(event, a.name+": ")
					if !is || !strings.HasPrefix(line, lost) && !strings.HasPrefix(line, handedOver) {
						continue
					}
					partitions, cause, _ := strings.Cut(strings.TrimPrefix(line, test.line+"lease=x partitions="), " cause=")
					if named[partitions]++; !strings.HasPrefix(cause, told) {
						t.Errorf("it is told by %q", line)
					}
				}
				if !maps.Equal(named, map[string]int{"0-1": 1}) && !maps.Equal(named, map[string]int{"0": 1, "1": 1}) {
					t.Errorf("the log names %v, not each partition once, by %q", named, test.line)
				}
			})
		})
	}
}
