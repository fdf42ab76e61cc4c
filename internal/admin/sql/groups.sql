-- groups.sql: the groups that have run, or have schedules or jobs, with the numbers of these. All counts are at most
-- 1,001, and come from indexes. The search_path must be pg_catalog only, the zone UTC, and enable_seqscan off.
--
-- The index has the due time after the partition. If there are few partitions, late schedules are counted in each. If
-- there are many, the group's part of the index is scanned, because 65,536 look-ups take as long as the scan of
-- 4,000,000 schedules.
--
-- Without a number of partitions, the whole index of the group is scanned.
--
-- $1 int  maximum number of groups
-- $2 int  number of the latest entries of the history that are read for the outcomes
-- $3 int  number of hours of the outcomes
--
-- One row for each group, JSON, as the type ScheduleGroup.
WITH RECURSIVE names AS (
    SELECT least((SELECT min(g.name) FROM pgleases.schedule_groups AS g), (SELECT min(s.group_name) FROM pgleases.schedules AS s), (SELECT min(j.group_name) FROM pgleases.jobs AS j)) AS name
    UNION ALL
    SELECT least((SELECT min(g.name) FROM pgleases.schedule_groups AS g WHERE g.name > n.name), (SELECT min(s.group_name) FROM pgleases.schedules AS s WHERE s.group_name > n.name),
                 (SELECT min(j.group_name) FROM pgleases.jobs AS j WHERE j.group_name > n.name))
    FROM names AS n WHERE n.name IS NOT NULL
), latest AS (
    SELECT h.group_name, h.outcome, h.ticks, h.ended_at FROM pgleases.history AS h ORDER BY h.id DESC LIMIT $2::int
), bound AS (
    SELECT greatest(pgleases.schedule_clock() - make_interval(hours => $3::int), CASE WHEN count(*) = $2::int THEN min(l.ended_at) END) AS since FROM latest AS l
), outcomes AS MATERIALIZED (
    SELECT l.group_name, l.outcome, least(greatest(sum(l.ticks), 0), 9223372036854775807)::bigint AS count, b.since FROM latest AS l, bound AS b WHERE l.ended_at >= b.since GROUP BY l.group_name, l.outcome, b.since
)
SELECT json_build_object(
       'name', g.name,
       'schedules', (SELECT count(*) FROM (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name LIMIT 1001) AS n),
       'paused', (SELECT count(*) FROM (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.paused_at IS NOT NULL LIMIT 1001) AS n),
       'blocked', (SELECT count(*) FROM (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.blocked_reason IS NOT NULL LIMIT 1001) AS n),
       'failing', (SELECT count(*) FROM (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.failures > 0 LIMIT 1001) AS n),
       'late', CASE WHEN g.partitions <= 1000
           THEN (SELECT count(*) FROM (SELECT l.id FROM generate_series(0, g.partitions - 1) AS p CROSS JOIN LATERAL
                                           (SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.partition = p AND s.due < pgleases.schedule_clock() - interval '10 seconds'
                                            ORDER BY s.due LIMIT 1001) AS l LIMIT 1001) AS n JOIN pgleases.schedules_status AS v ON v.id = n.id WHERE v.state <> 'running')
           ELSE (SELECT count(*) FROM (SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.due < pgleases.schedule_clock() - interval '10 seconds' LIMIT 1001) AS n
                                      JOIN pgleases.schedules_status AS v ON v.id = n.id WHERE v.state <> 'running') END,
       'jobs', (SELECT count(*) FROM (SELECT FROM pgleases.jobs AS j WHERE j.group_name = g.name LIMIT 1001) AS n),
       'stuck', (SELECT count(*) FROM (SELECT FROM pgleases.jobs AS j WHERE j.group_name = g.name AND j.blocked_reason IS NOT NULL LIMIT 1001) AS n),
       'outcomes', (SELECT coalesce(json_agg(json_build_object('outcome', f.outcome, 'count', f.count, 'since', f.since) ORDER BY f.outcome), '[]')
                 FROM outcomes AS f WHERE f.group_name = g.name))
FROM (SELECT n.name, p.partitions FROM names AS n LEFT JOIN pgleases.schedule_groups AS p ON p.name = n.name WHERE n.name IS NOT NULL) AS g
ORDER BY g.name
LIMIT $1::int
