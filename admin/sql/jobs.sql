-- jobs.sql: a page of a group's jobs that have not ended, by id, of 1,000 that are looked at, and no more. The search_path is to be pg_catalog alone,
-- the zone UTC, and enable_seqscan off. With many partitions the index is passed over, as in groups.sql.
--
-- $1 text    group
-- $2 text    which ones: blocked; due, those that are to run now, or run; empty: any
-- $3 bigint  ids behind this one
-- $4 int     the most
--
-- A row for each, JSON, as a Job has it.
WITH chosen AS (
    (SELECT j.id FROM pgleases.jobs AS j WHERE $2::text = '' AND j.group_name = $1::text LIMIT 1000)
    UNION ALL
    (SELECT j.id FROM pgleases.jobs AS j WHERE $2::text = 'blocked' AND j.group_name = $1::text AND j.blocked_reason IS NOT NULL LIMIT 1000)
    UNION ALL
    (SELECT l.id FROM pgleases.schedule_groups AS g CROSS JOIN generate_series(0, g.partitions - 1) AS p CROSS JOIN generate_series(0, 3) AS priority CROSS JOIN LATERAL
         (SELECT j.id FROM pgleases.jobs AS j WHERE j.group_name = g.name AND j.partition = p AND j.priority = priority.priority AND j.due <= pgleases.schedule_clock()
          ORDER BY j.due LIMIT 1000) AS l
     WHERE $2::text = 'due' AND g.name = $1::text AND g.partitions <= 250 LIMIT 1000)
    UNION ALL
    (SELECT j.id FROM pgleases.jobs AS j
     WHERE $2::text = 'due' AND j.group_name = $1::text AND j.due <= pgleases.schedule_clock()
       AND (SELECT g.partitions > 250 FROM pgleases.schedule_groups AS g WHERE g.name = $1::text) LIMIT 1000)
)
SELECT json_build_object(
           'id', v.id::text, 'kind', v.kind, 'name', v.name, 'owner', v.owner, 'state', v.state, 'why', v.why,
           'at', CASE WHEN isfinite(v.at) THEN least(v.at, '9999-12-30') END, 'error', v.error,
           'due', CASE WHEN isfinite(v.due) THEN least(v.due, '9999-12-30') END, 'late_ns', CASE WHEN v.lateness IS NOT NULL THEN (extract(epoch FROM least(v.lateness, interval '106751 days')) * 1000000000)::bigint END)
FROM (SELECT c.id FROM chosen AS c WHERE c.id > $3::bigint ORDER BY c.id LIMIT $4::int) AS c
JOIN pgleases.jobs_status AS v ON v.id = c.id
ORDER BY v.id
