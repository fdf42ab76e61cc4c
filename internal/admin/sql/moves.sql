-- moves.sql: how many events of each cause a period has, in steps of time. The search_path must be pg_catalog only.
--
-- $1 timestamptz  start of the period
-- $2 timestamptz  its end, which is not in it
-- $3 int          seconds of a step
-- $4 int          maximum number of events that are read: the newest
--
-- One row, JSON, as the type Strip. An event without partitions counts as one. A client joins and leaves each of its
-- leases, so its clients are counted, too.
WITH read AS MATERIALIZED (
    SELECT e.at, e.cause, e.partitions FROM pgleases.events AS e WHERE e.at >= $1::timestamptz AND e.at < $2::timestamptz ORDER BY e.at DESC LIMIT $4::int
), bars AS (
    SELECT floor(extract(epoch FROM r.at) / $3::int)::bigint * $3::int AS at, r.cause,
           sum(CASE WHEN r.partitions IS NULL THEN 1
                    WHEN r.partitions = range_merge(r.partitions)::int4multirange THEN upper(r.partitions)::bigint - lower(r.partitions) -- without a subquery, which takes twice as long
                    ELSE (SELECT sum(upper(n)::bigint - lower(n)) FROM unnest(r.partitions) AS n) END)::bigint AS count
    FROM read AS r GROUP BY 1, 2
)
SELECT json_build_object('from', CASE WHEN (SELECT count(*) FROM read) = $4::int THEN (SELECT min(r.at) FROM read AS r) ELSE $1::timestamptz END,
           'bars', coalesce((SELECT json_agg(json_build_object('at', b.at, 'what', b.cause, 'count', b.count) ORDER BY b.at, b.cause) FROM bars AS b), '[]'),
           'clients', (SELECT json_object_agg(c.cause, c.count) FROM (
               SELECT 'joined' AS cause, count(DISTINCT j.to_id) AS count FROM (
                   SELECT e.to_id FROM pgleases.events AS e WHERE e.cause = 'joined' AND e.at >= $1::timestamptz AND e.at < $2::timestamptz ORDER BY e.at DESC LIMIT $4::int) AS j
               UNION ALL SELECT 'left', count(DISTINCT l.from_id) FROM (
                   SELECT e.from_id FROM pgleases.events AS e WHERE e.cause = 'left' AND e.at >= $1::timestamptz AND e.at < $2::timestamptz ORDER BY e.at DESC LIMIT $4::int) AS l) AS c
               WHERE c.count > 0))
