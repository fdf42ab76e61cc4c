package engine_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/lock"
)

// lockTable is the table of locks as an application's pool reaches it. Answers to releases take
// some time.
type lockTable struct {
	fakestore.LockTable
	w *world
}

func (t lockTable) Release(
	ctx context.Context, wait time.Duration, session int64, r store.LockRelease, run store.Incarnation,
) (store.LockOutcome, bool, error) {
	became, sent, err := t.LockTable.Release(ctx, wait, session, r, run)
	time.Sleep(t.w.releaseTakes)
	return became, sent, err
}

// A promoted standby may have a lock with a client that was granted to another client since.
func TestLockIsNotGrantedByUnacceptedServer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.db.Keep = 100_000
		b, a, c := w.start("b"), w.start("a", pgleases.WithTTL(2*time.Second)), w.start("c")
		acquire := func(p *proc) *lock.Held {
			h, err := lock.New(p.c, nil).Acquire(context.Background(), "report")
			w.ok(err)
			return h
		}
		time.Sleep(8 * time.Second) // so that expired sessions are evicted
		first, granted := acquire(b), make(chan *lock.Held, 1)
		go func() { granted <- acquire(a) }()
		time.Sleep(time.Second)
		a.cutOff(true)
		w.ok(first.Release(context.Background()))
		w.db.KeepNone()
		other := acquire(c) // once a is evicted
		c.cutOff(true)
		w.promote(100_000, false) // by a standby on which a has it
		a.cutOff(false)
		<-granted
		if other.Context().Err() == nil {
			w.failf("two clients hold the lock")
		}
		c.set(func(p *proc) { p.cut = false })
	})
}

// A lock is released in the database, and held again after a promotion that missed it. The client
// looks at what the new server has before the release is answered.
func TestLockReleasedBeforeAPromotionIsFree(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		time.Sleep(3 * time.Second)
		h, err := lock.New(a.c, nil).Acquire(context.Background(), "report")
		w.ok(err)
		time.Sleep(time.Second)
		w.db.KeepNone()
		w.releaseTakes = 4 * time.Second
		released := make(chan error, 1)
		go func() { released <- h.Release(context.Background()) }()
		w.within(time.Second, "the lock is released", func() (free bool) {
			w.db.Look(func(t *fakestore.Tables, _ int64) { free = len(t.Locks["report"]) == 0 })
			return free
		})
		w.promote(1, false)
		w.ok(<-released)
		w.releaseTakes = 0
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err = lock.New(b.c, nil).Acquire(ctx, "report")
		w.ok(err)
	})
}

// Programs that end before the TTL is over never evict a client, so a crashed holder would keep the
// lock for as long as no other client runs.
func TestTryDoWaitsForTheEvictionOfAnExpiredHolder(t *testing.T) {
	const ttl = 6 * time.Second // the default
	for name, attack := range map[string]func(w *world, holder, first *proc, ask func(context.Context, *proc) string){
		"one of several programs gets it": func(w *world, _, first *proc, ask func(context.Context, *proc) string) {
			answers := make(chan string)
			for _, p := range []*proc{first, w.start("b"), w.start("c")} {
				go func() { answers <- ask(context.Background(), p) }()
			}
			all := []string{<-answers, <-answers, <-answers}
			if slices.Sort(all); !slices.Equal(all, []string{"false, <nil>", "false, <nil>", "true, <nil>"}) {
				w.failf("they report %q", all)
			}
		},
		"the holder comes back": func(w *world, holder, first *proc, ask func(context.Context, *proc) string) {
			time.AfterFunc(time.Second, func() { holder.set(func(p *proc) { p.cut = false }) })
			if answer := ask(context.Background(), first); answer != "false, <nil>" {
				w.failf("it reports %s", answer)
			}
		},
		"ctx ends": func(w *world, _, first *proc, ask func(context.Context, *proc) string) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			const late = `false, pgleases: acquire lock "report": context deadline exceeded`
			answer := ask(ctx, first)
			if !strings.HasPrefix(answer, late) || !strings.Contains(answer, `client "holder"`) {
				w.failf("it reports %s", answer)
			}
		},
		"the client closes": func(w *world, _, first *proc, ask func(context.Context, *proc) string) {
			time.AfterFunc(time.Second, func() { _ = first.close(time.Second, 3*time.Second) })
			if answer := ask(context.Background(), first); !strings.Contains(answer, `lock "report": closed`) {
				w.failf("it reports %s", answer)
			}
		},
		"a standby is promoted": func(w *world, _, first *proc, ask func(context.Context, *proc) string) {
			time.AfterFunc(time.Second, func() { w.promote(0, false) })
			if answer := ask(context.Background(), first); !strings.Contains(answer, "not accepted yet") {
				w.failf("it reports %s", answer)
			}
			time.Sleep(2 * ttl)
			if answer := ask(context.Background(), first); answer != "true, <nil>" {
				w.failf("on the accepted server it reports %s", answer)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(_ *testing.T, w *world) {
				holder := w.start("holder")
				_, err := lock.New(holder.c, nil).TryAcquire(context.Background(), "report")
				w.ok(err)
				holder.cutOff(true)
				time.Sleep(time.Minute)
				attack(w, holder, w.start("a"), func(ctx context.Context, p *proc) string {
					began := time.Now()
					ran, err := lock.New(p.c, nil).TryDo(ctx, "report", func(context.Context) error {
						time.Sleep(time.Second)
						return nil
					})
					// The watch begins with the first heartbeat, and the work takes a second.
					if took := time.Since(began); took > ttl+2*time.Second {
						w.failf("it took %v", took)
					}
					return fmt.Sprintf("%v, %v", ran, err)
				})
			})
		})
	}
}

// A caller does not know the ID of its own client.
func TestLockErrorNamesTheClientItself(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		locks := lock.New(w.start("a").c, nil)
		held, err := locks.TryAcquire(context.Background(), "report")
		w.ok(err)
		waiting, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, waited := locks.Acquire(waiting, "report")
		_, tried := locks.TryAcquire(context.Background(), "report")
		for _, err := range []error{waited, tried} {
			if err == nil || !strings.Contains(err.Error(), " by this client itself, since ") {
				w.failf("its own process is told %v", err)
			}
		}
		w.ok(held.Release(context.Background()))
	})
}

// A database that was away for everybody evicts nobody, so a lock that was lost meanwhile stays
// until it is released.
func TestLostLockWithoutReleaseIsLogged(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		held, err := lock.New(a.c, nil).TryAcquire(context.Background(), "report")
		w.ok(err)
		a.cutOff(true)
		<-held.Context().Done()
		a.cutOff(false)
		const line = "pgleases: lost locks are not released"
		time.Sleep(20 * time.Second)
		if n := w.logged(line); n != 0 {
			w.failf("after 20 s it is logged %d times", n)
		}
		time.Sleep(71 * time.Second) // since the loss: after 30 s and 60 s, and next after 120 s
		if n := w.logged(line); n != 2 {
			w.failf("it is logged %d times", n)
		}
		if told := w.reported(); told != `["report"] map[]` {
			w.failf("operators are told %q", told)
		}
		waiting, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, waited := lock.New(a.c, nil).Acquire(waiting, "report")
		_, tried := lock.New(a.c, nil).TryAcquire(context.Background(), "report")
		for _, err := range []error{waited, tried} {
			if err == nil || !strings.Contains(err.Error(), "call Release") {
				w.failf("its own process is told %v", err)
			}
		}
		_ = held.Release(context.Background())
		time.Sleep(2 * time.Minute)
		if n := len(w.linesWith(line)); n != 0 {
			w.failf("after its release it is logged %d times", n)
		}
		if of := w.linesWith("INFO pgleases: lost locks released locks=1 first=report for=1m3"); len(of) != 1 {
			w.failf("its release is logged as %q", of)
		}
		if told := w.reported(); told != "" {
			w.failf("after its release operators are told %q", told)
		}
		_, err = lock.New(a.c, nil).TryAcquire(context.Background(), "report")
		w.ok(err)
	})
}

// The end of the session ends it too, and a lock that was not logged has no end in the log.
func TestLostLocksAreReleasedWithTheSession(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		locks := lock.New(a.c, nil)
		var all []*lock.Held
		for _, name := range []string{"books", "mail", "report"} {
			held, err := locks.TryAcquire(context.Background(), name)
			w.ok(err)
			all = append(all, held)
		}
		a.cutOff(true)
		<-all[0].Context().Done()
		a.cutOff(false)
		time.Sleep(10 * time.Second)
		_ = all[0].Release(context.Background())
		time.Sleep(25 * time.Second)
		if of := w.linesWith("lost locks are not released locks=2 first=mail for=30s"); len(of) != 1 {
			w.failf("it is logged as %q", of)
		}
		_ = all[1].Release(context.Background())
		time.Sleep(time.Second)
		if n := len(w.linesWith("lost locks released")); n != 0 {
			w.failf("one lock is left, and the log says that they are released")
		}
		w.evict("a")
		time.Sleep(time.Minute)
		of := w.linesWith("lost locks released")
		if len(of) != 1 || !strings.Contains(of[0], " locks=2 first=mail for=") {
			w.failf("the end is logged as %q", of)
		}
	})
}

// Operators would see a lock as lost for as long as the session lives, or would not see it.
func TestReportThatWasLostIsSentAgain(t *testing.T) {
	lose := func(w *world) *lock.Held {
		a := w.start("a")
		held, err := lock.New(a.c, nil).TryAcquire(context.Background(), "report")
		w.ok(err)
		a.cutOff(true)
		<-held.Context().Done()
		a.cutOff(false)
		return held
	}
	told := func(w *world, what, report string) {
		w.t.Helper()
		w.within(20*time.Second, what, func() bool { return w.reported() == report })
	}
	const lost = `["report"] map[]`
	t.Run("its answer, before the release", func(t *testing.T) {
		inWorld(t, func(t *testing.T, w *world) {
			w.inject(func(_, op string) (fault, bool) { return fault{after: time.Hour}, op == "report" })
			held := lose(w)
			told(w, "the loss is reported", lost)
			_ = held.Release(context.Background())
			w.inject(nil)
			told(w, "the release is reported", "")
		})
	})
	t.Run("in a crash", func(t *testing.T) {
		inWorld(t, func(t *testing.T, w *world) {
			lose(w)
			told(w, "the loss is reported", lost)
			time.Sleep(3 * time.Millisecond) // until it is answered
			if w.db.Crash(keepStates); w.reported() != "" {
				t.Fatal("the crash has not lost the report")
			}
			told(w, "the loss is reported again", lost)
		})
	})
}

// An eviction may have been made although its answer is lost. What the evicted session had is removed
// all the same.
func TestSweepFollowsEvictionWithoutAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		_, err := lock.New(b.c, nil).Acquire(context.Background(), "report")
		w.ok(err)
		time.Sleep(10 * time.Second)
		answers := time.Now().Add(8 * time.Second) // b has expired by then
		w.inject(func(client, op string) (fault, bool) {
			lost := op == "evict" && client == a.name && time.Now().Before(answers)
			return fault{err: errBroken, broken: true, applied: true}, lost
		})
		b.kill()
		w.within(time.Minute, "the lock of the killed client is gone", func() bool {
			left := 0
			w.db.Edit(func(t *fakestore.Tables, _ int64) { left = len(t.Locks) })
			return left == 0
		})
	})
}
