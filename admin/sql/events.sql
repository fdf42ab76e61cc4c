-- events.sql: the latest events, the newest first. The search_path must be pg_catalog only, and the zone UTC.
--
-- $1 text  lease; empty: all leases
-- $2 int   maximum number of events
--
-- One row for each event, JSON, as the type Event. Its ID is its transaction and its number.
SELECT json_build_object(
           'id', e.tx || '/' || e.id, 'at', least(greatest(e.at, '0001-01-02 UTC'), '9999-12-30 UTC'), 'lease', e.lease, 'cause', e.cause,
           'actor', e.actor, 'reason', e.reason, 'from', e.from_id, 'to', e.to_id, 'generation', e.generation,
           'partitions', (SELECT coalesce(json_agg(json_build_array(lower(r), upper(r) - 1)), '[]') FROM unnest(e.partitions) AS r))
FROM pgleases.events AS e
WHERE ($1::text = '' OR e.lease = $1::text)
ORDER BY e.tx DESC, e.id DESC
LIMIT $2::int
