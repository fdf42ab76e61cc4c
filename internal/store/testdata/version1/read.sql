-- read.sql: what a session owns in the leases named.
--
-- $1 bigint  session
-- $2 text[]  leases
--
-- One row for each lease: its generation; the server's timeline and the settled one; arrays by partition number of the epochs,
-- and of whether the partition moves. The timelines tell whether this is the server of the last heartbeat: behind a pooler it
-- may be another one.
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
