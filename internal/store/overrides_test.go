package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// overrides are what a plan of a lease reads about overrides: of the lease, then of each member.
func (c *client) overrides(lease string) string {
	c.f.Helper()
	p := c.snapshot(lease)[0]
	said := map[bool]string{true: "yes", false: "no"}
	text := fmt.Sprintf("paused %s, frozen %s", said[p.Paused], said[p.Frozen])
	for _, m := range p.Members {
		text += fmt.Sprintf("; %s drained %s, cordoned %s", m.ID, said[m.Drained], said[m.Cordoned])
	}
	for n, id := range p.Pins {
		text += fmt.Sprintf("; %d to %s", n, id)
	}
	return text
}

// noOverrides is what overrides returns of a lease of a and b without any.
const noOverrides = "paused no, frozen no; a drained no, cordoned no; b drained no, cordoned no"

func TestAPlanIsToldOfEachOverrideUntilItIsTakenBack(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(2)
		a.join("other", 1)
		a.give("l", a.session, b.session)
		for _, w := range []struct {
			override      fakestore.Override
			without, with string
		}{
			{fakestore.Override{Verb: "drain", Client: "a"}, "a drained no", "a drained yes"},
			{fakestore.Override{Verb: "cordon", Client: "b"},
				"b drained no, cordoned no", "b drained no, cordoned yes"},
			{fakestore.Override{Verb: "pause", Lease: "l"}, "paused no", "paused yes"},
			{fakestore.Override{Verb: "pin", Lease: "l", Partition: 1}, noOverrides, noOverrides + "; 1 to a"},
			{fakestore.Override{Verb: "freeze", Lease: "l"}, "frozen no", "frozen yes"},
		} {
			to := ""
			if w.override.Verb == "pin" {
				to = "a"
			}
			override := func() error { return f.pin(w.override, to, 0, true) }
			for _, verb := range []func() error{override, func() error { return f.back(w.override) }} {
				a.apply(a.snapshot("l"))
				before := a.snapshot("l")
				expect(t, len(a.claims("l")), 0, "leases whose plan is due")
				f.ok(verb())
				a.apply(before)
				expect(t, strings.HasPrefix(overtaken(before), "l"), true, "a plan that was read before is overtaken")
				expect(t, len(a.claims("l")), 1, "leases whose plan is due")
			}
			expect(t, a.overrides("l"), noOverrides, "taken back")
			f.ok(override())
			f.ok(override()) // a repetition changes no override
			a.join("l", 2)   // a join changes none either
			expect(t, a.overrides("l"), strings.Replace(noOverrides, w.without, w.with, 1), "overrides")
			f.ok(f.back(w.override))
			if err := f.back(w.override); said(err) != "unknown" {
				t.Errorf("taken back twice: %v", err)
			}
			expect(t, a.overrides("l"), noOverrides, "taken back")
			expect(t, a.owned("l")+b.owned("l"), "0:11:1", "owned all the while")
		}
	})
}

func (c *client) claims(leases ...string) []string {
	c.f.Helper()
	return testkit.Must(c.Claim(c.f.ctx, leases))(c.f)
}

// A session that has expired stays a member until another client has watched the clock for its TTL.
func TestDrainCountsNoExpiredClient(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.join("l", 2)
		b.join("l", 2)
		drain := func(id string) error { return f.override(fakestore.Override{Verb: "drain", Client: id}, 0, false) }
		f.expireIn(b, -time.Second)
		expect(t, said(drain("a")), "in use", "drain of the only living client")
		b.beat()
		f.ok(drain("a"))
	})
}

func TestTheLastThatWorksIsDrainedByForceOnly(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.client("a"), f.client("b"), f.client("c")
		drain := func(id string, force bool) error {
			return f.override(fakestore.Override{Verb: "drain", Client: id}, 0, force)
		}
		a.join("l", 2)
		b.join("l", 2)
		c.joinWeight("l", 2, 0)
		a.join("other", 1)
		refuses := func(err error) {
			t.Helper()
			if said(err) != "in use" {
				t.Errorf("the last one is drained: %v", err)
			}
		}
		f.ok(drain("c", false)) // which works on no lease
		f.ok(f.back(fakestore.Override{Verb: "drain", Client: "c"}))
		refuses(drain("a", false)) // alone in the other lease
		expect(t, a.overrides("l"), noOverrides+"; c drained no, cordoned no", "overrides")
		f.ok(drain("b", false))
		refuses(drain("a", false))
		f.ok(f.back(fakestore.Override{Verb: "drain", Client: "b"}))
		f.ok(f.evictClient("b"))
		refuses(drain("a", false))
		f.ok(drain("a", true))
		f.ok(drain("a", false)) // it works no more
		if err := drain("nobody", true); said(err) != "unknown" {
			t.Errorf("drain of an unknown client: %v", err)
		}
		f.ok(f.override(fakestore.Override{Verb: "drain", Client: "yet to come"}, tomorrow(), false))
		f.ok(f.override(fakestore.Override{Verb: "pause", Lease: "yet to come"}, tomorrow(), false))
		d := f.client("d")
		d.join("yet to come", 1)
		expect(t, d.overrides("yet to come"), "paused yes, frozen no; d drained no, cordoned no", "overrides")
		if err := f.override(fakestore.Override{Verb: "freeze", Lease: "nothing"}, 0, false); said(err) != "unknown" {
			t.Errorf("freeze of no lease: %v", err)
		}
	})
}

func TestAnOverrideEndsWithTheFirstCheckAfterItsTime(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(2)
		now := f.clock()
		f.ok(f.override(fakestore.Override{Verb: "drain", Client: "b"}, now+time.Second.Microseconds(), false))
		f.ok(f.override(fakestore.Override{Verb: "freeze", Lease: "l"}, now+2*time.Second.Microseconds(), false))
		if err := f.override(fakestore.Override{Verb: "pause", Lease: "l"}, now, false); said(err) != "unknown" {
			t.Errorf("a pause that is over: %v", err)
		}
		expect(t, b.beat().CheckDueIn, time.Second, "time until the check")
		run := a.run()
		for _, told := range []string{strings.Replace(noOverrides, "frozen no", "frozen yes", 1), noOverrides} {
			a.apply(a.snapshot("l"))
			now += time.Second.Microseconds()
			f.setClock(time.UnixMicro(now))
			a.beat() // so that it does not expire
			evicted := a.evictAs(run, 0)
			expect(t, fmt.Sprint(evicted.ToPlan, evicted.PlanDueIn), "[l] 0s", "leases whose plan is due")
			expect(t, a.overrides("l"), told, "overrides")
		}
	})
}

// A hung process sends heartbeats and obeys no request.
func TestRevokedSessionIsNeitherRenewedNorGuarded(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		hung, other := f.client("hung"), f.client("other")
		hung.join("l", 2)
		other.join("l", 2)
		hung.give("l", hung.session, other.session)
		expires := f.tables().Clients[hung.session].ExpiresAt
		f.setClock(time.UnixMicro(expires).Add(-time.Second))
		other.beat()
		expect(t, f.passes("l", 0, 1), true, "a guard passes before")
		f.ok(f.evictClient("hung"))
		expect(t, f.passes("l", 0, 1), false, "a guard passes")
		expect(t, f.passes("l", 1, 1), true, "a guard of another passes")
		beat := hung.beat()
		expect(t, fmt.Sprint(beat.Alive, beat.Copied), "false false", "alive, copied")
		expect(t, f.tables().Clients[hung.session].ExpiresAt, expires, "expiry")
		expect(t, other.beat().Alive, true, "another is alive")

		// It is not admitted again; a new process is.
		process := f.tables().Identities["hung"].Incarnation - 1
		again, _, err := hung.Register(f.ctx, registration(random(), "hung", process, random(), usualTTL))
		f.ok(err)
		expect(t, again, 0, "incarnation of the same process")

		// Until it expires it may trust its ownership: no other client gets the partition.
		other.run()
		f.checkNow()
		expect(t, len(other.evict().IDs), 0, "evicted before it expired")
		expect(t, other.give("l", other.session).Given, 0, "given before it expired")
		f.setClock(time.UnixMicro(expires).Add(time.Second))
		f.checkNow()
		expect(t, strings.Join(other.evict().IDs, " "), "hung", "evicted")
		expect(t, other.give("l", other.session).Given, 1, "given")
		fresh := f.client("hung")
		fresh.join("l", 2)
		expect(t, fresh.beat().Alive, true, "a new one is alive")
		if err := f.evictClient("nobody"); said(err) != "unknown" {
			t.Errorf("evicted an unknown client: %v", err)
		}
	})
}

func TestDrainedClientIsPreferredOwner(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(2)
		a.give("l", a.session, a.session)
		f.ok(f.override(fakestore.Override{Verb: "drain", Client: "a"}, 0, false))
		a.give("l", b.session)
		a.release([]Release{{"l", 0, 1}})
		expect(t, a.snapshot("l")[0].PreferredIDs[0], "a", "preferred owner of what went to another")
		b.apply(b.snapshot("l"), Move{"l", 1, 0})
		a.release([]Release{{"l", 1, 1}})
		expect(t, b.give("l", b.session, b.session).Given, 1, "given of what had no owner")
		expect(t, a.snapshot("l")[0].PreferredIDs[1], "a", "preferred owner of what was given to another")
	})
}

func TestNoPlanOfAPausedLeaseIsDueForWhatIsReleased(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		a.join("l", 1)
		a.give("l", a.session)
		f.ok(f.override(fakestore.Override{Verb: "pause", Lease: "l"}, 0, false))
		a.give("l", 0)
		expect(t, len(a.release([]Release{{"l", 0, 1}}).ToPlan), 0, "leases whose plan is due")
		expect(t, f.passes("l", 0, 2), false, "a guard passes")
	})
}

func TestAPartitionIsPinnedToOneClientAtATime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _ := f.pair(8)
	f.events()
	f.exec("SELECT pin('l', 5, 'a', 'near its data')")
	f.exec("SELECT pin('l', 5, 'b', 'nearer', until => now() + interval '1 hour')")
	f.exec("SELECT pin('l', 7, 'b', 'near')")
	pins := f.text("SELECT partition, client, reason FROM overrides ORDER BY partition")
	expect(t, pins, "5|b|nearer\n7|b|near", "overrides")
	expect(t, f.text("SELECT overrides FROM members_status"), "<nil>\n<nil>", "overrides about all that a client has")
	expect(t, fmt.Sprint(a.snapshot("l")[0].Pins), "map[5:b 7:b]", "pins")
	f.exec("UPDATE overrides SET until = now() - interval '1 second' WHERE partition = 5")
	f.checkNow()
	a.evict()
	expect(t, fmt.Sprint(a.snapshot("l")[0].Pins), "map[7:b]", "pins")
	f.exec("SELECT unpin('l', 7, 'moved')")
	expect(t, f.text("SELECT cause, lease, to_id, partitions::text FROM events ORDER BY id"),
		"pin|l|a|{[5,6)}\npin|l|b|{[5,6)}\npin|l|b|{[7,8)}\nunpin|l|b|{[5,6)}\nunpin|l|<nil>|{[7,8)}", "events")
	f.exec("SELECT drain('a', 'its host goes', 'maria')")
	f.exec("SELECT pause('l', 'a long night', 'maria')")
	read := testkit.Must(a.Read(f.ctx, a.session, []string{"l"}))(t)[0]
	expect(t, read.Drained[1]+", "+read.Paused[1], "its host goes, a long night", "reasons that the client reads")
}

func TestOperatorsNeedNoOtherRight(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	a, b := f.clientTTL("a", time.Hour), f.clientTTL("b", time.Hour)
	a.join("l", 1)
	b.join("l", 1)
	a.join("empty", 1)
	a.join("old", 1)
	a.release(nil, "empty")
	a.release(nil, "old")
	f.events()
	operator := f.role()
	f.grant("operator", operator)
	user, as := f.text("SELECT session_user"), f.as(operator)
	var told []string
	for _, verb := range []struct{ call, event string }{
		{"drain('a', 'its host goes')", "drain|<nil>|a|" + user + "|its host goes"},
		{"undrain('a', 'it stays', 'me')", "undrain|<nil>|a|me (" + user + ")|it stays"},
		{"cordon('a', E'two\nlines', '')", "cordon|<nil>|a|" + user + "|two\nlines"},
		{"uncordon('a', 'r')", "uncordon|<nil>|a|" + user + "|r"},
		{"pause('l', 'r')", "pause|l|<nil>|" + user + "|r"},
		{"resume('l', 'r')", "resume|l|<nil>|" + user + "|r"},
		{"freeze('l', 'r', until => now() + interval '1 hour')", "freeze|l|<nil>|" + user + "|r"},
		{"unfreeze('l', 'r')", "unfreeze|l|<nil>|" + user + "|r"},
		{"pin('l', 0, 'b', 'r')", "pin|l|<nil>|" + user + "|r"},
		{"unpin('l', 0, 'r')", "unpin|l|<nil>|" + user + "|r"},
		{"evict_client('b', 'r')", "evict|<nil>|b|" + user + "|r"},
		{"drop_lease('empty', 'r', 'me')", "dropped|empty|<nil>|me (" + user + ")|r"},
		{"replace_lease('old', 'next', 2, 'r', 'me')",
			"replaced|old|<nil>|me (" + user + ")|r\nreplaces|next|<nil>|me (" + user + ")|r"},
	} {
		testkit.Must(as.Exec(f.ctx, "SELECT pgleases."+verb.call))(f)
		told = append(told, verb.event)
	}
	got := f.text("SELECT cause, lease, from_id, actor, reason FROM events ORDER BY id")
	expect(t, got, strings.Join(told, "\n"), "events")
}

func TestAVerbThatIsRefusedSaysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	a.join("l", 1)
	f.events()
	state := func() string {
		return f.text("SELECT generation, plan_due_at, (SELECT count(*) FROM overrides) FROM leases")
	}
	before := state()
	for call, says := range map[string]string{
		"drain('a', '')":                                       "drain needs a reason",
		"undrain('a', NULL)":                                   "undrain needs a reason",
		"resume('l', '')":                                      "resume needs a reason",
		"evict_client('a', '')":                                "needs a reason",
		"pin('l', 1, 'a', 'r')":                                `lease "l" has no partition 1`,
		"pin('l', -1, 'a', 'r')":                               `lease "l" has no partition -1`,
		"pin('l', NULL, 'a', 'r')":                             `lease "l" has no partition null`,
		"pin('l', 0, NULL, 'r')":                               "pin to null",
		"pin('l', 0, 'b', 'r')":                                `client "b" is not known`,
		"unpin('l', 0, 'r')":                                   `there is no pin of "l/0" to take back`,
		"drain(NULL, 'r')":                                     "drain for a name of 0 bytes",
		"pause(NULL, 'r')":                                     "pause for a name of 0 bytes",
		"pause('', 'r')":                                       "pause for a name of 0 bytes",
		"cordon('b', 'r')":                                     `client "b" is not known`,
		"evict_client('b', 'r')":                               `client "b" is not known`,
		"freeze('m', 'r')":                                     `lease "m" does not exist`,
		"drain('a', 'r')":                                      `client "a" is the last that works on: l`,
		"cordon('a', 'r', until => '2026-01-01 UTC')":          "cordon until 2026-01-01",
		"cordon('a', 'r', until => NULL)":                      "cordon until null",
		"uncordon('a', 'r')":                                   `there is no cordon of "a" to take back`,
		"drain('', 'r', until => '2100-01-01')":                "drain for a name of 0 bytes",
		"cordon(repeat('x', 256), 'r', until => '2100-01-01')": "cordon for a name of 256 bytes",
		"pin('l', 0, repeat('x', 256), 'r', until => '2100-01-01')": "pin for a name of 256 bytes",
		"pause('l', repeat('r', 4001))":                             "pause: the reason has 4001 bytes, the actor 0",
		"evict_client('a', 'r', repeat('x', 256))": "evict_client: " +
			"the reason has 1 bytes, the actor 256",
		"drop_lease('l', '')":                "drop_lease needs a reason",
		"drop_lease('m', 'r')":               `lease "m" does not exist`,
		"drop_lease('l', 'r')":               `lease "l" has live members: a`,
		"replace_lease('l', 'm', 2, '')":     "replace_lease needs a reason",
		"replace_lease('l', 'm', 0, 'r')":    "replace_lease with 0 partitions",
		"replace_lease('l', 'm', NULL, 'r')": "replace_lease with null partitions",
		"replace_lease('l', '', 2, 'r')":     "replace_lease by a name of 0 bytes",
		"replace_lease('l', 'l', 2, 'r')":    `lease "l" cannot replace itself`,
		"replace_lease('m', 'n', 2, 'r')":    `lease "m" does not exist`,
		"replace_lease('l', 'm', 2, 'r')":    `lease "l" has members: a`,
	} {
		_, err := f.sql.Exec(f.ctx, "SELECT "+call)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", call, err)
		}
	}
	expect(t, state(), before, "generation, plan due, overrides")
	expect(t, f.events(), "", "events")
}

// Evicting a client that is about to end fails neither the operator nor the client with a deadlock.
func TestAnEvictionByAnOperatorAndAnEndWaitForEachOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	tx := testkit.Must(f.session().Begin(f.ctx))(f)
	testkit.Must(tx.Exec(f.ctx, "SELECT FROM pgleases.identities FOR UPDATE"))(f)
	operator, client := f.raw(), f.raw()
	evicted := later(func() error {
		_, err := operator.Exec(f.ctx, "SELECT pgleases.evict_client('a', 'r')")
		return err
	})
	f.blocked(operator)
	ends := StatementsFor("pgleases").Close
	ended := later(func() error {
		_, err := client.Exec(f.ctx, ends, pgx.QueryExecModeSimpleProtocol, a.session, 60_000)
		return err
	})
	f.blocked(client)
	f.ok(tx.Commit(f.ctx))
	f.ok(evicted())
	f.ok(ended())
	expect(t, f.text("SELECT count(*) FROM clients"), "0", "sessions")
}

// Heartbeats and takeovers wait for the rows that a verb locks.
func TestAVerbWhoseTransactionStaysOpenIsUndone(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{
		"drain('a', 'r', until => '2100-01-01')",
		"uncordon('b', 'r')",
		"pause('l', 'r')",
		"evict_client('a', 'r')",
		"new_server_generation()",
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for _, c := range []*client{f.client("a"), f.client("b")} {
				c.join("l", 1)
			}
			f.exec("SELECT cordon('b', 'r')")
			state := func() string {
				return f.text(`
					SELECT generation, (SELECT min(incarnation) FROM clients),
						(SELECT string_agg(w.verb || w.client, ' ') FROM overrides AS w),
						(SELECT accepted_timeline FROM server) FROM leases`)
			}
			before := state()
			tx := testkit.Must(f.raw().Begin(f.ctx))(f)
			testkit.Must(tx.Exec(f.ctx, "SELECT pgleases."+verb))(f)
			expect(t, valueOn[string](f, tx, "SHOW statement_timeout"), "10s", "what a statement after it may take")
			// As a plan, a heartbeat and a check do.
			f.exec(`
				SET lock_timeout = 0;
				UPDATE leases SET planned_at = planned_at;
				UPDATE clients SET expires_at = expires_at;
				UPDATE server SET sessions = sessions`)
			expect(t, state(), before, "generation, incarnation, overrides, timeline")
		})
	}
}

// The join is not yet seen by the verb, and its plan would not see the override.
func TestClientOverrideCoversConcurrentJoin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	b.join("l", 2)
	a.join("l", 2)
	b.join("m", 2)
	tx := testkit.Must(f.session().Begin(f.ctx))(f)
	joins := StatementsFor("pgleases").Join
	args := []any{pgx.QueryExecModeSimpleProtocol, a.session, "m", 2, 1, 5, 5000, 0, 0, 0}
	rows := testkit.Must(tx.Query(f.ctx, joins, args...))(f)
	joined := testkit.Must(pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Join]))(f)
	expect(t, joined.Joined, true, "joined in a transaction that is open")
	operator := f.raw()
	drained := later(func() error { _, err := operator.Exec(f.ctx, "SELECT pgleases.drain('a', 'r')"); return err })
	f.blocked(operator)
	generation := valueOn[int64](f, tx, "SELECT generation FROM leases WHERE name = 'm'")
	f.ok(tx.Commit(f.ctx))
	f.ok(drained())
	isLater := value[int64](f, "SELECT generation FROM leases WHERE name = 'm'") > generation
	expect(t, isLater, true, "a plan that saw the join and not the override is overtaken")
	expect(t, strings.Contains(b.overrides("m"), "a drained yes"), true, b.overrides("m"))
	due := value[bool](f, "SELECT plan_due_at <= clock_timestamp() FROM leases WHERE name = 'm'")
	expect(t, due, true, "a plan is due")
}

// It ends overrides, and does not wait for the locks of a plan or of another role.
func TestACheckEndsNoOverrideAboutALeaseThatIsLocked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, b := f.pair(1)
	f.exec("SELECT freeze('l', 'r'), drain('a', 'r')")
	f.exec("UPDATE overrides SET until = now() - interval '1 second'")
	for _, locks := range []string{
		"SELECT FROM leases WHERE name = 'l' FOR KEY SHARE", "SELECT FROM clients WHERE id = 'a' FOR KEY SHARE",
	} {
		unlock := f.lock(locks)
		f.checkNow()
		b.evict()
		unlock()
	}
	left := f.text("SELECT verb, (SELECT count(*) FROM events WHERE cause LIKE 'un%') FROM overrides")
	expect(t, left, "drain|1", "overrides that are left")
	f.checkNow()
	b.evict()
	expect(t, f.text("SELECT verb FROM overrides"), "", "overrides that are left")
	events := f.text(`
		SELECT cause, lease, from_id, actor = session_user FROM events WHERE cause LIKE 'un%' ORDER BY id`)
	expect(t, events, "unfreeze|l|<nil>|true\nundrain|<nil>|a|true", "events")
}

// If many overrides end at once, a check for expired sessions ends only some of them, and changes
// the lease once.
func TestManyOverridesThatEndAtOnceDelayNoEviction(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, expired := f.client("a"), f.client("expired")
	a.join("l", 500)
	f.exec(`
		INSERT INTO overrides (verb, lease, partition, client, until, since, actor, reason)
		SELECT 'pin', 'l', n, 'a', now() - interval '1 second', now(), '', '' FROM generate_series(0, 499) AS n`)
	f.expire(expired)
	for _, left := range []int{300, 100, 0, 0} {
		before := value[int64](f, "SELECT generation FROM leases")
		f.checkNow()
		a.evict()
		expect(t, value[int](f, "SELECT count(*) FROM overrides"), left, "overrides that are left")
		expect(t, f.text("SELECT id FROM clients"), "a", "clients")
		if rose := value[int64](f, "SELECT generation FROM leases") - before; rose > 1 {
			t.Errorf("the generation rose by %d", rose)
		}
		if left > 0 {
			isSoon := value[bool](f, "SELECT next_check_at < clock_timestamp() + interval '1 second' FROM server")
			expect(t, isSoon, true, "the next check is due soon")
		}
	}
	expect(t, value[int](f, "SELECT count(*) FROM events WHERE cause = 'unpin'"), 500, "events")
}
