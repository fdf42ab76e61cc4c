-- events.sql: what happened last, the newest first. The search_path is to be pg_catalog alone, and the zone UTC.
--
-- $1 text  lease; empty: any
-- $2 int   the most
--
-- A row for each, JSON, as an Event has it. It is named by its transaction and its number.
SELECT json_build_object(
           'id', e.tx || '/' || e.id, 'at', least(greatest(e.at, '0001-01-02 UTC'), '9999-12-30 UTC'), 'lease', e.lease, 'cause', e.cause,
           'actor', e.actor, 'reason', e.reason, 'from', e.from_id, 'to', e.to_id, 'generation', e.generation,
           'partitions', (SELECT coalesce(json_agg(json_build_array(lower(r), upper(r) - 1)), '[]') FROM unnest(e.partitions) AS r))
FROM pgleases.events AS e
WHERE ($1::text = '' OR e.lease = $1::text)
ORDER BY e.tx DESC, e.id DESC
LIMIT $2::int
