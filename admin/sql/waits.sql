-- waits.sql: the named locks that have been awaited for long, the longest first, at most 10. The search_path is to be pg_catalog alone.
--
-- $1 double precision  seconds
--
-- The name, for how long the first of those that wait has waited, in seconds, and the client that holds it; empty: it has expired.
SELECT w.name, extract(epoch FROM clock_timestamp() - min(w.since))::double precision AS seconds, coalesce((
    SELECT c.id FROM pgleases.locks AS h LEFT JOIN pgleases.clients AS c ON c.session = h.session
    WHERE h.name = w.name AND h.token IS NOT NULL
    ORDER BY h.ticket LIMIT 1), '') AS holder
FROM pgleases.locks AS w
WHERE w.token IS NULL
GROUP BY w.name
HAVING min(w.since) < clock_timestamp() - $1 * interval '1 second'
ORDER BY seconds DESC
LIMIT 10
