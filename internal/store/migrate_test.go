package store_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	. "github.com/pgleases/pgleases/internal/store"
)

// version is a file of the SQL as it was in a version of the schema.
func version(t testing.TB, number int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("testdata/version%d/%s.sql", number, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// older is a database with the schema of an earlier version.
func older(t *testing.T, number int) *fixture {
	t.Helper()
	f := &fixture{TB: t, ctx: t.Context(), url: emptyDatabase(t), schema: "pgleases"}
	f.sql = f.raw()
	_, err := f.sql.PgConn().Exec(f.ctx, version(t, number, "schema")+version(t, number, "functions")).ReadAll()
	f.ok(err)
	f.exec("SET search_path = pgleases, public")
	return f
}

// An oldClient sends the statements of an earlier version.
type oldClient struct {
	f       *fixture
	version int
	conn    *pgx.Conn
	session int64
}

func (f *fixture) oldClient(version int, id string) *oldClient {
	c := &oldClient{f, version, f.dial(f.url), random()}
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
	rows, err := c.conn.Query(ctx, version(c.f, c.version, name), append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return "", err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		return fmt.Sprint(values), err
	})
	return strings.Join(all, "\n"), err
}

// beat are the arguments of a heartbeat that may wait so many milliseconds for a lock, and lives reads its answer.
func (c *oldClient) beat(lockWait int) []any {
	if c.version == 1 {
		return []any{c.session, lockWait}
	}
	return []any{strconv.FormatInt(c.session, 10), lockWait, "9000000000", "0", "0", "0", "0"}
}

func (c *oldClient) lives(answer string) bool {
	if c.version == 1 {
		return strings.HasPrefix(answer, "[true ")
	}
	return answer != "" && !strings.Contains(answer, "gone") && !strings.Contains(answer, "copied")
}

// beats has it send heartbeats, each of which must find the session alive, until stop is called. The first one was answered when it
// returns, and one more is sent and answered before stop returns.
func (c *oldClient) beats() (stop func()) {
	ctx, cancel := context.WithCancel(c.f.ctx)
	conn := &oldClient{c.f, c.version, c.f.dial(c.f.url), c.session}
	var alive atomic.Int64
	var over atomic.Bool
	ended := later(func() error {
		defer over.Store(true)
		for {
			answer, err := conn.try(ctx, "heartbeat", c.beat(30_000)...) // the migration takes long where the machine is late
			if ctx.Err() != nil {
				return nil
			}
			if err != nil || !c.lives(answer) {
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
	f := older(t, 1)
	a, b := f.oldClient(1, "a"), f.oldClient(1, "b")
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
	f.exec(strings.ReplaceAll(version(t, 1, "grants"), "pgleases_app", plain))
	f.exec("ALTER DEFAULT PRIVILEGES IN SCHEMA pgleases GRANT SELECT ON TABLES TO " + f.role()) // new tables begin with rights of somebody's

	stop := a.beats()
	f.ok(Migrate(f.ctx, f.raw(), "pgleases"))
	c := f.client("c") // of the new kind
	stop()
	unguard()
	expect(t, f.text("SELECT partition, owner, epoch FROM partitions ORDER BY partition"), before, "owners")
	expect(t, f.text("SELECT version, min_code FROM schema_version"), "3|1", "version")
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
	fresh, other := freshWith(t)
	expect(t, f.rightsOf(plain), fresh.rightsOf(other), "rights after a migration")

	// A failover: what an old client has passes no guard until it has moved, as no old client renews.
	epoch := value[int64](f, "SELECT epoch FROM partitions WHERE partition = 1")
	settled(f.client("d"))
	expect(t, f.passes("l", 1, epoch), false, "a guard passes under an epoch of before")
	a.says("release", a.session, []string{"l"}, []int{1}, []int64{epoch}, []string{}, 5000, "")
	expect(t, f.passes("l", 1, value[int64](f, "SELECT epoch FROM partitions WHERE partition = 1")), true, "a guard passes after a hand-over by an old client")

	f.sameAs(fresh)
}

// sameAs compares the schema with another, which was made anew.
func (f *fixture) sameAs(fresh *fixture) {
	f.Helper()
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
		expect(f.TB, unquoted(f.text(query)), unquoted(fresh.text(query)), "catalog after a migration")
	}
}

// rightsOf are those that a role has on tables and views.
func (f *fixture) rightsOf(role string) string {
	f.Helper()
	return f.text(`SELECT relname, privilege_type FROM pg_class, aclexplode(relacl)
		WHERE relnamespace = 'pgleases'::regnamespace AND grantee = $1::text::regrole ORDER BY 1, 2`, role)
}

// freshWith is a new schema, and a role with the rights of grants.sql on it.
func freshWith(t *testing.T) (fresh *fixture, role string) {
	t.Helper()
	fresh = newFixture(t)
	role = fresh.role()
	grants, err := os.ReadFile("../../sql/grants.sql")
	fresh.ok(err)
	fresh.exec(strings.ReplaceAll(string(grants), "pgleases_app", role))
	return fresh, role
}

// Clients of version 2 call functions of the schema, which are new: they read, plan, apply, release and evict as before.
func TestAMigrationFromVersion2GoesUnderLivingClients(t *testing.T) {
	t.Parallel()
	f := older(t, 2)
	a, b := f.oldClient(2, "a"), f.oldClient(2, "b")
	for _, c := range []*oldClient{a, b} {
		expect(t, strings.HasPrefix(c.says("join", c.session, "l", 4, 1, 1, 5000), "[true true "), true, "joined")
	}
	give := func(c *oldClient, target int64, partitions ...int) {
		t.Helper()
		moves := make([]int, 4)
		for _, p := range partitions {
			moves[p] = 1
		}
		answer := c.says("apply", []string{"l"}, []int64{value[int64](f, "SELECT generation FROM leases")}, []string{"l"}, []int64{target},
			[]string{"l"}, []int{0}, []int{3}, moves, 5000, -1, "")
		expect(t, strings.HasPrefix(answer, "[true "), true, "applied: "+answer)
	}
	give(a, a.session, 0, 1)
	give(a, b.session, 2, 3)
	before := f.text("SELECT partition, owner, epoch FROM partitions ORDER BY partition")
	unguard := f.lock("SELECT guard('l', 0, 1)")
	plain := f.role()
	f.exec(strings.ReplaceAll(version(t, 2, "grants"), "pgleases_app", plain))

	stop := a.beats()
	f.ok(Migrate(f.ctx, f.raw(), "pgleases"))
	stop()
	unguard()
	expect(t, f.text("SELECT partition, owner, epoch FROM partitions ORDER BY partition"), before, "owners")
	expect(t, f.text("SELECT version, min_code FROM schema_version"), fmt.Sprintf("%d|1", Version), "version")

	// With the rights that it had, and those that the migration added.
	_, err := b.conn.Exec(f.ctx, "SET ROLE "+plain)
	f.ok(err)
	c := f.client("c")
	c.join("l", 4)
	release := func(o *oldClient, partition int, epoch int64, leaves ...string) string {
		t.Helper()
		planned := make([]int64, len(leaves))
		return o.says("release", o.session, []string{"l"}, []int{partition}, []int64{epoch}, []int64{0}, leaves, planned, leaves, 9, 5000)
	}
	give(b, c.session, 2)
	expect(t, strings.Contains(release(b, 2, 1), "2"), true, "released by the old")
	expect(t, c.owned("l"), "2:2", "owned by the new")
	b.says("announce", []string{"l"}, []int64{c.session}, 5000, "")
	expect(t, strings.Contains(b.says("plan", []string{"l"}, false), "[a b c]"), true, "members that the old plans for")
	c.give("l", b.session, a.session, a.session)
	expect(t, len(c.release([]Release{{"l", 2, 2}}).Released), 1, "released to the old")
	expect(t, strings.Contains(a.says("read", a.session, []string{"l"}), "[0 1 2]"), true, a.says("read", a.session, []string{"l"}))
	release(b, 3, 1, "l")
	expect(t, strings.Contains(b.says("close", b.session, 5000), "true"), true, "ended")
	f.expire(c)
	run, clock := f.client("d").run(), value[int64](f, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
	evicted := a.says("evict", clock, 600_000_000, 600_000_000, run.Timeline, run.Started, run.Mark, 5000)
	expect(t, strings.HasPrefix(evicted, "[[c] [l]"), true, "evicted by the old: "+evicted)
	expect(t, f.events(), strings.Join([]string{"joined|l|->c|-", "handed over|l|b>c|{[2,3)}", "handed over|l|c>a|{[2,3)}",
		"handed over|l|b>-|{[3,4)}", "left|l|b>-|-", "evicted|-|c>-|-"}, "\n"), "events of both")

	fresh, role := freshWith(t)
	expect(t, f.rightsOf(plain), fresh.rightsOf(role), "rights after a migration")
	f.sameAs(fresh)
}

// As pg_dump does, or a dashboard's transaction.
func TestAMigrationMakesNoHeartbeatWaitForWhoeverReadsForLong(t *testing.T) {
	t.Parallel()
	for _, number := range []int{1, 2} {
		for _, reads := range []string{"LOCK TABLE clients, members, leases, partitions, server IN ACCESS SHARE MODE", "SELECT FROM status"} {
			t.Run(fmt.Sprintf("version %d, %s", number, reads), func(t *testing.T) {
				t.Parallel()
				f := older(t, number)
				a := f.oldClient(number, "a")
				end := f.lock(reads)
				migrating := f.raw()
				migrated := later(func() error { return Migrate(f.ctx, migrating, "pgleases") })
				f.blocked(migrating.PgConn().PID())
				for range 3 { // each would wait for the migration, which would wait for that transaction
					a.says("heartbeat", a.beat(5000)...)
				}
				f.until("the migration gives way", func() bool {
					return value[int](f, "SELECT count(*) FROM pg_locks WHERE pid = $1 AND relation = 'members'::regclass", int64(migrating.PgConn().PID())) == 0
				})
				end()
				f.ok(migrated())
			})
		}
	}
}

// Whoever runs the text in a transaction of a tool waits for locks as before in what follows, and its own limit is kept.
func TestTheTextOfTheSchemaLeavesNoSettingBehind(t *testing.T) {
	t.Parallel()
	f := &fixture{TB: t, ctx: t.Context(), url: emptyDatabase(t), schema: "pgleases"}
	conn := f.raw()
	_, err := conn.PgConn().Exec(f.ctx, "BEGIN; SET LOCAL lock_timeout = '7s'; "+StatementsFor("pgleases").Schema).ReadAll()
	f.ok(err)
	expect(t, valueOn[string](f, conn, "SHOW lock_timeout"), "7s", "lock_timeout after the text")
	_, err = conn.Exec(f.ctx, "COMMIT")
	f.ok(err)
	expect(t, valueOn[string](f, conn, "SHOW lock_timeout"), "0", "lock_timeout after the transaction")
}
