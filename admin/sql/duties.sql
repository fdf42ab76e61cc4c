-- duties.sql: what is wrong with the schedules and jobs of each group, of at most 100 groups. No table is read
-- whole: of a group's jobs 10,000 are looked at for those that fail. The search_path is to be pg_catalog alone, and
-- enable_seqscan off.
--
-- $1 double precision  seconds from which on something is late
--
-- A row for each fault of a group: schedules or jobs; unattended, late, failing or failed; the group; how many, at most
-- 1,000; for the longest of them its name or number, seconds, and the error or why it waits, which may be empty.
WITH RECURSIVE names AS (
    SELECT least((SELECT min(s.group_name) FROM pgleases.schedules AS s), (SELECT min(j.group_name) FROM pgleases.jobs AS j)) AS name
    UNION ALL
    SELECT least((SELECT min(s.group_name) FROM pgleases.schedules AS s WHERE s.group_name > n.name),
                 (SELECT min(j.group_name) FROM pgleases.jobs AS j WHERE j.group_name > n.name))
    FROM names AS n WHERE n.name IS NOT NULL
), groups AS MATERIALIZED (
    SELECT n.name, coalesce(g.partitions, 0) AS partitions,
           EXISTS (SELECT FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session
                   WHERE m.lease = 'schedule/' || n.name AND c.expires_at > clock_timestamp()) AS attended
    FROM names AS n LEFT JOIN pgleases.schedule_groups AS g ON g.name = n.name
    WHERE n.name IS NOT NULL
    LIMIT 100
), found AS (
    SELECT 'schedules' AS kind, 'unattended' AS fault, g.name AS of, '' AS name, 0::double precision AS seconds, '' AS why FROM groups AS g WHERE NOT g.attended
    UNION ALL
    SELECT 'schedules', 'late', g.name, v.name, extract(epoch FROM v.lateness), v.why
    FROM groups AS g
    CROSS JOIN LATERAL (
        SELECT l.id FROM generate_series(0, g.partitions - 1) AS p CROSS JOIN LATERAL
            (SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.partition = p
                AND s.due < pgleases.schedule_clock() - $1 * interval '1 second' ORDER BY s.due LIMIT 1000) AS l
        UNION
        SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.waits IS NOT NULL LIMIT 1000) AS c
    JOIN pgleases.schedules_status AS v ON v.id = c.id
    WHERE g.attended AND v.state IN ('due', 'waits') AND v.lateness > $1 * interval '1 second'
    UNION ALL
    SELECT 'jobs', 'late', g.name, v.id::text, extract(epoch FROM v.lateness), v.why
    FROM groups AS g
    CROSS JOIN LATERAL (
        SELECT l.id FROM generate_series(0, g.partitions - 1) AS p CROSS JOIN generate_series(0, 3) AS q CROSS JOIN LATERAL
            (SELECT j.id FROM pgleases.jobs AS j WHERE j.group_name = g.name AND j.partition = p AND j.priority = q
                AND j.due < pgleases.schedule_clock() - $1 * interval '1 second' ORDER BY j.due LIMIT 1000) AS l
        UNION
        SELECT j.id FROM pgleases.jobs AS j WHERE j.group_name = g.name AND j.waits IS NOT NULL LIMIT 1000) AS c
    JOIN pgleases.jobs_status AS v ON v.id = c.id
    WHERE g.attended AND v.state IN ('due', 'waits') AND v.lateness > $1 * interval '1 second'
    UNION ALL
    SELECT 'schedules', 'failing', g.name, c.name, c.failures, c.error
    FROM groups AS g
    CROSS JOIN LATERAL (SELECT v.name, v.failures, v.error FROM pgleases.schedules_status AS v WHERE v.group_name = g.name AND v.failures >= 3 LIMIT 1000) AS c
    UNION ALL
    SELECT 'jobs', 'failing', g.name, c.id::text, (c.trying ->> 'attempts')::int, c.trying ->> 'error'
    FROM groups AS g
    CROSS JOIN LATERAL (SELECT j.id, j.trying FROM pgleases.jobs AS j WHERE j.group_name = g.name LIMIT 10000) AS c
    WHERE (c.trying ->> 'attempts')::int >= 3
    UNION ALL
    (SELECT 'jobs', 'failed', h.group_name, h.job::text, extract(epoch FROM pgleases.schedule_clock() - h.ended_at), h.error
     FROM pgleases.history AS h
     WHERE h.fate = ANY ('{dead,lost}'::text[]) AND h.ended_at > pgleases.schedule_clock() - interval '1 day' AND h.job IS NOT NULL AND h.retried IS NULL
     ORDER BY h.ended_at DESC LIMIT 1000)
)
SELECT DISTINCT ON (f.kind, f.fault, f.of) f.kind, f.fault, f.of, count(*) OVER (PARTITION BY f.kind, f.fault, f.of), f.name, f.seconds, left(coalesce(f.why, ''), 200)
FROM found AS f
ORDER BY f.kind DESC, f.fault, f.of, CASE f.fault WHEN 'failed' THEN f.seconds ELSE -f.seconds END
