-- superseder.sql: the newest process that has a session under a client ID.
--
-- $1 text  client ID
--
-- One row: its host, process ID and start; no row where there is none.
SELECT c.host, c.pid, c.started_at FROM pgleases.clients AS c
WHERE c.id = $1::text
ORDER BY c.incarnation DESC
LIMIT 1
