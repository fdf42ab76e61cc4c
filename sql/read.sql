-- read.sql: what a session owns, of the leases whose generation changed.
--
-- $1 bigint session
-- $2 text[] leases
--
-- A row a lease: its generation, and in arrays by partition the epoch and whether it is meant for another. The timelines,
-- the server's and the settled one, tell whether it is still the server of the last heartbeat: behind a pooler it may
-- have changed in between.
SELECT l.name, l.generation, pgleases.timeline() AS timeline, (SELECT s.timeline FROM pgleases.server AS s) AS settled,
       coalesce(o.partitions, '{}') AS partitions,
       coalesce(o.epochs, '{}') AS epochs,
       coalesce(o.moving, '{}') AS moving
FROM pgleases.leases AS l
LEFT JOIN (
    SELECT p.lease,
           array_agg(p.partition ORDER BY p.partition) AS partitions,
           array_agg(p.epoch ORDER BY p.partition) AS epochs,
           array_agg(p.target IS DISTINCT FROM p.owner ORDER BY p.partition) AS moving
    FROM pgleases.partitions AS p
    WHERE p.owner = $1::bigint AND p.lease = ANY ($2::text[])
    GROUP BY p.lease
) AS o ON o.lease = l.name
WHERE l.name = ANY ($2::text[])
