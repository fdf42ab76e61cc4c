-- ill.sql: the schedules of all groups that do not go on as they should. They come from indexes, and from the latest
-- entries of the history. The search_path must be pg_catalog only, the zone UTC, and enable_seqscan off.
--
-- groups.sql says how late schedules are found.
--
-- $1 int  maximum number of groups
-- $2 int  maximum number of schedules of a group that are read for each fault, and of all that are returned
-- $3 int  number of the latest entries of the history that are read for skipped ticks
-- $4 int  number of entries of a schedule that are searched for its first failure
--
-- One row for each schedule, JSON, as the type IllSchedule.
WITH RECURSIVE names AS (
    SELECT least((SELECT min(g.name) FROM pgleases.schedule_groups AS g), (SELECT min(s.group_name) FROM pgleases.schedules AS s)) AS name
    UNION ALL
    SELECT least((SELECT min(g.name) FROM pgleases.schedule_groups AS g WHERE g.name > n.name), (SELECT min(s.group_name) FROM pgleases.schedules AS s WHERE s.group_name > n.name))
    FROM names AS n WHERE n.name IS NOT NULL
), groups AS MATERIALIZED (
    SELECT n.name, p.partitions FROM names AS n LEFT JOIN pgleases.schedule_groups AS p ON p.name = n.name WHERE n.name IS NOT NULL LIMIT $1::int
), t AS MATERIALIZED (SELECT pgleases.schedule_clock() AS now), latest AS MATERIALIZED (
    SELECT h.schedule, h.job, h.outcome, h.ticks, h.ended_at FROM pgleases.history AS h ORDER BY h.id DESC LIMIT $3::int
), skipping AS MATERIALIZED (
    SELECT l.schedule AS id, sum(l.ticks) FILTER (WHERE l.outcome = 'skipped') AS skipped, sum(l.ticks) AS ticks
    FROM latest AS l CROSS JOIN t WHERE l.job IS NULL AND l.schedule IS NOT NULL AND l.ended_at > t.now - interval '1 day'
    GROUP BY l.schedule HAVING sum(l.ticks) FILTER (WHERE l.outcome = 'skipped') > greatest(2, sum(l.ticks) / 2)
), found AS MATERIALIZED (
    SELECT f.id FROM groups AS g CROSS JOIN LATERAL (SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.failures > 0 LIMIT $2::int) AS f
    UNION SELECT f.id FROM groups AS g CROSS JOIN LATERAL (SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.paused_at IS NOT NULL LIMIT $2::int) AS f
    UNION SELECT f.id FROM groups AS g CROSS JOIN LATERAL (SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.blocked_reason IS NOT NULL LIMIT $2::int) AS f
    UNION SELECT f.id FROM t CROSS JOIN groups AS g CROSS JOIN LATERAL (
        SELECT l.id FROM generate_series(0, g.partitions - 1) AS p CROSS JOIN LATERAL
            (SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.partition = p AND s.due < t.now - interval '10 seconds' ORDER BY s.due LIMIT $2::int) AS l
        LIMIT $2::int) AS f WHERE g.partitions <= 1000
    UNION SELECT f.id FROM t CROSS JOIN groups AS g CROSS JOIN LATERAL (
        SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.due < t.now - interval '10 seconds' LIMIT $2::int) AS f WHERE g.partitions > 1000
    UNION SELECT s.id FROM skipping AS s
), ill AS MATERIALIZED (
    SELECT v.id, v.group_name, v.name, v.state, v.why, v.succeeded, v.failures, v.error, v.paused_at, v.lateness, k.skipped, k.ticks,
           array_remove(ARRAY[CASE WHEN v.failures > 0 THEN 'failing' END, CASE WHEN v.state = 'blocked' THEN 'blocked' END,
               CASE WHEN v.state = 'due' AND v.due < t.now - interval '10 seconds' THEN 'late' END, CASE WHEN v.paused_at IS NOT NULL THEN 'paused' END,
               CASE WHEN k.id IS NOT NULL THEN 'skipping' END], NULL) AS faults
    FROM (SELECT n.id FROM found AS n LIMIT 1000) AS f CROSS JOIN t JOIN pgleases.schedules_status AS v ON v.id = f.id LEFT JOIN skipping AS k ON k.id = f.id
)
SELECT json_build_object('group', i.group_name, 'name', i.name, 'faults', i.faults, 'state', i.state, 'why', coalesce(i.why, ''), 'failures', i.failures,
           'failing_since', b.since, 'succeeded', i.succeeded, 'error', left(split_part(coalesce(i.error, ''), E'\n', 1), 200),
           'late_ns', CASE WHEN i.faults && '{late,blocked}' THEN coalesce(extract(epoch FROM i.lateness) * 1000000000, 0)::bigint ELSE 0 END,
           'paused_at', i.paused_at, 'skipped', least(greatest(i.skipped, 0), 9223372036854775807), 'ticks', least(greatest(i.ticks, 0), 9223372036854775807))
FROM (SELECT * FROM ill WHERE ill.faults <> '{}' ORDER BY ill.group_name, ill.name LIMIT $2::int) AS i
LEFT JOIN LATERAL (
    SELECT min(h.until) FILTER (WHERE h.outcome = ANY ('{failed,unknown}'::text[]) AND h.id > coalesce(h.well, 0) AND (h.well IS NOT NULL OR h.entries < $4::int)) AS since
    FROM (SELECT e.id, e.until, e.outcome, max(e.id) FILTER (WHERE e.outcome = 'succeeded') OVER () AS well, count(*) OVER () AS entries
          FROM (SELECT h.id, h.until, h.outcome FROM pgleases.history AS h WHERE h.group_name = i.group_name AND h.name = i.name AND h.schedule = i.id AND h.job IS NULL
                ORDER BY h.id DESC LIMIT $4::int) AS e) AS h
) AS b ON i.failures > 0
ORDER BY i.group_name, i.name
