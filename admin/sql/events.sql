-- events.sql: what happened last, the newest first. The search_path is to be pg_catalog alone.
--
-- $1 text  lease; empty: any
-- $2 int   the most
-- $3 text  only what is below this transaction, or was written on another server, of which this database is a dump; null: all
--
-- Transaction and number, by which to go on; time, lease, cause, actor, reason, from whom, to whom, partitions as a multirange, generation.
SELECT e.tx::text, e.id, least(greatest(e.at, '0001-01-02 UTC'), '9999-12-30 UTC'), coalesce(e.lease, ''), e.cause, coalesce(e.actor, ''), coalesce(e.reason, ''), coalesce(e.from_id, ''), coalesce(e.to_id, ''),
       coalesce(e.partitions::text, ''), coalesce(e.generation, 0)
FROM pgleases.events AS e
WHERE ($1::text = '' OR e.lease = $1::text)
  AND ($3::text IS NULL OR e.tx < $3::text::xid8 OR e.tx >= pg_snapshot_xmax(pg_current_snapshot()))
ORDER BY e.tx DESC, e.id DESC
LIMIT $2::int
