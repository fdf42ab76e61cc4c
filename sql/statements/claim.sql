-- claim.sql: claims the planning of leases that need a plan, for 100 ms plus 10 us for each partition. A claim
-- only saves work: if two clients plan the same lease, apply.sql writes one plan.
--
-- $1 text[]  leases
-- $2 int     lock timeout, milliseconds
--
-- One row: the leases claimed; the leases that need a plan too, but are locked by another statement.
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $2::int) AS ok
), due AS MATERIALIZED (
    SELECT l.name FROM pgleases.leases AS l, settings
    WHERE settings.ok AND l.name = ANY ($1::text[])
      AND (l.plan_due_at <= clock_timestamp() -- or further ahead than a plan can be: the clock stepped back
           OR l.plan_due_at > clock_timestamp() + interval '1 second' + l.partitions * interval '50 microseconds'
              AND l.plan_due_at < 'infinity')
    ORDER BY l.name
    FOR UPDATE OF l SKIP LOCKED -- the caller tries these again
), claimed AS (
    UPDATE pgleases.leases AS l
    SET plan_due_at = clock_timestamp() + interval '100 milliseconds' + l.partitions * interval '10 microseconds',
        planned_at = clock_timestamp()
    FROM due
    WHERE l.name = due.name
    RETURNING l.name
)
SELECT coalesce((SELECT array_agg(name ORDER BY name) FROM claimed), '{}') AS claimed,
       coalesce((SELECT array_agg(l.name ORDER BY l.name) FROM pgleases.leases AS l
                 WHERE l.name = ANY ($1::text[]) AND l.plan_due_at <= clock_timestamp()
                   AND l.name NOT IN (SELECT name FROM claimed)), '{}') AS locked
