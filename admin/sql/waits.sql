-- waits.sql: the named locks with the longest waits, at most 10, the longest first. The search_path must be pg_catalog
-- only.
--
-- $1 double precision  minimum wait in seconds
--
-- The name, the longest wait in seconds, and the client that holds the lock; empty: its session has expired. Whether that
-- client has lost the lock, and has not released it.
SELECT w.name, extract(epoch FROM clock_timestamp() - min(w.since))::double precision AS seconds, coalesce((
    SELECT c.id FROM pgleases.locks AS h LEFT JOIN pgleases.clients AS c ON c.session = h.session
    WHERE h.name = w.name AND h.token IS NOT NULL
    ORDER BY h.ticket LIMIT 1), '') AS holder,
    EXISTS (SELECT FROM pgleases.locks AS h JOIN pgleases.clients AS c ON c.session = h.session
            WHERE h.name = w.name AND h.token IS NOT NULL AND w.name = ANY (c.lost_locks)) AS lost
FROM pgleases.locks AS w
WHERE w.token IS NULL
GROUP BY w.name
HAVING min(w.since) < clock_timestamp() - $1 * interval '1 second'
ORDER BY seconds DESC
LIMIT 10
