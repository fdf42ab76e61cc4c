-- duties.sql: the faults of schedules and jobs, for at most 100 groups. It reads jobs by index, and searches at most
-- 10,000 of a group for failures and pauses. The search_path must be pg_catalog only, the zone UTC, and enable_seqscan off.
--
-- $1 double precision  seconds after which a schedule or job is late
--
-- One row for each fault of a group: schedules or jobs; the fault; the group; the count, at most 1,000; and of the
-- worst one its name or number, its seconds or failures, its error or the reason why it waits, which may be empty, and
-- since when it fails, if that is known. Seconds since a time that JSON cannot hold are 9e9.
-- Of each kind one row with the fault none, which says what holds if there is no other row. If there are more groups, one
-- row with the fault unread, and the first of them.
WITH RECURSIVE names AS (
    SELECT least((SELECT min(s.group_name) FROM pgleases.schedules AS s), (SELECT min(j.group_name) FROM pgleases.jobs AS j)) AS name
    UNION ALL
    SELECT least((SELECT min(s.group_name) FROM pgleases.schedules AS s WHERE s.group_name > n.name), (SELECT min(j.group_name) FROM pgleases.jobs AS j WHERE j.group_name > n.name))
    FROM names AS n WHERE n.name IS NOT NULL
), groups AS MATERIALIZED (
    SELECT n.name, EXISTS (
        SELECT FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session WHERE m.lease = 'schedule/' || n.name AND c.expires_at > clock_timestamp()) AS attended
    FROM names AS n WHERE n.name IS NOT NULL LIMIT 100
), t AS (SELECT pgleases.schedule_clock() AS now, $1 * interval '1 second' AS long), found AS (
    SELECT 'schedules' AS kind, 'unattended' AS fault, g.name AS of, '' AS name, 0::double precision AS worst, '' AS why FROM groups AS g WHERE NOT g.attended
    UNION ALL (SELECT 'schedules', 'unread', n.name, '', 0, '' FROM names AS n WHERE n.name IS NOT NULL OFFSET 100 LIMIT 1)
    UNION ALL SELECT 'schedules', CASE v.state WHEN 'due' THEN 'late' ELSE v.state END, g.name, v.name, extract(epoch FROM v.lateness), v.why
    FROM t CROSS JOIN groups AS g CROSS JOIN LATERAL (
        (SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.due < t.now - t.long LIMIT 1000)
        UNION (SELECT s.id FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.blocked_reason IS NOT NULL LIMIT 1000)) AS c
    JOIN pgleases.schedules_status AS v ON v.id = c.id WHERE g.attended AND v.state IN ('due', 'blocked') AND v.lateness > t.long
    UNION ALL SELECT 'jobs', CASE v.state WHEN 'due' THEN 'late' ELSE v.state END, g.name, v.id::text, extract(epoch FROM v.lateness), v.why
    FROM t CROSS JOIN groups AS g CROSS JOIN LATERAL (
        (SELECT j.id FROM pgleases.jobs AS j WHERE j.group_name = g.name AND j.due < t.now - t.long LIMIT 1000)
        UNION (SELECT j.id FROM pgleases.jobs AS j WHERE j.group_name = g.name AND j.blocked_reason IS NOT NULL LIMIT 1000)) AS c
    JOIN pgleases.jobs_status AS v ON v.id = c.id WHERE g.attended AND v.state IN ('due', 'blocked') AND v.lateness > t.long
    UNION ALL SELECT 'schedules', CASE WHEN c.state = 'paused' THEN 'paused' WHEN c.failures < 3 THEN 'failed' ELSE 'failing' END, g.name, c.name, c.failures, c.error
    FROM t CROSS JOIN groups AS g CROSS JOIN LATERAL (
        SELECT v.name, v.failures, v.error, v.state FROM pgleases.schedules_status AS v
        WHERE v.group_name = g.name AND v.failures > 0 AND (v.failures >= 3 OR v.due > t.now + interval '1 hour' AND -- a tick that is due sooner shows whether it still fails
            (SELECT h.retried FROM pgleases.history AS h WHERE h.group_name = g.name AND h.name = v.name AND h.schedule = v.id AND h.job IS NULL ORDER BY h.id DESC LIMIT 1) IS NULL)
        LIMIT 1000) AS c
    UNION ALL SELECT 'jobs', 'failing', g.name, c.id::text, c.attempts, c.error
    FROM groups AS g CROSS JOIN LATERAL (SELECT j.id, j.attempts, j.error FROM pgleases.jobs AS j WHERE j.group_name = g.name LIMIT 10000) AS c WHERE c.attempts >= 3
    UNION ALL SELECT r.check, 'away', g.name, r.kind, extract(epoch FROM pgleases.schedule_since(min(r.began))), max(r.error) -- one for each kind
    FROM t CROSS JOIN groups AS g CROSS JOIN LATERAL (
        (SELECT 'schedules' AS check, s.kind, s.began, s.error, s.outages FROM pgleases.schedules AS s WHERE s.group_name = g.name LIMIT 10000)
        UNION ALL (SELECT 'jobs', j.kind, j.began, j.error, j.outages FROM pgleases.jobs AS j WHERE j.group_name = g.name LIMIT 10000)) AS r
    WHERE r.outages > 0 AND r.began < t.now - t.long GROUP BY r.check, g.name, r.kind
    UNION ALL (SELECT CASE WHEN h.job IS NULL THEN 'schedules' ELSE 'jobs' END, h.outcome, h.group_name, CASE WHEN h.job IS NULL THEN h.name ELSE format('%s (%s)', h.job, h.kind) END,
         extract(epoch FROM h.ended_at), CASE WHEN h.job IS NULL THEN 'tick ' || (to_json(h.until) #>> '{}') ELSE h.error END
     FROM t CROSS JOIN pgleases.history AS h
     WHERE h.outcome = ANY ('{failed,unknown}'::text[]) AND h.ended_at > t.now - interval '1 day' AND h.ended_at < 'infinity' AND (h.job IS NOT NULL OR h.outcome = 'unknown') AND h.retried IS NULL ORDER BY h.ended_at DESC LIMIT 1000)
    UNION ALL SELECT r.kind, 'overdue', g.name, r.name, extract(epoch FROM pgleases.schedule_since(r.call_began)), format('kill -9 %s on host %s (%s)', c.pid, to_json(c.host), to_json(c.id))
    FROM t CROSS JOIN groups AS g CROSS JOIN LATERAL (
        (SELECT 'schedules' AS kind, s.name, s.partition, s.call, s.call_epoch, s.call_began, s.call_ends FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.due < t.now - t.long LIMIT 10000)
        UNION ALL (SELECT 'jobs', format('%s (%s)', j.id, j.kind), j.partition, j.call, j.call_epoch, j.call_began, j.call_ends FROM pgleases.jobs AS j WHERE j.group_name = g.name AND j.due < t.now - t.long LIMIT 10000)) AS r
    JOIN pgleases.partitions AS p ON p.lease = 'schedule/' || g.name AND p.partition = r.partition AND p.epoch = r.call_epoch JOIN pgleases.clients AS c ON c.session = p.owner
    WHERE r.call IS NOT NULL AND r.call_ends < t.now - t.long
    UNION ALL SELECT 'schedules', 'none', '', '', 0, CASE WHEN EXISTS (SELECT FROM pgleases.schedules) THEN 'none is late, failed 3 times in a row, or failed last with its next tick over an hour away' ELSE 'there are none' END
    UNION ALL SELECT 'jobs', 'none', '', '', 0, CASE WHEN EXISTS (SELECT FROM pgleases.jobs) THEN 'none is late, or failed 3 times' ELSE 'there are none' END
    UNION ALL -- processes register their declarations again each day
    (SELECT 'schedules', 'undeclared', s.group_name, s.name, extract(epoch FROM pgleases.schedule_since(s.registered)), 'since ' || s.registered::date
     FROM t CROSS JOIN pgleases.schedules AS s WHERE s.declared AND s.registered < t.now - interval '7 days' ORDER BY s.registered LIMIT 1000)
)
SELECT f."check", f.fault, f."group", f.count, f.name, f.worst, f.why, b.began
FROM (SELECT DISTINCT ON (f.kind, f.fault, f.of) f.kind AS "check", f.fault, f.of AS "group", count(*) OVER (PARTITION BY f.kind, f.fault, f.of) AS count, f.name, coalesce(f.worst, 9e9) AS worst, left(split_part(coalesce(f.why, ''), E'\n', 1), 200) AS why
      FROM found AS f ORDER BY f.kind, f.fault, f.of, f.worst DESC) AS f
CROSS JOIN LATERAL (SELECT CASE
    WHEN f.fault = 'unknown' OR f."check" = 'jobs' AND f.fault = 'failed' THEN CASE WHEN f.worst < 9e9 THEN to_timestamp(f.worst) END
    WHEN f."check" = 'jobs' AND f.fault = 'failing' THEN (SELECT j.began FROM pgleases.jobs AS j WHERE j.id = f.name::bigint AND isfinite(j.began))
    WHEN f."check" = 'schedules' AND f.fault = ANY ('{failing,paused,failed}'::text[]) THEN ( -- the first failure after the last success, among the latest 1,000 entries
        SELECT min(h.until) FILTER (WHERE h.outcome = ANY ('{failed,unknown}'::text[]) AND isfinite(h.until) AND h.id > coalesce(h.well, 0) AND (h.well IS NOT NULL OR h.entries < 1000))
        FROM (SELECT e.id, e.until, e.outcome, max(e.id) FILTER (WHERE e.outcome = 'succeeded') OVER () AS well, count(*) OVER () AS entries
              FROM (SELECT h.id, h.until, h.outcome FROM pgleases.history AS h WHERE h.group_name = f."group" AND h.name = f.name AND h.job IS NULL ORDER BY h.id DESC LIMIT 1000) AS e) AS h)
    END AS began) AS b
ORDER BY f."check", f.fault, f."group"
