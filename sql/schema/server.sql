-- server.sql: the server that has the tables, and its incarnation. The files of this folder run in the order of the
-- list in sql.go. They are idempotent: existing tables stay as they are, and functions are replaced.
--
-- Security: a search_path must not lead a role that runs or calls these functions to another role's operator, type or
-- function. Heads of functions, tables, views, and code that runs once per row or per statement name types, operators
-- and functions with their schema, because a search_path of their own would cost too much there. Every other function
-- in PL/pgSQL sets its own search_path.
--
-- A call must also not reach another role's function of the same name: if an argument has no type, the server prefers a
-- function that takes a text. So each argument of a call has the type of the function's parameter.
--
-- Each logged table has a primary key or another replica identity. Otherwise a publication FOR ALL TABLES, for example
-- for change data capture or a blue/green upgrade, would make the server refuse its updates.
--
-- Text columns collate "C": compared byte by byte, so that the database sorts names and IDs as Go does.
--
-- For applications: application.sql. For operators: operators.sql, and new_server_generation. The other functions are
-- parts of the statements in sql/statements.

DO $pgleases_body$
BEGIN
    CREATE SCHEMA IF NOT EXISTS pgleases;
EXCEPTION WHEN insufficient_privilege THEN
    NULL; -- a role without the right to create schemas may still fill an existing one
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
COMMENT ON TABLE pgleases.server IS 'This table has one row, with the server that has these tables, and when the next check for expired sessions is due.';
COMMENT ON COLUMN pgleases.server.accepted_timeline IS 'The accepted server, timeline and tables, as the function timeline returns them. If the present ones differ, after a promotion or in a copy, no partition changes its owner. It is 0 if no client has used these tables yet, and the first one accepts them. It is -1 if a new server generation was requested, and -2 if a client rejected the server or the row was deleted. Then a client accepts the server after it has watched.';
COMMENT ON COLUMN pgleases.server.generation IS 'The server generation. New epochs are at least this number times 2^32, and no lower epoch passes a guard. It rises when a server is accepted.';
COMMENT ON COLUMN pgleases.server.next_check_at IS 'When the next check for expired sessions is due. No session expires before, except for those that unwatched is about.';
COMMENT ON COLUMN pgleases.server.sessions IS 'Number of sessions at the last check. If there are many, only some of their clients make the next check early.';
COMMENT ON COLUMN pgleases.server.unwatched IS 'The shortest TTL of the sessions that had expired at the last check but were not evicted, because the client that made the check had watched the clock for less than their TTL. It is 0 if there is no such session. A check is due for a client that has watched the clock for at least this time.';
COMMENT ON COLUMN pgleases.server.checks IS 'Number of checks for expired sessions. It selects the part of the tables that the last check searched for orphans.';
COMMENT ON COLUMN pgleases.server.left_behind IS 'Sessions that were evicted and may still have rows in members. The next check removes these rows.';

-- IMMUTABLE, because a server process never changes its database: so a cached plan has the answer.
CREATE OR REPLACE FUNCTION pgleases.present_database() RETURNS pg_catalog.oid
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database());
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.present_database() IS 'The OID of this database. A rename keeps it, and each copy has another one.';

-- Unlogged, because a crash or a promotion empties such a table. An empty table means that heartbeats may be lost,
-- because they do not wait for a flush. A crash of one backend changes neither the server's start time nor its
-- timeline.
--
-- A dump contains the marker too, and CREATE DATABASE with a template copies it. So a marker counts only in the database
-- and under the transaction that wrote it: a restore writes it in another transaction. See present_marker.
CREATE UNLOGGED TABLE IF NOT EXISTS pgleases.boot_marker (
    marker   bigint NOT NULL,
    writer   pg_catalog.xid NOT NULL DEFAULT pg_catalog.pg_current_xact_id()::pg_catalog.xid,
    database pg_catalog.oid NOT NULL DEFAULT pgleases.present_database()
);
CREATE UNIQUE INDEX IF NOT EXISTS boot_marker_one_row ON pgleases.boot_marker ((true));
COMMENT ON TABLE pgleases.boot_marker IS 'At most one row, with a random number that a crash or a promotion removes.';
COMMENT ON COLUMN pgleases.boot_marker.marker IS 'The random number, drawn by the first client whose heartbeat finds no valid row.';
COMMENT ON COLUMN pgleases.boot_marker.writer IS 'The transaction that wrote the row. If the row''s xmin is another one, the row came from a dump, and is not valid.';
COMMENT ON COLUMN pgleases.boot_marker.database IS 'The database that the row was written in. In another one, a copy, the row is not valid.';

-- A view, because the server replaces it by its text when it plans a statement: heartbeats read it at no extra cost.
CREATE OR REPLACE VIEW pgleases.present_marker AS
SELECT m.marker FROM pgleases.boot_marker AS m
WHERE m.xmin OPERATOR(pg_catalog.=) m.writer AND m.database OPERATOR(pg_catalog.=) pgleases.present_database();
COMMENT ON VIEW pgleases.present_marker IS 'The boot marker, if it was written here: not by a restored dump, and not in the database that this one was copied from.';
COMMENT ON COLUMN pgleases.present_marker.marker IS 'The random number.';

-- The number of these tables. Only its row is read: the transaction that wrote it, and the database, are facts that a
-- dump does not restore. So the number differs in each restored copy, although the copy has the same rows. It stays the
-- same on a promoted standby, and through VACUUM FULL.
CREATE TABLE IF NOT EXISTS pgleases.installation (
    number       bigint NOT NULL,
    installed_at pg_catalog.timestamptz NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS installation_one_row ON pgleases.installation ((true));
ALTER TABLE pgleases.installation REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.installation IS 'One row, written when the tables are created, and again when one of them is emptied by TRUNCATE.';
COMMENT ON COLUMN pgleases.installation.number IS 'A random number.';
COMMENT ON COLUMN pgleases.installation.installed_at IS 'When it was written.';

CREATE OR REPLACE FUNCTION pgleases.tables_number() RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN coalesce((SELECT hashtextextended(concat_ws(' ', i.number, i.xmin, pgleases.present_database()), 0) & 1099511627775
                     FROM pgleases.installation AS i), 0);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.tables_number() IS 'Identifies these tables in this database. It differs in each restored dump, in each copy of the database, and after the tables were created again or emptied. It is 0 if the row of installation is missing.';

-- The timeline is read from the name of the current WAL file, which changes at the moment of a promotion. Servers that
-- were created separately, for example by pg_upgrade or from a dump, may be on timelines with the same number, so the
-- system identifier is added. Each value is read in a block of its own, because a server may refuse either. The
-- function runs with the rights of its owner, so that all roles get the same answer: otherwise clients of two roles
-- would accept the server against each other for ever.
--
-- Aurora has no timelines, and a clone has the identifier of its origin. There the value is made from the instance and
-- the start time of its server.
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
        EXCEPTION WHEN OTHERS THEN -- an older version
            BEGIN
                instance := (SELECT pg_catalog.max(s.server_id) FROM pg_catalog.aurora_replica_status() AS s
                             WHERE s.session_id OPERATOR(pg_catalog.=) 'MASTER_SESSION_ID'::pg_catalog.text);
            EXCEPTION WHEN OTHERS THEN -- the start time alone distinguishes servers
            END;
        END;
        number := pg_catalog.hashtextextended(pg_catalog.concat(instance, ' ', extract(epoch FROM pg_catalog.pg_postmaster_start_time())), 0::bigint)
                  OPERATOR(pg_catalog.&) 1099511627775;
    END IF;
    number := number OPERATOR(pg_catalog.+) pgleases.tables_number();
    RETURN number OPERATOR(pg_catalog.+) (SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c);
EXCEPTION WHEN OTHERS THEN -- the server, or the owner of this function, may not read it
    RETURN number;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.timeline() IS 'Identifies the server, its present timeline and these tables: the sum of the system identifier, of the number of the timeline, which rises with a promotion, and of tables_number. On Aurora, a number for the instance and the start of its server replaces the timeline. A value that the server does not return counts as 0.';

-- If two copies of one server are accepted in the same second, the microseconds of their start times keep their epochs
-- apart.
CREATE OR REPLACE FUNCTION pgleases.first_epoch(p_generation bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF p_generation = 0 THEN
        RETURN 0; -- no server was accepted yet
    END IF;
    RETURN (p_generation << 32) + ((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint & 2147483647);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.first_epoch(bigint) IS 'The first epoch of a partition in a server generation.';

-- IMMUTABLE, because a server process never changes: so a cached plan has the answer.
CREATE OR REPLACE FUNCTION pgleases.on_aurora() RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN to_regproc('pg_catalog.aurora_version') IS NOT NULL;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.on_aurora() IS 'Whether the server is Amazon Aurora.';

-- A statement sets its own settings, because behind a pooler there is no session to keep them. A function in PL/pgSQL
-- calls this function by PERFORM. Another statement calls it in a CTE and reads the result, because PostgreSQL does not
-- run a SELECT in a CTE that the rest of the statement does not read. IS NOT NULL is always true: it makes one boolean
-- of both calls. The function is in SQL, so that the server replaces a call by this expression when it plans the caller,
-- and a function in PL/pgSQL plans it once for each connection.
--
-- On Aurora a crash leaves the boot marker, because unlogged tables keep their rows there. So each commit is durable.
CREATE OR REPLACE FUNCTION pgleases.settings(p_durable boolean, p_lock_ms int) RETURNS boolean
LANGUAGE sql VOLATILE AS $pgleases_body$
    SELECT pg_catalog.set_config('synchronous_commit',
               CASE WHEN NOT p_durable AND NOT pgleases.on_aurora() THEN 'off'
                    WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'::pg_catalog.text THEN 'on'
                    ELSE pg_catalog.current_setting('synchronous_commit') END, true) IS NOT NULL
       AND pg_catalog.set_config('lock_timeout', p_lock_ms::pg_catalog.text, true) IS NOT NULL
$pgleases_body$;
COMMENT ON FUNCTION pgleases.settings(boolean, int) IS 'For the calling statement only: whether its commit waits for the flush of the WAL, as each does on Aurora, and how many milliseconds the statement waits for a lock. Always returns true.';

-- Clients accept the new server generation as after a promotion: after they have watched the server for a TTL. By then
-- every owner that is missing from these tables has lost its trust.
CREATE OR REPLACE FUNCTION pgleases.new_server_generation() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    -- No expired session is evicted while this transaction is open.
    PERFORM set_config('idle_in_transaction_session_timeout', '500', true), set_config('statement_timeout', '10000', true);
    UPDATE pgleases.server SET accepted_timeline = -1;
    DELETE FROM pgleases.boot_marker; -- so that each watch starts again
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.new_server_generation() IS 'Call it once in a server that was started from a copy of the files, before clients use it. Later epochs are then above all epochs that were assigned after the copy was made. Restored dumps do not need it.';
REVOKE EXECUTE ON FUNCTION pgleases.new_server_generation() FROM PUBLIC;

-- After TRUNCATE the tables have nothing in common with what clients know of them. So their number changes, and clients
-- handle it as a restored copy.
CREATE OR REPLACE FUNCTION pgleases.emptied() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.installation (number, installed_at) VALUES (hashtextextended(gen_random_uuid()::text, 0), clock_timestamp())
    ON CONFLICT ((true)) DO UPDATE SET number = EXCLUDED.number, installed_at = EXCLUDED.installed_at;
    DELETE FROM pgleases.boot_marker; -- so that the next heartbeats return the number
    RETURN NULL;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.emptied() FROM PUBLIC;
COMMENT ON FUNCTION pgleases.emptied() IS 'Gives the tables another number, because one of them was emptied.';
CREATE OR REPLACE TRIGGER emptied AFTER TRUNCATE ON pgleases.server EXECUTE FUNCTION pgleases.emptied();
CREATE OR REPLACE TRIGGER emptied AFTER TRUNCATE ON pgleases.installation EXECUTE FUNCTION pgleases.emptied();

INSERT INTO pgleases.installation (number, installed_at)
VALUES (pg_catalog.hashtextextended(pg_catalog.gen_random_uuid()::pg_catalog.text, 0), pg_catalog.clock_timestamp()) ON CONFLICT DO NOTHING;

-- 0, and not the timeline, so that a copy of a database in which no client has ever run needs no acceptance, for example
-- of a template. If the tables are there already, somebody has deleted the row. Then clients accept the server as after a
-- promotion.
INSERT INTO pgleases.server (accepted_timeline, generation, next_check_at)
VALUES (CASE WHEN pg_catalog.to_regclass('pgleases.schema_version') IS NULL THEN 0 ELSE -2 END, 0, 'infinity') ON CONFLICT DO NOTHING;
