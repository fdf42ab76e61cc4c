-- events.sql: the latest events, the newest first. The search_path must be pg_catalog only, and the zone UTC.
--
-- $1 text  lease, with the events of all leases that name one of its clients; empty: all leases
-- $2 int   maximum number of events
--
-- One row for each event, JSON, as the type Event. Its ID is its transaction and its number.
WITH own AS MATERIALIZED (SELECT e.* FROM pgleases.events AS e WHERE $1::text IN ('', e.lease) ORDER BY e.tx DESC, e.id DESC LIMIT $2::int), others AS (
    SELECT e.* FROM pgleases.events AS e WHERE $1::text <> '' AND e.lease IS NULL AND e.tx >= (SELECT o.tx FROM own AS o ORDER BY o.tx LIMIT 1)
       AND (e.from_id IS NULL OR e.from_id IN (SELECT o.from_id FROM own AS o UNION SELECT o.to_id FROM own AS o)))
SELECT json_build_object('id', e.tx || '/' || e.id, 'at', least(greatest(e.at, '0001-01-02 UTC'), '9999-12-30 UTC'), 'lease', e.lease, 'cause', e.cause,
           'actor', e.actor, 'reason', e.reason, 'from', e.from_id, 'to', e.to_id, 'generation', e.generation, 'row', e.row_id::text, 'rows', e.rows,
           'name', e.name, 'args', (SELECT json_object_agg(a.key, a.value) FROM jsonb_each_text(e.args) AS a),
           'partitions', (SELECT coalesce(json_agg(json_build_array(lower(r), upper(r) - 1)), '[]') FROM unnest(e.partitions) AS r))
FROM (SELECT * FROM own UNION ALL SELECT * FROM others) AS e ORDER BY e.tx DESC, e.id DESC LIMIT $2::int
