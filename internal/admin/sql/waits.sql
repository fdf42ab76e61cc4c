-- waits.sql: the named lock that is awaited and needs somebody most, and how many are awaited for long. One that its
-- holder has lost, or whose holder's session has expired, comes first, then the longest wait. The search_path must be
-- pg_catalog only.
--
-- $1 double precision  minimum wait in seconds
--
-- At most one row, if a lock is awaited for so long: the name, the longest wait in seconds, and the client that holds the
-- lock; empty: its session has expired. Whether that client has lost the lock, and has not released it. Of several that
-- share the lock, the client is one that has lost it, or one whose session has expired, otherwise the one that has held it
-- for longest. The number of locks that are awaited for so long.
SELECT w.name, w.seconds, coalesce(h.id, '') AS holder, coalesce(h.lost, false) AS lost, count(*) OVER ()
FROM (
    SELECT l.name, extract(epoch FROM clock_timestamp() - min(l.since))::double precision AS seconds
    FROM pgleases.locks AS l
    WHERE l.token IS NULL
    GROUP BY l.name
    HAVING min(l.since) < clock_timestamp() - $1 * interval '1 second'
) AS w
LEFT JOIN LATERAL (
    SELECT c.id, coalesce(w.name = ANY (c.lost_locks), false) AS lost
    FROM pgleases.locks AS l
    LEFT JOIN pgleases.clients AS c ON c.session = l.session
    WHERE l.name = w.name AND l.token IS NOT NULL
    ORDER BY lost DESC, c.id IS NULL DESC, l.ticket
    LIMIT 1
) AS h ON true
ORDER BY (h.id IS NULL OR h.lost) DESC, w.seconds DESC
LIMIT 1
