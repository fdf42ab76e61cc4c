-- locks.sql: the holders of locks as they are. Of a lock that more than one session holds, all share it.
SELECT l.name, count(*), bool_and(l.shared), min(l.token), max(l.token)
FROM pgleases.locks AS l
WHERE l.token IS NOT NULL
GROUP BY l.name
ORDER BY l.name
