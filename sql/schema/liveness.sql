-- liveness.sql: fast failover.

-- A separate table, not a column of clients: a client that watches liveness reads only these rows, and without fast
-- failover there are none.
CREATE TABLE IF NOT EXISTS pgleases.presences (
    session  bigint PRIMARY KEY,
    presence bigint NOT NULL,
    pid      int NOT NULL DEFAULT pg_catalog.pg_backend_pid()
);
COMMENT ON TABLE pgleases.presences IS 'The sessions of clients with fast failover. A row whose session is gone is deleted when the next client connects.';
COMMENT ON COLUMN pgleases.presences.session IS 'The session.';
COMMENT ON COLUMN pgleases.presences.presence IS 'Key of the advisory lock that the client''s connection holds. If the lock is free, that connection has ended.';
COMMENT ON COLUMN pgleases.presences.pid IS 'The server process of that connection. Any other process that holds or awaits the lock is not the client''s.';

-- The lock belongs to the database session, not to the transaction: it lasts until the connection ends. The key is
-- written before the client trusts itself on this connection: otherwise the end of an earlier connection could count as
-- the end of the client. This statement may also arrive late, from an earlier connection. So of a session's keys the
-- lowest one is the newest.
CREATE OR REPLACE FUNCTION pgleases.hold_liveness(p_session bigint, p_presence bigint, p_lock_ms int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    PERFORM pgleases.settings(true, p_lock_ms);
    INSERT INTO pgleases.presences AS p (session, presence, pid)
    SELECT c.session, p_presence, pg_backend_pid() FROM pgleases.clients AS c WHERE c.session = p_session
    ON CONFLICT ON CONSTRAINT presences_pkey DO UPDATE SET presence = EXCLUDED.presence, pid = EXCLUDED.pid WHERE EXCLUDED.presence < p.presence;
    DELETE FROM pgleases.presences AS p
    WHERE p.session = ANY (ARRAY(
        SELECT o.session FROM pgleases.presences AS o
        WHERE NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = o.session)
        FOR UPDATE OF o SKIP LOCKED));
    IF EXISTS (SELECT FROM pgleases.presences AS p WHERE p.session = p_session AND p.presence <> p_presence) THEN
        RETURN false;
    END IF;
    IF NOT pg_try_advisory_lock(p_presence) THEN -- last, because after an error the lock would stay held, and the client repeats this with another key
        RAISE EXCEPTION 'another connection holds advisory lock %', p_presence USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN true;
END
$pgleases_body$;

-- The counters are read first: a session that ends between them and the locks is counted later, and is seen as a
-- change.
CREATE OR REPLACE FUNCTION pgleases.watch_liveness(
    p_session bigint, p_known bigint,
    OUT watches boolean, OUT abandoned bigint, OUT killed bigint, OUT fatal bigint, OUT reset bigint,
    OUT digest bigint, OUT held bigint[], OUT pids int[], OUT free bigint[], OUT free_sessions bigint[], OUT free_expiries bigint[],
    OUT stranger int)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off AS $pgleases_body$
DECLARE
    here CONSTANT oid := (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database());
BEGIN
    abandoned := 0;
    killed := 0;
    fatal := 0;
    reset := 0;
    digest := 0;
    held := '{}';
    pids := '{}';
    free := '{}';
    free_sessions := '{}';
    free_expiries := '{}';
    stranger := 0;
    watches := (SELECT count(*) < 2 FROM (SELECT FROM pgleases.presences AS p
                                          WHERE p.session < p_session AND EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = p.session)
                                          ORDER BY p.session LIMIT 2) AS before);
    IF NOT watches THEN
        RETURN;
    END IF;
    SELECT s.abandoned, s.killed, s.fatal, s.reset FROM pgleases.session_ends() AS s INTO abandoned, killed, fatal, reset;
    SELECT coalesce(bit_xor(p.presence) FILTER (WHERE l.granted), 0),
           coalesce(array_agg(p.presence) FILTER (WHERE l.granted), '{}'), coalesce(array_agg(l.pid) FILTER (WHERE l.granted), '{}'),
           coalesce(array_agg(p.presence) FILTER (WHERE l.pid IS NULL), '{}'), coalesce(array_agg(c.session) FILTER (WHERE l.pid IS NULL), '{}'),
           coalesce(array_agg((extract(epoch FROM c.expires_at) * 1000000)::bigint) FILTER (WHERE l.pid IS NULL), '{}'),
           coalesce(min(l.pid) FILTER (WHERE l.pid <> p.pid), 0) -- a process that waits for the lock gets it when the client crashes
    FROM pgleases.presences AS p
    JOIN pgleases.clients AS c ON c.session = p.session
    LEFT JOIN (SELECT (k.classid::bigint << 32) | k.objid::bigint AS presence, k.pid, k.granted FROM pg_locks AS k
               WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.database = here
                 AND k.mode = 'ExclusiveLock') AS l -- ignore the shared locks of evict_disconnected
           ON l.presence = p.presence
    INTO digest, held, pids, free, free_sessions, free_expiries, stranger;
    IF digest = p_known THEN -- the keys are random: these are the ones that the caller knows
        held := '{}';
        pids := '{}';
    END IF;
END
$pgleases_body$;

-- Functions, because the view pg_stat_database would call all of them.
CREATE OR REPLACE FUNCTION pgleases.session_ends(OUT abandoned bigint, OUT killed bigint, OUT fatal bigint, OUT reset bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    SELECT pg_stat_get_db_sessions_abandoned(d.oid), pg_stat_get_db_sessions_killed(d.oid), pg_stat_get_db_sessions_fatal(d.oid),
           coalesce((extract(epoch FROM pg_stat_get_db_stat_reset_time(d.oid)) * 1000000)::bigint, 0)
    FROM pg_database AS d WHERE d.datname = current_database()
    INTO abandoned, killed, fatal, reset;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.session_ends() IS 'How many sessions in this database were abandoned by their clients, were killed, and ended with a fatal error, since the last reset.';

-- The server releases a session's lock before it counts the session's end. A session whose process is gone from the
-- server's list has been counted. So the order is: the lock, then the process, then the counters. The sessions are
-- evicted only if at least as many sessions were abandoned as there are to evict, and no session has ended in another
-- way.
--
-- The expiry of a session whose client crashed is set to a time long ago; evict does the rest. The lock on the server's
-- row keeps all other evictions away from the sessions. The notification makes the next two clients watch.
CREATE OR REPLACE FUNCTION pgleases.evict_disconnected(
    p_sessions bigint[], p_presences bigint[], p_pids int[], p_expiries bigint[], p_abandoned bigint, p_killed bigint, p_fatal bigint, p_reset bigint,
    p_timeline bigint, p_started bigint, p_marker bigint, p_lock_ms int, p_channel pg_catalog.text,
    OUT evicted pg_catalog.text[], OUT hosts pg_catalog.text[], OUT pids int[], OUT to_plan pg_catalog.text[], OUT plan_due_in bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off AS $pgleases_body$
DECLARE
    expired bigint[] := '{}';
    r record;
BEGIN
    PERFORM pgleases.settings(true, p_lock_ms);
    evicted := '{}';
    hosts := '{}';
    pids := '{}';
    to_plan := '{}';
    plan_due_in := 0;
    PERFORM FROM pgleases.server AS s
    WHERE s.accepted_timeline = p_timeline AND pgleases.timeline() = p_timeline
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = p_started
      AND (SELECT m.marker FROM pgleases.present_marker AS m) = p_marker
    FOR UPDATE OF s SKIP LOCKED; -- another client evicts
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR r IN
        SELECT p.session, p.presence, e.pid
        FROM unnest(p_sessions, p_presences, p_pids, p_expiries) AS e (session, presence, pid, expiry)
        JOIN pgleases.clients AS c ON c.session = e.session
        JOIN pgleases.presences AS p ON p.session = e.session
        WHERE p.presence = e.presence AND (extract(epoch FROM c.expires_at) * 1000000)::bigint = e.expiry
        ORDER BY p.session
        FOR UPDATE OF c, p SKIP LOCKED -- a locked session renews itself, or has another connection
    LOOP
        IF pg_try_advisory_xact_lock_shared(r.presence) AND NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = r.pid) THEN
            expired := expired || r.session;
        END IF;
    END LOOP;
    PERFORM FROM pgleases.session_ends() AS s
    WHERE s.abandoned - p_abandoned >= cardinality(expired) AND s.killed = p_killed AND s.fatal = p_fatal AND s.reset = p_reset;
    IF NOT FOUND OR cardinality(expired) = 0 THEN
        RETURN;
    END IF;
    UPDATE pgleases.clients AS c SET expires_at = timestamptz 'epoch' WHERE c.session = ANY (expired);
    UPDATE pgleases.server AS s SET next_check_at = timestamptz 'epoch';
    SELECT e.evicted, e.hosts, e.pids, e.to_plan, e.plan_due_in
    FROM pgleases.evict(1::bigint, 660000000::bigint, 0::bigint, p_timeline, p_started, p_marker, p_lock_ms) AS e
    INTO evicted, hosts, pids, to_plan, plan_due_in;
    IF p_channel <> '' THEN
        PERFORM pg_notify(p_channel, string_agg(n.session::text, ','))
        FROM (SELECT p.session FROM pgleases.presences AS p JOIN pgleases.clients AS c ON c.session = p.session
              ORDER BY p.session LIMIT 2) AS n
        HAVING count(*) > 0;
    END IF;
END
$pgleases_body$;
