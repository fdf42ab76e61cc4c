package store_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	. "github.com/pgleases/pgleases/internal/store"
)

// version1 is a file of the SQL as it was in version 1 of the schema.
func version1(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/version1/" + name + ".sql")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// older is a database with the schema of version 1.
func older(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{TB: t, ctx: t.Context(), url: emptyDatabase(t), schema: "pgleases"}
	f.sql = f.raw()
	_, err := f.sql.PgConn().Exec(f.ctx, version1(t, "schema")+version1(t, "functions")).ReadAll()
	f.ok(err)
	f.exec("SET search_path = pgleases, public")
	return f
}

// An oldClient sends the statements of version 1.
type oldClient struct {
	f       *fixture
	conn    *pgx.Conn
	session int64
}

func (f *fixture) oldClient(id string) *oldClient {
	c := &oldClient{f, f.dial(f.url), random()}
	expect(f.TB, c.says("register", c.session, id, 0, random(), 600_000_000, "host", 1, "2026-01-01", 5000) != "", true, "registered")
	return c
}

// says is the answer to a statement: the first row, in Go's notation.
func (c *oldClient) says(name string, args ...any) string {
	c.f.Helper()
	answer, err := c.try(c.f.ctx, name, args...)
	c.f.ok(err)
	return answer
}

func (c *oldClient) try(ctx context.Context, name string, args ...any) (string, error) {
	rows, err := c.conn.Query(ctx, version1(c.f, name), append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return "", err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		return fmt.Sprint(values), err
	})
	return strings.Join(all, "\n"), err
}

// beats has it send heartbeats, each of which must find the session alive, until stop is called. The first one was answered when it
// returns, and one more is sent and answered before stop returns.
func (c *oldClient) beats() (stop func()) {
	ctx, cancel := context.WithCancel(c.f.ctx)
	conn := &oldClient{c.f, c.f.dial(c.f.url), c.session}
	var alive atomic.Int64
	var over atomic.Bool
	ended := later(func() error {
		defer over.Store(true)
		for {
			answer, err := conn.try(ctx, "heartbeat", c.session, 30_000) // the migration takes long where the machine is late
			if ctx.Err() != nil {
				return nil
			}
			if err != nil || !strings.HasPrefix(answer, "[true ") {
				return fmt.Errorf("heartbeat during the migration: %s, %v", answer, err)
			}
			alive.Add(1)
		}
	})
	answered := func(n int64) {
		c.f.until("a heartbeat is answered", func() bool { return alive.Load() >= n || over.Load() })
	}
	answered(1)
	return func() {
		answered(alive.Load() + 2) // one may have been under way
		cancel()
		c.f.ok(ended())
	}
}

func TestAMigrationFromVersion1GoesUnderLivingClients(t *testing.T) {
	t.Parallel()
	f := older(t)
	a, b := f.oldClient("a"), f.oldClient("b")
	a.says("join", a.session, "l", 4, 1, 5000)
	b.says("join", b.session, "l", 4, 1, 5000)
	give := func(c *oldClient, targets ...int64) {
		t.Helper()
		partitions := make([]int, len(targets))
		for i := range targets {
			partitions[i] = i
		}
		answer := c.says("apply", []string{"l"}, []int64{value[int64](f, "SELECT generation FROM leases")},
			[]string{"l", "l", "l", "l"}[:len(targets)], partitions, targets, 5000, false, "")
		expect(t, strings.HasPrefix(answer, "[true "), true, "applied: "+answer)
	}
	give(a, a.session, a.session, b.session, b.session)
	before := f.text("SELECT partition, owner, epoch FROM partitions ORDER BY partition")
	unguard := f.lock("SELECT guard('l', 0, 1)") // an application's transaction, open all the while
	plain := f.role()
	f.exec(strings.ReplaceAll(version1(t, "grants"), "pgleases_app", plain))
	f.exec("ALTER DEFAULT PRIVILEGES IN SCHEMA pgleases GRANT SELECT ON TABLES TO " + f.role()) // new tables begin with rights of somebody's

	stop := a.beats()
	f.ok(Migrate(f.ctx, f.raw(), "pgleases"))
	c := f.client("c") // of the new kind
	stop()
	unguard()
	expect(t, f.text("SELECT partition, owner, epoch FROM partitions ORDER BY partition"), before, "owners")
	expect(t, f.text("SELECT version, min_code FROM schema_version"), "2|1", "version")
	expect(t, value[bool](f, "SELECT timeline = timeline() FROM server"), true, "settled still")

	// A role keeps the rights that it had. Both kinds hand over to each other, join and leave.
	_, err := a.conn.Exec(f.ctx, "SET ROLE "+plain)
	f.ok(err)
	expect(t, strings.HasPrefix(a.says("heartbeat", a.session, 1000), "[true "), true, "a heartbeat of a role with the rights of version 1")
	a.says("evict", 0, 0, 0, 0, 0, 5000)
	c.join("l", 4)
	c.give("l", c.session)
	answer := a.says("release", a.session, []string{"l"}, []int{0}, []int64{1}, []string{}, 5000, "")
	expect(t, c.owned("l"), "0:2", "owned by the new: "+answer)
	give(a, a.session)
	expect(t, len(c.release([]Release{{"l", 0, 2}}).Released), 1, "released to the old")
	expect(t, strings.Contains(a.says("read", a.session, []string{"l"}), "[0 1] [3 1]"), true, a.says("read", a.session, []string{"l"}))
	f.exec("UPDATE leases SET next_check_at = 'infinity'")
	c.run()
	b.says("weight", b.session, "l", 2, 5000)
	expect(t, c.beat().Leases[0].Generation, value[int64](f, "SELECT generation FROM leases"), "generation that the new hears of, changed by the old")
	b.says("claim", []string{"l"}, 5000)
	b.says("plan", []string{"l"})
	b.says("mark", 5, 5000)
	b.says("superseder", "a")
	b.says("release", b.session, []string{"l", "l"}, []int{2, 3}, []int64{1, 1}, []string{"l"}, 5000, "")
	expect(t, b.says("close", b.session, 5000), "[true]", "ended")
	run, clock := c.run(), c.beat().Clock
	f.expire(c)
	evicted := a.says("evict", clock, 600_000_000, run.Timeline, run.Started, run.Mark, 5000)
	expect(t, strings.HasPrefix(evicted, "[[c] [l]"), true, "evicted by the old: "+evicted)

	// It may what grants.sql allows on a new schema.
	fresh := newFixture(t)
	other := fresh.role()
	grants, err := os.ReadFile("../../sql/grants.sql")
	f.ok(err)
	fresh.exec(strings.ReplaceAll(string(grants), "pgleases_app", other))
	rights := func(f *fixture, role string) string {
		return f.text(`SELECT relname, privilege_type FROM pg_class, aclexplode(relacl)
			WHERE relnamespace = 'pgleases'::regnamespace AND grantee = $1::text::regrole ORDER BY 1, 2`, role)
	}
	expect(t, rights(f, plain), rights(fresh, other), "rights after a migration")

	// A failover: what an old client has passes no guard until it has moved, as no old client renews.
	epoch := value[int64](f, "SELECT epoch FROM partitions WHERE partition = 1")
	settled(f.client("d"))
	expect(t, f.passes("l", 1, epoch), false, "a guard passes under an epoch of before")
	a.says("release", a.session, []string{"l"}, []int{1}, []int64{epoch}, []string{}, 5000, "")
	expect(t, f.passes("l", 1, value[int64](f, "SELECT epoch FROM partitions WHERE partition = 1")), true, "a guard passes after a hand-over by an old client")

	// It is what a new schema is.
	for _, query := range []string{
		`SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull, col_description(attrelid, attnum),
			(SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum) FROM pg_attribute
			WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'pgleases'::regnamespace) AND attnum > 0 ORDER BY 1, attnum`,
		"SELECT pg_get_functiondef(oid), obj_description(oid) FROM pg_proc WHERE pronamespace = 'pgleases'::regnamespace ORDER BY 1",
		"SELECT viewname, definition FROM pg_views WHERE schemaname = 'pgleases' ORDER BY 1",
		"SELECT indexdef FROM pg_indexes WHERE schemaname = 'pgleases' ORDER BY 1",
		"SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'pgleases.leases'::regclass ORDER BY 1",
	} {
		unquoted := strings.NewReplacer(`"pgleases".`, "pgleases.").Replace // as the files write it, where a role's database is made from them
		expect(t, unquoted(f.text(query)), unquoted(fresh.text(query)), "catalog after a migration")
	}
}

// As pg_dump does, or a dashboard's transaction.
func TestAMigrationMakesNoHeartbeatWaitForWhoeverReadsATableForLong(t *testing.T) {
	t.Parallel()
	f := older(t)
	a := f.oldClient("a")
	end := f.lock("LOCK TABLE clients, members, leases, partitions, server IN ACCESS SHARE MODE")
	migrating := f.raw()
	migrated := later(func() error { return Migrate(f.ctx, migrating, "pgleases") })
	f.blocked(migrating.PgConn().PID())
	for range 3 { // each would wait for the migration, which would wait for that transaction
		a.says("heartbeat", a.session, 5000)
	}
	f.until("the migration gives way", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_locks WHERE pid = $1 AND relation = 'members'::regclass", int64(migrating.PgConn().PID())) == 0
	})
	end()
	f.ok(migrated())
}
