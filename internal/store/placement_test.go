package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// joinOn joins lease l with terms of its own.
func (c *client) joinOn(partitions int, terms Terms) Join {
	c.f.Helper()
	c.joins++
	return testkit.Must(c.Join(c.f.ctx, c.session, "l", partitions, terms, c.joins))(c.f)
}

// delayed are the terms of a member of that weight and rebalance delay.
func delayed(weight int, delay time.Duration) Terms {
	return Terms{Weight: weight, RebalanceDelay: delay}
}

// pass moves the clock.
func (f *fixture) pass(d time.Duration) {
	f.Helper()
	f.setClock(time.UnixMicro(f.clock()).Add(d))
}

func TestJoinsBeginTheLongestRebalanceDelay(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		const longest = 2 * time.Second
		a, b, c := f.client("a"), f.client("b"), f.client("c")
		settles := func(want bool) {
			t.Helper()
			expect(t, a.snapshot("l")[0].Settling, want, "the lease settles")
		}
		expect(t, a.joinOn(3, delayed(1, longest)).SettlesIn, 0, "delay of the first join")
		settles(false)
		expect(t, b.joinOn(3, delayed(1, time.Second)).SettlesIn, longest, "delay of the second join")
		settles(true)
		expect(t, a.beat().CheckDueIn, longest, "time until the check")
		f.pass(time.Second)
		again := b.joinOn(3, delayed(1, time.Second))
		expect(t, again.SettlesIn, longest-time.Second, "after a join that changes nothing")
		expect(t, b.joinOn(3, delayed(4, time.Second)).SettlesIn, longest, "after a change of weight")
		expect(t, c.joinOn(3, delayed(0, time.Second)).SettlesIn, longest, "after a join without a weight")
		for n := 1; n <= 4; n++ {
			f.pass(1900 * time.Millisecond)
			left := 5*longest - time.Second - time.Duration(n)*1900*time.Millisecond
			expect(t, b.joinOn(3, delayed(4+n, 0)).SettlesIn, min(longest, left), fmt.Sprint("after join ", n))
		}
		settles(true)
		f.pass(1400 * time.Millisecond)
		settles(false)
		expect(t, b.joinOn(3, delayed(2, 0)).SettlesIn, 0, "before a check has ended the delay, so that a plan follows")
		settles(false)
		f.checkNow()
		a.evictAs(a.run(), 0)
		expect(t, b.joinOn(3, delayed(1, 0)).SettlesIn, longest, "of the next delay")
		settles(true)
	})
}

func TestCheckEndsTheRebalanceDelay(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.joinOn(2, delayed(1, 3*time.Second))
		b.joinOn(2, delayed(1, time.Minute))
		b.apply(a.snapshot("l"))
		run := a.run()
		for range 14 {
			f.pass(4 * time.Second)
			a.beat()
			b.beat()
			f.checkNow()
			expect(t, fmt.Sprint(a.evictAs(run, 0).ToPlan), "[]", "leases to plan before the end")
		}
		expect(t, a.beat().CheckDueIn, 4*time.Second, "time until the check")
		f.pass(4 * time.Second)
		a.beat()
		b.beat()
		before := a.snapshot("l")[0].Generation
		expect(t, fmt.Sprint(a.evictAs(run, 0).ToPlan), "[l]", "leases to plan at the end")
		expect(t, a.snapshot("l")[0].Generation, before+1, "generation, which makes earlier plans void")
		f.checkNow()
		expect(t, fmt.Sprint(a.evictAs(run, 0).ToPlan), "[]", "leases to plan after the end")
	})
}

func TestRebalanceDelayOfTheFutureIsNone(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.joinOn(2, delayed(1, time.Minute))
		b.joinOn(2, delayed(1, time.Minute))
		run := a.run()
		f.pass(-time.Hour)
		expect(t, a.snapshot("l")[0].Settling, false, "the lease settles")
		f.checkNow()
		expect(t, fmt.Sprint(a.evictAs(run, 0).ToPlan), "[l]", "leases to plan")
		expect(t, b.joinOn(2, delayed(2, time.Minute)).SettlesIn, time.Minute, "delay by the new clock")
	})
}

func TestUnfreezeEndsTheRebalanceDelay(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		freeze := fakestore.Override{Verb: "freeze", Lease: "l"}
		a.joinOn(2, delayed(1, time.Minute))
		err := f.back(freeze)
		if err == nil {
			t.Error("there was nothing to end")
		}
		b.joinOn(2, delayed(1, time.Minute))
		before := a.snapshot("l")[0]
		expect(t, before.Settling, true, "the lease settles")
		f.ok(f.back(freeze))
		now := a.snapshot("l")[0]
		expect(t, now.Settling, false, "the lease settles")
		expect(t, now.Generation, before.Generation+1, "generation, which makes earlier plans void")
	})
}

func TestDropEndsTheRebalanceDelay(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.joinOn(2, delayed(1, time.Minute))
		b.joinOn(2, delayed(1, time.Minute))
		a.release(nil, "l")
		b.release(nil, "l")
		f.ok(f.drop("l", 0))
		expect(t, f.tables().Leases["l"].SettlesAt, 0, "end of the delay")
	})
}

func TestApplyNotesWhatHasNoOwner(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.joinOn(5, Terms{Weight: 1, MaxPartitions: 1})
		b.joinOn(5, Terms{Weight: 1, MaxPartitions: 2})
		says := func(want string) {
			t.Helper()
			var got []string
			for _, c := range []*client{a, b} {
				r := testkit.Must(c.Read(f.ctx, c.session, []string{"l"}))(t)[0]
				got = append(got, fmt.Sprint(c.id, r.Unowned, r.Speaks == (c.session == min(a.session, b.session))))
			}
			expect(t, fmt.Sprint(got), want, "what members read")
		}
		read := a.snapshot("l")
		expect(t, fmt.Sprint(read[0].Members[0].MaxPartitions, read[0].Members[1].MaxPartitions), "1 2", "ceilings")
		read[0].Unowned = []int{2, 4}
		a.apply(read, Move{"l", 0, a.session}, Move{"l", 1, b.session}, Move{"l", 3, b.session})
		expect(t, a.snapshot("l")[0].WasUnowned, 2, "partitions without an owner")
		says("[a2 true b2 true]")
		generation := a.snapshot("l")[0].Generation
		expect(t, read[0].Generation, generation, "generation of the plan's lease")
		a.apply(read)
		expect(t, a.snapshot("l")[0].Generation, generation, "generation after a plan that changes nothing")
		read[0].Unowned = nil
		a.apply(read)
		expect(t, a.snapshot("l")[0].WasUnowned, 0, "partitions without an owner after another plan")
		expect(t, a.snapshot("l")[0].Generation, generation+1, "generation, so that members read it")
		r := testkit.Must(a.Read(f.ctx, a.session, []string{"l"}))(t)[0]
		expect(t, fmt.Sprint(r.Unowned, r.Speaks), "0 false", "what a member reads then")
	})
}

func TestAnEventNamesWhatHasNoOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	a.joinOn(6, Terms{Weight: 1, MaxPartitions: 2})
	read := a.snapshot("l")
	for _, unowned := range [][]int{{2, 3, 5}, {2, 3, 5}, {}, {5}} {
		read[0].Unowned = unowned
		a.apply(read)
	}
	got := f.text("SELECT lease, partitions::text FROM events WHERE cause = 'over ceilings' ORDER BY id")
	expect(t, got, "l|{[2,4),[5,6)}\nl|{[5,6)}", "events")
}

// awaited returns the clients that are awaited in lease l, with their weights.
func (c *client) awaited() (all string) {
	c.f.Helper()
	for _, a := range c.snapshot("l")[0].Awaited {
		all += fmt.Sprint(a.ID, a.Weight, " ")
	}
	return all
}

func TestLeaveBeginsARestartGrace(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.joinOn(3, Terms{Weight: 2, RestartGrace: 5 * time.Second})
		b.joinOn(3, Terms{Weight: 1})
		a.give("l", a.session, a.session, b.session)
		leave := func(returns bool, releases ...Release) Released {
			t.Helper()
			return a.leave(Leave{Lease: "l", Now: true, Returns: returns}, releases...)
		}
		first := leave(true, Release{"l", 0, 1})
		expect(t, fmt.Sprint(first.Released, first.Left, first.ToPlan), "[{l 0 0 2}] [] []", "while it still owns one")
		expect(t, b.awaited(), "a2 ", "awaited")
		expect(t, b.beat().CheckDueIn, 5*time.Second, "time until the check")
		last := leave(true, Release{"l", 1, 1})
		expect(t, fmt.Sprint(last.Released, last.Left, last.ToPlan), "[{l 1 0 2}] [l] [l]", "when it has left")
		expect(t, b.awaited(), "a2 ", "awaited")
		b.apply(b.snapshot("l"))
		run := b.run()
		f.pass(4 * time.Second)
		b.beat()
		f.checkNow()
		expect(t, fmt.Sprint(b.evictAs(run, 0).ToPlan), "[]", "leases to plan before the end")
		expect(t, b.beat().CheckDueIn, time.Second, "time until the check")
		f.pass(time.Second)
		expect(t, b.awaited(), "", "awaited at the end")
		expect(t, fmt.Sprint(b.evictAs(run, 0).ToPlan), "[l]", "leases to plan at the end")
		expect(t, len(f.tables().Graces), 0, "rows")
	})
}

func TestEvictionBeginsARestartGrace(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		older, newer, b := f.client("a"), f.client("a"), f.client("b")
		none, gone := f.client("none"), f.client("gone")
		for _, c := range []*client{older, newer, gone} {
			c.joinOn(2, Terms{Weight: 1, RestartGrace: time.Minute})
		}
		none.joinOn(2, Terms{Weight: 1})
		b.joinOn(2, Terms{Weight: 1})
		f.ok(f.override(fakestore.Override{Verb: "drain", Client: "gone"}, 0, true))
		f.expire(older, none, gone)
		b.evict()
		expect(t, b.awaited(), "", "awaited while a newer process is a member")
		f.expire(newer)
		b.evict()
		expect(t, b.awaited(), "a1 ", "awaited")
		again := f.client("a")
		again.joinOn(2, Terms{Weight: 1, RestartGrace: time.Minute})
		twin := f.client("a")
		twin.joinOn(2, Terms{Weight: 3, RestartGrace: time.Minute})
		f.expire(again, twin)
		b.evict()
		expect(t, b.awaited(), "a3 ", "awaited after two processes were evicted at once")
		f.ok(f.override(fakestore.Override{Verb: "drain", Client: "a"}, 0, true))
		expect(t, b.awaited(), "", "awaited when it is drained")
	})
}

func TestOperatorsEvictionEndsARestartGrace(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.joinOn(2, Terms{Weight: 1, RestartGrace: time.Minute})
		b.joinOn(2, Terms{Weight: 1})
		a.leave(Leave{Lease: "l", Now: true, Returns: true})
		expect(t, b.awaited(), "a1 ", "awaited")
		before := b.snapshot("l")[0].Generation
		f.ok(f.evictClient("a"))
		expect(t, b.awaited(), "", "awaited when it is evicted")
		expect(t, b.snapshot("l")[0].Generation, before+1, "generation, which makes earlier plans void")
	})
}

func TestLeaveForGoodEndsARestartGrace(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.joinOn(2, Terms{Weight: 1, RestartGrace: time.Minute})
		b.joinOn(2, Terms{Weight: 1})
		a.leave(Leave{Lease: "l", Now: true, Returns: true})
		expect(t, b.awaited(), "a1 ", "awaited")
		again := f.client("a")
		again.joinOn(2, Terms{Weight: 1, RestartGrace: time.Minute})
		again.release(nil, "l")
		expect(t, b.awaited(), "", "awaited after it has left for good")
		b.release(nil, "l")
		f.ok(f.drop("l", 0))
	})
}
