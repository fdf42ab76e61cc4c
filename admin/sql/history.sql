-- history.sql: what became of ticks and jobs, the latest first. The search_path is to be pg_catalog alone, and the zone UTC.
--
-- $1 text    group
-- $2 text    name of the schedule; null: of the group's jobs that failed or are unknown, among the latest 1,000 such entries of all
-- $3 bigint  entries before this one
-- $4 int     the most
--
-- A row for each, JSON, as a HistoryEntry has it.
WITH chosen AS (
    (SELECT h.id FROM pgleases.history AS h WHERE $2::text IS NOT NULL AND h.group_name = $1::text AND h.name = $2::text AND h.schedule >= 0 AND h.id < $3::bigint ORDER BY h.id DESC LIMIT $4::int)
    UNION ALL
    (SELECT f.id FROM (SELECT h.id, h.group_name, h.job FROM pgleases.history AS h WHERE $2::text IS NULL AND h.outcome = ANY ('{failed,unknown}'::text[]) ORDER BY h.ended_at DESC LIMIT 1000) AS f
     WHERE f.group_name = $1::text AND f.job IS NOT NULL AND f.id < $3::bigint ORDER BY f.id DESC LIMIT $4::int)
)
SELECT json_build_object(
           'id', h.id::text, 'name', h.name, 'kind', h.kind, 'job', h.job::text, 'since', h.since, 'until', h.until, 'ticks', h.ticks, 'outcome', h.outcome,
           'error', h.error, 'attempts', h.attempts, 'started', h.started_at, 'at', h.ended_at, 'retried', h.retried::text)
FROM chosen AS c
JOIN pgleases.history AS h ON h.id = c.id
ORDER BY h.id DESC
