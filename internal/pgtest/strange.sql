-- strange.sql: a schema with everything that a role can create in a schema on the search_path to intercept calls:
-- operators, functions, types and a collation with the names in strange.words. Some have pg_catalog's own arguments:
-- they win if the schema is before pg_catalog on the path. Others have arguments without an exact match in pg_catalog:
-- they win wherever the schema is. A call fails, and is counted even if the error is caught.
SET check_function_bodies = off; -- the bodies are all the same
DO $body$
DECLARE
    types CONSTANT pg_catalog.regtype[] := '{bigint,int,text,varchar,boolean,timestamptz,interval,numeric,float8,bytea,bit,pg_lsn,text[],bigint[],int[],jsonb,anyelement}';
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
    FOR r IN SELECT a AS one, b AS other, o.name, coalesce(o.result, CASE WHEN 'interval'::regtype IN (a, b) THEN 'interval' ELSE a::text END) AS result,
                    o.result IS NULL AS counts
             FROM unnest(types) AS a, unnest(types) AS b,
                  (VALUES ('=', 'boolean'), ('<>', 'boolean'), ('<', 'boolean'), ('>', 'boolean'), ('<=', 'boolean'), ('>=', 'boolean'), ('->', 'boolean'),
                          ('+', NULL), ('-', NULL), ('*', NULL), ('/', NULL), ('%', NULL), ('&', NULL), ('|', NULL),
                          ('<<', NULL), ('>>', NULL), ('||', NULL)) AS o (name, result)
    LOOP
        arguments := format('strange.operator_%s(%s, %s)', CASE WHEN r.counts THEN 'counts' ELSE 'compares' END, r.one, r.other);
        IF to_regprocedure(arguments) IS NULL THEN
            EXECUTE 'CREATE FUNCTION ' || arguments || ' RETURNS ' || r.result || body;
        END IF;
        EXECUTE format('CREATE OPERATOR strange.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = %s)', r.name, r.one, r.other, split_part(arguments, '(', 1));
        n := n + 1;
    END LOOP;
    IF n < 6000 THEN
        RAISE EXCEPTION 'only % shadows', n;
    END IF;
END
$body$;
RESET check_function_bodies;
CREATE COLLATION strange."C" FROM "POSIX";
CREATE TYPE strange.text AS ENUM ('strange');
CREATE TYPE strange.timestamptz AS ENUM ('strange');
CREATE TYPE strange.bool AS ENUM ('strange');
CREATE TYPE strange.int4 AS ENUM ('strange');
CREATE TYPE strange.int8 AS ENUM ('strange');
CREATE TYPE strange.float8 AS ENUM ('strange');
