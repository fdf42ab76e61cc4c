package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// strange is the name of a lease that a heartbeat has to quote.
const strange = `m'\"{},$1 `

// heard returns a session whose leases were returned, on a server incarnation with a boot marker. A
// weight has changed since by hand, which a heartbeat returns only together with all leases.
func heard(f *fixture, changed string) *client {
	f.Helper()
	return heardMany(f, changed, 0, 0)
}

// heardMany returns such a session that is a member of more leases, beside dropped leases.
func heardMany(f *fixture, changed string, more, dropped int) *client {
	f.Helper()
	c := f.client("c")
	c.join("l", 1)
	c.join(strange, 1)
	f.exec(`
		INSERT INTO leases SELECT 'dropped-' || n, 0, 1, 1, 1, 'infinity', now() FROM generate_series(1, $1) AS n`, dropped)
	f.exec(`
		INSERT INTO leases SELECT 'more-' || n, 1, 1, 1, 1, 'infinity', now() FROM generate_series(1, $1) AS n`, more)
	f.exec(`
		INSERT INTO members SELECT 'more-' || n, $2, 1, now(), 1 FROM generate_series(1, $1) AS n`, more, c.session)
	f.client("other").join("other's", 1)
	f.exec("UPDATE leases SET plan_due_at = 'infinity'")
	c.run()
	f.unchanged(changed)
	c.beat()
	f.exec("UPDATE members SET weight = 7 WHERE lease LIKE 'm%'")
	c.hears(false)
	return c
}

// unchanged makes all leases look as if they had changed before every transaction on this server,
// on which other tests have theirs open; or on another server.
func (f *fixture) unchanged(changed string) {
	f.Helper()
	f.exec(`SET session_replication_role = replica; -- so that no trigger sets it
		UPDATE leases SET changed = '` + changed + `'::xid8;
		RESET session_replication_role`)
}

// hears expects that the next heartbeat returns the leases again, or does not.
func (c *client) hears(anew bool) {
	c.f.Helper()
	heard := slices.ContainsFunc(c.beat().Leases, func(l LeaseBeat) bool { return l.Name == strange && l.Weight == 7 })
	expect(c.f.TB, heard, anew, "leases are returned again")
}

// A heartbeat returns the leases again only if they may have changed since the last answer.
func TestHeartbeatRepeatsLeasesAfterAChangeOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	tests := map[string]struct {
		change func(f *fixture, c *client)
		again  bool
	}{
		"none of its leases changed": {func(f *fixture, _ *client) {
			f.exec(`
				UPDATE partitions SET asked_at = now();
				UPDATE server SET generation = generation + 1;
				INSERT INTO identities VALUES ('another', 1, 1, now());
				UPDATE leases SET planned_at = now() WHERE name = 'other''s'`)
		}, false},
		"a lease changed": {func(f *fixture, _ *client) {
			f.exec("UPDATE leases SET planned_at = now() WHERE name LIKE 'm%'")
		}, true},
		"it joined another": {func(f *fixture, c *client) {
			c.join("new", 1)
			f.exec("UPDATE leases SET plan_due_at = 'infinity'")
			f.unchanged("1")
		}, true},
		"the end of the session was refused": {func(_ *fixture, c *client) {
			c.end(false) // the client does not know why
		}, true},
		"a leave was refused": {func(f *fixture, c *client) {
			f.exec("DELETE FROM members WHERE lease = 'l'")
			expect(f.TB, len(c.release(nil, "l").Left), 0, "leases left")
		}, true},
		"a leave was done": {func(f *fixture, c *client) {
			expect(f.TB, len(c.release(nil, "l").Left), 1, "leases left")
		}, true},
		"50 s have passed":          {func(_ *fixture, c *client) { c.pg().ToldBefore(50 * time.Second) }, false},
		"a minute has passed":       {func(_ *fixture, c *client) { c.pg().ToldBefore(time.Minute) }, true},
		"a crash":                   {func(f *fixture, _ *client) { f.setMarker(0) }, true},
		"a crash, and marked since": {func(f *fixture, _ *client) { f.setMarker(random()) }, true},
		"a copy that was started apart": {func(f *fixture, _ *client) {
			const start = "pg_postmaster_start_time()"
			f.exec("CREATE FUNCTION public." + start + " RETURNS timestamptz LANGUAGE sql AS " +
				"$$ SELECT pg_catalog.pg_postmaster_start_time() + interval '1 second' $$")
			text := f.text("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'heartbeat'")
			f.exec(strings.ReplaceAll(text, "pg_catalog."+start, "public."+start))
		}, true},
	}
	for of, size := range map[string]struct{ more, dropped int }{
		"two": {}, "many": {200, 0}, "many beside dropped ones": {200, 10_000},
	} {
		for name, test := range tests {
			t.Run(of+" leases: "+name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				c := heardMany(f, "1", size.more, size.dropped)
				test.change(f, c)
				c.hears(test.again)
			})
		}
	}
}

// To look each lease up, by its name, takes milliseconds.
func TestHeartbeatOfManyLeasesLooksNoneUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := heardMany(f, "1", 3000, 0)
	f.ok(c.pg().Exec(f.ctx, "BEGIN"))
	lookups := func() int64 {
		return valueOn[int64](f, c.pg().Raw(), `
			SELECT sum(idx_scan)::bigint FROM pg_stat_xact_user_tables
			WHERE schemaname = $1 AND relname IN ('leases', 'members')`, f.schema)
	}
	before, rows := lookups(), c.reads("leases", "members")
	expect(t, len(c.beat().Leases), 3002, "leases")
	if n, read := lookups()-before, c.reads("leases", "members")-rows; n > 5 || read > 3100 {
		t.Errorf("%d lookups, and %d rows read", n, read)
	}
	f.ok(c.pg().Exec(f.ctx, "COMMIT"))
}

// Dropped leases keep their rows for ever, and a schema may have a lease for each tenant.
func TestHeartbeatReadsItsOwnLeasesOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := heard(f, "1")
	f.exec(`INSERT INTO leases SELECT 'tenant-' || n, 0, 1, 1, 1, 'infinity', now() FROM generate_series(1, 5000) AS n;
		INSERT INTO members SELECT 'tenant-' || n, n, 1, now(), 1 FROM generate_series(1, 5000) AS n`)
	f.exec("ANALYZE leases, members")
	f.unchanged("1")
	for what, beat := range map[string]func(){
		"is told": func() {
			f.exec("UPDATE leases SET planned_at = now() WHERE name LIKE 'm%'")
			c.hears(true)
		},
		"is not": func() { c.beat() },
	} {
		f.ok(c.pg().Exec(f.ctx, "BEGIN"))
		before := c.reads("leases", "members")
		beat()
		if n := c.reads("leases", "members") - before; n > 20 {
			t.Errorf("a heartbeat that %s reads %d rows", what, n)
		}
		f.ok(c.pg().Exec(f.ctx, "COMMIT"))
	}
}

// reads returns how many rows of tables the open transaction of the client's connection has read.
func (c *client) reads(tables ...string) (rows int64) {
	c.f.Helper()
	c.f.ok(c.pg().Raw().QueryRow(c.f.ctx, `
		SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables
		WHERE schemaname = $1 AND relname = ANY ($2)`, c.f.schema, tables).Scan(&rows))
	return rows
}

func TestHeartbeatReturnsLeasesPerSessionAndConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := heard(f, "1")
	another := f.client("another")
	another.Conn = c.Conn
	expect(t, len(another.beat().Leases), 0, "leases returned to a session without a lease")
	c.hears(true)
	f.exec("UPDATE members SET weight = 1")
	c.hears(true)
	c.Conn = f.any()
	c.hears(false)
}

// Any client may have to make a plan that is due later, because the client that makes it may crash.
func TestHeartbeatReturnsALeaseWithAPlanDue(t *testing.T) {
	t.Parallel()
	f := stoppedFixture(t)
	c := f.client("c")
	c.run()
	c.join("l", 1)
	now := time.Now()
	f.setClock(now)
	f.lease("l", func(l *fakestore.Lease, clock int64) { l.NextCheckAt = clock + 500_000 })
	expect(t, c.beat().Leases[0].DueIn, 500*time.Millisecond, "due in")
	f.setClock(now.Add(200 * time.Millisecond))
	expect(t, c.beat().Leases[0].DueIn, 300*time.Millisecond, "due in, without a change")
}

// A lease of a restored dump has the number of a transaction of another server.
func TestHeartbeatIgnoresAChangeOfAnotherServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := heard(f, "1000000000000")
	c.hears(false)
	f.exec("UPDATE leases SET generation = generation + 1 WHERE name LIKE 'm%'")
	c.hears(true)
}

// Transactions commit in another order than they begin or change a lease. In every order the change
// is returned.
func TestHeartbeatReturnsWhatWasCommittedBefore(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	f.ctx = t.Context() // without a time limit
	c := f.client("c")
	names := []string{"one", "two", "three"}
	for _, name := range names {
		c.join(name, 1)
	}
	f.exec("UPDATE leases SET plan_due_at = 'infinity'")
	c.run()
	conns := make([]*pgx.Conn, len(names))
	for i := range conns {
		conns[i] = f.session()
	}
	rapid.Check(t, func(t *rapid.T) {
		c.Conn = f.any()                   // which has no earlier answer
		open := make([]pgx.Tx, len(conns)) // each changes the lease of its number
		end := func(i int) {
			if open[i] != nil {
				f.ok(open[i].Commit(f.ctx))
				open[i] = nil
			}
		}
		defer func() {
			for i := range open {
				end(i)
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				want := f.text("SELECT name || ' ' || generation FROM leases ORDER BY name")
				var got []string
				for _, l := range c.beat().Leases {
					got = append(got, fmt.Sprint(l.Name, " ", l.Generation))
				}
				if slices.Sort(got); strings.Join(got, "\n") != want {
					t.Fatalf("told generations %q, not %q", got, want)
				}
			},
			"statement": func(t *rapid.T) {
				i := rapid.IntRange(0, len(conns)-1).Draw(t, "transaction")
				if open[i] == nil {
					tx := testkit.Must(conns[i].Begin(f.ctx))(f)
					open[i] = tx
				}
				statement := rapid.SampledFrom([]string{
					"SELECT pg_current_xact_id()",
					"SAVEPOINT s",
					"UPDATE leases SET generation = generation + 1 WHERE name = '" + names[i] + "'",
				}).Draw(t, "statement")
				testkit.Must(open[i].Exec(f.ctx, statement, pgx.QueryExecModeSimpleProtocol))(f)
			},
			"commit": func(t *rapid.T) { end(rapid.IntRange(0, len(conns)-1).Draw(t, "transaction")) },
		})
	})
}
