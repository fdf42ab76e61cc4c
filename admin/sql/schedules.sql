-- schedules.sql: a page of a group's schedules, by name. Where no index has the order, of those that wait or are late, 1,000 are looked at and no more. The
-- search_path is to be pg_catalog alone, the zone UTC, and enable_seqscan off. What is late is found as in groups.sql.
--
-- $1 text  group
-- $2 text  which ones: paused, blocked, failing, late; empty: all
-- $3 text  names from here on; the caller drops those that do not begin so
-- $4 text  names behind this one
-- $5 int   the most
--
-- A row for each, JSON, as a Schedule has it.
WITH chosen AS (
    (SELECT s.id FROM pgleases.schedules AS s
     WHERE $2::text = '' AND s.group_name = $1::text AND s.name >= $3::text AND s.name > $4::text ORDER BY s.name LIMIT $5::int)
    UNION ALL
    (SELECT s.id FROM pgleases.schedules AS s
     WHERE $2::text = 'paused' AND s.group_name = $1::text AND s.paused_at IS NOT NULL AND s.name >= $3::text AND s.name > $4::text ORDER BY s.name LIMIT $5::int)
    UNION ALL
    (SELECT s.id FROM pgleases.schedules AS s
     WHERE $2::text = 'failing' AND s.group_name = $1::text AND s.failures > 0 AND s.name >= $3::text AND s.name > $4::text ORDER BY s.name LIMIT $5::int)
    UNION ALL
    (SELECT s.id FROM (SELECT w.id, w.name FROM pgleases.schedules AS w WHERE $2::text = 'blocked' AND w.group_name = $1::text AND w.blocked_reason IS NOT NULL LIMIT 1000) AS s
     WHERE s.name >= $3::text AND s.name > $4::text ORDER BY s.name LIMIT $5::int)
    UNION ALL
    (SELECT s.id FROM (SELECT l.id, l.name FROM pgleases.schedule_groups AS g CROSS JOIN generate_series(0, g.partitions - 1) AS p CROSS JOIN LATERAL
                           (SELECT r.id, r.name FROM pgleases.schedules AS r WHERE r.group_name = g.name AND r.partition = p AND r.due < pgleases.schedule_clock() - interval '10 seconds'
                            ORDER BY r.due LIMIT 1000) AS l
                       WHERE $2::text = 'late' AND g.name = $1::text AND g.partitions <= 1000 LIMIT 1000) AS s
     WHERE s.name >= $3::text AND s.name > $4::text ORDER BY s.name LIMIT $5::int)
    UNION ALL
    (SELECT s.id FROM (SELECT r.id, r.name FROM pgleases.schedules AS r
                       WHERE $2::text = 'late' AND r.group_name = $1::text AND r.due < pgleases.schedule_clock() - interval '10 seconds'
                         AND (SELECT g.partitions > 1000 FROM pgleases.schedule_groups AS g WHERE g.name = $1::text) LIMIT 1000) AS s
     WHERE s.name >= $3::text AND s.name > $4::text ORDER BY s.name LIMIT $5::int)
)
SELECT json_build_object(
           'id', v.id::text, 'name', v.name, 'kind', v.kind, 'key', v.key, 'partition', v.partition, 'owner', v.owner, 'rule', v.rule, 'state', v.state,
           'why', v.why, 'succeeded', v.succeeded, 'last_outcome', v.last_outcome,
           'due', CASE WHEN isfinite(v.due) THEN least(v.due, '9999-12-30') END, 'late_ns', CASE WHEN v.lateness IS NOT NULL THEN (extract(epoch FROM least(v.lateness, interval '106751 days')) * 1000000000)::bigint END,
           'failures', v.failures, 'attempts', v.attempts, 'crashes', v.crashes, 'error', v.error, 'paused_at', v.paused_at)
FROM chosen AS c
JOIN pgleases.schedules_status AS v ON v.id = c.id
ORDER BY v.name
