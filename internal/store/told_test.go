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
)

// heard is a session whose leases were told, on a marked run of the server. A membership is gone since that nobody was told of: as
// long as heartbeats tell two leases, they tell what they told before.
func heard(f *fixture) *client {
	f.Helper()
	c := f.client("c")
	c.join("l", 1)
	c.join("m", 1)
	f.exec("UPDATE leases SET next_check_at = 'infinity'")
	c.run()
	// As if they had changed before every transaction on this server, where other tests have theirs open; one after all.
	f.exec(`SET session_replication_role = replica; -- so that no trigger sets it
		UPDATE leases SET changed = CASE WHEN name = 'dumped' THEN '1000000000000'::xid8 ELSE '1'::xid8 END;
		RESET session_replication_role`)
	c.beat()
	f.exec("DELETE FROM members WHERE lease = 'm'")
	c.hears(2)
	return c
}

func (c *client) hears(leases int) {
	c.f.Helper()
	expect(c.f.TB, len(c.beat().Leases), leases, "leases told")
}

func TestLeasesAreToldAgainOnlyAfterAChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := heard(f)
	for _, change := range []string{
		"UPDATE partitions SET asked_at = now()", "UPDATE server SET era = era + 1", "INSERT INTO identities VALUES ('other', 1, 1, now())",
	} {
		f.exec(change)
		c.hears(2)
	}
	f.exec("UPDATE leases SET planned_at = now() WHERE name = 'm'")
	c.hears(1)
}

func TestLeasesAreToldAgainAfterAMinute(t *testing.T) {
	t.Parallel()
	c := heard(newFixture(t))
	c.pg().ToldBefore(50 * time.Second)
	c.hears(2)
	c.pg().ToldBefore(10 * time.Second)
	c.hears(1)
}

func TestLeasesAreToldAgainOnAnotherRunOfTheServer(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(f *fixture){
		"a crash":                   func(f *fixture) { f.mark(0) },
		"a crash, and marked since": func(f *fixture) { f.mark(random()) },
		"a copy that was started apart": func(f *fixture) {
			f.exec("CREATE FUNCTION public.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.pg_postmaster_start_time() + interval '1 second' $$")
			text := f.text("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'heartbeat' AND pronargs = 7")
			f.exec(strings.ReplaceAll(text, "pg_catalog.pg_postmaster_start_time()", "public.pg_postmaster_start_time()"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := heard(f)
			change(f)
			c.hears(1)
		})
	}
}

func TestLeasesAreToldToEachSessionAndOnEachConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := heard(f)
	other := f.client("other")
	other.Conn = c.Conn
	other.hears(0)
	c.hears(1)
	f.exec("DELETE FROM members")
	c.hears(1)
	c.Conn = f.any()
	c.hears(0)
}

// A plan that is due later may have to be made by any client then, as the one that makes it may die.
func TestALeaseWithAPlanDueIsToldInEachHeartbeat(t *testing.T) {
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
func TestALeaseThatAnotherServerChangedIsNoChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec("INSERT INTO leases (name, partitions, generation, created_generation, epoch_floor, next_check_at, planned_at) VALUES ('dumped', 1, 1, 1, 0, 'infinity', now())")
	c := heard(f)
	c.hears(2)
	f.exec("UPDATE leases SET generation = generation + 1 WHERE name = 'dumped'")
	c.hears(1)
}

// Transactions commit in another order than they begin in, or change a lease in. No order keeps a change from being told.
func TestAHeartbeatTellsWhatWasCommittedBeforeIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.ctx = t.Context() // it takes as long as it takes
	c := f.client("c")
	names := []string{"one", "two", "three"}
	for _, name := range names {
		c.join(name, 1)
	}
	f.exec("UPDATE leases SET next_check_at = 'infinity'")
	c.run()
	conns := make([]*pgx.Conn, len(names))
	for i := range conns {
		conns[i] = f.session()
	}
	rapid.Check(t, func(t *rapid.T) {
		c.Conn = f.any()                   // to which nothing was told
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
					tx, err := conns[i].Begin(f.ctx)
					f.ok(err)
					open[i] = tx
				}
				statement := rapid.SampledFrom([]string{
					"SELECT pg_current_xact_id()", "SAVEPOINT s", "UPDATE leases SET generation = generation + 1 WHERE name = '" + names[i] + "'",
				}).Draw(t, "statement")
				_, err := open[i].Exec(f.ctx, statement, pgx.QueryExecModeSimpleProtocol)
				f.ok(err)
			},
			"commit": func(t *rapid.T) { end(rapid.IntRange(0, len(conns)-1).Draw(t, "transaction")) },
		})
	})
}
