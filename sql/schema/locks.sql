-- locks.sql: the named locks of package lock.

-- A row is deleted when no session holds or awaits the lock, so the table is small but has many row versions: the
-- threshold makes autovacuum run whatever the table's present size is. No foreign key on session, because every
-- acquisition would then lock the session's row.
CREATE TABLE IF NOT EXISTS pgleases.locks (
    name    pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    ticket  bigint NOT NULL,
    session bigint NOT NULL,
    nonce   bigint NOT NULL,
    shared  boolean NOT NULL,
    token   bigint,
    since   pg_catalog.timestamptz NOT NULL,
    PRIMARY KEY (name, ticket)
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX IF NOT EXISTS locks_session ON pgleases.locks (session, nonce);
COMMENT ON TABLE pgleases.locks IS 'The named locks, with one row for each session that holds or awaits one. A name without a row is free.';
COMMENT ON COLUMN pgleases.locks.name IS 'The lock''s name.';
COMMENT ON COLUMN pgleases.locks.ticket IS 'Place in the queue of this name. Holders come before sessions that wait.';
COMMENT ON COLUMN pgleases.locks.session IS 'The session that holds or awaits the lock; without a row in clients it was evicted.';
COMMENT ON COLUMN pgleases.locks.nonce IS 'Random number of this acquisition, drawn by the client.';
COMMENT ON COLUMN pgleases.locks.shared IS 'Whether the session shares the lock, or waits to share it, with other sessions.';
COMMENT ON COLUMN pgleases.locks.token IS 'The fencing token, which rises with every acquisition, and never repeats. It is null if the session waits.';
COMMENT ON COLUMN pgleases.locks.since IS 'Since when the session holds the lock, or waits for it.';
CREATE OR REPLACE TRIGGER emptied AFTER TRUNCATE ON pgleases.locks EXECUTE FUNCTION pgleases.emptied();

CREATE SEQUENCE IF NOT EXISTS pgleases.lock_tokens;
COMMENT ON SEQUENCE pgleases.lock_tokens IS 'The low part of the locks'' tokens; the server generation is the high part.';

-- A statement that changes the rows of a name holds the name's mutex, an advisory lock, until the transaction ends. A
-- statement that only reads does not wait for the mutex. The snapshot of a statement that waited for the mutex is older
-- than the mutex. So these functions are in PL/pgSQL: each statement after the mutex has a snapshot of its own. They
-- refuse a transaction that has one snapshot for all its statements.
--
-- A session is evicted if and only if it has no row in clients. Rows of evicted sessions are locked FOR UPDATE SKIP
-- LOCKED before they are deleted: an open guarded transaction keeps its lock.
--
-- A kept plan was made when the table was empty. So it must not read the whole table (enable_seqscan, enable_sort), nor
-- all of clients or identities for a join or an EXISTS (use a subquery of one value, or OFFSET 0). These settings make
-- the plans look expensive to the planner, so they must not be compiled (jit).
--
-- The acquisition of a free lock, and its release, are one statement each after the mutex. They name everything with
-- its schema, and set as few settings as possible. lock_queue and lock_turn do the rarer cases.

-- Each schema has its own mutexes. In plain SQL, because the server inlines it into the plans that call it.
CREATE OR REPLACE FUNCTION pgleases.lock_mutex(p_name pg_catalog.text) RETURNS bigint
LANGUAGE sql STABLE AS $pgleases_body$
    SELECT pg_catalog.hashtextextended(p_name, 'pgleases.server'::pg_catalog.regclass::bigint)
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_mutex(pg_catalog.text) IS 'The key of the advisory lock that protects the rows of a lock''s name. Two names may have the same key. They then wait for each other''s commits.';

CREATE OR REPLACE FUNCTION pgleases.lock_settings(p_lock_ms int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'a transaction that is % cannot change locks', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'PL003', HINT = 'Begin it with SET TRANSACTION ISOLATION LEVEL READ COMMITTED.';
    END IF;
    RETURN pgleases.settings(true, p_lock_ms);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_settings(int) IS 'Settings of a statement that changes locks: durable, and how many milliseconds it waits for a lock. Raises PL003 in a transaction whose snapshot would hide what was committed before the statement.';

-- A start time and a boot marker identify one incarnation on one timeline, because a promotion empties boot_marker. The
-- timeline is compared anyway, because here that costs no extra time.
CREATE OR REPLACE FUNCTION pgleases.lock_same_incarnation(p_timeline bigint, p_started bigint, p_marker bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN pgleases.timeline() = p_timeline
       AND pg_postmaster_start_time() = to_timestamp(p_started::double precision / 1000000)
       AND EXISTS (SELECT FROM pgleases.present_marker AS m WHERE m.marker = p_marker);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_same_incarnation(bigint, bigint, bigint) IS 'Whether this is the server incarnation of the caller''s last heartbeat. The application''s connections may lead to another server than the client''s own connection.';

-- The caller has the mutex. Rows that hold the lock come before rows that wait. The function deletes the expired
-- sessions that it meets, and stops at the first row that cannot be granted. So its cost does not depend on the number
-- of sessions that wait. If the server is not accepted, it grants no lock.
CREATE OR REPLACE FUNCTION pgleases.lock_turn(p_name pg_catalog.text, p_timeline bigint, p_notify boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    present bigint; -- the server generation
    held boolean := false;
    r record;
BEGIN
    SELECT s.generation INTO present FROM pgleases.server AS s WHERE s.accepted_timeline = p_timeline;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR r IN SELECT l.ticket, l.session, l.nonce, l.shared, l.token FROM pgleases.locks AS l WHERE l.name = p_name ORDER BY l.ticket LOOP
        IF NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = r.session) THEN
            DELETE FROM pgleases.locks AS l
            WHERE l.name = p_name AND l.ticket = ANY (ARRAY(
                SELECT d.ticket FROM pgleases.locks AS d WHERE d.name = p_name AND d.ticket = r.ticket FOR UPDATE SKIP LOCKED));
            CONTINUE WHEN FOUND;
            EXIT WHEN r.token IS NULL;
        ELSIF r.token IS NULL THEN
            EXIT WHEN held AND NOT r.shared;
            UPDATE pgleases.locks AS l
            SET token = (present << 32) + nextval('pgleases.lock_tokens'), since = clock_timestamp()
            WHERE l.name = p_name AND l.ticket = r.ticket;
            IF p_notify THEN
                PERFORM pg_notify('pgleases_lock_' || r.session, r.nonce::text);
            END IF;
        END IF;
        held := true;
        EXIT WHEN NOT r.shared;
    END LOOP;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_turn(pg_catalog.text, bigint, boolean) IS 'Grants a lock to the sessions whose turn it is, in the order of their requests.';

CREATE OR REPLACE FUNCTION pgleases.lock_acquire(
    p_name pg_catalog.text, p_session bigint, p_nonce bigint, p_shared boolean, p_waits boolean, p_latest bigint,
    p_timeline bigint, p_started bigint, p_marker bigint, p_lock_ms int, p_notify boolean)
RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    token bigint;
    unused boolean;
BEGIN
    IF pg_catalog.set_config('lock_timeout', p_lock_ms::pg_catalog.text, true) IS NULL -- always false: set_config returns text
       OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'::pg_catalog.text
       OR pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'::pg_catalog.text THEN
        unused := pgleases.lock_settings(p_lock_ms);
    END IF;
    IF NOT pg_catalog.pg_try_advisory_xact_lock(pgleases.lock_mutex(p_name)) THEN
        -- Of the acquisitions that find the mutex taken, one waits for it, and the others wait for that one. So a release
        -- waits for two commits at most, however many sessions ask for the lock.
        unused := pg_catalog.pg_advisory_xact_lock('pgleases.server'::pg_catalog.regclass::pg_catalog.oid::int, pg_catalog.hashtext(p_name)) IS NULL;
        unused := pg_catalog.pg_advisory_xact_lock(pgleases.lock_mutex(p_name)) IS NULL;
    END IF;
    INSERT INTO pgleases.locks AS n (name, ticket, session, nonce, shared, token, since)
    SELECT p_name, 1::bigint, p_session, p_nonce, p_shared, (s.generation OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.+) pg_catalog.nextval('pgleases.lock_tokens'),
           pg_catalog.clock_timestamp()
    FROM pgleases.server AS s
    WHERE s.accepted_timeline OPERATOR(pg_catalog.=) p_timeline
      AND pg_catalog.pg_postmaster_start_time() OPERATOR(pg_catalog.=) pg_catalog.to_timestamp(p_started::double precision OPERATOR(pg_catalog./) 1000000)
      AND EXISTS (SELECT FROM pgleases.present_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) p_marker)
      AND pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<=) pg_catalog.to_timestamp(p_latest::double precision OPERATOR(pg_catalog./) 1000000)
      AND NOT EXISTS (SELECT FROM pgleases.locks AS l WHERE l.name OPERATOR(pg_catalog.=) p_name)
      AND EXISTS (SELECT FROM pgleases.clients AS c
                  WHERE c.session OPERATOR(pg_catalog.=) p_session
                    AND coalesce((SELECT i.incarnation FROM pgleases.identities AS i WHERE i.id OPERATOR(pg_catalog.=) c.id), 0)
                        OPERATOR(pg_catalog.<=) c.incarnation)
    RETURNING n.token INTO token;
    IF token IS NULL THEN
        RETURN pgleases.lock_queue(p_name, p_session, p_nonce, p_shared, p_waits, p_latest, p_timeline, p_started, p_marker, p_notify);
    END IF;
    RETURN ARRAY['granted'::pg_catalog.text, token::pg_catalog.text];
END
$pgleases_body$;

-- All cases of lock_acquire except a free lock. The caller has the mutex.
CREATE OR REPLACE FUNCTION pgleases.lock_queue(
    p_name pg_catalog.text, p_session bigint, p_nonce bigint, p_shared boolean, p_waits boolean, p_latest bigint,
    p_timeline bigint, p_started bigint, p_marker bigint, p_notify boolean)
RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    present bigint; -- the server generation
    place bigint;
    token bigint;
    live boolean;
    answer text[];
BEGIN
    IF NOT pgleases.lock_same_incarnation(p_timeline, p_started, p_marker) THEN
        RETURN '{elsewhere}';
    END IF;
    SELECT s.generation INTO present FROM pgleases.server AS s WHERE s.accepted_timeline = p_timeline;
    IF NOT FOUND THEN
        RETURN '{unaccepted}';
    END IF;
    IF clock_timestamp() > to_timestamp(p_latest::double precision / 1000000) THEN
        RETURN '{late}';
    END IF;
    PERFORM FROM pgleases.clients AS c
    WHERE c.session = p_session
      AND coalesce((SELECT i.incarnation FROM pgleases.identities AS i WHERE i.id = c.id), 0) <= c.incarnation;
    IF NOT FOUND THEN
        RETURN '{gone}';
    END IF;
    -- Delete expired sessions, and grant the lock to the session whose turn it is.
    PERFORM pgleases.lock_turn(p_name, p_timeline, p_notify);
    SELECT l.token, l.ticket INTO token, place FROM pgleases.locks AS l
    WHERE l.session = p_session AND l.nonce = p_nonce AND l.name = p_name; -- a repetition, after a lost answer
    IF FOUND THEN
        RETURN CASE WHEN token IS NULL THEN '{waits}' ELSE ARRAY['granted', token::text] END;
    END IF;
    SELECT coalesce(max(l.ticket), 0) + 1 INTO place FROM pgleases.locks AS l WHERE l.name = p_name;
    PERFORM FROM pgleases.locks AS l WHERE l.name = p_name AND (l.token IS NULL OR NOT l.shared OR NOT p_shared) LIMIT 1;
    IF FOUND THEN
        FOREACH live IN ARRAY '{t,f}'::boolean[] LOOP -- first the live sessions that are in the way, and only if there are none, the expired ones
            SELECT ARRAY[CASE WHEN c.expires_at > clock_timestamp() THEN 'held' ELSE 'expired' END, c.id, c.host, c.pid::text,
                         (extract(epoch FROM l.since) * 1000000)::bigint::text, (extract(epoch FROM c.expires_at) * 1000000)::bigint::text] INTO answer
            FROM pgleases.locks AS l
            CROSS JOIN LATERAL (SELECT * FROM pgleases.clients AS c WHERE c.session = l.session OFFSET 0) AS c
            WHERE l.name = p_name AND (l.token IS NULL OR NOT l.shared OR NOT p_shared) AND (NOT live OR c.expires_at > clock_timestamp())
            ORDER BY l.ticket LIMIT 1;
            EXIT WHEN FOUND;
        END LOOP;
        answer := coalesce(answer, '{held,"","",0,0,0}');
        IF NOT p_waits THEN
            RETURN answer;
        END IF;
    ELSE
        token := (present << 32) + nextval('pgleases.lock_tokens');
    END IF;
    INSERT INTO pgleases.locks (name, ticket, session, nonce, shared, token, since)
    VALUES (p_name, place, p_session, p_nonce, p_shared, token, clock_timestamp());
    RETURN CASE WHEN token IS NULL THEN 'waits'::text || answer[2:] ELSE ARRAY['granted', token::text] END;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_queue(pg_catalog.text, bigint, bigint, boolean, boolean, bigint, bigint, bigint, bigint, boolean) IS 'Part of lock_acquire, for a lock that is held or awaited, or that cannot be granted.';

-- The release is durable if it grants the lock to another session. Otherwise a crash may undo it, up to three times
-- wal_writer_delay later. Then the client releases the row that it does not know, as after a promotion. The next
-- acquisition of the name, and the end of the session, are durable, and make this release durable too.
CREATE OR REPLACE FUNCTION pgleases.lock_release(
    p_name pg_catalog.text, p_session bigint, p_nonce bigint, p_latest bigint,
    p_timeline bigint, p_started bigint, p_marker bigint, p_lock_ms int, p_notify boolean)
RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    others boolean; -- other sessions hold or await the lock; null: no row was deleted
    unused boolean;
BEGIN
    IF pg_catalog.set_config('lock_timeout', p_lock_ms::pg_catalog.text, true) IS NULL -- always false: set_config returns text
       OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'::pg_catalog.text THEN
        unused := pgleases.lock_settings(p_lock_ms);
    END IF;
    unused := pg_catalog.pg_advisory_xact_lock(pgleases.lock_mutex(p_name)) IS NULL;
    DELETE FROM pgleases.locks AS l
    WHERE l.ctid OPERATOR(pg_catalog.=) ANY (ARRAY(
            SELECT d.ctid FROM pgleases.locks AS d
            WHERE d.session OPERATOR(pg_catalog.=) p_session AND d.nonce OPERATOR(pg_catalog.=) p_nonce AND d.name OPERATOR(pg_catalog.=) p_name
            FOR UPDATE SKIP LOCKED)) -- the others are locked by a guarded transaction
      AND pg_catalog.pg_postmaster_start_time() OPERATOR(pg_catalog.=) pg_catalog.to_timestamp(p_started::double precision OPERATOR(pg_catalog./) 1000000)
      AND EXISTS (SELECT FROM pgleases.present_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) p_marker)
    RETURNING EXISTS (SELECT FROM pgleases.locks AS o WHERE o.name OPERATOR(pg_catalog.=) p_name AND o.ticket OPERATOR(pg_catalog.<>) l.ticket)
    INTO others;
    IF others THEN
        unused := pgleases.lock_settings(p_lock_ms); -- this commit is durable
        PERFORM pgleases.lock_turn(p_name, p_timeline, p_notify);
    ELSIF others IS NULL AND NOT pgleases.lock_same_incarnation(p_timeline, p_started, p_marker) THEN
        RETURN 'elsewhere';
    ELSIF others IS NULL THEN
        PERFORM FROM pgleases.locks AS l WHERE l.session OPERATOR(pg_catalog.=) p_session AND l.nonce OPERATOR(pg_catalog.=) p_nonce;
        IF FOUND OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<=) pg_catalog.to_timestamp(p_latest::double precision OPERATOR(pg_catalog./) 1000000) THEN
            RETURN 'busy';
        END IF;
        RETURN 'absent';
    ELSE -- the lock is free, and the commit of its next acquisition also flushes this commit
        unused := pgleases.settings(false, p_lock_ms);
    END IF;
    RETURN 'released';
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.lock_releases(
    p_session bigint, p_names pg_catalog.text[], p_nonces bigint[], p_latest bigint[],
    p_timeline bigint, p_started bigint, p_marker bigint, p_lock_ms int, p_notify boolean,
    OUT same_run boolean, OUT released bigint[], OUT absent bigint[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    durable text;
    r record;
BEGIN
    PERFORM pgleases.lock_settings(p_lock_ms);
    durable := current_setting('synchronous_commit');
    same_run := true;
    released := '{}';
    absent := '{}';
    -- In one order, so that two sessions that release several names do not wait for each other.
    FOR r IN SELECT g.name, g.nonce, g.latest FROM unnest(p_names, p_nonces, p_latest) AS g (name, nonce, latest)
             ORDER BY pgleases.lock_mutex(g.name), g.name, g.nonce LOOP
        CASE pgleases.lock_release(r.name, p_session, r.nonce, r.latest, p_timeline, p_started, p_marker, p_lock_ms, p_notify)
            WHEN 'released' THEN released := released || r.nonce;
            WHEN 'absent' THEN absent := absent || r.nonce;
            WHEN 'elsewhere' THEN same_run := false;
            ELSE -- busy
        END CASE;
        PERFORM set_config('synchronous_commit', durable, true); -- because another release may grant a lock
    END LOOP;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.lock_look(
    p_session bigint, p_nonces bigint[], p_everything boolean, p_lock_ms int, p_notify boolean,
    OUT timeline bigint, OUT started bigint, OUT found_names pg_catalog.text[], OUT found_nonces bigint[], OUT tokens bigint[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    n text;
BEGIN
    PERFORM pgleases.lock_settings(p_lock_ms);
    timeline := pgleases.timeline();
    started := (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint;
    -- The names that may need a turn: no session holds the lock, or only readers hold it and a reader is next, or a
    -- session in the queue before the last of these was evicted. Usually a release or a sweep has already granted the
    -- lock. If another transaction has the mutex, that transaction or the next call does it, so this function does not
    -- wait for the mutex.
    FOR n IN
        SELECT w.name
        FROM (
            SELECT l.name, max(l.ticket) AS last -- once for each name: thousands of nonces may wait for one
            FROM unnest(p_nonces) AS a (nonce) -- one by one: otherwise all rows of the session are read
            CROSS JOIN LATERAL (
                SELECT l.name, l.ticket FROM pgleases.locks AS l
                WHERE l.session = p_session AND l.nonce = a.nonce AND l.token IS NULL
                OFFSET 0) AS l
            GROUP BY l.name) AS w
        WHERE (SELECT h.ticket FROM pgleases.locks AS h WHERE h.name = w.name AND h.token IS NOT NULL ORDER BY h.ticket LIMIT 1) IS NULL
           OR (SELECT h.shared FROM pgleases.locks AS h WHERE h.name = w.name ORDER BY h.ticket LIMIT 1)
              AND (SELECT q.shared FROM pgleases.locks AS q WHERE q.name = w.name AND q.token IS NULL ORDER BY q.ticket LIMIT 1)
           OR EXISTS (SELECT FROM pgleases.locks AS b
                      WHERE b.name = w.name AND b.ticket < w.last
                        AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = b.session) IS NULL)
        ORDER BY w.name
        LIMIT 1000 -- the server has room for a few thousand mutexes; the next call, or a sweep, does the rest
    LOOP
        IF pg_try_advisory_xact_lock(pgleases.lock_mutex(n)) THEN
            PERFORM pgleases.lock_turn(n, timeline, p_notify);
        END IF;
    END LOOP;
    IF p_everything THEN
        SELECT coalesce(array_agg(l.name), '{}'), coalesce(array_agg(l.nonce), '{}'), coalesce(array_agg(coalesce(l.token, 0)), '{}')
        FROM pgleases.locks AS l
        WHERE l.session = p_session
        INTO found_names, found_nonces, tokens;
    ELSE
        SELECT coalesce(array_agg(l.name), '{}'), coalesce(array_agg(l.nonce), '{}'), coalesce(array_agg(coalesce(l.token, 0)), '{}')
        FROM unnest(p_nonces) AS a (nonce)
        CROSS JOIN LATERAL (
            SELECT l.name, l.nonce, l.token FROM pgleases.locks AS l
            WHERE l.session = p_session AND l.nonce = a.nonce
            OFFSET 0) AS l
        INTO found_names, found_nonces, tokens;
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.lock_sweep(p_most int, p_lock_ms int, p_notify boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    expired bigint[];
    n text;
BEGIN
    PERFORM pgleases.lock_settings(p_lock_ms);
    expired := ARRAY( -- from each session to the next by the index, because one session may have 1,000 rows
        WITH RECURSIVE sessions AS (
            SELECT (SELECT l.session FROM pgleases.locks AS l ORDER BY l.session LIMIT 1) AS session
            UNION ALL
            SELECT (SELECT l.session FROM pgleases.locks AS l WHERE l.session > s.session ORDER BY l.session LIMIT 1)
            FROM sessions AS s WHERE s.session IS NOT NULL
        )
        SELECT s.session FROM sessions AS s
        WHERE s.session IS NOT NULL
          AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = s.session) IS NULL);
    IF cardinality(expired) = 0 THEN
        RETURN true;
    END IF;
    FOR n IN
        SELECT DISTINCT d.name
        FROM (SELECT l.name FROM pgleases.locks AS l WHERE l.session = ANY (expired) LIMIT p_most) AS d
        ORDER BY d.name
    LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(pgleases.lock_mutex(n)); -- left to a later sweep
        DELETE FROM pgleases.locks AS l
        WHERE l.name = n AND l.ticket = ANY (ARRAY(
            SELECT d.ticket FROM pgleases.locks AS d WHERE d.name = n AND d.session = ANY (expired) FOR UPDATE SKIP LOCKED));
        PERFORM FROM pgleases.locks AS l WHERE l.name = n LIMIT 1;
        IF FOUND THEN
            PERFORM pgleases.lock_turn(n, pgleases.timeline(), p_notify);
        END IF;
    END LOOP;
    RETURN NOT EXISTS (SELECT FROM pgleases.locks AS l WHERE l.session = ANY (expired));
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.lock_list(
    p_prefix pg_catalog.text, p_after pg_catalog.text, p_most int,
    OUT name pg_catalog.text, OUT shared boolean, OUT waiting int,
    OUT ids pg_catalog.text[], OUT hosts pg_catalog.text[], OUT pids int[], OUT tokens bigint[], OUT since bigint[],
    OUT silent bigint[], OUT lives bigint[], OUT lost boolean[])
RETURNS SETOF record
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH RECURSIVE names AS ( -- from each name to the next by the index, because thousands of sessions may wait for one name
        SELECT (SELECT l.name FROM pgleases.locks AS l WHERE l.name >= p_prefix AND l.name > p_after ORDER BY l.name LIMIT 1) AS name, 1 AS n
        UNION ALL
        SELECT (SELECT l.name FROM pgleases.locks AS l WHERE l.name > s.name ORDER BY l.name LIMIT 1), s.n + 1
        FROM names AS s WHERE starts_with(s.name, p_prefix) AND s.n < p_most
    )
    SELECT n.name, h.shared, (SELECT count(*)::int FROM pgleases.locks AS l WHERE l.name = n.name AND l.token IS NULL),
           h.ids, h.hosts, h.pids, h.tokens, h.since, h.silent, h.lives, h.lost
    FROM names AS n
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(l.shared), false) AS shared, coalesce(array_agg(coalesce(c.id, '') ORDER BY l.ticket), '{}') AS ids,
               coalesce(array_agg(coalesce(c.host, '') ORDER BY l.ticket), '{}') AS hosts,
               coalesce(array_agg(coalesce(c.pid, 0) ORDER BY l.ticket), '{}') AS pids,
               coalesce(array_agg(l.token ORDER BY l.ticket), '{}') AS tokens,
               coalesce(array_agg(least(greatest(extract(epoch FROM l.since) * 1000000, -9e18), 9e18)::bigint ORDER BY l.ticket), '{}') AS since,
               coalesce(array_agg(CASE WHEN c.session IS NULL THEN 0 ELSE least(greatest((extract(epoch FROM now) - extract(epoch FROM c.expires_at)
                   + extract(epoch FROM c.ttl)) * 1000000, -9e15), 9e15)::bigint END ORDER BY l.ticket), '{}') AS silent,
               coalesce(array_agg(CASE WHEN c.session IS NULL THEN 0 ELSE least(greatest((extract(epoch FROM c.expires_at) - extract(epoch FROM now)) * 1000000, -9e15), 9e15)::bigint END
                                  ORDER BY l.ticket), '{}') AS lives,
               coalesce(array_agg(coalesce(l.name = ANY (c.lost_locks), false) ORDER BY l.ticket), '{}') AS lost
        FROM pgleases.locks AS l
        LEFT JOIN LATERAL (SELECT * FROM pgleases.clients AS c WHERE c.session = l.session OFFSET 0) AS c ON true
        WHERE l.name = n.name AND l.token IS NOT NULL
    ) AS h
    WHERE starts_with(n.name, p_prefix)
    ORDER BY n.name;
END
$pgleases_body$;
