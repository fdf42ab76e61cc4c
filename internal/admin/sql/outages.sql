-- outages.sql: the events "no live client" of a period, and those after it, which may be about times of the period. The
-- search_path must be pg_catalog only, and the zone UTC.
--
-- $1 timestamptz  start of the period
-- $2 timestamptz  its end, which is not in it
-- $3 int          maximum number of events in the period: the newest
-- $4 int          maximum number of events after it: the oldest
--
-- One row for each event, the newest first, JSON, as the type Event.
SELECT json_build_object('id', e.tx || '/' || e.id, 'at', e.at, 'cause', e.cause, 'reason', e.reason, 'partitions', json_build_array())
FROM ((SELECT o.* FROM pgleases.events AS o
       WHERE o.cause = 'no live client' AND o.at >= $1::timestamptz AND o.at < $2::timestamptz ORDER BY o.at DESC LIMIT $3::int)
      UNION ALL
      (SELECT o.* FROM pgleases.events AS o
       WHERE o.cause = 'no live client' AND o.at >= $1::timestamptz AND o.at >= $2::timestamptz ORDER BY o.at LIMIT $4::int)) AS e
ORDER BY e.at DESC, e.tx DESC, e.id DESC
