package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// events returns the events since the last call: cause, lease, from, to, partitions.
func (f *fixture) events() string {
	f.Helper()
	told := f.text(`
		SELECT cause, coalesce(lease, '-'), coalesce(from_id, '-') || '>' || coalesce(to_id, '-'), coalesce(partitions::text, '-')
		FROM events ORDER BY tx, cause, partitions, id`)
	f.exec("TRUNCATE events")
	return told
}

func TestEveryChangeOfMembersAndOwnersIsAnEvent(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	tells := func(want ...string) {
		t.Helper()
		expect(t, f.events(), strings.Join(want, "\n"), "events")
	}
	a.join("l", 6)
	b.join("l", 6)
	tells("joined|l|->a|-", "joined|l|->b|-")
	a.join("l", 6) // again, after a lost answer
	a.beat()
	tells()
	a.give("l", a.session, a.session, b.session, a.session)
	tells("given|l|->a|{[0,2),[3,4)}", "given|l|->b|{[2,3)}")
	a.give("l", b.session, b.session, b.session, b.session)
	tells() // the owner is asked: no partition has moved
	generation := value[int64](f, "SELECT generation FROM leases")
	a.release([]Release{{"l", 0, 1}, {"l", 1, 1}, {"l", 3, 1}})
	expect(t, value[int64](f, "SELECT generation FROM events"), generation, "generation of the event")
	tells("handed over|l|a>b|{[0,2),[3,4)}")
	a.release([]Release{{"l", 0, 1}}) // once more
	tells()
	b.release([]Release{{"l", 0, 2}, {"l", 1, 2}, {"l", 2, 1}}, "l")
	tells("handed over|l|b>-|{[0,3)}") // it still owns one
	b.release([]Release{{"l", 3, 2}}, "l")
	tells("handed over|l|b>-|{[3,4)}", "left|l|b>-|-")
	a.give("l", a.session, a.session)
	tells("given|l|b>a|{[0,2)}")
	c := f.client("c")
	f.expire(a)
	process := f.text("SELECT 'host ' || host || ', pid ' || pid FROM clients WHERE id = 'a'")
	c.evict()
	expect(t, f.text("SELECT reason FROM events"), process, "where to look for the evicted process")
	tells("evicted|-|a>-|-")
	c.join("l", 6)
	c.give("l", c.session, c.session)
	tells("joined|l|->c|-", "given|l|a>c|{[0,2)}")
	accepted(c)
	c.release([]Release{{"l", 0, 4}}) // renews it
	began := func() string { return f.text("SELECT 'server generation ' || generation, generation FROM server") }
	said := func() string { return f.text("SELECT reason, generation FROM events") }
	expect(t, said(), began(), "the event says which generation begins")
	tells("accepted|-|->-|-")
	f.exec("SELECT new_server_generation()")
	testkit.Must(c.AcceptServer(f.ctx, 10*time.Minute, c.run(), 0))(f)
	expect(t, said(), began(), "the event says which generation begins")
	tells("new generation|-|->-|-")
	c.release(nil, "l")
	f.exec("DELETE FROM members; SELECT drop_lease('l', 'why')")
	tells("dropped|l|->-|-")
}

// Events of operators name who made the change: also those that an expired override writes, and
// whatever the role of an application inserts.
func TestEventsOfOperatorsHaveAnActor(t *testing.T) {
	t.Parallel()
	f := fixtureIn(t, emptyDatabase(t), "pgleases")
	role := f.role()
	f.grant("application", role)
	a := f.client("a")
	a.join("l", 4)
	f.exec(`
		SELECT drain('a', 'why', 'maria', clock_timestamp() + interval '1 hour', force => true);
		SELECT pause('l', 'why', 'joe', clock_timestamp() + interval '1 hour');
		SELECT pin('l', 2, 'a', 'why', 'ann', clock_timestamp() + interval '1 hour')`)
	f.exec("UPDATE overrides SET until = clock_timestamp() - interval '1 hour'; TRUNCATE events")
	f.exec("SELECT end_overrides()")
	expired := []string{
		"resume|joe|the override has expired",
		"undrain|maria|the override has expired",
		"unpin|ann|the override has expired",
	}
	got := f.text("SELECT cause, split_part(actor, ' ', 1), reason FROM events ORDER BY cause")
	expect(t, got, strings.Join(expired, "\n"), "events of expired overrides")

	f.exec("SET ROLE " + role)
	defer f.exec("RESET ROLE")
	for _, cause := range []string{
		"joined", "left", "evicted", "handed over", "given", "accepted", "new generation", "no live client",
	} {
		f.exec("INSERT INTO events (cause) VALUES ($1)", cause)
	}
	for _, cause := range []string{
		"drain", "undrain", "pause", "resume", "evict", "dropped", "replaced", "replaces", "Joined", "", "odd",
	} {
		_, err := f.sql.Exec(f.ctx, "INSERT INTO events (cause) VALUES ($1)", cause)
		if err == nil || !strings.Contains(err.Error(), `violates check constraint "events_actor"`) {
			t.Errorf("an application inserts the event %q: %v", cause, err)
		}
	}
}

// After an outage of all clients, whoever comes back says once from when to when none lived.
func TestATimeWithoutALiveClientIsAnEvent(t *testing.T) {
	t.Parallel()
	start := time.Now().UTC().Truncate(time.Second)
	minute := func(n int) time.Time { return start.Add(time.Duration(n) * time.Minute) }
	at := func(f *fixture, n int) { f.setClock(minute(n)) }
	outage := func(from, to int) string {
		return "from " + minute(from).Format(time.RFC3339) + " to " + minute(to).Format(time.RFC3339)
	}
	// beat renews sessions up to a minute, as heartbeats do that are more frequent than the TTL.
	beat := func(f *fixture, n int, clients ...*client) {
		at(f, n)
		for _, c := range clients {
			c.beat()
		}
	}
	// evict lets all of these clients check, after they have lived for their TTL.
	evict := func(f *fixture, n int, clients ...*client) {
		beat(f, n, clients...)
		f.checkNow()
		for _, c := range clients {
			c.evict()
		}
	}
	tests := []struct {
		name string
		run  func(f *fixture)
		want []string
	}{
		{"killed, then two start at once", func(f *fixture) {
			a, b := f.client("a"), f.client("b")
			beat(f, 3, a)
			beat(f, 5, b)
			at(f, 60)
			c, d := f.client("c"), f.client("d")
			evict(f, 61, c, d)
			evict(f, 90, d)
		}, []string{outage(5, 60)}},
		{"killed, then started with the same ID", func(f *fixture) {
			f.client("a")
			at(f, 60)
			evict(f, 61, f.client("a"))
		}, []string{outage(0, 60)}},
		{"started and killed again before it could evict", func(f *fixture) {
			f.client("a")
			at(f, 60)
			f.client("b")
			at(f, 70)
			evict(f, 71, f.client("c"))
		}, []string{outage(0, 60), outage(60, 70)}},
		{"ended in good order", func(f *fixture) {
			a := f.client("a")
			expect(f, testkit.Must(a.End(f.ctx, a.session))(f), true, "closed")
			at(f, 60)
			evict(f, 61, f.client("b"))
		}, nil},
		{"another lived", func(f *fixture) {
			a, b := f.client("a"), f.client("b")
			for n := 1; n <= 60; n++ {
				beat(f, n, b)
			}
			c := f.client("c")
			evict(f, 61, b, c)
			expect(f, f.text("SELECT from_id FROM events WHERE cause = 'evicted'"), a.id, "evicted")
		}, nil},
		{"started again before it had expired", func(f *fixture) {
			f.client("a")
			f.setClock(start.Add(usualTTL / 2))
			c := f.client("c")
			evict(f, 60, c)
		}, nil},
		{"away from the database, and back", func(f *fixture) {
			a, b := f.client("a"), f.client("b")
			at(f, 60)
			a.beat()
			c := f.client("c")
			evict(f, 61, a, c)
			expect(f, f.text("SELECT from_id FROM events WHERE cause = 'evicted'"), b.id, "evicted")
		}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := stoppedFixture(t)
			at(f, 0)
			test.run(f)
			got := f.text("SELECT reason FROM events WHERE cause = 'no live client' ORDER BY id")
			expect(t, got, strings.Join(test.want, "\n"), "events")
		})
	}
}

func TestAPlanOfManyMovesIsAnEventForEachPairOfClients(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const n = 2000
	a := f.client("a")
	a.join("l", n)
	sessions := []int64{a.session}
	for i := range 3 {
		c := f.client(fmt.Sprint("b", i))
		c.join("l", n)
		sessions = append(sessions, c.session)
	}
	f.events()
	targets := make([]int64, n)
	for i := range targets {
		targets[i] = sessions[i*7%4]
	}
	a.give("l", targets...)
	expect(t, f.text(`
		SELECT count(*), count(DISTINCT to_id),
			(SELECT count(*) FROM events, unnest(partitions) AS r, generate_series(lower(r), upper(r) - 1))
		FROM events WHERE cause = 'given'`), "4|4|2000", "rows, owners, partitions")
	expect(t, value[int](f, `SELECT count(*) FROM partitions AS p WHERE NOT EXISTS (
		SELECT FROM events AS e WHERE e.to_id = p.owner_id AND p.partition <@ e.partitions)`), 0, "partitions without an event")
}

func TestOldEventsGoInBatches(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := fixtureIn(t, emptyDatabase(t), "pgleases")
	role := f.role()
	f.grant("application", role)
	f.runAs = role
	c := f.client("c")
	f.exec(`
		INSERT INTO events (at, cause, actor)
		SELECT now() - interval '31 days', 'old', 'test' FROM generate_series(1, 1200);
		INSERT INTO events (at, cause, actor)
		SELECT now() - interval '29 days', 'young', 'test' FROM generate_series(1, 3)`)
	for _, want := range []string{"200|3", "0|3", "0|3"} {
		f.checkNow()
		c.evict()
		expect(t, f.text(`
			SELECT count(*) FILTER (WHERE cause = 'old'), count(*) FILTER (WHERE cause = 'young') FROM events`,
		), want, "old and young")
	}
	tx := testkit.Must(f.raw().Begin(f.ctx))(f)
	testkit.Must(tx.Exec(f.ctx, "SELECT FROM pgleases.events FOR UPDATE"))(f) // a check waits for no lock
	f.exec("UPDATE events_kept SET age = '28 days'")
	f.checkNow()
	c.evict()
	f.ok(tx.Commit(f.ctx))
	expect(t, value[int](f, "SELECT count(*) FROM events WHERE cause = 'young'"), 3, "locked")
	f.checkNow()
	c.evict()
	expect(t, value[int](f, "SELECT count(*) FROM events WHERE cause = 'young'"), 0, "young where less is kept")
}

// To keep events for ever, an operator may set an age that reaches back before the first valid
// time.
func TestAnyAgeMayBeKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client("c")
	f.exec("INSERT INTO events (at, cause, actor) VALUES (now() - interval '900 years', 'old', 'test')")
	for _, age := range []string{"10000 years", "170000000 years"} {
		f.exec("UPDATE events_kept SET age = $1::text::interval", age)
		expired := f.client("expired")
		f.expire(expired)
		expect(t, fmt.Sprint(c.evict().IDs), "[expired]", "evicted")
		expect(t, value[int](f, "SELECT count(*) FROM events WHERE cause = 'old'"), 1, "kept")
	}
}

// An event that the clock dated in the future would keep all later ones.
func TestEventsThatAreDatedAheadKeepNoOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client("c")
	f.exec("INSERT INTO events (at, cause, actor) VALUES (now() + interval '10 years', 'ahead', 'test')")
	f.exec(`
		INSERT INTO events (at, cause, actor) VALUES (now() - interval '31 days', 'old', 'test');
		INSERT INTO events (at, cause, actor) VALUES (now() + interval '1 hour', 'a little ahead', 'test')`)
	f.checkNow()
	c.evict()
	kept := f.text("SELECT cause FROM events WHERE cause IN ('ahead', 'old', 'a little ahead')")
	expect(t, kept, "a little ahead", "events that are kept")
}

// A dump has the transaction numbers of its server, which have no meaning on another server: new
// events there would come before them, even years later.
func TestEventsOfAnotherServerComeFirst(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	c := f.client("c")
	f.exec(`
		INSERT INTO events (tx, cause, actor, at) OVERRIDING SYSTEM VALUE
		SELECT (900000000000 + n)::text::xid8, 'old ' || n, 'test', now() - CASE WHEN n < 3 THEN interval '31 days' ELSE '0' END
		FROM generate_series(1, 4) AS n`)
	// An event of a third server, whose ids began anew.
	f.exec(`
		INSERT INTO events (tx, id, cause, actor) OVERRIDING SYSTEM VALUE
		SELECT '0', id, 'of a third', 'test' FROM events WHERE cause = 'old 4'`)
	f.exec("INSERT INTO events (cause, actor) VALUES ('new', 'test')")
	for range 2 {
		f.checkNow()
		c.evict()
		got := f.text("SELECT cause, tx::text = '0' FROM events ORDER BY tx, id")
		expect(t, got, "old 3|true\nof a third|true\nnew|false\nold 4|false", "events, in order")
		expect(t, len(c.evict().IDs), 0, "evicted")
	}
	run := c.run()
	f.expire(f.client("expired"), f.client("other"))
	clock := c.beat().Clock
	// The check's own number is then beyond those of its snapshot.
	end := f.lock("INSERT INTO events (cause) VALUES ('given')")
	evicted := testkit.Must(c.Evict(f.ctx, clock, 10*time.Minute, usualTTL, run))(f)
	end()
	expect(t, len(evicted.IDs), 2, "evicted")
	got := f.text("SELECT cause FROM events WHERE tx = '0' ORDER BY id")
	expect(t, got, "old 3\nof a third", "events that come first: not those that the check writes itself")
}

// By ids alone it would miss the events of a transaction that commits after one that began later.
func TestEventsCommittedLateAreFollowed(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	f.exec("GRANT INSERT (actor) ON events TO PUBLIC") // the session below is that of an application
	f.exec("INSERT INTO events (cause, actor) VALUES ('first', 'test')")
	commit := f.lock("INSERT INTO events (cause, actor) VALUES ('late', 'test') RETURNING id")
	f.exec("INSERT INTO events (cause, actor) VALUES ('early', 'test')")
	seen, tx, id := "", "0", int64(0) // as a reader continues that follows the events
	read := func() string {
		for _, line := range strings.Fields(f.text(`SELECT tx::text, id, cause FROM events
			WHERE (tx, id) > ($1::text::xid8, $2) AND (tx < pg_snapshot_xmin(pg_current_snapshot()) OR tx >= pg_snapshot_xmax(pg_current_snapshot()))
			ORDER BY tx, id`, tx, id)) {
			var cause string
			testkit.Must(fmt.Sscan(strings.ReplaceAll(line, "|", " "), &tx, &id, &cause))(f)
			seen += " " + cause
		}
		return seen
	}
	if before := read(); strings.Contains(before, "early") {
		t.Fatalf("it has read%s while one below is under way", before)
	}
	commit()
	// Once other tests' transactions have ended, too.
	f.until("all are seen", func() bool { return read() == " first late early" })
}

// An event that is written while a check waits is not taken for one of another server, although its
// transaction is younger than the check's.
func TestEventWrittenDuringACheckKeepsItsTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	check, writer := f.raw(), f.raw()
	tx := testkit.Must(writer.Begin(f.ctx))(f)
	testkit.Must(tx.Exec(f.ctx, "LOCK TABLE pgleases.events IN EXCLUSIVE MODE"))(f)
	made := make(chan error, 1)
	go func() {
		_, err := check.Exec(f.ctx, "SELECT pgleases.trim_events()")
		made <- err
	}()
	f.blocked(check)
	testkit.Must(tx.Exec(f.ctx, "INSERT INTO pgleases.events (cause, actor) VALUES ('young', 'test')"))(f)
	f.ok(tx.Commit(f.ctx))
	f.ok(<-made)
	expect(t, value[bool](f, "SELECT tx <> '0' FROM events WHERE cause = 'young'"), true, "it keeps its transaction")
}
