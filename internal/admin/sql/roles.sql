-- roles.sql: the roles of live clients. The search_path must be pg_catalog only.
--
-- One row for each role: its name, the kinds of workers that its clients run, of consumer and schedule, and whether a
-- live client has it. If the heartbeats of a client fail, it is not live after its TTL, and another one may evict it. Then
-- only its session shows that it still runs.
SELECT c.role, coalesce(array_agg(DISTINCT split_part(m.lease, '/', 1)) FILTER (WHERE m.lease LIKE 'consumer/%' OR m.lease LIKE 'schedule/%'), '{}'), true
FROM pgleases.clients AS c LEFT JOIN pgleases.members AS m ON m.session = c.session
WHERE c.expires_at > clock_timestamp()
GROUP BY c.role
UNION ALL
SELECT a.usename::text, '{}', false FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.application_name = 'pgleases'
  AND a.usename IS NOT NULL -- the role may have been dropped
  AND NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.role = a.usename AND c.expires_at > clock_timestamp())
GROUP BY a.usename
