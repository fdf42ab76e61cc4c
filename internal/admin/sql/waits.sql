-- waits.sql: the named locks with the longest waits, at most 10, the longest first. The search_path must be pg_catalog
-- only.
--
-- $1 double precision  minimum wait in seconds
--
-- The name, the longest wait in seconds, and the client that holds the lock; empty: its session has expired. Whether that
-- client has lost the lock, and has not released it. Of several that share the lock, the client is one that has lost it,
-- or one whose session has expired, otherwise the one that has held it for longest.
SELECT w.name, w.seconds, coalesce(h.id, '') AS holder, coalesce(h.lost, false) AS lost
FROM (
    SELECT l.name, extract(epoch FROM clock_timestamp() - min(l.since))::double precision AS seconds
    FROM pgleases.locks AS l
    WHERE l.token IS NULL
    GROUP BY l.name
    HAVING min(l.since) < clock_timestamp() - $1 * interval '1 second'
    ORDER BY seconds DESC
    LIMIT 10
) AS w
LEFT JOIN LATERAL (
    SELECT c.id, coalesce(w.name = ANY (c.lost_locks), false) AS lost
    FROM pgleases.locks AS l
    LEFT JOIN pgleases.clients AS c ON c.session = l.session
    WHERE l.name = w.name AND l.token IS NOT NULL
    ORDER BY lost DESC, c.id IS NULL DESC, l.ticket
    LIMIT 1
) AS h ON true
ORDER BY w.seconds DESC
