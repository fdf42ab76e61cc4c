-- leases.sql: leases, members and partitions; what owners read and release.

CREATE TABLE IF NOT EXISTS pgleases.leases (
    name               pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    partitions         int NOT NULL,
    generation         bigint NOT NULL,
    created_generation bigint NOT NULL,
    epoch_floor        bigint NOT NULL,
    plan_due_at        pg_catalog.timestamptz NOT NULL,
    planned_at         pg_catalog.timestamptz NOT NULL,
    changed            pg_catalog.xid8 NOT NULL DEFAULT '0',
    next_partitions    int NOT NULL DEFAULT 0,
    next_until         pg_catalog.timestamptz NOT NULL DEFAULT '-infinity',
    successor          pg_catalog.text COLLATE pg_catalog."C",
    settling_since     pg_catalog.timestamptz,
    settles_at         pg_catalog.timestamptz,
    unowned            int NOT NULL DEFAULT 0,
    joins              bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
COMMENT ON TABLE pgleases.leases IS 'The leases. A lease that was dropped or replaced keeps its row, with 0 partitions, because of its epoch_floor.';
COMMENT ON COLUMN pgleases.leases.name IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.leases.partitions IS 'Number of partitions, numbered from 0. It is 0 if the lease was dropped or replaced.';
COMMENT ON COLUMN pgleases.leases.generation IS 'Rises with every change of the lease''s members, owners or targets; for a handover, with the announcement that follows it.';
COMMENT ON COLUMN pgleases.leases.created_generation IS 'The generation at which the lease was created, or created again after a drop.';
COMMENT ON COLUMN pgleases.leases.epoch_floor IS 'The highest epoch before the lease was dropped or replaced, or of the lease that it replaced; new epochs are above it.';
COMMENT ON COLUMN pgleases.leases.plan_due_at IS 'When a plan of this lease is due. It is infinity if no plan is due.';
COMMENT ON COLUMN pgleases.leases.planned_at IS 'When a plan was last claimed or applied.';
COMMENT ON COLUMN pgleases.leases.next_partitions IS 'For a dropped lease: until next_until it can be created again only with this number of partitions.';
COMMENT ON COLUMN pgleases.leases.next_until IS '24 hours after the last drop. It is -infinity if the lease was never dropped.';
COMMENT ON COLUMN pgleases.leases.successor IS 'The lease that has replaced this one, which no session can join any more. It is null if it was not replaced.';
COMMENT ON COLUMN pgleases.leases.settling_since IS 'When the first of the joins and changes of weights came that settles_at counts from. It is null if there is no settles_at.';
COMMENT ON COLUMN pgleases.leases.settles_at IS 'The end of the rebalance delay: until then partitions with a live owner stay. It is null if there is no delay.';
COMMENT ON COLUMN pgleases.leases.unowned IS 'How many partitions have no owner according to the last plan, because all members are at their ceilings.';
COMMENT ON COLUMN pgleases.leases.joins IS 'How often the generation has risen because a session joined. That changes no owner and no target, so members read what they own only if the generation without the joins is another one.';
COMMENT ON COLUMN pgleases.leases.changed IS 'The transaction that last changed the row. Heartbeats of members return their leases only after a change.';

CREATE OR REPLACE TRIGGER emptied AFTER TRUNCATE ON pgleases.leases EXECUTE FUNCTION pgleases.emptied();
CREATE INDEX IF NOT EXISTS leases_settling ON pgleases.leases (settles_at) WHERE settles_at IS NOT NULL;

CREATE TABLE IF NOT EXISTS pgleases.members (
    lease       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    session     bigint NOT NULL,
    weight      int NOT NULL,
    joined_at   pg_catalog.timestamptz NOT NULL,
    join_number bigint NOT NULL,
    joined_generation bigint NOT NULL DEFAULT 0,
    rebalance_delay interval NOT NULL DEFAULT '0',
    max_partitions int,
    restart_grace interval NOT NULL DEFAULT '0',
    PRIMARY KEY (lease, session)
);
CREATE INDEX IF NOT EXISTS members_session ON pgleases.members (session, lease);
-- So a join finds the longest rebalance delay without reading all members.
CREATE INDEX IF NOT EXISTS members_delaying ON pgleases.members (lease) WHERE rebalance_delay OPERATOR(pg_catalog.>) interval '0';
COMMENT ON TABLE pgleases.members IS 'The members, with one row for each session and each lease that it joined.';
COMMENT ON COLUMN pgleases.members.lease IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.members.session IS 'The session that joined. It is a live member while it has a row in clients.';
COMMENT ON COLUMN pgleases.members.weight IS 'Its share relative to the other members, as the application set it. With 0 it owns no partition. If an override drains the client or pauses the lease, the weight counts as 0.';
COMMENT ON COLUMN pgleases.members.joined_at IS 'When it joined, or when its weight was last raised from 0.';
COMMENT ON COLUMN pgleases.members.joined_generation IS 'Generation of the lease at that time: the order of the joins, whatever the clock does. If partitions are rarer than members, a free one goes to the member with the lowest, which has waited longest.';
COMMENT ON COLUMN pgleases.members.rebalance_delay IS 'How long partitions with a live owner are to stay after a member has joined or changed its weight. The longest of all members counts.';
COMMENT ON COLUMN pgleases.members.max_partitions IS 'The most partitions that a plan gives to the member. Partitions that an operator has pinned to it count, and may pass it. It is null if there is no ceiling.';
COMMENT ON COLUMN pgleases.members.restart_grace IS 'How long its partitions wait for a client with this ID after it has closed or crashed.';
COMMENT ON COLUMN pgleases.members.join_number IS 'Number of the last join among those of its session. A leave contains this number, so that a late leave ends no later membership.';

CREATE OR REPLACE TRIGGER emptied AFTER TRUNCATE ON pgleases.members EXECUTE FUNCTION pgleases.emptied();

-- A separate table, because the member's row is deleted with the membership. A row whose client is a member again has no
-- effect. Plans treat a client that is awaited as a member that keeps its partitions and gets no other.
CREATE TABLE IF NOT EXISTS pgleases.graces (
    lease          pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    client         pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    weight         int NOT NULL,
    max_partitions int,
    generation     bigint NOT NULL,
    since          pg_catalog.timestamptz NOT NULL,
    until          pg_catalog.timestamptz NOT NULL,
    PRIMARY KEY (lease, client)
);
COMMENT ON TABLE pgleases.graces IS 'The clients whose partitions wait for their return, because they have closed or crashed and have a restart grace.';
COMMENT ON COLUMN pgleases.graces.lease IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.graces.client IS 'The client''s ID.';
COMMENT ON COLUMN pgleases.graces.weight IS 'Its weight as a member.';
COMMENT ON COLUMN pgleases.graces.max_partitions IS 'Its ceiling as a member. It is null if it had none.';
COMMENT ON COLUMN pgleases.graces.generation IS 'Generation of the lease when this was written. If a client with the ID has joined at a higher one, it is back.';
COMMENT ON COLUMN pgleases.graces.since IS 'When the client went away, or last released partitions because it closes.';
COMMENT ON COLUMN pgleases.graces.until IS 'Until when its partitions wait. Then the next check for expired sessions deletes the row, and a plan gives them to others.';

-- No foreign keys on owner and target: ON DELETE SET NULL would wait for a user's guarded transaction.
CREATE TABLE IF NOT EXISTS pgleases.partitions (
    lease       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition   int NOT NULL,
    owner       bigint,
    target      bigint,
    epoch       bigint NOT NULL,
    owner_id    pg_catalog.text COLLATE pg_catalog."C",
    preferred_owner_id     pg_catalog.text COLLATE pg_catalog."C",
    owned_since pg_catalog.timestamptz,
    asked_at    pg_catalog.timestamptz,
    PRIMARY KEY (lease, partition)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS partitions_owner ON pgleases.partitions (owner, lease pg_catalog.text_pattern_ops);
COMMENT ON TABLE pgleases.partitions IS 'The partitions of every lease, each with its owner and its target.';
COMMENT ON COLUMN pgleases.partitions.lease IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.partitions.partition IS 'The partition''s number, from 0.';
COMMENT ON COLUMN pgleases.partitions.owner IS 'The session that owns it. It is null if no session does. An evicted session stays here until a plan gives the partition away, so an owner counts only while it has a row in clients.';
COMMENT ON COLUMN pgleases.partitions.target IS 'The session that is to own it. If that is not the owner, the owner is asked to hand over.';
COMMENT ON COLUMN pgleases.partitions.epoch IS 'The epoch (fencing token), which rises with every change of owner, and never repeats.';
COMMENT ON COLUMN pgleases.partitions.owner_id IS 'The client ID of the owner, or of the last one.';
COMMENT ON COLUMN pgleases.partitions.preferred_owner_id IS 'The client ID of the preferred owner. It owned the partition when it went away, and gets it back. It is null if it has no preferred owner, or has returned to it.';
COMMENT ON COLUMN pgleases.partitions.owned_since IS 'When this ownership began.';
COMMENT ON COLUMN pgleases.partitions.asked_at IS 'When the owner was asked to hand over. It is null if it is not asked.';

CREATE OR REPLACE TRIGGER emptied AFTER TRUNCATE ON pgleases.partitions EXECUTE FUNCTION pgleases.emptied();

-- Sets leases.changed. It is a trigger, so that changes by operators count too.
CREATE OR REPLACE FUNCTION pgleases.lease_changed() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    NEW.changed := pg_current_xact_id();
    RETURN NEW;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lease_changed() IS 'Records in a lease which transaction has changed it.';
CREATE OR REPLACE TRIGGER changed BEFORE INSERT OR UPDATE ON pgleases.leases FOR EACH ROW EXECUTE FUNCTION pgleases.lease_changed();

-- The statements from here on, and in plans.sql, are functions because the server keeps a function's plans for each
-- connection. Planning each call would cost more than executing the usual case, a few partitions. A kept plan must be
-- good for one row and for 65,536 rows, whatever the tables contained when it was made. So rows are found by their key
-- or their address (ctid), and the planner gets no choice. LATERAL with OFFSET 0 or FOR UPDATE keeps it from joining in
-- another way, and enable_seqscan = off keeps it from reading a whole table. Comparisons with many members use a hash:
-- that is how PostgreSQL executes every IN that is not a condition of WHERE. Such an IN is slow for nulls, so nulls are
-- filtered out first. ~>=~ and ~<=~ are comparisons that only the index partitions_owner has. It finds what a session
-- owns in one lease, however much the session owns in others, and others own in that lease.

CREATE OR REPLACE FUNCTION pgleases.read(
    p_session bigint, p_leases pg_catalog.text[],
    OUT name pg_catalog.text, OUT generation bigint, OUT timeline bigint, OUT started bigint, OUT accepted_timeline bigint, OUT server_generation bigint,
    OUT partitions int[], OUT epochs bigint[], OUT moving boolean[], OUT paused pg_catalog.text[], OUT drained pg_catalog.text[],
    OUT unowned int, OUT speaks boolean)
RETURNS SETOF record
LANGUAGE plpgsql STABLE -- one snapshot
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
BEGIN
    RETURN QUERY
    SELECT l.name, l.generation - l.joins, pgleases.timeline(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
           s.accepted_timeline, s.generation, coalesce(o.partitions, '{}'), coalesce(o.epochs, '{}'), coalesce(o.moving, '{}'),
           (SELECT ARRAY[w.actor, w.reason] FROM pgleases.overrides AS w WHERE w.verb = 'pause' AND w.lease = l.name),
           (SELECT ARRAY[w.actor, w.reason] FROM pgleases.overrides AS w JOIN pgleases.clients AS c ON c.id = w.client WHERE w.verb = 'drain' AND c.session = p_session),
           l.unowned, (l.unowned > 0 AND p_session = (
               SELECT m.session FROM pgleases.members AS m
               WHERE m.lease = l.name AND EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = m.session OFFSET 0)
               ORDER BY m.session LIMIT 1)) IS TRUE
    FROM pgleases.server AS s, pgleases.leases AS l
    CROSS JOIN LATERAL (
        SELECT array_agg(p.partition) AS partitions, array_agg(p.epoch) AS epochs, array_agg(p.target IS DISTINCT FROM p.owner) AS moving
        FROM (SELECT p.partition, p.epoch, p.target, p.owner FROM pgleases.partitions AS p
              WHERE p.owner = p_session AND p.lease ~>=~ l.name AND p.lease ~<=~ l.name
              ORDER BY p.partition) AS p
    ) AS o
    WHERE l.name = ANY (p_leases);
END
$pgleases_body$;

-- A reader that names its last point gets what has changed since. The events say which partitions have gone to others,
-- and transactions commit in any order. So a point is the xmin of a snapshot: each transaction below it had ended, and a
-- transaction that commits later is not below it. A point is valid in its server incarnation only, because another server
-- may lack transactions, and assigns their numbers again. All is read if the point is not valid, if events since then
-- may have been trimmed, if an event concerns more than the partitions that it names, and if there are too many.
CREATE OR REPLACE FUNCTION pgleases.owners(
    p_leases pg_catalog.text[], p_firsts int[], p_lasts int[], p_runs pg_catalog.text[], p_seen pg_catalog.xid8[],
    OUT number bigint, OUT partitions int, OUT generation bigint, OUT run pg_catalog.text, OUT seen pg_catalog.xid8, OUT firsts int[], OUT lasts int[],
    OUT id pg_catalog.text, OUT metadata pg_catalog.text, OUT owned int[], OUT epochs bigint[])
RETURNS SETOF record
LANGUAGE plpgsql STABLE -- one snapshot
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
SET work_mem = '64MB' -- for 65,536 partitions: with less memory the server writes to a file
AS $pgleases_body$
DECLARE
    oldest CONSTANT xid8 := pg_snapshot_xmin(pg_current_snapshot());
    next CONSTANT xid8 := pg_snapshot_xmax(pg_current_snapshot());
    present CONSTANT text := coalesce((SELECT concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), m.marker) FROM pgleases.present_marker AS m), '');
    trimmed CONSTANT xid8 := (SELECT k.trimmed FROM pgleases.events_kept AS k);
BEGIN
    RETURN QUERY
    WITH spans AS MATERIALIZED (
        SELECT w.number, w.lease, l.partitions, l.generation, r.firsts, r.lasts
        FROM unnest(p_leases, p_firsts, p_lasts, p_runs, p_seen) WITH ORDINALITY AS w (lease, first, last, run, seen, number)
        LEFT JOIN LATERAL (SELECT l.partitions, l.generation - l.joins AS generation FROM pgleases.leases AS l WHERE l.name = w.lease OFFSET 0) AS l ON true
        CROSS JOIN LATERAL (
            SELECT CASE WHEN w.run = present AND present <> '' AND (trimmed < w.seen OR trimmed >= next) THEN (
                SELECT CASE WHEN count(*) <= 1000 AND bool_or(e.whole) IS NOT TRUE THEN coalesce(range_agg(r), '{}') END
                FROM (SELECT e.partitions, e.lease = w.lease AND e.cause IN ('given', 'handed over') AS moved,
                             (e.lease = w.lease) IS NOT FALSE AND e.cause IN ('evicted', 'evict', 'accepted', 'new generation', 'dropped', 'replaced', 'replaces') AS whole
                      FROM pgleases.events AS e WHERE e.tx >= w.seen AND e.tx < next
                      ORDER BY e.tx, e.id LIMIT 1001) AS e
                LEFT JOIN LATERAL unnest(e.partitions) AS r ON e.moved) END AS ranges) AS c
        CROSS JOIN LATERAL (
            SELECT coalesce(array_agg(lower(r)), '{}') AS firsts, coalesce(array_agg(upper(r) - 1), '{}') AS lasts
            FROM unnest(coalesce(c.ranges, '{(,)}') * int4multirange(int4range(w.first, w.last, '[]'))) AS r) AS r
    )
    SELECT s.number, coalesce(s.partitions, 0), coalesce(s.generation, 0), present, oldest, s.firsts, s.lasts, '', '', '{}'::int[], '{}'::bigint[]
    FROM spans AS s
    UNION ALL
    SELECT s.number, 0, 0, '', oldest, '{}'::int[], '{}'::int[], c.id, c.metadata::text, o.owned, o.epochs
    FROM spans AS s
    CROSS JOIN LATERAL (
        SELECT p.owner, array_agg(p.partition) AS owned, array_agg(p.epoch) AS epochs
        FROM unnest(s.firsts, s.lasts) AS r (first, last)
        CROSS JOIN LATERAL (SELECT p.owner, p.partition, p.epoch FROM pgleases.partitions AS p
                            WHERE p.lease = s.lease AND p.partition BETWEEN r.first AND r.last OFFSET 0) AS p
        GROUP BY p.owner
    ) AS o
    CROSS JOIN LATERAL (SELECT c.id, c.metadata FROM pgleases.clients AS c
                        WHERE c.session = o.owner AND c.incarnation >= 0 AND c.expires_at > clock_timestamp() OFFSET 0) AS c;
END
$pgleases_body$;

-- A join is planned once for each connection, because to plan it takes longer than to run it, and a fleet that starts
-- joins a thousand times. statements/join.sql explains the parameters.
CREATE OR REPLACE FUNCTION pgleases.join_lease(
    p_session bigint, p_lease pg_catalog.text, p_partitions int, p_weight int, p_number bigint, p_lock_ms int, p_delay bigint, p_ceiling int, p_grace bigint,
    OUT alive boolean, OUT joined boolean, OUT successor pg_catalog.text, OUT partitions int, OUT dropped_with int, OUT claimed boolean,
    OUT due_in bigint, OUT settles_in bigint, OUT generation bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
#variable_conflict use_column
BEGIN
    PERFORM pgleases.settings(true, p_lock_ms);
    WITH alive AS MATERIALIZED (
        SELECT c.session, c.ttl, clock_timestamp() AS now,
               (SELECT l.planned_at FROM pgleases.leases AS l WHERE l.name = p_lease) AS planned_before,
               EXISTS (SELECT FROM pgleases.graces AS g WHERE g.lease = p_lease AND g.client = c.id AND g.until > clock_timestamp()) AS awaited,
               p_weight <> coalesce((SELECT m.weight FROM pgleases.members AS m WHERE m.lease = p_lease AND m.session = p_session), 0) AS changes,
               greatest(p_delay * interval '1 microsecond',
                        (SELECT max(m.rebalance_delay) FROM pgleases.members AS m JOIN pgleases.clients AS o ON o.session = m.session
                         WHERE m.lease = p_lease AND m.rebalance_delay > interval '0')) AS delay
        FROM pgleases.clients AS c WHERE c.session = p_session
    ), lease AS (
        INSERT INTO pgleases.leases AS l
            (name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
        SELECT p_lease, p_partitions, 1, 1, 0, alive.now + interval '100 milliseconds' + p_partitions * interval '10 microseconds', alive.now
        FROM alive
        ON CONFLICT (name) DO UPDATE
        SET partitions = EXCLUDED.partitions,
            generation = l.generation + 1,
            joins = l.joins + (l.partitions > 0 AND l.unowned = 0)::int, -- otherwise there is more to read: who logs the partitions without an owner
            created_generation = CASE WHEN l.partitions = 0 THEN l.generation + 1 ELSE l.created_generation END,
            (plan_due_at, planned_at) = (
                SELECT CASE WHEN NOT p.lately THEN EXCLUDED.plan_due_at
                            WHEN l.plan_due_at <= p.now THEN l.plan_due_at
                            ELSE least(greatest(p.calm_at, p.now + interval '100 milliseconds'), l.planned_at + interval '1 second' + p.each) END,
                       CASE WHEN p.lately THEN l.planned_at ELSE EXCLUDED.planned_at END
                FROM (SELECT c.now, c.each, c.calm_at,
                             l.planned_at <= c.now -- otherwise the clock stepped back
                             AND (c.calm_at > c.now AND NOT (SELECT alive.awaited FROM alive) OR l.plan_due_at > c.now AND l.plan_due_at <= c.now + interval '1 second' + 5 * c.each) AS lately
                      FROM (SELECT n.now, n.each, l.planned_at + interval '250 milliseconds' + n.each AS calm_at
                            FROM (SELECT clock_timestamp() AS now, l.partitions * interval '10 microseconds' AS each) AS n) AS c) AS p),
            (settling_since, settles_at) = ( -- greatest ignores null
                SELECT CASE WHEN d.begins THEN d.since ELSE l.settling_since END,
                       CASE WHEN d.begins THEN greatest(CASE WHEN d.settles THEN l.settles_at END, least(d.now + d.delay, d.since + 5 * d.delay)) ELSE l.settles_at END
                FROM (SELECT s.now, s.settles, alive.delay,
                             alive.delay > interval '0' AND alive.changes AND (l.settles_at > s.now) IS NOT FALSE AS begins,
                             CASE WHEN s.settles THEN l.settling_since ELSE s.now END AS since
                      FROM alive, (SELECT n.now, l.settles_at > n.now AND l.settling_since <= n.now + interval '1 second' AS settles -- otherwise the clock stepped back
                                   FROM (SELECT clock_timestamp() AS now) AS n) AS s) AS d)
        WHERE l.partitions = EXCLUDED.partitions
           OR l.partitions = 0 AND l.successor IS NULL -- it was dropped
              AND (l.next_partitions = EXCLUDED.partitions OR l.next_until <= clock_timestamp())
        RETURNING l.name, l.generation, l.generation - l.joins AS unjoined, l.unowned, l.generation = l.created_generation AS created, l.epoch_floor, l.plan_due_at, l.settles_at,
                  (SELECT l.planned_at = alive.now AND alive.planned_before IS DISTINCT FROM alive.now FROM alive) AS claimed
    ), lowered AS ( -- a check for expired sessions ends the delay. One that is under way does not know of it, and is waited for,
                   -- unless another check comes before the end, because this session might expire
        UPDATE pgleases.server AS s SET next_check_at = least(s.next_check_at, lease.settles_at)
        FROM lease, alive
        WHERE alive.changes AND (s.next_check_at > lease.settles_at OR lease.settles_at < alive.now + alive.ttl)
        RETURNING 1
    ), client AS ( -- read again under a lock, which keeps the session: so every member has a session
        SELECT c.session, c.id FROM pgleases.clients AS c, lease
        WHERE c.session = p_session AND (SELECT count(*) FROM lowered) >= 0 -- always true: the lock on the server comes first
        FOR KEY SHARE OF c
    ), made AS (
        INSERT INTO pgleases.partitions (lease, partition, epoch)
        SELECT lease.name, n, lease.epoch_floor
        FROM lease, generate_series(0, p_partitions - 1) AS n
        WHERE lease.created
    ), forgotten AS ( -- of a lease that was truncated or deleted by hand
        DELETE FROM pgleases.graces AS g USING lease WHERE lease.created AND g.lease = lease.name
    ), member AS (
        INSERT INTO pgleases.members AS m (lease, session, weight, joined_at, join_number, joined_generation, rebalance_delay, max_partitions, restart_grace)
        SELECT lease.name, client.session, p_weight, clock_timestamp(), p_number, lease.generation, p_delay * interval '1 microsecond', nullif(p_ceiling, 0),
               p_grace * interval '1 microsecond'
        FROM lease, client
        ON CONFLICT (lease, session) DO UPDATE
        SET weight = EXCLUDED.weight, joined_at = CASE WHEN m.weight = 0 AND EXCLUDED.weight > 0 THEN EXCLUDED.joined_at ELSE m.joined_at END,
            joined_generation = CASE WHEN m.weight = 0 AND EXCLUDED.weight > 0 THEN EXCLUDED.joined_generation ELSE m.joined_generation END,
            join_number = greatest(m.join_number, EXCLUDED.join_number), rebalance_delay = EXCLUDED.rebalance_delay,
            max_partitions = EXCLUDED.max_partitions, restart_grace = EXCLUDED.restart_grace
        RETURNING m.lease, m.xmax = 0 AS new -- the membership is new
    ), recorded AS (
        INSERT INTO pgleases.events (lease, cause, to_id, generation)
        SELECT lease.name, 'joined', client.id, lease.generation - 1 FROM lease, client, member WHERE member.new
    )
    SELECT CASE WHEN EXISTS (SELECT FROM lease) THEN EXISTS (SELECT FROM client) -- it may have been evicted meanwhile
                ELSE EXISTS (SELECT FROM alive) END AS alive,
           (SELECT count(*) FROM member) > 0 AS joined,
           coalesce((SELECT l.successor FROM pgleases.leases AS l WHERE l.name = p_lease), '') AS successor,
           coalesce((SELECT l.partitions FROM pgleases.leases AS l WHERE l.name = p_lease), 0) AS partitions,
           coalesce((SELECT l.next_partitions FROM pgleases.leases AS l WHERE l.name = p_lease AND l.partitions = 0), 0) AS dropped_with,
           EXISTS (SELECT FROM lease WHERE lease.claimed) AS claimed,
           coalesce((SELECT greatest(extract(epoch FROM lease.plan_due_at - clock_timestamp()) * 1000000000, 0)
                     FROM lease WHERE lease.plan_due_at < 'infinity' AND NOT lease.claimed), 0)::bigint AS due_in,
           coalesce((SELECT greatest(extract(epoch FROM lease.settles_at - clock_timestamp()) * 1000000000, 0) FROM lease), 0)::bigint AS settles_in,
           coalesce((SELECT lease.unjoined FROM lease, member WHERE lease.unowned = 0 AND member.new), 0) AS generation
    INTO alive, joined, successor, partitions, dropped_with, claimed, due_in, settles_in, generation;
    -- A later snapshot, because an operator may have held what the statement waited for.
    IF generation > 0 AND EXISTS (SELECT FROM pgleases.overrides) THEN
        generation := 0;
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.join_lease(bigint, pg_catalog.text, int, int, bigint, int, bigint, int, bigint) IS 'Makes a session a member of a lease, or changes its weight. The file sql/statements/join.sql explains it.';

-- Begins the restart graces of a session in these leases, and returns the leases in which it has one. It is not begun
-- for a client that is back, by a newer process. A member that leaves has weight 0, so its weight before it is kept. One
-- statement, so that its generation is not newer than the members that it has seen.
CREATE OR REPLACE FUNCTION pgleases.begin_graces(p_session bigint, p_leases pg_catalog.text[]) RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    begun text[];
BEGIN
    WITH begun AS (
        INSERT INTO pgleases.graces AS g (lease, client, weight, max_partitions, generation, since, until)
        SELECT m.lease, c.id, CASE WHEN m.weight = 0 THEN b.weight ELSE m.weight END, m.max_partitions, l.generation,
               clock_timestamp(), clock_timestamp() + m.restart_grace
        FROM pgleases.members AS m
        JOIN pgleases.clients AS c ON c.session = m.session
        JOIN pgleases.leases AS l ON l.name = m.lease
        LEFT JOIN pgleases.graces AS b ON b.lease = m.lease AND b.client = c.id AND b.generation >= m.joined_generation
        WHERE m.session = p_session AND m.lease = ANY (p_leases) AND m.restart_grace > interval '0' AND c.incarnation >= 0
          AND (m.weight > 0 OR b.lease IS NOT NULL)
          AND NOT EXISTS (SELECT FROM pgleases.clients AS o JOIN pgleases.members AS n ON n.session = o.session
                          WHERE o.id = c.id AND o.session <> c.session AND o.incarnation >= c.incarnation AND n.lease = m.lease)
        ON CONFLICT (lease, client) DO UPDATE
        SET weight = EXCLUDED.weight, max_partitions = EXCLUDED.max_partitions, generation = EXCLUDED.generation,
            since = EXCLUDED.since, until = EXCLUDED.until
        RETURNING g.lease
    )
    SELECT coalesce(array_agg(b.lease ORDER BY b.lease), '{}') FROM begun AS b INTO begun;
    RETURN begun;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.begin_graces(bigint, pg_catalog.text[]) IS 'Makes the partitions of a session wait for the return of its client, and returns the leases in which they do. Releases call it.';

-- Releases of several owners run side by side, and do not wait for each other's flush. So a release that changes only
-- owners locks the lease's row in the weakest mode, and does not write to it. The function announce writes to it later,
-- in a transaction that does not wait for a flush. FOR KEY SHARE keeps plans and leaves of this lease waiting. A check for
-- expired sessions passes over the lease: it evicts the session, and leaves its membership to the next check. A session
-- that is gone releases no partition, because a plan may have read that it is gone.
-- statements/release.sql explains the parameters.
CREATE OR REPLACE FUNCTION pgleases.release(
    p_session bigint, p_leases pg_catalog.text[], p_partitions int[], p_epochs bigint[], p_successors bigint[],
    p_leaving pg_catalog.text[], p_planned bigint[], p_ending pg_catalog.text[], p_returning pg_catalog.text[], p_last_join bigint, p_lock_ms int, p_channel pg_catalog.text,
    OUT released_leases pg_catalog.text[], OUT released_partitions int[], OUT owners bigint[], OUT new_epochs bigint[],
    OUT busy_leases pg_catalog.text[], OUT busy_partitions int[], OUT left_leases pg_catalog.text[], OUT to_plan pg_catalog.text[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
DECLARE
    names CONSTANT text[] := ARRAY(SELECT DISTINCT n FROM unnest(p_leases || p_leaving) AS n);
    as_planned text[]; -- leases to leave that have not changed since the plan of the successors read them
    server_generation bigint;
    lowest_epoch bigint; -- of new ownerships in this server generation
    drained text[] := '{}';
    alive boolean;
    drains boolean; -- an override drains the client
    concerned bigint[];
    due text[]; -- leases that need a plan
    awaited text[] := '{}'; -- leases whose partitions wait for the client's return
BEGIN
    PERFORM pgleases.settings(true, p_lock_ms);
    -- Lock the leases by name. So no plan or leave of them is executed meanwhile. A plan that was read before may
    -- be written after this, and then apply finds the new owners and epochs under its own lock. A leave changes its lease,
    -- so it needs the stronger lock from the beginning. So does a client that closes and will return: it locks the server's
    -- row below, and must not wait for a lease after that, because a join that has locked the lease may wait for that row.
    IF cardinality(p_ending) > 0 THEN
        PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR UPDATE;
    ELSIF cardinality(p_returning) > 0 THEN
        PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR NO KEY UPDATE;
    ELSE
        PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR KEY SHARE;
    END IF;

    -- The partitions of a client that will return wait for it. A check for expired sessions ends that, and the server's row
    -- comes before those of clients.
    IF cardinality(p_returning) > 0 THEN
        -- This waits for a check that is under way, because that one does not know of the grace, and may set a later time. If
        -- the grace is longer than the TTL, the row need not change, and closing clients do not wait for each other: a check
        -- comes before the end of the grace anyway, because this session might expire.
        UPDATE pgleases.server AS s SET next_check_at = least(s.next_check_at, e.ends_at)
        FROM (SELECT clock_timestamp() + min(m.restart_grace) AS ends_at, min(m.restart_grace) < min(c.ttl) AS soon
              FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session
              WHERE m.session = p_session AND m.lease = ANY (p_returning) AND m.restart_grace > interval '0') AS e
        WHERE s.next_check_at > e.ends_at OR e.soon;
    END IF;

    -- Lock the session, so that it is not evicted before this commits. The partitions of a session
    -- that is gone may belong to others by now, so it cannot release them.
    PERFORM FROM pgleases.clients AS c WHERE c.session = p_session FOR KEY SHARE;
    alive := FOUND;

    -- Release only on a server that is accepted: another one may lack handoffs. Without a generation nothing is taken.
    IF alive THEN
        SELECT s.generation, pgleases.first_epoch(s.generation) INTO server_generation, lowest_epoch
        FROM pgleases.server AS s WHERE s.accepted_timeline = pgleases.timeline();
    END IF;
    drains := EXISTS (SELECT FROM pgleases.overrides AS w
                      WHERE w.verb = 'drain' AND w.client = (SELECT c.id FROM pgleases.clients AS c WHERE c.session = p_session));
    IF alive AND NOT drains AND cardinality(p_returning) > 0 THEN
        awaited := pgleases.begin_graces(p_session, p_returning);
    END IF;
    -- Follow the caller's plan only for leases that have not changed since it read them.
    as_planned := ARRAY(SELECT l.name FROM unnest(p_leaving, p_planned) AS g (lease, generation)
                        JOIN pgleases.leases AS l ON l.name = g.lease AND l.generation = g.generation);

    -- Hand over: each partition that the session owns under the epoch that the caller names gets a higher epoch. Its next
    -- owner is the target, if that is a live member. An ownership of an earlier server generation is renewed instead, and
    -- stays with the session, unless that leaves the lease. A partition that a guarded transaction has locked is left out, because that transaction
    -- was promised that the owner stays the same until its end.
    WITH taken AS MATERIALIZED (
        SELECT p.place, p.lease, p.owner_id, b.leaves, b.epoch >> 32 < server_generation AND NOT b.leaves AS renewed,
               CASE WHEN b.successor <> 0 AND p.lease IN (SELECT n FROM unnest(as_planned) AS n) THEN b.successor ELSE p.target END AS target
        FROM (SELECT b.lease, b.partition, b.epoch, b.successor, b.lease IN (SELECT n FROM unnest(p_leaving) AS n) AS leaves
              FROM unnest(p_leases, p_partitions, p_epochs, p_successors) AS b (lease, partition, epoch, successor) ORDER BY b.lease, b.partition) AS b
        CROSS JOIN LATERAL ( -- IS TRUE keeps the planner from the index on owner: the key is faster
            SELECT p.ctid AS place, p.lease, p.target, p.owner_id
            FROM pgleases.partitions AS p
            WHERE p.lease = b.lease AND p.partition = b.partition AND (p.owner = p_session) IS TRUE AND p.epoch = b.epoch
            FOR UPDATE SKIP LOCKED -- the others are locked by a guarded transaction
        ) AS p
        WHERE server_generation IS NOT NULL
    ), successors AS MATERIALIZED ( -- those that are live members
        SELECT n.lease, n.session, c.id
        FROM (SELECT DISTINCT t.lease, t.leaves, CASE WHEN t.renewed THEN p_session ELSE t.target END AS session FROM taken AS t) AS n
        CROSS JOIN LATERAL (
            SELECT c.id FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session
            WHERE m.lease = n.lease AND m.session = n.session
            OFFSET 0
        ) AS c
        WHERE NOT (n.session = p_session AND n.leaves)
    ), released AS (
        UPDATE pgleases.partitions AS p
        SET owner = s.session, target = CASE WHEN t.renewed THEN t.target ELSE s.session END,
            epoch = greatest(p.epoch + 1, lowest_epoch),
            owner_id = coalesce(s.id, p.owner_id),
            preferred_owner_id = CASE WHEN s.id = p.preferred_owner_id THEN NULL
                           WHEN s.id <> p.owner_id
                            AND (t.leaves OR drains
                                 OR p.lease IN (SELECT own.lease FROM unnest(names) AS n
                                                CROSS JOIN LATERAL (SELECT own.lease FROM pgleases.members AS own
                                                                    WHERE own.lease = n AND own.session = p_session AND own.weight = 0 OFFSET 0) AS own))
                           THEN p.owner_id
                           ELSE p.preferred_owner_id END,
            owned_since = CASE WHEN s.session IS NOT NULL THEN clock_timestamp() END,
            asked_at = CASE WHEN t.renewed AND t.target IS DISTINCT FROM s.session THEN p.asked_at END
        FROM taken AS t
        LEFT JOIN successors AS s ON s.lease = t.lease AND s.session = CASE WHEN t.renewed THEN p_session ELSE t.target END
        WHERE p.ctid = t.place
        RETURNING p.lease, p.partition, p.owner, p.epoch, t.renewed, t.owner_id AS from_id, s.id AS to_id
    ), recorded AS (
        INSERT INTO pgleases.events (lease, cause, from_id, to_id, partitions, generation)
        SELECT r.lease, 'handed over', r.from_id, r.to_id, range_agg(int4range(r.partition, r.partition, '[]')),
               (SELECT l.generation FROM pgleases.leases AS l WHERE l.name = r.lease)
        FROM released AS r
        WHERE NOT r.renewed
        GROUP BY r.lease, r.from_id, r.to_id
    )
    SELECT coalesce(array_agg(r.lease), '{}'), coalesce(array_agg(r.partition), '{}'), coalesce(array_agg(coalesce(r.owner, 0)), '{}'),
           coalesce(array_agg(r.epoch), '{}'), coalesce(array_agg(DISTINCT r.lease) FILTER (WHERE r.owner IS NULL AND (r.lease IN (SELECT n FROM unnest(awaited) AS n)) IS NOT TRUE), '{}')
    FROM (SELECT * FROM released ORDER BY lease, partition) AS r
    INTO released_leases, released_partitions, owners, new_epochs, due;

    -- Name those that were left out, so that the caller tries them again.
    busy_leases := '{}';
    busy_partitions := '{}';
    IF alive AND cardinality(released_partitions) < cardinality(p_partitions) THEN
        SELECT coalesce(array_agg(b.lease), '{}'), coalesce(array_agg(b.partition), '{}')
        FROM (SELECT * FROM unnest(p_leases, p_partitions, p_epochs) AS b (lease, partition, epoch) ORDER BY lease, partition) AS b
        CROSS JOIN LATERAL (
            SELECT FROM pgleases.partitions AS p
            WHERE p.lease = b.lease AND p.partition = b.partition AND (p.owner = p_session) IS TRUE AND p.epoch = b.epoch
        ) AS p
        INTO busy_leases, busy_partitions;
    END IF;

    left_leases := '{}';
    to_plan := '{}';
    -- Leave: a membership ends when the session owns no partition of the lease any more, so that no partition has an owner
    -- that is no member. Until then its weight is 0, so that no plan gives it another partition. A join that is newer
    -- than the caller knows has begun another membership, which stays.
    IF cardinality(p_ending) > 0 THEN
        WITH leaving AS MATERIALIZED (
            SELECT m.place, m.weight,
                   EXISTS (SELECT FROM pgleases.partitions AS p WHERE p.owner = p_session AND p.lease ~>=~ n AND p.lease ~<=~ n OFFSET 0) AS owns
            FROM unnest(p_ending) AS n
            CROSS JOIN LATERAL (
                SELECT m.ctid AS place, m.weight FROM pgleases.members AS m
                WHERE m.lease = n AND m.session = p_session AND m.join_number <= p_last_join
                OFFSET 0
            ) AS m
        ), gone AS (
            DELETE FROM pgleases.members AS m USING leaving AS g WHERE m.ctid = g.place AND NOT g.owns
            RETURNING m.lease
        ), unawaited AS ( -- it was awaited before this membership, and is not again
            DELETE FROM pgleases.graces AS b
            WHERE b.client = (SELECT c.id FROM pgleases.clients AS c WHERE c.session = p_session)
              AND b.lease IN (SELECT g.lease FROM gone AS g) AND (b.lease IN (SELECT n FROM unnest(awaited) AS n)) IS NOT TRUE
              AND NOT EXISTS (SELECT FROM pgleases.clients AS o JOIN pgleases.members AS n ON n.session = o.session
                              WHERE o.id = b.client AND o.session <> p_session AND n.lease = b.lease)
        ), recorded AS (
            INSERT INTO pgleases.events (lease, cause, from_id, generation)
            SELECT g.lease, e.cause, (SELECT c.id FROM pgleases.clients AS c WHERE c.session = p_session),
                   (SELECT l.generation FROM pgleases.leases AS l WHERE l.name = g.lease)
            FROM gone AS g
            CROSS JOIN (VALUES ('left', false), ('awaited', true)) AS e (cause, waits)
            WHERE NOT e.waits OR g.lease IN (SELECT n FROM unnest(awaited) AS n)
            ORDER BY g.lease, e.waits
        ), drained AS (
            UPDATE pgleases.members AS m SET weight = 0 FROM leaving AS g WHERE m.ctid = g.place AND g.owns AND g.weight <> 0
            RETURNING m.lease
        )
        SELECT coalesce((SELECT array_agg(g.lease ORDER BY g.lease) FROM gone AS g), '{}'),
               coalesce((SELECT array_agg(d.lease) FROM drained AS d), '{}')
        INTO left_leases, drained;
        -- A plan is due after a leave, unless the released partitions went where the plan without this session puts them.
        due := due || ARRAY(SELECT g FROM unnest(left_leases) AS g WHERE g NOT IN (SELECT n FROM unnest(as_planned) AS n));
        -- Notify the new owners of what was left: the session sends no announcement for that.
        concerned := ARRAY(SELECT DISTINCT r.owner FROM unnest(released_leases, owners) AS r (lease, owner)
                           WHERE r.owner <> 0 AND (r.lease IN (SELECT n FROM unnest(left_leases) AS n)) IS TRUE);
        IF p_channel <> '' AND cardinality(concerned) > 0 THEN
            PERFORM pg_notify(p_channel, CASE WHEN cardinality(concerned) > 100 THEN 'all' ELSE array_to_string(concerned, ',') END);
        END IF;
    ELSIF cardinality(due) > 0 THEN -- in the order of names, because others may hold FOR KEY SHARE too, and change the leases
        PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (due) ORDER BY l.name FOR NO KEY UPDATE;
    END IF;

    -- Make a plan due for what has no owner now. The new generation makes plans void that were read before.
    IF cardinality(due) + cardinality(left_leases) + cardinality(drained) > 0 THEN
        WITH changed AS (
            UPDATE pgleases.leases AS l
            SET generation = l.generation + 1,
                plan_due_at = CASE WHEN l.name IN (SELECT n FROM unnest(due) AS n) AND EXISTS (SELECT FROM pgleases.members AS m WHERE m.lease = l.name AND m.weight > 0)
                                      AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.lease = l.name AND w.verb = 'pause')
                                     THEN least(l.plan_due_at, clock_timestamp())
                                     ELSE l.plan_due_at END
            WHERE l.name = ANY (due || left_leases || drained)
            RETURNING l.name, l.plan_due_at
        )
        SELECT coalesce(array_agg(c.name ORDER BY c.name), '{}') FROM changed AS c WHERE c.plan_due_at <= clock_timestamp()
        INTO to_plan;
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.announce(p_leases pg_catalog.text[], p_sessions bigint[], p_lock_ms int, p_channel pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
BEGIN
    PERFORM pgleases.settings(false, p_lock_ms);
    PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (p_leases) ORDER BY l.name FOR NO KEY UPDATE;
    UPDATE pgleases.leases AS l SET generation = l.generation + 1 WHERE l.name = ANY (p_leases);
    IF p_channel <> '' AND cardinality(p_sessions) > 0 THEN
        PERFORM pg_notify(p_channel, CASE WHEN cardinality(p_sessions) > 100 THEN 'all' ELSE array_to_string(p_sessions, ',') END);
    END IF;
END
$pgleases_body$;
