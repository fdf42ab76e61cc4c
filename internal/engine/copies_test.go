package engine_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestTwoCopiesOwnForTwoHeartbeatsAtMost(t *testing.T) {
	for name, broken := range map[string]bool{"an answer is lost": true, "nothing is lost": false} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.start("a", pgleases.WithPolling())
				lease := a.owning("x", 4)
				w.nextBeat(10 * time.Second) // copied after one: the next could detect it before both own them
				w.copies = true
				w.blind.Store(true) // they overlap
				var once sync.Once
				w.inject(func(client, op string) (f fault, lost bool) {
					if broken && op == "heartbeat" {
						once.Do(func() { f, lost = fault{err: errBroken, broken: true, applied: true}, true })
					}
					return f, lost
				})
				connect := func(ctx context.Context) (engine.Conn, error) { return w.connect(ctx, "copy") }
				twin := testkit.Must(a.engine().Copy(connect))(t)
				defer func() { _ = twin.Close(context.Background(), false) }()
				copy := testkit.Must(twin.Join(context.Background(), "x", 4, inside(lease).Options))(t)
				copied := func() string {
					if s := copy.Board.Look(); s.Validity.Holds() {
						return ranges.Format(s.Values)
					}
					return ranges.Format(nil)
				}
				w.within(2*time.Second, "both own them", func() bool {
					return shows(lease) == "0-3" && copied() == "0-3"
				})
				both := w.within(4*time.Second, "one owns them", func() bool {
					return shows(lease) == "-" || copied() == "-"
				})
				t.Logf("both owned them for %v", both)
				for range 10_000 {
					if time.Sleep(10 * time.Millisecond); shows(lease) != "-" && copied() != "-" {
						w.failf("later one owns %s, the other %s", shows(lease), copied())
					}
				}
				if n := w.logged("pgleases: a copy of this process goes on"); n != 1 {
					t.Errorf("%d lines of the log tell of it", n)
				}
			})
		})
	}
}

func TestAHeartbeatThatComesLateIsNotTakenForACopys(t *testing.T) {
	for name, test := range map[string]struct {
		late  int32 // which of the next heartbeats comes late; those before get lost
		after func(w *world)
	}{
		"the first":                  {1, func(*world) {}},
		"the second in a row":        {2, func(*world) {}},
		"after a crash":              {1, func(w *world) { w.db.Crash(0) }},
		"after a step back in time":  {1, func(w *world) { w.db.Step(-time.Minute) }},
		"after the server was ended": {1, func(w *world) { w.db.Stop(); w.db.Boot() }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.start("a")
				lease := a.owning("x", 4)
				time.Sleep(10 * time.Second)
				var sent atomic.Int32
				w.inject(func(_, op string) (fault, bool) {
					if op != "heartbeat" {
						return fault{}, false
					}
					n := sent.Add(1)
					if n == test.late {
						return fault{before: 3 * time.Second, late: true}, true
					}
					return fault{err: errBroken, broken: true}, n < test.late
				})
				w.within(5*time.Second, "it is sent", func() bool { return sent.Load() == test.late })
				time.Sleep(time.Second)
				test.after(w)
				time.Sleep(20 * time.Second) // the log fails the test
				if w.logged("heartbeat arrived late") != 1 || shows(lease) != "0-3" {
					w.failf("no heartbeat came late, or it owns %s", shows(lease))
				}
			})
		})
	}
}
