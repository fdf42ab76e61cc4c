-- clients.sql: sessions and client IDs, and heartbeats.

-- Every heartbeat updates expires_at. No index may contain it, or the update would not be HOT. Half of every page stays free
-- for the new row versions.
CREATE TABLE IF NOT EXISTS pgleases.clients (
    session     bigint PRIMARY KEY,
    id          pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    incarnation bigint NOT NULL,
    expires_at  pg_catalog.timestamptz NOT NULL,
    ttl         interval NOT NULL,
    host        pg_catalog.text NOT NULL,
    pid         int NOT NULL,
    started_at  pg_catalog.timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.5, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE pgleases.clients IS 'The live sessions: one row for each run of a client, renewed by its heartbeat.';
COMMENT ON COLUMN pgleases.clients.session IS '63 random bits drawn by the client; a restart is a new session.';
COMMENT ON COLUMN pgleases.clients.id IS 'The client''s ID, as the application chose it.';
COMMENT ON COLUMN pgleases.clients.incarnation IS 'Number of the process among those with this ID: each new process draws a higher one, and only the highest may own. Negative: an operator has revoked the session, and no heartbeat renews it.';
COMMENT ON COLUMN pgleases.clients.expires_at IS 'Last heartbeat plus TTL. After it, a client that has watched the clock for a TTL may evict the session.';
COMMENT ON COLUMN pgleases.clients.ttl IS 'How long the session stays alive without a heartbeat.';
COMMENT ON COLUMN pgleases.clients.host IS 'The host on which its process runs.';
COMMENT ON COLUMN pgleases.clients.pid IS 'The process ID there.';
COMMENT ON COLUMN pgleases.clients.started_at IS 'When the client was opened, by its own clock.';

CREATE TABLE IF NOT EXISTS pgleases.identities (
    id          pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    incarnation bigint NOT NULL,
    process     bigint NOT NULL,
    used_at     pg_catalog.timestamptz NOT NULL
);
COMMENT ON TABLE pgleases.identities IS 'The newest process under each client ID. A row whose ID had no session for a day is deleted.';
COMMENT ON COLUMN pgleases.identities.id IS 'The client''s ID.';
COMMENT ON COLUMN pgleases.identities.incarnation IS 'The highest incarnation under this ID.';
COMMENT ON COLUMN pgleases.identities.process IS 'Number of the client that drew the incarnation, so that its repeated registration draws no second one. The lowest 24 bits count the clients of one program; the other bits are random, and the same for the whole program.';
COMMENT ON COLUMN pgleases.identities.used_at IS 'When a session under this ID was last registered, ended or evicted.';

-- A function, because the server keeps a function's plans for each connection; as plain SQL, planned every time, a heartbeat
-- costs four times as much. It updates the session's own row and waits for no flush: a crash that loses the update also
-- removes the boot marker, and without it no watch goes on.
--
-- Two copies of one process, as of a virtual machine's snapshot that was started twice, have one session. They are told apart by
-- the time of the last renewal: where that is later than the last one of which the caller knows, the other copy made it. An
-- earlier one tells nothing: a crash or a promotion lost the renewals since. Times of two server incarnations are not compared.
--
-- Leases are returned again only after a change of one of them. The UPDATE's snapshot shows both
-- what has changed and from which transaction on it may have missed a change: a transaction that
-- commits later is not below the snapshot's xmin, whatever the order in which transactions begin
-- and commit. Every statement that changes members changes their lease too. A snapshot of another
-- server incarnation says nothing, because a crash may lose transactions, and their numbers are
-- given again.
--
-- It reads the leases that the caller names, by key: its cost does not grow with the leases of
-- others. To ask the members which these are would make it an eighth dearer. A caller that joins a
-- lease names none at its next heartbeat, so that all are returned. The names are a subquery: an
-- array of one name would look so cheap that the server would plan it each time.
--
-- What is above the snapshot's xmax was written on another server, of which this database is a dump.
--
-- What runs every time names all with its schema, as a search_path of its own would take a tenth of the time, and is one
-- statement. Its cost is that of getting ready for it: of each table, and of each function and operator in it. So it tells times as they are,
-- what is due is left to the caller, and it returns one text. IS NULL makes one boolean of two calls.
CREATE OR REPLACE FUNCTION pgleases.heartbeat(
    session bigint, lock_ms int, renewed double precision, renewed_marker bigint, started double precision, marker bigint, seen pg_catalog.xid8, leases pg_catalog.text[])
RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
DECLARE
    told pg_catalog.text;
    unchanged boolean; -- the server is in the incarnation given, and its leases are as they were told
BEGIN
    unchanged := pg_catalog.set_config('synchronous_commit', 'off', true) IS NULL OR pg_catalog.set_config('lock_timeout', $2::pg_catalog.text, true) IS NULL;
    UPDATE pgleases.clients AS c SET expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) c.ttl
    WHERE c.session OPERATOR(pg_catalog.=) $1
      AND (c.expires_at OPERATOR(pg_catalog.-) c.ttl) OPERATOR(pg_catalog.<=) pg_catalog.to_timestamp($3)
      AND c.incarnation OPERATOR(pg_catalog.>=) 0 -- else it is revoked
    RETURNING
        pg_catalog.concat_ws(' ', extract(epoch FROM c.expires_at), extract(epoch FROM c.ttl),
            coalesce((SELECT pg_catalog.concat_ws(' ', s.accepted_timeline, s.generation, extract(epoch FROM s.next_check_at), s.sessions, extract(epoch FROM s.unwatched))
                      FROM pgleases.server AS s), 'none'), -- somebody has deleted the row
            coalesce((SELECT i.incarnation FROM pgleases.identities AS i WHERE i.id OPERATOR(pg_catalog.=) c.id), 0),
            pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())),
        pg_catalog.pg_postmaster_start_time() OPERATOR(pg_catalog.=) pg_catalog.to_timestamp($5)
            AND EXISTS (SELECT FROM pgleases.boot_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) $6)
            AND NOT EXISTS (SELECT FROM pgleases.leases AS l
                            WHERE l.name OPERATOR(pg_catalog.=) ANY ((SELECT $8)::pg_catalog.text[]) AND l.changed OPERATOR(pg_catalog.>=) $7
                              AND l.changed OPERATOR(pg_catalog.<) pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()))
    INTO told, unchanged;
    IF unchanged THEN
        RETURN told;
    END IF;
    IF told IS NULL AND $3 OPERATOR(pg_catalog.<) double precision 'infinity'
       AND NOT EXISTS (SELECT FROM pgleases.boot_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) $4) THEN
        RETURN pgleases.heartbeat($1, $2, double precision 'infinity', $4, $5, $6, $7, $8); -- of another incarnation, or not known: whatever the last renewal was
    END IF;
    RETURN pgleases.tell($1, told);
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.tell(session bigint, renewed pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    run CONSTANT text := concat_ws(' ', pgleases.timeline(), extract(epoch FROM pg_postmaster_start_time()),
                                   coalesce((SELECT m.marker FROM pgleases.boot_marker AS m), 0));
BEGIN
    IF $2 IS NULL THEN
        RETURN (SELECT concat_ws(' ', CASE WHEN EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = $1 AND c.incarnation >= 0)
                                      THEN 'copied' ELSE 'gone' END, -- revoked is gone, too
                                 extract(epoch FROM now), s.accepted_timeline, s.generation, run)
                FROM pgleases.server AS s);
    END IF;
    -- due_in: negative for none, 0 also where the clock stepped back.
    RETURN (SELECT concat_ws(' ', $2, run, string_agg(concat_ws(' ', l.generation,
                       CASE WHEN l.next_check_at = 'infinity' THEN -0.000001
                            WHEN l.next_check_at > now + interval '1 second' + l.partitions * interval '50 microseconds' THEN 0
                            ELSE greatest(extract(epoch FROM l.next_check_at - now), 0) END,
                       m.weight), ' '),
                   coalesce(array_agg(l.name), '{}'))
            FROM pgleases.members AS m
            JOIN pgleases.leases AS l ON l.name = m.lease
            WHERE m.session = $1);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.tell(bigint, pg_catalog.text) IS 'The answer to a heartbeat with the server incarnation and the leases in it, after what is told each time; null: the session is gone, or a copy has renewed it.';
