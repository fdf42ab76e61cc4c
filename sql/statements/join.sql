-- join.sql: makes the session a member of a lease, or changes its weight, and makes a plan due. It creates the lease if
-- it does not exist. If no plan was begun recently, the join claims the plan, as claim.sql does. Otherwise the plan is
-- due 250 ms after the last one was begun plus 10 us for each partition, but not until 100 ms after the last join, for
-- up to 1 s. So a deployment of many processes costs few plans, and few plans that the next join makes obsolete. A client
-- whose partitions wait for it claims the plan unless one is under way.
--
-- $1 bigint  session
-- $2 text    lease
-- $3 int     partitions
-- $4 int     weight
-- $5 bigint  number of this join, which rises with every join of the session
-- $6 int     lock timeout, milliseconds
-- $7 bigint  rebalance delay, microseconds
-- $8 int     ceiling: the most partitions of the lease that it may own; 0: there is none
-- $9 bigint  restart grace, microseconds
--
-- A new member with a weight, or another weight, begins the rebalance delay of the lease: the longest of all members'. If
-- one is under way, it begins anew, and ends at the latest 5 delays after the first of these joins. If its time is over,
-- none begins until a check has ended it, because that makes a plan due.
--
-- One row: whether the session exists; whether it is a member now (it is not if the lease was replaced, or has another
-- number of partitions); the lease that has replaced it (empty: it was not replaced); the number of partitions before this
-- statement (0: the lease was dropped, did not exist, or was created meanwhile); if it was dropped, the number of
-- partitions with which alone it can be created again until next_until; whether the join has claimed a plan; if not,
-- nanoseconds until the plan is due; nanoseconds until the rebalance delay ends.
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $6::int) AS ok
), alive AS MATERIALIZED (
    SELECT c.session, c.ttl, clock_timestamp() AS now,
           (SELECT l.planned_at FROM pgleases.leases AS l WHERE l.name = $2::text) AS planned_before,
           EXISTS (SELECT FROM pgleases.graces AS g WHERE g.lease = $2::text AND g.client = c.id AND g.until > clock_timestamp()) AS awaited,
           $4::int <> coalesce((SELECT m.weight FROM pgleases.members AS m WHERE m.lease = $2::text AND m.session = $1::bigint), 0) AS changes,
           greatest($7::bigint * interval '1 microsecond',
                    (SELECT max(m.rebalance_delay) FROM pgleases.members AS m JOIN pgleases.clients AS o ON o.session = m.session WHERE m.lease = $2::text)) AS delay
    FROM pgleases.clients AS c, settings WHERE settings.ok AND c.session = $1::bigint
), lease AS (
    INSERT INTO pgleases.leases AS l
        (name, partitions, generation, created_generation, epoch_floor, next_check_at, planned_at)
    SELECT $2::text, $3::int, 1, 1, 0, alive.now + interval '100 milliseconds' + $3::int * interval '10 microseconds', alive.now
    FROM alive
    ON CONFLICT (name) DO UPDATE
    SET partitions = EXCLUDED.partitions,
        generation = l.generation + 1,
        created_generation = CASE WHEN l.partitions = 0 THEN l.generation + 1 ELSE l.created_generation END,
        (next_check_at, planned_at) = (
            SELECT CASE WHEN NOT p.lately THEN EXCLUDED.next_check_at
                        WHEN l.next_check_at <= p.now THEN l.next_check_at
                        ELSE least(greatest(p.calm_at, p.now + interval '100 milliseconds'), l.planned_at + interval '1 second' + p.each) END,
                   CASE WHEN p.lately THEN l.planned_at ELSE EXCLUDED.planned_at END
            FROM (SELECT c.now, c.each, c.calm_at,
                         l.planned_at <= c.now -- otherwise the clock stepped back
                         AND (c.calm_at > c.now AND NOT (SELECT alive.awaited FROM alive) OR l.next_check_at > c.now AND l.next_check_at <= c.now + interval '1 second' + 5 * c.each) AS lately
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
    RETURNING l.name, l.generation, l.generation = l.created_generation AS created, l.epoch_floor, l.next_check_at, l.settles_at,
              (SELECT l.planned_at = alive.now AND alive.planned_before IS DISTINCT FROM alive.now FROM alive) AS claimed
), lowered AS ( -- a check for expired sessions ends the delay. One that is under way does not know of it, and is waited for,
               -- unless another check comes before the end, because this session might expire
    UPDATE pgleases.server AS s SET next_check_at = least(s.next_check_at, lease.settles_at)
    FROM lease, alive
    WHERE alive.changes AND (s.next_check_at > lease.settles_at OR lease.settles_at < alive.now + alive.ttl)
    RETURNING 1
), client AS ( -- read again under a lock, which keeps the session: so every member has a session
    SELECT c.session, c.id FROM pgleases.clients AS c, lease
    WHERE c.session = $1::bigint AND (SELECT count(*) FROM lowered) >= 0 -- always true: the lock on the server comes first
    FOR KEY SHARE OF c
), made AS (
    INSERT INTO pgleases.partitions (lease, partition, epoch)
    SELECT lease.name, n, lease.epoch_floor
    FROM lease, generate_series(0, $3::int - 1) AS n
    WHERE lease.created
), forgotten AS ( -- of a lease that was truncated or deleted by hand
    DELETE FROM pgleases.graces AS g USING lease WHERE lease.created AND g.lease = lease.name
), member AS (
    INSERT INTO pgleases.members AS m (lease, session, weight, joined_at, join_number, joined_generation, rebalance_delay, max_partitions, restart_grace)
    SELECT lease.name, client.session, $4::int, clock_timestamp(), $5::bigint, lease.generation, $7::bigint * interval '1 microsecond', nullif($8::int, 0),
           $9::bigint * interval '1 microsecond'
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
       coalesce((SELECT l.successor FROM pgleases.leases AS l WHERE l.name = $2::text), '') AS successor,
       coalesce((SELECT l.partitions FROM pgleases.leases AS l WHERE l.name = $2::text), 0) AS partitions,
       coalesce((SELECT l.next_partitions FROM pgleases.leases AS l WHERE l.name = $2::text AND l.partitions = 0), 0) AS dropped_with,
       EXISTS (SELECT FROM lease WHERE lease.claimed) AS claimed,
       coalesce((SELECT greatest(extract(epoch FROM lease.next_check_at - clock_timestamp()) * 1000000000, 0)
                 FROM lease WHERE lease.next_check_at < 'infinity' AND NOT lease.claimed), 0)::bigint AS due_in,
       coalesce((SELECT greatest(extract(epoch FROM lease.settles_at - clock_timestamp()) * 1000000000, 0) FROM lease), 0)::bigint AS settles_in
