-- superseder.sql: the newest process that has a session under a client ID.
--
-- $1 text  client ID
--
-- One row: its host, process ID and start; process ID 0 if there is no such process; and false twice, because it is not an
-- operator, and has the ID already.
SELECT coalesce(newer.host, '') AS host, coalesce(newer.pid, 0) AS pid, coalesce(newer.started_at, 'epoch') AS started_at, false AS evicted, false AS contended
FROM (VALUES (1)) AS one
LEFT JOIN LATERAL (
    SELECT c.host, c.pid, c.started_at FROM pgleases.clients AS c WHERE c.id = $1::text ORDER BY c.incarnation DESC LIMIT 1
) AS newer ON true
