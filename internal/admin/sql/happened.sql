-- happened.sql: the events of a period, the newest first. The search_path must be pg_catalog only, and the zone UTC.
--
-- $1 timestamptz  start of the period
-- $2 timestamptz  its end, which is not in it
-- $3 text         lease, with the events of all leases that name one of its clients; empty: all leases
-- $4 int          partition, with what operators did to the whole lease; null: all
-- $5 text         client that lost, gained, joined, left or was evicted; empty: all
-- $6 text         cause; empty: all
-- $7 int          maximum number of events that are read: of the partition or the lease for the names of its clients, and
--                 of those without a lease and of all leases that match
-- $8 int          maximum number of events that are returned
-- $9 text         name of the schedule or job that operators changed; empty: all
--
-- One row for each event, JSON, as the type Event.
WITH own AS MATERIALIZED (
    SELECT e.* FROM pgleases.events AS e
    WHERE $3::text <> '' AND e.lease = $3::text AND e.at >= $1::timestamptz AND e.at < $2::timestamptz
      AND ($4::int IS NULL OR e.partitions @> $4::int OR e.partitions IS NULL AND e.actor IS NOT NULL)
      AND $9::text IN ('', e.name)
    ORDER BY e.at DESC LIMIT $7::int
), chosen AS MATERIALIZED ( -- any number of others may be in between
    SELECT e.* FROM pgleases.events AS e
    WHERE $3::text <> '' AND ($5::text <> '' OR $6::text <> '') AND e.lease = $3::text AND e.at >= $1::timestamptz AND e.at < $2::timestamptz
      AND $5::text IN ('', e.from_id, e.to_id) AND $6::text IN ('', e.cause) AND $9::text IN ('', e.name)
    ORDER BY e.at DESC LIMIT $8::int
), clients AS MATERIALIZED (
    SELECT o.from_id AS id FROM own AS o UNION SELECT o.to_id FROM own AS o
    UNION SELECT p.owner_id FROM pgleases.partitions AS p WHERE $3::text <> '' AND p.lease = $3::text
), others AS MATERIALIZED (
    SELECT e.* FROM pgleases.events AS e
    WHERE $3::text <> '' AND $9::text = '' AND e.lease IS NULL AND e.at >= $1::timestamptz AND e.at < $2::timestamptz
      AND (e.from_id IS NULL OR e.from_id IN (SELECT c.id FROM clients AS c))
      AND $5::text IN ('', e.from_id, e.to_id) AND $6::text IN ('', e.cause)
    ORDER BY e.at DESC LIMIT $7::int
), every AS MATERIALIZED (
    SELECT e.* FROM pgleases.events AS e
    WHERE $3::text = '' AND e.at >= $1::timestamptz AND e.at < $2::timestamptz
      AND $5::text IN ('', e.from_id, e.to_id) AND $6::text IN ('', e.cause) AND $9::text IN ('', e.name)
    ORDER BY e.at DESC LIMIT $7::int
)
SELECT json_build_object('id', e.tx || '/' || e.id, 'at', e.at, 'lease', e.lease, 'cause', e.cause,
           'actor', e.actor, 'reason', e.reason, 'from', e.from_id, 'to', e.to_id, 'generation', e.generation, 'row', e.row_id::text, 'rows', e.rows,
           'name', e.name, 'args', (SELECT json_object_agg(a.key, a.value) FROM jsonb_each_text(e.args) AS a),
           'partitions', (SELECT coalesce(json_agg(json_build_array(lower(r), upper(r) - 1)), '[]') FROM unnest(e.partitions) AS r))
FROM (SELECT * FROM own WHERE $5::text = '' AND $6::text = '' UNION ALL SELECT * FROM chosen UNION ALL SELECT * FROM others UNION ALL SELECT * FROM every) AS e
WHERE ($4::int IS NULL OR e.partitions @> $4::int OR e.partitions IS NULL AND (e.lease IS NULL OR e.actor IS NOT NULL))
  AND $5::text IN ('', e.from_id, e.to_id)
  AND $6::text IN ('', e.cause)
ORDER BY e.at DESC, e.tx DESC, e.id DESC
LIMIT $8::int
