package store_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/sql"
)

func TestMigratingTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	f := fixtureIn(t, emptyDatabase(t), `Odd "name"; --`)
	f.exec("UPDATE server SET generation = 7")
	f.ok(Engine.Migrate(f.ctx, f.sql, f.schema))
	// The text alone, as goose would run it.
	testkit.Must(f.sql.PgConn().Exec(f.ctx, StatementsFor(f.schema).Schema).ReadAll())(f)
	got := f.text("SELECT generation, (SELECT count(*) FROM server), (SELECT count(*) FROM schema_version) FROM server")
	expect(t, got, "7|1|1", "server")
}

// The clients of the first migration are at work when the second has the lock: if it changed the
// schema again, it would wait for them, and they for it.
func TestRacingMigrationsAllSucceedAndOneIsCarriedOut(t *testing.T) {
	t.Parallel()
	f := emptyFixture(t, "pgleases")
	f.exec("SELECT pg_advisory_lock(7358216409153)") // as the first has it
	var wg sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		conn := f.raw()
		testkit.Must(conn.Exec(f.ctx, "SET default_transaction_isolation = serializable"))(f)
		wg.Go(func() { errs[i] = Engine.Migrate(f.ctx, conn, "pgleases") })
	}
	f.until("all wait", func() bool {
		return value[int](f, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == len(errs)
	})
	f.exec("SELECT pg_advisory_unlock(7358216409153)")
	wg.Wait()
	f.ok(errors.Join(errs...))
	expect(t, value[int](f, `
		SELECT count(*) FROM pg_proc AS p, pg_attribute AS a WHERE p.pronamespace = 'pgleases'::regnamespace
		AND a.attrelid = 'pgleases.leases'::regclass AND a.attname = 'name' AND p.xmin <> a.xmin`,
	), 0, "functions that were made later than the tables")
}

// Without sequential scans a read of one row may look so expensive that the server compiles it,
// which takes 0.1 s.
func TestAFunctionThatReadsByIndexCompilesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	expect(t, f.text(`SELECT proname FROM pg_proc WHERE pronamespace = 'pgleases'::regnamespace
		AND 'enable_seqscan=off' = ANY (proconfig) AND NOT 'jit=off' = ANY (proconfig)`), "", "functions without jit = off")
}

func TestAnySchemaNameServes(t *testing.T) {
	t.Parallel()
	// What means something to SQL, to the driver's placeholders or to the embedded files.
	for _, schema := range testkit.Some(
		`$pgleases_body$`, `Order "Leases"; -- 'x' \ $1 %s /* ü`, `pgleases.pgleases.`,
		"SELECT", strings.Repeat("ü", 31)+`"`,
	) {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			f := fixtureIn(t, emptyDatabase(t), schema)
			schemas := value[int](f, "SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema)
			expect(t, schemas, 1, "schemas of that name")
			protocol(f)
		})
	}
}

// As change data capture and blue/green upgrades create it: the server refuses updates of a table
// that it cannot replicate.
func TestAPublicationForAllTablesHindersNothing(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := emptyFixture(t, "pgleases")
	f.exec("CREATE PUBLICATION everything FOR ALL TABLES")
	f.ok(Engine.Migrate(f.ctx, f.sql, "pgleases"))
	f.exec("SET search_path = pgleases, public")
	protocol(f)
	f.exec(`
		SELECT pause('l', 'why'), resume('l', 'why'), new_server_generation();
		UPDATE events_kept SET age = '1 day';
		UPDATE schema_version SET min_code = 1`)
}

// The connection has the database's encoding, as pgx leaves it.
func TestADatabaseMayHaveAnotherEncoding(t *testing.T) {
	t.Parallel()
	more := map[string]int{"LATIN1": 0, "SQL_ASCII": 2}
	for _, encoding := range testkit.Some("LATIN1", "SQL_ASCII") {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			maker := emptyFixture(t, "")
			name := fmt.Sprintf("pgleases_encoded_%d", random())
			maker.exec(fmt.Sprintf(`
				CREATE DATABASE %s TEMPLATE template0 ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C'`, name, encoding))
			t.Cleanup(func() { _, _ = maker.sql.Exec(maker.ctxOfCleanup(), "DROP DATABASE "+name+" WITH (FORCE)") })
			u := testkit.Must(url.Parse(maker.url))(maker)
			u.Path = "/" + name
			maker.ok(Engine.Migrate(maker.ctx, maker.dial(u.String()), "pgleases"))
			u.RawQuery += "&client_encoding=UTF8" // for the test's own queries
			f := fixtureIn(t, u.String(), "pgleases")
			protocol(f)
			c := f.client("größe")
			c.join("größe", 2)
			octets := value[int](f, "SELECT octet_length(name) - 5 FROM leases WHERE name <> 'l'")
			expect(t, octets, more[encoding], "octets more than letters")
			expect(t, c.owned("größe"), "", "owned")
		})
	}
}

// protocol runs every statement once, in the order of the lives of two clients.
func protocol(f *fixture) {
	f.Helper()
	a, b := f.client("a"), f.client("b")
	run := a.run()
	expect(f.TB, a.join("l", 4).Joined, true, "joined")
	b.join("l", 4)
	expect(f.TB, a.give("l", a.session, a.session, b.session, b.session).Given, 4, "given")
	expect(f.TB, a.owned("l"), "0:1 1:1", "owned")
	expect(f.TB, a.give("l", b.session).Asked, 1, "asked")
	tx := testkit.Must(f.session().Begin(f.ctx))(f)
	f.ok(guard(f, tx, "l", 2, 1))
	f.ok(tx.Rollback(f.ctx))
	f.ok(a.Fence(f.ctx, a.session, []Release{{"l", 0, 1}}))
	expect(f.TB, a.owned("l"), "0:2> 1:1", "owned")
	released := a.release([]Release{{"l", 0, 2}, {"l", 1, 1}}, "l")
	expect(f.TB, len(released.Released), 2, "released")
	expect(f.TB, len(b.claims("l")), 1, "claimed")
	protocolOfLocks(f, a)
	f.ok(a.pg().HoldLiveness(f.ctx, a.session, -random()))
	expect(f.TB, len(a.sees().Held), 1, "locks of sessions")
	testkit.Must(a.pg().EvictDisconnected(f.ctx, []Absence{{Session: a.session}}, SessionEnds{}, run))(f)
	a.end(true)
	expect(f.TB, b.beat().Alive, true, "alive")
	f.expire(b)
	expect(f.TB, len(a.evict().IDs), 1, "evicted")
	expect(f.TB, testkit.Must(a.AcceptServer(f.ctx, 0, run, 0))(f), 0, "server generation accepted")
	f.ok(a.RejectServer(f.ctx, 0, 0))
	testkit.Must(a.Superseder(f.ctx, "b"))(f)
	testkit.Must(a.Listen(f.ctx))(f)
}

// protocolOfLocks runs every statement of the locks on a client's connection, those of the
// application's too.
func protocolOfLocks(f *fixture, c *client) {
	f.Helper()
	app := c.pg().Raw()
	locks := locksOn(app, f.schema, 5000)
	run := c.run()
	for nonce, outcome := range []LockOutcome{LockGranted, LockWaits} {
		request := LockRequest{"x", c.session, int64(nonce) + 1, false, true, tomorrow(), run}
		answer, _, err := locks.Acquire(f.ctx, request, nil)
		f.ok(err)
		expect(f.TB, answer.Outcome, outcome, "acquired")
	}
	rows := testkit.Must(locks.List(f.ctx, app, "", "", 10))(f)
	expect(f.TB, len(rows), 1, "listed")
	testkit.Must(app.Exec(f.ctx, StatementsFor(f.schema).LockGuard,
		pgx.QueryExecModeSimpleProtocol, "x", rows[0].Tokens[0], int64(1000)))(f)
	f.ok(c.pg().ListenToLocks(f.ctx, c.session))
	became, _, err := locks.Release(f.ctx, 1e9, c.session, LockRelease{Name: "x", Nonce: 1}, run)
	f.ok(err)
	expect(f.TB, became, LockReleased, "release")
	found, _, err := c.pg().LookAtLocks(f.ctx, c.session, []int64{2}, false)
	f.ok(err)
	expect(f.TB, found[0].Token > 0, true, "granted")
	answer := testkit.Must(c.pg().ReleaseLocks(f.ctx, c.session, []LockRelease{{Name: "x", Nonce: 2}}, run))(f)
	expect(f.TB, len(answer.Released), 1, "released")
	expect(f.TB, testkit.Must(c.pg().SweepLocks(f.ctx))(f), true, "swept")
}

// guard is the fence as the library calls it, for a client with a minute of trust.
func guard(f *fixture, tx pgx.Tx, lease string, partition int, epoch int64) error {
	statement := StatementsFor(f.schema).Guard
	_, err := tx.Exec(f.ctx, statement, pgx.QueryExecModeSimpleProtocol, lease, partition, epoch, 60_000)
	return err
}

func TestEverythingThatOperatorsSeeHasAComment(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	statements := StatementsFor("pgleases")
	statements.Schema = ""
	missing := f.text(`
		SELECT c.relname, a.attname FROM pg_class AS c
		LEFT JOIN (SELECT attrelid, attname, attnum FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped
		           UNION ALL SELECT oid, NULL, 0 FROM pg_class) AS a ON a.attrelid = c.oid
		WHERE c.relnamespace = 'pgleases'::regnamespace AND c.relkind IN ('r', 'v')
		  AND coalesce(col_description(c.oid, nullif(a.attnum, 0)), CASE WHEN a.attnum = 0 THEN obj_description(c.oid, 'pg_class') END) IS NULL
		UNION ALL
		SELECT p.proname, NULL FROM pg_proc AS p
		WHERE p.pronamespace = 'pgleases'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
		  AND strpos($1, '.' || p.proname || '(') = 0`, fmt.Sprint(statements)) // whose files describe what they call
	expect(t, missing, "", "without comment")
}

func TestARoleMayMigrateASchemaThatWasMadeForIt(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := emptyFixture(t, "made")
	role := f.role()
	f.exec("REVOKE CREATE ON DATABASE " + f.sql.Config().Database + " FROM PUBLIC")
	var misfit *SchemaError
	err := Engine.Migrate(f.ctx, f.as(role), "made")
	if !errors.As(err, &misfit) || !strings.Contains(err.Error(), "create it") {
		t.Errorf("without the schema: %v", err)
	}
	f.exec("CREATE SCHEMA made AUTHORIZATION " + role)
	f.ok(Engine.Migrate(f.ctx, f.as(role), "made"))
	f.exec("REVOKE CREATE ON SCHEMA made FROM " + role)
	f.ok(Engine.Migrate(f.ctx, f.as(role), "made")) // it has nothing to change, and so needs no right
}

// A role that may create objects in the schema has created one of ours before. A superuser that
// migrates must not run its trigger, nor leave it a function that others call.
func TestMigrationRefusesForeignObjects(t *testing.T) {
	t.Parallel()
	for what, object := range map[string]string{
		"a table": `
			CREATE TABLE %[1]s.events_kept (age interval NOT NULL);
			CREATE UNIQUE INDEX events_kept_one_row ON %[1]s.events_kept ((true));
			CREATE FUNCTION %[1]s.theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''it ran as %%'', current_user; END';
			CREATE TRIGGER theirs BEFORE INSERT ON %[1]s.events_kept EXECUTE FUNCTION %[1]s.theirs()`,
		"a view":     "CREATE VIEW %[1]s.status AS SELECT",
		"a sequence": "CREATE SEQUENCE %[1]s.notified",
		"a function": "CREATE FUNCTION %[1]s.timeline() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
		"a function like these": `
			CREATE FUNCTION %[1]s.timeline(text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := emptyFixture(t, `shared\ "schema's"`)
			role, quoted := f.role(), pgx.Identifier{f.schema}.Sanitize()
			f.exec("CREATE SCHEMA " + quoted + "; GRANT ALL ON SCHEMA " + quoted + " TO " + role)
			theirs := f.as(role)
			testkit.Must(theirs.PgConn().Exec(f.ctx, fmt.Sprintf(object, quoted)).ReadAll())(f)
			var misfit *SchemaError
			err := Engine.Migrate(f.ctx, f.raw(), f.schema)
			if !errors.As(err, &misfit) || !strings.Contains(err.Error(), "belongs to role "+role) {
				t.Errorf("migrated: %v", err)
			}
		})
	}
}

// role creates a role that owns no objects.
func (f *fixture) role() string {
	f.Helper()
	role := fmt.Sprintf("pgtest_role_%d", random())
	f.exec("CREATE ROLE " + role)
	admin := f.raw()
	f.Cleanup(func() {
		drop := "DROP OWNED BY " + role + " CASCADE; DROP ROLE " + role
		_, err := admin.Exec(f.ctxOfCleanup(), drop, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			f.Errorf("drop role: %v", err)
		}
	})
	return role
}

// as is a connection on which everything is done as a role.
func (f *fixture) as(role string) *pgx.Conn {
	f.Helper()
	conn := f.raw()
	testkit.Must(conn.Exec(f.ctx, "SET ROLE "+role))(f)
	return conn
}

// In psql, one file after the other and each line on its own. A client does not run on half of the
// schema.
func TestTheTablesAndTheFunctionsRunAsTheyStand(t *testing.T) {
	t.Parallel()
	f := emptyFixture(t, "pgleases")
	conn := f.raw()
	for _, name := range sql.Schema {
		var misfit *SchemaError
		if err := Fits(f.ctx, conn, "pgleases"); !errors.As(err, &misfit) {
			t.Errorf("before %s: %v", name, err)
		}
		text := testkit.Must(sql.Files.ReadFile("schema/" + name + ".sql"))(f)
		testkit.Must(conn.PgConn().Exec(f.ctx, string(text)).ReadAll())(f)
	}
	f.ok(Fits(f.ctx, conn, "pgleases"))
}

func TestAllStatementsRunAsTheyStand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	names := append(testkit.Must(fs.Glob(sql.Files, "statements/*.sql"))(f), "schema.sql")
	fields := reflect.TypeFor[Statements]()
	count := 0
	for _, name := range names {
		text := testkit.Must(sql.Files.ReadFile(name))(f)
		name = strings.TrimSuffix(path.Base(name), ".sql")
		count++
		field, ok := fields.FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) })
		if !ok {
			t.Errorf("no statement %s", name)
			continue
		}
		statement := reflect.ValueOf(StatementsFor("pgleases")).FieldByIndex(field.Index).String()
		unquoted := strings.ReplaceAll(statement, `"pgleases".`, "")
		if strings.HasPrefix(statement, "--") || strings.Contains(unquoted, "pgleases.") {
			t.Errorf("statement %s begins %q", name, statement[:40])
		}
		if name == "schema" {
			continue
		}
		_, err := f.sql.PgConn().Exec(f.ctx, "PREPARE "+name+"_as_it_stands AS "+string(text)).ReadAll()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	expect(t, fields.NumField(), count, "statements that have a file")
}

func TestPartitionForRefusesFewerThanOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, partitions := range []int{0, -1} {
		_, err := f.raw().Exec(f.ctx, "SELECT pgleases.partition_for('key', $1)", partitions)
		want := fmt.Sprintf("partition_for with %d partitions", partitions)
		if Code(err) != "22023" || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v", partitions, err)
		}
	}
}
