-- eventsafter.sql: what happened after an event, in order, as far as nothing can come before it later. The search_path is to be pg_catalog alone.
--
-- $1 text    transaction
-- $2 bigint  number of the event in it
-- $3 int     the most
--
-- As of events.sql.
SELECT e.tx::text, e.id, least(greatest(e.at, '0001-01-02 UTC'), '9999-12-30 UTC'), coalesce(e.lease, ''), e.cause, coalesce(e.actor, ''), coalesce(e.reason, ''), coalesce(e.from_id, ''), coalesce(e.to_id, ''),
       coalesce(e.partitions::text, ''), coalesce(e.generation, 0)
FROM pgleases.events AS e
WHERE (e.tx, e.id) > ($1::text::xid8, $2::bigint)
  AND e.tx < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.tx, e.id
LIMIT $3::int
