-- expiry.sql: checks for expired sessions.

-- Evicts the sessions that have expired. statements/evict.sql explains the parameters.
--
-- A function, because of its first statement: of all clients that see that the check is due, one makes it, and for the
-- others the function ends there. It locks the server's row first, then leases by name, clients and members.
-- Other functions lock leases before the server's row. So the check does not wait for these locks: what is locked is
-- left to the next check.
--
-- It reads the clients once, into sessions, because if an old snapshot is open, that table contains a row version for
-- every heartbeat since. For the same reason it names clients by an array, so that they are looked up by their key, and
-- disables compilation (JIT). It reads no other rows of live sessions: with 1,000,000 partitions it takes as long as
-- with 10. All that can wait is left to tidy.
CREATE OR REPLACE FUNCTION pgleases.evict(
    p_cutoff bigint, p_watched bigint, p_ttl bigint, p_timeline bigint, p_started bigint, p_marker bigint, p_lock_ms int,
    OUT evicted pg_catalog.text[], OUT hosts pg_catalog.text[], OUT pids int[], OUT to_plan pg_catalog.text[], OUT plan_due_in bigint,
    OUT made pg_catalog.bool, OUT check_due_in bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off AS $pgleases_body$
DECLARE
    now timestamptz := clock_timestamp();
    cutoff timestamptz := timestamptz 'epoch' + p_cutoff * interval '1 microsecond'; -- sessions that expired before it are evicted
    watched interval := p_watched * interval '1 microsecond';
    evicted_before bigint[]; -- they are still members if a lease was locked, or if a join was in progress
BEGIN
    PERFORM pgleases.settings(true, p_lock_ms);
    evicted := '{}';
    hosts := '{}';
    pids := '{}';
    to_plan := '{}';
    plan_due_in := 0;
    made := false;
    check_due_in := 0;

    -- Begin the check, or leave it to another client. Is a check due, for all clients or for a client that has watched for
    -- this long, or did the clock step back? And is this still the server incarnation that was watched? SKIP LOCKED,
    -- because a lock on the row means that another client makes the check.
    SELECT s.left_behind INTO evicted_before FROM pgleases.server AS s
    WHERE (s.next_check_at <= now
           OR s.unwatched > interval '0' AND s.unwatched <= watched
           OR s.next_check_at > now + interval '1 second' + p_ttl * interval '1 microsecond')
      AND now >= cutoff
      AND s.accepted_timeline = p_timeline AND pgleases.timeline() = p_timeline
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = p_started
      AND (SELECT m.marker FROM pgleases.present_marker AS m) = p_marker
    FOR UPDATE OF s SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    made := true;

    -- Evict, in one statement, so that all of it has one snapshot.
    WITH sessions AS MATERIALIZED ( -- which have expired, by the watch of the caller
        SELECT c.session, c.id, c.ttl, c.expires_at, c.begun_at,
               c.expires_at < cutoff AND c.ttl <= watched AS expired,
               c.expires_at < cutoff AND c.ttl > watched AS unwatched -- it may have expired: a client that has watched for longer evicts it
        FROM pgleases.clients AS c
    ), gone AS MATERIALIZED ( -- the memberships of expired sessions, and of those evicted before
        SELECT m.lease, m.session, s.session IS NULL AS lost, m.weight, m.max_partitions, m.joined_generation, m.restart_grace
        FROM pgleases.members AS m
        LEFT JOIN sessions AS s ON s.session = m.session
        WHERE m.session = ANY (evicted_before || ARRAY(SELECT d.session FROM sessions AS d WHERE d.expired)) AND s.expired IS NOT FALSE
    ), locked AS MATERIALIZED ( -- the leases that lose a member, so that no release or plan of them is executed meanwhile
        SELECT l.name FROM pgleases.leases AS l
        WHERE l.name = ANY (ARRAY(SELECT g.lease FROM gone AS g))
        ORDER BY l.name
        FOR UPDATE OF l SKIP LOCKED
    ), expired AS MATERIALIZED ( -- read again under the lock; SKIP LOCKED, because a locked session renews itself or joins a lease
        SELECT c.session FROM pgleases.clients AS c
        WHERE c.session = ANY (ARRAY(SELECT s.session FROM sessions AS s WHERE s.expired))
          AND c.expires_at < cutoff
          AND (SELECT count(*) FROM locked) >= 0 -- always true: it makes PostgreSQL lock the leases before the clients
        ORDER BY c.session
        FOR UPDATE OF c SKIP LOCKED
    ), evicted AS ( -- from here on no guard passes for them, and plans give their partitions away
        DELETE FROM pgleases.clients AS c WHERE c.session = ANY (ARRAY(SELECT d.session FROM expired AS d))
        RETURNING c.session, c.id, c.incarnation, c.host, c.pid
    ), recorded AS ( -- with where to look for the process
        INSERT INTO pgleases.events (cause, reason, from_id) SELECT 'evicted', concat('host ', e.host, ', pid ', e.pid), e.id FROM evicted AS e ORDER BY e.id
    ), lives AS ( -- of each session, and of all that were registered before it: until when did they live, and are all evicted now?
        SELECT s.begun_at,
               max(s.until) OVER before AS until,
               max(s.until - s.ttl) OVER before AS heard_at,
               bool_and(s.session IN (SELECT e.session FROM evicted AS e)) OVER before AS ended
        FROM (SELECT o.session, o.ttl, o.begun_at,
                     CASE WHEN o.expires_at = 'epoch' THEN now -- evict_disconnected has set it, after it saw the session live
                          ELSE greatest(o.expires_at, o.begun_at + o.ttl) END AS until
              FROM sessions AS o WHERE EXISTS (SELECT FROM evicted)) AS s
        WINDOW before AS (ORDER BY s.begun_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), silent AS ( -- no client lived before this session. Sessions that ended in good order have no row, and do not count
        INSERT INTO pgleases.events (cause, reason)
        SELECT 'no live client', concat('from ', to_char(l.heard_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
                                        ' to ', to_char(l.begun_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
        FROM lives AS l WHERE l.ended AND l.until < l.begun_at ORDER BY l.begun_at
    ), awaited AS ( -- as begin_graces, which would not see what this statement has deleted
        INSERT INTO pgleases.graces AS g (lease, client, weight, max_partitions, generation, since, until)
        SELECT DISTINCT ON (m.lease, e.id) m.lease, e.id, CASE WHEN m.weight = 0 THEN b.weight ELSE m.weight END, m.max_partitions, l.generation,
               now, now + m.restart_grace
        FROM evicted AS e
        JOIN gone AS m ON m.session = e.session
        JOIN pgleases.leases AS l ON l.name = m.lease
        LEFT JOIN pgleases.graces AS b ON b.lease = m.lease AND b.client = e.id AND b.generation >= m.joined_generation
        WHERE m.restart_grace > interval '0' AND e.incarnation >= 0 AND (m.weight > 0 OR b.lease IS NOT NULL)
          AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'drain' AND w.client = e.id)
          AND NOT EXISTS (SELECT FROM pgleases.clients AS o JOIN pgleases.members AS n ON n.session = o.session
                          WHERE o.id = e.id AND o.session NOT IN (SELECT d.session FROM evicted AS d) AND o.incarnation >= 0 AND n.lease = m.lease)
        ORDER BY m.lease, e.id, e.incarnation DESC, e.session DESC
        ON CONFLICT (lease, client) DO UPDATE
        SET weight = EXCLUDED.weight, max_partitions = EXCLUDED.max_partitions, generation = EXCLUDED.generation,
            since = EXCLUDED.since, until = EXCLUDED.until
        RETURNING g.lease, g.client, g.until
    ), unawaited AS ( -- they were awaited before, and are not again
        DELETE FROM pgleases.graces AS b USING evicted AS e, gone AS m
        WHERE m.session = e.session AND b.client = e.id AND b.lease = m.lease AND b.generation < m.joined_generation
          AND NOT EXISTS (SELECT FROM awaited AS a WHERE a.lease = b.lease AND a.client = b.client)
          AND NOT EXISTS (SELECT FROM pgleases.clients AS o JOIN pgleases.members AS n ON n.session = o.session
                          WHERE o.id = e.id AND o.session NOT IN (SELECT d.session FROM evicted AS d) AND n.lease = b.lease)
    ), awaits AS (
        INSERT INTO pgleases.events (lease, cause, from_id) SELECT a.lease, 'awaited', a.client FROM awaited AS a ORDER BY a.lease, a.client
    ), left_behind AS ( -- the memberships end, but not if the session was renewed meanwhile
        DELETE FROM pgleases.members AS m USING gone AS g
        WHERE m.lease = g.lease AND m.session = g.session
          AND (m.lease IN (SELECT l.name FROM locked AS l) OR NOT EXISTS (SELECT FROM pgleases.leases AS l WHERE l.name = m.lease))
          AND (g.lost OR m.session IN (SELECT e.session FROM evicted AS e))
    ), idle AS MATERIALIZED ( -- SKIP LOCKED: a locked ID is in use, by a registration that waits for this statement
        SELECT i.id FROM pgleases.identities AS i WHERE i.id = ANY (ARRAY(SELECT e.id FROM evicted AS e)) FOR UPDATE OF i SKIP LOCKED
    ), used AS ( -- an ID is kept for one day from now
        UPDATE pgleases.identities AS i SET used_at = clock_timestamp() WHERE i.id = ANY (ARRAY(SELECT idle.id FROM idle))
    ), due AS ( -- a plan gives the partitions to others. The new generation makes plans void that were read before
        UPDATE pgleases.leases AS l
        SET generation = l.generation + 1,
            plan_due_at = CASE WHEN l.planned_at <= clock_timestamp() -- otherwise the clock stepped back
                                 THEN greatest(clock_timestamp(), l.planned_at + interval '50 milliseconds' + l.partitions * interval '5 microseconds')
                                 ELSE clock_timestamp() END
        FROM locked
        WHERE l.name = locked.name
        RETURNING l.name, l.plan_due_at
    ), ahead AS MATERIALIZED ( -- further than a heartbeat can set it: the clock stepped back. now is not used, because it may be long ago
        SELECT c.session FROM pgleases.clients AS c
        WHERE c.session = ANY (ARRAY(SELECT s.session FROM sessions AS s WHERE s.expires_at > now + s.ttl + interval '1 second'))
          AND c.expires_at > clock_timestamp() + c.ttl + interval '1 second'
        ORDER BY c.session
        FOR NO KEY UPDATE OF c SKIP LOCKED
    ), clamped AS (
        UPDATE pgleases.clients AS c SET expires_at = least(c.expires_at, clock_timestamp() + c.ttl)
        WHERE c.session = ANY (ARRAY(SELECT a.session FROM ahead AS a))
    ), rest AS MATERIALIZED ( -- the sessions that stay, which decide when the next check is due
        SELECT count(*) AS sessions,
               min(least(s.expires_at, now + s.ttl)) FILTER (WHERE NOT s.unwatched) AS expires_at,
               min(s.ttl) FILTER (WHERE s.unwatched) AS unwatched
        FROM sessions AS s
        WHERE s.session NOT IN (SELECT e.session FROM evicted AS e)
    ), checked AS ( -- the check is done, and no other client repeats it before then
        UPDATE pgleases.server AS s
        SET sessions = rest.sessions,
            unwatched = coalesce(rest.unwatched, interval '0'),
            checks = s.checks + 1,
            left_behind = ARRAY(SELECT e.session FROM evicted AS e UNION SELECT g.session FROM gone AS g WHERE g.lost),
            next_check_at = greatest(now + interval '50 milliseconds',
                CASE WHEN (SELECT count(*) FROM locked) < (SELECT count(*) FROM pgleases.leases AS l WHERE l.name = ANY (ARRAY(SELECT g.lease FROM gone AS g)))
                     THEN least(rest.expires_at, now + interval '100 milliseconds') -- the locked leases are left to the next check
                     ELSE least(coalesce(rest.expires_at, 'infinity'), -- what is locked now is ended by the next check
                                (SELECT CASE WHEN min(e.ends_at) <= now THEN now + interval '100 milliseconds' ELSE min(e.ends_at) END
                                 FROM (SELECT min(w.until) AS ends_at FROM pgleases.overrides AS w WHERE w.until < 'infinity'
                                       UNION ALL SELECT min(l.settles_at) FROM pgleases.leases AS l WHERE l.settles_at IS NOT NULL
                                       UNION ALL SELECT min(g.until) FROM pgleases.graces AS g
                                       UNION ALL SELECT min(a.until) FROM awaited AS a) AS e)) END)
        FROM rest
        RETURNING s.next_check_at, rest.unwatched
    )
    -- 11 minutes is more than any TTL. infinity less a time would be an error.
    SELECT coalesce(r.ids, '{}'), coalesce(r.hosts, '{}'), coalesce(r.pids, '{}'),
           coalesce((SELECT array_agg(a.name ORDER BY a.name) FROM due AS a), '{}'),
           coalesce((SELECT greatest(extract(epoch FROM max(a.plan_due_at) - clock_timestamp()) * 1000000, 0) FROM due AS a), 0),
           (SELECT greatest(extract(epoch FROM least(c.next_check_at, clock_timestamp() + interval '11 minutes',
                                                     clock_timestamp() + (c.unwatched - watched)) - clock_timestamp()) * 1000000, 0)
            FROM checked AS c)
    FROM (SELECT array_agg(e.id ORDER BY e.id, e.session) AS ids, array_agg(e.host ORDER BY e.id, e.session) AS hosts,
                 array_agg(e.pid ORDER BY e.id, e.session) AS pids FROM evicted AS e) AS r
    INTO evicted, hosts, pids, to_plan, plan_due_in, check_due_in;
END
$pgleases_body$;

-- 32 blocks, about 2,000 rows, by address. The next check searches the next blocks, so a check costs the same however
-- large the table is.
CREATE OR REPLACE FUNCTION pgleases.part(p_relation pg_catalog.regclass, OUT first tid, OUT beyond tid)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    blocks CONSTANT bigint := pg_relation_size(p_relation) / current_setting('block_size')::bigint;
    block CONSTANT bigint := 32 * (SELECT s.checks % (blocks / 32 + 1) FROM pgleases.server AS s);
BEGIN
    first := format('(%s,0)', block)::tid;
    beyond := format('(%s,0)', block + 32)::tid;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.part(pg_catalog.regclass) IS 'The part of a table that the present check for expired sessions searches.';

-- Orphans are the result of changes by hand. This function is not a part of evict, so that a failure here neither
-- undoes nor delays an eviction.
CREATE OR REPLACE FUNCTION pgleases.tidy(p_lock_ms int) RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    m CONSTANT record := pgleases.part('pgleases.members'::regclass);
    p CONSTANT record := pgleases.part('pgleases.partitions'::regclass);
    i CONSTANT record := pgleases.part('pgleases.identities'::regclass);
    to_plan text[];
BEGIN
    PERFORM pgleases.settings(true, p_lock_ms);
    WITH lost AS MATERIALIZED ( -- members without a session
        SELECT o.lease, o.session FROM pgleases.members AS o
        WHERE o.ctid >= m.first AND o.ctid < m.beyond
          AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = o.session) IS NULL
    ), owned AS MATERIALIZED (
        SELECT o.lease, o.owner, o.target FROM pgleases.partitions AS o WHERE o.ctid >= p.first AND o.ctid < p.beyond
    ), orphaned AS MATERIALIZED ( -- owners and targets that are not live members
        SELECT o.lease
        FROM (SELECT lease, owner AS session FROM owned WHERE owner IS NOT NULL
              UNION SELECT lease, target FROM owned WHERE target IS NOT NULL) AS o
        WHERE (SELECT n.session FROM pgleases.members AS n
               CROSS JOIN LATERAL (SELECT FROM pgleases.clients AS c WHERE c.session = n.session OFFSET 0) AS c
               WHERE n.lease = o.lease AND n.session = o.session) IS NULL
    ), locked AS MATERIALIZED ( -- for orphans only if no plan is due or in progress, and the lease has a live member
        SELECT l.name FROM pgleases.leases AS l
        WHERE l.name = ANY (ARRAY(SELECT g.lease FROM lost AS g UNION SELECT o.lease FROM orphaned AS o))
          AND (l.name IN (SELECT g.lease FROM lost AS g)
               OR (l.plan_due_at = 'infinity'
                   OR l.plan_due_at > clock_timestamp() + interval '1 second' + l.partitions * interval '50 microseconds') -- the clock stepped back
               AND EXISTS (SELECT FROM pgleases.members AS o
                           WHERE o.lease = l.name AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = o.session) IS NOT NULL))
        ORDER BY l.name
        FOR UPDATE OF l SKIP LOCKED
    ), left_behind AS (
        DELETE FROM pgleases.members AS o USING lost AS g
        WHERE o.lease = g.lease AND o.session = g.session
          AND (o.lease IN (SELECT l.name FROM locked AS l) OR (SELECT l.name FROM pgleases.leases AS l WHERE l.name = o.lease) IS NULL)
    ), planned AS (
        UPDATE pgleases.leases AS l SET generation = l.generation + 1, plan_due_at = clock_timestamp()
        WHERE l.name = ANY (ARRAY(SELECT k.name FROM locked AS k))
        RETURNING l.name
    )
    SELECT coalesce(array_agg(n.name ORDER BY n.name), '{}') INTO to_plan FROM planned AS n;
    DELETE FROM pgleases.identities AS d
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM pgleases.identities AS o
        WHERE o.ctid >= i.first AND o.ctid < i.beyond AND o.used_at < clock_timestamp() - interval '1 day'
          AND o.id NOT IN (SELECT c.id FROM pgleases.clients AS c)
        FOR UPDATE OF o SKIP LOCKED)); -- a locked ID is in use
    PERFORM pgleases.trim_events();
    IF EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.until < 'infinity') THEN
        to_plan := to_plan || pgleases.end_overrides();
    END IF;
    to_plan := ARRAY(SELECT DISTINCT n FROM unnest(to_plan || pgleases.end_delays(clock_timestamp())) AS n ORDER BY n);
    BEGIN -- samples are for people, so a lock on them stops nothing else
        PERFORM set_config('lock_timeout', '50ms', true);
        PERFORM pgleases.trim_samples();
    EXCEPTION WHEN lock_not_available THEN
        NULL; -- the next check trims them
    END;
    RETURN to_plan;
END
$pgleases_body$;

-- Ends the rebalance delays and the restart graces whose time is over, or that began in the future, because the clock
-- stepped back. The new generation makes plans void that were read before. It does not wait for locks: a locked lease is
-- left to the next check.
CREATE OR REPLACE FUNCTION pgleases.end_delays(p_now pg_catalog.timestamptz) RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    names CONSTANT text[] := ARRAY(
        SELECT l.name FROM pgleases.leases AS l
        WHERE l.name = ANY (ARRAY(
            SELECT o.name FROM pgleases.leases AS o
            WHERE o.settles_at IS NOT NULL AND (o.settles_at <= p_now OR o.settling_since > p_now + interval '1 second')
            UNION
            SELECT g.lease FROM pgleases.graces AS g WHERE g.until <= p_now OR g.since > p_now + interval '1 second'))
        ORDER BY l.name
        FOR UPDATE OF l SKIP LOCKED);
BEGIN
    DELETE FROM pgleases.graces AS g
    WHERE (g.until <= p_now OR g.since > p_now + interval '1 second')
      AND (g.lease = ANY (names) OR NOT EXISTS (SELECT FROM pgleases.leases AS l WHERE l.name = g.lease)); -- deleted by hand
    IF cardinality(names) > 0 THEN
        UPDATE pgleases.leases AS l
        SET settling_since = CASE WHEN l.settles_at > p_now AND l.settling_since <= p_now + interval '1 second' THEN l.settling_since END,
            settles_at = CASE WHEN l.settles_at > p_now AND l.settling_since <= p_now + interval '1 second' THEN l.settles_at END,
            generation = l.generation + 1, plan_due_at = CASE WHEN l.partitions > 0 THEN least(l.plan_due_at, p_now) ELSE l.plan_due_at END
        WHERE l.name = ANY (names);
    END IF;
    RETURN names;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.end_delays(pg_catalog.timestamptz) IS 'Ends the rebalance delays and restart graces whose time is over, and returns the leases that need a plan. Checks for expired sessions call it.';
