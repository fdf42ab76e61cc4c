-- schema.sql: a fence, for a database that does not have the leases. See fence.go. It runs in psql as it is, also again.
SELECT pg_catalog.pg_advisory_xact_lock(7358216409154); -- if two sessions run it, one after the other

DO $pgleases_body$
BEGIN
    CREATE SCHEMA IF NOT EXISTS pgleases;
EXCEPTION
    WHEN insufficient_privilege THEN
        NULL; -- a role without the right to create schemas may still fill an existing one
    WHEN unique_violation THEN
        NULL; -- the session that had the lock has created it
END
$pgleases_body$;

-- Each transaction updates its row. With free space in the page that changes no index.
CREATE TABLE IF NOT EXISTS pgleases.fences (
    name  pg_catalog.text COLLATE "C" PRIMARY KEY CHECK (name OPERATOR(pg_catalog.<>) ''::pg_catalog.text),
    epoch bigint NOT NULL CHECK (epoch OPERATOR(pg_catalog.>) 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE pgleases.fences IS 'The highest epoch that the function fence has seen for each name. Restore it together with the data that it protects.';

-- The function runs with its owner's rights. So would a trigger of a table that another role has created before.
DO $pgleases_body$
DECLARE
    owner CONSTANT pg_catalog.regrole := (SELECT t.relowner FROM pg_catalog.pg_class AS t WHERE t.oid OPERATOR(pg_catalog.=) 'pgleases.fences'::pg_catalog.regclass);
BEGIN
    IF owner OPERATOR(pg_catalog.<>) coalesce(
        (SELECT f.proowner FROM pg_catalog.pg_proc AS f WHERE f.oid OPERATOR(pg_catalog.=) pg_catalog.to_regprocedure('pgleases.fence(pg_catalog.text, bigint)')),
        pg_catalog.quote_ident(current_user)::pg_catalog.regrole) THEN
        RAISE EXCEPTION 'the table fences belongs to role %, and the function does not', owner
            USING ERRCODE = 'insufficient_privilege', HINT = 'Let that role run these statements, or drop the table.';
    END IF;
END
$pgleases_body$;

-- The row is updated also if its epoch stays: the lock alone would order the transactions, but a REPEATABLE READ
-- transaction that waited for it would then continue with a snapshot from before. An exclusive lock, also between
-- transactions of one owner: with a shared one, overlapping transactions of an old owner could delay the new owner for
-- ever.
--
-- It runs with the rights of its owner, so an application can raise an epoch, and cannot lower one.
CREATE OR REPLACE FUNCTION pgleases.fence(name pg_catalog.text, epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    -- A process that freezes must not keep the row. Only ever lower the limit; 0 means no limit.
    PERFORM set_config('idle_in_transaction_session_timeout', least(6000,
        nullif(extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000, 0))::bigint::text, true);
    INSERT INTO pgleases.fences AS f (name, epoch) VALUES ($1, $2)
    ON CONFLICT ON CONSTRAINT fences_pkey DO UPDATE SET epoch = EXCLUDED.epoch WHERE f.epoch <= EXCLUDED.epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fence "%" refuses epoch %: it has seen epoch %', $1, $2, (SELECT f.epoch FROM pgleases.fences AS f WHERE f.name = $1)
            USING ERRCODE = 'PL004', HINT = 'A newer owner has begun to write. Roll back and leave the work to it.';
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.fence(pg_catalog.text, bigint) IS 'Raises PL004 if a higher epoch was seen for this name. After it, no other transaction passes for this name until this transaction ends.';
REVOKE EXECUTE ON FUNCTION pgleases.fence(pg_catalog.text, bigint) FROM PUBLIC;
