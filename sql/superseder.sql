-- superseder.sql: the newest living process under a client ID.
--
-- $1 text client ID
SELECT c.host, c.pid, c.started_at FROM pgleases.clients AS c
WHERE c.id = $1::text
ORDER BY c.incarnation DESC
LIMIT 1
