package pgleases_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// Operators control clients at work by SQL: each verb does what it says, interrupts no work, and no
// partition is worked on twice at once.
func TestClientsAtWorkAreOperatedWithPsql(t *testing.T) {
	t.Parallel()
	const partitions = 12
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	operator := ownersPool(t, pool.Config().ConnString())
	var working [partitions]atomic.Int32
	var overlaps, cut atomic.Int32
	log := new(logbook) // of a
	clients, leases, jobs := make(map[string]*pgleases.Client), make(map[string]*pgleases.Lease), make(map[string]job)
	open := func(id string, options ...pgleases.Option) {
		clients[id] = newClient(t, pool, append(options, pgleases.WithClientID(id))...)
		leases[id] = joined(t, clients[id], "work", partitions)
		jobs[id] = run(t, leases[id], func(ctx context.Context, p pgleases.Partition) error {
			if working[p.Number].Add(1) != 1 {
				overlaps.Add(1)
			}
			defer working[p.Number].Add(-1)
			<-ctx.Done()
			if p.Context().Err() != nil {
				cut.Add(1)
			}
			return nil
		})
	}
	says := func(verb string) {
		t.Helper()
		testkit.Execute(t, operator, "SELECT pgleases."+verb)
	}
	shares := func(what string, ids string, want ...int) {
		t.Helper()
		until(t, what, func() bool {
			for i, id := range ids {
				if len(ownedBy(t, pool, string(id))) != want[i] || len(numbers(leases[string(id)])) != want[i] {
					return false
				}
			}
			return true
		})
	}
	planned := func() {
		t.Helper()
		testkit.Becomes(t, pool, "no plan is due", 0, "SELECT count(*) FROM pgleases.leases WHERE next_check_at < 'infinity'")
	}
	logged := func(words ...string) {
		t.Helper()
		until(t, fmt.Sprint("a logs once ", words), func() bool { return len(log.lines(words...)) == 1 })
	}
	says("pause('work', 'it does not exist yet')")
	open("a", log.option())
	open("b")
	open("c")
	logged("lease paused", "lease=work", "actor=", "reason=it does not exist yet")
	planned()
	shares("a lease paused before its creation has no owners", "abc", 0, 0, 0)
	says("resume('work', 'now')")
	shares("each has its third", "abc", 4, 4, 4)
	logged("pause", "ended")
	its := ownedBy(t, pool, "a")

	says("drain('a', 'its host goes')")
	shares("a is drained", "abc", 0, 6, 6)
	logged("client drained", "actor=", "reason=its host goes")
	says("undrain('a', 'its host stays')")
	shares("a is back", "abc", 4, 4, 4)
	logged("drain", "ended")
	if got := ownedBy(t, pool, "a"); !slices.Equal(got, its) {
		t.Errorf("a owned %v, and when it was back %v", its, got)
	}

	says("pause('work', 'maintenance')")
	testkit.Becomes(t, pool, "no partition has an owner", 0, "SELECT count(owner) FROM pgleases.partitions")
	for n := range working {
		if working[n].Load() != 0 {
			t.Errorf("partition %d is worked on, and has no owner", n)
		}
	}
	says("resume('work', 'done')")
	shares("all work again", "abc", 4, 4, 4)

	says("freeze('work', 'a long night')")
	open("d")
	planned()
	shares("d gets nothing of what is frozen", "abcd", 4, 4, 4, 0)
	says("drain('c', 'it is slow')")
	shares("what c had moves nevertheless", "cd", 0, 4)
	says("undrain('c', 'it is well')")
	says("unfreeze('work', 'morning')")
	shares("all have a quarter", "abcd", 3, 3, 3, 3)

	says("cordon('b', 'no more for it')")
	shut(t, clients["a"])
	testkit.Becomes(t, pool, "all is owned", partitions, "SELECT count(owner) FROM pgleases.partitions")
	planned()
	if got := len(ownedBy(t, pool, "b")); got != 3 {
		t.Errorf("b is cordoned with 3 partitions, and has %d", got)
	}
	says("uncordon('b', 'more')")
	shares("each has its third", "bcd", 4, 4, 4)
	if n := cut.Load(); n != 0 {
		t.Errorf("%d times work was cut off", n)
	}

	says("evict_client('d', 'it hangs')")
	testkit.Receive(t, "d ends", clients["d"].Done())
	wraps(t, "d ended with", clients["d"].Err(), pgleases.ErrEvicted)
	_ = testkit.Receive(t, "d works on nothing any more", jobs["d"].done) // it has a minute to end, and expire on the next line ends that
	expire(t, pool, "d")                                                  // the partitions that it has not handed over wait for that
	shares("what d had is taken over", "bc", 6, 6)
	if n := overlaps.Load(); n != 0 {
		t.Errorf("%d times a partition was worked on twice at once", n)
	}
}
