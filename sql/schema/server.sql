-- server.sql: the server on which the tables are, and which incarnation of it. The files of this folder
-- run in the order that sql.go has. Idempotent: what exists stays as it is, and functions are replaced.
--
-- No search_path may let a stranger's operator, type or function be called by the role that runs or calls one of these.
-- In the heads of functions, in tables and views, and in what runs once for each row or each statement, where a
-- search_path of its own would cost too much, types, operators and functions are named with their schema. A
-- function in PL/pgSQL otherwise sets its own search_path.
--
-- Nor may a function of a stranger, by a name from here, be called: the server prefers one that
-- takes a text where an argument has no type. So each argument of a call has the type that the
-- function takes.
--
-- Each table that is logged has a primary key or another replica identity: a publication FOR ALL
-- TABLES, as of change data capture or a blue/green upgrade, would have the server refuse its
-- updates.
--
-- Text columns collate "C": compared byte by byte, so that the database sorts names and IDs as Go does.
--
-- For applications: application.sql. For operators: operators.sql, and new_server_generation. The other functions are parts of
-- the statements in sql/statements.

DO $pgleases_body$
BEGIN
    CREATE SCHEMA IF NOT EXISTS pgleases;
EXCEPTION WHEN insufficient_privilege THEN
    NULL; -- a role without the right to create schemas may still fill one that was made for it
END
$pgleases_body$;

CREATE TABLE IF NOT EXISTS pgleases.server (
    accepted_timeline bigint NOT NULL,
    generation        bigint NOT NULL,
    next_check_at     pg_catalog.timestamptz NOT NULL,
    sessions          bigint NOT NULL DEFAULT 1,
    unwatched         interval NOT NULL DEFAULT '0',
    checks            bigint NOT NULL DEFAULT 0,
    left_behind       bigint[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 10);
CREATE UNIQUE INDEX IF NOT EXISTS server_one_row ON pgleases.server ((true));
ALTER TABLE pgleases.server REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.server IS 'One row: the server on which these tables are, and when the next check for expired sessions is due.';
COMMENT ON COLUMN pgleases.server.accepted_timeline IS 'The accepted server and timeline, as the function timeline names them. While they are others, after a promotion or in a copy, no partition changes its owner.';
COMMENT ON COLUMN pgleases.server.generation IS 'The server generation: new epochs are at least this number times 2^32, and no lower epoch passes a guard; rises when a server is accepted.';
COMMENT ON COLUMN pgleases.server.next_check_at IS 'When the next check for expired sessions is due: no session can have expired before.';
COMMENT ON COLUMN pgleases.server.sessions IS 'Number of sessions at the last check. Where there are many, only some of them look for the next one early.';
COMMENT ON COLUMN pgleases.server.unwatched IS 'The shortest TTL of the sessions that had expired at the last check and stayed, because the client that made the check had not watched the clock for so long; 0: none. For a client that has, a check is due.';
COMMENT ON COLUMN pgleases.server.checks IS 'Number of checks for expired sessions. It chooses the part of the tables in which the last one looks for orphans.';
COMMENT ON COLUMN pgleases.server.left_behind IS 'Sessions that were evicted and may have rows in members still. The next check removes these rows.';

-- Unlogged, because a crash or a promotion empties such a table: where it is empty, heartbeats may be lost, which wait for
-- no flush. A crash of one backend changes neither the server's start time nor its timeline.
CREATE UNLOGGED TABLE IF NOT EXISTS pgleases.boot_marker (
    marker bigint NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS boot_marker_one_row ON pgleases.boot_marker ((true));
COMMENT ON TABLE pgleases.boot_marker IS 'At most one row: a random number that is gone after a crash or a promotion.';
COMMENT ON COLUMN pgleases.boot_marker.marker IS 'Drawn by the first client whose heartbeat finds none.';

-- The timeline is read from the name of the current WAL file, which changes at the moment of a promotion. Servers that were made
-- apart, as by pg_upgrade or from a dump, may be on timelines of one number: so the system
-- identifier is added to it. Each is asked for by itself, as a server may refuse the one or the
-- other. With the rights of its owner, so that all roles are told the same: else clients of two
-- roles would accept it against each other for ever.
--
-- Aurora has no timelines, and a clone has the identifier of its origin. There it is the instance,
-- and the start of its server.
CREATE OR REPLACE FUNCTION pgleases.timeline() RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $pgleases_body$
DECLARE
    number bigint := 0;
    instance pg_catalog.text;
BEGIN
    IF pg_catalog.to_regproc('pg_catalog.aurora_version') IS NULL THEN
        BEGIN
            number := ('x'::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.lpad(pg_catalog.left(
                pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8), 16, '0'::pg_catalog.text))::bit(64)::bigint;
        EXCEPTION WHEN OTHERS THEN -- a standby, or a server that does not allow it
        END;
    ELSE
        BEGIN
            instance := pg_catalog.aurora_db_instance_identifier();
        EXCEPTION WHEN OTHERS THEN -- it is older
            BEGIN
                instance := (SELECT pg_catalog.max(s.server_id) FROM pg_catalog.aurora_replica_status() AS s
                             WHERE s.session_id OPERATOR(pg_catalog.=) 'MASTER_SESSION_ID'::pg_catalog.text);
            EXCEPTION WHEN OTHERS THEN -- the start alone tells servers apart
            END;
        END;
        number := pg_catalog.hashtextextended(pg_catalog.concat(instance, ' ', extract(epoch FROM pg_catalog.pg_postmaster_start_time())), 0::bigint)
                  OPERATOR(pg_catalog.&) 1099511627775;
    END IF;
    RETURN number OPERATOR(pg_catalog.+) (SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c);
EXCEPTION WHEN OTHERS THEN -- a server, or an owner of this function, that may not ask for it
    RETURN number;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.timeline() IS 'Names the server and its timeline now: the system identifier plus the timeline''s number, which rises with a promotion; on Aurora, plus a number for the instance and the start of its server. What the server does not tell counts as 0.';

-- Where two copies of one server are accepted in the same second, the microseconds of their starts keep the epochs apart.
CREATE OR REPLACE FUNCTION pgleases.first_epoch(generation bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF $1 = 0 THEN
        RETURN 0; -- nothing was accepted yet
    END IF;
    RETURN ($1 << 32) + ((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint & 2147483647);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.first_epoch(bigint) IS 'The first epoch that a partition is given in a server generation.';

-- A statement sets its own settings, because behind a pooler there is no session to keep them. A function of PL/pgSQL calls this
-- function by PERFORM. Another statement calls it in a CTE and reads the result in what follows, because PostgreSQL does not run a
-- SELECT in a CTE that nothing reads. IS NOT NULL is always true: it makes
-- one boolean of both calls. In PL/pgSQL, because the server would parse SQL anew for each statement.
CREATE OR REPLACE FUNCTION pgleases.settings(durable boolean, lock_ms int) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
BEGIN
    RETURN pg_catalog.set_config('synchronous_commit',
               CASE WHEN NOT $1 THEN 'off'
                    WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'::pg_catalog.text THEN 'on'
                    ELSE pg_catalog.current_setting('synchronous_commit') END, true) IS NOT NULL
       AND pg_catalog.set_config('lock_timeout', $2::pg_catalog.text, true) IS NOT NULL;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.settings(boolean, int) IS 'For the calling statement only: whether its commit waits for the flush of the WAL, and how many milliseconds the statement waits for a lock. Always true.';

-- A client accepts the new server generation as after a promotion: once the server was watched for a TTL, so that whoever works on what these
-- tables do not know of has lost its trust.
CREATE OR REPLACE FUNCTION pgleases.new_server_generation() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    -- no expired session is evicted meanwhile
    PERFORM set_config('idle_in_transaction_session_timeout', '500', true), set_config('statement_timeout', '10000', true);
    UPDATE pgleases.server SET accepted_timeline = -1;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.new_server_generation() IS 'To be called once in a restored dump, snapshot or copy of the database, before clients use it: epochs then go on above all that were given after the copy was made.';
REVOKE EXECUTE ON FUNCTION pgleases.new_server_generation() FROM PUBLIC;

INSERT INTO pgleases.server (accepted_timeline, generation, next_check_at)
VALUES (pgleases.timeline(), 0, 'infinity') ON CONFLICT DO NOTHING;
