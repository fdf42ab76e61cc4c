package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestLeaseIsLeftOnceMembershipIsGone(t *testing.T) {
	ends := map[string]func(context.Context, *proc, *pgleases.Lease) error{
		"Leave": func(ctx context.Context, _ *proc, l *pgleases.Lease) error { return l.Leave(ctx) },
		"Close": func(ctx context.Context, p *proc, _ *pgleases.Lease) error { return p.c.Close(ctx) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				p, l := w.alone()
				w.evict("a")
				w.blind.Store(true) // it shows what was taken from it by hand
				before := w.count("release")
				began := time.Now()
				w.ok(end(patiently(w.t), p, l))
				if took, releases := time.Since(began), w.count("release")-before; took > soon || releases > 2 {
					t.Errorf("it took %v and %d releases", took, releases)
				}
			})
		})
	}
}

// Other clients give it to its next owner when the transaction has ended. Without other clients,
// the next one that joins does.
func TestCloseIgnoresGuardedTransactionOfAnother(t *testing.T) {
	for name, others := range map[string]bool{"with other clients": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a, b, _, lb := w.pair(2)
				defer w.guard(shown(lb)[0])()
				b.kill()
				if others {
					w.start("c").mustJoin("x", 2)
				}
				time.Sleep(20 * time.Second)
				began := time.Now()
				w.ok(a.c.Close(patiently(w.t)))
				if took := time.Since(began); took > engine.CloseGrace+soon {
					t.Errorf("Close took %v", took)
				}
			})
		})
	}
}

// The trust ends meanwhile, and statements are given up, with their connections.
func TestCloseWaitsForServerThatAnswersLate(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start("a")
		p.owning("x", 2)
		began := time.Now()
		w.inject(func(client, op string) (fault, bool) {
			delayed := client == p.name && op != "connect" && time.Since(began) < 8*time.Second
			return fault{before: 4 * time.Second}, delayed
		})
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		testkit.OK(t, p.c.Close(ctx))
		w.db.Look(func(tables *fakestore.Tables, _ int64) {
			if len(tables.Clients) > 0 {
				t.Errorf("%d sessions remain", len(tables.Clients))
			}
		})
	})
}

// It accepts connections, and answers no statement, or a tracer of statements does not return.
func TestCloseWithoutDeadlineEndsWithTrust(t *testing.T) {
	for name, hang := range map[string]fault{"server": {before: time.Hour}, "tracer": {deaf: time.Minute}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				p := w.start("a")
				p.owning("x", 2)
				w.inject(func(client, op string) (fault, bool) { return hang, client == p.name && op != "connect" })
				began := time.Now()
				if err := p.c.Close(context.Background()); err == nil {
					t.Error("Close returned no error about what it left behind")
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("Close took %v, with a TTL of 6s", took)
				}
				time.Sleep(time.Minute) // until the tracer has returned
			})
		})
	}
}

// It is logged after 1 s, after 2 s and so on, until nothing is left to wait for.
func TestSlowCloseLogsWhatItWaitsFor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start("a")
		h := p.owning("x", 2).Hold(context.Background())
		closed := make(chan error, 1)
		go func() { closed <- p.c.Close(context.Background()) }()
		const line = "end of the client takes long"
		time.Sleep(time.Second - time.Millisecond)
		if n := w.logged(line); n != 0 {
			t.Errorf("%d lines within the first second", n)
		}
		time.Sleep(2 * time.Second)
		w.mu.Lock()
		busy := slices.DeleteFunc(slices.Clone(w.events), func(l string) bool { return !strings.Contains(l, line) })
		w.mu.Unlock()
		if len(busy) != 2 || !strings.Contains(busy[1], "work on partitions 0-1 of lease") {
			t.Errorf("lines of 3 s: %q", busy)
		}
		h.Release()
		testkit.OK(t, <-closed)
		w.logged(line)
		time.Sleep(time.Minute)
		if n := w.logged(line); n != 0 {
			t.Errorf("%d lines after the end", n)
		}
	})
}

// With fast failover the trust ends with the connection, and another connection follows at once.
func TestCloseOutlivesALostConnection(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start("a", pgleases.WithFastFailover())
		h := p.owning("x", 2).Hold(context.Background())
		closed := make(chan error, 1)
		go func() { closed <- p.c.Close(context.Background()) }()
		time.Sleep(time.Second)
		w.breakConns(p)
		<-h.Context().Done()
		h.Release()
		testkit.OK(t, <-closed)
		w.db.Look(func(tables *fakestore.Tables, _ int64) {
			if len(tables.Clients) > 0 {
				t.Errorf("%d sessions remain", len(tables.Clients))
			}
		})
	})
}

func TestCallsForRecreatedLeaseReturnItsNewNumber(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 3)
		time.Sleep(time.Second) // it listens, and reads no more: a heartbeat notifies it
		w.blind.Store(true)     // it shows what was taken from it by hand
		w.evict("a")
		testkit.OK(t, w.db.Drop("x", 0))
		w.remake("x", 5)
		w.within(3*time.Second, "it is lost", func() bool { return len(shown(l)) == 0 })
		if _, err := a.c.Lease(patiently(w.t), "x", 3); !errors.Is(err, pgleases.ErrPartitionCount) {
			t.Errorf("Lease: %v", err)
		}
		if err := l.SetWeight(patiently(w.t), 2); !errors.Is(err, pgleases.ErrPartitionCount) {
			t.Errorf("SetWeight: %v", err)
		}
		if l.Err() != nil {
			t.Errorf("the lease has ended: %v", l.Err())
		}
		w.ok(l.Leave(patiently(w.t)))
		a.owning("x", 5)
	})
}

// reported returns what the only session in the database tells operators.
func (w *world) reported() (told string) {
	w.db.Look(func(t *fakestore.Tables, _ int64) {
		for _, c := range t.Clients {
			told += c.Report
		}
	})
	return told
}

// The line of a lease that cannot be joined again has an end.
func TestRejoinThatWasRefusedLogsItsEnd(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 3)
		w.blind.Store(true) // it shows what was taken from it by hand
		w.evict("a")
		testkit.OK(t, w.db.Drop("x", 0))
		w.remake("x", 5)
		time.Sleep(10 * time.Minute)
		testkit.OK(t, w.db.Drop("x", 0))
		w.remake("x", 3)
		w.within(time.Minute, "it owns the lease again", func() bool { return len(shown(l)) == 3 })
		time.Sleep(time.Second) // of simulated time: the log has its own goroutine
		const line = "INFO pgleases: lease joined again lease=x after="
		if n := w.logged(line+"9m5") + w.logged(line+"10m0"); n != 1 { // up to two heartbeats more or less than 10 min
			t.Errorf("the end is logged %d times", n)
		}
	})
}

// The client works on nothing of the lease, and nothing ends. So somebody has to be told, again and
// again.
func TestRejoinWithAnotherNumberIsLoudEachMinute(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 3)
		time.Sleep(time.Second)
		w.blind.Store(true) // it shows what was taken from it by hand
		w.evict("a")
		testkit.OK(t, w.db.Drop("x", 0))
		w.remake("x", 5)
		w.within(3*time.Second, "it is lost", func() bool { return len(shown(l)) == 0 })
		const line = "lease cannot be joined again"
		time.Sleep(10 * time.Minute)
		lines := w.linesWith(line)
		if n := len(lines); n < 9 || n > 11 {
			t.Fatalf("%d lines in ten minutes", n)
		}
		for _, part := range []string{"ERROR", "lease=x", "it has 5, not 3", "start every process with"} {
			if !strings.Contains(lines[0], part) {
				t.Errorf("without %q: %s", part, lines[0])
			}
		}
		if told, n := w.reported(), l.Stats().Refused+a.c.Stats().Refused; told != "[] map[x:3]" || n != 2 {
			t.Errorf("operators are told %q, Refused of the lease and the client are %d in all", told, n)
		}
		w.ok(l.Leave(patiently(w.t)))
		a.owning("x", 5)
		w.logged(line)
		time.Sleep(2 * time.Minute)
		if n := w.logged(line); n > 0 {
			t.Errorf("%d lines after it has joined with the new number", n)
		}
		if told, n := w.reported(), a.c.Stats().Refused; told != "" || n != 0 {
			t.Errorf("then operators are told %q, Refused is %d", told, n)
		}
	})
}

func TestRunGoesOnWhereAMembershipWasTakenAndCameBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		l := w.start("a").mustJoin("x", 1)
		calls := make(chan struct{}, 10)
		go func() {
			_ = l.Run(context.Background(), func(ctx context.Context, _ pgleases.Partition) error {
				calls <- struct{}{}
				<-ctx.Done()
				return nil
			})
		}()
		<-calls
		w.db.Edit(func(t *fakestore.Tables, _ int64) { clear(t.Members) })
		select {
		case <-calls:
		case <-time.After(10 * time.Second):
			t.Errorf("it shows %v, and no callback runs", shown(l))
		}
	})
}

func TestRemovedMembershipReturnsUnderNewEpoch(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 2)
		h := l.Hold(context.Background())
		remove := func() { w.db.Edit(func(t *fakestore.Tables, _ int64) { clear(t.Members) }) }
		remove()
		<-h.Context().Done()
		time.Sleep(time.Minute)
		if shows(l) != "-" {
			t.Errorf("it shows %s under work that has not ended", shows(l))
		}
		h.Release()
		w.within(time.Second, "all comes back", func() bool { return shows(l) == "0-1" })
		for _, p := range h.Partitions() {
			if now, _ := l.Partition(p.Number); now.Epoch <= p.Epoch {
				t.Errorf("%v comes back as %v", p, now)
			}
		}

		w.inject(func(_, op string) (fault, bool) { return fault{err: errLocked}, op == "join" })
		remove()
		w.within(5*time.Second, "it is lost", func() bool { return shows(l) == "-" })
		w.ok(l.Leave(context.Background()))
		w.within(time.Second, "nothing drains", func() bool { return a.c.Stats().Draining == 0 })
	})
}

// As above, but the lease is left before the client is a member again, or while it was removed, and
// joined again under the same session.
func TestRemovedMembershipReturnsInRejoinedLease(t *testing.T) {
	for name, before := range map[string]bool{"left before it is notified": true, "left then": false} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.start("a")
				l := a.owning("x", 2)
				owned := shown(l)
				h := l.Hold(context.Background())
				w.inject(func(_, op string) (fault, bool) { return fault{err: errLocked}, op == "join" })
				w.db.Edit(func(t *fakestore.Tables, _ int64) { clear(t.Members) })
				if !before {
					<-h.Context().Done()
				}
				left := make(chan error, 1)
				go func() { left <- l.Leave(context.Background()) }()
				time.Sleep(5 * time.Second)
				h.Release()
				w.ok(<-left)
				w.inject(nil)
				l = a.owning("x", 2)
				for _, p := range owned {
					if now, _ := l.Partition(p.Number); now.Epoch <= p.Epoch {
						t.Errorf("%v comes back as %v", p, now)
					}
				}
			})
		})
	}
}

func TestAWaitForNotificationsThatFailsPauses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start("a")
		l := p.mustJoin("x", 1)
		p.engine().Deafen(errLocked)
		w.notify("a")                // it waits again
		time.Sleep(20 * time.Second) // which passes only if the engine sleeps
		if shows(l) != "0" {
			t.Errorf("it shows %s", shows(l))
		}
	})
}

// For example a tracer that knows one statement of each connection, while heartbeats succeed.
func TestTracerThatPanicsAgainAndAgainPauses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		l := w.start("a").owning("x", 2)
		var connects atomic.Int64
		w.inject(func(_, op string) (f fault, is bool) {
			if op == "connect" {
				connects.Add(1)
			}
			return fault{does: func() { panic("a fault of the application") }}, op == "listen"
		})
		w.breakConns(w.procs[0])
		time.Sleep(time.Minute)
		if n := connects.Load(); n < 30 || n > 65 { // the pause is half a heartbeat, of 2 s
			t.Errorf("%d connections in a minute", n)
		}
		if shows(l) != "0-1" {
			t.Errorf("it shows %s", shows(l))
		}
	})
}
