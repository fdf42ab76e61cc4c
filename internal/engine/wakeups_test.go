package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/store"

	"github.com/pgleases/pgleases/internal/fakestore"
)

// The engine wakes up for each thing that becomes due. Here heartbeats are minutes apart and no
// notification arrives: if the engine does not wake up for something, that is minutes late.

// polling are the options of a client that the database does not wake.
func polling(ttl, heartbeat time.Duration) []pgleases.Option {
	return []pgleases.Option{pgleases.WithTTL(ttl), pgleases.WithHeartbeat(heartbeat), pgleases.WithPolling()}
}

// rare are those of a client with a heartbeat every five minutes.
var rare = polling(10*time.Minute, 5*time.Minute)

// soon is the maximum time of the statements of a simulated database together, with the spread of
// their times.
const soon = 300 * time.Millisecond

// failing makes a statement of a client fail the first times.
func (w *world) failing(p *proc, op string, times int, f fault) {
	w.inject(func(client, called string) (fault, bool) {
		if called != op || client != p.name || times == 0 {
			return fault{}, false
		}
		times--
		return f, true
	})
}

// patiently is a context for calls that return quickly, unless the engine sleeps.
func patiently(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// canceled is a context that has ended.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// alone opens a client with rare heartbeats that owns the two partitions of a lease.
func (w *world) alone(opts ...pgleases.LeaseOption) (*proc, *pgleases.Lease) {
	w.t.Helper()
	p := w.start("a", rare...)
	l := p.owning("x", 2, opts...)
	return p, l
}

func TestTheEngineWakesUpForThePlanThatAJoinAskedFor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.alone()
		b := w.start("b", rare...) // a plan was made a moment ago: the next one is due a second after it
		b.mustJoin("x", 2)
		w.within(2*time.Second, "the join is planned", func() bool {
			_, meant := w.owns("b", "x")
			return meant > 0
		})
	})
}

func TestTheEngineWakesUpForAHandoffAfterItsDelay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const delay = 3 * time.Second
		_, l := w.alone(pgleases.WithHandoffDelay(delay))
		w.start("b", rare...).mustJoin("x", 2)
		w.within(3*time.Second, "the join is planned", func() bool { return w.count("apply") >= 2 })
		l.Values()
		w.ok(l.SetWeight(patiently(w.t), 0))
		w.within(2*time.Second, "it drains", func() bool { return shows(l) == "-" })
		took := w.within(time.Minute, "it is handed over", w.recorded("a", 0))
		if took < delay-soon || took > delay+soon {
			w.failf("handed over after %v, not %v", took, delay)
		}
	})
}

func TestEngineWakesToReleaseAfterGuard(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p, l := w.alone()
		o, _ := l.Partition(0)
		end, ok := w.db.Guard("x", 0, o.Epoch)
		if !ok {
			w.t.Fatal("the guard does not pass")
		}
		closed := make(chan error, 1)
		go func() { closed <- p.c.Close(context.Background()) }()
		time.Sleep(2 * time.Second)
		end()
		w.within(soon, "it is released", w.recorded("a", 0))
		w.ok(<-closed)
	})
}

func TestTheEngineWakesUpToTryAgain(t *testing.T) {
	goneWith := func(w *world, p *proc) { // the heartbeat of the next connection finds that the session is gone
		w.evict("a")
		w.breakConns(p)
	}
	for op, c := range map[string]struct {
		times int
		err   error
		lose  func(w *world, p *proc)
		most  time.Duration
	}{
		"connect":  {3, errBroken, (*world).breakConns, time.Second},
		"register": {3, errLocked, goneWith, time.Second},
		"join":     {2, errLocked, goneWith, time.Second},
	} {
		t.Run(op, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				p, l := w.alone()
				w.failing(p, op, c.times, fault{err: c.err})
				c.lose(w, p)
				began := time.Now()
				w.ok(l.SetWeight(patiently(w.t), 2))
				if took := time.Since(began); took > c.most {
					w.failf("the weight was set after %v", took)
				}
			})
		})
	}
}

func TestTheEngineWakesUpForACheckAndForTheEviction(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, l := w.alone()
		const ttl = time.Second
		b := w.start("b", pgleases.WithTTL(ttl), pgleases.WithPolling())
		lb := b.mustJoin("x", 2)
		w.within(10*time.Minute, "each owns one, after a heartbeat of a", func() bool {
			return shows(l) != "0-1" && shows(lb) != "-"
		})
		time.Sleep(10 * time.Second)
		b.kill()
		w.within(ttl+soon, "the crashed one's partition is taken over", func() bool { return shows(l) == "0-1" })
	})
}

// A regular heartbeat may find that a check is due, for example of a session whose TTL is shorter
// than that of all others. The check waits until the cutoff has passed that time too.
func TestTheEngineWakesUpForACheckThatItsHeartbeatFinds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.alone()
		time.Sleep(2 * time.Minute)
		const crashed = 99
		w.db.Edit(func(tables *fakestore.Tables, clock int64) {
			expired := clock - time.Minute.Microseconds()
			tables.Clients[crashed] = fakestore.Client{
				Session: crashed, ID: "crashed", ExpiresAt: expired, TTL: time.Second,
			}
			tables.Server.NextCheckAt = expired
		})
		w.nextBeat(6 * time.Minute)
		w.within(soon, "the crashed session is evicted", func() (evicted bool) {
			w.db.Look(func(tables *fakestore.Tables, _ int64) {
				_, live := tables.Clients[crashed]
				evicted = !live
			})
			return evicted
		})
	})
}

func TestTheEngineWakesUpToSettleAPromotedServer(t *testing.T) {
	// After a failure it tries again after a quarter of its heartbeat.
	for failures, want := range []time.Duration{10 * time.Minute, 10*time.Minute + 75*time.Second} {
		t.Run(fmt.Sprint(failures, " failures"), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				p, _ := w.alone()
				time.Sleep(11 * time.Minute) // it watches the server that goes for longer than its TTL
				w.promote(0, false)
				w.nextBeat(6 * time.Minute) // it finds the new timeline
				w.failing(p, "accept", failures, fault{err: errLocked})
				took := w.within(20*time.Minute, "accepted", w.accepted)
				if took < want-soon || took > want+soon {
					w.failf("accepted after %v of watching, not %v", took, want)
				}
			})
		})
	}
}

func TestTheEngineWakesUpAtTheTrustDeadline(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p, l := w.alone()
		partition, _ := l.Partition(0)
		deadline := l.TrustDeadline()
		p.set(func(p *proc) { p.cut = true })
		<-partition.Context().Done()
		if late := time.Since(deadline); late < 0 || late > 10*time.Millisecond {
			w.failf("the context ended %v after the trust deadline", late)
		}
		p.set(func(p *proc) { p.cut = false })
	})
}

func TestTheEngineWakesUpForTheDrainTimeout(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const timeout = 7 * time.Second
		_, l := w.alone(pgleases.WithDrainTimeout(timeout))
		hold := l.Hold(context.Background())
		defer hold.Release()
		began := time.Now()
		w.ok(l.SetWeight(patiently(w.t), 0))
		w.start("b", rare...).mustJoin("x", 2)
		<-hold.Context().Done()
		cause := context.Cause(hold.Context())
		if took := time.Since(began); took > timeout+2*time.Second || !errors.Is(cause, pgleases.ErrDrainTimeout) {
			w.failf("the hold ended after %v: %v", took, cause)
		}
	})
}

func TestTheEngineWakesUpToWarnOfAHandoffThatWaits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p, l := w.alone()
		hold := l.Hold(context.Background())
		defer hold.Release()
		closed := make(chan error, 1)
		go func() { closed <- p.c.Close(context.Background()) }()
		for _, after := range []time.Duration{30 * time.Second, 30 * time.Second} { // 30 s, then twice as long
			took := w.within(time.Hour, "it warns", w.logs("handoff waits for work"))
			if took < after-soon || took > after+soon {
				w.failf("it warned after %v, not %v", took, after)
			}
		}
		hold.Release()
		w.ok(<-closed)
		if of := w.linesWith("INFO pgleases: handoff no longer waits for work lease=x for=1m"); len(of) != 1 {
			w.failf("its end is logged as %q", of)
		}
	})
}

// What is in work when it is lost waits for no handoff any more. Its work goes on after the loss.
func TestHandoffThatIsLostWaitsForWorkNoLonger(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		const waitsNoLonger, ended = "handoff no longer waits for work", "work on lost partitions ended"
		l := a.owning("x", 2)
		hold := l.Hold(context.Background())
		w.ok(l.SetWeight(context.Background(), 1))
		b := w.start("b")
		b.mustJoin("x", 2)
		w.within(time.Minute, "it waits", w.once("handoff waits for work"))
		a.cutOff(true)
		w.within(time.Minute, "b has all", w.recorded("b", 2))
		a.cutOff(false)
		w.within(time.Minute, "the work goes on", w.once("work goes on after"))
		if n := len(w.linesWith(waitsNoLonger)); n != 1 {
			w.failf("it is logged %d times that the handoff waits no longer", n)
		}
		hold.Release()
		w.within(time.Second, "it has ended", w.once(ended+" lease=x"))
		w.ok(a.c.Close(context.Background()))
		if n := len(w.linesWith(waitsNoLonger)) + len(w.linesWith(ended)); n != 2 {
			w.failf("there are %d ends", n)
		}
	})
}

func TestWorkAfterRunsContextEndsWithDrainTimeout(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, l := w.alone(pgleases.WithDrainTimeout(45 * time.Second))
		ctx, cancel := context.WithCancel(context.Background())
		begun, ended := make(chan struct{}, 1), make(chan error, 1)
		go func() {
			ended <- l.Run(ctx, func(_ context.Context, p pgleases.Partition) error {
				if p.Number == 0 {
					begun <- struct{}{}
					<-p.Context().Done()
				}
				return context.Cause(p.Context())
			})
		}()
		<-begun
		cancel()
		took := w.within(time.Hour, "it warns", w.logs("Run waits for work lease=x partitions=[0] for=30s"))
		if took < engine.WarnAfter-soon || took > engine.WarnAfter+soon {
			w.failf("it warned after %v, not %v", took, engine.WarnAfter)
		}
		began := time.Now()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.failf("Run: %v", err)
		}
		if took := time.Since(began); took < 15*time.Second-soon || took > 15*time.Second+soon {
			w.failf("it ended %v after the warning, not 15 s", took)
		}
		w.within(time.Minute, "what ended is owned again", func() bool { return len(l.Values()) == 2 })
	})
}

// Work that continues is not waited for again.
func TestPartitionMovesThoughWorkAfterRunsContextGoesOn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const timeout = 10 * time.Second
		_, l := w.alone(pgleases.WithDrainTimeout(timeout))
		ctx, cancel := context.WithCancel(context.Background())
		begun, finish, ended := make(chan pgleases.Partition, 2), make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- l.Run(ctx, func(_ context.Context, p pgleases.Partition) error {
				begun <- p
				w.wait(finish)
				return nil
			})
		}()
		<-begun
		<-begun
		cancel()
		began := time.Now()
		w.within(time.Minute, "the partitions moved", func() bool {
			return l.Stats().Losses.DrainTimeout == 2 && len(l.Values()) == 2
		})
		if took := time.Since(began); took > timeout+soon {
			w.failf("the partitions moved after %v, not %v", took, timeout)
		}
		close(finish)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.failf("Run: %v", err)
		}
	})
}

// withUnread returns a lease, and another client that has two of its four partitions and has not
// read that.
func (w *world) withUnread() (lease *pgleases.Lease, other *proc) {
	a, b := w.start("a"), w.start("b", pgleases.WithPolling())
	lease = a.owning("x", 4, pgleases.WithHandoffDelay(0))
	time.Sleep(3 * time.Second)
	b.mustJoin("x", 4, pgleases.WithHandoffDelay(0))
	w.within(5*time.Second, "b has two in the database", w.recorded("b", 2))
	return lease, b
}

// It is still a member: a read finds what it was given, and the client releases it.
func TestCloseReleasesWhatItHasNotRead(t *testing.T) {
	for name, patience := range map[string]time.Duration{"ended": 0, "a second": time.Second} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				l, b := w.withUnread()
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				w.ok(b.c.Close(ctx))
				w.within(soon, "a owns all again", func() bool { return shows(l) == "0-3" })
			})
		})
	}
}

// A lease that the client could not leave is named, even if it was never read.
func TestCloseNamesALeaseThatItHasNotLeft(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, b := w.withUnread()
		w.failing(b, "release", 1, fault{before: 20 * time.Second})
		if err := b.c.Close(canceled); err == nil || !strings.Contains(err.Error(), `lease "x"`) {
			w.failf("Close: %v", err)
		}
	})
}

func TestTheEngineWakesUpToGiveUpClosing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p, _ := w.alone()
		w.inject(func(string, string) (fault, bool) { return fault{before: time.Hour}, true })
		began := time.Now()
		if err := p.c.Close(canceled); err == nil {
			w.t.Error("Close returned no error about what it left")
		}
		if took := time.Since(began); took < engine.CloseGrace || took > engine.CloseGrace+soon {
			w.failf("Close took %v, not %v", took, engine.CloseGrace)
		}
		w.inject(nil)
	})
}

// After one slow round trip the client knows the database's clock to within that time, as long as
// the watch lasts.
func TestEvictionWorksWithImpreciseClock(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", polling(time.Minute, 200*time.Millisecond)...)
		la := a.mustJoin("x", 2)
		time.Sleep(time.Second)
		w.failing(a, "heartbeat", 1, fault{after: 700 * time.Millisecond})
		const ttl = 2 * time.Second
		b := w.start("b", pgleases.WithTTL(ttl), pgleases.WithPolling())
		lb := b.mustJoin("x", 2)
		w.within(5*time.Second, "each owns one", each(1, la, lb))
		b.kill()
		w.within(ttl+2*time.Second, "the crashed one's partition is taken over", each(2, la))
	})
}

// owns returns how many partitions of a lease a client owns in the database, and how many have it
// as their target.
func (w *world) owns(id, lease string) (owned, meant int) {
	w.db.Look(func(t *fakestore.Tables, _ int64) {
		session := sessionOf(t, id)
		for _, row := range t.Partitions[lease] {
			if row.Owner == session {
				owned++
			}
			if row.Target == session {
				meant++
			}
		}
	})
	return owned, meant
}

// recorded returns whether the database has a client as the owner of n partitions of lease x.
func (w *world) recorded(id string, n int) func() bool {
	return func() bool {
		owned, _ := w.owns(id, "x")
		return owned == n
	}
}

// evict removes a client's session, as another client does that found it expired.
func (w *world) evict(id string) {
	w.db.Edit(func(t *fakestore.Tables, _ int64) {
		session := sessionOf(t, id)
		delete(t.Clients, session)
		maps.DeleteFunc(t.Members, func(m fakestore.Member, _ fakestore.Membership) bool {
			return m.Session == session
		})
	})
}

// linesWith returns the lines of clients that contain a text.
func (w *world) linesWith(what string) (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.events {
		if strings.Contains(line, what) {
			lines = append(lines, line)
		}
	}
	return lines
}

// once returns whether clients have logged a text in one line.
func (w *world) once(text string) func() bool {
	return func() bool { return len(w.linesWith(text)) == 1 }
}

// logged returns how often clients have logged a text. If they have, it forgets all lines until now.
func (w *world) logged(what string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.events {
		if strings.Contains(line, what) {
			n++
		}
	}
	if n > 0 {
		w.events = nil
	}
	return n
}

// logs returns whether clients have logged a text. If they have, it forgets all lines until now.
func (w *world) logs(text string) func() bool {
	return func() bool { return w.logged(text) > 0 }
}

func TestBlockedJoinDelaysNothingElse(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a", pgleases.WithPolling()), w.start("b", pgleases.WithPolling())
		a.owning("x", 2, pgleases.WithHandoffDelay(0))
		// The lease's row is locked, and the join's wait for it times out.
		w.inject(func(client, op string) (fault, bool) {
			return fault{before: 500 * time.Millisecond, err: errLocked}, client == a.name && op == "join"
		})
		ctx, giveUp := context.WithCancel(context.Background())
		defer giveUp()
		go func() { _, _ = a.c.Lease(ctx, "locked", 4) }()
		time.Sleep(20 * time.Second)
		lb := b.mustJoin("x", 2, pgleases.WithHandoffDelay(0))
		// At its next heartbeat a is asked, 2 s later at most; at its next one b sees what it got.
		w.within(5*time.Second, "b has its share", func() bool { return len(lb.Values()) == 1 })
	})
}

func TestSuccessiveJoinsDelayNothingElse(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		c, p := w.start("c"), w.start("a")
		l := p.mustJoin("x", 8)
		w.shares([]*pgleases.Lease{l}, 8)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var joining sync.WaitGroup
		for _, name := range []string{"y", "z", "u", "v"} {
			c.mustJoin(name, 1)
			joining.Go(func() {
				for ctx.Err() == nil {
					_, _ = p.c.Lease(ctx, name, 2) // it is refused
				}
			})
		}
		w.shares([]*pgleases.Lease{l, w.start("b").mustJoin("x", 8)}, 4, 4)
		cancel()
		joining.Wait()
	})
}

func TestLeaseCanBeJoinedAfterCanceledJoin(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start("a")
		w.ok(p.engine().JoinAbandoned("x", 4))
		_, err := p.c.Lease(patiently(w.t), "x", 4)
		w.ok(err)
	})
}

func TestSetWeightReturnsOnceIfLeaseIsLeft(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p, l := w.alone()
		w.failing(p, "join", 1, fault{before: 2 * time.Second})
		w.evict("a")
		w.breakConns(p)
		weighed := make(chan error, 1)
		go func() { weighed <- l.SetWeight(patiently(w.t), 3) }()
		time.Sleep(time.Second) // the join of the next session is under way, with the weight
		w.ok(l.Leave(patiently(w.t)))
		if err := <-weighed; !errors.Is(err, pgleases.ErrClosed) {
			w.failf("SetWeight: %v", err)
		}
	})
}

// The first process registers, and its answer is lost. A process of another program registers
// before the first one tries again.
func TestOpenWithLostAnswerStaysTheNewer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var attempts atomic.Int32
		w.inject(func(_, op string) (fault, bool) {
			if op != "register" || attempts.Add(1) > 1 {
				return fault{}, false
			}
			return fault{after: time.Second, err: errLocked, applied: true}, true
		})
		go func() {
			time.Sleep(500 * time.Millisecond)
			other, err := w.db.Connect()
			if err == nil {
				_, _, err = other.Register(context.Background(), store.Registration{
					Session: store.RandomID(), ID: "a", Process: store.RandomID(), TTL: time.Second,
				})
			}
			w.ok(err)
		}()
		p := w.start("a")
		if n := attempts.Load(); n != 2 {
			t.Errorf("it registered in %d attempts, not 2", n)
		}
		p.owning("x", 1)
		time.Sleep(time.Minute)
		if err := p.c.Err(); err != nil {
			t.Errorf("it ended: %v", err)
		}
	})
}

// Answers take up to 0.1 s, so clients wait for that long before a check, and each of them takes a
// while. Meanwhile many others have their heartbeats, and learn that the check is due.
func TestManyClientsSendLittleBesideTheirHeartbeats(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const clients, ttl, calm = 300, 6 * time.Second, time.Minute
		w.blind.Store(true)
		w.inject(func(_, op string) (fault, bool) {
			return fault{after: w.span(0, 100*time.Millisecond)}, op == "heartbeat"
		})
		procs := make([]*proc, clients)
		for i := range procs {
			procs[i] = w.start(fmt.Sprint("c", i), pgleases.WithTTL(ttl), pgleases.WithPolling())
		}
		procs[0].mustJoin("x", 1)
		time.Sleep(2 * ttl) // they know their number
		beats, evictions, checks := w.count("heartbeat"), w.count("evict"), w.count("check")
		time.Sleep(calm)
		beats, evictions, checks = w.count("heartbeat")-beats, w.count("evict")-evictions, w.count("check")-checks
		if due := int(clients * calm / (ttl / 3)); float64(beats) > 1.02*float64(due) {
			w.failf("%d heartbeats, of which %d were due", beats, due)
		}
		if checks < int(calm/ttl) || evictions > 10*checks {
			w.failf("%d checks in %v, and %d clients that tried to make one", checks, calm, evictions)
		}
		w.inject(nil)
		next := procs[1].mustJoin("x", 1)
		procs[0].kill()
		w.within(ttl+ttl/3+time.Second, "the crashed one's partition is taken over", each(1, next))
	})
}

func TestNewMemberDoesNotReadBeforeThePlan(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start("a", rare...).mustJoin("x", 2, pgleases.WithWeight(0))
		b := w.start("b", rare...)
		var reads atomic.Int32
		w.inject(func(client, op string) (fault, bool) {
			if client == b.name && op == "read" {
				reads.Add(1)
			}
			return fault{}, false
		})
		l := b.mustJoin("x", 2) // too soon after the plan before to claim one
		w.within(time.Second, "it owns all", func() bool { return len(l.Values()) == 2 })
		if n := reads.Load(); n != 1 {
			t.Errorf("%d reads", n)
		}
	})
}

// What a join returns is enough, if no plan was made since, and there is nothing else to know about
// the lease.
func TestNewMemberReadsWhatItCannotKnowOnly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start("a", pgleases.WithPolling()).owning("x", 4)
		reads := counted(w.count, "read")
		joins := func(id string) {
			w.start(id, pgleases.WithPolling()).mustJoin("x", 4, pgleases.WithWeight(0))
			// another client has made a plan without moves
			w.db.Edit(func(t *fakestore.Tables, _ int64) {
				l := t.Leases["x"]
				l.NextCheckAt = fakestore.Ever
				t.Leases["x"] = l
			})
			time.Sleep(10 * time.Second)
		}
		joins("b") // soon after the plan of a, so it claims none
		if n := reads(); n > 0 {
			t.Errorf("%d reads", n)
		}
		w.override("pause", "x", "")
		time.Sleep(10 * time.Second)
		w.start("c", pgleases.WithPolling()).mustJoin("x", 4, pgleases.WithWeight(0)) // and plans
		time.Sleep(100 * time.Millisecond)
		w.logged("lease paused by an operator")
		joins("d")
		if w.logged("lease paused by an operator") == 0 {
			t.Error("the new member does not know that the lease is paused")
		}
	})
}

// A call that was given up has joined after all, its answer is lost, and another client plans. The
// call that waited behind it joins as if it were the first.
func TestJoinAfterOneThatWasGivenUpReadsItsPartitions(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.start("b", pgleases.WithPolling())
		var joins atomic.Int32
		w.inject(func(client, op string) (fault, bool) {
			lost := client == b.name && op == "join" && joins.Add(1) == 1
			return fault{err: errLocked, applied: true, after: 400 * time.Millisecond}, lost
		})
		given, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer stop()
		_, err := b.c.Lease(given, "x", 2)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the call that was given up: %v", err)
		}
		w.start("a").mustJoin("x", 2, pgleases.WithWeight(0))
		w.within(400*time.Millisecond, "a has planned", func() (planned bool) {
			w.db.Look(func(t *fakestore.Tables, _ int64) { planned = t.Partitions["x"][1].Owner == sessionOf(t, "b") })
			return planned
		})
		lb := b.mustJoin("x", 2)
		// another client has made the plan of this join too
		w.db.Edit(func(t *fakestore.Tables, _ int64) {
			l := t.Leases["x"]
			l.NextCheckAt = fakestore.Ever
			t.Leases["x"] = l
		})
		w.within(5*time.Second, "b owns both", func() bool { return len(shown(lb)) == 2 })
	})
}

// The first join is applied, its answer is lost, and another client plans before the second.
func TestRejoinReadsItsPartitionsAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.start("b", rare...)
		// Until the plan of the other, and not for long after it.
		w.failing(b, "join", 1, fault{err: errLocked, applied: true, after: 350 * time.Millisecond})
		var l *pgleases.Lease
		done := make(chan struct{})
		go func() { l = b.join(context.Background(), "x", 2); close(done) }()
		w.start("a", rare...).mustJoin("x", 2, pgleases.WithWeight(0))
		<-done
		if l == nil {
			t.Fatal("it has not joined")
		}
		took := w.within(time.Minute, "it owns all", each(2, l))
		if took > 50*time.Millisecond { // the next plan is due in 100
			t.Errorf("after %v", took)
		}
	})
}
