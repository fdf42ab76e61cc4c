package store_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestOnlyWhoExpiredBeforeTheCutoffIsEvicted(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.trio(3)
		c.join("c's", 1)
		a.give("l", a.session, b.session, c.session)
		before := a.beat().Leases[0]
		expect(t, len(a.evict().IDs), 0, "evicted while all live")
		f.expire(b, c)
		f.expireIn(c, 0)
		run := a.run()
		clock := a.beat().Clock
		got := testkit.Must(a.Evict(f.ctx, clock-int64(time.Minute/time.Microsecond), time.Hour, usualTTL, run))(f)
		expect(t, fmt.Sprint(got.Hosts, got.PIDs), "[host] [4711]", "hosts, pids")
		if fmt.Sprint(got.IDs, got.ToPlan) != "[b] [l]" || !got.Made || got.CheckDueIn > 50*time.Millisecond {
			t.Fatalf("%+v", got)
		}
		expect(t, f.state("l", a, b, c), "a>a:1 of a, b>b:1 of b, c>c:1 of c", "state: an eviction frees none itself")
		const calm = 50*time.Millisecond + 15*time.Microsecond // it was planned just now
		expect(t, got.PlanDueIn, calm, "a plan is due in")
		expect(t, a.beat().Leases[0], LeaseBeat{"l", before.Generation + 1, calm, 1}, "heartbeat")
		expect(t, len(f.tables().Members), 3, "members")
		f.checkNow()
		got = testkit.Must(a.Evict(f.ctx, clock+int64(time.Hour/time.Microsecond), time.Hour, usualTTL, run))(f)
		expect(t, len(got.IDs), 0, "evicted by a cutoff ahead of the clock")
		f.expire(c)
		expect(t, fmt.Sprint(a.evict().IDs, len(f.tables().Members)), "[c] 1", "evicted, members")
		if due := a.beat().CheckDueIn; due < 5*time.Second || due > 6*time.Second {
			t.Errorf("check due in %v", due)
		}
	})
}

func TestEvictRequiresAWatchOfTheTTL(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, short := f.client("a"), f.clientTTL("short", 5*time.Second)
		long, longer := f.clientTTL("long", time.Minute), f.clientTTL("longer", 2*time.Minute)
		f.expire(short, long, longer)
		run := a.run()
		dueIn := func(watched time.Duration) time.Duration {
			beat := testkit.Must(a.Heartbeat(f.ctx, a.session, watched, Renewal{}))(f)
			return beat.CheckDueIn
		}
		between := func(what string, due, least, most time.Duration) {
			t.Helper()
			if due < least || due > most {
				t.Errorf("%s: the check is due in %v, not %v to %v", what, due, least, most)
			}
		}
		got := a.evictAs(run, 10*time.Second)
		expect(t, fmt.Sprint(got.IDs, got.ToPlan), "[short] []", "evicted after 10 s, to plan")
		between("who evicted", got.CheckDueIn, 5*time.Second, 6*time.Second) // a's expiry
		between("a short watch", dueIn(0), 5*time.Second, 6*time.Second)
		expect(t, dueIn(59*time.Second), time.Second, "due after 59 s in")
		expect(t, dueIn(time.Minute), 0, "due after a minute in")
		got = a.evictAs(run, 59*time.Second)
		expect(t, fmt.Sprint(got.IDs, got.Made), "[] false", "evicted, done, where no check is due for this client")
		got = a.evictAs(run, 115*time.Second)
		expect(t, strings.Join(got.IDs, " "), "long", "evicted after a minute")
		expect(t, got.CheckDueIn.Round(time.Second), 5*time.Second, "due after a watch of two minutes in")
		expect(t, dueIn(2*time.Minute), 0, "due after two minutes in")
		got = a.evictAs(run, 2*time.Minute)
		expect(t, strings.Join(got.IDs, " "), "longer", "evicted after two minutes")
		between("no session stays", dueIn(time.Hour), 5*time.Second, 6*time.Second)
	})
}

func TestASessionThatStaysPutsOffNoOtherCheck(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, long := f.client("a"), f.client("b"), f.clientTTL("long", 10*time.Minute)
		for _, x := range []*client{a, b, long} {
			x.join("l", 3)
		}
		f.expire(long)
		f.expireIn(b, 2*time.Second)
		run := a.run()
		got := a.evictAs(run, time.Second)
		if len(got.IDs) != 0 || got.CheckDueIn < time.Second || got.CheckDueIn > 2*time.Second {
			t.Errorf("%+v", got)
		}
		f.expire(b)
		got = a.evictAs(run, 6*time.Second)
		expect(t, fmt.Sprint(got.IDs, got.ToPlan), "[b] [l]", "evicted, to plan")
		expect(t, len(f.tables().Members), 2, "members")
		f.expireIn(long, 10*time.Minute) // it was only late
		expect(t, len(a.evictAs(run, time.Hour).IDs), 0, "evicted")
		beat := testkit.Must(a.Heartbeat(f.ctx, a.session, time.Hour, Renewal{}))(f)
		expect(t, beat.CheckDueIn > time.Second, true, "no session stays any more")
	})
}

// otherRuns are runs on another timeline, after another start and with another boot marker.
func otherRuns(run Incarnation) []Incarnation {
	return []Incarnation{
		{run.Timeline + 1, run.Started, run.Marker},
		{run.Timeline, run.Started + 1, run.Marker},
		{run.Timeline, run.Started, run.Marker + 1},
	}
}

func TestOnlyTheRunThatWasWatchedIsEvictedOn(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		run := a.run()
		f.expire(b)
		for _, other := range otherRuns(run) {
			got := a.evictAs(other, time.Hour)
			if len(got.IDs) > 0 || got.Made {
				t.Errorf("on %+v, which is not %+v: %+v", other, run, got)
			}
		}
		f.setMarker(0)
		expect(t, len(a.evictAs(run, time.Hour).IDs), 0, "evicted without a boot marker")
		f.setMarker(run.Marker)
		f.server(func(s *fakestore.Server, _ int64) { s.AcceptedTimeline = 77 })
		expect(t, len(a.evictAs(run, time.Hour).IDs), 0, "evicted on an unaccepted timeline")
		accepted := Incarnation{77, run.Started, run.Marker} // is not this server's
		expect(t, len(a.evictAs(accepted, time.Hour).IDs), 0, "evicted on the timeline that is accepted")
		f.server(func(s *fakestore.Server, _ int64) { s.AcceptedTimeline = run.Timeline })
		expect(t, len(a.evictAs(run, time.Hour).IDs), 1, "evicted")
	})
}

func TestPartitionsWithoutOwnerGetAPlan(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.join("l", 1)
		a.give("l", a.session)
		a.join("untouched", 1)
		b.join("other", 1)
		atRest := func(what string) {
			t.Helper()
			for _, name := range []string{"l", "other", "untouched"} {
				f.lease(name, func(l *fakestore.Lease, _ int64) { l.PlannedAt, l.NextCheckAt = 0, fakestore.Ever })
			}
			f.checkNow()
			expect(t, len(a.evict().ToPlan), 0, what)
		}
		atRest("to plan while all is well")
		for _, orphan := range []struct {
			what      string
			isPlanned bool // a plan is due or in progress anyway
			how       func(t *fakestore.Tables, row *fakestore.Partition)
		}{
			{"a member without a session", false, func(t *fakestore.Tables, _ *fakestore.Partition) {
				t.Members[fakestore.Member{Lease: "l", Session: 99}] = fakestore.Membership{Weight: 1}
			}},
			{"an owner that is no member", true, func(_ *fakestore.Tables, row *fakestore.Partition) {
				row.Owner, row.Target = 99, a.session
			}},
			{"a target that is no member", true, func(_ *fakestore.Tables, row *fakestore.Partition) {
				row.Target = 99
			}},
			{"an owner that left the lease only", true, func(_ *fakestore.Tables, row *fakestore.Partition) {
				row.Owner = b.session
			}},
		} {
			f.edit(func(t *fakestore.Tables, _ int64) { orphan.how(t, &t.Partitions["l"][0]) })
			if orphan.isPlanned {
				f.lease("l", func(l *fakestore.Lease, clock int64) { l.NextCheckAt = clock })
				f.checkNow()
				expect(t, len(a.evict().ToPlan), 0, "to plan while a plan is due, for "+orphan.what)
				f.lease("l", func(l *fakestore.Lease, _ int64) { l.NextCheckAt = fakestore.Ever })
			}
			f.checkNow()
			got := a.evict()
			expect(t, fmt.Sprint(got.ToPlan, got.PlanDueIn), "[l] 0s", "to plan for "+orphan.what)
			expect(t, f.counts(), "3 leases, 3 members, 3 partitions", "rows, with a plan due for "+orphan.what)
			expect(t, a.apply(a.snapshot("l"), Move{"l", 0, a.session}).Applied, true, "planned")
			atRest("to plan once it is mended: " + orphan.what)
		}
	})
}

func TestWhoIsJustRenewingIsNotEvicted(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := stoppedFixture(t)
	a, b := f.pair(1)
	run := a.run()
	f.expire(b)
	f.ok(b.pg().Exec(f.ctx, "BEGIN"))
	b.beat()
	got := a.evictAs(run, time.Hour)
	expect(t, len(got.IDs), 0, "evicted during a heartbeat")
	f.ok(b.pg().Exec(f.ctx, "COMMIT"))
	expect(t, b.beat().Alive, true, "alive")
	expect(t, value[int](f, "SELECT count(*) FROM members"), 2, "members")

	// The heartbeat comes between the eviction's snapshot and its locks.
	f.expire(b)
	release := f.halt("DELETE ON clients")
	clock := a.beat().Clock
	evicting := later(func() Evicted {
		got, err := a.Evict(f.ctx, clock, time.Hour, usualTTL, run)
		if err != nil {
			t.Error(err)
		}
		return got
	})
	f.blocked(a.pg().Raw())
	b.beat()
	release()
	expect(t, len(evicting().IDs), 0, "evicted after a heartbeat")
	expect(t, b.beat().Alive, true, "alive")
	expect(t, value[int](f, "SELECT count(*) FROM members"), 2, "members")
}

func TestClockThatSteppedBackKeepsNoSessionAlive(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		steppedBack := func() {
			f.server(func(s *fakestore.Server, _ int64) { s.NextCheckAt += time.Hour.Microseconds() })
		}
		f.expireIn(b, time.Hour+6*time.Second)
		steppedBack()
		expect(t, a.beat().CheckDueIn, 0, "check due in")
		got := a.evict()
		expect(t, len(got.IDs), 0, "evicted")
		left := time.Duration(f.tables().Clients[b.session].ExpiresAt-a.beat().Clock) * time.Microsecond
		if left < 5*time.Second || left > 6*time.Second || !got.Made || got.CheckDueIn > 6*time.Second {
			t.Fatalf("b has %v left, the check is due in %v", left, got.CheckDueIn)
		}
		steppedBack()
		c := f.client("c") // lowers it without an eviction
		if due := c.beat().CheckDueIn; due < 5*time.Second || due > 6*time.Second {
			t.Errorf("check due in %v", due)
		}
	})
}

func TestIdentitiesUnusedForADayAreForgotten(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		used := func(ago time.Duration, ids ...string) {
			f.edit(func(t *fakestore.Tables, clock int64) {
				for _, id := range ids {
					i := t.Identities[id]
					i.UsedAt = clock - ago.Microseconds()
					t.Identities[id] = i
				}
			})
		}
		for _, id := range []string{"ended", "evicted", "fresh"} {
			c := f.client(id)
			if id == "evicted" {
				used(25*time.Hour, "evicted") // it lived for long
				f.expire(c)
				a.evict()
				continue
			}
			c.end(true)
		}
		used(25*time.Hour, "a", "ended")
		used(23*time.Hour, "fresh")
		f.checkNow()
		a.evict()
		expect(t, strings.Join(slices.Sorted(maps.Keys(f.tables().Identities)), " "), "a evicted fresh", "identities")
	})
}

func TestAnEvictionWaitsForNoRegistration(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := stoppedFixture(t)
	a, b := f.client("a"), f.client("b")
	run := a.run()
	f.expire(b)
	release := f.lock("SELECT FROM identities WHERE id = 'b' FOR UPDATE")
	expect(t, len(a.evictAs(run, time.Hour).IDs), 1, "evicted")
	release()
}

// For example by a transaction that drops the lease and stays open.
func TestALockedLeaseKeepsNothingElseFromBeingEvicted(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := stoppedFixture(t)
	a, b, c, d := f.client("a"), f.client("b"), f.client("c"), f.client("d")
	for _, x := range []*client{a, b, c} {
		x.join("free", 3)
	}
	b.join("locked", 2)
	d.join("locked", 2)
	a.give("free", a.session, b.session, c.session)
	d.give("locked", b.session, b.session)
	run := a.run()
	for _, rows := range []string{"leases WHERE name = 'locked'", "clients WHERE id = 'c'"} {
		f.expire(b, c)
		release := f.lock("SELECT FROM " + rows + " FOR UPDATE")
		got := a.evictAs(run, time.Hour)
		if rows[0] == 'l' {
			expect(t, fmt.Sprint(got.IDs, got.ToPlan), "[b c] [free]", "evicted, to plan while the lease is locked")
			expect(t, got.CheckDueIn > 0 && got.CheckDueIn <= 100*time.Millisecond, true, "the rest is checked soon")
			plan := a.apply(a.snapshot("free"), Move{"free", 1, a.session}, Move{"free", 2, a.session})
			expect(t, plan.Given, 2, "given")
			release()
			f.checkNow()
			got := testkit.Must(a.Evict(f.ctx, a.beat().Clock, time.Hour, usualTTL, run))(f)
			expect(t, fmt.Sprint(got.ToPlan), "[locked]", "to plan once it is not")
			expect(t, f.counts(), "2 leases, 2 members, 5 partitions", "rows")
			b, c = f.client("b"), f.client("c")
			continue
		}
		expect(t, fmt.Sprint(got.IDs), "[b]", "evicted while c is locked")
		release()
		f.checkNow()
		expect(t, fmt.Sprint(a.evictAs(run, time.Hour).IDs), "[c]", "evicted once it is not")
	}
}

// For example by an operator's UPDATE of identities in a transaction that stays open.
func TestWaitingRegistrationDelaysNoEviction(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := stoppedFixture(t)
	a, expired := f.client("a"), f.client("expired")
	f.clientTTL("long", 10*time.Minute)
	run := a.run()
	unlock := f.lock("INSERT INTO identities VALUES ('b', 1, 1, now())")
	conn := f.conn()
	registering := later(func() error {
		_, _, err := conn.Register(f.ctx, registration(random(), "b", 0, random(), time.Second))
		return err
	})
	f.blocked(conn.Raw())
	f.expire(expired)
	expect(t, fmt.Sprint(a.evictAs(run, time.Hour).IDs), "[expired]", "evicted")
	expect(t, f.clientTTL("other", time.Second) != nil, true, "another registers")
	unlock()
	f.ok(registering())
}

// The server commits without the client; the answer fits into the buffers on the way.
func TestAClientThatFreezesInAnEvictionHoldsNoLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	run := a.run()
	f.exec(`
		INSERT INTO clients SELECT n, rpad(n::text, 255, '.'), 1, now() - interval '1 hour', '6 s', '', 0, now()
		FROM generate_series(1, 1000) AS n`)
	f.checkNow()
	statement := StatementsFor(f.schema).Evict
	for i, v := range []int64{
		a.beat().Clock, time.Hour.Microseconds(), usualTTL.Microseconds(), run.Timeline, run.Started, run.Marker, 5000,
	} {
		statement = strings.ReplaceAll(statement, fmt.Sprintf("$%d::", i+1), fmt.Sprintf("'%d'::", v))
	}
	message := testkit.Must((&pgproto3.Query{String: statement}).Encode(nil))(f)
	testkit.Must(f.session().PgConn().Conn().Write(message))(f) // the answer is not read
	f.until("the expired sessions are gone", func() bool { return value[int](f, "SELECT count(*) FROM clients") == 1 })
	f.exec("SELECT FROM server FOR UPDATE NOWAIT")
}

// With many partitions it has to end within half a TTL, as with few.
func TestEvictionReadsExpiredClientsOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := stoppedFixture(t)
	a, expired := f.client("a"), f.client("expired")
	a.join("l", 2)
	expired.join("l", 2)
	a.give("l", a.session, expired.session)
	f.exec(`
		INSERT INTO clients SELECT n, n::text, 1, public.clock() + interval '1 hour', '6 s', '', 0, now()
		FROM generate_series(1, 2000) AS n`)
	f.exec(`INSERT INTO identities SELECT n::text, 1, 1, now() - interval '2 days' FROM generate_series(1, 2000) AS n;
		INSERT INTO leases SELECT n::text, 1, 1, 1, 1, 'infinity', now() FROM generate_series(1, 2000) AS n;
		INSERT INTO members SELECT n::text, n, 1, now(), 1 FROM generate_series(1, 2000) AS n;
		INSERT INTO partitions SELECT n::text, p, n, n, 1 FROM generate_series(1, 2000) AS n, generate_series(0, 4) AS p;
		ANALYZE`)
	run := a.run()
	f.expire(expired)
	f.ok(a.pg().Exec(f.ctx, "BEGIN"))
	scans := func() int64 { // of this session
		return valueOn[int64](f, a.pg().Raw(), `
			SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'clients'`)
	}
	clock, before := a.beat().Clock, scans()
	evict := func() Evicted {
		return testkit.Must(a.Evict(f.ctx, clock, time.Hour, usualTTL, run))(f)
	}
	reads := a.reads("leases", "members", "partitions", "identities")
	expect(t, len(evict().IDs), 1, "evicted")
	expect(t, scans()-before, 1, "times that all clients were read")
	evict() // for which no check is due
	expect(t, scans()-before, 1, "times that all clients were read")
	if n := a.reads("leases", "members", "partitions", "identities") - reads; n > 30 {
		t.Errorf("it read %d rows besides", n)
	}
	f.ok(a.pg().Exec(f.ctx, "COMMIT"))
	ahead := value[int](f, "SELECT count(*) FROM clients WHERE expires_at > public.clock() + interval '1 minute'")
	expect(t, ahead, 0, "ahead of the clock")
}

func TestOrphansOfLargeTablesAreFoundPartByPart(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := stoppedFixture(t)
	a, b := f.pair(1)
	f.exec(`INSERT INTO leases SELECT n::text, 10000, 1, 1, 1, 'infinity', now() FROM generate_series(1, 2) AS n;
		INSERT INTO members SELECT n::text, $1, 1, now(), 1 FROM generate_series(1, 2) AS n;
		INSERT INTO partitions SELECT n::text, p, $1, $1, 1 FROM generate_series(1, 2) AS n, generate_series(0, 9999) AS p`, a.session)
	run := a.run()
	a.apply(a.snapshot("l"))
	for what, spoil := range map[string]string{
		"an owner": "UPDATE partitions SET owner = 99 WHERE lease = '2' AND partition = 9999",
		"a member": "INSERT INTO members VALUES ('2', 99, 1, now(), 1)",
	} {
		f.exec(spoil)
		checks := 0
		for toPlan := ""; toPlan == ""; checks++ {
			f.checkNow()
			f.ok(a.pg().Exec(f.ctx, "BEGIN"))
			before := a.reads("leases", "members", "partitions", "identities")
			toPlan = strings.Join(a.evictAs(run, 0).ToPlan, " ")
			if n := a.reads("leases", "members", "partitions", "identities") - before; n > 6000 || checks > 20 {
				t.Fatalf("check %d reads %d rows", checks, n)
			}
			f.ok(a.pg().Exec(f.ctx, "COMMIT"))
		}
		t.Logf("%s that is no living member: found at check %d", what, checks)
		f.exec("UPDATE partitions SET owner = target WHERE owner = 99")
		f.exec("UPDATE leases SET plan_due_at = 'infinity'")
	}
	expect(t, value[int](f, "SELECT count(*) FROM members"), 4, "members")
	expect(t, b.beat().Alive, true, "alive")
}

// Its row was deleted by hand.
func TestAMemberOfALeaseThatIsGoneGoesWithItsSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.pair(1)
	run := a.run()
	f.exec("DELETE FROM leases")
	f.expire(b)
	got := testkit.Must(a.Evict(f.ctx, a.beat().Clock, time.Hour, usualTTL, run))(f)
	expect(t, value[int](f, "SELECT count(*) FROM members"), 1, "members")
	if got.CheckDueIn < usualTTL/2 {
		t.Errorf("the next check is due in %v, as for a lease that is locked", got.CheckDueIn)
	}
}

// It was deleted by hand: the fields of the answer must not be mixed up.
func TestAServerWithoutItsRowIsNamed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _ := f.pair(1)
	f.exec("DELETE FROM server")
	_, err := a.Heartbeat(f.ctx, a.session, 0, Renewal{})
	if err == nil || !strings.Contains(err.Error(), "server has no row") {
		t.Errorf("heartbeat: %v", err)
	}
}

// For example behind a publication that cannot replicate them.
func TestUndeletableRowsDoNotDelayAnEviction(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, b := f.pair(1)
	run := a.run()
	f.exec(`
		CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$refused$$; END';
		CREATE TRIGGER refuse BEFORE DELETE ON events EXECUTE FUNCTION public.refuse();
		UPDATE events SET at = now() - interval '1 year'`)
	f.expire(b)
	got := testkit.Must(a.Evict(f.ctx, a.beat().Clock, time.Hour, usualTTL, run))(f)
	expect(t, fmt.Sprint(got.IDs, got.ToPlan), "[b] [l]", "evicted, to plan")
	if _, err := a.Tidy(f.ctx); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("old events are deleted: %v", err)
	}
}

func TestOneEvictsAtATime(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := stoppedFixture(t)
	a, b, expired := f.client("a"), f.client("b"), f.client("expired")
	for _, x := range []*client{a, b, expired} {
		x.join("l", 1)
	}
	run := a.run()
	f.expire(expired)
	f.ok(a.pg().Exec(f.ctx, "BEGIN"))
	expect(t, len(a.evictAs(run, time.Hour).IDs), 1, "evicted by the first")
	got := b.evictAs(run, time.Hour) // which does not wait
	if len(got.IDs) > 0 || got.Made {
		t.Errorf("%+v", got)
	}
	f.ok(a.pg().Exec(f.ctx, "COMMIT"))
	got = b.evictAs(run, time.Hour)
	if len(got.IDs) > 0 || got.Made {
		t.Errorf("%+v", got)
	}
}

func TestPromotedServerGivesNothingUntilAccepted(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, expired := f.client("a"), f.clientTTL("b", time.Minute), f.client("expired")
		for _, x := range []*client{a, b, expired} {
			x.join("l", 4)
		}
		a.give("l", a.session, a.session, expired.session)
		a.give("l", a.session, b.session, expired.session)
		run := a.run()
		f.server(func(s *fakestore.Server, _ int64) { s.AcceptedTimeline = 77 })
		before := f.state("l")
		beat := a.beat()
		expect(t, beat.AcceptedTimeline != beat.Server.Timeline, true, "unaccepted in the heartbeat")

		read := a.snapshot("l")
		expect(t, a.apply(read, Move{"l", 3, a.session}, Move{"l", 0, b.session}), Applied{Unaccepted: true}, "applied")
		released := a.release([]Release{{"l", 1, 1}}, "l")
		counts := fmt.Sprint(len(released.Released), len(released.Busy), len(released.Left))
		expect(t, counts, "0 1 0", "released, busy, left")
		f.ok(a.Fence(f.ctx, a.session, []Release{{"l", 1, 1}}))
		f.expire(expired)
		expect(t, len(a.evictAs(run, time.Hour).IDs), 0, "evicted")
		expect(t, f.state("l"), before, "state")

		accept := func(watched time.Duration, run Incarnation) bool {
			generation := testkit.Must(a.AcceptServer(f.ctx, watched, run, 0))(f)
			return generation > 0
		}
		expect(t, accept(59*time.Second, run), false, "accepted after less than the longest TTL")
		for _, other := range otherRuns(run) {
			expect(t, accept(time.Minute, other), false, fmt.Sprintf("accepted on %+v, which is not %+v", other, run))
		}
		expect(t, f.passes("l", 1, 1), true, "a guard passes meanwhile")
		expect(t, accept(time.Minute, run), true, "accepted")
		expect(t, accept(time.Minute, run), false, "accepted twice")
		expect(t, f.tables().Server.AcceptedTimeline, run.Timeline, "timeline")
		expect(t, f.tables().Server.Generation > 200_000_000, true, "the server generation comes from the clock")
		epoch := firstEpoch(f, run)
		expect(t, a.give("l", a.session, b.session, expired.session, b.session).Given, 1, "given")
		expect(t, strings.HasSuffix(f.state("l", b), fmt.Sprintf("b>b:%d of b", epoch)), true, "the first epoch")
		f.expire(expired)
		expect(t, len(a.evictAs(run, time.Hour).IDs), 1, "evicted once accepted")
	})
}

// firstEpoch is the first epoch of the present server generation on a server incarnation.
func firstEpoch(f *fixture, run Incarnation) int64 {
	return f.tables().Server.Generation<<32 + run.Started&(1<<31-1)
}

func TestFailoverGuardKeepsItsPartitionOnly(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(4)
		a.give("l", a.session, a.session, a.session, a.session)
		a.give("l", a.session, a.session, b.session, a.session)
		run := a.run()
		f.server(func(s *fakestore.Server, _ int64) { s.AcceptedTimeline = 77 })
		end := f.guarding("l", 0, 1)
		generation := testkit.Must(a.AcceptServer(f.ctx, time.Minute, run, 0))(f)
		expect(t, generation, f.tables().Server.Generation, "server generation")
		expect(t, f.passes("l", 1, 1), false, "a guard under an epoch of before passes")
		reads := testkit.Must(a.Read(f.ctx, a.session, []string{"l"}))(f)
		expect(t, reads[0].ServerGeneration, generation, "server generation read")
		of := ServerGenerationOf(reads[0].Owned[1].Epoch)
		expect(t, of < generation, true, "an epoch is of an earlier one")

		// Owners renew: partitions that move stay meanwhile, and continue to move; partitions of a left
		// lease do not stay.
		answer := a.release([]Release{{"l", 0, 1}, {"l", 1, 1}, {"l", 2, 1}})
		expect(t, fmt.Sprint(len(answer.Released), len(answer.Busy)), "2 1", "released, busy")
		epoch := firstEpoch(f, run)
		state := fmt.Sprintf("a>a:1 of a, a>a:%d of a, a>b:%[1]d of a asked, a>a:1 of a", epoch)
		expect(t, f.state("l", a, b), state, "state")
		expect(t, f.passes("l", 1, epoch), true, "a guard under an epoch of the new server generation passes")
		expect(t, f.passes("l", 0, 1), false, "a second guard passes beside the open one")
		end()
		answer = a.release([]Release{{"l", 0, 1}, {"l", 1, epoch}, {"l", 2, epoch}})
		expect(t, fmt.Sprint(len(answer.Released), len(answer.Busy)), "3 0", "released, busy")
		state = fmt.Sprintf("a>a:%d of a, a>a:%d of a, b>b:%[2]d of b, a>a:1 of a", epoch, epoch+1)
		expect(t, f.state("l", a, b), state, "state")
		expect(t, len(a.release([]Release{{"l", 3, 1}}, "l").Released), 1, "released by a leave")
		expect(t, strings.HasSuffix(f.state("l", a, b), fmt.Sprintf("0>0:%d of a", epoch)), true, f.state("l", a, b))
	})
}

// Several at a time, so that a guarded transaction is open at every moment.
func TestGuardsDelayNoAcceptanceAndNoRenewal(t *testing.T) {
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
	f.until("they are at it", func() bool { return passed.Load() > 10 })
	accepted(a)
	for _, stream := range streams {
		if err := stream(); Code(err) != CodeNotOwner {
			t.Errorf("a stream ended with %v", err)
		}
	}
	expect(t, len(a.release([]Release{{"l", 0, 1}}).Released), 1, "renewed")
}

func TestOlderPartitionsRiseAboveAnAcceptance(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		run := a.run()
		f.server(func(s *fakestore.Server, _ int64) { s.AcceptedTimeline = 77 })
		a.join("l", 1)
		testkit.Must(a.AcceptServer(f.ctx, time.Hour, run, 0))(f)
		a.join("later", 1)
		a.give("l", a.session)
		a.give("later", a.session)
		epoch := firstEpoch(f, run)
		expect(t, a.owned("l"), fmt.Sprintf("0:%d", epoch), "owned")
		expect(t, a.owned("later"), fmt.Sprintf("0:%d", epoch), "owned of a lease made later")
	})
}

// For example behind a VACUUM FULL that waits for a guarded transaction. A renewal that arrives
// meanwhile is ahead of the clock that the eviction read at its beginning, but the clock did not
// step back.
func TestAnEvictionThatHadToWaitShortensNoSession(t *testing.T) {
	t.Parallel()
	f := stoppedFixture(t)
	a, b := f.client("a"), f.clientTTL("b", time.Minute)
	a.join("l", 1)
	f.checkNow()
	run, clock := b.run(), b.beat().Clock
	owner := f.raw()
	testkit.Must(owner.Exec(f.ctx, "BEGIN; LOCK TABLE pgleases.events"))(f)
	evicting := later(func() error { return failure(b.Evict(f.ctx, clock, 10*time.Minute, time.Minute, run)) })
	f.blocked(b.pg().Raw())
	f.setClock(time.UnixMicro(clock).Add(4 * time.Second))
	a.beat()
	testkit.Must(owner.Exec(f.ctx, "COMMIT"))(f)
	f.ok(evicting())
	row := f.tables().Clients[a.session]
	expires := time.Duration(row.ExpiresAt-clock) * time.Microsecond
	expect(t, expires, 4*time.Second+usualTTL, "the session expires after its renewal, and before it")
}
