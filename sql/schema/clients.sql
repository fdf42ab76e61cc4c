-- clients.sql: sessions and client IDs, and heartbeats.

-- Every heartbeat updates expires_at. No index may contain this column, otherwise the update would not be HOT. Half of
-- every page stays free for the new row versions.
CREATE TABLE IF NOT EXISTS pgleases.clients (
    session     bigint PRIMARY KEY,
    id          pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    incarnation bigint NOT NULL,
    expires_at  pg_catalog.timestamptz NOT NULL,
    ttl         interval NOT NULL,
    host        pg_catalog.text NOT NULL,
    pid         int NOT NULL,
    started_at  pg_catalog.timestamptz NOT NULL,
    metadata    pg_catalog.jsonb NOT NULL DEFAULT '{}',
    role        pg_catalog.text NOT NULL DEFAULT CURRENT_USER,
    lost_locks  pg_catalog.text[] NOT NULL DEFAULT '{}',
    refused_leases pg_catalog.jsonb NOT NULL DEFAULT '{}',
    begun_at    pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.5, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE pgleases.clients IS 'The sessions, with one row for each run of a client, which its heartbeat renews. A session lives until its row is deleted, and not only until it expires.';
COMMENT ON COLUMN pgleases.clients.session IS '63 random bits drawn by the client. A restart is a new session.';
COMMENT ON COLUMN pgleases.clients.id IS 'The client''s ID, as the application chose it.';
COMMENT ON COLUMN pgleases.clients.incarnation IS 'Number of the process among those with this ID. Each new process draws a higher number, and only the process with the highest number gets partitions. It is negative if an operator has revoked the session, and no heartbeat renews it.';
COMMENT ON COLUMN pgleases.clients.expires_at IS 'Last heartbeat plus TTL. After this time a client that has watched the clock for a TTL may evict the session.';
COMMENT ON COLUMN pgleases.clients.ttl IS 'How long the session stays alive without a heartbeat.';
COMMENT ON COLUMN pgleases.clients.host IS 'The host of its process.';
COMMENT ON COLUMN pgleases.clients.pid IS 'The process ID on that host.';
COMMENT ON COLUMN pgleases.clients.started_at IS 'When the client was opened, by its own clock.';
COMMENT ON COLUMN pgleases.clients.role IS 'The role whose rights it has in the database.';
COMMENT ON COLUMN pgleases.clients.metadata IS 'Data of the application about this client, for example an address. Written once, when the session begins.';
COMMENT ON COLUMN pgleases.clients.lost_locks IS 'Names of locks that the client has lost and not released, at most 100. The work under them may go on, so they stay with the client.';
COMMENT ON COLUMN pgleases.clients.refused_leases IS 'Leases that the client had joined and cannot join again, because they have another number of partitions now. Each with the number that the client was started with.';
COMMENT ON COLUMN pgleases.clients.begun_at IS 'When the session was registered, by the clock of the database.';

CREATE OR REPLACE TRIGGER emptied AFTER TRUNCATE ON pgleases.clients EXECUTE FUNCTION pgleases.emptied();

CREATE TABLE IF NOT EXISTS pgleases.identities (
    id          pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    incarnation bigint NOT NULL,
    process     bigint NOT NULL,
    used_at     pg_catalog.timestamptz NOT NULL,
    takeovers   int NOT NULL DEFAULT 0,
    taken_at    pg_catalog.timestamptz NOT NULL DEFAULT '-infinity',
    taken_from  pg_catalog.text NOT NULL DEFAULT ''
);
COMMENT ON TABLE pgleases.identities IS 'The newest process of each client ID. A row whose ID had no session for a day is deleted.';
COMMENT ON COLUMN pgleases.identities.id IS 'The client''s ID.';
COMMENT ON COLUMN pgleases.identities.incarnation IS 'The highest incarnation under this ID.';
COMMENT ON COLUMN pgleases.identities.process IS 'Number of the client that drew the incarnation, so that its repeated registration draws no second one. The lowest 24 bits count the clients of one program. The other bits are random, and the same for the whole program. The number is 0 if an operator has evicted the client.';
COMMENT ON COLUMN pgleases.identities.used_at IS 'When a session under this ID was last registered, ended or evicted.';
COMMENT ON COLUMN pgleases.identities.takeovers IS 'How often a new process took the ID from one whose last heartbeat was less than half a TTL old, each time within 5 minutes of the time before. From 3 on, the next process waits until the last heartbeat is older.';
COMMENT ON COLUMN pgleases.identities.taken_at IS 'When that last happened. It is -infinity if it never did.';
COMMENT ON COLUMN pgleases.identities.taken_from IS 'The host and pid of the process from which it was last taken.';

-- A registration is planned once for each connection, because to plan it takes longer than to run it.
-- statements/register.sql explains the parameters.
CREATE OR REPLACE FUNCTION pgleases.register(
    p_session bigint, p_id pg_catalog.text, p_incarnation bigint, p_process bigint, p_ttl bigint, p_host pg_catalog.text, p_pid int,
    p_started_at pg_catalog.timestamptz, p_metadata pg_catalog.jsonb, p_lock_ms int,
    OUT incarnation bigint, OUT host pg_catalog.text, OUT pid int, OUT started_at pg_catalog.timestamptz, OUT evicted boolean, OUT contended boolean)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
#variable_conflict use_column
BEGIN
    PERFORM pgleases.settings(true, p_lock_ms);
    WITH other AS MATERIALIZED ( -- the process that has the ID, if it lives, or has ended a moment ago
        SELECT c.host, c.pid FROM pgleases.clients AS c
        WHERE p_incarnation = 0 AND c.id = p_id AND c.session <> p_session AND c.incarnation >= 0
          AND c.expires_at > clock_timestamp() + c.ttl / 2
          AND EXISTS (SELECT FROM pgleases.identities AS i WHERE i.id = p_id) -- no index has the ID, so this reads all clients
        ORDER BY c.incarnation DESC LIMIT 1
    ), contended AS MATERIALIZED (
        SELECT FROM pgleases.identities AS i
        WHERE i.id = p_id AND i.process <> p_process AND i.process <> 0
          AND i.takeovers >= 3 AND i.taken_at > clock_timestamp() - interval '5 minutes' AND EXISTS (SELECT FROM other)
    ), identity AS (
        INSERT INTO pgleases.identities AS i (id, incarnation, process, used_at)
        -- The first incarnation is the clock's time: so a process that has been frozen since before the ID was forgotten
        -- has a lower one.
        SELECT p_id, CASE WHEN p_incarnation = 0 THEN extract(epoch FROM clock_timestamp())::bigint ELSE p_incarnation END,
               p_process, clock_timestamp()
        WHERE NOT EXISTS (SELECT FROM contended)
        ON CONFLICT (id) DO UPDATE
        SET incarnation = CASE WHEN i.process = p_process THEN i.incarnation
                               WHEN p_incarnation = 0 THEN i.incarnation + 1
                               ELSE p_incarnation END,
            process = p_process,
            used_at = clock_timestamp(),
            (takeovers, taken_at, taken_from) = (
                SELECT CASE WHEN t.not_taken THEN i.takeovers WHEN i.taken_at > clock_timestamp() - interval '5 minutes' THEN i.takeovers + 1 ELSE 1 END,
                       CASE WHEN t.not_taken THEN i.taken_at ELSE clock_timestamp() END,
                       CASE WHEN t.not_taken THEN i.taken_from ELSE (SELECT concat('host ', o.host, ', pid ', o.pid) FROM other AS o) END
                FROM (SELECT i.process = p_process OR NOT EXISTS (SELECT FROM other) AS not_taken) AS t)
        -- Not for a first registration that arrives after the program has given that client up and opened a newer one.
        WHERE p_incarnation = 0 AND NOT (i.process >> 24 = p_process >> 24 AND i.process > p_process)
           OR i.incarnation < p_incarnation OR i.process = p_process
        RETURNING i.incarnation
    ), server AS MATERIALIZED (
        -- If another session has a longer TTL, an eviction that began before this session is visible may set the next check
        -- after this session's expiry. The lock waits for such an eviction. The lock also delays the next eviction, so it
        -- is not taken if no TTL is longer. It is taken last, after the wait for the ID's row, which another transaction
        -- may have locked for long.
        SELECT s.next_check_at > clock_timestamp() + p_ttl * interval '1 microsecond' AS late
        FROM pgleases.server AS s
        WHERE EXISTS (SELECT FROM identity)
          AND EXISTS (SELECT FROM pgleases.clients AS c WHERE c.ttl > (SELECT p_ttl * interval '1 microsecond'))
        FOR KEY SHARE OF s
    ), lowered AS (
        UPDATE pgleases.server AS s
        SET next_check_at = least(s.next_check_at, clock_timestamp() + p_ttl * interval '1 microsecond'),
            -- The first client of new tables accepts them.
            accepted_timeline = CASE s.accepted_timeline WHEN 0 THEN pgleases.timeline() ELSE s.accepted_timeline END
        WHERE EXISTS (SELECT FROM identity)
          AND (s.accepted_timeline = 0
               OR s.next_check_at > clock_timestamp() + p_ttl * interval '1 microsecond'
               OR EXISTS (SELECT FROM server WHERE server.late))
        RETURNING 1
    ), client AS (
        INSERT INTO pgleases.clients AS c (session, id, incarnation, expires_at, ttl, host, pid, started_at, metadata)
        SELECT p_session, p_id, identity.incarnation,
               clock_timestamp() + p_ttl * interval '1 microsecond', p_ttl * interval '1 microsecond',
               p_host, p_pid, p_started_at, p_metadata
        FROM identity
        WHERE (SELECT count(*) FROM lowered) >= 0 -- always true: the session's time begins after the wait for the server's row
        -- The incarnation is higher if the answer was lost, and another process has taken the ID before this repetition.
        ON CONFLICT (session) DO UPDATE SET expires_at = EXCLUDED.expires_at, incarnation = greatest(c.incarnation, EXCLUDED.incarnation)
        RETURNING c.incarnation
    )
    SELECT coalesce((SELECT incarnation FROM client), 0) AS incarnation,
           coalesce(newer.host, '') AS host, coalesce(newer.pid, 0) AS pid, coalesce(newer.started_at, 'epoch') AS started_at,
           EXISTS (SELECT FROM pgleases.identities AS i WHERE i.id = p_id AND i.process = 0) AS evicted,
           EXISTS (SELECT FROM contended) AS contended
    FROM (VALUES (1)) AS one -- a row also if no other process has the ID
    LEFT JOIN LATERAL (
        SELECT c.host, c.pid, c.started_at FROM pgleases.clients AS c
        WHERE c.id = p_id AND c.session <> p_session AND NOT EXISTS (SELECT FROM client) -- otherwise it is not needed
        ORDER BY c.incarnation DESC LIMIT 1
    ) AS newer ON true
    INTO incarnation, host, pid, started_at, evicted, contended;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.register(bigint, pg_catalog.text, bigint, bigint, bigint, pg_catalog.text, int, pg_catalog.timestamptz, pg_catalog.jsonb, int) IS 'Begins a session. The file sql/statements/register.sql explains it.';

DO $pgleases_body$
BEGIN
    CREATE TYPE pgleases.renewal AS (
        session bigint, lock_ms int, renewed double precision, renewed_marker bigint, started double precision, marker bigint,
        seen pg_catalog.xid8, leases int, all_leases boolean);
EXCEPTION WHEN duplicate_object THEN
    NULL; -- it exists
END
$pgleases_body$;
COMMENT ON TYPE pgleases.renewal IS 'The parameter of the function heartbeat. The file sql/statements/heartbeat.sql explains its fields.';

-- A function, because the server keeps a function's plans for each connection. As plain SQL, planned for every call, a
-- heartbeat costs four times as much. It updates the session's own row and does not wait for a flush: a crash that
-- loses the update also removes the boot marker, and without the marker every watch starts again.
--
-- Two copies of one process, for example of a virtual machine's snapshot that was started twice, have one session. The
-- time of the last renewal distinguishes them: if it is later than the last renewal that the caller knows, the other
-- copy made it. An earlier time has no meaning, because a crash or a promotion may have lost renewals. Times of two
-- server incarnations are not compared.
--
-- The leases are returned only if one of them has changed since the last answer. The UPDATE's snapshot shows what has
-- changed, and its xmin is the first transaction that it may have missed: a transaction that commits later is not below
-- xmin, whatever the order in which transactions begin and commit. Every statement that changes members also changes
-- their lease. A snapshot of another server incarnation cannot be used, because a crash may lose transactions, and
-- their numbers are assigned again.
--
-- A session with up to 100 leases looks at each of them, by key, so its cost does not depend on other leases. If the
-- table is small, all of it is read, and the names of the session's leases only if one lease has changed. They are not
-- parameters, because the server would take longer to read a hundred names than for all of the rest.
--
-- A transaction number above the snapshot's xmax was written on another server, and this database is a dump of that
-- one.
--
-- Code that runs for every heartbeat names everything with its schema, because a search_path of its own would take 10 %
-- of the time, and it is one statement. Its cost is the preparation: for each table, function and operator in it. So it
-- returns times as they are stored, leaves it to the caller to decide what is due, and returns one text. It takes one
-- parameter, because eight with a type each would add a sixth to the cost.
CREATE OR REPLACE FUNCTION pgleases.heartbeat(p pgleases.renewal) RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
DECLARE
    answer pg_catalog.text;
    same_run boolean; -- the server incarnation is that of the last answer
    unchanged boolean; -- and so are the leases
BEGIN
    unchanged := pgleases.settings(false, p.lock_ms);
    UPDATE pgleases.clients AS c SET expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) c.ttl
    WHERE c.session OPERATOR(pg_catalog.=) p.session
      AND (c.expires_at OPERATOR(pg_catalog.-) c.ttl) OPERATOR(pg_catalog.<=) pg_catalog.to_timestamp(p.renewed)
      AND c.incarnation OPERATOR(pg_catalog.>=) 0 -- otherwise it is revoked
    RETURNING
        pg_catalog.concat_ws(' ', extract(epoch FROM c.expires_at), extract(epoch FROM c.ttl),
            coalesce((SELECT pg_catalog.concat_ws(' ', s.accepted_timeline, s.generation, extract(epoch FROM s.next_check_at), s.sessions, extract(epoch FROM s.unwatched))
                      FROM pgleases.server AS s), 'none'), -- the row was deleted by hand
            coalesce((SELECT i.incarnation FROM pgleases.identities AS i WHERE i.id OPERATOR(pg_catalog.=) c.id), 0),
            pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())),
        pg_catalog.pg_postmaster_start_time() OPERATOR(pg_catalog.=) pg_catalog.to_timestamp(p.started)
            AND EXISTS (SELECT FROM pgleases.present_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) p.marker),
        NOT CASE WHEN p.all_leases THEN true WHEN p.leases OPERATOR(pg_catalog.>) 100 THEN pgleases.many_changed(p.session, p.seen, p.leases) ELSE EXISTS (
                SELECT FROM pgleases.leases AS l
                WHERE l.name OPERATOR(pg_catalog.=) ANY ((SELECT pgleases.session_leases(p.session))::pg_catalog.text[]) AND l.changed OPERATOR(pg_catalog.>=) p.seen
                  AND l.changed OPERATOR(pg_catalog.<) pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())) END
    INTO answer, same_run, unchanged;
    IF same_run AND unchanged THEN
        RETURN answer;
    END IF;
    IF answer IS NULL AND p.renewed OPERATOR(pg_catalog.<) double precision 'infinity'
       AND NOT EXISTS (SELECT FROM pgleases.present_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) p.renewed_marker) THEN
        p.renewed := 'infinity'; -- of another or an unknown incarnation: ignore the last renewal
        RETURN pgleases.heartbeat(p);
    END IF;
    RETURN pgleases.heartbeat_answer(p.session, answer, same_run);
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.heartbeat_answer(p_session bigint, p_renewed pg_catalog.text, p_same_run boolean) RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    -- To find out takes longer than all of the rest.
    run CONSTANT text := CASE WHEN p_same_run THEN 'same' ELSE concat_ws(' ', pgleases.timeline(), extract(epoch FROM pg_postmaster_start_time()),
                                   coalesce((SELECT m.marker FROM pgleases.present_marker AS m), 0), pgleases.tables_number()) END;
BEGIN
    IF p_renewed IS NULL THEN
        RETURN (SELECT concat_ws(' ', CASE WHEN EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = p_session AND c.incarnation >= 0)
                                      THEN 'copied' ELSE 'gone' END, -- a revoked session counts as gone
                                 extract(epoch FROM now), s.accepted_timeline, s.generation, run)
                FROM pgleases.server AS s);
    END IF;
    -- due_in: negative if no plan is due; 0 also if the clock stepped back.
    RETURN (SELECT concat_ws(' ', p_renewed, run, string_agg(concat_ws(' ', l.generation - l.joins,
                       CASE WHEN l.plan_due_at = 'infinity' THEN -0.000001
                            WHEN l.plan_due_at > now + interval '1 second' + l.partitions * interval '50 microseconds' THEN 0
                            ELSE greatest(extract(epoch FROM l.plan_due_at - now), 0) END,
                       m.weight), ' '),
                   coalesce(array_agg(l.name), '{}'))
            FROM pgleases.members AS m
            JOIN pgleases.leases AS l ON l.name = m.lease
            WHERE m.session = p_session);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.heartbeat_answer(bigint, pg_catalog.text, boolean) IS 'The answer to a heartbeat: the text of the renewal, then the server incarnation, or that it is the same, and the session''s leases. If the text is null, the session is gone, or a copy of the client''s process has renewed it.';

-- Whether the leases of a session with many of them may have changed. Looking each of them up would take milliseconds.
-- So this reads the whole table leases, and then whether the session is a member of what has changed. If the table has
-- more blocks than the session has leases, most rows are of others, and the rows of the session are read by their keys.
-- The function is VOLATILE, so its snapshots are later than that of the heartbeat, whose xmin the answer has. So what they
-- cannot see yet is not below that number.
CREATE OR REPLACE FUNCTION pgleases.many_changed(p_session bigint, p_seen pg_catalog.xid8, p_leases int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off AS $pgleases_body$
BEGIN
    IF pg_relation_size('pgleases.leases'::regclass) <= p_leases * current_setting('block_size')::bigint THEN
        RETURN EXISTS (
            SELECT FROM (SELECT l.name FROM pgleases.leases AS l
                         WHERE l.changed >= p_seen AND l.changed < pg_snapshot_xmax(pg_current_snapshot()) OFFSET 0) AS l
            CROSS JOIN LATERAL (SELECT FROM pgleases.members AS m WHERE m.lease = l.name AND m.session = p_session OFFSET 0) AS m);
    END IF;
    RETURN EXISTS (
        SELECT FROM (SELECT m.lease FROM pgleases.members AS m WHERE m.session = p_session OFFSET 0) AS m
        CROSS JOIN LATERAL (SELECT FROM pgleases.leases AS l
                            WHERE l.name = m.lease AND l.changed >= p_seen AND l.changed < pg_snapshot_xmax(pg_current_snapshot()) OFFSET 0) AS l);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.many_changed(bigint, pg_catalog.xid8, int) IS 'Whether a lease of a session may have changed since a transaction. Heartbeats of sessions with more than 100 leases call it.';

CREATE OR REPLACE FUNCTION pgleases.session_leases(p_session bigint) RETURNS pg_catalog.text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    RETURN ARRAY(SELECT m.lease FROM pgleases.members AS m WHERE m.session = p_session);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.session_leases(bigint) IS 'The leases that a session is a member of.';
