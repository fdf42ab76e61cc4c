-- ticks.sql: how many ticks of a schedule had each outcome, in steps of time. The search_path must be pg_catalog only.
--
-- $1 text         group
-- $2 text         name of the schedule
-- $3 timestamptz  start of the period
-- $4 int          seconds of a step
-- $5 int          maximum number of entries of the history that are read: the newest
--
-- One row, JSON, as the type Strip. An entry counts at its last tick.
WITH read AS MATERIALIZED (
    SELECT h.until, h.outcome, h.ticks, h.job FROM pgleases.history AS h
    WHERE h.group_name = $1::text AND h.name = $2::text AND h.source <> 'job' ORDER BY h.id DESC LIMIT $5::int
), bars AS (
    SELECT floor(extract(epoch FROM r.until) / $4::int)::bigint * $4::int AS at, r.outcome, least(greatest(sum(r.ticks), 0), 9223372036854775807)::bigint AS count
    FROM read AS r WHERE r.job IS NULL AND r.until >= $3::timestamptz AND r.until < 'infinity' GROUP BY 1, 2
)
SELECT json_build_object('from', greatest($3::timestamptz, CASE WHEN (SELECT count(*) FROM read) = $5::int THEN (SELECT min(r.until) FROM read AS r) END),
           'bars', coalesce((SELECT json_agg(json_build_object('at', b.at, 'what', b.outcome, 'count', b.count) ORDER BY b.at, b.outcome) FROM bars AS b), '[]'))
