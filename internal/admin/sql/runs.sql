-- runs.sql: how many ticks and jobs had each outcome in a period, in steps of time. The search_path must be pg_catalog
-- only. Failures have an index, so all of them are counted. Of the others, only the newest are read.
--
-- $1 timestamptz  start of the period
-- $2 timestamptz  its end, which is not in it
-- $3 int          seconds of a step
-- $4 int          maximum number of entries that are read: the newest
--
-- One row, JSON, as the type Strip. Each bar is named "tick" or "job", a space, and the outcome.
WITH latest AS MATERIALIZED (
    SELECT h.ended_at, h.job, h.outcome, h.ticks FROM pgleases.history AS h ORDER BY h.id DESC LIMIT $4::int
), failed AS MATERIALIZED (
    SELECT h.ended_at, h.job, h.outcome, h.ticks FROM pgleases.history AS h
    WHERE h.outcome = ANY ('{failed,unknown}'::text[]) AND h.ended_at >= $1::timestamptz AND h.ended_at < $2::timestamptz ORDER BY h.ended_at DESC LIMIT $4::int
), bars AS (
    SELECT floor(extract(epoch FROM r.ended_at) / $3::int)::bigint * $3::int AS at, concat(CASE WHEN r.job IS NULL THEN 'tick ' ELSE 'job ' END, r.outcome) AS what,
           least(greatest(sum(r.ticks), 0), 9223372036854775807)::bigint AS count
    FROM (SELECT * FROM failed UNION ALL
          SELECT * FROM latest AS l WHERE l.outcome <> ALL ('{failed,unknown}'::text[]) AND l.ended_at >= $1::timestamptz AND l.ended_at < $2::timestamptz) AS r
    GROUP BY 1, 2
)
SELECT json_build_object('from', CASE WHEN (SELECT count(*) FROM latest) = $4::int THEN greatest((SELECT min(l.ended_at) FROM latest AS l), $1::timestamptz) ELSE $1::timestamptz END,
           'bars', coalesce((SELECT json_agg(json_build_object('at', b.at, 'what', b.what, 'count', b.count) ORDER BY b.at, b.what) FROM bars AS b), '[]'))
