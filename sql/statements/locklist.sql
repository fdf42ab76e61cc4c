-- locklist.sql: the locks that are held or awaited, by name.
--
-- $1 text  prefix of the names
-- $2 text  the name after which to begin; empty: at the first
-- $3 int   the most names
--
-- One row for each lock: its name; whether it is shared; how many sessions wait; arrays of the holders: client ID
-- (empty: the session has expired), host, process ID, token, since when, microseconds since 1970; the age of the last
-- heartbeat, and the time until the session expires, microseconds; whether the client has lost the lock, and has not
-- released it.
SELECT name, shared, waiting, ids, hosts, pids, tokens, since, silent, lives, lost
FROM pgleases.lock_list($1::pg_catalog.text, $2::pg_catalog.text, $3::int)
