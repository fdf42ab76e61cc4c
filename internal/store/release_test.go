package store_test

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestAReleasedPartitionGoesStraightToItsTarget(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.trio(4)
		a.give("l", a.session, a.session, a.session, a.session)
		a.give("l", b.session, a.session, c.session, b.session)
		f.edit(func(t *fakestore.Tables, _ int64) {
			delete(t.Members, fakestore.Member{Lease: "l", Session: c.session})
		}) // the target is gone
		before := a.beat().Leases[0]
		got := a.release([]Release{{"l", 0, 1}, {"l", 1, 1}, {"l", 2, 1}, {"l", 3, 9}})
		want := fmt.Sprintf("{Released:[{Lease:l Partition:0 Owner:%d Epoch:2} {Lease:l Partition:1 Owner:%d Epoch:2} "+
			"{Lease:l Partition:2 Owner:0 Epoch:2}] Busy:[] Left:[] ToPlan:[l]}", b.session, a.session)
		expect(t, fmt.Sprintf("%+v", got), want, "answer")
		const after = "b>b:2 of b, a>a:2 of a, 0>0:2 of a, a>b:1 of a asked"
		expect(t, f.state("l", a, b, c), after, "state")
		expect(t, a.beat().Leases[0], LeaseBeat{"l", before.Generation + 1, 0, 1}, "heartbeat")
		again := a.release([]Release{{"l", 0, 1}, {"l", 1, 1}, {"l", 2, 1}})
		expect(t, fmt.Sprintf("%+v", again), "{Released:[] Busy:[] Left:[] ToPlan:[]}", "answer to a repetition")
		expect(t, f.state("l", a, b, c), after, "state after a repetition")
		expect(t, a.beat().Leases[0].Generation, before.Generation+1, "generation after a repetition")
		expect(t, len(b.release([]Release{{"l", 1, 2}, {"l", 3, 1}}).Released), 0, "released by another")
	})
}

func TestAGuardedPartitionIsNotReleasedAndOthersAre(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(2)
		a.give("l", a.session, a.session)
		a.give("l", b.session, b.session)
		end := f.guarding("l", 0, 1)
		own := fakestore.Member{Lease: "l", Session: a.session}
		got := a.release([]Release{{"l", 0, 1}, {"l", 1, 1}}, "l")
		expect(t, fmt.Sprintf("%+v", got.Busy), "[{Lease:l Partition:0 Epoch:0}]", "busy")
		expect(t, len(got.Released), 1, "released")
		expect(t, len(got.Left), 0, "left")
		expect(t, f.tables().Members[own].Weight, 0, "weight of who leaves")
		end()
		got = a.release([]Release{{"l", 0, 1}}, "l")
		expect(t, fmt.Sprint(got.Left), "[l]", "left")
		expect(t, f.state("l", a, b), "b>b:2 of b prefers a, b>b:2 of b prefers a", "state")
		_, member := f.tables().Members[own]
		expect(t, member, false, "membership of who left")
		expect(t, fmt.Sprint(a.release(nil, "l")), "{[] [] [] []}", "leaving again")
	})
}

func TestAFenceLetsOpenGuardsEndAndNoFurtherOnePass(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(3)
		a.give("l", a.session, a.session, b.session)
		a.give("l", b.session, b.session, b.session)
		end := f.guarding("l", 0, 1)
		for range 2 { // a repetition, and what is another epoch's or another owner's, change nothing
			f.ok(a.Fence(f.ctx, a.session, []Release{{"l", 0, 1}, {"l", 1, 9}, {"l", 2, 1}}))
			expect(t, f.state("l", a, b), "a>b:2 of a asked, a>b:1 of a asked, b>b:1 of b", "state")
		}
		expect(t, f.guarding("l", 0, 1) == nil, true, "guard refused under the epoch before")
		expect(t, len(a.release([]Release{{"l", 0, 2}}).Busy), 1, "busy while the first is open")
		end()
		expect(t, len(a.release([]Release{{"l", 0, 1}}).Released), 0, "released under the epoch before")
		want := fmt.Sprintf("[{Lease:l Partition:0 Owner:%d Epoch:3}]", b.session)
		expect(t, fmt.Sprintf("%+v", a.release([]Release{{"l", 0, 2}}).Released), want, "released")
	})
}

func TestThePreferredOwnerIsWhoLostItByGoingAway(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.trio(1)
		owner := map[string]*client{"a": a, "b": b, "c": c}
		move := func(from, to, leaving string) {
			t.Helper()
			a.give("l", owner[to].session)
			epoch := f.tables().Partitions["l"][0].Epoch
			var leave []string
			if leaving != "" {
				leave = []string{leaving}
			}
			expect(t, len(owner[from].release([]Release{{"l", 0, epoch}}, leave...).Released), 1, "released")
		}
		preferred := func(want, what string) {
			t.Helper()
			row := f.tables().Partitions["l"][0]
			expect(t, cmp.Or(row.PreferredID, "-")+" "+cmp.Or(row.OwnerID, "-"), want, what)
		}
		a.give("l", a.session)
		preferred("- a", "at first")
		move("a", "b", "")
		preferred("- b", "moved between living members")
		move("b", "c", "l")
		preferred("b c", "b left")
		move("c", "a", "")
		preferred("b a", "moved on between living members")
		b.join("l", 1)
		move("a", "b", "")
		preferred("- b", "back at the preferred owner")

		b.joinWeight("l", 1, 0)
		move("b", "c", "")
		preferred("b c", "b drained")
		b.join("l", 1)
		move("c", "b", "")
		preferred("- b", "back at the preferred owner")

		f.kill("b")
		a.give("l", c.session)
		preferred("b c", "b expired")
		b = f.client("b")
		owner["b"] = b
		b.join("l", 1)
		move("c", "b", "")
		preferred("- b", "b is back")

		f.kill("b") // and restarts at once: it gets its own back
		b = f.client("b")
		owner["b"] = b
		b.join("l", 1)
		a.give("l", b.session)
		preferred("- b", "the next session of b")

		// The target goes away before b has released; b works on.
		a.give("l", c.session)
		f.kill("c")
		b.release([]Release{{"l", 0, f.tables().Partitions["l"][0].Epoch}})
		a.give("l", a.session)
		preferred("- a", "moved between live members with no owner in between")
	})
}

func TestReleaseGoesToTheTargetOnceItHasTheLock(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ change, want string }{
		"a plan was first":    {"UPDATE partitions SET target = $2 WHERE target = $1", "c>c:2 of c, to plan []"},
		"the target has left": {"DELETE FROM members WHERE session = $1 AND session <> $2", "0>0:2 of a, to plan [l]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			a, b, c := f.trio(1)
			a.give("l", a.session)
			a.give("l", b.session)
			release := f.lock("SELECT FROM leases FOR UPDATE")
			releasing := later(func() Released {
				got, _ := a.Release(f.ctx, a.session, []Release{{"l", 0, 1}}, nil, 0)
				return got
			})
			f.blocked(a.pg().Raw())
			f.exec(test.change, b.session, c.session)
			release()
			toPlan := releasing().ToPlan
			expect(t, fmt.Sprint(f.state("l", a, b, c), ", to plan ", toPlan), test.want, "state")
		})
	}
}

// As every statement does that locks more than one row.
func TestAReleaseChangesLeasesInTheOrderOfTheirNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	for _, lease := range []string{"y", "x"} { // so they lie in the table
		a.join(lease, 1)
		b.join(lease, 1)
		a.give(lease, a.session)
		a.give(lease, b.session)
	}
	f.exec("DELETE FROM members WHERE session = $1", b.session) // the target is gone, for which a plan is due
	session := f.session()
	tx := testkit.Must(session.Begin(f.ctx))(f)
	testkit.Must(tx.Exec(f.ctx, "SELECT FROM leases WHERE name = 'x' FOR NO KEY UPDATE"))(f)
	releasing := later(func() error {
		_, err := a.Release(f.ctx, a.session, []Release{{"x", 0, 1}, {"y", 0, 1}}, nil, 0)
		return err
	})
	f.blocked(a.pg().Raw())
	testkit.Must(tx.Exec(f.ctx, "SELECT FROM leases WHERE name = 'y' FOR NO KEY UPDATE NOWAIT"))(f)
	f.ok(tx.Commit(f.ctx))
	f.ok(releasing())
}

// While one is not committed, which takes a flush.
func TestReleasesOfOneLeaseWaitForNoOtherRelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := f.trio(3)
	c.give("l", a.session, b.session, b.session)
	c.give("l", c.session, c.session, c.session)
	commit := f.lock(`
		SELECT release($1, ARRAY['l'], ARRAY[0], ARRAY[1]::bigint[], ARRAY[0]::bigint[], '{}', '{}', '{}', '{}', 0, 5000, '')`,
		a.session)
	got := b.leave(Leave{Lease: "l"}, Release{"l", 1, 1})
	expect(t, len(got.Released), 1, "released meanwhile by another, to leave it later")
	f.ok(b.Announce(f.ctx, []string{"l"}, []int64{c.session}))
	planning := later(func() Applied {
		applied, _ := c.Apply(f.ctx, c.snapshot("l"), []Move{{"l", 2, a.session}}, onlyLeftOver)
		return applied
	})
	f.blocked(c.pg().Raw()) // what decides by owners waits
	commit()
	expect(t, planning().Applied, true, "the plan applied afterwards")
	expect(t, f.state("l", a, b, c), "c>c:2 of c, c>c:2 of c prefers b, b>a:1 of b asked", "state")
}

func TestLeaveHandsOverToPlannedSuccessors(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.trio(3)
		a.give("l", a.session, a.session, b.session)
		generation, before := f.tables().Leases["l"].Generation, b.beat().Leases[0].Generation
		plan := map[int]int64{0: b.session, 1: c.session}
		got := a.leave(Leave{"l", true, false, generation, plan}, Release{"l", 0, 1}, Release{"l", 1, 1})
		want := fmt.Sprintf("{Released:["+
			"{Lease:l Partition:0 Owner:%d Epoch:2} {Lease:l Partition:1 Owner:%d Epoch:2}] "+
			"Busy:[] Left:[l] ToPlan:[]}", b.session, c.session)
		expect(t, fmt.Sprintf("%+v", got), want, "answer")
		expect(t, f.state("l", b, c), "b>b:2 of b prefers a, c>c:2 of c prefers a, b>b:1 of b", "state")
		beat := b.beat().Leases[0]
		expect(t, beat, LeaseBeat{"l", before + 1, -time.Microsecond, 1}, "heartbeat: no other plan is due")

		plan = map[int]int64{0: c.session, 2: c.session} // of before a left
		got = b.leave(Leave{"l", true, false, generation, plan}, Release{"l", 0, 2}, Release{"l", 2, 1})
		want = "{Released:[{Lease:l Partition:0 Owner:0 Epoch:3} {Lease:l Partition:2 Owner:0 Epoch:2}] " +
			"Busy:[] Left:[l] ToPlan:[l]}"
		expect(t, fmt.Sprintf("%+v", got), want, "answer to one whose plan is of before")
	})
}

func TestLeaveEndsMembershipWithLastRelease(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(2)
		a.give("l", a.session, a.session)
		leave := func(want string, now bool, releases ...Release) {
			t.Helper()
			lease := f.tables().Leases["l"]
			plan := map[int]int64{0: b.session, 1: b.session}
			got := a.leave(Leave{"l", now, false, lease.Generation, plan}, releases...)
			weight := f.tables().Members[fakestore.Member{Lease: "l", Session: a.session}].Weight
			answer := fmt.Sprintf("%d released, left %v, to plan %v, weight %d, generation + %d, state %s",
				len(got.Released), got.Left, got.ToPlan, weight,
				f.tables().Leases["l"].Generation-lease.Generation, f.state("l", a, b))
			expect(t, answer, want, "answer")
			expect(t, b.beat().Leases[0].DueIn, -time.Microsecond, "a plan is due in")
		}
		leave("0 released, left [], to plan [], weight 0, generation + 1, state a>a:1 of a, a>a:1 of a", true)
		leave("1 released, left [], to plan [], weight 0, generation + 0, state b>b:2 of b prefers a, a>a:1 of a",
			false, Release{"l", 0, 1})
		leave("1 released, left [l], to plan [], weight 0, generation + 1, "+
			"state b>b:2 of b prefers a, b>b:2 of b prefers a",
			true, Release{"l", 1, 1})
	})
}

func TestWhereNoMemberMayOwnAnythingNoPlanIsDue(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.join("l", 2)
		b.joinWeight("l", 2, 0)
		a.give("l", a.session, a.session)
		part := a.release([]Release{{"l", 0, 1}}, "l")
		rest := a.release([]Release{{"l", 1, 1}}, "l")
		const released = "{Released:[{Lease:l Partition:%d Owner:0 Epoch:2}] Busy:[] Left:%s ToPlan:[]}"
		expect(t, fmt.Sprintf("%+v", part), fmt.Sprintf(released, 0, "[]"), "answer to a part")
		expect(t, fmt.Sprintf("%+v", rest), fmt.Sprintf(released, 1, "[l]"), "answer to the rest")
		expect(t, b.beat().Leases[0].DueIn, -time.Microsecond, "a plan is due in")
		b.join("l", 2)
		expect(t, b.beat().Leases[0].DueIn >= 0, true, "a plan is due, with a weight")
	})
}

// A plan may have read that it is gone, and given its partitions to others.
func TestASessionThatIsGoneReleasesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(1)
		b.give("l", a.session)
		b.give("l", b.session)
		f.kill("a")
		before := f.state("l", b)
		expect(t, len(a.release([]Release{{"l", 0, 1}}).Released), 0, "released")
		expect(t, f.state("l", b), before, "state")
	})
}

func TestAnnounceReachesHeartbeatsAndListeners(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(1)
		testkit.Must(b.Listen(f.ctx))(f)
		before := b.beat().Leases[0]
		f.ok(a.Announce(f.ctx, []string{"l"}, []int64{b.session}))
		f.ok(b.Wait(f.ctx))
		expect(t, b.beat().Leases[0], LeaseBeat{"l", before.Generation + 1, before.DueIn, 1}, "heartbeat")
	})
}
