package pgleases_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
)

func TestStatsCountRefusalsFailuresAndLocks(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.Database(t))
	c, other := newClient(t, pool), newClient(t, pool)
	a, b := joined(t, c, "a", 1), joined(t, c, "b", 1)
	testkit.OK(t, a.Wait(t.Context()))
	p, _ := a.Partition(0)
	guarded(t, pool, a, p)
	p.Epoch++
	if err := guard(t, pool, a, p); !errors.Is(err, pgleases.ErrNotOwner) {
		t.Errorf("Guard returned %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	calls := 0
	_ = a.Run(ctx, func(context.Context, pgleases.Partition) error {
		if calls++; calls == 2 {
			defer stop()
		}
		return errors.New("broken")
	})
	until(t, "both are counted", func() bool {
		all, byLease := c.Stats(), c.StatsByLease()
		counted := all.GuardRefusals == 1 && all.CallbackFailures == 2
		a := byLease["a"]
		return counted && a.GuardRefusals == 1 && a.CallbackFailures == 2 && byLease["b"] == b.Stats()
	})
	if s := c.StatsByLease(); len(s) != 2 || s["a"].Owned != 1 || s["b"].GuardRefusals+s["b"].CallbackFailures != 0 {
		t.Errorf("the stats by lease are %+v", s)
	}
	testkit.OK(t, b.Leave(t.Context()))
	until(t, "the lease is gone", func() bool {
		return slices.Equal(slices.Collect(maps.Keys(c.StatsByLease())), []string{"a"})
	})

	held := testkit.Must(lock.New(c, pool).Acquire(t.Context(), "x"))(t)
	waiting, give := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := lock.New(other, pool).Acquire(waiting, "x")
		answered <- err
	}()
	until(t, "the other client waits", func() bool { return other.Stats().Locks == pgleases.LockStats{Waiting: 1} })
	if s := c.Stats().Locks; s != (pgleases.LockStats{Held: 1}) {
		t.Errorf("one lock is held, and the stats are %+v", s)
	}
	give()
	<-answered
	testkit.OK(t, held.Release(t.Context()))
	if s := c.Stats().Locks; s != (pgleases.LockStats{}) {
		t.Errorf("no lock is held, and the stats are %+v", s)
	}
	_, err := lock.New(c, pool).Acquire(t.Context(), "y")
	testkit.OK(t, err)
	closing, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_ = c.Close(closing) // the lock is not released
	if s := c.Stats().Locks; s != (pgleases.LockStats{Lost: 1}) {
		t.Errorf("a client has closed with a lock, and the stats are %+v", s)
	}
}
