package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// twoClients returns two clients with short heartbeats, of which the first owns all of a lease and
// the second has not joined.
func twoClients(t *testing.T, partitions int, opts ...pgleases.LeaseOption) (pool *pgxpool.Pool, ca, cb *pgleases.Client, a *pgleases.Lease) {
	t.Helper()
	return twoClientsOn(t, pgtest.MigratedDatabase(t), partitions, opts...)
}

func twoClientsOn(t *testing.T, url string, partitions int, opts ...pgleases.LeaseOption) (pool *pgxpool.Pool, ca, cb *pgleases.Client, a *pgleases.Lease) {
	t.Helper()
	pool = testkit.Pool(t, url)
	ca = newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithHeartbeat(50*time.Millisecond))
	cb = newClient(t, pool, pgleases.WithClientID("b"), pgleases.WithHeartbeat(50*time.Millisecond))
	a = joined(t, ca, "work", partitions, opts...)
	untilOwns(t, a, partitions)
	return pool, ca, cb, a
}

// untilOwns waits until a lease owns that many partitions, without reading Values.
func untilOwns(t testing.TB, l *pgleases.Lease, n int) {
	t.Helper()
	until(t, fmt.Sprintf("%q owns %d of %d partitions", l.Name(), n, l.NumPartitions()), func() bool { return len(numbers(l)) == n }, l)
}

// numbers returns what a lease owns; unlike Values it does not count as a read.
func numbers(l *pgleases.Lease) []int {
	var owned []int
	for n := range l.NumPartitions() {
		if _, ok := l.Partition(n); ok {
			owned = append(owned, n)
		}
	}
	return owned
}

// ownedBy returns what the database says a client owns.
func ownedBy(t testing.TB, pool *pgxpool.Pool, client string) []int {
	t.Helper()
	return testkit.Value[[]int](t, pool,
		`SELECT coalesce(array_agg(partition ORDER BY partition), '{}') FROM pgleases.status WHERE owner = $1`, client)
}

// A partition leaves when no open hold contains it.
func TestAHoldPinsWhatWasOwnedWhenItWasTaken(t *testing.T) {
	t.Parallel()
	pool, ca, cb, a := twoClients(t, 4)
	first, hold := a.Hold(t.Context()), a.Hold(t.Context())
	defer hold.Release()
	b := joined(t, cb, "work", 4)
	untilOwns(t, a, 2)
	young := a.Hold(t.Context())
	defer young.Release()
	if got := young.Values(); !slices.Equal(got, numbers(a)) {
		t.Errorf("a hold contains %v, owned are %v", got, numbers(a))
	}
	first.Release()
	first.Release()
	beats(t, ca, 3)
	beats(t, cb, 3)
	if got := ownedBy(t, pool, "a"); len(got) != 4 || len(numbers(b)) != 0 {
		t.Errorf("while all are held, a owns %v and b %v, not all and nothing", got, numbers(b))
	}
	if got := hold.Values(); !slices.Equal(got, []int{0, 1, 2, 3}) || len(got) != cap(got) {
		t.Errorf("the hold is of %v, not 0 to 3", got)
	}
	if err := hold.Context().Err(); err != nil {
		t.Errorf("a handoff ended the hold's context: %v", context.Cause(hold.Context()))
	}
	if s := ca.Stats(); s.Draining != 2 || s.Owned != 2 || s.DrainingSince.IsZero() || time.Since(s.DrainingSince) > testkit.Patience {
		t.Errorf("two are owned and two drain, and the stats are %+v", s)
	}
	for _, n := range hold.Values() {
		p, ok := hold.Partition(n)
		if !ok || p.Number != n {
			t.Errorf("the hold's partition %d is %v, contained %v", n, p, ok)
		}
		guarded(t, pool, a, p)
	}
	if p, ok := hold.Partition(4); ok {
		t.Errorf("the hold contains %v, and there is no partition 4", p)
	}
	hold.Release()
	hold.Release()
	untilOwns(t, b, 2) // though the young one is open
	testkit.OK(t, young.Context().Err())
	wraps(t, "released, its context ended with", context.Cause(hold.Context()), context.Canceled)
	until(t, "the stats tell of it", func() bool { return ca.Stats().Losses == (pgleases.Losses{Handoff: 2}) })
}

func TestAHoldsContextIsOfItsParent(t *testing.T) {
	t.Parallel()
	why := errors.New("supper")
	_, _, _, a := twoClients(t, 2)
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), hour(0), "six"))
	hold := a.Hold(ctx)
	defer hold.Release()
	if hold.Context().Value(hour(0)) != "six" {
		t.Error("the hold's context does not have its parent's values")
	}
	cancel(why)
	wraps(t, "the hold ended with", ended(t, "the hold ends", hold.Context()), why)
	if p, _ := a.Partition(0); p.Context().Err() != nil {
		t.Error("the ownership ended with a hold's parent")
	}
}

type hour int

func TestAHoldOfNothingIsEmptyAndHarmless(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	c := newClient(t, pool)
	l := joined(t, c, "work", 2, pgleases.WithWeight(0))
	check := func(hold *pgleases.Hold) {
		t.Helper()
		if got := hold.Values(); got == nil || len(got) != 0 || cap(got) != 0 {
			t.Errorf("it is of %#v, not an empty slice", got)
		}
		if p, ok := hold.Partition(0); ok || p != (pgleases.Partition{}) {
			t.Errorf("it contains %v, not nothing", p)
		}
		if err := hold.Context().Err(); err != nil {
			t.Errorf("its context has ended: %v", err)
		}
		hold.Release()
		hold.Release()
		wraps(t, "released, its context's error is", hold.Context().Err(), context.Canceled)
	}
	check(l.Hold(t.Context()))
	testkit.OK(t, l.SetWeight(t.Context(), 1))
	untilOwns(t, l, 2)
	open := l.Hold(t.Context())
	if err := closes(t, c, canceled(nil)); err == nil {
		t.Error("Close says that nothing was left in work")
	}
	check(l.Hold(t.Context()))
	open.Release()
}
