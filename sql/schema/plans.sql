-- plans.sql: what a plan reads, and what it writes.

CREATE OR REPLACE FUNCTION pgleases.snapshot(
    p_leases pg_catalog.text[], p_alone boolean,
    OUT name pg_catalog.text, OUT generation bigint, OUT partitions int,
    OUT sessions bigint[], OUT ids pg_catalog.text[], OUT incarnations bigint[], OUT weights int[], OUT ceilings int[],
    OUT joined bigint[], OUT drained boolean[], OUT cordoned boolean[], OUT paused boolean, OUT frozen boolean, OUT settling boolean, OUT unowned int, OUT pinned int[], OUT pinned_to pg_catalog.text[],
    OUT awaited pg_catalog.text[], OUT awaited_weights int[], OUT awaited_ceilings int[], OUT awaited_generations bigint[],
    OUT owners bigint[], OUT targets bigint[], OUT owner_ids pg_catalog.text[], OUT preferred_owner_ids pg_catalog.text[], OUT numbers pg_catalog.text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE -- all of it reads one snapshot
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexonlyscan = off SET enable_sort = off SET jit = off
SET work_mem = '64MB' -- for 65,536 partitions: with less memory the server writes to a file
AS $pgleases_body$
DECLARE
    related text[] := p_leases;
BEGIN
    IF NOT p_alone THEN
        related := p_leases || ARRAY(
            SELECT DISTINCT other.lease
            FROM (SELECT o.lease FROM pgleases.members AS o
                  WHERE o.session = ANY (ARRAY( -- the server looks up each session once, however many of the named leases it is a member of
                      SELECT unnest(array_agg(m.session)) FROM pgleases.members AS m
                      WHERE m.lease = ANY (p_leases)
                      GROUP BY m.lease
                      HAVING count(*) > 1)) -- an only member gets all of a lease, whatever it has in others
                  OFFSET 0) AS other);
    END IF;
    RETURN QUERY
    SELECT l.name, l.generation, l.partitions, m.sessions, m.ids, m.incarnations, m.weights, m.ceilings, m.joined, m.drained, m.cordoned,
        v.verbs LIKE '%pause%', v.verbs LIKE '%freeze%',
           coalesce(l.settles_at > clock_timestamp() AND l.settling_since <= clock_timestamp() + interval '1 second', false), -- otherwise the clock stepped back
           l.unowned, v.pinned, v.pinned_to, g.clients, g.weights, g.ceilings, g.generations,
           h.owners, h.targets, h.owner_ids, h.preferred_owner_ids, h.numbers
    FROM pgleases.leases AS l
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(a.session), '{}') AS sessions, coalesce(array_agg(a.id), '{}') AS ids,
               coalesce(array_agg(a.incarnation), '{}') AS incarnations, coalesce(array_agg(a.weight), '{}') AS weights, coalesce(array_agg(a.ceiling), '{}') AS ceilings,
               coalesce(array_agg(a.joined), '{}') AS joined,
               coalesce(array_agg(a.drained), '{}') AS drained, coalesce(array_agg(a.cordoned), '{}') AS cordoned
        FROM (SELECT m.session, c.id, c.incarnation, m.weight, coalesce(m.max_partitions, 0) AS ceiling, m.joined_generation AS joined,
                     c.id IN (SELECT w.client FROM pgleases.overrides AS w WHERE w.verb = 'drain' AND w.lease IS NULL AND w.client IS NOT NULL) AS drained,
                     c.id IN (SELECT w.client FROM pgleases.overrides AS w WHERE w.verb = 'cordon' AND w.lease IS NULL AND w.client IS NOT NULL) AS cordoned
              FROM pgleases.members AS m
              CROSS JOIN LATERAL (SELECT c.id, c.incarnation FROM pgleases.clients AS c WHERE c.session = m.session OFFSET 0) AS c
              WHERE m.lease = l.name
              ORDER BY c.id, c.incarnation, m.session) AS a
    ) AS m
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(coalesce(p.owner, 0)), '{}') AS owners, coalesce(array_agg(coalesce(p.target, 0)), '{}') AS targets,
               coalesce(array_agg(coalesce(p.owner_id, '')), '{}') AS owner_ids, coalesce(array_agg(coalesce(p.preferred_owner_id, '')), '{}') AS preferred_owner_ids,
               coalesce(string_agg(array_to_string(p.numbers, ','), ';'), '') AS numbers
        FROM (SELECT p.owner, p.target, p.owner_id, p.preferred_owner_id, array_agg(p.partition) AS numbers
              FROM pgleases.partitions AS p
              WHERE p.lease = l.name
              GROUP BY p.owner, p.target, p.owner_id, p.preferred_owner_id) AS p
    ) AS h
    CROSS JOIN LATERAL (
        SELECT coalesce(string_agg(w.verb, ' ') FILTER (WHERE w.partition IS NULL), '') AS verbs,
               coalesce(array_agg(w.partition) FILTER (WHERE w.verb = 'pin'), '{}') AS pinned,
               coalesce(array_agg(w.client) FILTER (WHERE w.verb = 'pin'), '{}') AS pinned_to
        FROM pgleases.overrides AS w WHERE w.lease = l.name AND (w.partition < l.partitions) IS NOT FALSE
    ) AS v
    CROSS JOIN LATERAL ( -- in the future: the clock stepped back
        SELECT coalesce(array_agg(g.client), '{}') AS clients, coalesce(array_agg(g.weight), '{}') AS weights,
               coalesce(array_agg(coalesce(g.max_partitions, 0)), '{}') AS ceilings, coalesce(array_agg(g.generation), '{}') AS generations
        FROM (SELECT g.client, g.weight, g.max_partitions, g.generation FROM pgleases.graces AS g
              WHERE g.lease = l.name AND g.until > clock_timestamp() AND g.since <= clock_timestamp() + interval '1 second'
                AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'drain' AND w.client = g.client AND w.lease IS NULL)
              ORDER BY g.client) AS g
    ) AS g
    WHERE l.name = ANY (related) AND l.partitions > 0
    ORDER BY l.name;
END
$pgleases_body$;

-- A claim is planned once for each connection, because to plan it takes longer than to run it, and a fleet that starts
-- claims a thousand times. statements/claim.sql explains the parameters.
CREATE OR REPLACE FUNCTION pgleases.claim(p_leases pg_catalog.text[], p_lock_ms int, OUT claimed pg_catalog.text[], OUT locked pg_catalog.text[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    PERFORM pgleases.settings(true, p_lock_ms);
    WITH due AS MATERIALIZED (
        SELECT l.name FROM pgleases.leases AS l
        WHERE l.name = ANY (p_leases)
          AND (l.plan_due_at <= clock_timestamp() -- or further ahead than a plan can be: the clock stepped back
               OR l.plan_due_at > clock_timestamp() + interval '1 second' + l.partitions * interval '50 microseconds'
                  AND l.plan_due_at < 'infinity')
        ORDER BY l.name
        FOR UPDATE OF l SKIP LOCKED -- the caller tries these again
    ), now_claimed AS (
        UPDATE pgleases.leases AS l
        SET plan_due_at = clock_timestamp() + interval '100 milliseconds' + l.partitions * interval '10 microseconds',
            planned_at = clock_timestamp()
        FROM due
        WHERE l.name = due.name
        RETURNING l.name
    )
    SELECT coalesce((SELECT array_agg(c.name ORDER BY c.name) FROM now_claimed AS c), '{}'),
           coalesce((SELECT array_agg(l.name ORDER BY l.name) FROM pgleases.leases AS l
                     WHERE l.name = ANY (p_leases) AND l.plan_due_at <= clock_timestamp()
                       AND l.name NOT IN (SELECT c.name FROM now_claimed AS c)), '{}')
    INTO claimed, locked;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.claim(pg_catalog.text[], int) IS 'Claims the planning of leases that need a plan. The file sql/statements/claim.sql explains it.';

-- The leases are locked first. The statement that follows has a snapshot of its own: it sees everything that was
-- committed while this one waited. As long as it runs, no release, join or other plan of these leases is executed. So
-- the owner of a partition does not change from here on; a fence may still raise its epoch.
CREATE OR REPLACE FUNCTION pgleases.apply(
    p_names pg_catalog.text[], p_generations bigint[], p_successor_leases pg_catalog.text[], p_successors bigint[],
    p_leases pg_catalog.text[], p_firsts int[], p_lasts int[], p_shifts int[], p_moves int[], p_lock_ms int,
    p_again bigint, p_only_left_over pg_catalog.bool, p_unowned_leases pg_catalog.text[], p_unowned pg_catalog.text[], p_channel pg_catalog.text,
    OUT applied boolean, OUT unaccepted boolean, OUT asked int, OUT given int, OUT left_over int, OUT overtaken pg_catalog.text[], OUT moved pg_catalog.text[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    successors bigint[]; -- null: neither a live member of an unchanged lease, nor 0
    successor_ids text[];
    targets bigint[]; -- for each element of p_moves; null: it is not moved
    live_leases text[]; -- the live members of the unchanged leases, each with its session in live_sessions
    live_sessions bigint[];
    unchanged text[]; -- the leases that are as the plan read them: only these are written
    lowest bigint; -- epoch
    late text[] := '{}'; -- leases with moves that are left over
    concerned bigint[] := '{}'; -- sessions to notify
BEGIN
    PERFORM pgleases.settings(true, p_lock_ms);
    applied := false;
    unaccepted := false;
    asked := 0;
    given := 0;
    left_over := 0;
    moved := '{}';

    -- Lock the leases that are as the plan read them. Another statement may have changed the others, so
    -- the caller plans them again.
    unchanged := ARRAY(SELECT l.name FROM (SELECT r.name, r.generation FROM unnest(p_names, p_generations) AS r (name, generation) ORDER BY r.name COLLATE "C") AS r
                       CROSS JOIN LATERAL (SELECT l.name FROM pgleases.leases AS l WHERE l.name = r.name AND l.generation = r.generation FOR UPDATE) AS l);
    overtaken := ARRAY(SELECT n FROM unnest(p_names) AS n WHERE n NOT IN (SELECT u FROM unnest(unchanged) AS u));

    -- Write only on a server that is accepted: another one may lack handoffs.
    SELECT pgleases.first_epoch(s.generation) INTO lowest FROM pgleases.server AS s
    WHERE s.accepted_timeline = pgleases.timeline() AND (cardinality(unchanged) > 0 OR cardinality(p_names) = 0);
    IF NOT FOUND THEN -- all leases have changed, or the server is not accepted
        unaccepted := NOT EXISTS (SELECT FROM pgleases.server AS s WHERE s.accepted_timeline = pgleases.timeline());
        RETURN;
    END IF;
    applied := true;

    IF cardinality(p_moves) > 0 THEN
        -- Find the sessions that are to get partitions, because a session may have been evicted since the plan, and
        -- what is to be moved to them.
        SELECT array_agg(h.id), array_agg(CASE WHEN h.valid THEN h.session END) INTO successor_ids, successors
        FROM (SELECT h.session, c.id, h.lease IN (SELECT n FROM unnest(unchanged) AS n) AND (h.session = 0 OR c.id IS NOT NULL) AS valid
              FROM unnest(p_successor_leases, p_successors) WITH ORDINALITY AS h (lease, session, number)
              LEFT JOIN LATERAL (
                  SELECT c.id FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session
                  WHERE m.lease = h.lease AND m.session = h.session
                  OFFSET 0
              ) AS c ON true
              ORDER BY h.number) AS h;
        targets := ARRAY(SELECT successors[m] FROM unnest(p_moves) AS m);
        left_over := cardinality(array_remove(targets, NULL));
        -- The statements below have the same live members, because one that is evicted between them would count twice.
        SELECT array_agg(m.lease), array_agg(m.session) INTO live_leases, live_sessions
        FROM pgleases.members AS m
        CROSS JOIN LATERAL (SELECT FROM pgleases.clients AS c WHERE c.session = m.session OFFSET 0) AS c
        WHERE m.lease = ANY (unchanged);

        -- Ask the owners: a partition whose owner is a live member gets a target, and its owner hands it over when the work
        -- on it has ended. An UPDATE of these columns does not wait for a guard's lock. Because the condition compares rows,
        -- the server can only search the primary key for each run, whatever the statistics are.
        WITH asked AS (
            UPDATE pgleases.partitions AS p
            SET target = nullif(targets[r.shift + p.partition], 0),
                asked_at = CASE WHEN targets[r.shift + p.partition] <> p.owner THEN clock_timestamp() END
            FROM unnest(p_leases, p_firsts, p_lasts, p_shifts) AS r (lease, first, last, shift)
            WHERE (p.lease, p.partition) >= (r.lease, r.first) AND (p.lease, p.partition) <= (r.lease, r.last)
              AND targets[r.shift + p.partition] IS NOT NULL
              AND (p.owner IS NOT NULL AND (p.lease, p.owner) IN (SELECT * FROM unnest(live_leases, live_sessions))) IS TRUE
            RETURNING p.lease, p.owner
        )
        SELECT coalesce(sum(d.asked), 0), left_over - coalesce(sum(d.asked), 0),
               coalesce(array_agg(DISTINCT d.lease), '{}'), coalesce(array_agg(DISTINCT d.owner), '{}')
        FROM (SELECT a.lease, a.owner, count(*) AS asked FROM asked AS a GROUP BY a.lease, a.owner) AS d
        INTO asked, left_over, moved, concerned;
    END IF;

    -- Give the free partitions to their targets, under a higher epoch. A partition is free if it has no live owner. One that
    -- a guarded transaction has locked is left over, because that transaction was promised that the owner stays the same
    -- until its end.
    IF left_over > 0 THEN -- a separate statement, so that the server plans it only if it is needed: that saves time when a client joins
        WITH free AS MATERIALIZED ( -- FOR UPDATE: otherwise a former owner's guard would pass. SKIP LOCKED: otherwise an open guard, or another role's lock, would block the plan
            SELECT p.place, nullif(successors[p.successor], 0) AS target, successor_ids[p.successor] AS target_id, p.owner_id
            FROM unnest(p_leases, p_firsts, p_lasts, p_shifts) AS r (lease, first, last, shift)
            CROSS JOIN LATERAL (
                SELECT p.ctid AS place, p.owner_id, p_moves[r.shift + p.partition] AS successor FROM pgleases.partitions AS p
                WHERE p.lease = r.lease AND p.partition BETWEEN r.first AND r.last
                  AND targets[r.shift + p.partition] IS NOT NULL
                  AND (p.owner IS NOT NULL AND (p.lease, p.owner) IN (SELECT * FROM unnest(live_leases, live_sessions))) IS NOT TRUE
                FOR UPDATE SKIP LOCKED
            ) AS p
        ), given AS ( -- without a row that a fence has changed since this statement began: its snapshot shows the row as it was before
            UPDATE pgleases.partitions AS p
            SET owner = f.target, target = f.target,
                epoch = greatest(p.epoch + 1, lowest),
                owner_id = coalesce(f.target_id, p.owner_id),
                preferred_owner_id = CASE WHEN f.target_id = p.preferred_owner_id THEN NULL
                               WHEN p.owner_id IS NOT NULL AND f.target_id <> p.owner_id
                                AND (p.owner IS NOT NULL OR (p.lease, p.owner_id) NOT IN ( -- the last owner released it, and is still a member
                                     SELECT m.lease, c.id FROM pgleases.members AS m
                                     CROSS JOIN LATERAL (SELECT c.id FROM pgleases.clients AS c WHERE c.session = m.session OFFSET 0) AS c
                                     WHERE m.lease = ANY (unchanged) AND m.weight > 0
                                       AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'drain' AND w.client = c.id)))
                               THEN p.owner_id
                               ELSE p.preferred_owner_id END,
                owned_since = CASE WHEN f.target IS NOT NULL THEN clock_timestamp() END,
                asked_at = NULL
            FROM free AS f
            WHERE p.ctid = f.place
            RETURNING p.lease, p.owner, p.partition, f.owner_id AS from_id, f.target_id AS to_id
        ), done AS MATERIALIZED (
            SELECT g.lease, g.owner, g.from_id, g.to_id, range_agg(int4range(g.partition, g.partition, '[]')) AS partitions, count(*) AS given
            FROM given AS g GROUP BY g.lease, g.owner, g.from_id, g.to_id
        ), recorded AS (
            INSERT INTO pgleases.events (lease, cause, from_id, to_id, partitions, generation)
            SELECT d.lease, 'given', d.from_id, d.to_id, d.partitions, (SELECT l.generation FROM pgleases.leases AS l WHERE l.name = d.lease)
            FROM done AS d
        )
        SELECT coalesce(sum(d.given), 0), left_over - coalesce(sum(d.given), 0),
               moved || coalesce(array_agg(DISTINCT d.lease), '{}'), concerned || coalesce(array_agg(DISTINCT d.owner) FILTER (WHERE d.owner IS NOT NULL), '{}')
        FROM done AS d
        INTO given, left_over, moved, concerned;
    END IF;

    -- Find the leases of what is left over. Moves of partitions that have no row are none: such rows were deleted by hand.
    IF left_over > 0 THEN
        SELECT coalesce(sum(o.moves), 0), coalesce(array_agg(o.lease), '{}')
        FROM (SELECT r.lease, count(*) AS moves
              FROM unnest(p_leases, p_firsts, p_lasts, p_shifts) AS r (lease, first, last, shift)
              CROSS JOIN LATERAL (
                  SELECT FROM pgleases.partitions AS p
                  WHERE p.lease = r.lease AND p.partition BETWEEN r.first AND r.last
                    AND targets[r.shift + p.partition] IS NOT NULL AND p.owner IS DISTINCT FROM nullif(targets[r.shift + p.partition], 0)
                    AND (p.owner IS NOT NULL AND (p.lease, p.owner) IN (SELECT * FROM unnest(live_leases, live_sessions))) IS NOT TRUE
                  OFFSET 0
              ) AS p
              GROUP BY r.lease) AS o
        INTO left_over, late;
    END IF;

    -- Note how many partitions have no owner because of ceilings, and record which.
    IF cardinality(p_unowned_leases) > 0 THEN
        WITH now AS MATERIALIZED (
            SELECT u.lease, u.partitions, (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest(u.partitions) AS r)::int AS number
            FROM (SELECT u.lease, u.partitions::int4multirange AS partitions FROM unnest(p_unowned_leases, p_unowned) AS u (lease, partitions)
                  WHERE u.lease IN (SELECT n FROM unnest(unchanged) AS n)) AS u
        ), noted AS (
            UPDATE pgleases.leases AS l SET unowned = now.number FROM now WHERE l.name = now.lease AND l.unowned <> now.number
            RETURNING l.name, l.generation, now.partitions, now.number
        ), recorded AS (
            INSERT INTO pgleases.events (lease, cause, partitions, generation)
            SELECT o.name, 'over ceilings', o.partitions, o.generation FROM noted AS o WHERE o.number > 0
        )
        SELECT moved || coalesce(array_agg(o.name), '{}') FROM noted AS o INTO moved;
    END IF;

    -- Note when the next plan is due, and make plans void that read the leases before they changed.
    -- Only leases that needed the plan, or that it has changed. Otherwise each plan would write all leases that it has
    -- read, and each member's next heartbeat would return them all.
    UPDATE pgleases.leases AS l
    SET generation = l.generation + CASE WHEN l.name IN (SELECT c.name FROM unnest(moved) AS c (name)) THEN 1 ELSE 0 END,
        planned_at = clock_timestamp(),
        plan_due_at = CASE WHEN cardinality(overtaken) > 0 THEN clock_timestamp() + interval '1 second'
                             WHEN NOT p_only_left_over OR l.name IN (SELECT c.name FROM unnest(late) AS c (name))
                             THEN clock_timestamp() + p_again * interval '1 microsecond'
                             ELSE 'infinity' END
    WHERE l.name = ANY (unchanged) AND (l.plan_due_at < 'infinity' OR l.name IN (SELECT c.name FROM unnest(moved || late) AS c (name)));

    -- Notify the owners that were asked, and the new owners.
    IF p_channel <> '' AND cardinality(concerned) > 0 THEN
        PERFORM pg_notify(p_channel, CASE WHEN cardinality(concerned) > 100 THEN 'all' ELSE array_to_string(concerned, ',') END);
    END IF;
END
$pgleases_body$;
