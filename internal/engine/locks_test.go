package engine_test

import (
	"context"
	"testing"
	"time"

	. "github.com/pgleases/pgleases"
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

func (t lockTable) Release(ctx context.Context, wait time.Duration, session int64, r store.LockRelease, run store.Incarnation) (store.LockOutcome, bool, error) {
	became, sent, err := t.LockTable.Release(ctx, wait, session, r, run)
	time.Sleep(t.w.releaseTakes)
	return became, sent, err
}

// A promoted standby may have a lock with a client that was granted to another client since.
func TestLockIsNotGrantedByUnacceptedServer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.db.Keep = 100_000
		b, a, c := w.start("b"), w.start("a", WithTTL(2*time.Second)), w.start("c")
		acquire := func(p *proc) *lock.Held {
			h, err := lock.New(p.c, nil).Acquire(context.Background(), "report")
			w.ok(err)
			return h
		}
		time.Sleep(8 * time.Second) // so that expired sessions are evicted
		first, granted := acquire(b), make(chan *lock.Held, 1)
		go func() { granted <- acquire(a) }()
		time.Sleep(time.Second)
		a.set(func(p *proc) { p.cut = true })
		w.breakConns(a)
		w.ok(first.Release(context.Background()))
		w.db.KeepNone()
		other := acquire(c) // once a is evicted
		c.set(func(p *proc) { p.cut = true })
		w.breakConns(c)
		w.promote(100_000, false) // by a standby on which a has it
		a.set(func(p *proc) { p.cut = false })
		w.breakConns(a)
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
