package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
)

func TestReplacedLeaseRefusesJoins(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		a.join("l", 4)
		a.give("l", a.session, a.session, a.session, a.session)
		err := f.replace("l", "m", 8)
		if !errors.Is(err, fakestore.ErrInUse) || !strings.Contains(err.Error(), "has members: a") {
			t.Fatalf("with a member: %v", err)
		}
		a.release([]Release{{"l", 0, 1}, {"l", 1, 1}, {"l", 2, 1}, {"l", 3, 1}}, "l")
		f.ok(f.replace("l", "m", 8))
		expect(t, f.counts(), "2 leases, 0 members, 8 partitions", "rows")
		for _, partitions := range []int{4, 8} {
			join, err := a.Join(f.ctx, a.session, "l", partitions, Terms{Weight: 1}, 9)
			f.ok(err)
			want := Join{Alive: true, Successor: "m", DroppedWith: join.DroppedWith}
			expect(t, join, want, "join of the replaced lease")
		}
		if err := f.replace("l", "n", 8); !errors.Is(err, fakestore.ErrReplaced) {
			t.Errorf("replaced twice: %v", err)
		}
		if epoch := f.tables().Partitions["m"][0].Epoch; epoch < 2 {
			t.Errorf("the successor begins with epoch %d, which the replaced lease had", epoch)
		}
		expect(t, a.join("m", 8).Joined, true, "join of the successor")
		if err := f.replace("l", "l2", 8); !errors.Is(err, fakestore.ErrReplaced) {
			t.Errorf("replaced again: %v", err)
		}
	})
}

func TestReplacedLeaseIsOpenedAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		a.join("l", 4)
		a.release(nil, "l")
		f.ok(f.replace("l", "m", 8))
		if err := f.replace("m", "l", 4); err != nil {
			t.Fatalf("the way back: %v", err)
		}
		expect(t, a.join("l", 4).Joined, true, "join after the way back")
		a.release(nil, "l")
		f.ok(f.replace("l", "other", 2))
		f.ok(f.drop("l", 6))
		expect(t, a.join("l", 6).Joined, true, "join after a drop has opened the name")
		if err := f.replace("l", "other", 3); !errors.Is(err, fakestore.ErrReplaced) {
			t.Errorf("a successor that has another number: %v", err)
		}
	})
}

// Sessions that have expired may come back until they are evicted.
func TestReplaceNamesExpiredMembers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.clientTTL("a", time.Hour), f.clientTTL("b", time.Hour)
	a.join("l", 2)
	b.join("l", 2)
	f.exec("UPDATE clients SET expires_at = '2026-01-01 01:00:00 UTC' WHERE id = 'b'")
	err := f.replace("l", "m", 4)
	if !errors.Is(err, fakestore.ErrInUse) {
		t.Fatal(err)
	}
	const members = `lease "l" has members: a, b (without a heartbeat since 2026-01-01`
	if !strings.Contains(err.Error(), members) || !strings.Contains(err.Error(), "not evicted yet)") {
		t.Fatal(err)
	}
}

// A join and a replacement that meet do not both succeed, whichever has the lease's row first.
func TestJoinWaitsForReplacement(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	a.join("l", 2)
	a.release(nil, "l")
	tx, err := f.raw().Begin(f.ctx)
	f.ok(err)
	_, err = tx.Exec(f.ctx, "SELECT pgleases.replace_lease('l', 'm', 4, 'r')")
	f.ok(err)
	_, err = tx.Exec(f.ctx, "SET LOCAL idle_in_transaction_session_timeout = 0")
	f.ok(err)
	join := later(func() Join { j, _ := b.Join(f.ctx, b.session, "l", 2, Terms{Weight: 1}, 1); return j })
	f.until("the join waits", func() bool { return f.text("SELECT count(*) FROM pg_locks WHERE NOT granted") != "0" })
	f.ok(tx.Commit(f.ctx))
	if join().Joined {
		t.Error("it joined the lease that was replaced meanwhile")
	}
	again, err := b.Join(f.ctx, b.session, "l", 2, Terms{Weight: 1}, 2)
	f.ok(err)
	expect(t, again.Successor, "m", "successor")
}

// A guarded transaction of a process that was frozen ends before its lease is replaced.
func TestReplaceWaitsForGuardedTransactions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	a.join("l", 1)
	a.give("l", a.session)
	end := f.guarding("l", 0, 1)
	f.exec("DELETE FROM members")
	operator := f.raw()
	replaced := later(func() error {
		_, err := operator.Exec(f.ctx, "SELECT pgleases.replace_lease('l', 'm', 4, 'r')")
		return err
	})
	f.blocked(operator)
	end()
	f.ok(replaced())
	expect(t, f.counts(), "2 leases, 0 members, 4 partitions", "rows")
}
