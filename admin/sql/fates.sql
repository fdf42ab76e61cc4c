-- fates.sql: what became of ticks and jobs in the last hours, by the latest entries of the history. The search_path is to be pg_catalog alone.
--
-- $1 int  how many entries are looked at
-- $2 int  hours
--
-- Group, fate, how many ticks and jobs, since when.
WITH latest AS (
    SELECT h.group_name, h.fate, h.ticks, h.ended_at FROM pgleases.history AS h ORDER BY h.id DESC LIMIT $1::int
), bound AS (
    SELECT greatest(pgleases.schedule_clock() - make_interval(hours => $2::int), CASE WHEN count(*) = $1::int THEN min(l.ended_at) END) AS since FROM latest AS l
)
SELECT l.group_name, l.fate, sum(l.ticks)::bigint, b.since
FROM latest AS l, bound AS b
WHERE l.ended_at >= b.since
GROUP BY l.group_name, l.fate, b.since
ORDER BY 1, 2
