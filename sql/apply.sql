-- apply.sql: writes a plan, whole or not at all: nothing where a lease of the plan has changed since the plan read it. A
-- partition whose owner is a living member gets its target, and the owner will hand it over. Any other partition goes to its
-- target at once, under the next epoch.
--
-- $1 text[], $2 bigint[]  leases of the plan, and their generations as the plan read them
-- $3 text[], $4 int[], $5 bigint[]  lease, partition and target session (0: none) of each move
-- $6 int      lock timeout, milliseconds
-- $7 bigint   microseconds until another plan is due: 0 where this one has more moves; negative: none is
-- $8 text     channel to notify; empty: none
--
-- One row: whether the plan was written; the number of owners asked to hand over; of partitions given to their targets; of
-- partitions not given, because a guarded transaction is open on them.
WITH settings AS MATERIALIZED ( -- read below, else PostgreSQL would not run it
    SELECT pgleases.settings(true, $6::int) AS ok
), locked AS MATERIALIZED ( -- the leases that are as the plan read them
    SELECT l.name
    FROM pgleases.leases AS l
    JOIN unnest($1::text[], $2::bigint[]) AS r (name, generation)
      ON r.name = l.name AND r.generation = l.generation, settings
    WHERE settings.ok
    ORDER BY l.name
    FOR UPDATE OF l
), valid AS MATERIALIZED ( -- one row: all are, and the server is settled
    SELECT pgleases.first_epoch(s.era) AS first_epoch FROM pgleases.server AS s
    WHERE (SELECT count(*) FROM locked) = cardinality($1::text[])
      AND s.timeline = pgleases.timeline()
), living AS MATERIALIZED (
    SELECT m.lease, c.session, c.id, m.weight
    FROM pgleases.members AS m
    JOIN pgleases.clients AS c USING (session)
    WHERE EXISTS (SELECT FROM valid) AND m.lease = ANY ($1::text[])
), moves AS MATERIALIZED ( -- without those to sessions that are no living members any more
    SELECT v.lease, v.partition, t.session AS target, t.id AS target_id, o.session IS NOT NULL AS kept
    FROM unnest($3::text[], $4::int[], $5::bigint[]) AS v (lease, partition, target)
    JOIN pgleases.partitions AS p ON p.lease = v.lease AND p.partition = v.partition
    LEFT JOIN living AS t ON t.lease = v.lease AND t.session = v.target
    LEFT JOIN living AS o ON o.lease = v.lease AND o.session = p.owner
    WHERE EXISTS (SELECT FROM valid) AND (t.session IS NOT NULL OR v.target = 0)
), asked AS ( -- an UPDATE of these columns does not wait for a guard's lock
    UPDATE pgleases.partitions AS p
    SET target = m.target,
        asked_at = CASE WHEN m.target IS DISTINCT FROM p.owner THEN clock_timestamp() END
    FROM moves AS m
    WHERE m.kept AND p.lease = m.lease AND p.partition = m.partition
    RETURNING p.lease, p.owner
), free AS MATERIALIZED ( -- FOR UPDATE, else a former owner's guard would pass; SKIP LOCKED, else an open guard would block
    SELECT p.lease, p.partition, m.target, m.target_id
    FROM pgleases.partitions AS p
    JOIN moves AS m ON m.lease = p.lease AND m.partition = p.partition
    WHERE NOT m.kept
    ORDER BY p.lease, p.partition
    FOR UPDATE OF p SKIP LOCKED
), given AS (
    UPDATE pgleases.partitions AS p
    SET owner = f.target, target = f.target,
        epoch = greatest(p.epoch + 1, (SELECT first_epoch FROM valid)),
        owner_id = coalesce(f.target_id, p.owner_id),
        home_id = CASE WHEN f.target_id = p.home_id THEN NULL
                       WHEN f.target_id <> p.owner_id
                        AND (p.owner IS NOT NULL OR p.owner_id NOT IN ( -- the last owner released it, and is a member still
                             SELECT a.id FROM living AS a WHERE a.lease = p.lease AND a.weight > 0))
                       THEN p.owner_id
                       ELSE p.home_id END,
        owned_since = CASE WHEN f.target IS NOT NULL THEN clock_timestamp() END,
        asked_at = NULL
    FROM free AS f
    WHERE p.lease = f.lease AND p.partition = f.partition
    RETURNING p.lease, p.partition, p.owner
), left_over AS MATERIALIZED (
    SELECT m.lease, m.partition FROM moves AS m WHERE NOT m.kept
    EXCEPT SELECT g.lease, g.partition FROM given AS g
), planned AS (
    UPDATE pgleases.leases AS l
    SET generation = l.generation + CASE WHEN l.name IN (SELECT lease FROM asked UNION ALL SELECT lease FROM given)
                                         THEN 1 ELSE 0 END,
        planned_at = clock_timestamp(),
        next_check_at = CASE WHEN $7::bigint >= 0 THEN clock_timestamp() + $7::bigint * interval '1 microsecond'
                             WHEN l.name IN (SELECT lease FROM left_over)
                             THEN clock_timestamp() + interval '50 milliseconds'
                             ELSE 'infinity' END
    FROM locked
    WHERE l.name = locked.name AND EXISTS (SELECT FROM valid)
), concerned AS MATERIALIZED ( -- sessions to notify
    SELECT owner FROM asked UNION SELECT owner FROM given WHERE owner IS NOT NULL
)
SELECT (SELECT count(*) FROM valid) > 0 AS applied,
       (SELECT count(*) FROM asked) AS asked,
       (SELECT count(*) FROM given) AS given,
       (SELECT count(*) FROM left_over) AS left_over,
       CASE WHEN $8::text <> '' AND (SELECT count(*) FROM concerned) > 0
            THEN pg_notify($8::text, CASE WHEN (SELECT count(*) FROM concerned) > 100 THEN 'all'
                                          ELSE (SELECT string_agg(owner::text, ',') FROM concerned) END)::text
       END AS notified
