package store_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/pgtest"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/sql"
)

func TestNoStrangeCodeRunsWhateverTheSearchPath(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	made := emptyFixture(t, "pgleases")
	// Once, as it takes seconds.
	sources := []string{"../../sql/schema/*.sql", "../../sql/statements/*.sql", "../connect/connect.go", "migrate.go"}
	made.ok(pgtest.MakeStrange(t.Context(), made.sql, sources...))
	for _, path := range []string{"strange", "strange, pg_catalog"} {
		t.Run(path, func(t *testing.T) {
			f := &fixture{TB: t, ctx: t.Context(), url: made.url, schema: "pgleases", sql: made.sql}
			f.exec("RESET search_path; DROP SCHEMA IF EXISTS pgleases CASCADE; DROP TABLE IF EXISTS strange.jobs")
			database := pgx.Identifier{f.sql.Config().Database}.Sanitize()
			f.exec("ALTER DATABASE " + database + " SET search_path = " + path)
			strange := f.raw()

			// The text by itself, as a migration tool runs it, each statement in a transaction of its own.
			schema := string(testkit.Must(sql.Files.ReadFile("schema.sql"))(f))
			testkit.Must(strange.PgConn().Exec(f.ctx, schema).ReadAll())(f)
			f.exec("DROP SCHEMA pgleases CASCADE")
			f.ok(Engine.Migrate(f.ctx, strange, "pgleases"))
			expect(t, f.text(`
				SELECT DISTINCT c.collnamespace::regnamespace::text
				FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
				WHERE a.attrelid::regclass::text LIKE 'pgleases.%' AND a.attnum > 0 AND c.collname = 'C'`), "pg_catalog", "collations of the columns")

			f.exec("SET search_path = pgleases, public")
			protocol(f)
			protocolOfGuards(f, strange)
			called := value[bool](f, pgtest.StrangeCalled)
			expect(t, called, false, "strange code was called")
		})
	}
}

// In a schema where others may create functions, for example public before PostgreSQL 15.
func TestNoOverloadOfAnotherRoleIsCalled(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	f.ok(pgtest.Overload(f.ctx, f.sql))
	protocol(f)
	expect(t, value[bool](f, pgtest.OverloadCalled), false, "a stranger's function was called")
}

// protocolOfGuards runs on an application's connection what applications and operators run there.
func protocolOfGuards(f *fixture, app *pgx.Conn) {
	f.Helper()
	c := f.client("guarded")
	c.join("guarded", 2)
	c.give("guarded", c.session, c.session)
	guard := StatementsFor(f.schema).Guard
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec,
	} {
		for _, limit := range []string{"0", "2min", "30s"} {
			tx := testkit.Must(app.Begin(f.ctx))(f)
			testkit.Must(tx.Exec(f.ctx, "SET LOCAL idle_in_transaction_session_timeout = '"+limit+"'"))(f)
			testkit.Must(tx.Exec(f.ctx, guard, mode, "guarded", int32(0), int64(1), int64(60_000)))(f)
			var got string
			f.ok(tx.QueryRow(f.ctx, "SHOW idle_in_transaction_session_timeout").Scan(&got))
			expect(f.TB, got, map[string]string{"0": "1min", "2min": "1min", "30s": "30s"}[limit], "idle limit")
			f.ok(tx.Rollback(f.ctx))
			tx = testkit.Must(app.Begin(f.ctx))(f)
			_, err := tx.Exec(f.ctx, guard, mode, "guarded", int32(0), int64(2), int64(60_000))
			expect(f.TB, Code(err), CodeNotOwner, "refused with")
			f.ok(tx.Rollback(f.ctx))
		}
	}
	expect(f.TB, valueOn[int](f, app, "SELECT pgleases.partition_for('customer-42', 128)"), 53, "partition")
	expect(f.TB, valueOn[int64](f, app, "SELECT pgleases.timeline()") != 0, true, "the server returns its timeline")
	testkit.Must(app.Exec(f.ctx, `
		CREATE TABLE strange.jobs (
			key pg_catalog.text, partition int GENERATED ALWAYS AS (pgleases.partition_for(key, 128)) STORED
		)`))(f)
	testkit.Must(app.Exec(f.ctx, "CREATE INDEX ON strange.jobs (pgleases.partition_for(key, 128))"))(f)
	testkit.Must(app.Exec(f.ctx, "INSERT INTO strange.jobs VALUES ('customer-42')"))(f)
	expect(f.TB, valueOn[int](f, app, "SELECT partition FROM strange.jobs"), 53, "generated partition")
	for _, view := range []string{"status", "members_status", "locks_status"} {
		testkit.Must(app.Exec(f.ctx, "SELECT * FROM pgleases."+view))(f)
	}
	_, err := app.Exec(f.ctx, "SELECT pgleases.drop_lease('guarded', 'why')")
	expect(f.TB, Code(err), "55006", fmt.Sprintf("drop of a lease with members: %v", err))
	c.release([]Release{{"guarded", 0, 1}, {"guarded", 1, 1}}, "guarded")
	testkit.Must(app.Exec(f.ctx, "SELECT pgleases.drop_lease('guarded', 'why')"))(f)
}
