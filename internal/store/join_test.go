package store_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestTheFirstJoinMakesTheLease(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		expect(t, a.join("l", 5), Join{Alive: true, Joined: true, Claimed: true, Generation: 1}, "first join")
		second := b.join("l", 5)
		isSoon := second.DueIn > 0 && second.DueIn <= 251*time.Millisecond
		expect(t, isSoon, true, "a plan is due soon after the second join")
		second.DueIn = 0
		expect(t, second, Join{Alive: true, Joined: true, Partitions: 5, Generation: 1}, "second join")
		expect(t, f.state("l"), strings.Join(slices.Repeat([]string{"0>0:0 of -"}, 5), ", "), "partitions")
		c := f.client("c")
		expect(t, c.join("l", 6), Join{Alive: true, Partitions: 5}, "join with another number")
		expect(t, f.counts(), "1 leases, 2 members, 5 partitions", "rows")
	})
}

func TestExpiredSessionCannotJoin(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		f.kill()
		got := a.join("l", 5)
		if got.Alive || got.Joined {
			t.Fatalf("%+v", got)
		}
		expect(t, f.counts(), "0 leases, 0 members, 0 partitions", "rows")
	})
}

func TestASessionThatIsEvictedDuringAJoinDoesNotJoin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	b.join("l", 2)
	release := f.lock("SELECT FROM leases FOR UPDATE")
	joining := later(func() Join { got, _ := a.Join(f.ctx, a.session, "l", 2, Terms{Weight: 1}, 1); return got })
	f.blocked(a.pg().Raw())
	f.exec("DELETE FROM clients WHERE session = $1", a.session)
	release()
	if got := joining(); got.Alive || got.Joined {
		t.Errorf("%+v", got)
	}
	expect(t, value[int](f, "SELECT count(*) FROM members WHERE session = $1", a.session), 0, "members")
}

func TestARepeatedJoinChangesNothingButAsksAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		a.join("l", 2)
		a.give("l", a.session, a.session)
		a.join("l", 2)
		a.joinWeight("l", 2, 7)
		expect(t, f.tables().Members[fakestore.Member{Lease: "l", Session: a.session}].Weight, 7, "weight")
		expect(t, a.owned("l"), "0:1 1:1", "owned")
		beat := a.beat().Leases[0]
		expect(t, beat.DueIn >= 0, true, "a plan is due")
		beat.DueIn = 0
		expect(t, beat, LeaseBeat{"l", 2, 0, 7}, "heartbeat, which leaves out all joins but the first")
		expect(t, a.snapshot("l")[0].Members[0].Weight, 7, "weight in a plan")
	})
}

func TestAJoinClaimsAPlanOrAsksForOneSoonAfterTheLast(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		claims := func(what string) {
			t.Helper()
			join, row := a.join("l", 1), f.tables().Leases["l"]
			expect(t, fmt.Sprint(join.Claimed, join.DueIn, row.NextCheckAt-row.PlannedAt), "true 0s 100010", what)
			expect(t, len(a.claims("l")), 0, "claimed by another, "+what)
		}
		claims("the first join")
		expect(t, a.join("l", 1).Claimed, false, "claimed once more")
		a.give("l", a.session)
		expect(t, a.join("l", 1).Claimed, false, "claimed soon after a plan")
		row := f.tables().Leases["l"]
		expect(t, row.NextCheckAt-row.PlannedAt, 250_010, "due after a plan")
		planned := func(ago time.Duration) {
			f.lease("l", func(l *fakestore.Lease, clock int64) {
				l.PlannedAt, l.NextCheckAt = clock-ago.Microseconds(), fakestore.Ever
			})
		}
		planned(2 * time.Second)
		claims("long after a plan")
		planned(-time.Hour)
		claims("where the clock stepped back")
	})
}

// A plan that is made while others join is overtaken by the next of them.
func TestAPlanWaitsUntilJoinsCalmDownOrForASecond(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		const ms = int64(1000)
		a := f.client("a")
		a.join("l", 100)
		for _, test := range []struct {
			what         string
			planned, due int64 // ago, in
			want         string
		}{
			{"a plan is under way", 50 * ms, 50 * ms, "false 201ms"},
			{"joins go on", 400 * ms, 20 * ms, "false 100ms"},
			{"joins have gone on for nearly a second", 980 * ms, 50 * ms, "false 21ms"},
			{"a death made a plan due", 100 * ms, 0, "false 0s"},
			{"a due plan was not made", 400 * ms, -ms, "true 0s"},
			{"the clock stepped back after a join", -ms, 100 * ms, "true 0s"},
			{"the clock stepped far back", 2000 * ms, 3600_000 * ms, "true 0s"},
		} {
			f.lease("l", func(l *fakestore.Lease, clock int64) {
				l.PlannedAt, l.NextCheckAt = clock-test.planned, clock+test.due
			})
			join := a.join("l", 100)
			expect(t, fmt.Sprint(join.Claimed, " ", join.DueIn), test.want, "claimed and due, where "+test.what)
		}
	})
}

func TestRacingJoinsMakeALeaseOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var wg sync.WaitGroup
	joins, errs := make([]Join, 10), make([]error, 10)
	for i := range joins {
		c := f.client(fmt.Sprint("c", i))
		wg.Go(func() { joins[i], errs[i] = c.Join(f.ctx, c.session, "l", 16, Terms{Weight: 1}, 1) })
	}
	wg.Wait()
	f.ok(errors.Join(errs...))
	for _, j := range joins {
		if !j.Joined {
			t.Errorf("%+v", j)
		}
	}
	expect(t, f.text(`
		SELECT generation, created_generation, (SELECT count(*) FROM members), (SELECT count(*) FROM partitions) FROM leases`,
	), "10|1|10|16", "lease")
}

func TestADroppedLeaseCanBeMadeAgainAndItsEpochsGoOn(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		a.join("l", 4)
		a.give("l", a.session, a.session, a.session, a.session)
		for epoch := range int64(5) {
			a.release([]Release{{"l", 3, epoch + 1}})
		}
		err := f.drop("l")
		if !errors.Is(err, fakestore.ErrInUse) || !strings.Contains(err.Error(), "live members: a") {
			t.Fatalf("with a living member: %v", err)
		}
		generation := a.snapshot("l")[0].Generation
		a.release([]Release{{"l", 0, 1}, {"l", 1, 1}, {"l", 2, 1}, {"l", 3, 6}}, "l")
		highest := int64(0)
		for _, row := range f.tables().Partitions["l"] {
			highest = max(highest, row.Epoch)
		}
		f.ok(f.drop("l"))
		expect(t, f.counts(), "1 leases, 0 members, 0 partitions", "rows of the dropped")
		expect(t, len(a.snapshot("l")), 0, "plans of the dropped")
		if err := f.drop("l"); !errors.Is(err, fakestore.ErrNoLease) {
			t.Fatalf("dropped twice: %v", err)
		}
		f.lease("l", func(l *fakestore.Lease, clock int64) { l.PlannedAt = clock })
		if again := a.join("l", 2); again.Joined || again.DroppedWith != 4 {
			t.Errorf("join with another number: %+v", again)
		}
		f.ok(f.drop("l", 2))
		if again := a.join("l", 4); again.Joined || again.DroppedWith != 2 {
			t.Errorf("join with the number of before, after a drop that names another: %+v", again)
		}
		if again := a.join("l", 2); !again.Joined {
			t.Errorf("join with the number that the drop names: %+v", again)
		}
		row := f.tables().Leases["l"]
		due := row.NextCheckAt - row.PlannedAt
		expect(t, due, 250_000, "due after the last plan, of a lease that had no partitions then")
		a.give("l", a.session, a.session)
		expect(t, a.owned("l"), fmt.Sprintf("0:%d 1:%[1]d", highest+1), "owned")
		if got := a.snapshot("l")[0].Generation; got <= generation {
			t.Errorf("generation %d after %d", got, generation)
		}
		// Again, with partitions that never had an owner.
		a.release([]Release{{"l", 0, highest + 1}, {"l", 1, highest + 1}}, "l")
		f.ok(f.drop("l", 3))
		a.join("l", 3)
		a.release(nil, "l")
		f.ok(f.drop("l"))
		f.lease("l", func(l *fakestore.Lease, clock int64) { l.NextUntil = clock }) // a day later
		a.join("l", 1)
		a.give("l", a.session)
		expect(t, a.owned("l"), fmt.Sprintf("0:%d", highest+3), "owned, above the epochs of every life")
	})
}

func TestADropDuringAJoinWaitsForItAndIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	a.join("l", 1)
	a.release(nil, "l")
	f.ok(a.pg().Exec(f.ctx, "BEGIN"))
	a.join("l", 1)
	dropper := f.raw()
	dropping := later(func() error { return failure(dropper.Exec(f.ctx, "SELECT pgleases.drop_lease('l', 'why')")) })
	f.blocked(dropper)
	f.ok(a.pg().Exec(f.ctx, "COMMIT"))
	if err := dropping(); Code(err) != "55006" {
		t.Fatal(err)
	}
}

func TestOneClaimsAPlanAtATime(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.join("one", 1)
		a.join("two", 1)
		f.lease("one", func(l *fakestore.Lease, clock int64) { l.NextCheckAt = clock })
		f.lease("two", func(l *fakestore.Lease, _ int64) { l.NextCheckAt = fakestore.Ever })
		claim := func(c *client) string { return strings.Join(c.claims("two", "one"), " ") }
		expect(t, claim(a), "one", "claimed by the first")
		expect(t, claim(b), "", "claimed by the second")
		for _, name := range []string{"one", "two"} { // the clock stepped back
			f.lease(name, func(l *fakestore.Lease, clock int64) { l.NextCheckAt = clock + time.Hour.Microseconds() })
		}
		expect(t, claim(b), "one two", "claimed after a step of the clock")
	})
}

func TestAPlanReadsAllLeasesThatShareMembers(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.client("a"), f.client("b"), f.client("c")
		a.join("z", 2)
		a.join("m", 1)
		b.join("m", 1)
		b.join("d", 1)
		c.join("q", 1)
		names := func(read []LeaseSnapshot) (names []string) {
			for _, p := range read {
				names = append(names, p.Name)
			}
			return names
		}
		expect(t, strings.Join(names(a.snapshot("z")), " "), "z", "leases of z's plan, which has one member")
		expect(t, strings.Join(names(a.snapshot("m")), " "), "d m z", "leases of m's plan")
		a.give("z", a.session, 0)
		got := fmt.Sprintf("%+v", a.snapshot("z")[0])
		now := f.tables()
		member := fmt.Sprintf("{Session:%d ID:a Incarnation:%d Revoked:false Weight:1 MaxPartitions:0 Joined:%d "+
			"Drained:false Cordoned:false}", a.session, now.Clients[a.session].Incarnation,
			now.Members[fakestore.Member{Lease: "z", Session: a.session}].JoinedGeneration)
		want := fmt.Sprintf("{Name:z Generation:2 Members:[%s] Paused:false Frozen:false Settling:false Pins:map[] "+
			"Awaited:[] Owners:[%d 0] Targets:[%[2]d 0] OwnerIDs:[ ] PreferredIDs:[ ] Unowned:[] WasUnowned:0 "+
			"Overtaken:false}", member, a.session)
		expect(t, got, want, "plan")
	})
}

// What is claimed or asked for of such a lease is due later than a clock's small step.
func TestThePlanOfALargeLeaseIsClaimedByOneClientToo(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		expect(t, a.join("l", 40_000).Claimed, true, "claimed")
		expect(t, len(b.claims("l")), 0, "claimed by another at the same time")
		expect(t, a.beat().Leases[0].DueIn, 500*time.Millisecond, "due, as a heartbeat returns, in")
		expect(t, b.join("l", 40_000).DueIn, 650*time.Millisecond, "due, as a join returns, in")
		f.lease("l", func(l *fakestore.Lease, _ int64) { l.PlannedAt -= 300 * time.Millisecond.Microseconds() })
		expect(t, b.join("l", 40_000).DueIn, 350*time.Millisecond, "due, as a join during the plan returns, in")
		f.lease("l", func(l *fakestore.Lease, clock int64) { // the clock stepped back
			l.NextCheckAt = clock + 4*time.Second.Microseconds()
		})
		expect(t, a.beat().Leases[0].DueIn, 0, "due where the clock stepped back")
	})
}

// A join changes no owner and no target, but makes plans void. If partitions have no owner because
// of ceilings, it may change which member logs them.
func TestJoinIsNoReasonToReadForOthers(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		a.join("l", 1)
		generations := func() string {
			span := Span{Lease: "l"}
			read := testkit.Must(a.Read(f.ctx, a.session, []string{"l"}))(f)
			owners := testkit.Must(a.Owners(f.ctx, []Span{span}))(f)
			return fmt.Sprint(a.beat().Leases[0].Generation, read[0].Generation, owners[span].Generation)
		}
		before := generations()
		f.client("b").join("l", 1)
		expect(t, generations(), before, "generations of a heartbeat, a read and a look-up of owners")
		expect(t, a.snapshot("l")[0].Generation, 2, "generation of plans")
		f.edit(func(t *fakestore.Tables, _ int64) {
			l := t.Leases["l"]
			l.Unowned = 1
			t.Leases["l"] = l
		})
		f.client("c").join("l", 1)
		expect(t, generations(), "2 2 2", "generations while a partition is over the ceilings")
	})
}
