-- events.sql: what happened last, the newest first. The search_path is to be pg_catalog alone.
--
-- $1 text     lease; empty: any
-- $2 int      the most
-- $3 boolean  only what is older than all transactions under way, so that nothing comes before it later
--
-- Transaction and number, by which to go on; time, lease, cause, actor, reason, from whom, to whom, partitions as a multirange, generation.
SELECT e.tx::text, e.id, e.at, coalesce(e.lease, ''), e.cause, coalesce(e.actor, ''), coalesce(e.reason, ''), coalesce(e.from_id, ''), coalesce(e.to_id, ''),
       coalesce(e.partitions::text, ''), coalesce(e.generation, 0)
FROM pgleases.events AS e
WHERE ($1::text = '' OR e.lease = $1::text)
  AND (NOT $3::boolean OR e.tx < pg_snapshot_xmin(pg_current_snapshot()) OR e.tx >= pg_snapshot_xmax(pg_current_snapshot()))
ORDER BY e.tx DESC, e.id DESC
LIMIT $2::int
