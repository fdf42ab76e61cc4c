package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"

	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/sql"
)

// strangeSQL makes a schema with everything that a role with the right to create things in a schema on the path can put in
// the way: operators, functions, types and a collation by the names that the statements use, both with pg_catalog's own
// arguments, which win where pg_catalog is named after that schema, and with arguments for which pg_catalog has nothing exact,
// which win wherever it stands. A call fails, and is counted even where the error is caught.
const strangeSQL = `
CREATE SCHEMA strange;
GRANT USAGE ON SCHEMA strange TO PUBLIC;
CREATE SEQUENCE strange.calls;
CREATE TABLE strange.words (word pg_catalog.text);
INSERT INTO strange.words SELECT unnest($1::pg_catalog.text[]);
DO $body$
DECLARE
    types CONSTANT pg_catalog.regtype[] := '{bigint,int,text,varchar,boolean,timestamptz,interval,numeric,float8,bytea,bit,pg_lsn,text[],bigint[],int[],anyelement}';
    body CONSTANT pg_catalog.text := ' LANGUAGE plpgsql AS $f$ BEGIN PERFORM pg_catalog.nextval(''strange.calls''); RAISE EXCEPTION ''strange code was called''; END $f$';
    r record;
    arguments pg_catalog.text;
    n int := 0;
BEGIN
    FOR r IN SELECT p.proname, oidvectortypes(p.proargtypes) AS arguments, p.proretset, p.prorettype::pg_catalog.regtype AS result
             FROM pg_catalog.pg_proc AS p
             WHERE p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace
               AND p.proname IN (SELECT word FROM strange.words)
               AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) AS t WHERE t IN ('internal'::regtype, 'cstring'::regtype, '"any"'::regtype))
               AND p.prorettype NOT IN ('internal'::regtype, 'cstring'::regtype, 'record'::regtype, 'trigger'::regtype)
    LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION strange.%I(%s) RETURNS %s %s', r.proname, r.arguments,
                       CASE WHEN r.proretset THEN 'SETOF ' ELSE '' END || r.result, body);
        n := n + 1;
    END LOOP;
    FOR r IN SELECT DISTINCT p.proname, a AS one, b AS other, x.two
             FROM pg_catalog.pg_proc AS p, unnest(types[1:11]) AS a, unnest(types[1:11]) AS b, (VALUES (true), (false)) AS x (two)
             WHERE p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND p.prokind = 'f'
               AND p.proname IN (SELECT word FROM strange.words)
               AND (x.two AND p.pronargs = 2 OR NOT x.two AND p.pronargs = 1 AND a = b)
    LOOP
        arguments := CASE WHEN r.two THEN r.one || ', ' || r.other ELSE r.one::text END;
        IF to_regprocedure(format('strange.%I(%s)', r.proname, arguments)) IS NULL THEN
            EXECUTE format('CREATE FUNCTION strange.%I(%s) RETURNS text %s', r.proname, arguments, body);
            n := n + 1;
        END IF;
    END LOOP;
    FOR r IN SELECT a AS one, b AS other, o.name, o.result, row_number() OVER () AS number
             FROM unnest(types) AS a, unnest(types) AS b,
                  (VALUES ('=', 'boolean'), ('<>', 'boolean'), ('<', 'boolean'), ('>', 'boolean'), ('<=', 'boolean'), ('>=', 'boolean'),
                          ('+', NULL), ('-', NULL), ('*', NULL), ('/', NULL), ('%', NULL), ('&', NULL), ('|', NULL),
                          ('<<', NULL), ('>>', NULL), ('||', NULL)) AS o (name, result)
    LOOP
        EXECUTE format('CREATE FUNCTION strange.operator_%s(%s, %s) RETURNS %s %s', r.number, r.one, r.other,
                       coalesce(r.result, CASE WHEN 'interval'::regtype IN (r.one, r.other) THEN 'interval' ELSE r.one::text END), body);
        EXECUTE format('CREATE OPERATOR strange.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = strange.operator_%s)', r.name, r.one, r.other, r.number);
        n := n + 1;
    END LOOP;
    IF n < 6000 THEN
        RAISE EXCEPTION 'only % shadows', n;
    END IF;
END
$body$;
CREATE COLLATION strange."C" FROM "POSIX";
CREATE TYPE strange.text AS ENUM ('strange');
CREATE TYPE strange.timestamptz AS ENUM ('strange');
CREATE TYPE strange.bool AS ENUM ('strange');
CREATE TYPE strange.int4 AS ENUM ('strange');
CREATE TYPE strange.int8 AS ENUM ('strange');
CREATE TYPE strange.float8 AS ENUM ('strange');
`

// words are all that the SQL of this module may name.
func words(t *testing.T) []string {
	t.Helper()
	seen := make(map[string]bool)
	var found []string
	take := func(text []byte) {
		for _, word := range regexp.MustCompile(`[a-z_0-9]+`).FindAllString(string(text), -1) {
			if !seen[word] {
				seen[word] = true
				found = append(found, word)
			}
		}
	}
	for _, s := range []string{"../../sql/*.sql", "connect.go", "migrate.go"} {
		names, err := filepath.Glob(s)
		if err != nil || len(names) == 0 {
			t.Fatalf("files %s: %v", s, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			take(text)
		}
	}
	return found
}

func TestNoStrangeCodeRunsWhateverTheSearchPath(t *testing.T) {
	t.Parallel()
	made := &fixture{TB: t, ctx: t.Context(), url: emptyDatabase(t), schema: "pgleases"}
	made.sql = made.raw()
	made.exec(strangeSQL, words(t)) // once, as it takes seconds
	for _, path := range []string{"strange", "strange, pg_catalog"} {
		t.Run(path, func(t *testing.T) {
			f := &fixture{TB: t, ctx: t.Context(), url: made.url, schema: "pgleases", sql: made.sql}
			f.exec("RESET search_path; DROP SCHEMA IF EXISTS pgleases CASCADE; DROP TABLE IF EXISTS strange.jobs")
			f.exec("ALTER DATABASE " + pgx.Identifier{f.sql.Config().Database}.Sanitize() + " SET search_path = " + path)
			strange := f.raw()

			// The text by itself, as a migration tool runs it, each statement in a transaction of its own.
			for _, name := range []string{"schema.sql", "functions.sql"} {
				text, err := sql.Files.ReadFile(name)
				f.ok(err)
				_, err = strange.PgConn().Exec(f.ctx, string(text)).ReadAll()
				f.ok(err)
			}
			f.exec("DROP SCHEMA pgleases CASCADE")
			f.ok(Migrate(f.ctx, strange, "pgleases"))
			expect(t, f.text(`SELECT DISTINCT c.collnamespace::regnamespace::text FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
				WHERE a.attrelid::regclass::text LIKE 'pgleases.%' AND a.attnum > 0 AND c.collname = 'C'`), "pg_catalog", "collations of the columns")

			f.exec("SET search_path = pgleases, public")
			protocol(f)
			protocolOfGuards(f, strange)
			called := value[bool](f, "SELECT is_called FROM strange.calls")
			expect(t, called, false, "strange code was called")
		})
	}
}

// protocolOfGuards runs on an application's connection what applications and operators run there.
func protocolOfGuards(f *fixture, app *pgx.Conn) {
	f.Helper()
	c := f.client("guarded")
	c.join("guarded", 2)
	c.give("guarded", c.session, c.session)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		for _, limit := range []string{"0", "2min", "30s"} {
			tx, err := app.Begin(f.ctx)
			f.ok(err)
			_, err = tx.Exec(f.ctx, "SET LOCAL idle_in_transaction_session_timeout = '"+limit+"'")
			f.ok(err)
			_, err = tx.Exec(f.ctx, StatementsFor(f.schema).Guard, mode, "guarded", int32(0), int64(1), int64(60_000))
			f.ok(err)
			var got string
			f.ok(tx.QueryRow(f.ctx, "SHOW idle_in_transaction_session_timeout").Scan(&got))
			expect(f.TB, got, map[string]string{"0": "1min", "2min": "1min", "30s": "30s"}[limit], "idle limit")
			f.ok(tx.Rollback(f.ctx))
			tx, err = app.Begin(f.ctx)
			f.ok(err)
			_, err = tx.Exec(f.ctx, StatementsFor(f.schema).Guard, mode, "guarded", int32(0), int64(2), int64(60_000))
			expect(f.TB, Code(err), CodeNotOwner, "refused with")
			f.ok(tx.Rollback(f.ctx))
		}
	}
	expect(f.TB, valueOn[int](f, app, "SELECT pgleases.partition_for('customer-42', 128)"), 53, "partition")
	expect(f.TB, valueOn[int64](f, app, "SELECT pgleases.timeline()") != 0, true, "the server tells its timeline")
	_, err := app.Exec(f.ctx, `CREATE TABLE strange.jobs (key pg_catalog.text, partition int GENERATED ALWAYS AS (pgleases.partition_for(key, 128)) STORED)`)
	f.ok(err)
	_, err = app.Exec(f.ctx, "CREATE INDEX ON strange.jobs (pgleases.partition_for(key, 128))")
	f.ok(err)
	_, err = app.Exec(f.ctx, "INSERT INTO strange.jobs VALUES ('customer-42')")
	f.ok(err)
	expect(f.TB, valueOn[int](f, app, "SELECT partition FROM strange.jobs"), 53, "generated partition")
	for _, view := range []string{"status", "members_status", "locks_status"} {
		_, err := app.Exec(f.ctx, "SELECT * FROM pgleases."+view)
		f.ok(err)
	}
	_, err = app.Exec(f.ctx, "SELECT pgleases.drop_lease('guarded')")
	expect(f.TB, Code(err), "55006", fmt.Sprintf("drop of a lease with members: %v", err))
	c.release([]Release{{"guarded", 0, 1}, {"guarded", 1, 1}}, "guarded")
	_, err = app.Exec(f.ctx, "SELECT pgleases.drop_lease('guarded')")
	f.ok(err)
}
