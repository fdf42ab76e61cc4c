-- strangers.sql: sessions of other programs that hold advisory locks with keys of the library, or await a lock that a
-- client holds for fast failover. Any role that can connect can take such locks. The search_path must be pg_catalog
-- only.
--
-- One row for each session and lock: the use of the lock, the server's process (0: a prepared transaction), its role,
-- its application_name, and the age in seconds of its transaction, or of its state if it has no transaction; negative:
-- this role cannot see it. A lock of a transaction is returned after 1 s: the transactions of the library are shorter.
WITH keys AS (
    SELECT 'Migrate' AS use, 7358216409153 AS key, 0 AS pid
    UNION ALL
    SELECT 'verbs of operators', hashtextextended('override', 'pgleases.overrides'::regclass::bigint), 0
    UNION ALL
    SELECT 'fast failover', p.presence, p.pid FROM pgleases.presences AS p
    UNION ALL
    SELECT 'the named lock ' || to_json(l.name), hashtextextended(l.name, 'pgleases.server'::regclass::bigint), 0
    FROM (SELECT DISTINCT name FROM pgleases.locks) AS l
    UNION ALL -- a lock that is requested, and has no row yet
    SELECT 'a named lock', (w.classid::bigint << 32) | w.objid::bigint, 0
    FROM pg_locks AS w JOIN pg_stat_activity AS a ON a.pid = w.pid
    WHERE w.locktype = 'advisory' AND w.objsubid = 1 AND NOT w.granted AND strpos(a.query, 'lock_acquire(') > 0
)
SELECT max(k.use), coalesce(l.pid, 0), coalesce(a.usename, ''), coalesce(a.application_name, ''),
       coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.state_change)), -1)::double precision
FROM pg_locks AS l
JOIN keys AS k ON k.key = (l.classid::bigint << 32) | l.objid::bigint
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
  AND l.mode = 'ExclusiveLock' AND (l.pid NOT IN (k.pid, pg_backend_pid())) IS NOT FALSE
  AND (k.pid > 0 OR l.granted AND coalesce(a.xact_start < clock_timestamp() - interval '1 second', true))
GROUP BY l.pid, k.key, a.usename, a.application_name, a.xact_start, a.state_change
ORDER BY 1, 2
