package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/testkit"
)

// frozen returns a client that has joined lease x, and was then cut off until it was evicted. So
// lease x has no members, and the client joins it again by itself when it comes back. The channel
// gets the return of Run.
func (w *world) frozen() (old *proc, l *pgleases.Lease, owned pgleases.Partition, ran <-chan error) {
	old = w.start("old")
	l = old.owning("x", 2)
	owned = shown(l)[0]
	result := make(chan error, 1)
	go func() {
		result <- l.Run(context.Background(), func(ctx context.Context, _ pgleases.Partition) error {
			<-ctx.Done()
			return nil
		})
	}()
	w.start("new").mustJoin("other", 1)
	old.cutOff(true)
	w.within(30*time.Second, "it was evicted", func() bool { sessions, _ := w.rows(); return sessions == 1 })
	return old, l, owned, result
}

func TestFrozenClientOfAReplacedLeaseStaysOut(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		old, l, before, ran := w.frozen()
		testkit.OK(t, w.db.ReplaceLease("x", "y", 4))
		successor := w.start("newer").owning("y", 4)
		old.cutOff(false)
		w.within(10*time.Second, "its lease ends", func() bool { return l.Err() != nil })
		for what, err := range map[string]error{"Err": l.Err(), "Run": <-ran, "Wait": l.Wait(context.Background())} {
			if !errors.Is(err, pgleases.ErrLeaseReplaced) || !strings.Contains(err.Error(), `by "y"`) {
				t.Errorf("%s: %v", what, err)
			}
		}
		w.wait(l.Done())
		if passes := w.passes("x", before); old.c.Err() != nil || passes {
			t.Errorf("the client ended with %v; a guard of the replaced lease passes: %v", old.c.Err(), passes)
		}
		if n := w.logged(`lease ended lease=x cause=lease was replaced by "y"`); n != 1 {
			t.Errorf("it is logged %d times", n)
		}
		time.Sleep(time.Minute)
		if _, n := w.rows(); n != 0 || len(shown(successor)) != 4 {
			t.Errorf("the replaced lease has %d partitions, the client of its successor shows %s", n, shows(successor))
		}
		if _, err := old.c.Lease(patiently(t), "x", 2); !errors.Is(err, pgleases.ErrLeaseReplaced) {
			t.Errorf("Lease: %v", err)
		}
		w.ok(old.c.Close(patiently(t)))
	})
}

// A membership whose row was deleted by hand joins again in the session that it has, in which it
// still owns partitions.
func TestLiveClientOfAReplacedLeaseStaysOut(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 2)
		hold := l.Hold(context.Background())
		w.blind.Store(true) // it shows what was taken from it by hand
		w.db.Edit(func(t *fakestore.Tables, _ int64) { clear(t.Members) })
		testkit.OK(t, w.db.ReplaceLease("x", "y", 2))
		w.within(10*time.Second, "its lease ends", func() bool { return l.Err() != nil })
		hold.Release()
		if !errors.Is(l.Err(), pgleases.ErrLeaseReplaced) || len(l.Values()) > 0 {
			t.Errorf("it shows %s, and ended with %v", shows(l), l.Err())
		}
		testkit.OK(t, w.db.ReplaceLease("y", "x", 3)) // a change of mind
		a.owning("x", 3)
		w.ok(a.c.Close(patiently(t)))
	})
}

// rows returns the number of sessions, and of the partitions of lease x.
func (w *world) rows() (sessions, partitions int) {
	w.db.Look(func(t *fakestore.Tables, _ int64) { sessions, partitions = len(t.Clients), len(t.Partitions["x"]) })
	return sessions, partitions
}
