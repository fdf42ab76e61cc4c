-- read.sql: what a session owns in the leases named.
--
-- $1 bigint  session
-- $2 text[]  leases
--
-- One row for each lease: its generation; the server's timeline and start, which tell whether this is the run of the last
-- heartbeat, as behind a pooler it may be another one; the settled timeline and its era; arrays by partition number of the epochs,
-- and of whether the partition moves.
SELECT l.name, l.generation, pgleases.timeline() AS timeline,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS started,
       s.timeline AS settled, s.era,
       coalesce(o.partitions, '{}') AS partitions,
       coalesce(o.epochs, '{}') AS epochs,
       coalesce(o.moving, '{}') AS moving
FROM pgleases.server AS s, pgleases.leases AS l
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
