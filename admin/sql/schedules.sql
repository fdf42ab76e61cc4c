-- schedules.sql: a page of a group's schedules, by name. Where no index has the order, of those that wait or are late, 1,000 are looked at and no more. The
-- search_path is to be pg_catalog alone, and enable_seqscan off. What is late is found as in groups.sql.
--
-- $1 text  group
-- $2 text  which ones: paused, waits, failing, late; empty: all
-- $3 text  names from here on; the caller drops those that do not begin so
-- $4 text  names behind this one
-- $5 int   the most
--
-- Of each: id; name, kind, key, partition, owner, rule, state, why; the last tick that is done, the last fate; the last run, begun and
-- ended; when it is looked at next; how late it is in seconds; failures, attempts, crashes, error; since when it is paused. What there is
-- none of is null.
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
    (SELECT s.id FROM (SELECT w.id, w.name FROM pgleases.schedules AS w WHERE $2::text = 'waits' AND w.group_name = $1::text AND w.waits IS NOT NULL LIMIT 1000) AS s
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
SELECT v.id, v.name, v.kind, v.key, v.partition, v.owner, v.rule, v.state, v.why, v.done, v.last_fate, v.ran_from, v.ran_until,
       least(nullif(v.due, 'infinity'), '9999-12-30'), extract(epoch FROM v.lateness)::float8, v.failures, v.attempts, v.crashes, v.error, v.paused_at
FROM chosen AS c
JOIN pgleases.schedules_status AS v ON v.id = c.id
ORDER BY v.name
