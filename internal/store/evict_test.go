package store

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestOnlyWhoExpiredBeforeTheCutoffIsEvicted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := f.client("a"), f.client("b"), f.client("c")
	for _, x := range []*client{a, b, c} {
		x.join("l", 3)
	}
	c.join("c's", 1)
	a.give("l", a.session, b.session, c.session)
	before := a.beat().Leases[0]
	expect(t, len(a.evict().IDs), 0, "evicted while all live")
	f.expire(b, c)
	f.exec("UPDATE clients SET expires_at = clock_timestamp() WHERE id = 'c'")
	run := a.run()
	clock := a.beat().Clock
	got, err := a.Evict(f.ctx, clock-int64(time.Minute/time.Microsecond), time.Hour, run)
	f.ok(err)
	if fmt.Sprint(got.IDs, got.Asked) != "[b] [l]" || got.CheckDueIn < 0 || got.CheckDueIn > 50*time.Millisecond {
		t.Fatalf("%+v", got)
	}
	expect(t, f.state("l", a, b, c), "a>a:1 of a, b>b:1 of b, c>c:1 of c", "state: an eviction frees nothing itself")
	expect(t, a.beat().Leases[0], LeaseBeat{"l", before.Generation + 1, 0, 1}, "heartbeat")
	expect(t, value[int](f, "SELECT count(*) FROM members"), 3, "members")
	f.checkNow()
	got, err = a.Evict(f.ctx, clock+int64(time.Hour/time.Microsecond), time.Hour, run)
	f.ok(err)
	expect(t, len(got.IDs), 0, "evicted by a cutoff ahead of the clock")
	f.expire(c)
	expect(t, fmt.Sprint(a.evict().IDs, value[int](f, "SELECT count(*) FROM members")), "[c] 1", "evicted, members")
	if due := a.beat().CheckDueIn; due < 5*time.Second || due > 6*time.Second {
		t.Errorf("check due in %v", due)
	}
}

func TestWhoHasNotWatchedForATTLEvictsNobodyOfIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, short, long := f.client("a"), f.clientTTL("short", 5*time.Second), f.clientTTL("long", time.Minute)
	f.expire(short, long)
	run := a.run()
	got := a.evictAs(run, 10*time.Second)
	expect(t, strings.Join(got.IDs, " "), "short", "evicted after 10 s")
	if got.CheckDueIn >= 0 || a.beat().CheckDueIn != 0 {
		t.Errorf("the check of who remains: %v, %v", got.CheckDueIn, a.beat().CheckDueIn)
	}
	expect(t, got.Unwatched, time.Minute, "needs a watch of")
	got = a.evictAs(run, time.Minute)
	expect(t, strings.Join(got.IDs, " "), "long", "evicted after a minute")
	expect(t, got.Unwatched, time.Duration(0), "needs a watch of")
}

func TestOnlyTheRunThatWasWatchedIsEvictedOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	run := a.run()
	f.expire(b)
	for _, other := range []Run{
		{run.Timeline + 1, run.Started, run.Mark}, {run.Timeline, run.Started + 1, run.Mark}, {run.Timeline, run.Started, run.Mark + 1},
	} {
		got := a.evictAs(other, time.Hour)
		if len(got.IDs) > 0 || got.CheckDueIn >= 0 {
			t.Errorf("on %+v, which is not %+v: %+v", other, run, got)
		}
	}
	f.exec("DELETE FROM server_mark")
	expect(t, len(a.evictAs(run, time.Hour).IDs), 0, "evicted without a mark")
	f.exec("INSERT INTO server_mark VALUES ($1)", run.Mark)
	f.exec("UPDATE server SET timeline = 77")
	expect(t, len(a.evictAs(run, time.Hour).IDs), 0, "evicted on an unsettled timeline")
	expect(t, len(a.evictAs(Run{77, run.Started, run.Mark}, time.Hour).IDs), 0, "evicted on the timeline that is settled, which is not this server's")
	f.exec("UPDATE server SET timeline = $1", run.Timeline)
	expect(t, len(a.evictAs(run, time.Hour).IDs), 1, "evicted")
}

func TestWhatNobodyOwnsIsAskedForWhereverItWasLeft(t *testing.T) {
	t.Parallel()
	for _, orphan := range []struct{ what, how string }{
		{"a member without a session", "INSERT INTO members VALUES ('l', 99, 1, now())"},
		{"an owner that is no member", "UPDATE partitions SET owner = 99, target = (SELECT session FROM clients) WHERE lease = 'l'"},
		{"a target that is no member", "UPDATE partitions SET target = 99 WHERE lease = 'l'"},
		{"an owner that left the lease only", "UPDATE partitions SET owner = (SELECT session FROM members WHERE lease = 'other') WHERE lease = 'l'"},
	} {
		t.Run(orphan.what, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			a := f.client("a")
			a.join("l", 1)
			a.give("l", a.session)
			a.join("untouched", 1)
			if strings.Contains(orphan.how, "other") {
				b := f.client("b")
				b.join("other", 1)
			}
			f.exec("UPDATE leases SET next_check_at = 'infinity'")
			f.checkNow()
			expect(t, len(a.evict().Asked), 0, "asked while all is well")
			f.exec(orphan.how)
			f.checkNow()
			expect(t, strings.Join(a.evict().Asked, " "), "l", "asked")
			expect(t, value[int](f, "SELECT count(*) FROM members WHERE session = 99"), 0, "memberships left behind")
			plans := a.plan("l")
			expect(t, a.apply(plans, Move{"l", 0, a.session}).Applied, true, "planned")
			f.exec("UPDATE leases SET next_check_at = 'infinity'")
			f.checkNow()
			expect(t, len(a.evict().Asked), 0, "asked once it is mended")
		})
	}
}

func TestAClientThatDiedBeforeItJoinedAnythingIsCleanedUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	f.expire(f.client("b"))
	got := a.evict()
	expect(t, fmt.Sprint(got.IDs, got.Asked), "[b] []", "evicted, asked")
	expect(t, value[int](f, "SELECT count(*) FROM clients"), 1, "sessions")
}

func TestWhoIsJustRenewingIsNotEvicted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	a.join("l", 1)
	b.join("l", 1)
	run := a.run()
	f.expire(b)
	f.ok(b.exec(f.ctx, "BEGIN"))
	b.beat()
	got := a.evictAs(run, time.Hour)
	expect(t, len(got.IDs), 0, "evicted during a heartbeat")
	f.ok(b.exec(f.ctx, "COMMIT"))
	expect(t, b.beat().Alive, true, "alive")
	expect(t, value[int](f, "SELECT count(*) FROM members"), 2, "members")

	// The heartbeat comes between the eviction's snapshot and its locks.
	f.expire(b)
	release := f.lock("SELECT FROM leases FOR UPDATE")
	clock := a.beat().Clock
	evicting := later(func() Evicted { got, _ := a.Evict(f.ctx, clock, time.Hour, run); return got })
	f.blocked(a.conn.PgConn().PID())
	b.beat()
	release()
	expect(t, len(evicting().IDs), 0, "evicted after a heartbeat")
	expect(t, b.beat().Alive, true, "alive")
	expect(t, value[int](f, "SELECT count(*) FROM members"), 2, "members")
}

func TestAClockThatSteppedBackKeepsNobodyAlive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	f.exec("UPDATE clients SET expires_at = expires_at + interval '1 hour' WHERE session = $1", b.session)
	f.exec("UPDATE server SET next_check_at = next_check_at + interval '1 hour'")
	expect(t, a.beat().CheckDueIn, 0, "check due in")
	got := a.evict()
	expect(t, len(got.IDs), 0, "evicted")
	left := value[float64](f, "SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM clients WHERE session = $1", b.session)
	if left < 5 || left > 6 || got.CheckDueIn < 0 || got.CheckDueIn > 6*time.Second {
		t.Fatalf("b has %f s left, the check is due in %v", left, got.CheckDueIn)
	}
	f.exec("UPDATE server SET next_check_at = next_check_at + interval '1 hour'")
	c := f.client("c") // lowers it without an eviction
	if due := c.beat().CheckDueIn; due < 5*time.Second || due > 6*time.Second {
		t.Errorf("check due in %v", due)
	}
}

func TestIdentitiesUnusedForADayAreForgotten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	for _, id := range []string{"ended", "evicted", "fresh"} {
		c := f.client(id)
		if id == "evicted" {
			f.exec("UPDATE identities SET used_at = now() - interval '25 hours' WHERE id = 'evicted'") // it lived for long
			f.expire(c)
			a.evict()
			continue
		}
		c.end(true)
	}
	f.exec("UPDATE identities SET used_at = now() - interval '25 hours' WHERE id IN ('a', 'ended')")
	f.exec("UPDATE identities SET used_at = now() - interval '23 hours' WHERE id = 'fresh'")
	f.checkNow()
	a.evict()
	expect(t, f.text("SELECT string_agg(id, ' ' ORDER BY id) FROM identities"), "a evicted fresh", "identities")
}

func TestAnEvictionWaitsForNoRegistration(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	run := a.run()
	f.expire(b)
	release := f.lock("SELECT FROM identities WHERE id = 'b' FOR UPDATE")
	expect(t, len(a.evictAs(run, time.Hour).IDs), 1, "evicted")
	release()
}

func TestOneEvictsAtATime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, dead := f.client("a"), f.client("b"), f.client("dead")
	for _, x := range []*client{a, b, dead} {
		x.join("l", 1)
	}
	run := a.run()
	f.expire(dead)
	f.ok(a.exec(f.ctx, "BEGIN"))
	expect(t, len(a.evictAs(run, time.Hour).IDs), 1, "evicted by the first")
	got := b.evictAs(run, time.Hour) // which does not wait
	if len(got.IDs) > 0 || got.CheckDueIn >= 0 {
		t.Errorf("%+v", got)
	}
	f.ok(a.exec(f.ctx, "COMMIT"))
	got = b.evictAs(run, time.Hour)
	if len(got.IDs) > 0 || got.CheckDueIn >= 0 {
		t.Errorf("%+v", got)
	}
}

func TestOnAPromotedServerNothingIsGivenUntilItIsSettled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, dead := f.client("a"), f.clientTTL("b", time.Minute), f.client("dead")
	for _, x := range []*client{a, b, dead} {
		x.join("l", 4)
	}
	a.give("l", a.session, a.session, dead.session)
	a.give("l", a.session, b.session, dead.session)
	run := a.run()
	f.exec("UPDATE server SET timeline = 77, era = 4")
	before := f.state("l")
	beat := a.beat()
	expect(t, beat.Settled != beat.Run.Timeline, true, "unsettled in the heartbeat")

	plan := a.plan("l")
	expect(t, a.apply(plan, Move{"l", 3, a.session}, Move{"l", 0, b.session}), Applied{}, "applied")
	released := a.release([]Release{{"l", 1, 1}}, "l")
	expect(t, fmt.Sprint(len(released.Released), len(released.Busy), len(released.Left)), "0 1 0", "released, busy, left")
	f.expire(dead)
	expect(t, len(a.evictAs(run, time.Hour).IDs), 0, "evicted")
	expect(t, f.state("l"), before, "state")

	settle := func(watched time.Duration, run Run) bool {
		settled, _, err := a.Settle(f.ctx, watched, run)
		f.ok(err)
		return settled
	}
	expect(t, settle(59*time.Second, run), false, "settled by who watched for less than the longest TTL")
	expect(t, settle(time.Minute, Run{run.Timeline, run.Started, run.Mark + 1}), false, "settled on another mark")
	expect(t, settle(time.Minute, Run{run.Timeline, run.Started + 1, run.Mark}), false, "settled on another start")
	expect(t, settle(time.Minute, Run{run.Timeline + 1, run.Started, run.Mark}), false, "settled on another timeline")
	tx, err := f.session().Begin(f.ctx)
	f.ok(err)
	_, err = tx.Exec(f.ctx, "SELECT guard('l', 0, 1)") // without a limit on idling
	f.ok(err)
	settled, busy, err := a.Settle(f.ctx, time.Minute, run)
	f.ok(err)
	expect(t, fmt.Sprint(settled, busy), "false true", "settled, busy during a guarded transaction")
	expect(t, f.state("l"), before, "state")
	if err := guardOnce(f, f.session(), 1); Code(err) != CodeNotOwner {
		t.Errorf("a guard that would be in the way of the next attempt: %v", err)
	}
	f.exec("UPDATE server SET settling_to = clock_timestamp() + interval '1 hour'") // the clock stepped back
	f.ok(guardOnce(f, f.session(), 1))
	f.ok(tx.Commit(f.ctx))
	generation := a.plan("l")[0].Generation
	expect(t, settle(time.Minute, run), true, "settled")
	expect(t, settle(time.Minute, run), false, "settled twice")
	f.ok(guardOnce(f, f.session(), 5<<32))
	const epoch = int64(5) << 32
	expect(t, f.state("l", a, b, dead), fmt.Sprintf("a>a:%d of a, a>b:%[1]d of a asked, dead>dead:%[1]d of dead, 0>0:%[1]d of -", epoch), "state")
	expect(t, a.plan("l")[0].Generation, generation+1, "generation")
	expect(t, f.text("SELECT timeline, era FROM server"), fmt.Sprintf("%d|5", run.Timeline), "server")
	expect(t, a.beat().Leases[0].DueIn, 0, "plan due in")
	expect(t, a.give("l", a.session, b.session, dead.session, b.session).Given, 1, "given")
	expect(t, strings.HasSuffix(f.state("l", b), fmt.Sprintf("b>b:%d of b", epoch+1)), true, "the next epoch")
	f.expire(dead)
	expect(t, len(a.evictAs(run, time.Hour).IDs), 1, "evicted once settled")
}

// Several at a time, so that there is no moment at which nobody has a guarded transaction open.
func TestAStreamOfGuardsDoesNotPutOffTheSettlement(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	a.join("l", 1)
	a.give("l", a.session)
	var passed atomic.Int64
	streams := make([]func() error, 8)
	for i := range streams {
		conn := f.session()
		streams[i] = later(func() error {
			for ; ; passed.Add(1) {
				if _, err := conn.Exec(f.ctx, "SELECT guard('l', 0, 1), pg_sleep(0.1)"); err != nil {
					return err
				}
			}
		})
	}
	f.exec("UPDATE server SET timeline = 77")
	f.until("they are at it", func() bool { return passed.Load() > 10 })
	attempts := 0
	f.until("it is settled", func() bool {
		attempts++
		settled, busy, err := a.Settle(f.ctx, time.Minute, a.run())
		f.ok(err)
		if !settled && !busy {
			t.Fatal("it may not be settled")
		}
		return settled
	})
	t.Logf("after %d attempts", attempts)
	for _, stream := range streams {
		if err := stream(); Code(err) != CodeNotOwner {
			t.Errorf("a stream ended with %v", err)
		}
	}
}

func TestPartitionsMadeBeforeASettlementAreAboveItToo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	run := a.run()
	f.exec("UPDATE server SET timeline = 77")
	a.join("l", 1)
	settled, _, err := a.Settle(f.ctx, time.Hour, run)
	f.ok(err)
	expect(t, settled, true, "settled")
	a.join("later", 1)
	a.give("l", a.session)
	a.give("later", a.session)
	era := value[int64](f, "SELECT era << 32 FROM server")
	expect(t, a.owned("l"), fmt.Sprintf("0:%d", era+1), "owned")
	expect(t, a.owned("later"), fmt.Sprintf("0:%d", era), "owned of a lease made later")
}
