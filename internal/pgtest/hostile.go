package pgtest

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
)

// settingsVariable names an encoding for the databases. The application's role, which must be given
// too, then has all settings that an administrator may set. The tests' connections as another role
// do not have them.
const settingsVariable = "PGLEASES_TEST_SETTINGS"

// hostileSettings are the settings of the role.
var hostileSettings = []string{
	"statement_timeout = '1s'",
	"lock_timeout = '1s'",
	"idle_session_timeout = '500ms'",
	"idle_in_transaction_session_timeout = '10s'",
	"enable_seqscan = off",
	"jit = on",
	"jit_above_cost = 0",
	"default_transaction_isolation = serializable",
	"default_transaction_deferrable = on",
	"client_min_messages = debug1",
}

// resetPool resets the settings that pgx's pools do not support, and that would end the tests' own
// queries on them. A client's own connection is not one of the pool's.
func resetPool(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `
		SET idle_session_timeout = 0;
		SET statement_timeout = 0;
		SET default_transaction_isolation = 'read committed'`)
	return err
}

// Spared returns a pattern of the tests that do not run under hostile settings; empty: the settings
// are off.
func Spared() string {
	if os.Getenv(settingsVariable) == "" {
		return ""
	}
	spared := []string{
		// Letters that LATIN1 does not have.
		"TestDocumentedPartitionsOfKeysHold",
		"TestPartitionForIsTheSameInSQL",
		"TestFailedRunLeavesNothing",
		"TestArgumentsThatPanicWait",
		"ExampleLease_PartitionFor",
		// A grant of functions by their names alone.
		"TestOperationsQueriesShow",
	}
	return "^(" + strings.Join(spared, "|") + ")$"
}

//go:embed hostile.sql
var hostile string

// encoding returns an option of CREATE DATABASE; empty: the default.
func encoding() string {
	name := os.Getenv(settingsVariable)
	if name == "" {
		return ""
	}
	return " ENCODING '" + name + "' LC_COLLATE 'C' LC_CTYPE 'C'"
}

// makeHostile creates objects in a database that an administrator may have there.
func makeHostile(ctx context.Context, databaseURL string) error {
	if os.Getenv(settingsVariable) == "" {
		return nil
	}
	direct, _ := DirectURL(databaseURL)
	return execute(ctx, direct, hostile)
}

// hostileTo returns the statements that give a role the settings in a database, and add functions
// of other roles to the schema.
func hostileTo(role, database string) (statements []string) {
	if os.Getenv(settingsVariable) == "" {
		return nil
	}
	for _, setting := range hostileSettings {
		statements = append(statements, fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET %s", role, database, setting))
	}
	return append(statements, overloads("{text,int}", untyped))
}

// untyped is a pattern of the functions that people and tests call without types of arguments, or
// that the files of sql/schema name without them.
const untyped = "lock_list|guard|guard_lock|partition_for|timeline|drop_lease|replace_lease|evict_client|" +
	"(un)?(drain|cordon|freeze|pin)|pause|resume|operator|override.*|take_back|schedule_.*"

// Overload creates functions of another role in the schema pgleases: beside each existing function,
// some that differ in the type of one argument. The server calls them if that argument has no type,
// or another type. See OverloadCalled.
func Overload(ctx context.Context, conn *pgx.Conn) error {
	const types = "{text,int,bigint,numeric,name,double precision,timestamptz,boolean}"
	_, err := conn.Exec(ctx, overloads(types, "none"), pgx.QueryExecModeSimpleProtocol)
	return err
}

// OverloadCalled is a query that returns whether any of them was called.
const OverloadCalled = "SELECT is_called FROM public.overload_calls"

func overloads(types, but string) string {
	return strings.NewReplacer("$types", types, "$but", but).Replace(`
		CREATE SEQUENCE public.overload_calls;
		GRANT ALL ON SEQUENCE public.overload_calls TO PUBLIC;
		DO $do$
		DECLARE
			f text;
		BEGIN
			FOR f IN
				SELECT format('CREATE FUNCTION pgleases.%I(%s) RETURNS text LANGUAGE plpgsql AS ', p.proname,
					(SELECT string_agg(CASE a.n WHEN i.n THEN t.name ELSE a.type::regtype::text END, ', ' ORDER BY a.n)
					FROM unnest(p.proargtypes) WITH ORDINALITY AS a (type, n)))
				FROM pg_proc AS p, generate_series(1, p.pronargs) AS i (n), unnest('$types'::text[]) AS t (name)
				WHERE p.pronamespace = 'pgleases'::regnamespace AND p.proname !~ '^($but)$'
			LOOP
				BEGIN
					EXECUTE f || $$'BEGIN PERFORM pg_catalog.nextval(''public.overload_calls''); RAISE EXCEPTION ''a function of a stranger was called''; END'$$;
				EXCEPTION WHEN duplicate_function THEN -- that is the type which it has
				END;
			END LOOP;
		END $do$`)
}
