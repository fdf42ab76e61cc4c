package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
)

// A pulse records when successful heartbeats were sent.
type pulse struct {
	mu   sync.Mutex // guards the rest
	sent time.Time
	stop bool // heartbeats get no answer any more
}

// feel makes heartbeats take so long there and back, and notes when they were sent.
func (w *world) feel(there, back time.Duration) *pulse {
	p := &pulse{}
	w.inject(func(_, op string) (fault, bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.stop {
			return fault{before: 24 * time.Hour}, true
		}
		if op == "heartbeat" {
			p.sent = time.Now()
		}
		return fault{before: there, after: back}, op == "heartbeat"
	})
	return p
}

func TestTrustEndsAMarginBeforeTheTTL(t *testing.T) {
	for _, delay := range []struct{ there, back time.Duration }{
		{0, 0}, {time.Millisecond, time.Millisecond}, {1500 * time.Millisecond, 0}, {0, 1700 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.start("a", pgleases.WithPolling())
				l := a.owning("x", 1)
				pulse := w.feel(delay.there, delay.back)
				time.Sleep(20 * time.Second)
				beats := w.count("heartbeat")
				w.within(3*time.Second, "a heartbeat", func() bool { return w.count("heartbeat") > beats })
				time.Sleep(delay.back + time.Millisecond)
				pulse.mu.Lock()
				pulse.stop = true
				deadline := pulse.sent.Add(5700 * time.Millisecond)
				pulse.mu.Unlock()
				if got := l.TrustDeadline(); !got.Equal(deadline) {
					t.Errorf("trust deadline is %v, not %v", got, deadline)
				}
				o, owned := l.Partition(0)
				changed := l.Changed()
				hold := l.Hold(context.Background())
				time.Sleep(time.Until(deadline) - time.Nanosecond)
				if len(l.Values()) != 1 || !l.Owns(0) || !owned || o.Context().Err() != nil {
					t.Errorf("not owned just before the deadline: %v", l.Values())
				}
				time.Sleep(time.Nanosecond)
				if len(l.Values()) != 0 || l.Owns(0) {
					t.Errorf("owned at the deadline")
				}
				if _, owned := l.Partition(0); owned || len(l.Hold(context.Background()).Values()) != 0 {
					t.Errorf("owned at the deadline")
				}
				synctest.Wait()
				select {
				case <-changed:
				default:
					t.Errorf("Changed's channel was not closed")
				}
				for _, ctx := range []context.Context{o.Context(), hold.Context()} {
					if err := context.Cause(ctx); !errors.Is(err, pgleases.ErrTrustLost) {
						t.Errorf("the context's cause is %v", err)
					}
				}
				hold.Release()
			})
		})
	}
}

func TestAnswerAfterTheDeadlineStartsNewValidity(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", polling(6*time.Second, 3*time.Second)...)
		l := a.owning("x", 1)
		time.Sleep(10 * time.Second)
		old := inside(l).Board.Look()
		o, _ := l.Partition(0)
		w.inject(func(_, op string) (fault, bool) {
			return fault{after: 2950 * time.Millisecond}, op == "heartbeat"
		})
		// Sent up to 3 s after the last one, answered 2.95 s later: sometimes too late.
		w.within(time.Hour, "a heartbeat was late", func() bool { return !old.Validity.Holds() })
		w.inject(nil)
		w.within(10*time.Second, "a owns it again", func() bool { return shows(l) == "0" })
		if old.Validity.Holds() {
			t.Errorf("a reader with the old snapshot believes it again")
		}
		again, _ := l.Partition(0)
		if o.Context().Err() == nil || again.Epoch <= o.Epoch {
			t.Errorf("after the break the epoch is %d, before it was %d; the context says %v",
				again.Epoch, o.Epoch, o.Context().Err())
		}
	})
}

func TestPromotionTrustWaitsForDrainsToBeConfirmed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 1)
		time.Sleep(10 * time.Second)
		o, _ := l.Partition(0)
		hold := l.Hold(context.Background()) // work that goes on
		defer hold.Release()
		b := w.start("b")
		b.mustJoin("x", 1)
		w.db.Edit(func(t *fakestore.Tables, _ int64) {
			t.Partitions["x"][0].Target = sessionOf(t, "b")
			changed(t, "x")
		})
		w.within(5*time.Second, "it drains", func() bool { return shows(l) == "-" })
		w.inject(func(client, op string) (fault, bool) {
			return fault{err: errLocked}, op == "read" && client == a.name
		})
		w.promote(0, true)
		time.Sleep(8 * time.Second)
		if o.Context().Err() == nil && hold.Context().Err() == nil {
			t.Error("its work goes on, though this server has not confirmed it for longer than the TTL")
		}
	})
}

func TestAStatementThatHangsCostsNoTrust(t *testing.T) {
	for _, heartbeat := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
		for _, survives := range []bool{true, false} {
			t.Run(fmt.Sprintf("heartbeat %v, the connection survives %v", heartbeat, survives), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					a := w.start("a", pgleases.WithTTL(6*time.Second), pgleases.WithHeartbeat(heartbeat))
					l := a.owning("x", 1)
					o, _ := l.Partition(0)
					for range 100 {
						var once sync.Once
						w.inject(func(_, op string) (f fault, hangs bool) {
							if op == "read" {
								once.Do(func() { f, hangs = fault{before: 24 * time.Hour, survives: survives}, true })
							}
							return f, hangs
						})
						time.Sleep(10*time.Second + w.span(0, heartbeat))
						w.notify("a")
					}
					w.ok(context.Cause(o.Context()))
				})
			})
		}
	}
}

// A join that creates many partitions has no more time than any other statement.
func TestJoinThatHangsCostsNoTrust(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 1)
		o, _ := l.Partition(0)
		w.inject(func(_, op string) (fault, bool) { return fault{before: 24 * time.Hour}, op == "join" })
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if _, err := a.c.Lease(ctx, "large", engine.MaxPartitions); !errors.Is(err, context.DeadlineExceeded) {
			w.failf("Lease: %v", err)
		}
		w.ok(context.Cause(o.Context()))
		w.inject(nil)
	})
}
