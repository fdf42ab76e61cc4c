-- events.sql: what happened last, the newest first. The search_path is to be pg_catalog alone.
--
-- $1 text  lease; empty: any
-- $2 int   the most
--
-- Transaction and number, by which it is named; time, lease, cause, actor, reason, from whom, to whom, partitions as a multirange, generation.
SELECT e.tx || '/' || e.id, least(greatest(e.at, '0001-01-02 UTC'), '9999-12-30 UTC'), coalesce(e.lease, ''), e.cause, coalesce(e.actor, ''), coalesce(e.reason, ''), coalesce(e.from_id, ''), coalesce(e.to_id, ''),
       coalesce(e.partitions::text, ''), coalesce(e.generation, 0)
FROM pgleases.events AS e
WHERE ($1::text = '' OR e.lease = $1::text)
ORDER BY e.tx DESC, e.id DESC
LIMIT $2::int
